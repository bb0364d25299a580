// What the engines share: a schedule and costs laid out for running.
#pragma once

#include "dp/action_halves.h"
#include "dp/simulate.h"

// One ordered pair of ranks.
struct link {
    double free; // when the wire has carried the last message
    double latency;
    double seconds[2]; // on the wire: an activation, a gradient
};

enum { FORWARD = 0, BACKWARD = 1 };

static inline int sim_way(const struct dp_half *half)
{
    return half->kind == DP_ACTION_F ? FORWARD : BACKWARD;
}

// Kinds of actions whose means are taken apart: those of dp_action_kind and the pair F & I.
enum { SIM_KIND_FI = DP_ACTION_KIND_COUNT, SIM_KINDS };

// What is measured of a rank besides its times.
enum sim_metering {
    METER_NOTHING,
    METER_WAITS,  // begin, end, dependency and comm alone
    METER_ALL,
};

// What is known of a rank while its actions come by in order: where time went and what is kept.
struct dp_sim_meter {
    double seconds[SIM_KINDS];
    uint32_t count[SIM_KINDS];
    double begin, end;        // of the actions seen
    double dependency, comm;  // waits between them
    double contention;
    double peak_at;
    uint64_t bytes, peak_bytes;
    uint32_t chunks, peak_chunks; // until B or I
    uint32_t held, peak_held;     // until B or W
    uint32_t slot_chunks[DP_RANK_STAGES_MAX], peak_slot_chunks[DP_RANK_STAGES_MAX];
};

// Blocking batches: messages by the number that both their ends share.
struct dp_sim_batches {
    struct dp_lowered lowered;
    double *posted;    // [messages]: when the first end was posted; below 0 = not yet
    size_t *next;      // [pipeline]: the first op of the rank's next batch
    uint32_t *pending; // [pipeline]: messages that the rank's batch waits for
    double *done;      // [pipeline]: when the batch is complete, as far as it is known
    double *met;       // [pipeline]: when the last of the batch's messages was posted by both ends
};

struct dp_sim_scratch {
    const struct dp_schedule *schedule;
    const struct dp_sim_costs *costs;
    // When each result reaches the rank that needs it, by the needing stage: [FORWARD, BACKWARD]
    // [stages][microbatches]; below 0 = not known yet. Unused with blocking batches.
    double *arrival;
    // The same of when it was computed, where the latency does not tell: the time, or, with spans,
    // the action. At most one of them is there.
    double *made;
    uint32_t *maker;
    uint8_t *slot;          // [pipeline][stages]; set only where the rank holds the stage
    struct link *links;     // [pipeline][pipeline]; set only where stages touch
    double *time;           // [pipeline]: when each rank is free
    size_t *at;             // [pipeline]: each rank's next action
    const double **missing; // [pipeline]: the arrival that a stopped rank waits for
    int32_t *ready;         // stack of ranks that may go on
    int32_t ready_count;
    struct dp_sim_batches batches; // only with DP_SIM_P2P_BLOCKING
    struct dp_sim_meter *meters;   // [pipeline], or NULL
    enum sim_metering metering;
    // Bytes allocated for each array above, so that they grow only.
    size_t arrival_bytes, slot_bytes, links_bytes, rank_bytes;
};

// Takes schedule and costs (borrowed) and resets everything to the start of the step. DP_INVALID
// when the messages of blocking batches cannot be found.
dp_status dp_sim_prepare(struct dp_sim_scratch *sim, const struct dp_schedule *schedule,
                         const struct dp_sim_costs *costs, struct dp_error *err);
// Back to the start of the step with other costs, whose shape and p2p are the same.
void dp_sim_restart(struct dp_sim_scratch *sim, const struct dp_sim_costs *costs);
// Gives every rank an empty meter, or takes them away. dp_sim_restart clears them, too.
void dp_sim_add_meters(struct dp_sim_scratch *sim, enum sim_metering metering);
// Makes room for what the meters of dp_sim_run_pass have to know of wires that take time.
void dp_sim_note_makers(struct dp_sim_scratch *sim, bool with_spans);
void dp_sim_release(struct dp_sim_scratch *sim);

// Fills the links between neighbouring stages: [pipeline][pipeline].
void dp_sim_set_links(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                      struct link *links);

// The engines fill sim->time, and spans (parallel to the actions) unless NULL. False when ranks
// wait for each other. dp_sim_run_pass and _blocking need hosts without contention and fill
// sim->meters where there are some.
bool dp_sim_run_pass(struct dp_sim_scratch *sim, struct dp_sim_span *spans);
bool dp_sim_run_blocking(struct dp_sim_scratch *sim, struct dp_sim_span *spans);
bool dp_sim_run_sharing(struct dp_sim_scratch *sim, struct dp_sim_span *spans);
// One of the first two.
bool dp_sim_run_alone(struct dp_sim_scratch *sim, struct dp_sim_span *spans);

// Finds the messages; _restart forgets what was posted.
dp_status dp_sim_batches_open(struct dp_sim_batches *batches, const struct dp_schedule *schedule,
                              struct dp_error *err);
void dp_sim_batches_restart(struct dp_sim_batches *batches);
void dp_sim_batches_close(struct dp_sim_batches *batches);
// The rank posts the batch before its action number `at` at `time`. Pushes on sim->ready the ranks
// whose batch is complete thereby, perhaps its own.
void dp_sim_post_batch(struct dp_sim_scratch *sim, int32_t rank, size_t at, double time);

// The number of the rank's batch that has this end of a message: batch i is before its action i.
static inline size_t sim_batch_of(const struct dp_p2p *op)
{
    bool sends = op->kind == DP_SEND_F || op->kind == DP_SEND_B;
    return (size_t)op->action + sends;
}

// dp_simulate in a new scratch, which keeps the messages of blocking batches.
dp_status dp_sim_simulate_in(struct dp_sim_scratch *sim, const struct dp_schedule *schedule,
                             const struct dp_sim_costs *costs, bool with_spans,
                             struct dp_sim_result *ret_result, struct dp_error *err);

// Fills the meters from given times of every action.
void dp_sim_meter_spans(struct dp_sim_scratch *sim, const struct dp_sim_span *spans);
// The mean seconds of each kind of action over all ranks, by the costs or as it came out.
void dp_sim_means_of_costs(const struct dp_sim_scratch *sim, double ret_means[SIM_KINDS]);
void dp_sim_means_of_meters(const struct dp_sim_scratch *sim, double ret_means[SIM_KINDS]);
// Seconds that each rank waits for what is not computed yet when each action takes the mean of its
// kind: [pipeline]. False when ranks wait for each other. Sim is at the start of the step
// afterwards.
bool dp_sim_even_waits(struct dp_sim_scratch *sim, const double means[SIM_KINDS],
                       double *ret_waits);
// Whether all ranks and slots take the same times.
bool dp_sim_costs_are_even(const struct dp_sim_costs *costs);

// The result that times and meters of sim tell, all but the imbalance.
void dp_sim_fill_result(const struct dp_sim_scratch *sim, struct dp_sim_result *ret_result);
// Takes from the dependency what is beyond the waits of dp_sim_even_waits.
void dp_sim_split_imbalance(struct dp_sim_result *result, const double *even_waits);
// Seconds of the step, given when each rank is done with its actions.
double dp_sim_step(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                   const double *rank_end);

static inline size_t sim_cell(const struct dp_schedule *schedule, int way, int32_t stage,
                              uint32_t microbatch)
{
    size_t row = (size_t)(way * schedule->stages + stage);
    return row * (size_t)schedule->microbatches + microbatch;
}

static inline double *sim_arrival_at(const struct dp_sim_scratch *sim, int way, int32_t stage,
                                     uint32_t microbatch)
{
    return &sim->arrival[sim_cell(sim->schedule, way, stage, microbatch)];
}

static inline int32_t sim_slot(const struct dp_sim_scratch *sim, int32_t rank, int32_t stage)
{
    return sim->slot[(size_t)rank * (size_t)sim->schedule->stages + (size_t)stage];
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

// Carries a message that may leave at `start`; returns when it arrives.
static inline double sim_carry(struct link *link, int way, double start)
{
    link->free = (start > link->free ? start : link->free) + link->seconds[way];
    return link->free + link->latency;
}

// Hands a result that was ready at `end` to `target`, the stage that needs it; returns the rank
// there, and where the arrival was noted.
static inline int32_t sim_send(struct dp_sim_scratch *sim, int32_t rank, int way, int32_t target,
                               uint32_t microbatch, double end, double **ret_arrival)
{
    const struct dp_schedule *schedule = sim->schedule;
    int32_t peer = dp_schedule_rank_of(schedule, target, microbatch);
    struct link *link = &sim->links[rank * schedule->pipeline + peer];
    *ret_arrival = sim_arrival_at(sim, way, target, microbatch);
    **ret_arrival = sim_carry(link, way, end);
    return peer;
}
