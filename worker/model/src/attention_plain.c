// Queries, keys and values side by side from one product; grouped heads, and norms of each head's
// query and key where the model has them.
#include "attention.h"

static struct dp_linear linear_of(const struct dp_chunk *chunk, int32_t layer)
{
    return (struct dp_linear){.offset = chunk->stage->layers[layer].qkv,
                              .rows = chunk->tokens,
                              .in = chunk->stage->config.model.hidden,
                              .out = chunk->stage->qkv_width};
}

static bool has_norms(const struct dp_chunk *chunk)
{
    return chunk->stage->config.model.qk_norm > 0;
}

static bool has_bias(const struct dp_chunk *chunk)
{
    return (chunk->stage->config.model.biases & DP_BIAS_QKV) != 0;
}

static int64_t query_width(const struct dp_model_spec *model)
{
    return (int64_t)model->heads * model->head_dim;
}

// Queries and keys, which lie side by side.
static int64_t turned_width(const struct dp_model_spec *model)
{
    return (int64_t)(model->heads + model->kv_heads) * model->head_dim;
}

// The norm of the queries, or of the keys, of each row; y rows are `y_stride` wide.
static struct dp_rmsnorm norm_of(const struct dp_chunk *chunk, int32_t layer, bool is_key,
                                 int64_t y_stride)
{
    const struct dp_stage *stage = chunk->stage;
    const struct dp_model_spec *model = &stage->config.model;
    const struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_layer_tensors *at = &stage->layers[layer];
    const int64_t before = is_key ? query_width(model) : 0;
    const int64_t scales_before = is_key ? chunk->tokens * model->heads : 0;
    return (struct dp_rmsnorm){
        .rows = chunk->tokens,
        .cols = model->head_dim,
        .eps = model->norm_eps,
        .x = dp_element_at(stage, state->qkv.memory, before),
        .gain = dp_stage_master_at(stage, is_key ? at->k_norm : at->q_norm),
        .rstd = dp_real_at(stage, state->latent_rstd.memory, scales_before),
        .groups = is_key ? model->kv_heads : model->heads,
        .x_stride = stage->qkv_width,
        .y_stride = y_stride,
    };
}

static void turn(const struct dp_chunk *chunk, void *qk, int64_t stride, bool inverse)
{
    const struct dp_model_spec *model = &chunk->stage->config.model;
    dp_chunk_turn(chunk, qk, model->heads + model->kv_heads, stride, model->head_dim, inverse);
}

static dp_status plain_forward(struct dp_chunk *chunk, int32_t layer, const void *normed,
                               struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_model_spec *model = &stage->config.model;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear linear = linear_of(chunk, layer);
    const struct dp_take takes[] = {
        {&state->qkv, dp_chunk_element_bytes(chunk, chunk->tokens * stage->qkv_width)},
        {&state->latent_rstd,
         dp_chunk_real_bytes(chunk, chunk->tokens * (model->heads + model->kv_heads))},
    };
    dp_status status = dp_chunk_take(chunk, takes, has_norms(chunk) ? 2 : 1, err);
    if (status != DP_OK) {
        return status;
    }
    dp_linear_forward(stage, &linear, normed, state->qkv.memory, false);
    if (has_bias(chunk)) {
        status = dp_chunk_add_bias(chunk, stage->layers[layer].qkv_bias, linear.out,
                                   state->qkv.memory, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (!has_norms(chunk)) {
        turn(chunk, state->qkv.memory, stage->qkv_width, false);
    }
    return DP_OK;
}

// Normed and turned queries and keys in scratch.
static dp_status norm_and_turn(struct dp_chunk *chunk, int32_t layer, void **ret_qk,
                               struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    const struct dp_model_spec *model = &stage->config.model;
    const int64_t width = turned_width(model);
    dp_status status =
        dp_stage_elements(stage, DP_SCRATCH_KEYS, chunk->tokens * width, ret_qk, err);
    if (status != DP_OK) {
        return status;
    }
    for (int is_key = 0; is_key < 2; is_key++) {
        const struct dp_rmsnorm norm = norm_of(chunk, layer, is_key, width);
        ops->rmsnorm_forward(stage->device->stream, &norm,
                             dp_element_at(stage, *ret_qk, is_key ? query_width(model) : 0));
    }
    turn(chunk, *ret_qk, width, false);
    return DP_OK;
}

static dp_status plain_view(struct dp_chunk *chunk, int32_t layer, struct dp_attention *attention,
                            struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_model_spec *model = &stage->config.model;
    void *qkv = chunk->layers[layer].qkv.memory, *qk = qkv;
    if (has_norms(chunk)) {
        dp_status status = norm_and_turn(chunk, layer, &qk, err);
        if (status != DP_OK) {
            return status;
        }
        attention->q_stride = attention->k_stride = turned_width(model);
    } else {
        attention->q_stride = attention->k_stride = stage->qkv_width;
    }
    attention->v_stride = stage->qkv_width;
    attention->q = qk;
    attention->k = dp_element_at(stage, qk, query_width(model));
    attention->v = dp_element_at(stage, qkv, turned_width(model));
    return DP_OK;
}

// From the gradients of normed queries and keys to those before the norms, in place of these.
static dp_status norms_input(struct dp_chunk *chunk, int32_t layer, void *dqk, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    const struct dp_model_spec *model = &stage->config.model;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_take take = {&state->dlatent, dp_chunk_real_bytes(chunk, 2 * model->head_dim)};
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    if (status != DP_OK) {
        return status;
    }
    ops->fill(stage->device->stream, state->dlatent.memory, 0, (size_t)state->dlatent.bytes);
    for (int is_key = 0; is_key < 2; is_key++) {
        struct dp_rmsnorm norm = norm_of(chunk, layer, is_key, turned_width(model));
        const int64_t before = is_key ? query_width(model) : 0;
        const void *dy = dp_element_at(stage, dqk, before);
        norm.replace = true;
        ops->rmsnorm_weight_grad(
            stage->device->stream, &norm, dy,
            dp_real_at(stage, state->dlatent.memory, is_key * (int64_t)model->head_dim));
        ops->rmsnorm_input_grad(stage->device->stream, &norm, dy,
                                dp_element_at(stage, state->qkv.memory, before));
    }
    return DP_OK;
}

static dp_status plain_input(struct dp_chunk *chunk, int32_t layer,
                             const struct dp_attention *attention, void *dnormed,
                             struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_linear linear = linear_of(chunk, layer);
    void *dqk = (void *)attention->q;
    turn(chunk, dqk, attention->q_stride, true);
    dp_status status = has_norms(chunk) ? norms_input(chunk, layer, dqk, err) : DP_OK;
    if (status == DP_OK) {
        dp_linear_input_grad(stage, &linear, chunk->layers[layer].qkv.memory, dnormed, false);
    }
    return status;
}

static dp_status plain_weight(struct dp_chunk *chunk, int32_t layer, const void *normed,
                              struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_layer_tensors *at = &stage->layers[layer];
    const struct dp_model_spec *model = &stage->config.model;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear linear = linear_of(chunk, layer);
    dp_linear_weight_grad(stage, &linear, state->qkv.memory, normed);
    if (has_norms(chunk)) {
        dp_chunk_vector_grad(chunk, &state->dlatent, 0, model->head_dim, at->q_norm);
        dp_chunk_vector_grad(chunk, &state->dlatent, model->head_dim, model->head_dim, at->k_norm);
    }
    return has_bias(chunk)
               ? dp_chunk_bias_grad(chunk, at->qkv_bias, linear.out, state->qkv.memory, err)
               : DP_OK;
}

static dp_status plain_again(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)chunk;
    (void)layer;
    (void)err;
    return DP_OK;
}

const struct dp_projections dp_projections_plain = {
    plain_forward, plain_again, plain_view, plain_input, plain_weight,
};
