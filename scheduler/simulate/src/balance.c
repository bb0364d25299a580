// How much of the waiting comes from ranks that are not alike: the step is run once more with the
// same work spread evenly, each action taking the mean of its kind.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "meter.h"

static bool all_same(const double *values, int32_t count)
{
    for (int32_t i = 1; i < count; i++) {
        if (values[i] != values[0]) {
            return false;
        }
    }
    return true;
}

bool dp_sim_costs_are_even(const struct dp_sim_costs *costs)
{
    int32_t chunks = costs->pipeline * costs->slots;
    for (int32_t i = 1; i < chunks; i++) {
        for (int kind = 0; kind < DP_ACTION_FB; kind++) {
            if (costs->chunks[i].seconds[kind] != costs->chunks[0].seconds[kind]) {
                return false;
            }
        }
    }
    return all_same(costs->fb, chunks * costs->slots) && all_same(costs->fi, chunks * costs->slots);
}

struct totals {
    double seconds[SIM_KINDS], count[SIM_KINDS];
};

static void totals_to_means(const struct totals *totals, double ret_means[SIM_KINDS])
{
    for (int kind = 0; kind < SIM_KINDS; kind++) {
        ret_means[kind] = totals->count[kind] > 0 ? totals->seconds[kind] / totals->count[kind] : 0;
    }
}

void dp_sim_means_of_costs(const struct dp_sim_scratch *sim, double ret_means[SIM_KINDS])
{
    const struct dp_schedule *schedule = sim->schedule;
    struct totals totals = {0};
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            const struct dp_action *action = &schedule->actions[i];
            totals.seconds[sim_kind(action)] += sim_seconds(sim, rank, action);
            totals.count[sim_kind(action)]++;
        }
    }
    totals_to_means(&totals, ret_means);
}

void dp_sim_means_of_meters(const struct dp_sim_scratch *sim, double ret_means[SIM_KINDS])
{
    struct totals totals = {0};
    for (int kind = 0; kind < SIM_KINDS; kind++) {
        for (int32_t rank = 0; rank < sim->schedule->pipeline; rank++) {
            totals.seconds[kind] += sim->meters[rank].seconds[kind];
            totals.count[kind] += sim->meters[rank].count[kind];
        }
    }
    totals_to_means(&totals, ret_means);
}

bool dp_sim_even_waits(struct dp_sim_scratch *sim, const double means[SIM_KINDS],
                       double *ret_waits)
{
    const struct dp_sim_costs *costs = sim->costs;
    size_t chunk_count = (size_t)(costs->pipeline * costs->slots);
    size_t pair_count = chunk_count * (size_t)costs->slots;
    struct dp_sim_costs even = *costs;
    DP_AUTO_FREE struct dp_sim_chunk *chunks = dp_new_array(struct dp_sim_chunk, chunk_count);
    DP_AUTO_FREE double *fb = dp_new_array(double, pair_count);
    DP_AUTO_FREE double *fi = dp_new_array(double, pair_count);
    for (size_t i = 0; i < chunk_count; i++) {
        memcpy(chunks[i].seconds, means, sizeof(chunks[i].seconds));
    }
    for (size_t i = 0; i < pair_count; i++) {
        fb[i] = means[DP_ACTION_FB];
        fi[i] = means[SIM_KIND_FI];
    }
    even.chunks = chunks;
    even.fb = fb;
    even.fi = fi;
    dp_sim_restart(sim, &even);
    dp_sim_add_meters(sim, METER_WAITS);
    dp_sim_note_makers(sim, false);
    bool finished = dp_sim_run_alone(sim, NULL);
    for (int32_t rank = 0; rank < costs->pipeline; rank++) {
        ret_waits[rank] = sim->meters[rank].dependency;
    }
    dp_sim_add_meters(sim, METER_NOTHING);
    dp_sim_note_makers(sim, false);
    dp_sim_restart(sim, costs);
    return finished;
}
