// Requests that no plan satisfies: why, and the smallest change that would do, found by trying.
#pragma once

#include "explorer.h"

// Nothing fits into memory: DP_UNSCHEDULABLE with the leanest candidate and what fills it.
dp_status dp_planner_impossible_memory(struct explorer *explorer, struct dp_error *err);
// Nothing is legal: DP_UNSCHEDULABLE when ranks are missing, else DP_INVALID.
dp_status dp_planner_impossible_sizes(struct explorer *explorer, struct dp_error *err);
