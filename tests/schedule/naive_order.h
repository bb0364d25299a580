// Whether a schedule can run, decided the slow way: counts in full tables, then sweeps over all
// ranks until none moves. Shares nothing with the library's own checks.
#pragma once

#include <stdbool.h>

#include "dp/schedule.h"

// Sizes and placement must be right, the actions may be anything in range.
bool naive_can_run(const struct dp_schedule *schedule);
