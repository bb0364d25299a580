// From a layout back to a plan, and to words.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "internal.h"

static dp_status set_own(const struct order *order, uint64_t *ret_hash, char **text,
                         struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf document = {0};
    if (dp_schedule_json_bytes(&order->schedule) > DP_PLAN_SCHEDULE_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "an order of %zu actions is too long for a plan",
                       dp_schedule_action_count(&order->schedule));
    }
    dp_schedule_write_json(&order->schedule, &document);
    free(*text);
    *text = dp_buf_take(&document);
    *ret_hash = order->hash;
    return DP_OK;
}

// One order for all replicas is the plan's own.
static dp_status set_plan_order(const struct layout *layout, struct dp_plan *plan,
                                struct dp_error *err)
{
    DP_COPY_TEXT(plan->schedule, "auto");
    plan->virtual_stages = 0;
    return set_own(layout->own[0], &plan->schedule_hash, &plan->schedule_json, err);
}

static bool is_one_order(const struct adapt *adapt, const struct layout *layout)
{
    for (int32_t b = 1; b < adapt->blocks; b++) {
        if (layout->own[b] != layout->own[0]) {
            return false;
        }
    }
    return layout->own[0] != NULL;
}

// Counts and families' orders first, then orders of their own.
static dp_status set_orders(struct adapt *adapt, const struct layout *layout, struct dp_plan *plan,
                            struct dp_error *err)
{
    DP_AUTO_FREE int32_t *counts = dp_new_array(int32_t, (size_t)plan->data);
    for (int32_t d = 0; d < plan->data; d++) {
        counts[d] = layout->count[d / adapt->coupled];
    }
    dp_status status = dp_plan_share_microbatches(plan, counts, err);
    if (status == DP_OK && is_one_order(adapt, layout)) {
        return set_plan_order(layout, plan, err);
    }
    for (int32_t d = 0; d < plan->data && status == DP_OK; d++) {
        struct order *own = layout->own[d / adapt->coupled];
        if (own != NULL && plan->replicas == NULL) {
            plan->replicas = dp_new_array(struct dp_plan_replica, (size_t)plan->data);
            for (int32_t i = 0; i < plan->data; i++) {
                plan->replicas[i].microbatches = counts[i];
                plan->replicas[i].schedule_hash = plan->schedule_hash;
            }
        }
        if (own != NULL) {
            status = set_own(own, &plan->replicas[d].schedule_hash,
                             &plan->replicas[d].schedule_json, err);
        }
    }
    return status;
}

static void set_places(const struct adapt *adapt, const struct layout *layout, struct dp_plan *plan)
{
    for (int32_t r = 0; r < adapt->world; r++) {
        const struct place *place = &adapt->places[layout->place[r]];
        DP_COPY_TEXT(plan->ranks[r].node, place->name);
        plan->ranks[r].slot = place->slot;
    }
}

// Memory that grows with a position's layers.
static void set_memory(struct adapt *adapt, const struct layout *layout, struct dp_plan *plan)
{
    const struct dp_schedule *schedule = &dp_adapt_block_order(adapt, layout, 0)->schedule;
    for (int32_t p = 0; p < adapt->pipeline && plan->positions != NULL; p++) {
        int32_t old = dp_adapt_layers_at(adapt, &adapt->base, schedule, p);
        int32_t new = dp_adapt_layers_at(adapt, layout, schedule, p);
        double factor = old > 0 ? (double)new / old : 1 + new;
        struct dp_plan_position *position = &plan->positions[p];
        struct dp_memory_parts *m = &position->memory;
        double *const parts[] = {
            &m->weights,  &m->gradients,         &m->optimizer,          &m->activations,
            &m->deferred, &position->held.dense, &position->held.experts};
        double before = dp_memory_total(m);
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            *parts[i] *= factor;
        }
        double more = dp_memory_total(m) - before;
        for (int32_t r = 0; r < adapt->world; r++) {
            if (dp_plan_rank_position(plan, r) == p) {
                double bytes = plan->ranks[r].memory_bytes + more;
                plan->ranks[r].memory_bytes = fmax(0, bytes);
                plan->ranks[r].peak_activation_bytes *= factor;
            }
        }
    }
}

static void set_position(const struct dp_sim_rank *rank, const struct dp_sim_costs *costs,
                         int32_t p, double scale, struct dp_plan_position *position)
{
    double busy = dp_sim_rank_busy(rank);
    double inside = position->compute_s + position->wait_s + position->exchange_s;
    double factor = inside > 0 ? scale * busy / inside : 0;
    position->forward_s = scale * rank->busy[DP_ACTION_F];
    double backward = scale * rank->busy[DP_ACTION_B];
    position->backward_weight_s *= position->backward_s > 0 ? backward / position->backward_s : 0;
    position->backward_s = backward;
    position->input_s = scale * rank->busy[DP_ACTION_I];
    position->weight_s = scale * rank->busy[DP_ACTION_W];
    position->overlapped_s = scale * rank->busy[DP_ACTION_FB];
    position->bubble_s = fmax(0, scale * rank->bubble);
    position->hop_s = fmax(0, scale * rank->comm);
    position->gradient_s = scale * costs->gradient_sync[p];
    position->optimizer_s = scale * costs->optimizer[p];
    position->compute_s = inside > 0 ? position->compute_s * factor : scale * busy;
    position->wait_s *= factor;
    position->exchange_s *= factor;
}

// Times of every replica's ranks, and of the step those of the replica that takes longest.
static dp_status set_times(struct adapt *adapt, const struct layout *layout, double scale,
                           struct dp_plan *plan, struct dp_error *err)
{
    double longest = -1;
    for (int32_t b = 0; b < adapt->blocks; b++) {
        const struct dp_schedule *schedule = &dp_adapt_block_order(adapt, layout, b)->schedule;
        DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs;
        DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
        dp_adapt_block_costs(adapt, layout, b, schedule, &costs);
        dp_status status = dp_simulate(schedule, &costs, false, &result, err);
        if (status != DP_OK) {
            return status;
        }
        for (int32_t i = 0; i < adapt->coupled * adapt->pipeline * adapt->shards; i++) {
            int32_t r = b * adapt->coupled * adapt->pipeline * adapt->shards + i;
            const struct dp_sim_rank *rank = &result.ranks[dp_plan_rank_position(plan, r)];
            plan->ranks[r].busy_s = scale * dp_sim_rank_busy(rank);
            plan->ranks[r].bubble_s = fmax(0, scale * rank->bubble);
            plan->ranks[r].peak_chunks = (int32_t)rank->peak_chunks;
        }
        if (result.step <= longest) {
            continue;
        }
        longest = result.step;
        for (int32_t p = 0; p < adapt->pipeline && plan->positions != NULL; p++) {
            set_position(&result.ranks[p], &costs, p, scale, &plan->positions[p]);
        }
        int32_t critical = 0;
        for (int32_t p = 1; p < adapt->pipeline; p++) {
            critical = result.ranks[p].bubble < result.ranks[critical].bubble ? p : critical;
        }
        plan->compute_s = scale * dp_sim_rank_busy(&result.ranks[critical]);
        plan->comm_s = scale * result.ranks[critical].comm;
        plan->bubble_s = fmax(0, scale * result.ranks[critical].bubble - plan->comm_s);
        double end = fmax(0, scale * (result.step - result.makespan));
        plan->optimizer_s = fmin(end, scale * costs.optimizer[critical]);
        plan->grad_sync_s = fmax(0, end - plan->optimizer_s);
    }
    return DP_OK;
}

// What was weighed against other choices once does not hold any more.
static void drop_comparisons(struct dp_plan *plan)
{
    for (size_t i = 0; i < plan->candidates_count; i++) {
        free(plan->candidates[i].reason);
    }
    plan->candidates_count = 0;
    plan->gains_count = 0;
    plan->baseline_step_s = plan->baseline_memory_bytes = 0;
}

dp_status dp_adapt_plan_of(struct adapt *adapt, const struct layout *layout, double step_s,
                           struct dp_plan *ret_plan, struct dp_error *err)
{
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    dp_plan_copy(&plan, adapt->plan);
    memcpy(plan.layer_begin, layout->layer_begin,
           ((size_t)plan.stages + 1) * sizeof(*plan.layer_begin));
    set_places(adapt, layout, &plan);
    set_memory(adapt, layout, &plan);
    drop_comparisons(&plan);
    dp_status status = set_orders(adapt, layout, &plan, err);
    double simulated = dp_adapt_layout_step(adapt, layout);
    double scale = simulated > 0 ? step_s / simulated : 1;
    status = status == DP_OK ? set_times(adapt, layout, scale, &plan, err) : status;
    if (status != DP_OK) {
        return dp_fail_in(err, "the plan of an answer");
    }
    double faster = step_s > 0 ? adapt->plan->step_s / step_s : 1;
    plan.tokens_per_s *= faster;
    plan.mfu_causal *= faster;
    plan.mfu_noncausal *= faster;
    plan.step_s = step_s;
    free(plan.explanation);
    char *words = dp_adapt_words_of(adapt, layout, dp_adapt_layout_parts(adapt, layout));
    plan.explanation = dp_asprintf("changed while it ran: %s\n", words);
    free(words);
    status = dp_plan_check(&plan, err);
    if (status == DP_OK) {
        *ret_plan = plan;
        plan = (struct dp_plan){0};
    }
    return status;
}

static void put_counts(const struct adapt *adapt, const struct layout *layout, struct dp_buf *out)
{
    dp_buf_puts(out, "micro-batches of the replicas ");
    for (int32_t d = 0; d < adapt->plan->data && d < 16; d++) {
        dp_buf_printf(out, "%s%d", d > 0 ? "," : "", layout->count[d / adapt->coupled]);
    }
    dp_buf_puts(out, adapt->plan->data > 16 ? ",..." : "");
}

static void put_layers(const struct adapt *adapt, const struct layout *layout, struct dp_buf *out)
{
    dp_buf_puts(out, "layers of the stages ");
    for (int32_t s = 0; s < adapt->stages && s < 32; s++) {
        dp_buf_printf(out, "%s%d", s > 0 ? "," : "",
                      layout->layer_begin[s + 1] - layout->layer_begin[s]);
    }
    dp_buf_puts(out, adapt->stages > 32 ? ",..." : "");
}

static void put_places(const struct adapt *adapt, const struct layout *layout, struct dp_buf *out)
{
    const char *separator = "";
    int32_t moved = 0;
    for (int32_t r = 0; r < adapt->world; r++) {
        const struct place *place = &adapt->places[layout->place[r]];
        if (layout->place[r] == adapt->base.place[r]) {
            continue;
        }
        if (moved < 8) {
            dp_buf_printf(out, "%srank %d to %s slot %d", separator, r, place->name, place->slot);
        }
        separator = ", ";
        moved++;
    }
    if (moved > 8) {
        dp_buf_printf(out, " and %d more", moved - 8);
    }
}

static void put_orders(const struct adapt *adapt, const struct layout *layout, struct dp_buf *out)
{
    int32_t changed = 0;
    for (int32_t b = 0; b < adapt->blocks; b++) {
        changed += layout->own[b] != NULL && layout->own[b] != adapt->base.own[b];
    }
    if (changed == adapt->blocks) {
        dp_buf_puts(out, "an order of actions made for these times");
    } else {
        dp_buf_printf(out, "an order made for their times on %d of %d replicas",
                      changed * adapt->coupled, adapt->plan->data);
    }
}

char *dp_adapt_words_of(const struct adapt *adapt, const struct layout *layout, unsigned parts)
{
    struct dp_buf out = {0};
    static const struct {
        unsigned bits;
        void (*put)(const struct adapt *, const struct layout *, struct dp_buf *);
    } words[] = {
        {1u << DP_ADAPT_SHIFT, put_counts},
        {1u << DP_ADAPT_LAYERS, put_layers},
        {1u << DP_ADAPT_ORDER, put_orders},
        {1u << DP_ADAPT_SWAP | 1u << DP_ADAPT_SPARE, put_places},
    };
    dp_buf_puts(&out, "");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if ((parts & words[i].bits) != 0) {
            dp_buf_puts(&out, out.length > 0 ? "; " : "");
            words[i].put(adapt, layout, &out);
        }
    }
    if ((parts & (1u << DP_ADAPT_EXPERTS)) != 0) {
        dp_buf_puts(&out, out.length > 0 ? "; " : "");
        dp_buf_puts(&out, "experts placed and copied anew by their loads");
    }
    return dp_buf_take(&out);
}
