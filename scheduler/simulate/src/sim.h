// What the engines share: a schedule and costs laid out for running.
#pragma once

#include "dp/simulate.h"

// One ordered pair of ranks.
struct link {
    double free; // when the wire has carried the last message
    double latency;
    double seconds[2]; // on the wire: an activation, a gradient
};

enum { FORWARD = 0, BACKWARD = 1 };

struct dp_sim_scratch {
    const struct dp_schedule *schedule;
    const struct dp_sim_costs *costs;
    // When each result reaches the rank that needs it, by the needing stage: [FORWARD, BACKWARD]
    // [stages][microbatches]; below 0 = not known yet.
    double *arrival;
    uint8_t *slot;          // [pipeline][stages]; set only where the rank holds the stage
    struct link *links;     // [pipeline][pipeline]; set only where stages touch
    double *time;           // [pipeline]: the end of each rank's last action
    size_t *at;             // [pipeline]: each rank's next action
    const double **missing; // [pipeline]: the arrival that a stopped rank waits for
    int32_t *ready;         // stack of ranks that may go on
    int32_t ready_count;
    // Bytes allocated for each array above, so that they grow only.
    size_t arrival_bytes, slot_bytes, links_bytes, rank_bytes;
};

// Takes schedule and costs (borrowed) and resets everything to the start of the step.
void dp_sim_prepare(struct dp_sim_scratch *sim, const struct dp_schedule *schedule,
                    const struct dp_sim_costs *costs);
void dp_sim_release(struct dp_sim_scratch *sim);

// Whether some host has more ranks than cores, so that their speeds depend on each other.
bool dp_sim_has_contention(const struct dp_sim_costs *costs);

// The engines fill sim->time, and spans (parallel to the actions) unless NULL. False when ranks
// wait for each other. dp_sim_run_pass needs a host without contention.
bool dp_sim_run_pass(struct dp_sim_scratch *sim, struct dp_sim_span *spans);
bool dp_sim_run_sharing(struct dp_sim_scratch *sim, struct dp_sim_span *spans);

// Seconds of the step, given when each rank is done with its actions.
double dp_sim_step(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                   const double *rank_end);

static inline double *sim_arrival_at(const struct dp_sim_scratch *sim, int way, int32_t stage,
                                     uint32_t microbatch)
{
    size_t row = (size_t)(way * sim->schedule->stages + stage);
    return &sim->arrival[row * (size_t)sim->schedule->microbatches + microbatch];
}

static inline double sim_seconds(const struct dp_sim_scratch *sim, int32_t rank,
                                 const struct dp_action *action)
{
    const struct dp_sim_costs *costs = sim->costs;
    const uint8_t *slot = &sim->slot[(size_t)rank * (size_t)sim->schedule->stages];
    if (action->kind != DP_ACTION_FB) {
        return dp_sim_chunk_at(costs, rank, slot[action->stage])->seconds[action->kind];
    }
    size_t pair = dp_sim_pair_index(costs, rank, slot[action->stage], slot[action->b_stage]);
    return action->b_kind == DP_ACTION_B ? costs->fb[pair] : costs->fi[pair];
}

// Hands a result that was ready at `end` to `target`, the stage that needs it; returns the rank
// there, and where the arrival was noted.
static inline int32_t sim_send(struct dp_sim_scratch *sim, int32_t rank, int way, int32_t target,
                               uint32_t microbatch, double end, double **ret_arrival)
{
    const struct dp_schedule *schedule = sim->schedule;
    int32_t peer = dp_schedule_rank_of(schedule, target, microbatch);
    struct link *link = &sim->links[rank * schedule->pipeline + peer];
    link->free = (end > link->free ? end : link->free) + link->seconds[way];
    *ret_arrival = sim_arrival_at(sim, way, target, microbatch);
    **ret_arrival = link->free + link->latency;
    return peer;
}
