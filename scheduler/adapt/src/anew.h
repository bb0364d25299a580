// Another plan of the same job on other nodes.
#pragma once

#include "internal.h"

// As the job sets it; or, if it `loosens`, sizes that the job sets give way one after the other:
// replicas and micro-batches, then the depth of the pipeline and expert groups, then the schedule.
// *ret_gave (static) names what did; "" = nothing. DP_UNSCHEDULABLE and DP_INVALID are those of the
// last try.
dp_status dp_adapt_plan_anew(const struct dp_job_spec *spec,
                             const struct dp_planner_resources *resources,
                             const struct dp_planner_options *options, bool loosens,
                             struct dp_plan *ret_plan, const char **ret_gave, struct dp_error *err);

// The same on the nodes of the question that are not slow, as it stands; `left_out` gets the others
// as "a,b".
dp_status dp_adapt_plan_well(struct adapt *adapt, bool loosens, struct dp_plan *ret_plan,
                             const char **ret_gave, struct dp_buf *left_out, struct dp_error *err);
// What it means for an answer that no plan was found: ret_why (DP_ADAPT_WHY_MAX bytes) says why,
// or DP_INTERRUPTED, when the search was stopped.
dp_status dp_adapt_no_plan(const struct dp_error *refusal, char *ret_why, struct dp_error *err);
// By how much the planner's steps of this job are off: what runs, healthy, over what was planned.
double dp_adapt_planner_off(struct adapt *adapt, double scale);
