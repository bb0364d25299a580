// Ids in the order of their keys: a binary heap that knows where each id is.
#pragma once

#include <stdint.h>

// The arrays are the owner's: keys and place by id, ids with room for all that may be in.
struct sim_heap {
    const double *keys; // equal ones by id
    int32_t *place;     // index in ids of an id that is in
    int32_t *ids;
    int32_t count;
};

void dp_sim_heap_add(struct sim_heap *heap, int32_t id);
// The key of an id that is in has changed.
void dp_sim_heap_move(struct sim_heap *heap, int32_t id);
void dp_sim_heap_remove_first(struct sim_heap *heap);
