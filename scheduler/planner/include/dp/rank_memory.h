// Bytes of device memory of one rank of this project's own executor, at the fullest moment of its
// list.
//
// What the rank's device counts by purpose (dp_device_memory) is predicted part by part: weights
// with the copies that products read, gradients, moments, what chunks keep and what a running pass
// holds besides, the room that passes and kernels work in, windows of the expert exchange. Routing
// is balanced but for batch.imbalance, unless what came to the rank is known. Arithmetic only, any
// thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/cost.h"
#include "dp/memory.h"
#include "dp/schedule.h"
#include "dp/strategy.h"

struct dp_rank_memory {
    const struct dp_model_spec *model;
    const struct dp_profile *profile; // as dp_profile_set_format leaves it
    const struct dp_schedule *schedule;
    const int32_t *layer_begin; // [stages + 1]
    struct dp_cost_batch batch;
    // [layers, and one more for MTP] what a micro-batch brings to this rank's experts, as measured;
    // NULL = balanced.
    const struct dp_cost_routed *routed;
    int32_t data;          // replicas
    int32_t expert_copies; // slots of a rank beyond its equal share of the experts
    bool is_sharded;       // ranks that hold the same parameters share out their moments
    bool no_overlap;       // a pair runs its F, then its B or I
    // How much a rank fills its waits, for peers and for other stages, is up to them. Without
    // `least` weight gradients run in their turn, and of a pair the forward part is ahead where it
    // can be: the most that the rank comes to hold. With it those weight gradients that the list
    // puts right behind an action have run in its waits: the least. The two differ where the list
    // has Ws.
    bool least;
};
// Of one pipeline position: parts->exchange is the room that is shared and the windows. ret_action
// (NULL = not wanted) is the index in schedule->actions at which it is fullest.
void dp_rank_memory_parts(const struct dp_rank_memory *memory, int32_t position,
                          struct dp_memory_parts *ret_parts, size_t *ret_action);
// Without chunks: what is there whatever the list. The schedule's actions are not looked at.
void dp_rank_memory_still(const struct dp_rank_memory *memory, int32_t position,
                          struct dp_memory_parts *ret_parts);

// Of one chunk of a stage: kept from F until B or I, and from I until W; and the most that it holds
// while its F, B or I runs.
struct dp_rank_chunk {
    double kept, deferred;
    double forward, backward, input;
};
void dp_rank_memory_chunk(const struct dp_rank_memory *memory, int32_t stage,
                          struct dp_rank_chunk *ret_chunk);
