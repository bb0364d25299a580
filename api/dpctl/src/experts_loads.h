// Loads of experts, from a job's newest steps or from a file.
#pragma once

#include "dp/experts.h"
#include "dpctl.h"

struct layer_loads {
    int32_t layer, experts, groups;
    double *load;    // [experts] tokens, or any measure of work
    int32_t ranks;   // that share the experts; 0 = unknown
    int32_t slots;   // 0 = where they lie is unknown
    int32_t *placed; // [slots]
};

struct loads {
    char source[DP_PATH_MAX]; // the job's id, the file's name
    int64_t first_step, last_step;
    struct layer_loads *layers; // ascending; at least one
    size_t count;
};

void loads_deinit(struct loads *loads);
// Whether the argument is a file's name rather than a job's.
bool loads_is_file(const char *source);
// DP_INVALID naming what in the file is no load.
dp_status loads_read(const char *path, struct loads *ret_loads, struct dp_error *err);
// Sums over the newest `steps` steps that were reported. `id` NULL: the newest job. DP_NOT_FOUND
// without any.
dp_status loads_ask(struct dpctl *ctl, const char *id, long steps, struct loads *ret_loads,
                    struct dp_error *err);
