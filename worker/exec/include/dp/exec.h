// Runs one rank's op list of a schedule: receives, runs components, sends, accounts for chunks.
//
// Ranks are global: g = replica * pipeline + position. Replicas whose number / expert is equal and
// that have the same position are one EP group. A rank's stages are those that the schedule places
// on it; an action works on a chunk, which is one stage's work for one micro-batch.
//
// Without a device the rank is a sim: the same control flow and real (empty) messages, but each
// action takes its planned time and nothing is computed.
//
// One thread runs it; the meter may be read by another.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/collective.h"
#include "dp/device.h"
#include "dp/error.h"
#include "dp/exchanger.h"
#include "dp/exec_meter.h"
#include "dp/model.h"
#include "dp/schedule.h"
#include "dp/sim_pace.h"
#include "dp/simulate.h"
#include "dp/spec.h"
#include "dp/transport.h"

// Where samples come from: `count` of them from number `first` on, as [count, sequence]. Training
// samples are numbered over the whole run, held-out ones from 0.
struct dp_exec_source {
    dp_status (*fill)(void *context, bool holdout, int64_t first, int32_t count,
                      int32_t *ret_tokens, int32_t *ret_targets, struct dp_error *err);
    void *context;
    int64_t holdout_samples;
};

struct dp_exec_config {
    const struct dp_schedule *schedule; // valid; borrowed
    int32_t position, replica;          // p, d
    int32_t data, expert;               // D, EP
    // Where replicas have different numbers of micro-batches, of which the schedule has this one's:
    // those of all replicas before it, and of all; 0, 0 = all have as many.
    int64_t first_microbatch, step_microbatches;
    struct dp_transport *transport; // of P * D ranks; borrowed
    struct dp_exec_meter *meter;    // borrowed; NULL = none

    // A rank that computes.
    struct dp_device *device; // borrowed; NULL = sim
    struct dp_model_spec model;
    const int32_t *layer_begin; // [stages + 1]; copied
    int32_t micro_batch_size, sequence;
    int32_t expert_slots; // as in dp_stage_config
    uint64_t seed;
    uint32_t recompute; // as in dp_stage_config
    uint32_t offload;   // as in dp_stage_config
    bool fp8, save_fp8; // as in dp_stage_config
    struct dp_exec_source source;
    // Moves rows between the EP peers; borrowed. NULL = by messages of the transport. May be given
    // later instead, by dp_exec_set_exchanger.
    const struct dp_exchanger *exchanger;
    bool poison;     // tests: as in dp_stage_config
    bool no_overlap; // an FB runs as F, then B, and every exchange is waited for where it begins

    // A sim rank.
    const struct dp_sim_costs *costs; // borrowed
    const struct dp_sim_pace *pace;   // borrowed; NULL = as planned
};

// What ranks send each other within a step: rows between EP peers, by dp_move, and what stages hand
// on. A B's combine is a way to the experts, its dispatch a way back.
typedef enum dp_exec_comm_kind {
    DP_EXEC_COMM_DISPATCH_F = DP_MOVE_DISPATCH,
    DP_EXEC_COMM_COMBINE_F = DP_MOVE_COMBINE,
    DP_EXEC_COMM_COMBINE_B = DP_MOVE_COMBINE_INPUT,
    DP_EXEC_COMM_DISPATCH_B = DP_MOVE_DISPATCH_INPUT,
    DP_EXEC_COMM_HOP_F, // activations
    DP_EXEC_COMM_HOP_B, // gradients
    DP_EXEC_COMM_KIND_COUNT,
} dp_exec_comm_kind;
const char *dp_exec_comm_kind_text(dp_exec_comm_kind kind); // "dispatch(F)", ...

// Total is from the beginning (of a move here, of a hop at its sender) until all had arrived here;
// exposed is the part in which the rank had nothing else to do. Hidden = total - exposed.
struct dp_exec_comm {
    int64_t count;
    int64_t total_ns, exposed_ns;
};

// The actions of one kind, for the same stages, in a step.
struct dp_exec_kind_time {
    uint8_t kind, b_kind; // dp_action_kind; FB: of its backward part, otherwise 0
    uint16_t stage, b_stage;
    int64_t count;
    int64_t total_ns, median_ns; // computing: waits are not in it
    int64_t tokens;              // rows that came to this rank's experts in all of them
    int64_t planned_ns;          // of one; 0 = not known
};

// Messages of one peer (its global rank) that were received in a step.
struct dp_exec_link_time {
    int32_t peer;
    int64_t count, bytes;
    int64_t transfer_ns; // from when they were sent until they had arrived
    int64_t waiting_ns;  // the rank was there, they had not been sent yet
};

// Borrowed until the next step.
struct dp_exec_times {
    const struct dp_exec_kind_time *kinds;
    const struct dp_exec_link_time *links;
    size_t kinds_count, links_count;
    int64_t launch_gap_ns; // between actions, neither computing nor waiting for a message
    int64_t off_core_ns;   // in actions, the thread was on no core and waited for no peer; 0 where
                           // it waits for an accelerator
};

// What went wrong in the last failed call, apart from its message.
struct dp_exec_failure {
    char action[DP_NAME_MAX]; // "F3@2", or "" when it was none
    bool not_finite;          // a loss, activation or gradient is NaN or infinite
    bool peer_lost;           // a consequence: another rank is the cause
};

struct dp_exec;

// Makes the stages with their initial weights. Every rank of the world calls it.
dp_status dp_exec_new(const struct dp_exec_config *config, struct dp_exec **ret_exec,
                      struct dp_error *err);
// Accepts NULL.
void dp_exec_free(struct dp_exec *exec);

int32_t dp_exec_world_rank(const struct dp_exec *exec);
// All ranks.
struct dp_group *dp_exec_world(struct dp_exec *exec);
// Group ids from here on are free.
uint32_t dp_exec_group_id_end(const struct dp_exec *exec);
// Stages held, in the order of dp_schedule_rank_stages; none on a sim rank.
int32_t dp_exec_stage_count(const struct dp_exec *exec);
struct dp_stage *dp_exec_stage(struct dp_exec *exec, int32_t slot, int32_t *ret_index);
// Samples of one step over the whole world.
int64_t dp_exec_global_batch(const struct dp_exec *exec);

// The samples of `step` start with number `sample`, those of later steps follow on; at first, step
// 1 starts with 0.
void dp_exec_set_samples(struct dp_exec *exec, int64_t step, int64_t sample);

// Before the first step of a rank with EP peers, by every one of them; borrowed. For exchangers
// that need connected ranks, which come after dp_exec_new.
void dp_exec_set_exchanger(struct dp_exec *exec, const struct dp_exchanger *exchanger);

struct dp_exec_step {
    double loss_sum;     // of the heads that this rank ran, nats; 0 without a head
    int64_t busy_ns;     // in actions, waits for EP peers not counted
    int64_t exchange_ns; // these waits
    uint32_t peak_chunks;
    uint64_t peak_bytes;
    struct dp_exec_comm comm[DP_EXEC_COMM_KIND_COUNT];
    struct dp_exec_times times;
};
// Runs the whole list once. `step` counts from 1; samples are those of that step. Gradients are
// left in the stages, not yet summed over ranks.
// DP_JOB_FAILED: something is not finite; DP_UNAVAILABLE: a peer is gone. The message names rank,
// step and action; the caller then aborts the transport, so that peers need not wait.
dp_status dp_exec_run_step(struct dp_exec *exec, int64_t step, struct dp_exec_step *ret_step,
                           struct dp_error *err);

// A forward pass over held-out samples through the stages of direction 0: every rank takes part.
// The replicas share the samples, all of them whatever the layout; of a long held-out part, the
// first DP_EVALUATE_TOKENS_MAX tokens in whole samples, at least one, are taken. *ret_tokens is how
// many tokens were evaluated in all (0 on a sim rank or without held-out samples) and *ret_loss_sum
// the sum over the heads that this rank ran.
dp_status dp_exec_evaluate(struct dp_exec *exec, double *ret_loss_sum, uint64_t *ret_tokens,
                           struct dp_error *err);

// Of the last call that failed.
const struct dp_exec_failure *dp_exec_failure(const struct dp_exec *exec);

// For whoever goes on after the list: wall clock of the spans, and spans of its own kind.
int64_t dp_exec_now_ns(const struct dp_exec *exec);
void dp_exec_record(struct dp_exec *exec, int kind, int64_t step, int64_t start_ns);
