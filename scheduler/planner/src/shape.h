// What a schedule asks of each rank, without its order: how often it runs which action, how early
// and how late its first and last chunks can be, and the most that can be alive at a time. From it
// follow a bound on the step and the exact memory of any costs, in time that does not depend on the
// number of micro-batches.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/arena.h"
#include "dp/schedule.h"

// Actions of one kind on the same stages of a rank.
struct shape_term {
    uint8_t kind;   // dp_action_kind
    uint8_t b_kind; // FB: DP_ACTION_B or DP_ACTION_I
    uint8_t slot;   // of the rank's stages; FB: of the forward part
    uint8_t b_slot; // FB
};

// A first action of the list that cannot start before its input has come along the pipeline, or a
// last one whose result still has to travel.
struct shape_end {
    int32_t stage;
    int32_t direction;
    bool is_forward;
    int64_t position;      // in the list
    const int32_t *counts; // [terms]: of a first action those before it, of a last those after it
};

// Chunks alive when an action starts.
struct shape_live {
    int32_t term;
    const int32_t *chunks; // [2 * slots]: between F and B or I, then between I and W
};

// Chunks of one slot that follow each other: forward i + flight comes after the backward of i.
struct shape_flight {
    int32_t stage, direction;
    int32_t flight, microbatches;
};

enum { SHAPE_ENDS_MAX = 8 };

struct shape_rank {
    int32_t slots;
    int32_t stages[DP_RANK_STAGES_MAX];
    struct shape_term *terms;
    int32_t *counts; // [terms_count]
    int32_t terms_count;
    struct shape_end firsts[SHAPE_ENDS_MAX], lasts[SHAPE_ENDS_MAX];
    int32_t firsts_count, lasts_count;
    struct shape_flight flights[DP_RANK_STAGES_MAX];
    int32_t flights_count;
    struct shape_live *live;
    int32_t live_count;
};

struct shape {
    int32_t pipeline, microbatches, stages, directions;
    bool has_pairs, has_splits; // FB; I and W
    int32_t *placement;         // [stages][2], as in the schedule
    struct shape_rank *ranks;   // [pipeline]
    int32_t terms_max;          // of a rank
    struct dp_arena arena;      // holds all of it
};

// Needs a valid schedule.
void dp_planner_shape_of(const struct dp_schedule *schedule, struct shape *ret_shape);
void dp_planner_shape_deinit(struct shape *shape);

// What the actions of a shape take.
struct shape_costs {
    const double *seconds;                  // [pipeline][terms_max]
    double hop_s;                           // between stages on different ranks
    const double *gradient_s, *optimizer_s; // [pipeline]; after the last action
};
// No order with this shape steps faster; *ret_makespan (may be NULL) is of the actions alone.
double dp_planner_shape_bound_s(const struct shape *shape, const struct shape_costs *costs,
                                double *ret_makespan);
