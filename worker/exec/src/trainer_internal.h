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
} trainer_call;

// Where this rank's part of the checkpoint under way stands: what ranks add up.
#define SAVING_VALUES 3 // still at it; failed; bytes written
void dp_trainer_saving_values(struct dp_trainer *trainer, double ret_values[SAVING_VALUES]);
// The next phase, from the sums of all ranks.
dp_status dp_trainer_saving_next(struct dp_trainer *trainer, const double sums[SAVING_VALUES],
                                 struct dp_error *err);

static inline uint64_t trainer_tag(trainer_call call)
{
    return dp_transport_tag(0, 0, 0, 0, (uint32_t)call);
}

// A failure outside the actions: names rank, step and `what`, and lets peers know.
dp_status dp_trainer_give_up(struct dp_trainer *trainer, const char *what, dp_status status,
                             struct dp_error *err);
