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
};

struct dp_chunk *dp_chunk_new(struct dp_stage *stage, int32_t samples, double loss_scale)
{
    DP_CHECK(samples > 0);
    const size_t layers = (size_t)stage->layer_count;
    const size_t experts = (size_t)stage->config.model.experts;
    const size_t peers = (size_t)stage->config.ep_size;
    struct dp_chunk *chunk = dp_new(struct dp_chunk);
    chunk->stage = stage;
    chunk->samples = samples;
    chunk->tokens = (int64_t)samples * stage->config.sequence;
    chunk->loss_scale = loss_scale;
    chunk->loss_sum = NAN;
    chunk->layers = dp_new_array(struct dp_layer_state, layers);
    chunk->routed_rows = dp_new_array(int64_t, layers);
    chunk->counts = dp_new_array(int32_t, 2 * experts * layers);
    for (size_t i = 0; i < layers; i++) {
        chunk->layers[i].sent = chunk->counts + 2 * experts * i;
        chunk->layers[i].received = chunk->layers[i].sent + experts;
    }
    chunk->exchange.send_bytes = dp_new_array(size_t, peers);
    chunk->exchange.recv_bytes = dp_new_array(size_t, peers);
    chunk->exchange.cursor = dp_new_array(int64_t, (size_t)stage->local_experts);
    return chunk;
}

static void drop_layer(struct dp_chunk *chunk, struct dp_layer_state *state)
{
    struct dp_slot *const slots[] = {
        &state->x,           &state->rstd,    &state->qkv,           &state->attended,
        &state->lse,         &state->dy,      &state->dgain,         &state->ffn_x,
        &state->ffn_rstd,    &state->gate_up, &state->active,        &state->ffn_dy,
        &state->ffn_dgain,   &state->dnormed, &state->probabilities, &state->index,
        &state->row_of,      &state->rows_x,  &state->rows_weight,   &state->rows_gate_up,
        &state->rows_active, &state->rows_dy, &state->back_rows,     &state->back_weight,
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
        &chunk->token_ids,    &chunk->target_ids,    &chunk->x,
        &chunk->dx,           &chunk->head_x,        &chunk->head_rstd,
        &chunk->logits,       &chunk->lse,           &chunk->head_dgain,
        &chunk->embedding_dy, &chunk->exchange.send, &chunk->exchange.recv,
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(slots); i++) {
        dp_chunk_drop(chunk, slots[i]);
    }
    for (int32_t i = 0; i < chunk->stage->layer_count; i++) {
        drop_layer(chunk, &chunk->layers[i]);
    }
    DP_CHECK(chunk->live_bytes == 0);
    free(chunk->exchange.send_bytes);
    free(chunk->exchange.recv_bytes);
    free(chunk->exchange.cursor);
    free(chunk->counts);
    free(chunk->layers);
    free(chunk->routed_rows);
    free(chunk);
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
    return set_ids(chunk, &chunk->target_ids, targets, err);
}

size_t dp_chunk_hidden_bytes(const struct dp_chunk *chunk)
{
    return (size_t)dp_chunk_real_bytes(chunk, chunk->tokens * chunk->stage->config.model.hidden);
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

int64_t dp_chunk_live_bytes(const struct dp_chunk *chunk)
{
    return chunk->live_bytes;
}

const int64_t *dp_chunk_routed_rows(const struct dp_chunk *chunk)
{
    return chunk->routed_rows;
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
    dp_status status = function(chunk, which->layer - chunk->stage->config.layer_begin, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "%s of layer %d", ops->name, which->layer);
    }
    return DP_OK;
}

dp_status dp_chunk_begin(struct dp_chunk *chunk, dp_pass pass, int32_t component,
                         struct dp_error *err)
{
    return call(chunk, pass, component, false, err);
}

dp_status dp_chunk_end(struct dp_chunk *chunk, dp_pass pass, int32_t component,
                       struct dp_error *err)
{
    dp_status status = call(chunk, pass, component, true, err);
    struct dp_stage *stage = chunk->stage;
    stage->peak_bytes =
        stage->live_bytes > stage->peak_bytes ? stage->live_bytes : stage->peak_bytes;
    return status;
}

dp_status dp_chunk_run(struct dp_chunk *chunk, dp_pass pass, int32_t component,
                       const struct dp_exchanger *exchanger, struct dp_error *err)
{
    dp_status status = dp_chunk_begin(chunk, pass, component, err);
    bool more = true;
    while (status == DP_OK && more) {
        struct dp_exchange exchange;
        status = dp_chunk_exchange(chunk, &exchange, &more, err);
        if (status == DP_OK && more) {
            status = exchanger->exchange(exchanger->context, &exchange, err);
        }
    }
    return status == DP_OK ? dp_chunk_end(chunk, pass, component, err) : status;
}

dp_status dp_chunk_run_all(struct dp_chunk *chunk, dp_pass pass,
                           const struct dp_exchanger *exchanger, struct dp_error *err)
{
    const int32_t count = chunk->stage->component_count;
    for (int32_t i = 0; i < count; i++) {
        int32_t component = pass == DP_PASS_FORWARD ? i : count - 1 - i;
        dp_status status = dp_chunk_run(chunk, pass, component, exchanger, err);
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}
