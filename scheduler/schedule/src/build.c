#include "build.h"

#include "dp/alloc.h"
#include "dp/check.h"

void dp_schedule_build_begin(struct build *build, struct dp_schedule *schedule,
                             const struct dp_schedule_params *params, int32_t stages,
                             int32_t directions, size_t actions)
{
    schedule->pipeline = params->pipeline;
    schedule->microbatches = params->microbatches;
    schedule->stages = stages;
    schedule->directions = directions;
    schedule->placement = dp_new_array(int32_t, 2 * (size_t)stages);
    schedule->actions = dp_new_array(struct dp_action, actions);
    schedule->rank_begin = dp_new_array(size_t, (size_t)params->pipeline + 1);
    *build = (struct build){.schedule = schedule, .capacity = actions};
}

void dp_schedule_build_place(struct build *build, int32_t stage, int32_t direction, int32_t rank)
{
    int32_t *ranks = &build->schedule->placement[2 * stage];
    ranks[direction] = rank;
    if (build->schedule->directions == 1) {
        ranks[1] = rank;
    }
}

void dp_schedule_build_add(struct build *build, struct dp_action action)
{
    DP_CHECK(build->count < build->capacity);
    build->schedule->actions[build->count++] = action;
}

void dp_schedule_build_end_rank(struct build *build)
{
    build->schedule->rank_begin[++build->rank] = build->count;
}
