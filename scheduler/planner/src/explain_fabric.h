// What a plan for accelerators says of itself besides its figures.
#pragma once

#include "appraise.h"

// Adds to plan->explanation, behind its first line, what is odd about the choice at first sight and
// follows from its prices; to plan->warnings what its placement costs.
dp_status dp_planner_explain_fabric(struct explorer *explorer, const struct appraisal *best,
                                    struct dp_plan *plan, struct dp_error *err);
