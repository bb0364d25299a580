// Plans for accelerators.
#pragma once

#include "internal.h"

// As dp_planner_plan, for a problem with is_fabric.
dp_status dp_planner_compose(const struct problem *problem,
                             const struct dp_planner_options *options, struct dp_plan *ret_plan,
                             struct dp_error *err);
