#include "sample.h"

#include <string.h>

#include "dp/check.h"

static void *make(struct dp_arena *arena, const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = dp_arena_alloc(arena, descriptor->sizeof_message);
    DP_CHECK(message != NULL);
    protobuf_c_message_init(descriptor, message);
    return message;
}

static ProtobufCBinaryData text(const char *content)
{
    return (ProtobufCBinaryData){.len = strlen(content), .data = (uint8_t *)content};
}

// Every field with a value of its own, so that two that are mixed up do not look alike.
static void add_strategy(struct dp_arena *arena, Dp__V1__Plan *plan)
{
    plan->tensor = plan->context = plan->expert_tensor = 1;
    plan->sequence_parallel = 1;
    plan->format = "fp8-block";
    plan->shard = "zero1";
    plan->recompute = "norm+up";
    plan->comm_units = 20;
    plan->imbalance = 1.25;
    plan->mfu_causal = 0.38;
    plan->mfu_noncausal = 0.43;
    plan->baseline_step_s = 0.75;
    plan->baseline_memory_bytes = 5e10;
    plan->ranking_share = 0.04;
    plan->searched = 4096;
    plan->warnings = "extrapolates\n";
    plan->model = "deepseek-v3";
    plan->device = "h800";
    plan->flops_causal = 2.5e11;
    plan->flops_noncausal = 2.75e11;
    plan->search_s = 1.5;
    plan->n_gains = 1;
    plan->gains = dp_arena_alloc(arena, sizeof *plan->gains);
    plan->gains[0] = make(arena, &dp__v1__plan_gain__descriptor);
    plan->gains[0]->resource = "scale-out";
    plan->gains[0]->more_share = 0.1;
    plan->gains[0]->step_s = 0.45;
    plan->n_positions = 2;
    plan->positions = dp_arena_alloc(arena, 2 * sizeof *plan->positions);
    for (uint32_t i = 0; i < 2; i++) {
        Dp__V1__PlanPosition *position = make(arena, &dp__v1__plan_position__descriptor);
        Dp__V1__MemoryParts *memory = make(arena, &dp__v1__memory_parts__descriptor);
        Dp__V1__HeldParameters *held = make(arena, &dp__v1__held_parameters__descriptor);
        double *const seconds[] = {
            &position->forward_s,  &position->backward_s,   &position->input_s,
            &position->weight_s,   &position->overlapped_s, &position->bubble_s,
            &position->gradient_s, &position->optimizer_s,  &position->wait_s,
            &position->exchange_s, &position->compute_s,    &position->memory_at_s,
            &position->hop_s,      &position->hidden_s,     &position->backward_weight_s};
        double *const bytes[] = {
            &memory->weights,     &memory->gradients,      &memory->optimizer,
            &memory->transient,   &memory->activations,    &memory->deferred,
            &memory->exchange,    &memory->runtime,        &held->dense,
            &held->experts,       &held->attention_shapes, &held->shapes,
            &held->largest_dense, &held->largest_experts,  &position->memory_limit_bytes};
        for (size_t k = 0; k < DP_ARRAY_LENGTH(seconds); k++) {
            *seconds[k] = (double)(i + 1) + 0.125 * (double)k;
        }
        for (size_t k = 0; k < DP_ARRAY_LENGTH(bytes); k++) {
            *bytes[k] = 1e9 * (double)(i + 1) + (double)k;
        }
        position->memory = memory;
        position->held = held;
        plan->positions[i] = position;
    }
}

Dp__V1__Plan *sample_plan(struct dp_arena *arena)
{
    static uint32_t layer_begin[] = {0, 2, 5};
    Dp__V1__Plan *plan = make(arena, &dp__v1__plan__descriptor);
    plan->pipeline = plan->data = plan->expert = plan->stages = 2;
    plan->microbatches = 8;
    plan->micro_batch_size = 1;
    plan->schedule = "1f1b";
    plan->schedule_hash = 0xfedcba9876543210u;
    plan->n_layer_begin = 3;
    plan->layer_begin = layer_begin;
    plan->n_ranks = 4;
    plan->ranks = dp_arena_alloc(arena, 4 * sizeof *plan->ranks);
    for (uint32_t i = 0; i < 4; i++) {
        plan->ranks[i] = make(arena, &dp__v1__rank_plan__descriptor);
        plan->ranks[i]->rank = i;
        plan->ranks[i]->node = i < 2 ? "node-a" : "node-b";
        plan->ranks[i]->slot = i % 2;
        plan->ranks[i]->busy_s = 0.25;
    }
    plan->n_replicas = 2;
    plan->replicas = dp_arena_alloc(arena, 2 * sizeof *plan->replicas);
    for (uint32_t i = 0; i < 2; i++) {
        plan->replicas[i] = make(arena, &dp__v1__replica_plan__descriptor);
        plan->replicas[i]->microbatches = 8;
        plan->replicas[i]->schedule_hash = 0xfedcba9876543210u;
    }
    plan->replicas[1]->schedule_json = (ProtobufCBinaryData){2, (uint8_t *)"{}"};
    plan->step_s = 0.5;
    plan->provenance = "calibrated\n";
    plan->explanation = "fits\n";
    plan->n_candidates = 1;
    plan->candidates = dp_arena_alloc(arena, sizeof *plan->candidates);
    plan->candidates[0] = make(arena, &dp__v1__candidate__descriptor);
    plan->candidates[0]->schedule = "gpipe";
    plan->candidates[0]->reason = "slower by 12 %";
    plan->candidates[0]->tensor = 2;
    plan->candidates[0]->context = 4;
    plan->candidates[0]->expert_tensor = 8;
    plan->candidates[0]->recompute = "full";
    plan->candidates[0]->tied = 1;
    plan->candidates[0]->compute_s = 0.125;
    plan->candidates[0]->bubble_s = 0.25;
    plan->candidates[0]->hop_s = 0.375;
    plan->candidates[0]->wait_s = 0.5;
    plan->candidates[0]->exchange_s = 0.625;
    plan->candidates[0]->gradient_s = 0.75;
    plan->candidates[0]->optimizer_s = 0.875;
    plan->candidates[0]->memory_limit_bytes = 8e10;
    plan->candidates[0]->memory_position = 1;
    add_strategy(arena, plan);
    return plan;
}

Dp__V1__Job *sample_job(struct dp_arena *arena)
{
    Dp__V1__Job *job = make(arena, &dp__v1__job__descriptor);
    job->id = "job-17";
    job->name = "tiny";
    job->state = DP__V1__JOB_STATE__JOB_RUNNING;
    job->message = "zażółć\n";
    job->attempt = 1;
    job->submitted_ns = 1785400000000000000;
    job->step = 7;
    job->loss = 2.5;
    job->plan = sample_plan(arena);
    job->n_ranks = 1;
    job->ranks = dp_arena_alloc(arena, sizeof *job->ranks);
    job->ranks[0] = make(arena, &dp__v1__job_rank__descriptor);
    job->ranks[0]->node = "node-a";
    job->ranks[0]->pid = 4711;
    job->ranks[0]->utilisation = make(arena, &dp__v1__utilisation__descriptor);
    job->ranks[0]->utilisation->peak_bytes = 1u << 30;
    job->job_toml = text("[model]\nname = \"tiny\"\n");
    job->loss_known = 1;
    return job;
}

static Dp__V1__Fence *sample_fence(struct dp_arena *arena)
{
    Dp__V1__Fence *fence = make(arena, &dp__v1__fence__descriptor);
    fence->job = "job-17";
    fence->attempt = 1;
    fence->epoch = 3;
    return fence;
}

Dp__V1__AgentMessage *sample_report(struct dp_arena *arena)
{
    static uint64_t tokens[] = {12, 0, 7};
    Dp__V1__StepDone *step = make(arena, &dp__v1__step_done__descriptor);
    step->step = 7;
    step->step_ns = 123456789;
    step->loss_known_case = DP__V1__STEP_DONE__LOSS_KNOWN_LOSS;
    step->loss = 2.25;
    step->n_expert_tokens = 3;
    step->expert_tokens = tokens;
    step->n_spans = 2;
    step->spans = dp_arena_alloc(arena, 2 * sizeof *step->spans);
    for (uint32_t i = 0; i < 2; i++) {
        step->spans[i] = make(arena, &dp__v1__span__descriptor);
        step->spans[i]->kind = i == 0 ? 4 : 16;
        step->spans[i]->microbatch = i;
        step->spans[i]->start_ns = 1785400000000000000 + i;
        step->spans[i]->duration_ns = 1000;
    }
    Dp__V1__RankReport *report = make(arena, &dp__v1__rank_report__descriptor);
    report->fence = sample_fence(arena);
    report->rank = 3;
    report->report_case = DP__V1__RANK_REPORT__REPORT_STEP;
    report->step = step;
    Dp__V1__AgentMessage *message = make(arena, &dp__v1__agent_message__descriptor);
    message->message_case = DP__V1__AGENT_MESSAGE__MESSAGE_REPORT;
    message->report = report;
    return message;
}

Dp__V1__ControllerMessage *sample_prepare(struct dp_arena *arena)
{
    static uint32_t ranks[] = {2, 3};
    Dp__V1__Prepare *prepare = make(arena, &dp__v1__prepare__descriptor);
    prepare->fence = sample_fence(arena);
    prepare->n_ranks = 2;
    prepare->ranks = ranks;
    prepare->plan = sample_plan(arena);
    prepare->token = 1;
    prepare->device = "cpu";
    prepare->job_toml = text("[model]\n");
    Dp__V1__ControllerMessage *message = make(arena, &dp__v1__controller_message__descriptor);
    message->message_case = DP__V1__CONTROLLER_MESSAGE__MESSAGE_PREPARE;
    message->prepare = prepare;
    return message;
}
