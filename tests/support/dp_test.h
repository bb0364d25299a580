// cmocka with the headers it needs, in the order it needs them.
#pragma once

// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/error.h"

// Fails the test with the error's own text.
#define assert_ok(status, err)                                                                     \
    do {                                                                                           \
        dp_status assert_ok_status_ = (status);                                                    \
        if (assert_ok_status_ != DP_OK) {                                                          \
            fail_msg("%s: %s", dp_status_name(assert_ok_status_), (err)->message);                 \
        }                                                                                          \
    } while (0)

// The text contains `part`.
#define assert_part(text, part)                                                                    \
    do {                                                                                           \
        const char *assert_part_text_ = (text), *assert_part_ = (part);                            \
        if (strstr(assert_part_text_, assert_part_) == NULL) {                                     \
            fail_msg("\"%s\" is not in \"%s\"", assert_part_, assert_part_text_);                  \
        }                                                                                          \
    } while (0)

// The status, and a message that contains `part`.
#define assert_refused(got, wanted, err, part)                                                     \
    do {                                                                                           \
        assert_string_equal(dp_status_name(got), dp_status_name(wanted));                          \
        assert_part((err)->message, (part));                                                       \
    } while (0)

// How often a campaign of random input runs: `short_form`, or DP_FUZZ_RUNS (make fuzz).
static inline long dp_fuzz_runs(long short_form)
{
    const char *wanted = getenv("DP_FUZZ_RUNS");
    long runs = wanted == NULL ? 0 : strtol(wanted, NULL, 10);
    return runs > 0 ? runs : short_form;
}
