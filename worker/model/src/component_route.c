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
                              .out = model->experts,
                              .weight_kind = DP_OPERAND_REAL,
                              .y_kind = DP_OPERAND_REAL};
}

static struct dp_router router_of(const struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_model_spec *model = &chunk->stage->config.model;
    const bool is_grouped = model->expert_groups > 1;
    return (struct dp_router){
        .tokens = chunk->tokens,
        .sequence = chunk->stage->config.sequence,
        .experts = model->experts,
        .top_k = model->top_k,
        .groups = is_grouped ? model->expert_groups : 0,
        .top_groups = is_grouped ? model->top_groups : 0,
        .bias = dp_stage_router_bias(chunk->stage, chunk->stage->config.layer_begin + layer)};
}

static struct dp_rmsnorm norm_of(const struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_layer_state *state = &chunk->layers[layer];
    return dp_chunk_norm(chunk, chunk->stage->layers[layer].ffn_norm, &state->ffn_x,
                         &state->ffn_rstd);
}

// Norm, router and choice: what goes to the experts, with its weights.
static void route(struct dp_chunk *chunk, int32_t layer)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_stream *stream = stage->device->stream;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    const struct dp_linear linear = router_linear(chunk, layer);
    const struct dp_router router = router_of(chunk, layer);
    ops->rmsnorm_forward(stream, &norm, state->sent_rows.memory);
    dp_linear_forward(stage, &linear, state->sent_rows.memory, state->probabilities.memory, false);
    ops->router_forward(stream, &router, state->probabilities.memory, state->index.memory,
                        state->sent_weight.memory);
}

static dp_status dispatch_forward(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_model_spec *model = &chunk->stage->config.model;
    const int64_t tokens = chunk->tokens, slots = tokens * model->top_k;
    dp_slot_move(&chunk->x, &state->ffn_x);
    const struct dp_take takes[] = {
        {&state->ffn_rstd, dp_chunk_real_bytes(chunk, tokens)},
        {&state->probabilities, dp_chunk_real_bytes(chunk, tokens * model->experts)},
        {&state->index, slots * (int64_t)sizeof(int32_t)},
        {&state->sent_rows, (int64_t)dp_chunk_hidden_bytes(chunk)},
        {&state->sent_weight, dp_chunk_real_bytes(chunk, slots)},
    };
    dp_status status = dp_chunk_take(chunk, takes, DP_ARRAY_LENGTH(takes), err);
    if (status != DP_OK) {
        return status;
    }
    route(chunk, layer);
    status = dp_chunk_count_choices(chunk, layer, err);
    if (status != DP_OK) {
        return status;
    }
    return dp_exchange_dispatch_begin(chunk, layer, err);
}

static dp_status dispatch_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    return dp_exchange_back_begin(chunk, layer, DP_MOVE_DISPATCH_INPUT, err);
}

// The router's part: its logits' gradient takes their place.
static void router_input(struct dp_chunk *chunk, int32_t layer, const void *dweight)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear linear = router_linear(chunk, layer);
    const struct dp_router router = router_of(chunk, layer);
    const double aux_scale =
        stage->config.model.aux_loss_weight * stage->config.sequence * chunk->loss_scale;
    stage->device->ops->router_input_grad(stage->device->stream, &router, aux_scale,
                                          state->index.memory, dweight,
                                          state->probabilities.memory);
    dp_linear_input_grad(stage, &linear, state->probabilities.memory, state->dnormed.memory, true);
}

// The shared expert has left its part of the gradient in dnormed, or there is none.
static void add_routed_gradient(struct dp_chunk *chunk, int32_t layer, struct dp_slot *routed)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    if (state->dnormed.memory == NULL) {
        dp_slot_move(routed, &state->dnormed);
        return;
    }
    stage->device->ops->add(stage->device->stream, chunk->tokens * stage->config.model.hidden,
                            DP_OPERAND_ELEMENT, routed->memory, DP_OPERAND_ELEMENT,
                            state->dnormed.memory);
    dp_chunk_drop(chunk, routed);
}

static dp_status dispatch_input_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    dp_status status = dp_exchange_back_end(chunk, layer, DP_MOVE_DISPATCH_INPUT, &state->back_rows,
                                            &state->back_weight, err);
    if (status != DP_OK) {
        return status;
    }
    dp_exchange_release(chunk, layer);
    add_routed_gradient(chunk, layer, &state->back_rows);
    router_input(chunk, layer, state->back_weight.memory);
    dp_chunk_drop(chunk, &state->back_weight);
    dp_chunk_drop(chunk, &state->index);
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    status = dp_chunk_residual_grad(chunk, &norm, &state->ffn_dy, state->dnormed.memory,
                                    &state->ffn_dgain, err);
    dp_chunk_drop(chunk, &state->dnormed);
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
        dp_stage_elements(stage, DP_SCRATCH_NORMED, chunk->tokens * linear.in, &normed, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    ops->rmsnorm_again(stage->device->stream, &norm, normed);
    dp_linear_weight_grad(stage, &linear, state->probabilities.memory, normed);
    dp_chunk_gain_grad(chunk, &state->ffn_dgain, stage->layers[layer].ffn_norm);
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
    .end = {dp_exchange_dispatch_end, dispatch_input_end, NULL},
};

static dp_status combine_forward(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    return dp_exchange_back_begin(chunk, layer, DP_MOVE_COMBINE, err);
}

static dp_status combine_forward_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    dp_status status =
        dp_exchange_back_end(chunk, layer, DP_MOVE_COMBINE, &state->back_rows, NULL, err);
    if (status != DP_OK) {
        return status;
    }
    stage->device->ops->add(stage->device->stream, chunk->tokens * stage->config.model.hidden,
                            DP_OPERAND_ELEMENT, state->back_rows.memory, DP_OPERAND_ELEMENT,
                            chunk->x.memory);
    dp_chunk_drop(chunk, &state->back_rows);
    return DP_OK;
}

static dp_status combine_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    dp_slot_move(&chunk->dx, &chunk->layers[layer].ffn_dy);
    return dp_exchange_gradient_begin(chunk, layer, err);
}

const struct dp_component_ops dp_component_combine = {
    .name = "combine",
    .begin = {combine_forward, combine_input, NULL},
    .end = {combine_forward_end, dp_exchange_gradient_end, NULL},
};
