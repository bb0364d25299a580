#pragma once

#include "dp/optim.h"
#include "dp/trainer.h"

struct dp_trainer {
    struct dp_trainer_config config;
    struct dp_exec *exec;
    struct dp_optim *optim; // NULL on a sim rank
    int64_t step_done, next_sample;
    struct dp_exec_failure failure;
};

// What the calls of the world group are for: their tags.
typedef enum trainer_call {
    CALL_STEP = 1,
    CALL_SYNC,
    CALL_EVALUATE,
    CALL_SAVE,
    CALL_BYTES,
} trainer_call;

static inline uint64_t trainer_tag(trainer_call call)
{
    return dp_transport_tag(0, 0, 0, 0, (uint32_t)call);
}

// A failure outside the actions: names rank, step and `what`, and lets peers know.
dp_status dp_trainer_give_up(struct dp_trainer *trainer, const char *what, dp_status status,
                             struct dp_error *err);
