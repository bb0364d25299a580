// Replays the operations that a training job was measured to do, to tell what slowed it down.
//
// The method is that of "Understanding Stragglers in Large Model Training Using What-if Analysis"
// (Lin et al., OSDI 2025). Operations of one step depend on each other: compute in its recorded
// order, transfers on the compute that makes their data, compute on the transfers that bring it,
// collectives on all who take part. A transfer or collective begins when its last participant has
// arrived, and what it takes from there (end - latest start) is its own time; waiting is no cost of
// anybody. Replayed with recorded times the graph gives T; with every compute operation at the mean
// and every communication at the median of its type it gives T_ideal. S = T / T_ideal.
// S_X = T(X as recorded, all else ideal) / T_ideal. M = (T - T(X ideal, all else recorded)) /
// (T - T_ideal) is the share of the slowdown that fixing X removes: M_W for the slowest 3 % of the
// workers, M_S for the last stage. Neither is clamped: fixing a last stage that is lighter than the
// mean makes M_S negative, and fixing one that dominates can give more than 1.
//
// Pure: no clock, no threads, no I/O.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/json.h"

typedef enum dp_replay_kind {
    DP_REPLAY_FORWARD_COMPUTE,
    DP_REPLAY_BACKWARD_COMPUTE,
    DP_REPLAY_FORWARD_SEND,
    DP_REPLAY_FORWARD_RECV,
    DP_REPLAY_BACKWARD_SEND,
    DP_REPLAY_BACKWARD_RECV,
    DP_REPLAY_PARAMS_ALL_GATHER,
    DP_REPLAY_GRADS_REDUCE_SCATTER,
    DP_REPLAY_LAYERNORM_GRADS_ALL_REDUCE,
    DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE,
    DP_REPLAY_SEPARATE_GRADS_ALL_REDUCE,
    DP_REPLAY_OPTIMIZER_CLIP,
    DP_REPLAY_OPTIMIZER,
    DP_REPLAY_GC,
    DP_REPLAY_KIND_COUNT
} dp_replay_kind;

const char *dp_replay_kind_text(dp_replay_kind kind); // "forward-compute", ...

// One operation, as one worker did it in one step.
struct dp_replay_op {
    double start, duration; // seconds on a clock that all workers share
    int32_t dp_rank, stage; // replica and pipeline position of the worker
    int32_t rank;           // the worker's own number, for people
    int32_t step;
    int32_t seq;        // from 0, in the order of starts, per (worker, step, kind)
    int32_t mc;         // model chunk within the stage (virtual stage), from 0; -1 = none
    int32_t microbatch; // -1 = none
    int32_t gmc;        // model chunk within the model; -1 = from mc and stage
    uint32_t line;      // in the file it came from, for errors; 0 = none
    uint32_t kind;      // dp_replay_kind
};

// Reads the CSV form: a header with dp_rank, stage, rank, step, optype, start_ts, duration, seq_id
// and perhaps mc, mb_id, gmc, in any order, others ignored; then an operation a line, in any order.
// DP_INVALID lists problems with line and column, DP_TOO_LARGE says the limit. Caller frees
// *ret_ops.
dp_status dp_replay_read_csv(const char *file, const char *text, size_t length,
                             struct dp_replay_op **ret_ops, size_t *ret_count,
                             struct dp_error *err);

struct dp_replay_step {
    int32_t step;
    double measured; // seconds from the first start to the last end
    double replayed; // with recorded times and no gaps
    double ideal;
};

// How much slower than ideal the step is with this one part as it was measured.
struct dp_replay_worker {
    int32_t rank, dp_rank, stage;
    double slowdown; // the smaller of its replica's and its stage's
    bool fixed;      // among those that M_W fixes
};

// Operation types as the decomposition names them: both ends of a transfer are one.
typedef enum dp_replay_part {
    DP_REPLAY_PART_FORWARD,
    DP_REPLAY_PART_BACKWARD,
    DP_REPLAY_PART_FORWARD_COMM,
    DP_REPLAY_PART_BACKWARD_COMM,
    DP_REPLAY_PART_PARAMS_ALL_GATHER,
    DP_REPLAY_PART_GRADS_REDUCE_SCATTER,
    DP_REPLAY_PART_LAYERNORM,
    DP_REPLAY_PART_EMBEDDING,
    DP_REPLAY_PART_SEPARATE_GRADS,
    DP_REPLAY_PART_CLIP,
    DP_REPLAY_PART_OPTIMIZER,
    DP_REPLAY_PART_GC,
    DP_REPLAY_PART_COUNT
} dp_replay_part;

const char *dp_replay_part_text(dp_replay_part part); // "forward-compute", "forward-pp-comm", ...

typedef enum dp_replay_verdict {
    DP_REPLAY_EVEN,         // S under 1.03: nothing to explain
    DP_REPLAY_BAD_WORKER,   // fixing few workers removes most of it
    DP_REPLAY_UNEVEN_STAGE, // fixing the last stage removes most of it
    DP_REPLAY_ELSEWHERE,    // neither: data of uneven length, collection of garbage, ...
} dp_replay_verdict;

struct dp_replay_result {
    int32_t replicas, stages;                   // workers = replicas x stages
    size_t operations;                          // that were replayed
    double slowdown;                            // S
    double slowdown_part[DP_REPLAY_PART_COUNT]; // NaN where the trace has none of it
    double *slowdown_replica;                   // [replicas]
    double *slowdown_stage;                     // [stages]
    struct dp_replay_worker *workers;           // [replicas][stages]
    double m_workers, m_stage; // M_W, M_S; NaN when the replay is as fast as the ideal
    // Measured over replayed: what the graph does not explain (gaps between operations: the host,
    // the loader of data).
    double gaps;
    double measured_s, replayed_s, ideal_s; // mean step
    struct dp_replay_step *steps;           // [step_count], by step
    size_t step_count;
    size_t steps_left_out; // steps whose operations differ from those of most steps
    int32_t left_out;      // one of them
    dp_replay_verdict verdict;
};

// ops in any order, not changed. Every step must have the same operations on every replica: steps
// that differ from most (the first and last of a recording are often cut) are left out and counted.
// DP_INVALID names the operation that is missing, twice there or that nothing can send to. Linear
// in count, but for the replays: one per stage and kind. The caller deinits *ret_result.
dp_status dp_replay_analyze(const struct dp_replay_op *ops, size_t count,
                            struct dp_replay_result *ret_result, struct dp_error *err);
void dp_replay_result_deinit(struct dp_replay_result *result);

// What it means, in words and tables.
void dp_replay_render(const struct dp_replay_result *result, struct dp_buf *out);
// The form "dp.replay/1".
json_t *dp_replay_to_json(const struct dp_replay_result *result);
