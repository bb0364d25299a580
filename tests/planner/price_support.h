// What the tests of prices share.
#pragma once

#include "dp_test.h"

#include <math.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/cost.h"
#include "dp/price.h"

#define assert_within(got, wanted, share)                                                          \
    do {                                                                                           \
        double within_got_ = (got), within_wanted_ = (wanted);                                     \
        if (!(fabs(within_got_ - within_wanted_) <= (share)*fabs(within_wanted_))) {               \
            fail_msg("%s is %.9g, not %.9g (%+.2f %%)", #got, within_got_, within_wanted_,         \
                     100 * (within_got_ / within_wanted_ - 1));                                    \
        }                                                                                          \
    } while (0)

static inline struct dp_model_spec model_of(const char *name)
{
    struct dp_model_spec model;
    struct dp_error err = {0};
    assert_ok(dp_model_preset(name, &model, &err), &err);
    return model;
}

static inline void load_profile(const char *name, struct dp_profile *ret_profile)
{
    struct dp_error err = {0};
    assert_ok(dp_profile_builtin(name, ret_profile, &err), &err);
}

// One rank alone.
static inline struct dp_strategy plain_strategy(void)
{
    return (struct dp_strategy){
        .pipeline = 1,
        .data = 1,
        .tensor = 1,
        .context = 1,
        .expert = 1,
        .expert_tensor = 1,
        .microbatches = 1,
        .micro_batch_size = 1,
        .schedule = "1f1b",
        .format = DP_FORMAT_BF16,
        .shard = DP_SHARD_ZERO1,
        .imbalance = 1,
    };
}
