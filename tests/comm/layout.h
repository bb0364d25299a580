// The stages that a rank holds when a small model is spread over P x D ranks, for tests.
#pragma once

#include "cluster.h"
#include "dp/device.h"
#include "dp/model.h"
#include "dp/optim.h"

struct layout {
    int32_t pipeline, data, expert;
    bool is_mirrored; // every rank also holds the stage of the mirrored position, as in DualPipe
    dp_element element;
};

struct held {
    struct dp_device *device;
    int32_t count;
    struct dp_optim_stage stages[2];
    int32_t positions[2][2];
    void *m[2], *v[2]; // whole moments of each stage, after layout_make_moments
};

struct dp_model_spec layout_model(void);
// What rank g = d * pipeline + p holds. A mirrored rank lists its own position's stage first.
dp_status layout_hold(const struct layout *layout, int32_t rank, struct held *ret_held,
                      struct dp_error *err);
// Zeros.
dp_status layout_make_moments(struct held *held, struct dp_error *err);
void held_deinit(struct held *held);

// A number in (-1, 1) that follows from its arguments.
double layout_value(const char *name, int64_t element, uint64_t salt);
// Element access by the device's type.
double element_get(const struct dp_device *device, const void *buffer, int64_t index);
void element_set(const struct dp_device *device, void *buffer, int64_t index, double value);
// The expert of a tensor called "layers.3.experts.5.gate", or -1.
int32_t expert_of(const char *name);
