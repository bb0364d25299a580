// What a question stands on: places, orders, sums of layers.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "internal.h"

static void order_free(struct order *order)
{
    dp_schedule_deinit(&order->schedule);
    free(order->peak);
    free(order->refusal);
    free(order);
}

void dp_adapt_ground_deinit(struct adapt *adapt)
{
    for (size_t i = 0; i < adapt->orders_count; i++) {
        order_free(adapt->orders[i]);
    }
    for (size_t i = 0; i < adapt->owns_count; i++) {
        order_free(adapt->owns[i]);
    }
    free(adapt->orders);
    free(adapt->owns);
    free(adapt->places);
    free(adapt->prefix);
    free(adapt->load_now);
    free(adapt->load_after);
    free(adapt->memo);
    dp_adapt_layout_deinit(&adapt->base);
    dp_sim_scratch_free(adapt->scratch);
}

// Chunks of a rank that are kept at a time: from F until B or W.
static int32_t peak_of(const struct dp_schedule *schedule, int32_t rank)
{
    int32_t live = 0, most = 0;
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const struct dp_action *action = &schedule->actions[i];
        bool begins = action->kind == DP_ACTION_F || action->kind == DP_ACTION_FB;
        bool ends = action->kind == DP_ACTION_B || action->kind == DP_ACTION_W ||
                    (action->kind == DP_ACTION_FB && action->b_kind == DP_ACTION_B);
        live += begins;
        most = live > most ? live : most;
        live -= ends;
    }
    return most;
}

static void order_complete(struct order *order)
{
    order->is_legal = true;
    order->microbatches = order->schedule.microbatches;
    order->hash = dp_schedule_hash(&order->schedule);
    order->peak = dp_new_array(int32_t, (size_t)order->schedule.pipeline);
    for (int32_t p = 0; p < order->schedule.pipeline; p++) {
        order->peak[p] = peak_of(&order->schedule, p);
    }
}

static struct order *append(struct order ***list, size_t *count, struct order *order)
{
    *list = dp_realloc(*list, *count + 1, sizeof(**list));
    (*list)[(*count)++] = order;
    return order;
}

struct order *dp_adapt_order_add(struct adapt *adapt, struct dp_schedule *schedule)
{
    struct order *order = dp_new(struct order);
    order->schedule = *schedule;
    *schedule = (struct dp_schedule){0};
    order_complete(order);
    return append(&adapt->owns, &adapt->owns_count, order);
}

struct order *dp_adapt_order_of(struct adapt *adapt, int32_t microbatches)
{
    for (size_t i = 0; i < adapt->orders_count; i++) {
        if (adapt->orders[i]->microbatches == microbatches) {
            return adapt->orders[i];
        }
    }
    struct order *order = dp_new(struct order);
    struct dp_error err = {0};
    dp_status status;
    const struct dp_plan *plan = adapt->plan;
    if (plan->schedule_json != NULL && microbatches != plan->microbatches) {
        status = dp_fail(&err, DP_INVALID, "the order is written for %d micro-batches",
                         plan->microbatches);
    } else if (plan->schedule_json != NULL) {
        status = dp_plan_schedule(plan, &order->schedule, &err);
    } else {
        const struct dp_schedule_params params = {.pipeline = plan->pipeline,
                                                  .microbatches = microbatches,
                                                  .virtual_stages = plan->virtual_stages};
        status = dp_schedule_generate(plan->schedule, &params, &order->schedule, &err);
    }
    if (status == DP_OK) {
        order_complete(order);
    } else {
        order->refusal = dp_strdup(err.message);
    }
    order->microbatches = microbatches;
    return append(&adapt->orders, &adapt->orders_count, order);
}

static int compare_places(const void *a, const void *b)
{
    return strcmp((*(struct place *const *)a)->name, (*(struct place *const *)b)->name);
}

static void number_nodes(struct adapt *adapt)
{
    size_t count = (size_t)adapt->places_count;
    DP_AUTO_FREE struct place **sorted = dp_new_array(struct place *, count);
    for (size_t i = 0; i < count; i++) {
        sorted[i] = &adapt->places[i];
    }
    qsort(sorted, count, sizeof(struct place *), compare_places);
    int32_t node = 0;
    for (size_t i = 0; i < count; i++) {
        node += i > 0 && strcmp(sorted[i]->name, sorted[i - 1]->name) != 0;
        sorted[i]->node = node;
    }
}

static dp_status fill_places(struct adapt *adapt, struct dp_error *err)
{
    const struct dp_adapt_input *input = adapt->input;
    adapt->places_count = adapt->world + (int32_t)input->spares_count;
    adapt->places = dp_new_array(struct place, (size_t)adapt->places_count);
    for (int32_t i = 0; i < adapt->places_count; i++) {
        const struct dp_adapt_spare *spare =
            i < adapt->world ? NULL : &input->spares[i - adapt->world];
        double slow = spare != NULL         ? (spare->slow > 0 ? spare->slow : 1)
                      : input->slow != NULL ? input->slow[i]
                                            : 1;
        if (!(slow > 0) || slow > DP_COST_FACTOR_MAX) {
            return dp_fail(err, DP_INVALID, "%s %d is slow by %g; it must be over 0 and at most %g",
                           spare == NULL ? "rank" : "spare place",
                           spare == NULL ? i : i - adapt->world, slow, DP_COST_FACTOR_MAX);
        }
        adapt->places[i] = (struct place){
            .name = spare == NULL ? adapt->plan->ranks[i].node : spare->node,
            .slot = spare == NULL ? adapt->plan->ranks[i].slot : spare->slot,
            .slow = slow,
            .memory_bytes = spare == NULL ? 0 : spare->memory_bytes,
        };
    }
    number_nodes(adapt);
    return DP_OK;
}

static dp_status check_costs(const struct dp_adapt_costs *costs, const struct dp_plan *plan,
                             struct dp_error *err)
{
    if (costs->layers != plan->layer_begin[plan->stages] || costs->pipeline != plan->pipeline) {
        return dp_fail(err, DP_INVALID, "costs are of %d layers on %d ranks, the plan has %d on %d",
                       costs->layers, costs->pipeline, plan->layer_begin[plan->stages],
                       plan->pipeline);
    }
    for (int32_t i = 0; i < costs->layers * DP_ADAPT_KINDS; i++) {
        double seconds = costs->layer[i / DP_ADAPT_KINDS][i % DP_ADAPT_KINDS];
        if (!isfinite(seconds) || seconds < 0 || seconds > DP_COST_SECONDS_MAX) {
            return dp_fail(err, DP_INVALID, "layer %d takes %g s; it must be 0 to %g",
                           i / DP_ADAPT_KINDS, seconds, DP_COST_SECONDS_MAX);
        }
    }
    return DP_OK;
}

static dp_status check_links(const struct adapt *adapt, struct dp_error *err)
{
    for (size_t i = 0; i < adapt->input->links_count; i++) {
        const struct dp_adapt_link *link = &adapt->input->links[i];
        if (link->from < -1 || link->from >= adapt->world || link->to < -1 ||
            link->to >= adapt->world || (link->from < 0 && link->to < 0)) {
            return dp_fail(err, DP_INVALID, "a link from rank %d to rank %d: there are %d ranks",
                           link->from, link->to, adapt->world);
        }
    }
    return DP_OK;
}

static dp_status fill_base(struct adapt *adapt, struct dp_error *err)
{
    const struct dp_plan *plan = adapt->plan;
    struct layout *base = &adapt->base;
    base->place = dp_new_array(int32_t, (size_t)adapt->world);
    base->layer_begin =
        dp_memdup(plan->layer_begin, ((size_t)plan->stages + 1) * sizeof(*plan->layer_begin));
    base->count = dp_new_array(int32_t, (size_t)adapt->blocks);
    base->own = dp_new_array(struct order *, (size_t)adapt->blocks);
    for (int32_t r = 0; r < adapt->world; r++) {
        base->place[r] = r;
    }
    dp_status status = DP_OK;
    for (int32_t b = 0; b < adapt->blocks && status == DP_OK; b++) {
        int32_t d = b * adapt->coupled;
        base->count[b] = dp_plan_replica_microbatches(plan, d);
        DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
        if (plan->replicas != NULL && plan->replicas[d].schedule_json != NULL) {
            status = dp_plan_replica_schedule(plan, d, &schedule, err);
            base->own[b] = status == DP_OK ? dp_adapt_order_add(adapt, &schedule) : NULL;
        } else if (!dp_adapt_order_of(adapt, base->count[b])->is_legal) {
            status = dp_fail(err, DP_INVALID, "replica %d: %s", d,
                             dp_adapt_order_of(adapt, base->count[b])->refusal);
        }
    }
    return status;
}

dp_status dp_adapt_ground(struct adapt *adapt, const struct dp_adapt_input *input,
                          struct dp_error *err)
{
    const struct dp_plan *plan = input->plan;
    *adapt = (struct adapt){
        .input = input,
        .plan = plan,
        .pipeline = plan->pipeline,
        .stages = plan->stages,
        .world = dp_plan_world(plan),
        .shards = dp_plan_shards(plan),
        .coupled = dp_plan_coupled_replicas(plan),
        .scratch = dp_sim_scratch_new(),
    };
    adapt->blocks = plan->data / adapt->coupled;
    dp_status status = check_costs(input->costs, plan, err);
    status = status == DP_OK ? check_links(adapt, err) : status;
    status = status == DP_OK ? fill_places(adapt, err) : status;
    status = status == DP_OK ? fill_base(adapt, err) : status;
    if (status != DP_OK) {
        return status;
    }
    adapt->prefix = dp_alloc((size_t)input->costs->layers + 1, sizeof(*adapt->prefix));
    for (int32_t l = 0; l < input->costs->layers; l++) {
        for (int kind = 0; kind < DP_ADAPT_KINDS; kind++) {
            adapt->prefix[l + 1][kind] = adapt->prefix[l][kind] + input->costs->layer[l][kind];
        }
    }
    return dp_adapt_experts_fill(adapt, err);
}
