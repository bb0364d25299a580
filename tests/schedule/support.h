// What the tests of schedules share.
#pragma once

#include "dp_test.h"

#include "dp/schedule.h"
#include "dp/simulate.h"

// Fails the test when (family, P, M) is refused.
struct dp_schedule make_schedule(const char *family, int32_t pipeline, int32_t microbatches);
// Simulates with the same numbers everywhere.
struct dp_sim_result simulate_uniform(const struct dp_schedule *schedule,
                                      struct dp_sim_uniform uniform);
// How many actions of a kind the rank has.
int count_kind(const struct dp_schedule *schedule, int32_t rank, dp_action_kind kind);

static inline int32_t min32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}
