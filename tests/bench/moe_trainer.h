// The step of torch_moe.py on one rank, by the real trainer.
#pragma once

#include "dp/trainer.h"

#define MOE_SAMPLES 4
#define MOE_SEQUENCE 256

struct moe_trainer {
    struct dp_device *device;
    struct dp_schedule schedule;
    struct dp_transport *transport;
    struct dp_trainer *trainer;
};

// On the cpu device with so many threads, whose operations are `ops` (NULL = its own). What fails
// ends the program.
void moe_trainer_open(struct moe_trainer *moe, int32_t threads, const struct dp_device_ops *ops);
void moe_trainer_close(struct moe_trainer *moe);
// Seconds of one step.
double moe_trainer_step(struct moe_trainer *moe);
