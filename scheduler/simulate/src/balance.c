// How much of the waiting comes from ranks that are not alike: the step is run once more with the
// same work spread evenly, each action taking the mean of its kind.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "sim.h"

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

static void take_means(const struct dp_sim_scratch *sim, double ret_means[SIM_KINDS])
{
    for (int kind = 0; kind < SIM_KINDS; kind++) {
        double seconds = 0;
        double count = 0;
        for (int32_t rank = 0; rank < sim->schedule->pipeline; rank++) {
            seconds += sim->meters[rank].seconds[kind];
            count += sim->meters[rank].count[kind];
        }
        ret_means[kind] = count > 0 ? seconds / count : 0;
    }
}

void dp_sim_measure_imbalance(struct dp_sim_scratch *sim, double *ret_seconds)
{
    const struct dp_sim_costs *costs = sim->costs;
    int32_t ranks = costs->pipeline;
    size_t chunk_count = (size_t)(ranks * costs->slots);
    size_t pair_count = chunk_count * (size_t)costs->slots;
    double means[SIM_KINDS];
    take_means(sim, means);
    struct dp_sim_costs even = *costs;
    DP_AUTO_FREE struct dp_sim_chunk *chunks =
        dp_memdup(costs->chunks, chunk_count * sizeof(*chunks));
    DP_AUTO_FREE double *fb = dp_new_array(double, pair_count);
    DP_AUTO_FREE double *fi = dp_new_array(double, pair_count);
    for (size_t i = 0; i < chunk_count; i++) {
        for (int kind = 0; kind < DP_ACTION_FB; kind++) {
            chunks[i].seconds[kind] = means[kind];
        }
    }
    for (size_t i = 0; i < pair_count; i++) {
        fb[i] = means[DP_ACTION_FB];
        fi[i] = means[SIM_KIND_FI];
    }
    even.chunks = chunks;
    even.fb = fb;
    even.fi = fi;
    for (int32_t rank = 0; rank < ranks; rank++) {
        ret_seconds[rank] = sim->meters[rank].dependency;
    }
    sim->waits_only = true;
    dp_sim_restart(sim, &even);
    DP_CHECK(dp_sim_run_alone(sim, NULL)); // it came to its end with other times
    for (int32_t rank = 0; rank < ranks; rank++) {
        double beyond = ret_seconds[rank] - sim->meters[rank].dependency;
        ret_seconds[rank] = beyond > 0 ? beyond : 0;
    }
    sim->waits_only = false;
    sim->costs = costs;
}
