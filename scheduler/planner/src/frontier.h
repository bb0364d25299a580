// Looks for the best candidates of an explorer's space in the order of their bounds.
#pragma once

#include "explorer.h"
#include "search.h"

// Simulates until no candidate left can be the best, then until the best of every schedule,
// pipeline depth, tensor and expert size is known as far as they are near it. Fills outcomes, best,
// moves and scored; without outcomes nothing fits into memory. DP_INTERRUPTED when stopped.
dp_status dp_planner_frontier_run(struct explorer *explorer,
                                  const struct dp_planner_options *options,
                                  struct search *ret_search, struct dp_error *err);
// Also what takes less memory for a longer step, up to three times the best: outcomes hold every
// candidate that no other beats in both.
dp_status dp_planner_frontier_pareto(struct explorer *explorer,
                                     const struct dp_planner_options *options,
                                     struct search *ret_search, struct dp_error *err);
