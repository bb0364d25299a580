// What the tests of prices share.
#pragma once

#include "dp_test.h"

#include <math.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/cost.h"
#include "dp/price.h"
#include "plain_strategy.h"

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
