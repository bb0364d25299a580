// DISPATCH and COMBINE: where tokens go, and what comes back.
#include <string.h>

#include "dp/check.h"
#include "stage.h"

static struct dp_linear router_linear(const struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_model_spec *model = &chunk->stage->config.model;
    return (struct dp_linear){.offset = chunk->stage->layers[layer].router,
                              .rows = chunk->tokens,
                              .in = model->hidden,
                              .out = model->experts};
}

static struct dp_router router_of(const struct dp_chunk *chunk)
{
    const struct dp_model_spec *model = &chunk->stage->config.model;
    return (struct dp_router){.tokens = chunk->tokens,
                              .sequence = chunk->stage->config.sequence,
                              .experts = model->experts,
                              .top_k = model->top_k};
}

static struct dp_rmsnorm norm_of(const struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_layer_state *state = &chunk->layers[layer];
    return dp_chunk_norm(chunk, chunk->stage->layers[layer].ffn_norm, &state->ffn_x,
                         &state->ffn_rstd);
}

// Fixes each slot's place among the rows, and tells the host how many rows each expert gets.
static dp_status place_slots(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_layer_state *state = &chunk->layers[layer];
    const int32_t experts = stage->config.model.experts;
    void *counts;
    dp_status status = dp_stage_scratch(stage, DP_SCRATCH_SMALL, experts, &counts, err);
    if (status != DP_OK) {
        return status;
    }
    ops->sort_slots(stage->device->stream, dp_chunk_sent_rows(chunk), experts, state->index.memory,
                    counts, state->row_of.memory);
    ops->copy(stage->device->stream, state->sent, counts, (size_t)experts * sizeof(int32_t));
    return ops->stream_sync(stage->device->stream, err);
}

// Norm, router and choice; the routing weights end in scratch.
static dp_status route(struct dp_chunk *chunk, int32_t layer, void *normed, void *weight,
                       struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_stream *stream = stage->device->stream;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    const struct dp_linear linear = router_linear(chunk, layer);
    const struct dp_router router = router_of(chunk);
    ops->rmsnorm_forward(stream, &norm, normed);
    dp_linear_forward(stage, &linear, normed, state->probabilities.memory, false);
    ops->router_forward(stream, &router, state->probabilities.memory, state->index.memory, weight);
    return place_slots(chunk, layer, err);
}

static dp_status take_routing(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_model_spec *model = &chunk->stage->config.model;
    const int64_t tokens = chunk->tokens, rows = dp_chunk_sent_rows(chunk);
    const int64_t index_bytes = rows * (int64_t)sizeof(int32_t);
    dp_slot_move(&chunk->x, &state->ffn_x);
    const struct dp_take takes[] = {
        {&state->ffn_rstd, dp_chunk_real_bytes(chunk, tokens)},
        {&state->probabilities, dp_chunk_real_bytes(chunk, tokens * model->experts)},
        {&state->index, index_bytes},
        {&state->row_of, index_bytes},
        {&state->rows_x, dp_chunk_real_bytes(chunk, rows * model->hidden)},
        {&state->rows_weight, dp_chunk_real_bytes(chunk, rows)},
    };
    return dp_chunk_take(chunk, takes, 6, err);
}

static dp_status dispatch_forward(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_model_spec *model = &stage->config.model;
    const int64_t rows = dp_chunk_sent_rows(chunk);
    void *normed, *weight;
    dp_status status = take_routing(chunk, layer, err);
    if (status == DP_OK) {
        status =
            dp_stage_scratch(stage, DP_SCRATCH_NORMED, chunk->tokens * model->hidden, &normed, err);
    }
    if (status == DP_OK) {
        status = dp_stage_scratch(stage, DP_SCRATCH_WEIGHT, rows, &weight, err);
    }
    if (status == DP_OK) {
        status = route(chunk, layer, normed, weight, err);
    }
    if (status != DP_OK) {
        return status;
    }
    ops->spread_rows(stage->device->stream, rows, model->hidden, model->top_k, state->row_of.memory,
                     normed, state->rows_x.memory);
    ops->spread_rows(stage->device->stream, rows, 1, 1, state->row_of.memory, weight,
                     state->rows_weight.memory);
    status = dp_exchange_begin(chunk, layer, true, &state->rows_x, &state->rows_weight, err);
    dp_exchange_counts_first(chunk, layer);
    return status;
}

static dp_status dispatch_forward_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    return dp_exchange_end(chunk, &state->rows_x, &state->rows_weight, err);
}

static dp_status dispatch_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    return dp_exchange_begin(chunk, layer, false, &state->back_rows, &state->back_weight, err);
}

// The router's part: its logits' gradient takes the place of the probabilities.
static dp_status router_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_stream *stream = stage->device->stream;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear linear = router_linear(chunk, layer);
    const struct dp_router router = router_of(chunk);
    const double aux_scale =
        stage->config.model.aux_loss_weight * stage->config.sequence * chunk->loss_scale;
    const int64_t rows = dp_chunk_sent_rows(chunk);
    void *dweight;
    dp_status status = dp_stage_scratch(stage, DP_SCRATCH_WEIGHT, rows, &dweight, err);
    if (status != DP_OK) {
        return status;
    }
    ops->collect_rows(stream, rows, 1, 1, false, state->row_of.memory, state->back_weight.memory,
                      dweight);
    ops->router_input_grad(stream, &router, aux_scale, state->index.memory, dweight,
                           state->probabilities.memory);
    dp_linear_input_grad(stage, &linear, state->probabilities.memory, state->dnormed.memory, true);
    return DP_OK;
}

static dp_status dispatch_input_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_model_spec *model = &stage->config.model;
    dp_status status = dp_exchange_end(chunk, &state->back_rows, &state->back_weight, err);
    if (status != DP_OK) {
        return status;
    }
    stage->device->ops->collect_rows(stage->device->stream, chunk->tokens, model->hidden,
                                     model->top_k, true, state->row_of.memory,
                                     state->back_rows.memory, state->dnormed.memory);
    status = router_input(chunk, layer, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    status = dp_chunk_residual_grad(chunk, &norm, &state->ffn_dy, state->dnormed.memory,
                                    &state->ffn_dgain, err);
    dp_chunk_drop(chunk, &state->back_rows);
    dp_chunk_drop(chunk, &state->back_weight);
    dp_chunk_drop(chunk, &state->dnormed);
    dp_chunk_drop(chunk, &state->index);
    dp_chunk_drop(chunk, &state->row_of);
    return status;
}

static dp_status dispatch_weight(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear linear = router_linear(chunk, layer);
    // EXPERTS reads ffn_x and ffn_dy in its own weight pass, which comes first.
    DP_CHECK(state->rows_x.memory == NULL);
    void *normed;
    dp_status status =
        dp_stage_scratch(stage, DP_SCRATCH_NORMED, chunk->tokens * linear.in, &normed, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    ops->rmsnorm_again(stage->device->stream, &norm, normed);
    dp_linear_weight_grad(stage, &linear, state->probabilities.memory, normed);
    ops->add(stage->device->stream, linear.in, state->ffn_dgain.memory,
             dp_stage_gradient_at(stage, stage->layers[layer].ffn_norm));
    dp_chunk_drop(chunk, &state->ffn_x);
    dp_chunk_drop(chunk, &state->ffn_rstd);
    dp_chunk_drop(chunk, &state->ffn_dy);
    dp_chunk_drop(chunk, &state->ffn_dgain);
    dp_chunk_drop(chunk, &state->probabilities);
    return DP_OK;
}

const struct dp_component_ops dp_component_dispatch = {
    .name = "dispatch",
    .begin = {dispatch_forward, dispatch_input, dispatch_weight},
    .end = {dispatch_forward_end, dispatch_input_end, NULL},
};

static dp_status combine_forward(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    return dp_exchange_begin(chunk, layer, false, &chunk->layers[layer].back_rows, NULL, err);
}

static dp_status combine_forward_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    dp_status status = dp_exchange_end(chunk, &state->back_rows, NULL, err);
    if (status != DP_OK) {
        return status;
    }
    stage->device->ops->collect_rows(
        stage->device->stream, chunk->tokens, stage->config.model.hidden, stage->config.model.top_k,
        true, state->row_of.memory, state->back_rows.memory, chunk->x.memory);
    dp_chunk_drop(chunk, &state->back_rows);
    return DP_OK;
}

static dp_status combine_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_model_spec *model = &stage->config.model;
    const int64_t rows = dp_chunk_sent_rows(chunk);
    dp_slot_move(&chunk->dx, &state->ffn_dy);
    const struct dp_take take = {&state->rows_dy, dp_chunk_real_bytes(chunk, rows * model->hidden)};
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    if (status != DP_OK) {
        return status;
    }
    stage->device->ops->spread_rows(stage->device->stream, rows, model->hidden, model->top_k,
                                    state->row_of.memory, state->ffn_dy.memory,
                                    state->rows_dy.memory);
    return dp_exchange_begin(chunk, layer, true, &state->rows_dy, NULL, err);
}

static dp_status combine_input_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    return dp_exchange_end(chunk, &chunk->layers[layer].rows_dy, NULL, err);
}

const struct dp_component_ops dp_component_combine = {
    .name = "combine",
    .begin = {combine_forward, combine_input, NULL},
    .end = {combine_forward_end, combine_input_end, NULL},
};
