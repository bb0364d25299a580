// What one more unit of each resource would buy, and what the runners-up cost.
#pragma once

#include "appraise.h"
#include "search.h"

// Fills plan->gains: the same strategy with a tenth more of each resource and with twice the batch,
// the one that helps most in front; of memory the best strategy that fits then.
dp_status dp_planner_gains_fill(struct explorer *explorer, const struct appraisal *best,
                                const struct search *search, struct dp_plan *plan,
                                struct dp_error *err);
// Fills plan->candidates: the chosen one, then the best of each schedule, pipeline depth, tensor
// and expert size and the next fastest, by step. Reasons are left to dp_plan_explain.
dp_status dp_planner_runners_fill(struct explorer *explorer, const struct search *search,
                                  struct dp_plan *plan, struct dp_error *err);
// Fills plan->candidates with those that no other beats in both step and memory, by step.
dp_status dp_planner_pareto_fill(struct explorer *explorer, const struct search *search,
                                 struct dp_plan *plan, struct dp_error *err);
// One candidate's figures.
void dp_planner_runner_fill(const struct appraisal *appraisal, struct dp_plan_candidate *candidate);
