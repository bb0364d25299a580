// Plans and spans between their wire form and the plain structs.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/plan_survival.h"
#include "dp/wire.h"
#include "plan_strategy.h"

static uint32_t at_least_1(uint32_t size)
{
    return size > 1 ? size : 1;
}

static dp_status check_document(const ProtobufCBinaryData *json, struct dp_error *err)
{
    return json->len > 0 && memchr(json->data, '\0', json->len) != NULL
               ? dp_fail(err, DP_INVALID, "Plan.schedule_json holds a zero byte")
               : DP_OK;
}

// NULL for none.
static char *take_document(const ProtobufCBinaryData *json)
{
    return json->len == 0 ? NULL : dp_strndup((const char *)json->data, json->len);
}

static ProtobufCBinaryData give_document(char *text)
{
    return text == NULL ? (ProtobufCBinaryData){0}
                        : (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
}

static dp_status check_shape(const Dp__V1__Plan *message, struct dp_error *err)
{
    // Each factor is within limits.h, so four of them fit into 64 bits.
    uint64_t shards = (uint64_t)at_least_1(message->tensor) * at_least_1(message->context);
    uint64_t world = (uint64_t)message->pipeline * message->data * shards;
    if (world == 0 || world > DP_RANKS_MAX || message->n_ranks != world) {
        return dp_fail(err, DP_INVALID, "Plan.ranks has %zu entries for %u x %llu ranks",
                       message->n_ranks, message->pipeline,
                       (unsigned long long)(message->data * shards));
    }
    if (message->n_positions != 0 && message->n_positions != message->pipeline) {
        return dp_fail(err, DP_INVALID, "Plan.positions has %zu entries for a pipeline of %u",
                       message->n_positions, message->pipeline);
    }
    if (message->stages == 0 || message->stages > DP_STAGES_MAX ||
        message->n_layer_begin != (size_t)message->stages + 1) {
        return dp_fail(err, DP_INVALID,
                       "Plan.layer_begin has %zu entries for %u stages; it needs one more than "
                       "stages",
                       message->n_layer_begin, message->stages);
    }
    for (size_t i = 0; i < message->n_ranks; i++) {
        if (message->ranks[i]->rank != i) {
            return dp_fail(err, DP_INVALID, "Plan.ranks[%zu] is rank %u: they must be in order", i,
                           message->ranks[i]->rank);
        }
    }
    if (message->n_replicas != 0 && message->n_replicas != message->data) {
        return dp_fail(err, DP_INVALID, "Plan.replicas has %zu entries for %u replicas",
                       message->n_replicas, message->data);
    }
    dp_status status = check_document(&message->schedule_json, err);
    for (size_t d = 0; d < message->n_replicas && status == DP_OK; d++) {
        status = check_document(&message->replicas[d]->schedule_json, err);
    }
    return status;
}

static void take_rank(const Dp__V1__RankPlan *from, struct dp_plan_rank *to)
{
    DP_COPY_TEXT(to->node, from->node);
    to->slot = (int32_t)from->slot;
    to->busy_s = from->busy_s;
    to->bubble_s = from->bubble_s;
    to->peak_chunks = (int32_t)from->peak_chunks;
    to->peak_activation_bytes = from->peak_activation_bytes;
    to->memory_bytes = from->memory_bytes;
}

static dp_status take_candidate(const Dp__V1__Candidate *from, struct dp_plan_candidate *to,
                                struct dp_error *err)
{
    to->pipeline = (int32_t)from->pipeline;
    to->expert = (int32_t)from->expert;
    to->data = (int32_t)from->data;
    to->microbatches = (int32_t)from->microbatches;
    to->micro_batch_size = (int32_t)from->micro_batch_size;
    DP_COPY_TEXT(to->schedule, from->schedule);
    to->virtual_stages = (int32_t)from->virtual_stages;
    to->legal = from->legal != 0;
    to->chosen = from->chosen != 0;
    to->step_s = from->step_s;
    to->memory_max_bytes = from->memory_max_bytes;
    to->reason = dp_strdup(from->reason);
    return dp_wire_candidate_from_proto(from, to, err);
}

static void take_sizes(const Dp__V1__Plan *from, struct dp_plan *to)
{
    to->pipeline = (int32_t)from->pipeline;
    to->expert = (int32_t)from->expert;
    to->data = (int32_t)from->data;
    to->microbatches = (int32_t)from->microbatches;
    to->micro_batch_size = (int32_t)from->micro_batch_size;
    DP_COPY_TEXT(to->schedule, from->schedule);
    to->virtual_stages = (int32_t)from->virtual_stages;
    to->schedule_hash = from->schedule_hash;
    to->stages = (int32_t)from->stages;
    to->step_s = from->step_s;
    to->compute_s = from->compute_s;
    to->bubble_s = from->bubble_s;
    to->comm_s = from->comm_s;
    to->grad_sync_s = from->grad_sync_s;
    to->optimizer_s = from->optimizer_s;
    to->tokens_per_s = from->tokens_per_s;
    to->error_share = from->error_share;
    to->ranking_share = from->ranking_share;
    to->cores_exceeded = from->cores_exceeded != 0;
}

static dp_status take_lists(const Dp__V1__Plan *from, struct dp_plan *to, struct dp_error *err)
{
    to->layer_begin = dp_new_array(int32_t, from->n_layer_begin);
    for (size_t i = 0; i < from->n_layer_begin; i++) {
        to->layer_begin[i] = (int32_t)from->layer_begin[i];
    }
    to->ranks = dp_new_array(struct dp_plan_rank, from->n_ranks);
    for (size_t i = 0; i < from->n_ranks; i++) {
        take_rank(from->ranks[i], &to->ranks[i]);
    }
    to->candidates = dp_new_array(struct dp_plan_candidate, from->n_candidates);
    to->candidates_count = from->n_candidates;
    dp_status status = DP_OK;
    for (size_t i = 0; i < from->n_candidates && status == DP_OK; i++) {
        status = take_candidate(from->candidates[i], &to->candidates[i], err);
    }
    return status;
}

static void take_replicas(const Dp__V1__Plan *from, struct dp_plan *to)
{
    if (from->n_replicas > 0) {
        to->replicas = dp_new_array(struct dp_plan_replica, from->n_replicas);
    }
    for (size_t d = 0; d < from->n_replicas; d++) {
        to->replicas[d].microbatches = (int32_t)from->replicas[d]->microbatches;
        to->replicas[d].schedule_hash = from->replicas[d]->schedule_hash;
        to->replicas[d].schedule_json = take_document(&from->replicas[d]->schedule_json);
    }
}

dp_status dp_wire_plan_from_proto(const Dp__V1__Plan *message, struct dp_plan *ret_plan,
                                  struct dp_error *err)
{
    dp_status status = check_shape(message, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_plan plan = {0};
    take_sizes(message, &plan);
    plan.provenance = dp_strdup(message->provenance);
    plan.explanation = dp_strdup(message->explanation);
    plan.schedule_json = take_document(&message->schedule_json);
    take_replicas(message, &plan);
    status = take_lists(message, &plan, err);
    if (status == DP_OK) {
        status = dp_wire_strategy_from_proto(message, &plan, err);
    }
    if (status == DP_OK) {
        status = dp_plan_check(&plan, err);
    }
    if (status != DP_OK) {
        dp_plan_deinit(&plan);
        return status;
    }
    *ret_plan = plan;
    return DP_OK;
}

static void give_ranks(const struct dp_plan *plan, struct dp_arena *arena, Dp__V1__Plan *message)
{
    size_t count = (size_t)dp_plan_world(plan);
    Dp__V1__RankPlan *ranks = dp_wire_must_alloc(arena, count * sizeof *ranks);
    message->ranks = dp_wire_must_alloc(arena, count * sizeof *message->ranks);
    message->n_ranks = count;
    for (size_t i = 0; i < count; i++) {
        const struct dp_plan_rank *from = &plan->ranks[i];
        dp__v1__rank_plan__init(&ranks[i]);
        ranks[i].rank = (uint32_t)i;
        ranks[i].node = (char *)from->node;
        ranks[i].slot = (uint32_t)from->slot;
        ranks[i].busy_s = from->busy_s;
        ranks[i].bubble_s = from->bubble_s;
        ranks[i].peak_chunks = (uint32_t)from->peak_chunks;
        ranks[i].peak_activation_bytes = from->peak_activation_bytes;
        ranks[i].memory_bytes = from->memory_bytes;
        message->ranks[i] = &ranks[i];
    }
}

static void give_replicas(const struct dp_plan *plan, struct dp_arena *arena,
                          Dp__V1__Plan *message)
{
    size_t count = plan->replicas == NULL ? 0 : (size_t)plan->data;
    Dp__V1__ReplicaPlan *replicas = dp_wire_must_alloc(arena, count * sizeof *replicas);
    message->replicas = dp_wire_must_alloc(arena, count * sizeof *message->replicas);
    message->n_replicas = count;
    for (size_t d = 0; d < count; d++) {
        dp__v1__replica_plan__init(&replicas[d]);
        replicas[d].microbatches = (uint32_t)plan->replicas[d].microbatches;
        replicas[d].schedule_hash = plan->replicas[d].schedule_hash;
        replicas[d].schedule_json = give_document(plan->replicas[d].schedule_json);
        message->replicas[d] = &replicas[d];
    }
}

// Nothing where this build does not know the plan's order.
static void give_survival(const struct dp_plan *plan, struct dp_arena *arena,
                          Dp__V1__Plan *message)
{
    struct dp_plan_survival survival;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (dp_plan_survival_of(plan, &survival, NULL) != DP_OK) {
        return;
    }
    dp_plan_survival_text(plan, &survival, &text);
    Dp__V1__Survival *given = dp_wire_must_alloc(arena, sizeof *given);
    dp__v1__survival__init(given);
    given->ranks = (uint32_t)survival.ranks;
    given->nodes = (uint32_t)survival.nodes;
    given->message = dp_wire_must_alloc(arena, text.length + 1);
    memcpy(given->message, text.bytes, text.length);
    message->survival = given;
}

static void give_candidates(const struct dp_plan *plan, struct dp_arena *arena,
                            Dp__V1__Plan *message)
{
    size_t count = plan->candidates_count;
    Dp__V1__Candidate *candidates = dp_wire_must_alloc(arena, count * sizeof *candidates);
    message->candidates = dp_wire_must_alloc(arena, count * sizeof *message->candidates);
    message->n_candidates = count;
    for (size_t i = 0; i < count; i++) {
        const struct dp_plan_candidate *from = &plan->candidates[i];
        dp__v1__candidate__init(&candidates[i]);
        candidates[i].pipeline = (uint32_t)from->pipeline;
        candidates[i].expert = (uint32_t)from->expert;
        candidates[i].data = (uint32_t)from->data;
        candidates[i].microbatches = (uint32_t)from->microbatches;
        candidates[i].micro_batch_size = (uint32_t)from->micro_batch_size;
        candidates[i].schedule = (char *)from->schedule;
        candidates[i].virtual_stages = (uint32_t)from->virtual_stages;
        candidates[i].legal = from->legal;
        candidates[i].chosen = from->chosen;
        candidates[i].step_s = from->step_s;
        candidates[i].memory_max_bytes = from->memory_max_bytes;
        candidates[i].reason = from->reason == NULL ? (char *)"" : from->reason;
        dp_wire_candidate_to_proto(from, arena, &candidates[i]);
        message->candidates[i] = &candidates[i];
    }
}

static void give_sizes(const struct dp_plan *plan, Dp__V1__Plan *message)
{
    message->pipeline = (uint32_t)plan->pipeline;
    message->expert = (uint32_t)plan->expert;
    message->data = (uint32_t)plan->data;
    message->microbatches = (uint32_t)plan->microbatches;
    message->micro_batch_size = (uint32_t)plan->micro_batch_size;
    message->schedule = (char *)plan->schedule;
    message->virtual_stages = (uint32_t)plan->virtual_stages;
    message->schedule_hash = plan->schedule_hash;
    message->stages = (uint32_t)plan->stages;
    message->step_s = plan->step_s;
    message->compute_s = plan->compute_s;
    message->bubble_s = plan->bubble_s;
    message->comm_s = plan->comm_s;
    message->grad_sync_s = plan->grad_sync_s;
    message->optimizer_s = plan->optimizer_s;
    message->tokens_per_s = plan->tokens_per_s;
    message->error_share = plan->error_share;
    message->ranking_share = plan->ranking_share;
    message->cores_exceeded = plan->cores_exceeded;
}

Dp__V1__Plan *dp_wire_plan_to_proto(const struct dp_plan *plan, struct dp_arena *arena)
{
    Dp__V1__Plan *message = dp_wire_must_alloc(arena, sizeof *message);
    dp__v1__plan__init(message);
    give_sizes(plan, message);
    give_ranks(plan, arena, message);
    give_candidates(plan, arena, message);
    dp_wire_strategy_to_proto(plan, arena, message);
    message->provenance = plan->provenance;
    message->explanation = plan->explanation;
    message->n_layer_begin = (size_t)plan->stages + 1;
    message->layer_begin = dp_wire_must_alloc(arena, message->n_layer_begin * sizeof(uint32_t));
    for (size_t i = 0; i < message->n_layer_begin; i++) {
        message->layer_begin[i] = (uint32_t)plan->layer_begin[i];
    }
    message->schedule_json = give_document(plan->schedule_json);
    give_replicas(plan, arena, message);
    give_survival(plan, arena, message);
    return message;
}

// Kinds beyond the actions have their own numbers on the wire, which stay when actions are added.
static const struct {
    uint32_t wire;
    uint8_t kind;
} span_kinds[] = {
    {16, DP_SPAN_GRADIENT_SYNC},
    {DP_WIRE_KIND_OPTIMIZER, DP_SPAN_OPTIMIZER},
    {18, DP_SPAN_WAIT},
    {19, DP_SPAN_OTHER},
};

void dp_wire_span_from_proto(const Dp__V1__Span *message, int32_t pipeline, int64_t step,
                             struct dp_action_span *ret_span)
{
    *ret_span = (struct dp_action_span){
        .rank = (int32_t)message->rank % pipeline,
        .replica = (int32_t)message->rank / pipeline,
        .kind = (uint8_t)message->kind,
        .b_kind = (uint8_t)message->b_kind,
        .stage = (uint16_t)message->stage,
        .microbatch = message->microbatch,
        .b_stage = (uint16_t)message->b_stage,
        .b_microbatch = message->b_microbatch,
        .step = step,
        .start_ns = message->start_ns,
        .end_ns = message->start_ns + message->duration_ns,
        .own_ns = message->own_ns,
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(span_kinds); i++) {
        if (span_kinds[i].wire == message->kind) {
            ret_span->kind = span_kinds[i].kind;
        }
    }
}

void dp_wire_span_to_proto(const struct dp_action_span *span, int32_t pipeline,
                           Dp__V1__Span *ret_message)
{
    dp__v1__span__init(ret_message);
    ret_message->rank = (uint32_t)(span->replica * pipeline + span->rank);
    ret_message->kind = span->kind;
    ret_message->b_kind = span->b_kind;
    ret_message->stage = span->stage;
    ret_message->microbatch = span->microbatch;
    ret_message->b_stage = span->b_stage;
    ret_message->b_microbatch = span->b_microbatch;
    ret_message->start_ns = span->start_ns;
    ret_message->duration_ns = span->end_ns - span->start_ns;
    ret_message->own_ns = span->own_ns;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(span_kinds); i++) {
        if (span_kinds[i].kind == span->kind) {
            ret_message->kind = span_kinds[i].wire;
        }
    }
}
