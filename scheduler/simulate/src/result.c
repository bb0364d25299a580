#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "sim.h"

double dp_sim_rank_busy(const struct dp_sim_rank *rank)
{
    double busy = 0;
    for (int kind = 0; kind < DP_ACTION_KIND_COUNT; kind++) {
        busy += rank->busy[kind];
    }
    return busy;
}

// The latest end among the ranks that hold one of the rank's stages.
static double sync_start(const struct dp_schedule *schedule, const double *rank_end, int32_t rank)
{
    double latest = rank_end[rank];
    for (int32_t stage = 0; schedule->directions == 2 && stage < schedule->stages; stage++) {
        const int32_t *holders = &schedule->placement[2 * stage];
        if (holders[0] == rank || holders[1] == rank) {
            double end = rank_end[holders[0] == rank ? holders[1] : holders[0]];
            latest = end > latest ? end : latest;
        }
    }
    return latest;
}

double dp_sim_step(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                   const double *rank_end)
{
    double summed = 0;
    double optimizer = 0;
    double step = 0;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        double end = sync_start(schedule, rank_end, rank) + costs->gradient_sync[rank];
        summed = end > summed ? end : summed;
        optimizer = costs->optimizer[rank] > optimizer ? costs->optimizer[rank] : optimizer;
        end += costs->optimizer[rank];
        step = end > step ? end : step;
    }
    return costs->barrier ? summed + optimizer : step;
}

void dp_sim_result_deinit(struct dp_sim_result *result)
{
    free(result->ranks);
    free(result->spans);
    *result = (struct dp_sim_result){0};
}

static void fill_rank(const struct dp_schedule *schedule, const struct dp_sim_meter *meter,
                      double makespan, struct dp_sim_rank *rank)
{
    for (int kind = 0; kind < DP_ACTION_KIND_COUNT; kind++) {
        rank->busy[kind] = meter->seconds[kind];
    }
    rank->busy[DP_ACTION_FB] += meter->seconds[SIM_KIND_FI];
    double busy = dp_sim_rank_busy(rank);
    rank->contention = meter->contention;
    rank->begin = meter->begin;
    rank->end = meter->end;
    rank->bubble = makespan - busy;
    rank->warmup = meter->begin;
    rank->dependency = meter->dependency;
    rank->comm = meter->comm;
    rank->cooldown = makespan - meter->end;
    rank->span_bubble = meter->end - meter->begin - busy;
    rank->peak_chunks = meter->peak_chunks;
    rank->peak_bytes = meter->peak_bytes;
    rank->peak_at = meter->peak_at;
    rank->held_peak_chunks = meter->peak_held;
    rank->peak_activations = (double)meter->peak_held * schedule->pipeline / schedule->stages;
    for (int slot = 0; slot < DP_RANK_STAGES_MAX; slot++) {
        rank->slot_peak_chunks[slot] = meter->peak_slot_chunks[slot];
    }
}

void dp_sim_fill_result(const struct dp_sim_scratch *sim, struct dp_sim_result *ret_result)
{
    const struct dp_schedule *schedule = sim->schedule;
    size_t ranks = (size_t)schedule->pipeline;
    struct dp_sim_result result = {.pipeline = schedule->pipeline,
                                   .ranks = dp_new_array(struct dp_sim_rank, ranks)};
    for (size_t rank = 0; rank < ranks; rank++) {
        double end = sim->meters[rank].end;
        result.makespan = end > result.makespan ? end : result.makespan;
    }
    result.step = dp_sim_step(schedule, sim->costs, sim->time);
    for (size_t rank = 0; rank < ranks; rank++) {
        fill_rank(schedule, &sim->meters[rank], result.makespan, &result.ranks[rank]);
    }
    *ret_result = result;
}

void dp_sim_split_imbalance(struct dp_sim_result *result, const double *even_waits)
{
    for (int32_t i = 0; i < result->pipeline; i++) {
        struct dp_sim_rank *rank = &result->ranks[i];
        double beyond = rank->dependency - even_waits[i];
        rank->imbalance = beyond > 0 ? beyond : 0;
        rank->dependency -= rank->imbalance;
    }
}

double dp_sim_bubble_ratio(const struct dp_sim_result *result)
{
    double busy = 0;
    for (int32_t rank = 0; rank < result->pipeline; rank++) {
        busy += dp_sim_rank_busy(&result->ranks[rank]);
    }
    double all = result->pipeline * result->makespan;
    return all > 0 ? 1 - busy / all : 0;
}

double dp_sim_own_span_bubble_ratio(const struct dp_sim_result *result)
{
    double busy = 0;
    double longest = 0;
    for (int32_t i = 0; i < result->pipeline; i++) {
        const struct dp_sim_rank *rank = &result->ranks[i];
        busy += dp_sim_rank_busy(rank);
        longest = rank->end - rank->begin > longest ? rank->end - rank->begin : longest;
    }
    return longest > 0 ? 1 - busy / (result->pipeline * longest) : 0;
}
