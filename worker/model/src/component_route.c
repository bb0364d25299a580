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
        .score = model->router == DP_MODEL_SIGMOID ? DP_ROUTER_SIGMOID : DP_ROUTER_SOFTMAX,
        .raw_weights = model->raw_weights > 0,
        .route_scale = model->route_scale,
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

// Norm and router: what goes to the experts, and the scores.
static void score(struct dp_chunk *chunk, int32_t layer)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    const struct dp_linear linear = router_linear(chunk, layer);
    stage->device->ops->rmsnorm_forward(stage->device->stream, &norm, state->sent_rows.memory);
    dp_linear_forward(stage, &linear, state->sent_rows.memory, state->probabilities.memory, false);
}

static void choose(struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_stage *stage = chunk->stage;
    const struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_router router = router_of(chunk, layer);
    stage->device->ops->router_forward(stage->device->stream, &router, state->probabilities.memory,
                                       state->index.memory, state->sent_weight.memory);
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
    score(chunk, layer);
    choose(chunk, layer);
    const int32_t *index;
    status = dp_chunk_take_choices(chunk, layer, &index, err);
    return status == DP_OK ? dp_exchange_dispatch_begin(chunk, layer, index, err) : status;
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
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear linear = router_linear(chunk, layer);
    // EXPERTS reads ffn_x and ffn_dy in its own weight pass, which comes first.
    DP_CHECK(state->rows_x.memory == NULL);
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    void *normed;
    dp_status status = dp_chunk_norm_again(chunk, &norm, &state->ffn_normed, &normed, err);
    if (status != DP_OK) {
        return status;
    }
    dp_linear_weight_grad(stage, &linear, state->probabilities.memory, normed);
    dp_chunk_gain_grad(chunk, &state->ffn_dgain, stage->layers[layer].ffn_norm);
    dp_chunk_drop(chunk, &state->ffn_x);
    dp_chunk_drop(chunk, &state->ffn_rstd);
    dp_chunk_drop(chunk, &state->ffn_normed);
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

// All but the layer's input and where its rows went.
static void drop_what_comes_again(struct dp_chunk *chunk, struct dp_layer_state *state)
{
    dp_chunk_drop(chunk, &state->ffn_x);
    dp_chunk_drop(chunk, &state->ffn_rstd);
    dp_chunk_drop(chunk, &state->probabilities);
    dp_chunk_drop(chunk, &state->rows_x);
    dp_chunk_drop(chunk, &state->rows_codes);
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
    if (!dp_stage_keeps(stage, DP_RECOMPUTE_FULL)) {
        drop_what_comes_again(chunk, state);
    }
    return DP_OK;
}

// With DP_RECOMPUTE_FULL: what FORWARD had saved of the layer, from its input. The choice of
// experts is kept, so that nobody routes or counts again.
static dp_status restore(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear linear = router_linear(chunk, layer);
    const struct dp_take takes[] = {
        {&state->ffn_rstd, dp_chunk_real_bytes(chunk, chunk->tokens)},
        {&state->probabilities, dp_chunk_real_bytes(chunk, chunk->tokens * linear.out)},
        {&state->sent_rows, (int64_t)dp_chunk_hidden_bytes(chunk)},
    };
    dp_status status = dp_attention_restore(chunk, layer, err);
    if (status == DP_OK) {
        status = dp_chunk_take(chunk, takes, DP_ARRAY_LENGTH(takes), err);
    }
    if (status == DP_OK) {
        score(chunk, layer);
    }
    return status;
}

static dp_status combine_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    dp_slot_move(&chunk->dx, &state->ffn_dy);
    dp_status status = state->ffn_x.memory == NULL ? restore(chunk, layer, err) : DP_OK;
    return status == DP_OK ? dp_exchange_gradient_begin(chunk, layer, err) : status;
}

// What EXPERTS needs of the layer's FORWARD follows the gradients: moves of one routing follow each
// other.
static dp_status combine_input_end(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    dp_status status = dp_exchange_gradient_end(chunk, layer, err);
    if (status == DP_OK && !dp_exchange_has_rows(chunk, layer)) {
        status = dp_exchange_restore_begin(chunk, layer, err);
    }
    return status;
}

const struct dp_component_ops dp_component_combine = {
    .name = "combine",
    .begin = {combine_forward, combine_input, NULL},
    .end = {combine_forward_end, combine_input_end, NULL},
};
