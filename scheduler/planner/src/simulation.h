// Costs and results of a candidate for accelerators, as the event simulator has them.
#pragma once

#include "dp/simulate.h"
#include "explorer.h"

// A strategy with its prices. input points into it: do not copy.
struct pricing {
    struct dp_strategy strategy;
    struct dp_price_input input;
    struct dp_price price;
};

// For any stages of the schedule: stage s runs layers [layer_begin[s], layer_begin[s + 1]).
void dp_planner_pricing_costs(const struct pricing *pricing, const int32_t *layer_begin,
                              const struct dp_schedule *schedule, struct dp_sim_costs *ret_costs);
