#include "dp/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "plan_replicas.h"

void dp_plan_deinit(struct dp_plan *plan)
{
    for (size_t i = 0; i < plan->candidates_count; i++) {
        free(plan->candidates[i].reason);
    }
    free(plan->candidates);
    free(plan->schedule_json);
    free(plan->layer_begin);
    free(plan->ranks);
    free(plan->positions);
    dp_plan_free_replicas(plan);
    free(plan->warnings);
    free(plan->provenance);
    free(plan->explanation);
    *plan = (struct dp_plan){0};
}

void dp_plan_add_warnings(struct dp_plan *plan, const char *lines)
{
    if (lines == NULL || lines[0] == '\0') {
        return;
    }
    char *before = plan->warnings;
    plan->warnings = dp_asprintf("%s%s", before == NULL ? "" : before, lines);
    free(before);
}

void dp_plan_copy(struct dp_plan *ret_plan, const struct dp_plan *plan)
{
    struct dp_plan copy = *plan;
    copy.schedule_json = plan->schedule_json == NULL ? NULL : dp_strdup(plan->schedule_json);
    copy.layer_begin =
        dp_memdup(plan->layer_begin, ((size_t)plan->stages + 1) * sizeof(*plan->layer_begin));
    copy.ranks = dp_memdup(plan->ranks, (size_t)dp_plan_world(plan) * sizeof(*plan->ranks));
    copy.positions =
        plan->positions == NULL
            ? NULL
            : dp_memdup(plan->positions, (size_t)plan->pipeline * sizeof(*plan->positions));
    copy.replicas = dp_plan_copy_replicas(plan);
    copy.warnings = plan->warnings == NULL ? NULL : dp_strdup(plan->warnings);
    copy.provenance = dp_strdup(plan->provenance);
    copy.explanation = dp_strdup(plan->explanation);
    copy.candidates = dp_new_array(struct dp_plan_candidate, plan->candidates_count);
    for (size_t i = 0; i < plan->candidates_count; i++) {
        copy.candidates[i] = plan->candidates[i];
        const char *reason = plan->candidates[i].reason;
        copy.candidates[i].reason = reason == NULL ? NULL : dp_strdup(reason);
    }
    *ret_plan = copy;
}

int32_t dp_plan_critical_position(const struct dp_plan *plan)
{
    int32_t critical = 0;
    double least = INFINITY;
    int32_t shards = dp_plan_shards(plan);
    for (int32_t p = 0; p < plan->pipeline; p++) {
        double bubble = plan->positions != NULL ? plan->positions[p].bubble_s
                                                : plan->ranks[p * shards].bubble_s;
        if (bubble < least) {
            least = bubble;
            critical = p;
        }
    }
    return critical;
}

double dp_plan_position_bytes(const struct dp_plan *plan, int32_t position)
{
    if (plan->positions != NULL) {
        return dp_memory_total(&plan->positions[position].memory);
    }
    double most = 0;
    int32_t shards = dp_plan_shards(plan);
    for (int32_t d = 0; d < plan->data; d++) {
        most = fmax(most, plan->ranks[(d * plan->pipeline + position) * shards].memory_bytes);
    }
    return most;
}

int32_t dp_plan_fullest_position(const struct dp_plan *plan)
{
    int32_t fullest = 0;
    double least_room = INFINITY;
    for (int32_t p = 0; p < plan->pipeline; p++) {
        double limit = plan->positions != NULL ? plan->positions[p].memory_limit_bytes : 0;
        double room = limit - dp_plan_position_bytes(plan, p);
        if (room < least_room) {
            least_room = room;
            fullest = p;
        }
    }
    return fullest;
}

double dp_plan_gpu_hours(const struct dp_plan *plan, double step_s, double tokens)
{
    double of_step = plan->tokens_per_s * plan->step_s;
    return of_step > 0 ? dp_plan_world(plan) * step_s / 3600 * (tokens / of_step) : 0;
}

double dp_plan_tie_share(const struct dp_plan *plan)
{
    bool is_known = plan->ranking_share > 0 && plan->ranking_share < plan->error_share;
    return is_known ? plan->ranking_share : plan->error_share;
}

bool dp_plan_baseline_fits(const struct dp_plan *plan)
{
    double limit = 0;
    for (int32_t p = 0; plan->positions != NULL && p < plan->pipeline; p++) {
        double here = plan->positions[p].memory_limit_bytes;
        limit = here > 0 && (limit <= 0 || here < limit) ? here : limit;
    }
    return limit <= 0 || plan->baseline_memory_bytes <= limit;
}

const struct dp_plan_candidate *dp_plan_best_of(const struct dp_plan *plan, const char *schedule)
{
    const struct dp_plan_candidate *best = NULL;
    for (size_t i = 0; i < plan->candidates_count; i++) {
        const struct dp_plan_candidate *c = &plan->candidates[i];
        bool fits = c->memory_limit_bytes <= 0 || c->memory_max_bytes <= c->memory_limit_bytes;
        if (c->legal && fits && strcmp(c->schedule, schedule) == 0 &&
            (best == NULL || c->step_s < best->step_s)) {
            best = c;
        }
    }
    return best;
}

static dp_status check_size(const char *what, int64_t value, int64_t max, struct dp_error *err)
{
    if (value < 1 || value > max) {
        return dp_fail(err, DP_INVALID, "plan: %s is %lld; it must be 1 to %lld", what,
                       (long long)value, (long long)max);
    }
    return DP_OK;
}

// Several positions' worth of ranks, checked so that products stay in 64 bits.
static dp_status check_world(const struct dp_plan *plan, struct dp_error *err)
{
    int64_t of_position = (int64_t)plan->data * dp_plan_shards(plan);
    int64_t of_experts =
        (int64_t)plan->expert * (plan->expert_tensor > 1 ? plan->expert_tensor : 1);
    dp_status status = check_size("pipeline x data x tensor x context",
                                  of_position * plan->pipeline, DP_RANKS_MAX, err);
    if (status == DP_OK && of_position % of_experts != 0) {
        return dp_fail(
            err, DP_INVALID,
            "plan: expert x expert_tensor (%lld) does not divide data x tensor x context "
            "(%lld)",
            (long long)of_experts, (long long)of_position);
    }
    return status;
}

static dp_status check_sizes(const struct dp_plan *plan, struct dp_error *err)
{
    const struct {
        const char *name;
        int64_t value, max;
    } sizes[] = {
        {"pipeline", plan->pipeline, DP_PIPELINE_MAX},
        {"expert", plan->expert, DP_EXPERTS_MAX},
        {"data", plan->data, DP_RANKS_MAX},
        {"microbatches", plan->microbatches, DP_MICROBATCHES_MAX},
        {"micro_batch_size", plan->micro_batch_size, DP_GLOBAL_BATCH_MAX},
        {"stages", plan->stages, DP_STAGES_MAX},
        {"virtual_stages + 1", (int64_t)plan->virtual_stages + 1, DP_RANK_STAGES_MAX + 1},
        {"tensor + 1", (int64_t)plan->tensor + 1, DP_TENSOR_MAX + 1},
        {"context + 1", (int64_t)plan->context + 1, DP_CONTEXT_MAX + 1},
        {"expert_tensor + 1", (int64_t)plan->expert_tensor + 1, DP_TENSOR_MAX + 1},
        {"comm_units + 1", (int64_t)plan->comm_units + 1, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        dp_status status = check_size(sizes[i].name, sizes[i].value, sizes[i].max, err);
        if (status != DP_OK) {
            return status;
        }
    }
    return check_world(plan, err);
}

static dp_status check_figure(const char *what, double value, struct dp_error *err)
{
    if (!isfinite(value) || value < 0) {
        return dp_fail(err, DP_INVALID, "plan: %s is %g; it must be finite and not negative", what,
                       value);
    }
    return DP_OK;
}

static dp_status check_all(const char *what, const double *values, size_t count,
                           struct dp_error *err)
{
    dp_status status = DP_OK;
    for (size_t i = 0; status == DP_OK && i < count; i++) {
        status = check_figure(what, values[i], err);
    }
    return status;
}

static dp_status check_positions(const struct dp_plan *plan, struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t i = 0; plan->positions != NULL && status == DP_OK && i < plan->pipeline; i++) {
        const struct dp_plan_position *p = &plan->positions[i];
        const double figures[] = {p->forward_s,        p->backward_s,         p->input_s,
                                  p->weight_s,         p->overlapped_s,       p->bubble_s,
                                  p->gradient_s,       p->optimizer_s,        p->hop_s,
                                  p->wait_s,           p->exchange_s,         p->compute_s,
                                  p->hidden_s,         p->memory.weights,     p->memory.gradients,
                                  p->memory.optimizer, p->memory.activations, p->memory.deferred,
                                  p->memory.transient, p->memory.exchange,    p->memory.runtime,
                                  p->memory_at_s,      p->memory_limit_bytes, p->held.dense,
                                  p->held.experts,     p->backward_weight_s};
        status = check_all("a figure of a pipeline rank", figures,
                           sizeof(figures) / sizeof(figures[0]), err);
    }
    return status;
}

static dp_status check_figures(const struct dp_plan *plan, struct dp_error *err)
{
    const double figures[] = {plan->step_s,
                              plan->compute_s,
                              plan->bubble_s,
                              plan->comm_s,
                              plan->grad_sync_s,
                              plan->optimizer_s,
                              plan->tokens_per_s,
                              plan->error_share,
                              plan->ranking_share,
                              plan->mfu_causal,
                              plan->mfu_noncausal,
                              plan->flops_causal,
                              plan->flops_noncausal,
                              plan->baseline_step_s,
                              plan->search_s,
                              plan->imbalance,
                              plan->baseline_memory_bytes};
    dp_status status =
        check_all("a predicted time", figures, sizeof(figures) / sizeof(figures[0]), err);
    status = status == DP_OK ? check_positions(plan, err) : status;
    for (int32_t i = 0; status == DP_OK && i < dp_plan_world(plan); i++) {
        const struct dp_plan_rank *rank = &plan->ranks[i];
        const double of_rank[] = {rank->busy_s, rank->bubble_s, rank->peak_activation_bytes,
                                  rank->memory_bytes};
        status =
            check_all("a figure of a rank", of_rank, sizeof(of_rank) / sizeof(of_rank[0]), err);
        if (status == DP_OK && (rank->slot < 0 || rank->peak_chunks < 0)) {
            status = dp_fail(err, DP_INVALID, "plan: rank %d has a negative slot or peak", i);
        }
    }
    return status;
}

dp_status dp_plan_check(const struct dp_plan *plan, struct dp_error *err)
{
    dp_status status = check_sizes(plan, err);
    if (status != DP_OK) {
        return status;
    }
    if (plan->layer_begin[0] != 0) {
        return dp_fail(err, DP_INVALID, "plan: the first stage starts at layer %d, not 0",
                       plan->layer_begin[0]);
    }
    for (int32_t s = 0; s < plan->stages; s++) {
        // The ends may hold the embedding or the head alone.
        int32_t least = s == 0 || s == plan->stages - 1 ? 0 : 1;
        if (plan->layer_begin[s + 1] < plan->layer_begin[s] + least ||
            plan->layer_begin[s + 1] > DP_LAYERS_MAX) {
            return dp_fail(err, DP_INVALID, "plan: stage %d runs layers %d to %d", s,
                           plan->layer_begin[s], plan->layer_begin[s + 1] - 1);
        }
    }
    status = dp_plan_check_replicas(plan, err);
    return status == DP_OK ? check_figures(plan, err) : status;
}

dp_status dp_plan_schedule(const struct dp_plan *plan, struct dp_schedule *ret_schedule,
                           struct dp_error *err)
{
    const struct dp_plan_order order = {plan->microbatches, plan->schedule_hash,
                                        plan->schedule_json};
    return dp_plan_expand(plan, &order, ret_schedule, err);
}
