// A training state to and from the files of dp/archive.h, whatever its layout over ranks was or is.
//
// Saving runs beside the training. dp_saver_begin orders copies of what this rank stands for;
// dp_saver_settle waits for them, before weights or moments change. The saver's thread writes the
// copies (dp_saver_run). When all ranks' files are safe, one rank's saver seals the directory.
// Every distinct weight is written once; every run of moments by a rank that keeps it. All ranks
// need to see the same directory.
//
//   IDLE, begin: WRITING, then WRITTEN or FAILED
//   WRITTEN, seal: SEALING, then SEALED or FAILED
//   WRITTEN, SEALED or FAILED, drop: IDLE
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/archive.h"
#include "dp/model.h"

struct dp_checkpoint_stage {
    struct dp_stage *stage;             // borrowed
    bool writes_shared, writes_experts; // this rank is the one that writes them
};

// Moments of elements [begin, end) of a stage's weights that this rank is to write.
struct dp_checkpoint_run {
    int32_t stage; // index into the stages
    int64_t begin, end;
    const void *m, *v; // device memory: bfloat16 when is_bf16, else reals
    bool is_bf16;
};

struct dp_checkpoint_state {
    const struct dp_archive_meta *meta;
    const struct dp_checkpoint_stage *stages;
    int32_t stage_count;
    const struct dp_checkpoint_run *runs;
    int32_t run_count;
};

typedef enum dp_saver_phase {
    DP_SAVER_IDLE,
    DP_SAVER_WRITING,
    DP_SAVER_WRITTEN,
    DP_SAVER_SEALING,
    DP_SAVER_SEALED,
    DP_SAVER_FAILED,
} dp_saver_phase;

struct dp_saver;

// Copies to host memory go over a stream of the device, which outlives the saver.
dp_status dp_saver_new(struct dp_device *device, int32_t rank, struct dp_saver **ret_saver,
                       struct dp_error *err);
// After dp_saver_run has returned. Accepts NULL.
void dp_saver_free(struct dp_saver *saver);

// What the saver's thread does until dp_saver_close. Without such a thread the work is done inside
// dp_saver_wait, by its caller.
void dp_saver_run(struct dp_saver *saver);
// Lets run return, once what is being written is written. By any thread.
void dp_saver_close(struct dp_saver *saver);

// In IDLE. Copies of all that this rank writes are under way; DIRECTORY/step-N.partial is there
// already (dp_archive_prepare, by one rank). Fails where there is no memory for the copies:
// nothing is under way then.
dp_status dp_saver_begin(struct dp_saver *saver, const char *directory,
                         const struct dp_checkpoint_state *state, struct dp_error *err);
// In IDLE, instead: a checkpoint that failed before this rank could begin.
void dp_saver_fail(struct dp_saver *saver, const char *directory, int64_t step,
                   const struct dp_error *why);
// Returns when the copies are made. Cheap in other phases than WRITING.
void dp_saver_settle(struct dp_saver *saver);
// In WRITTEN, on one rank, when all ranks are there: the directory gets its name. After that, and
// after SEALED is told, older ones beyond the `keep` newest go (0 = none).
void dp_saver_seal(struct dp_saver *saver, int32_t keep);
// Back to IDLE, from WRITTEN, SEALED or FAILED. `removes`: also the directory, where it has no name
// yet.
void dp_saver_drop(struct dp_saver *saver, bool removes);

// By any thread.
dp_saver_phase dp_saver_phase_now(struct dp_saver *saver);
// Returns when the phase is neither WRITING nor SEALING, or at the deadline (monotonic clock).
dp_saver_phase dp_saver_wait(struct dp_saver *saver, int64_t deadline_ns);
// In FAILED: what went wrong. Bytes that this rank has written, from WRITTEN on.
const struct dp_error *dp_saver_error(const struct dp_saver *saver);
uint64_t dp_saver_bytes(const struct dp_saver *saver);
const char *dp_saver_path(const struct dp_saver *saver); // DIRECTORY/step-N

// Where the values of stages come from: a checkpoint, or ranks that hold theirs (dp/state.h).
struct dp_tensor_source {
    void *context;                        // borrowed, of the functions
    char name[DP_PATH_MAX + DP_NAME_MAX]; // "the checkpoint /d/step-120", for messages
    dp_status lacking;                    // what it is when a tensor is missing
    bool has_moments;                     // else weights alone
    // Whether all `count` values of the kind are there; own names are those of dp/model.h.
    bool (*has)(void *context, const char *own, dp_archive_kind kind, int64_t count);
    // As dp_archive_read_weight and dp_archive_read_moments.
    dp_status (*read_weight)(void *context, const char *own, int64_t rows, int64_t cols,
                             dp_dtype to, void *ret_values, struct dp_error *err);
    dp_status (*read_moments)(void *context, const char *own, dp_archive_kind kind, int64_t count,
                              dp_dtype to, void *ret_values, struct dp_error *err);
};
struct dp_tensor_source dp_checkpoint_source(const struct dp_archive *archive); // borrowed

// Whether all that the stages need is there; what is missing is named at once.
dp_status dp_checkpoint_check(const struct dp_tensor_source *source, struct dp_stage *const *stages,
                              int32_t count, struct dp_error *err);
// Fills the weights and router biases of a stage, and m and v [parameters of the stage] as reals
// in device memory (NULL: not wanted). Damage gives DP_INVALID naming file and tensor; the stage is
// then partly overwritten.
dp_status dp_checkpoint_fill_stage(const struct dp_tensor_source *source, struct dp_stage *stage,
                                   void *m, void *v, struct dp_error *err);
// Both, from an archive.
dp_status dp_checkpoint_load_stage(const struct dp_archive *archive, struct dp_stage *stage,
                                   void *m, void *v, struct dp_error *err);
