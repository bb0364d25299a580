// ATTENTION: y = x + output(attention(rope(qkv(norm(x))))).
#include "dp/check.h"
#include "stage.h"

static struct dp_linear qkv_linear(const struct dp_chunk *chunk, int32_t layer)
{
    return (struct dp_linear){.offset = chunk->stage->layers[layer].qkv,
                              .rows = chunk->tokens,
                              .in = chunk->stage->config.model.hidden,
                              .out = chunk->stage->qkv_width};
}

static struct dp_linear output_linear(const struct dp_chunk *chunk, int32_t layer)
{
    return (struct dp_linear){.offset = chunk->stage->layers[layer].output,
                              .rows = chunk->tokens,
                              .in = chunk->stage->q_width,
                              .out = chunk->stage->config.model.hidden};
}

static struct dp_rmsnorm norm_of(const struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_layer_state *state = &chunk->layers[layer];
    return dp_chunk_norm(chunk, chunk->stage->layers[layer].attention_norm, &state->x,
                         &state->rstd);
}

// The first key and value of a row of queries, keys and values.
static void *key_at(const struct dp_chunk *chunk, void *qkv)
{
    return dp_element_at(chunk->stage, qkv, chunk->stage->q_width);
}

static void *value_at(const struct dp_chunk *chunk, void *qkv)
{
    const struct dp_model_spec *model = &chunk->stage->config.model;
    return dp_element_at(chunk->stage, qkv,
                         (int64_t)(model->heads + model->kv_heads) * model->head_dim);
}

static struct dp_attention attention_of(const struct dp_chunk *chunk, int32_t layer)
{
    const struct dp_model_spec *model = &chunk->stage->config.model;
    const struct dp_layer_state *state = &chunk->layers[layer];
    const int64_t width = chunk->stage->qkv_width;
    return (struct dp_attention){.samples = chunk->samples,
                                 .sequence = chunk->stage->config.sequence,
                                 .heads = model->heads,
                                 .kv_heads = model->kv_heads,
                                 .qk_dim = model->head_dim,
                                 .v_dim = model->head_dim,
                                 .q = state->qkv.memory,
                                 .k = key_at(chunk, state->qkv.memory),
                                 .v = value_at(chunk, state->qkv.memory),
                                 .q_stride = width,
                                 .k_stride = width,
                                 .v_stride = width,
                                 .output = state->attended.memory,
                                 .lse = state->lse.memory};
}

// Turns queries and keys, which lie side by side, by their positions or back.
static void turn(const struct dp_chunk *chunk, void *qkv, bool inverse)
{
    const struct dp_stage *stage = chunk->stage;
    const struct dp_model_spec *model = &stage->config.model;
    const struct dp_rope rope = {.rows = chunk->tokens,
                                 .sequence = stage->config.sequence,
                                 .heads = model->heads + model->kv_heads,
                                 .width = model->head_dim,
                                 .stride = stage->qkv_width,
                                 .table = stage->rope_table,
                                 .inverse = inverse};
    stage->device->ops->rope(stage->device->stream, &rope, qkv);
}

// Everything up to the attended rows, from x. A norm that is not kept lies in scratch.
static dp_status attend(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const int64_t tokens = chunk->tokens;
    const struct dp_take takes[] = {
        {&state->rstd, dp_chunk_real_bytes(chunk, tokens)},
        {&state->qkv, dp_chunk_element_bytes(chunk, tokens * stage->qkv_width)},
        {&state->attended, dp_chunk_element_bytes(chunk, tokens * stage->q_width)},
        {&state->lse, dp_chunk_real_bytes(chunk, tokens * stage->config.model.heads)},
    };
    const struct dp_linear qkv = qkv_linear(chunk, layer);
    dp_status status = dp_chunk_take(chunk, takes, DP_ARRAY_LENGTH(takes), err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    void *normed;
    status = dp_chunk_norm_forward(chunk, &norm, &state->normed, &normed, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_attention attention = attention_of(chunk, layer);
    dp_linear_forward(stage, &qkv, normed, state->qkv.memory, false);
    turn(chunk, state->qkv.memory, false);
    stage->device->ops->attention_forward(stage->device->stream, &attention);
    return DP_OK;
}

// y = x + output(attended).
static void join(struct dp_chunk *chunk, int32_t layer, void *y)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear output = output_linear(chunk, layer);
    stage->device->ops->copy(stage->device->stream, y, state->x.memory, (size_t)state->x.bytes);
    dp_linear_forward(stage, &output, state->attended.memory, y, true);
}

static void drop_what_comes_again(struct dp_chunk *chunk, struct dp_layer_state *state)
{
    if (!dp_stage_keeps(chunk->stage, DP_RECOMPUTE_ATTENTION)) {
        dp_chunk_drop(chunk, &state->attended);
        dp_chunk_drop(chunk, &state->lse);
    }
    if (!dp_stage_keeps(chunk->stage, DP_RECOMPUTE_FULL)) {
        dp_chunk_drop(chunk, &state->rstd);
        dp_chunk_drop(chunk, &state->normed);
        dp_chunk_drop(chunk, &state->qkv);
    }
}

static dp_status attention_forward(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    dp_slot_move(&chunk->x, &state->x);
    const struct dp_take take = {&chunk->x, (int64_t)dp_chunk_hidden_bytes(chunk)};
    dp_status status = attend(chunk, layer, err);
    if (status == DP_OK) {
        status = dp_chunk_take(chunk, &take, 1, err);
    }
    if (status == DP_OK) {
        join(chunk, layer, chunk->x.memory);
        drop_what_comes_again(chunk, state);
    }
    return status;
}

dp_status dp_attention_restore(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_take take = {&state->ffn_x, (int64_t)dp_chunk_hidden_bytes(chunk)};
    dp_status status = attend(chunk, layer, err);
    if (status == DP_OK) {
        status = dp_chunk_take(chunk, &take, 1, err);
    }
    if (status == DP_OK) {
        join(chunk, layer, state->ffn_x.memory);
    }
    return status;
}

// The attended rows once more, when FORWARD has not kept them.
static dp_status attend_again(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    if (state->attended.memory != NULL) {
        return DP_OK;
    }
    const struct dp_take takes[] = {
        {&state->attended, dp_chunk_element_bytes(chunk, chunk->tokens * stage->q_width)},
        {&state->lse, dp_chunk_real_bytes(chunk, chunk->tokens * stage->config.model.heads)},
    };
    dp_status status = dp_chunk_take(chunk, takes, DP_ARRAY_LENGTH(takes), err);
    if (status == DP_OK) {
        const struct dp_attention attention = attention_of(chunk, layer);
        stage->device->ops->attention_forward(stage->device->stream, &attention);
    }
    return status;
}

// The gradient of qkv takes the place of qkv.
static void qkv_input(struct dp_chunk *chunk, int32_t layer, const void *dattended)
{
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_attention attention = attention_of(chunk, layer);
    void *qkv = state->qkv.memory;
    chunk->stage->device->ops->attention_input_grad(chunk->stage->device->stream, &attention,
                                                    dattended, qkv, key_at(chunk, qkv),
                                                    value_at(chunk, qkv), NULL);
    turn(chunk, qkv, true);
    dp_chunk_drop(chunk, &state->lse);
}

static dp_status attention_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear qkv = qkv_linear(chunk, layer), output = output_linear(chunk, layer);
    dp_slot_move(&chunk->dx, &state->dy);
    void *dattended, *dnormed;
    dp_status status = attend_again(chunk, layer, err);
    if (status == DP_OK) {
        status =
            dp_stage_elements(stage, DP_SCRATCH_WIDE, chunk->tokens * output.in, &dattended, err);
    }
    if (status == DP_OK) {
        status = dp_stage_elements(stage, DP_SCRATCH_GRAD, chunk->tokens * qkv.in, &dnormed, err);
    }
    if (status != DP_OK) {
        return status;
    }
    dp_linear_input_grad(stage, &output, state->dy.memory, dattended, false);
    qkv_input(chunk, layer, dattended);
    dp_linear_input_grad(stage, &qkv, state->qkv.memory, dnormed, false);
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    return dp_chunk_residual_grad(chunk, &norm, &state->dy, dnormed, &state->dgain, err);
}

static dp_status attention_weight(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear qkv = qkv_linear(chunk, layer), output = output_linear(chunk, layer);
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    void *normed;
    dp_status status = dp_chunk_norm_again(chunk, &norm, &state->normed, &normed, err);
    if (status != DP_OK) {
        return status;
    }
    dp_linear_weight_grad(stage, &qkv, state->qkv.memory, normed);
    dp_linear_weight_grad(stage, &output, state->dy.memory, state->attended.memory);
    dp_chunk_gain_grad(chunk, &state->dgain, stage->layers[layer].attention_norm);
    dp_chunk_drop(chunk, &state->x);
    dp_chunk_drop(chunk, &state->rstd);
    dp_chunk_drop(chunk, &state->normed);
    dp_chunk_drop(chunk, &state->qkv);
    dp_chunk_drop(chunk, &state->attended);
    dp_chunk_drop(chunk, &state->dy);
    dp_chunk_drop(chunk, &state->dgain);
    return DP_OK;
}

const struct dp_component_ops dp_component_attention = {
    .name = "attention",
    .begin = {attention_forward, attention_input, attention_weight},
};
