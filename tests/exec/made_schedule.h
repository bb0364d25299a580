// Schedules that no family makes: valid ones in random order over any placement, so that nothing
// that families have in common is taken for granted.
#pragma once

#include "dp/schedule.h"

typedef enum made_placement {
    MADE_LOOP,    // stage s on rank s mod P
    MADE_WAVES,   // there and back: a V with two stages per rank
    MADE_BOTH,    // two directions: stage s on ranks s and P-1-s
    MADE_ANYWHERE // random; each rank holds as many stages
} made_placement;

struct made {
    made_placement placement;
    int32_t pipeline, microbatches;
    int32_t chunks; // per rank and direction
    int32_t splits; // percent of backwards that are I, their W after any time
    int32_t pairs;  // percent of moments at which a forward and a backward that could be one are
    int32_t live;   // a rank with so many live chunks starts a forward only when it must
    uint64_t seed;
};

// The caller deinits it.
void made_schedule(const struct made *made, struct dp_schedule *ret_schedule);
