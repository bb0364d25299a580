// Replicas that take different shares of a step, or run theirs in an order of their own.

#include "plan_replicas.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

static dp_status from_document(const char *text, struct dp_schedule *ret_schedule,
                               struct dp_error *err)
{
    DP_AUTO_JSON json_t *json = NULL;
    dp_status status =
        dp_json_parse(text, strlen(text), DP_MESSAGE_BYTES_MAX, "the plan's schedule", &json, err);
    return status == DP_OK ? dp_schedule_from_json(json, ret_schedule, err) : status;
}

dp_status dp_plan_expand(const struct dp_plan *plan, const struct dp_plan_order *order,
                         struct dp_schedule *ret_schedule, struct dp_error *err)
{
    const struct dp_schedule_params params = {.pipeline = plan->pipeline,
                                              .microbatches = order->microbatches,
                                              .virtual_stages = plan->virtual_stages};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    dp_status status = order->schedule_json != NULL
                           ? from_document(order->schedule_json, &schedule, err)
                           : dp_schedule_generate(plan->schedule, &params, &schedule, err);
    if (status != DP_OK) {
        return status;
    }
    if (schedule.pipeline != plan->pipeline || schedule.microbatches != order->microbatches ||
        schedule.stages != plan->stages) {
        return dp_fail(err, DP_INVALID,
                       "the plan has %d ranks, %d micro-batches and %d stages, its schedule %d, %d "
                       "and %d",
                       plan->pipeline, order->microbatches, plan->stages, schedule.pipeline,
                       schedule.microbatches, schedule.stages);
    }
    uint64_t hash = dp_schedule_hash(&schedule);
    if (hash != order->hash) {
        return dp_fail(err, DP_CONFLICT,
                       "the order of schedule \"%s\" differs from the planned one (0x%016llx, not "
                       "0x%016llx); controller and workers must be of one version",
                       plan->schedule, (unsigned long long)hash, (unsigned long long)order->hash);
    }
    *ret_schedule = schedule;
    schedule = (struct dp_schedule){0};
    return DP_OK;
}

void dp_plan_free_replicas(struct dp_plan *plan)
{
    for (int32_t d = 0; plan->replicas != NULL && d < plan->data; d++) {
        free(plan->replicas[d].schedule_json);
    }
    free(plan->replicas);
    plan->replicas = NULL;
}

struct dp_plan_replica *dp_plan_copy_replicas(const struct dp_plan *plan)
{
    if (plan->replicas == NULL) {
        return NULL;
    }
    struct dp_plan_replica *copy =
        dp_memdup(plan->replicas, (size_t)plan->data * sizeof(*plan->replicas));
    for (int32_t d = 0; d < plan->data; d++) {
        const char *text = copy[d].schedule_json;
        copy[d].schedule_json = text == NULL ? NULL : dp_strdup(text);
    }
    return copy;
}

int32_t dp_plan_replica_microbatches(const struct dp_plan *plan, int32_t replica)
{
    return plan->replicas == NULL ? plan->microbatches : plan->replicas[replica].microbatches;
}

int64_t dp_plan_first_microbatch(const struct dp_plan *plan, int32_t replica)
{
    int64_t first = 0;
    for (int32_t d = 0; d < replica; d++) {
        first += dp_plan_replica_microbatches(plan, d);
    }
    return first;
}

int64_t dp_plan_step_microbatches(const struct dp_plan *plan)
{
    return dp_plan_first_microbatch(plan, plan->data);
}

int32_t dp_plan_coupled_replicas(const struct dp_plan *plan)
{
    int32_t group = plan->expert * (plan->expert_tensor > 1 ? plan->expert_tensor : 1);
    int32_t of_replica = dp_plan_shards(plan);
    // Groups of consecutive ranks may begin inside a replica and end in the next: then all that
    // one reaches are coupled, and with them what the next one shares.
    if (group <= of_replica) {
        return of_replica % group == 0 ? 1 : plan->data;
    }
    return group % of_replica == 0 ? group / of_replica : plan->data;
}

static dp_status refuse_coupled(const struct dp_plan *plan, int32_t replica, struct dp_error *err)
{
    return dp_fail(
        err, DP_INVALID,
        "plan: replicas %d and %d run different actions, but ranks of both are in one "
        "expert group and exchange rows in every action; every %d replicas must be alike",
        replica - 1, replica, dp_plan_coupled_replicas(plan));
}

dp_status dp_plan_check_replicas(const struct dp_plan *plan, struct dp_error *err)
{
    int32_t most = 0, coupled = dp_plan_coupled_replicas(plan);
    for (int32_t d = 0; plan->replicas != NULL && d < plan->data; d++) {
        const struct dp_plan_replica *replica = &plan->replicas[d];
        if (replica->microbatches < 1 || replica->microbatches > plan->microbatches) {
            return dp_fail(err, DP_INVALID,
                           "plan: replica %d runs %d micro-batches; it must be 1 to %d", d,
                           replica->microbatches, plan->microbatches);
        }
        if (d % coupled != 0 && (replica[-1].microbatches != replica->microbatches ||
                                 replica[-1].schedule_hash != replica->schedule_hash)) {
            return refuse_coupled(plan, d, err);
        }
        most = replica->microbatches > most ? replica->microbatches : most;
    }
    if (plan->replicas != NULL && most != plan->microbatches) {
        return dp_fail(err, DP_INVALID,
                       "plan: microbatches is %d, but no replica runs more than %d",
                       plan->microbatches, most);
    }
    return DP_OK;
}

// Another order is legal for a replica alone when its stages stand where the plan's do: gradients
// are summed over the ranks of one position.
static dp_status check_placement(const struct dp_plan *plan, const struct dp_schedule *schedule,
                                 struct dp_error *err)
{
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule own = {0};
    dp_status status = dp_plan_schedule(plan, &own, err);
    size_t bytes = 2 * (size_t)plan->stages * sizeof(*own.placement);
    if (status == DP_OK && (own.directions != schedule->directions ||
                            memcmp(own.placement, schedule->placement, bytes) != 0)) {
        status = dp_fail(err, DP_INVALID,
                         "the order of a replica puts stages on other ranks than "
                         "the plan does");
    }
    return status;
}

dp_status dp_plan_replica_schedule(const struct dp_plan *plan, int32_t replica,
                                   struct dp_schedule *ret_schedule, struct dp_error *err)
{
    if (plan->replicas == NULL) {
        return dp_plan_schedule(plan, ret_schedule, err);
    }
    const struct dp_plan_replica *own = &plan->replicas[replica];
    struct dp_plan_order order = {own->microbatches, own->schedule_hash, own->schedule_json};
    if (own->schedule_json == NULL && own->microbatches == plan->microbatches) {
        order.schedule_json = plan->schedule_json;
    }
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    dp_status status = dp_plan_expand(plan, &order, &schedule, err);
    if (status == DP_OK && (own->schedule_json != NULL || plan->schedule_json != NULL)) {
        status = check_placement(plan, &schedule, err);
    }
    if (status != DP_OK) {
        return dp_fail_in(err, "replica %d", replica);
    }
    *ret_schedule = schedule;
    schedule = (struct dp_schedule){0};
    return DP_OK;
}

static dp_status hash_of(const struct dp_plan *plan, int32_t microbatches, uint64_t *ret_hash,
                         struct dp_error *err)
{
    if (plan->schedule_json != NULL) {
        if (microbatches != plan->microbatches) {
            return dp_fail(err, DP_INVALID,
                           "the plan's order is written for %d micro-batches, not for %d",
                           plan->microbatches, microbatches);
        }
        *ret_hash = plan->schedule_hash;
        return DP_OK;
    }
    const struct dp_schedule_params params = {.pipeline = plan->pipeline,
                                              .microbatches = microbatches,
                                              .virtual_stages = plan->virtual_stages};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    dp_status status = dp_schedule_generate(plan->schedule, &params, &schedule, err);
    if (status == DP_OK) {
        *ret_hash = dp_schedule_hash(&schedule);
    }
    return status;
}

static int32_t find_count(const int32_t *counts, int32_t end, int32_t count)
{
    int32_t i = 0;
    while (i < end && counts[i] != count) {
        i++;
    }
    return i;
}

dp_status dp_plan_share_microbatches(struct dp_plan *plan, const int32_t *counts,
                                     struct dp_error *err)
{
    DP_AUTO_FREE struct dp_plan_replica *replicas =
        dp_new_array(struct dp_plan_replica, (size_t)plan->data);
    struct dp_plan next = *plan;
    next.replicas = replicas;
    int32_t most = 0;
    bool is_equal = true;
    dp_status status = DP_OK;
    for (int32_t d = 0; d < plan->data && status == DP_OK; d++) {
        int32_t before = find_count(counts, d, counts[d]);
        replicas[d].microbatches = counts[d];
        if (before < d) {
            replicas[d].schedule_hash = replicas[before].schedule_hash;
        } else {
            status = hash_of(plan, counts[d], &replicas[d].schedule_hash, err);
        }
        is_equal = is_equal && before == 0;
        if (counts[d] > most) {
            most = counts[d];
            next.schedule_hash = replicas[d].schedule_hash;
        }
    }
    next.microbatches = most;
    status = status == DP_OK ? dp_plan_check_replicas(&next, err) : status;
    if (status != DP_OK) {
        return status;
    }
    dp_plan_free_replicas(plan);
    plan->microbatches = most;
    plan->schedule_hash = next.schedule_hash;
    plan->replicas = is_equal ? NULL : dp_steal(replicas);
    return DP_OK;
}
