#include "plan_strategy.h"

#include "dp/alloc.h"
#include "dp/check.h"

void *dp_wire_must_alloc(struct dp_arena *arena, size_t bytes)
{
    void *memory = dp_arena_alloc(arena, bytes);
    DP_CHECK(memory != NULL);
    return memory;
}

static dp_status take_recompute(const char *text, uint32_t *ret_recompute, struct dp_error *err)
{
    *ret_recompute = 0;
    return text[0] == '\0' ? DP_OK : dp_recompute_parse(text, ret_recompute, err);
}

static char *recompute_text(uint32_t recompute, struct dp_arena *arena)
{
    char *text = dp_wire_must_alloc(arena, DP_NAME_MAX);
    dp_recompute_text(recompute, text);
    return text;
}

static void take_position(const Dp__V1__PlanPosition *from, struct dp_plan_position *to)
{
    to->forward_s = from->forward_s;
    to->backward_s = from->backward_s;
    to->input_s = from->input_s;
    to->weight_s = from->weight_s;
    to->backward_weight_s = from->backward_weight_s;
    to->overlapped_s = from->overlapped_s;
    to->bubble_s = from->bubble_s;
    to->gradient_s = from->gradient_s;
    to->optimizer_s = from->optimizer_s;
    to->wait_s = from->wait_s;
    to->exchange_s = from->exchange_s;
    to->compute_s = from->compute_s;
    to->hop_s = from->hop_s;
    to->hidden_s = from->hidden_s;
    to->memory_at_s = from->memory_at_s;
    to->memory_limit_bytes = from->memory_limit_bytes;
    if (from->held != NULL) {
        to->held = (struct dp_unit_parameters){
            .dense = from->held->dense,
            .experts = from->held->experts,
            .attention_shapes = from->held->attention_shapes,
            .shapes = from->held->shapes,
            .largest_dense = from->held->largest_dense,
            .largest_experts = from->held->largest_experts,
        };
    }
    if (from->memory != NULL) {
        to->memory = (struct dp_memory_parts){
            .weights = from->memory->weights,
            .gradients = from->memory->gradients,
            .optimizer = from->memory->optimizer,
            .activations = from->memory->activations,
            .deferred = from->memory->deferred,
            .transient = from->memory->transient,
            .exchange = from->memory->exchange,
            .runtime = from->memory->runtime,
        };
    }
}

static void take_figures(const Dp__V1__Plan *from, struct dp_plan *to)
{
    to->tensor = (int32_t)from->tensor;
    to->context = (int32_t)from->context;
    to->expert_tensor = (int32_t)from->expert_tensor;
    to->sequence_parallel = from->sequence_parallel != 0;
    to->comm_units = (int32_t)from->comm_units;
    to->imbalance = from->imbalance;
    to->mfu_causal = from->mfu_causal;
    to->mfu_noncausal = from->mfu_noncausal;
    to->baseline_step_s = from->baseline_step_s;
    to->baseline_memory_bytes = from->baseline_memory_bytes;
    to->flops_causal = from->flops_causal;
    to->flops_noncausal = from->flops_noncausal;
    to->searched = (int64_t)from->searched;
    to->search_s = from->search_s;
    DP_COPY_TEXT(to->model, from->model);
    DP_COPY_TEXT(to->device, from->device);
    to->warnings = from->warnings[0] == '\0' ? NULL : dp_strdup(from->warnings);
}

static dp_status take_names(const Dp__V1__Plan *from, struct dp_plan *to, struct dp_error *err)
{
    dp_status status = DP_OK;
    if (from->format[0] != '\0') {
        status = dp_format_parse(from->format, &to->format, err);
    }
    if (status == DP_OK && from->shard[0] != '\0') {
        status = dp_shard_parse(from->shard, &to->shard, err);
    }
    if (status == DP_OK) {
        status = take_recompute(from->recompute, &to->recompute, err);
    }
    return status == DP_OK ? DP_OK : dp_fail_in(err, "Plan");
}

dp_status dp_wire_strategy_from_proto(const Dp__V1__Plan *message, struct dp_plan *plan,
                                      struct dp_error *err)
{
    if (message->n_gains > DP_PLAN_GAINS_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "Plan.gains has %zu entries; the limit is %d",
                       message->n_gains, DP_PLAN_GAINS_MAX);
    }
    take_figures(message, plan);
    if (message->n_positions > 0) {
        plan->positions = dp_new_array(struct dp_plan_position, message->n_positions);
    }
    for (size_t i = 0; i < message->n_positions; i++) {
        take_position(message->positions[i], &plan->positions[i]);
    }
    plan->gains_count = (int32_t)message->n_gains;
    for (size_t i = 0; i < message->n_gains; i++) {
        DP_COPY_TEXT(plan->gains[i].resource, message->gains[i]->resource);
        plan->gains[i].more_share = message->gains[i]->more_share;
        plan->gains[i].step_s = message->gains[i]->step_s;
    }
    return take_names(message, plan, err);
}

static Dp__V1__MemoryParts *give_memory(const struct dp_memory_parts *from, struct dp_arena *arena)
{
    Dp__V1__MemoryParts *to = dp_wire_must_alloc(arena, sizeof *to);
    dp__v1__memory_parts__init(to);
    to->weights = from->weights;
    to->gradients = from->gradients;
    to->optimizer = from->optimizer;
    to->activations = from->activations;
    to->deferred = from->deferred;
    to->transient = from->transient;
    to->exchange = from->exchange;
    to->runtime = from->runtime;
    return to;
}

static Dp__V1__HeldParameters *give_held(const struct dp_unit_parameters *from,
                                         struct dp_arena *arena)
{
    Dp__V1__HeldParameters *to = dp_wire_must_alloc(arena, sizeof *to);
    dp__v1__held_parameters__init(to);
    to->dense = from->dense;
    to->experts = from->experts;
    to->attention_shapes = from->attention_shapes;
    to->shapes = from->shapes;
    to->largest_dense = from->largest_dense;
    to->largest_experts = from->largest_experts;
    return to;
}

static Dp__V1__PlanPosition *give_position(const struct dp_plan_position *from,
                                           struct dp_arena *arena)
{
    Dp__V1__PlanPosition *to = dp_wire_must_alloc(arena, sizeof *to);
    dp__v1__plan_position__init(to);
    to->forward_s = from->forward_s;
    to->backward_s = from->backward_s;
    to->input_s = from->input_s;
    to->weight_s = from->weight_s;
    to->backward_weight_s = from->backward_weight_s;
    to->overlapped_s = from->overlapped_s;
    to->bubble_s = from->bubble_s;
    to->gradient_s = from->gradient_s;
    to->optimizer_s = from->optimizer_s;
    to->wait_s = from->wait_s;
    to->exchange_s = from->exchange_s;
    to->compute_s = from->compute_s;
    to->hop_s = from->hop_s;
    to->hidden_s = from->hidden_s;
    to->memory_at_s = from->memory_at_s;
    to->memory_limit_bytes = from->memory_limit_bytes;
    to->held = give_held(&from->held, arena);
    to->memory = give_memory(&from->memory, arena);
    return to;
}

static void give_lists(const struct dp_plan *plan, struct dp_arena *arena, Dp__V1__Plan *message)
{
    size_t positions = plan->positions == NULL ? 0 : (size_t)plan->pipeline;
    message->positions = dp_wire_must_alloc(arena, positions * sizeof *message->positions);
    for (size_t i = 0; i < positions; i++) {
        message->positions[message->n_positions++] = give_position(&plan->positions[i], arena);
    }
    size_t gains = (size_t)plan->gains_count;
    message->gains = dp_wire_must_alloc(arena, gains * sizeof *message->gains);
    for (size_t i = 0; i < gains; i++) {
        Dp__V1__PlanGain *gain = dp_wire_must_alloc(arena, sizeof *gain);
        dp__v1__plan_gain__init(gain);
        gain->resource = (char *)plan->gains[i].resource;
        gain->more_share = plan->gains[i].more_share;
        gain->step_s = plan->gains[i].step_s;
        message->gains[message->n_gains++] = gain;
    }
}

dp_status dp_wire_candidate_from_proto(const Dp__V1__Candidate *from, struct dp_plan_candidate *to,
                                       struct dp_error *err)
{
    to->tensor = (int32_t)from->tensor;
    to->context = (int32_t)from->context;
    to->expert_tensor = (int32_t)from->expert_tensor;
    to->tied = from->tied != 0;
    to->compute_s = from->compute_s;
    to->bubble_s = from->bubble_s;
    to->hop_s = from->hop_s;
    to->wait_s = from->wait_s;
    to->exchange_s = from->exchange_s;
    to->gradient_s = from->gradient_s;
    to->optimizer_s = from->optimizer_s;
    to->memory_limit_bytes = from->memory_limit_bytes;
    to->memory_position = (int32_t)from->memory_position;
    return take_recompute(from->recompute, &to->recompute, err);
}

void dp_wire_candidate_to_proto(const struct dp_plan_candidate *from, struct dp_arena *arena,
                                Dp__V1__Candidate *to)
{
    to->tensor = (uint32_t)from->tensor;
    to->context = (uint32_t)from->context;
    to->expert_tensor = (uint32_t)from->expert_tensor;
    to->tied = from->tied;
    to->compute_s = from->compute_s;
    to->bubble_s = from->bubble_s;
    to->hop_s = from->hop_s;
    to->wait_s = from->wait_s;
    to->exchange_s = from->exchange_s;
    to->gradient_s = from->gradient_s;
    to->optimizer_s = from->optimizer_s;
    to->memory_limit_bytes = from->memory_limit_bytes;
    to->memory_position = (uint32_t)from->memory_position;
    to->recompute = recompute_text(from->recompute, arena);
}

void dp_wire_strategy_to_proto(const struct dp_plan *plan, struct dp_arena *arena,
                               Dp__V1__Plan *message)
{
    message->tensor = (uint32_t)plan->tensor;
    message->context = (uint32_t)plan->context;
    message->expert_tensor = (uint32_t)plan->expert_tensor;
    message->sequence_parallel = plan->sequence_parallel;
    message->format = (char *)dp_format_text(plan->format);
    message->shard = (char *)dp_shard_text(plan->shard);
    message->recompute = recompute_text(plan->recompute, arena);
    message->comm_units = (uint32_t)plan->comm_units;
    message->imbalance = plan->imbalance;
    message->mfu_causal = plan->mfu_causal;
    message->mfu_noncausal = plan->mfu_noncausal;
    message->baseline_step_s = plan->baseline_step_s;
    message->baseline_memory_bytes = plan->baseline_memory_bytes;
    message->flops_causal = plan->flops_causal;
    message->flops_noncausal = plan->flops_noncausal;
    message->searched = (uint64_t)plan->searched;
    message->search_s = plan->search_s;
    message->model = (char *)plan->model;
    message->device = (char *)plan->device;
    message->warnings = plan->warnings == NULL ? (char *)"" : plan->warnings;
    give_lists(plan, arena, message);
}
