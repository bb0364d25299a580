// Shares and orders of replicas, inside the module.
#pragma once

#include "dp/plan.h"

// How many micro-batches, and in what order: of the family when there is no document (borrowed).
struct dp_plan_order {
    int32_t microbatches;
    uint64_t hash;
    const char *schedule_json;
};
// DP_CONFLICT when this build makes another order of the same name, DP_INVALID when it is none for
// the plan's sizes. The caller deinits *ret_schedule.
dp_status dp_plan_expand(const struct dp_plan *plan, const struct dp_plan_order *order,
                         struct dp_schedule *ret_schedule, struct dp_error *err);

void dp_plan_free_replicas(struct dp_plan *plan);
// NULL for a plan without.
struct dp_plan_replica *dp_plan_copy_replicas(const struct dp_plan *plan);
// Shares in range, the most of them the plan's own number, equal where replicas are coupled.
dp_status dp_plan_check_replicas(const struct dp_plan *plan, struct dp_error *err);
