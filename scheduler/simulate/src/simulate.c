#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "sim.h"

static dp_status refuse_ring(const struct dp_schedule *schedule, struct dp_error *err)
{
    return dp_fail(err, DP_INVALID,
                   "the ranks of schedule %s wait for each other; validate it first",
                   schedule->name);
}

static dp_status run(struct dp_sim_scratch *sim, struct dp_sim_span *spans, struct dp_error *err)
{
    bool finished = dp_sim_costs_share_cores(sim->costs) ? dp_sim_run_sharing(sim, spans)
                                                         : dp_sim_run_alone(sim, spans);
    return finished ? DP_OK : refuse_ring(sim->schedule, err);
}

// Ranks on cores of their own: measured on the way.
static dp_status simulate_alone(struct dp_sim_scratch *sim, struct dp_sim_span *spans,
                                const double *even_waits, struct dp_sim_result *ret_result,
                                struct dp_error *err)
{
    dp_sim_add_meters(sim, METER_ALL);
    dp_sim_note_makers(sim, spans != NULL);
    dp_status status = run(sim, spans, err);
    if (status != DP_OK) {
        return status;
    }
    dp_sim_fill_result(sim, ret_result);
    if (even_waits != NULL) {
        dp_sim_split_imbalance(ret_result, even_waits);
    }
    return DP_OK;
}

// Measures given times.
static void measure_spans(struct dp_sim_scratch *sim, const struct dp_sim_span *spans,
                          struct dp_sim_result *ret_result)
{
    double means[SIM_KINDS];
    DP_AUTO_FREE double *even_waits = dp_new_array(double, (size_t)sim->schedule->pipeline);
    dp_sim_add_meters(sim, METER_ALL);
    dp_sim_meter_spans(sim, spans);
    dp_sim_fill_result(sim, ret_result);
    dp_sim_means_of_meters(sim, means);
    DP_CHECK(dp_sim_even_waits(sim, means, even_waits)); // it came to its end with other times
    dp_sim_split_imbalance(ret_result, even_waits);
}

dp_status dp_sim_simulate_in(struct dp_sim_scratch *sim, const struct dp_schedule *schedule,
                             const struct dp_sim_costs *costs, bool with_spans,
                             struct dp_sim_result *ret_result, struct dp_error *err)
{
    dp_status status = dp_sim_costs_check(costs, schedule, err);
    if (status != DP_OK) {
        return status;
    }
    status = dp_sim_prepare(sim, schedule, costs, err);
    if (status != DP_OK) {
        return status;
    }
    // With shared cores the times are known in no rank's order, so they are measured afterwards.
    bool contention = dp_sim_costs_share_cores(costs);
    DP_AUTO_FREE double *even_waits = NULL;
    if (!contention && !dp_sim_costs_are_even(costs)) {
        double means[SIM_KINDS];
        even_waits = dp_new_array(double, (size_t)schedule->pipeline);
        dp_sim_means_of_costs(sim, means);
        if (!dp_sim_even_waits(sim, means, even_waits)) {
            return refuse_ring(schedule, err);
        }
    }
    DP_AUTO_FREE struct dp_sim_span *spans = NULL;
    if (with_spans || contention) {
        spans = dp_new_array(struct dp_sim_span, dp_schedule_action_count(schedule));
    }
    status = contention ? run(sim, spans, err)
                        : simulate_alone(sim, spans, even_waits, ret_result, err);
    if (status == DP_OK && contention) {
        measure_spans(sim, spans, ret_result);
    }
    if (status == DP_OK && with_spans) {
        ret_result->spans = dp_steal(spans);
    }
    return status;
}

dp_status dp_simulate(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                      bool with_spans, struct dp_sim_result *ret_result, struct dp_error *err)
{
    DP_CLEANUP(dp_sim_release) struct dp_sim_scratch sim = {0};
    return dp_sim_simulate_in(&sim, schedule, costs, with_spans, ret_result, err);
}

void dp_sim_result_from_spans(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                              const struct dp_sim_span *spans, bool with_spans,
                              struct dp_sim_result *ret_result)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_sim_release) struct dp_sim_scratch sim = {0};
    DP_CHECK(dp_sim_prepare(&sim, schedule, costs, &err) == DP_OK);
    measure_spans(&sim, spans, ret_result);
    if (with_spans) {
        size_t count = dp_schedule_action_count(schedule);
        ret_result->spans = dp_memdup(spans, count * sizeof(*spans));
    }
}

DP_DEFINE_CLEANUP(cleanup_scratch, struct dp_sim_scratch, dp_sim_scratch_free)

dp_status dp_simulate_makespan(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                               struct dp_sim_scratch *scratch, double *ret_makespan,
                               double *ret_step, struct dp_error *err)
{
    if (costs->pipeline != schedule->pipeline) {
        return dp_fail(err, DP_INVALID, "costs are for %d ranks; the schedule has %d",
                       costs->pipeline, schedule->pipeline);
    }
    DP_CLEANUP(cleanup_scratch)
    struct dp_sim_scratch *own = scratch == NULL ? dp_sim_scratch_new() : NULL;
    struct dp_sim_scratch *sim = scratch == NULL ? own : scratch;
    dp_status status = dp_sim_prepare(sim, schedule, costs, err);
    if (status == DP_OK) {
        status = run(sim, NULL, err);
    }
    if (status != DP_OK) {
        return status;
    }
    double makespan = 0;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        makespan = sim->time[rank] > makespan ? sim->time[rank] : makespan;
    }
    *ret_makespan = makespan;
    if (ret_step != NULL) {
        *ret_step = dp_sim_step(schedule, costs, sim->time);
    }
    return DP_OK;
}
