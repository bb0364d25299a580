// FFN: y = x + swiglu(norm(x)), the dense layers' feed-forward.
#include "dp/check.h"
#include "stage.h"

static struct dp_gated gated_of(const struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_layer_tensors *at = &chunk->stage->layers[layer];
    return (struct dp_gated){at->gate_up, at->down, chunk->tokens, chunk->stage->config.model.ffn};
}

static struct dp_rmsnorm norm_of(const struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_layer_state *state = &chunk->layers[layer];
    return dp_chunk_norm(chunk, chunk->stage->layers[layer].ffn_norm, &state->ffn_x,
                         &state->ffn_rstd);
}

static dp_status ffn_forward(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_gated gated = gated_of(chunk, layer);
    dp_slot_move(&chunk->x, &state->ffn_x);
    const struct dp_take takes[] = {
        {&chunk->x, (int64_t)dp_chunk_hidden_bytes(chunk)},
        {&state->ffn_rstd, dp_chunk_real_bytes(chunk, gated.rows)},
        {&state->gate_up, dp_chunk_element_bytes(chunk, gated.rows * 2 * gated.width)},
        {&state->active, dp_chunk_element_bytes(chunk, gated.rows * gated.width)},
    };
    const bool keeps_active = dp_stage_keeps(stage, DP_RECOMPUTE_ACTIVATION);
    dp_status status = dp_chunk_take(chunk, takes, keeps_active ? 4 : 3, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    void *normed;
    status = dp_chunk_norm_forward(chunk, &norm, &state->ffn_normed, &normed, err);
    if (status != DP_OK) {
        return status;
    }
    stage->device->ops->copy(stage->device->stream, chunk->x.memory, state->ffn_x.memory,
                             (size_t)state->ffn_x.bytes);
    status = dp_gated_forward(stage, &gated, normed, NULL, state->gate_up.memory,
                              state->active.memory, chunk->x.memory, true, err);
    if (!dp_stage_keeps(stage, DP_RECOMPUTE_FULL)) {
        dp_chunk_drop(chunk, &state->ffn_x);
        dp_chunk_drop(chunk, &state->ffn_rstd);
        dp_chunk_drop(chunk, &state->gate_up);
    }
    return status;
}

// With DP_RECOMPUTE_FULL: what FORWARD had saved of the layer, from its input.
static dp_status restore(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_gated gated = gated_of(chunk, layer);
    const struct dp_take takes[] = {
        {&state->ffn_rstd, dp_chunk_real_bytes(chunk, gated.rows)},
        {&state->gate_up, dp_chunk_element_bytes(chunk, gated.rows * 2 * gated.width)},
    };
    dp_status status = dp_attention_restore(chunk, layer, err);
    if (status == DP_OK) {
        status = dp_chunk_take(chunk, takes, DP_ARRAY_LENGTH(takes), err);
    }
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    void *normed;
    status = dp_chunk_norm_forward(chunk, &norm, &state->ffn_normed, &normed, err);
    if (status == DP_OK) {
        dp_gated_again(chunk->stage, &gated, normed, state->gate_up.memory);
    }
    return status;
}

static dp_status ffn_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_gated gated = gated_of(chunk, layer);
    dp_slot_move(&chunk->dx, &state->ffn_dy);
    const struct dp_take take = {&state->active,
                                 dp_chunk_element_bytes(chunk, gated.rows * gated.width)};
    void *dnormed;
    dp_status status = state->ffn_x.memory == NULL ? restore(chunk, layer, err) : DP_OK;
    if (status == DP_OK && state->active.memory == NULL) {
        status = dp_chunk_take(chunk, &take, 1, err);
    }
    if (status == DP_OK) {
        status = dp_stage_elements(stage, DP_SCRATCH_GRAD, gated.rows * stage->config.model.hidden,
                                   &dnormed, err);
    }
    if (status == DP_OK) {
        status =
            dp_gated_input_grad(stage, &gated, state->ffn_dy.memory, NULL, state->gate_up.memory,
                                NULL, state->active.memory, dnormed, err);
    }
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    return dp_chunk_residual_grad(chunk, &norm, &state->ffn_dy, dnormed, &state->ffn_dgain, err);
}

static dp_status ffn_weight(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_gated gated = gated_of(chunk, layer);
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    void *normed;
    dp_status status = dp_chunk_norm_again(chunk, &norm, &state->ffn_normed, &normed, err);
    if (status != DP_OK) {
        return status;
    }
    dp_gated_weight_grad(stage, &gated, state->ffn_dy.memory, normed, state->gate_up.memory,
                         state->active.memory);
    dp_chunk_gain_grad(chunk, &state->ffn_dgain, stage->layers[layer].ffn_norm);
    dp_chunk_drop(chunk, &state->ffn_x);
    dp_chunk_drop(chunk, &state->ffn_rstd);
    dp_chunk_drop(chunk, &state->ffn_normed);
    dp_chunk_drop(chunk, &state->gate_up);
    dp_chunk_drop(chunk, &state->active);
    dp_chunk_drop(chunk, &state->ffn_dy);
    dp_chunk_drop(chunk, &state->ffn_dgain);
    return DP_OK;
}

const struct dp_component_ops dp_component_ffn = {
    .name = "ffn",
    .begin = {ffn_forward, ffn_input, ffn_weight},
};
