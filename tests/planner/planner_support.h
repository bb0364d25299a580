// Jobs and nodes that the planner's tests share.
#pragma once

#include "dp_test.h"

#include <math.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/planner.h"

#define assert_near(got, wanted, tolerance)                                                        \
    do {                                                                                           \
        if (!(fabs((got) - (wanted)) <= (tolerance))) {                                            \
            fail_msg("%s is %.12g, not %.12g", #got, (double)(got), (double)(wanted));             \
        }                                                                                          \
    } while (0)

static inline struct dp_model_spec preset(const char *name)
{
    struct dp_model_spec model;
    struct dp_error err = {0};
    assert_ok(dp_model_preset(name, &model, &err), &err);
    return model;
}

// `settings` are --set assignments, NULL at the end.
static inline struct dp_job_spec job(const char *model, int32_t global_batch, int32_t sequence,
                                     const char *const *settings)
{
    struct dp_job_spec spec;
    struct dp_error err = {0};
    dp_job_spec_init(&spec);
    spec.model = preset(model);
    spec.train = (struct dp_train_spec){
        .steps = 10, .global_batch = global_batch, .sequence = sequence, .seed = 1};
    for (; settings != NULL && *settings != NULL; settings++) {
        assert_ok(dp_job_spec_set(&spec, *settings, &err), &err);
    }
    return spec;
}
#define JOB(model, batch, sequence, ...)                                                           \
    job(model, batch, sequence, (const char *const[]){__VA_ARGS__, NULL})
