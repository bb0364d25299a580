// Predicts what a schedule does with given costs: exact and repeatable, no clock, no threads.
//
// The model. A rank runs its list in order, one action at a time. An action starts when the rank is
// free and its input is there: F of stage s needs F of s-1, B or I of s needs B or I of s+1 of the
// same micro-batch. What crosses ranks arrives `latency + bytes / bandwidth` after the action that
// made it; messages of one ordered pair of ranks follow each other on the wire (the byte time
// occupies it, the latency does not). Sending takes no time from the rank. An overlapped pair (FB)
// hands over both its results at its end. Every result is a sum of costs along a path, so it moves
// in straight lines with each cost until another path takes over.
//
// With DP_SIM_P2P_BLOCKING a rank posts, between two actions, one batch of messages (those that
// dp_schedule_lower_all puts there) and does nothing else until all of them, sent and received,
// have arrived. A message leaves when both its ends have posted it; then latency, bytes and wire
// are as above. A last batch closes the step. This form takes longer:
// of 1F1B with P = 64 and M = 4096 some 10 M actions a second instead of over 40 M (5 M with
// dp_simulate_analyzed, in 105 bytes an action with schedule and results). It goes by messages: an
// overlapped pair has two.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/error.h"
#include "dp/schedule.h"

// How a message travels from one pipeline rank to another.
struct dp_sim_hop {
    double latency;            // seconds
    double bytes_per_second;   // 0 = no time for bytes
};

// Seconds and bytes of a chunk on one rank. Slot = index in dp_schedule_rank_stages(rank).
struct dp_sim_chunk {
    double seconds[DP_ACTION_FB];     // by dp_action_kind: F, B, I, W
    uint64_t activation_bytes;        // kept from the start of F
    uint64_t released_at_i_bytes;     // of these, freed at the end of I; the rest at the end of W
};

// How ranks wait for their messages.
typedef enum dp_sim_p2p {
    DP_SIM_P2P_FREE,      // sending takes no time from the rank; a receive waits for its message
    DP_SIM_P2P_BLOCKING,  // batches of dp_schedule_lower_all: posted between two actions, and the
                          // rank goes on when all messages of its batch have arrived
} dp_sim_p2p;

// Everything that a prediction depends on but the schedule. The arrays are owned; the init
// functions allocate and zero them, then callers fill what they know.
struct dp_sim_costs {
    int32_t pipeline;          // P
    int32_t slots;             // most stages on one rank
    struct dp_sim_chunk *chunks;  // [pipeline][slots]
    double *fb;                // seconds of a pair F & B: [pipeline][forward slot][backward slot]
    double *fi;                // and of a pair F & I
    struct dp_sim_hop *hops;   // [pipeline][pipeline]: from, to; the diagonal is free
    double message_bytes_f;    // one activation between stages
    double message_bytes_b;    // one gradient between stages
    // Processor sharing: ranks of one host that compute at the same time while it has fewer cores
    // each progress at cores / active. 0 cores = no limit. With D equal replicas on the host give
    // cores / D.
    int32_t hosts;             // at least 1
    int32_t *host;             // [pipeline]
    double *cores;             // [hosts]
    // After the last action. A sum of gradients starts when every rank that holds one of the
    // rank's stages is done. With `barrier` (a global gradient norm) no optimizer starts before
    // every sum is done.
    double *gradient_sync;     // seconds, [pipeline]
    double *optimizer;         // seconds, [pipeline]
    bool barrier;
    dp_sim_p2p p2p;
};

// The same numbers everywhere: one row of a table of published schedules.
struct dp_sim_uniform {
    double f, b, i, w;         // seconds
    double fb, fi;             // seconds of a pair; 0 = f + b, f + i
    struct dp_sim_hop hop;     // between any two ranks
};

// Costs of the schedule's shape: all zero, one host without limit, barrier on.
void dp_sim_costs_init(struct dp_sim_costs *ret_costs, const struct dp_schedule *schedule);
// As init, filled with the same numbers for every rank and chunk; each chunk weighs
// activation_bytes = 1, all of it released at I or B.
void dp_sim_costs_init_uniform(struct dp_sim_costs *ret_costs, const struct dp_schedule *schedule,
                               const struct dp_sim_uniform *uniform);
void dp_sim_costs_copy(struct dp_sim_costs *ret_costs, const struct dp_sim_costs *costs);
void dp_sim_costs_deinit(struct dp_sim_costs *costs);

static inline struct dp_sim_chunk *dp_sim_chunk_at(const struct dp_sim_costs *costs, int32_t rank,
                                                   int32_t slot)
{
    return &costs->chunks[rank * costs->slots + slot];
}

static inline size_t dp_sim_pair_index(const struct dp_sim_costs *costs, int32_t rank,
                                       int32_t forward_slot, int32_t backward_slot)
{
    return (size_t)((rank * costs->slots + forward_slot) * costs->slots + backward_slot);
}

static inline struct dp_sim_hop *dp_sim_hop_at(const struct dp_sim_costs *costs, int32_t from,
                                               int32_t to)
{
    return &costs->hops[from * costs->pipeline + to];
}

// Seconds for which a message of so many bytes is on the wire.
static inline double dp_sim_wire_seconds(const struct dp_sim_hop *hop, double bytes)
{
    return hop->bytes_per_second > 0 ? bytes / hop->bytes_per_second : 0;
}

// Whether some host has more ranks than cores, so that their speeds depend on each other.
bool dp_sim_costs_share_cores(const struct dp_sim_costs *costs);
// DP_INVALID names the first cost that is negative, not finite or, in seconds, over
// DP_COST_SECONDS_MAX; chunks of which a rank holds over DP_COST_RANK_BYTES_MAX; or a shape that
// differs.
dp_status dp_sim_costs_check(const struct dp_sim_costs *costs, const struct dp_schedule *schedule,
                             struct dp_error *err);

struct dp_sim_span {
    double start, end;         // seconds from the start of the step
};

struct dp_sim_rank {
    double busy[DP_ACTION_KIND_COUNT];  // seconds by kind
    // Of busy: seconds beyond the costs. Predicted: lost to ranks that share the host's cores.
    // From measured spans: how much slower (below 0: faster) than the costs say.
    double contention;
    double begin, end;         // of the first and last action
    // makespan - busy, and its parts, which add up to it.
    double bubble;
    double warmup;             // before the first action
    // Between actions, the input was not computed yet (blocking: a peer had not posted its batch).
    // Imbalance is the part of such waiting that would not be there if the same work were spread
    // evenly: what the rank waits for its inputs beyond what it would wait with every action taking
    // the mean of its kind over all ranks. 0 when all ranks are alike, and on the slow ones.
    double dependency;
    double imbalance;
    double comm;               // between actions: the input was computed but still travelling
    double cooldown;           // after the last action, until the slowest rank is done
    double span_bubble;        // idle between begin and end
    // A chunk lives from the start of its F to the end of its B or I; a pair counts both.
    uint32_t peak_chunks;
    uint32_t slot_peak_chunks[DP_RANK_STAGES_MAX];  // each slot's own peak
    uint64_t peak_bytes;
    double peak_at;            // when peak_bytes is reached first
    // Chunks whose activations are still needed, at most: from the start of F to the end of B, or
    // of W where the backward is split. peak_activations is that in micro-batches' activations of
    // one device, a P-th of the model, as the literature counts: chunks x P / S.
    uint32_t held_peak_chunks;
    double peak_activations;
};

struct dp_sim_result {
    double makespan;           // seconds until the last action of any rank ends
    double step;               // with gradient sums and optimizer
    int32_t pipeline;
    struct dp_sim_rank *ranks;    // [pipeline]
    struct dp_sim_span *spans;    // parallel to schedule->actions; NULL when not asked for
};

// Busy seconds of a rank, all kinds.
double dp_sim_rank_busy(const struct dp_sim_rank *rank);
// The share of the ranks' time that is idle: 1 - sum of busy / (P x makespan). 0 when nothing takes
// time.
double dp_sim_bubble_ratio(const struct dp_sim_result *result);
// The same when every rank may start late: (longest - mean busy) / longest, where longest is the
// greatest end - begin of a rank (Qi et al., Zero Bubble Pipeline Parallelism, section 5).
double dp_sim_own_span_bubble_ratio(const struct dp_sim_result *result);

// The whole prediction; *ret_result is the caller's to deinit. The schedule must be valid
// (dp_schedule_validate); DP_INVALID when the costs do not fit it or the ranks wait for each other.
dp_status dp_simulate(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                      bool with_spans, struct dp_sim_result *ret_result, struct dp_error *err);
void dp_sim_result_deinit(struct dp_sim_result *result);

// The result that follows from given times of every action: dp_simulate's second half, and the way
// to put a measured step beside a predicted one. spans is parallel to schedule->actions.
void dp_sim_result_from_spans(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                              const struct dp_sim_span *spans, bool with_spans,
                              struct dp_sim_result *ret_result);

// Memory that searches reuse between calls. One per thread.
struct dp_sim_scratch;
struct dp_sim_scratch *dp_sim_scratch_new(void);
void dp_sim_scratch_free(struct dp_sim_scratch *scratch);

// The makespan and the step alone: the fast path of searches. scratch may be NULL; ret_step may be
// NULL. Costs are not checked for sign. Gives exactly dp_simulate's numbers.
dp_status dp_simulate_makespan(const struct dp_schedule *schedule,
                               const struct dp_sim_costs *costs, struct dp_sim_scratch *scratch,
                               double *ret_makespan, double *ret_step, struct dp_error *err);
