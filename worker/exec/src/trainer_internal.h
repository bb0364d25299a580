#pragma once

#include "dp/checkpoint.h"
#include "dp/optim.h"
#include "dp/trainer.h"

struct dp_trainer {
    struct dp_trainer_config config;
    struct dp_exec *exec;
    struct dp_optim *optim; // NULL on a sim rank
    int64_t step_done, next_sample;
    struct dp_saver *saver;        // NULL on a sim rank
    struct dp_archive_claim claim; // of the rank that seals, from its first checkpoint on
    bool is_saving, is_sealing;    // a checkpoint is under way, on all ranks; all parts are written
    int64_t saving_step;
    struct dp_trainer_saved saved; // what the last one came to, until it is reported
    struct dp_exec_failure failure;
    bool has_gradients; // of step_done + 1, all that this rank is to have
    bool has_norm;      // of the gradients that made step_done; not of a state that was loaded
    double norm;
    bool is_in_parts; // weights outside of the optimizer's ranges are not those of step_done
};

// What the calls of the world group are for: their tags.
typedef enum trainer_call {
    CALL_STEP = 1,
    CALL_SYNC,
    CALL_EVALUATE,
    CALL_SAVE,
    CALL_FINISH,
    CALL_FAILED,
    CALL_REASON,
    CALL_TAKE,
    CALL_PROBE,
} trainer_call;

// Where this rank's part of the checkpoint under way stands: what ranks add up.
#define SAVING_VALUES 3 // still at it; failed; bytes written
void dp_trainer_saving_values(struct dp_trainer *trainer, double ret_values[SAVING_VALUES]);
// The next phase, from the sums of all ranks.
dp_status dp_trainer_saving_next(struct dp_trainer *trainer, const double sums[SAVING_VALUES],
                                 struct dp_error *err);

// Where the training stands, as files and readers are told.
void dp_trainer_meta(const struct dp_trainer *trainer, struct dp_archive_meta *ret_meta);
// The part of an update that needs no peer: weights, moments, biases of routers, the step's number.
void dp_trainer_apply(struct dp_trainer *trainer, int64_t step, double norm,
                      struct dp_optim_report *ret_optim);
void dp_trainer_count_step(struct dp_trainer *trainer, int64_t step);

static inline uint64_t trainer_tag(trainer_call call)
{
    return dp_transport_tag(0, 0, 0, 0, (uint32_t)call);
}

// A failure outside the actions: names rank, step and `what`, and lets peers know.
dp_status dp_trainer_give_up(struct dp_trainer *trainer, const char *what, dp_status status,
                             struct dp_error *err);
