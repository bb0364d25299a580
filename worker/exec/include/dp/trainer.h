// A rank's whole training run, step by step: actions, sums of gradients, optimizer, checkpoints.
//
// Every rank of the world calls the same functions in the same order. Wishes to stop or to write a
// checkpoint are agreed on with the loss of each step, so all ranks act on them at the same step.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/exec.h"
#include "dp/optim.h"
#include "dp/spec.h"

struct dp_trainer_config {
    struct dp_exec_config exec;
    struct dp_optimizer_spec optimizer;
    dp_shard shard; // of the moments; AUTO = NONE
    int64_t steps;  // length of the run: the learning rate depends on it
    uint64_t corpus_hash;
    bool shuffles; // the order of samples is drawn from the seed
    // Experts are placed anew by their loads after every so many steps; 0 = never.
    int64_t rebalance_every;
    struct dp_rebalance rebalance;
    int32_t keep_checkpoints; // the newest ones of a directory; 0 = all
};

// What a checkpoint came to.
struct dp_trainer_saved {
    int64_t step;     // 0 = none was finished
    dp_status status; // DP_OK: it stands. Else older ones do, and training may go on
    uint64_t bytes;   // of all ranks
    char path[DP_PATH_MAX];
    char why[DP_SAVED_WHY_MAX]; // it failed, and on which rank
};

struct dp_trainer;
struct dp_saver;

// As dp_exec_new.
dp_status dp_trainer_new(const struct dp_trainer_config *config, struct dp_trainer **ret_trainer,
                         struct dp_error *err);
// Accepts NULL.
void dp_trainer_free(struct dp_trainer *trainer);
struct dp_exec *dp_trainer_exec(struct dp_trainer *trainer);
// How many nodes an EP group sits on, once links tell (struct dp_rebalance).
void dp_trainer_set_expert_nodes(struct dp_trainer *trainer, int32_t nodes);
// Steps completed.
int64_t dp_trainer_step_done(const struct dp_trainer *trainer);

// What the expert layers' loads of the last step are read from (dp/optim.h); NULL on a sim rank.
const struct dp_optim *dp_trainer_optim(const struct dp_trainer *trainer);

// Weights, moments, step and next sample of a checkpoint, whatever layout and global batch it was
// written under. DP_INVALID when it is of another model or text. A sim rank has nothing to load:
// DP_UNSUPPORTED.
dp_status dp_trainer_resume(struct dp_trainer *trainer, const char *path, struct dp_error *err);
// Whether checkpoints can go to a directory, which is made where it is not there: DP_IO and the
// like when this rank cannot write to it; on the rank that seals, DP_CONFLICT when the newest there
// is of another run (model, seed or text), whose steps this one's would replace. One that cannot be
// read is nobody's. A sim rank has no checkpoints.
dp_status dp_trainer_check_directory(const struct dp_trainer *trainer, const char *directory,
                                     struct dp_error *err);

struct dp_trainer_wish {
    bool stop, checkpoint;
    bool pause;     // train no further and hold the state (dp_trainer_hold)
    uint64_t probe; // request to measure between this step and the next; 0 = none
    // Request to place experts by their loads after this step, whatever is configured; 0 = none.
    uint64_t rebalance;
};

struct dp_trainer_report {
    int64_t step;     // completed; counts from 1
    int64_t start_ns; // wall clock
    // The step and its parts, which add up to it: in actions; in actions, but waiting for EP peers;
    // neither, until the slowest rank had run its last action; sums of gradients; the update.
    int64_t step_ns;
    int64_t busy_ns, exchange_ns, bubble_ns, grad_sync_ns, optimizer_ns;
    bool has_loss; // not on the sim device
    double loss;   // mean over the global batch, nats per token
    double grad_norm, lr;
    uint64_t tokens; // of the global batch
    uint32_t peak_chunks;
    uint64_t peak_bytes;
    // Of the device since it was opened, up to the end of this step; zeros on a sim rank.
    struct dp_device_memory memory;
    struct dp_exec_comm comm[DP_EXEC_COMM_KIND_COUNT];
    struct dp_exec_times times; // borrowed until the next step
    // Of the update what this rank computes alone; planned on a sim rank, else 0.
    int64_t apply_ns, apply_planned_ns;
    bool has_rebalanced; // experts were looked at after this step
    struct dp_rebalance_report rebalance;
    struct dp_trainer_wish agreed; // what any rank wished
    struct dp_trainer_saved saved; // a checkpoint that is finished now
};
// One step. On failure the transport is aborted, so that peers need not wait.
dp_status dp_trainer_step(struct dp_trainer *trainer, const struct dp_trainer_wish *wish,
                          struct dp_trainer_report *ret_report, struct dp_error *err);
// Its halves: the actions with the loss and the sums of gradients; then the update of the weights.
dp_status dp_trainer_gradients(struct dp_trainer *trainer, const struct dp_trainer_wish *wish,
                               struct dp_trainer_report *ret_report, struct dp_error *err);
dp_status dp_trainer_update(struct dp_trainer *trainer, struct dp_trainer_report *report,
                            struct dp_error *err);

// Mean loss over the held-out samples on every rank; *ret_tokens is 0 where there is none.
dp_status dp_trainer_evaluate(struct dp_trainer *trainer, double *ret_loss, uint64_t *ret_tokens,
                              struct dp_error *err);

// Starts DIRECTORY/step-N, of the step just done; every rank calls it at the same step. It is
// written while training goes on, and what it comes to stands in the report of a later step. One
// that is still under way is finished first: *ret_earlier. A sim rank writes nothing. What fails is
// the checkpoint (*ret_earlier, or a later report), not the call, unless peers are gone.
dp_status dp_trainer_checkpoint_begin(struct dp_trainer *trainer, const char *directory,
                                      struct dp_trainer_saved *ret_earlier, struct dp_error *err);
// Waits for the one under way, if any, until it is past some rank's deadline (monotonic; INT64_MAX:
// as long as it takes): then it stays under way. Every rank calls it.
dp_status dp_trainer_checkpoint_finish(struct dp_trainer *trainer, int64_t deadline_ns,
                                       struct dp_trainer_saved *ret_saved, struct dp_error *err);
// Both, and a checkpoint that fails is an error. *ret_bytes is the sum over all ranks.
dp_status dp_trainer_checkpoint(struct dp_trainer *trainer, const char *directory,
                                uint64_t *ret_bytes, struct dp_error *err);
// What the thread that writes checkpoints runs (dp_saver_run); NULL on a sim rank. Without such a
// thread they are written inside checkpoint_finish.
struct dp_saver *dp_trainer_saver(struct dp_trainer *trainer);

// The state of ranks that hold theirs (dp/state.h), instead of a checkpoint's: every rank of the
// world calls it once they are connected, and it returns when all have theirs. DP_UNAVAILABLE names
// all that nobody has. On failure the transport is aborted. A sim rank takes the place alone, and
// no source.
struct dp_tensor_source;
struct dp_archive_meta;
struct dp_state;
dp_status dp_trainer_take(struct dp_trainer *trainer, const struct dp_tensor_source *source,
                          const struct dp_archive_meta *meta, struct dp_error *err);

// What a rank has that trains no further, since it was told to or has lost a peer.
struct dp_trainer_held {
    int64_t step;       // whose weights, moments and biases it has, whole
    bool has_gradients; // of step + 1: dp_trainer_settle can go there
    // The norm of the gradients that made `step`, where this rank has made it: then every rank has
    // these gradients, so one that holds step - 1 can settle there.
    bool has_norm;
    double norm;
};
// After a step, or one that has failed with DP_UNAVAILABLE or DP_TIMEOUT. A checkpoint under way is
// given up, unless it is sealed; the directory is free for others then. Needs no peer. Nothing
// trains afterwards.
void dp_trainer_hold(struct dp_trainer *trainer, struct dp_trainer_held *ret_held);
// Finishes the update to `step` with the norm that other ranks know; DP_CONFLICT where it cannot.
// With ZERO1 this rank has no more than its own ranges of the weights then.
dp_status dp_trainer_settle(struct dp_trainer *trainer, int64_t step, double norm,
                            struct dp_error *err);
// What it has; valid until the trainer changes. The caller deinits it.
void dp_trainer_state(const struct dp_trainer *trainer, struct dp_state *ret_state);

// What went wrong in the last call that failed.
const struct dp_exec_failure *dp_trainer_failure(const struct dp_trainer *trainer);
