#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "stage.h"

static const struct dp_component_ops *const component_ops[] = {
    [DP_COMPONENT_EMBEDDING] = &dp_component_embedding,
    [DP_COMPONENT_ATTENTION] = &dp_component_attention,
    [DP_COMPONENT_FFN] = &dp_component_ffn,
    [DP_COMPONENT_DISPATCH] = &dp_component_dispatch,
    [DP_COMPONENT_EXPERTS] = &dp_component_experts,
    [DP_COMPONENT_COMBINE] = &dp_component_combine,
    [DP_COMPONENT_HEAD] = &dp_component_head,
    [DP_COMPONENT_MTP] = &dp_component_mtp,
};

struct dp_chunk *dp_chunk_new(struct dp_stage *stage, int32_t samples, double loss_scale)
{
    DP_CHECK(samples > 0);
    const size_t layers = (size_t)stage->layer_count;
    const size_t experts = (size_t)stage->local_experts;
    struct dp_chunk *chunk = dp_new(struct dp_chunk);
    chunk->stage = stage;
    chunk->samples = samples;
    chunk->tokens = (int64_t)samples * stage->config.sequence;
    chunk->loss_scale = loss_scale;
    chunk->loss_sum = NAN;
    chunk->layers = dp_new_array(struct dp_layer_state, layers);
    chunk->routed = dp_new_array(struct dp_routed, layers);
    chunk->counts = dp_new_array(int32_t, experts * layers);
    for (size_t i = 0; i < layers; i++) {
        chunk->layers[i].counts = chunk->counts + experts * i;
    }
    return chunk;
}

static void drop_layer(struct dp_chunk *chunk, struct dp_layer_state *state)
{
    struct dp_slot *const slots[] = {
        &state->x,           &state->rstd,        &state->qkv,           &state->attended,
        &state->lse,         &state->dy,          &state->dgain,         &state->ffn_x,
        &state->ffn_rstd,    &state->gate_up,     &state->active,        &state->ffn_dy,
        &state->ffn_dgain,   &state->dnormed,     &state->probabilities, &state->index,
        &state->row_of,      &state->rows_x,      &state->rows_weight,   &state->rows_gate_up,
        &state->rows_active, &state->rows_dy,     &state->back_rows,     &state->back_weight,
        &state->sent_rows,   &state->sent_weight, &state->normed,        &state->rows_codes,
        &state->ffn_normed,  &state->kv,          &state->q_latent,      &state->kv_latent,
        &state->q_normed,    &state->kv_normed,   &state->latent_rstd,   &state->dlatent,
        &state->dsink,       &state->gate_logit,  &state->gate_weight,
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(slots); i++) {
        dp_chunk_drop(chunk, slots[i]);
    }
}

void dp_chunk_free(struct dp_chunk *chunk)
{
    if (chunk == NULL) {
        return;
    }
    struct dp_slot *const slots[] = {
        &chunk->token_ids, &chunk->x, &chunk->dx, &chunk->embedding_dy, &chunk->mtp.dhidden,
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(slots); i++) {
        dp_chunk_drop(chunk, slots[i]);
    }
    dp_head_drop(chunk, &chunk->head);
    dp_head_drop(chunk, &chunk->mtp.head);
    dp_mtp_drop(chunk);
    dp_offload_settle(chunk);
    for (int32_t i = 0; i < chunk->stage->layer_count; i++) {
        dp_exchange_release(chunk, i);
        drop_layer(chunk, &chunk->layers[i]);
    }
    DP_CHECK(chunk->live_bytes == 0);
    free(chunk->counts);
    free(chunk->layers);
    free(chunk->routed);
    free(chunk);
}

void dp_chunk_set_tag(struct dp_chunk *chunk, uint64_t tag, uint64_t layer_step)
{
    chunk->tag = tag;
    chunk->layer_step = layer_step;
}

static dp_status set_ids(struct dp_chunk *chunk, struct dp_slot *slot, const int32_t *ids,
                         struct dp_error *err)
{
    const struct dp_stage *stage = chunk->stage;
    for (int64_t i = 0; i < chunk->tokens; i++) {
        if (ids[i] < 0 || ids[i] >= stage->config.model.vocabulary) {
            return dp_fail(err, DP_INVALID,
                           "token %d at position %lld of a micro-batch is outside the vocabulary "
                           "of %d",
                           ids[i], (long long)i, stage->config.model.vocabulary);
        }
    }
    const struct dp_take take = {slot, chunk->tokens * (int64_t)sizeof(int32_t)};
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    if (status == DP_OK) {
        stage->device->ops->copy(stage->device->stream, slot->memory, ids, (size_t)slot->bytes);
    }
    return status;
}

dp_status dp_chunk_set_tokens(struct dp_chunk *chunk, const int32_t *tokens, struct dp_error *err)
{
    return set_ids(chunk, &chunk->token_ids, tokens, err);
}

dp_status dp_chunk_set_targets(struct dp_chunk *chunk, const int32_t *targets, struct dp_error *err)
{
    return set_ids(chunk, &chunk->head.targets, targets, err);
}

size_t dp_chunk_hidden_bytes(const struct dp_chunk *chunk)
{
    return (size_t)dp_chunk_element_bytes(chunk, chunk->tokens * chunk->stage->config.model.hidden);
}

static dp_status make_hidden(struct dp_chunk *chunk, struct dp_slot *slot, void **ret_memory,
                             struct dp_error *err)
{
    const struct dp_take take = {slot, (int64_t)dp_chunk_hidden_bytes(chunk)};
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    if (status == DP_OK) {
        *ret_memory = slot->memory;
    }
    return status;
}

dp_status dp_chunk_make_input(struct dp_chunk *chunk, void **ret_input, struct dp_error *err)
{
    return make_hidden(chunk, &chunk->x, ret_input, err);
}

const void *dp_chunk_output(const struct dp_chunk *chunk)
{
    return chunk->x.memory;
}

void dp_chunk_drop_output(struct dp_chunk *chunk)
{
    dp_chunk_drop(chunk, &chunk->x);
}

dp_status dp_chunk_make_output_grad(struct dp_chunk *chunk, void **ret_grad, struct dp_error *err)
{
    return make_hidden(chunk, &chunk->dx, ret_grad, err);
}

const void *dp_chunk_input_grad(const struct dp_chunk *chunk)
{
    return chunk->dx.memory;
}

void dp_chunk_drop_input_grad(struct dp_chunk *chunk)
{
    dp_chunk_drop(chunk, &chunk->dx);
}

double dp_chunk_loss_sum(const struct dp_chunk *chunk)
{
    return chunk->loss_sum;
}

double dp_chunk_mtp_loss_sum(const struct dp_chunk *chunk)
{
    return chunk->mtp.loss_sum;
}

int64_t dp_chunk_live_bytes(const struct dp_chunk *chunk)
{
    return chunk->live_bytes;
}

const struct dp_routed *dp_chunk_routed(const struct dp_chunk *chunk)
{
    return chunk->routed;
}

static dp_status call(struct dp_chunk *chunk, dp_pass pass, int32_t component, bool end,
                      struct dp_error *err)
{
    const struct dp_component *which = dp_stage_component(chunk->stage, component);
    const struct dp_component_ops *ops = component_ops[which->kind];
    dp_status (*function)(struct dp_chunk *, int32_t, struct dp_error *) =
        end ? ops->end[pass] : ops->begin[pass];
    if (function == NULL) {
        return DP_OK;
    }
    struct dp_stage *stage = chunk->stage;
    stage->failed = DP_OK;
    dp_status status = function(chunk, which->layer - stage->config.layer_begin, err);
    if (status == DP_OK && stage->failed != DP_OK) {
        status = stage->failed;
        *err = stage->failure;
    }
    if (status == DP_OK) {
        return DP_OK;
    }
    return which->layer < 0 ? dp_fail_in(err, "%s", ops->name)
                            : dp_fail_in(err, "%s of layer %d", ops->name, which->layer);
}

static int32_t layer_of(const struct dp_chunk *chunk, int32_t component)
{
    const struct dp_component *which = dp_stage_component(chunk->stage, component);
    return which->layer < 0 ? -1 : which->layer - chunk->stage->config.layer_begin;
}

dp_status dp_chunk_begin(struct dp_chunk *chunk, dp_pass pass, int32_t component,
                         struct dp_error *err)
{
    dp_status status = pass == DP_PASS_INPUT
                           ? dp_offload_input_begin(chunk, layer_of(chunk, component), err)
                           : DP_OK;
    if (status != DP_OK) {
        return dp_fail_in(err, "buffers of component %d from host memory", component);
    }
    return call(chunk, pass, component, false, err);
}

// The component's move in a pass, and the routing that makes it; NULL when it has none.
static struct dp_routing *move_of(const struct dp_chunk *chunk, dp_pass pass, int32_t component,
                                  dp_move *ret_move)
{
    const struct dp_component *which = dp_stage_component(chunk->stage, component);
    const bool is_dispatch = which->kind == DP_COMPONENT_DISPATCH;
    if (pass == DP_PASS_WEIGHT || (!is_dispatch && which->kind != DP_COMPONENT_COMBINE)) {
        return NULL;
    }
    static const dp_move moves[2][2] = {{DP_MOVE_COMBINE, DP_MOVE_COMBINE_INPUT},
                                        {DP_MOVE_DISPATCH, DP_MOVE_DISPATCH_INPUT}};
    *ret_move = moves[is_dispatch][pass == DP_PASS_INPUT];
    return chunk->layers[which->layer - chunk->stage->config.layer_begin].routing;
}

bool dp_chunk_ready(const struct dp_chunk *chunk, dp_pass pass, int32_t component)
{
    dp_move move;
    struct dp_routing *routing = move_of(chunk, pass, component, &move);
    return routing == NULL || chunk->stage->config.exchanger->ready(routing, move);
}

dp_status dp_chunk_end(struct dp_chunk *chunk, dp_pass pass, int32_t component,
                       struct dp_error *err)
{
    dp_status status = call(chunk, pass, component, true, err);
    struct dp_stage *stage = chunk->stage;
    if (status == DP_OK && pass == DP_PASS_FORWARD) {
        status = dp_offload_forward_end(chunk, dp_stage_component(stage, component)->kind,
                                        layer_of(chunk, component),
                                        component == stage->component_count - 1, err);
    }
    stage->peak_bytes =
        stage->live_bytes > stage->peak_bytes ? stage->live_bytes : stage->peak_bytes;
    return status;
}

dp_status dp_chunk_run(struct dp_chunk *chunk, dp_pass pass, int32_t component,
                       struct dp_error *err)
{
    dp_status status = dp_chunk_begin(chunk, pass, component, err);
    return status == DP_OK ? dp_chunk_end(chunk, pass, component, err) : status;
}

dp_status dp_chunk_run_all(struct dp_chunk *chunk, dp_pass pass, struct dp_error *err)
{
    const int32_t count = chunk->stage->component_count;
    for (int32_t i = 0; i < count; i++) {
        int32_t component = pass == DP_PASS_FORWARD ? i : count - 1 - i;
        dp_status status = dp_chunk_run(chunk, pass, component, err);
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}
