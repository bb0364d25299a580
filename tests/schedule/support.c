#include "support.h"

struct dp_schedule make_schedule(const char *family, int32_t pipeline, int32_t microbatches)
{
    struct dp_error err = {0};
    struct dp_schedule schedule;
    struct dp_schedule_params params = {.pipeline = pipeline, .microbatches = microbatches};
    assert_ok(dp_schedule_generate(family, &params, &schedule, &err), &err);
    return schedule;
}

struct dp_sim_result simulate_uniform(const struct dp_schedule *schedule,
                                      struct dp_sim_uniform uniform)
{
    struct dp_error err = {0};
    struct dp_sim_costs costs;
    struct dp_sim_result result;
    dp_sim_costs_init_uniform(&costs, schedule, &uniform);
    assert_ok(dp_simulate(schedule, &costs, true, &result, &err), &err);
    dp_sim_costs_deinit(&costs);
    return result;
}

int count_kind(const struct dp_schedule *schedule, int32_t rank, dp_action_kind kind)
{
    int count = 0;
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        count += schedule->actions[i].kind == kind;
    }
    return count;
}
