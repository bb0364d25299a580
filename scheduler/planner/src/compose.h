// Plans for accelerators.
#pragma once

#include "internal.h"

// As dp_planner_plan, or dp_planner_pareto, for a problem with is_fabric.
dp_status dp_planner_compose(const struct problem *problem,
                             const struct dp_planner_options *options, bool pareto,
                             struct dp_plan *ret_plan, struct dp_error *err);
// As dp_planner_costs; all replicas are alike.
dp_status dp_planner_compose_costs(const struct problem *problem, const struct dp_plan *plan,
                                   const struct dp_schedule *schedule,
                                   struct dp_sim_costs *ret_costs, struct dp_error *err);
