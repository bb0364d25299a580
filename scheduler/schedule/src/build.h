// How generators put a schedule together: begin, then for each rank its actions and end_rank.
#pragma once

#include "dp/schedule.h"

struct build {
    struct dp_schedule *schedule;
    size_t count, capacity;
    int32_t rank; // the one being filled
};

// Sizes and an empty placement; room for `actions` actions.
void dp_schedule_build_begin(struct build *build, struct dp_schedule *schedule,
                             const struct dp_schedule_params *params, int32_t stages,
                             int32_t directions, size_t actions);
// The rank of a stage, for one direction (or for the only one).
void dp_schedule_build_place(struct build *build, int32_t stage, int32_t direction, int32_t rank);
void dp_schedule_build_add(struct build *build, struct dp_action action);
void dp_schedule_build_end_rank(struct build *build);

static inline struct dp_action build_single(dp_action_kind kind, int32_t stage, int32_t microbatch)
{
    return (struct dp_action){
        .kind = (uint8_t)kind, .stage = (uint16_t)stage, .microbatch = (uint32_t)microbatch};
}
