// What a schedule that was asked for stands against.
#pragma once

#include "internal.h"

// For a plan whose job sets a schedule with two directions: adds to its candidates the best that
// hold every stage once, of the same tensor, context and expert sizes, and the best of DualPipeV.
// Nothing where there are none. DP_INTERRUPTED when stopped.
dp_status dp_planner_alternatives_fill(const struct problem *problem,
                                       const struct dp_planner_options *options,
                                       struct dp_plan *plan, struct dp_error *err);
