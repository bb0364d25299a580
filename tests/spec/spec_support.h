// Parsing of texts that stand in a test.
#pragma once

#include "dp_test.h"

#include <math.h>

#include "dp/cleanup.h"
#include "dp/spec.h"

static inline dp_status parse_job(const char *text, const char *base, struct dp_job_spec *ret_spec,
                                  struct dp_error *err)
{
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, "job.toml", text, strlen(text));
    return dp_job_spec_parse(text, strlen(text), base, &diags, ret_spec, err);
}

#define assert_near(got, wanted, tolerance)                                                        \
    do {                                                                                           \
        if (!(fabs((got) - (wanted)) <= (tolerance))) {                                            \
            fail_msg("%s is %.12g, not %.12g", #got, (double)(got), (double)(wanted));             \
        }                                                                                          \
    } while (0)

// The least that a job file must say.
#define MINIMAL                                                                                    \
    "[model]\npreset = \"tiny-moe\"\n[train]\nsteps = 5\nglobal_batch = 16\nsequence = 128\n"
