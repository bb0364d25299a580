// ATTENTION: y = x + output(attention(projections(norm(x)))).
#include "attention.h"
#include "dp/check.h"

static const struct dp_projections *projections_of(const struct dp_chunk *chunk)
{
    return chunk->stage->config.model.mla_kv_rank > 0 ? &dp_projections_latent
                                                      : &dp_projections_plain;
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

void dp_chunk_turn(const struct dp_chunk *chunk, void *x, int32_t heads, int64_t stride,
                   int64_t head_stride, bool inverse)
{
    const struct dp_stage *stage = chunk->stage;
    const struct dp_model_spec *model = &stage->config.model;
    const struct dp_rope rope = {.rows = chunk->tokens,
                                 .sequence = stage->config.sequence,
                                 .heads = heads,
                                 .width = dp_stage_turned(stage),
                                 .stride = stride,
                                 .head_stride = head_stride,
                                 .table = stage->rope_table,
                                 .interleaved = model->mla_kv_rank > 0,
                                 .inverse = inverse};
    if (rope.width > 0) {
        stage->device->ops->rope(stage->device->stream, &rope, x);
    }
}

dp_status dp_chunk_add_bias(const struct dp_chunk *chunk, int64_t offset, int64_t width, void *y,
                            struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    const struct dp_rows rows = {.rows = chunk->tokens, .cols = width};
    const size_t bytes = (size_t)chunk->tokens * sizeof(int32_t);
    void *zeros;
    dp_status status = dp_stage_scratch(stage, DP_SCRATCH_ZEROS, bytes, &zeros, err);
    if (status == DP_OK) {
        ops->fill(stage->device->stream, zeros, 0, bytes);
        ops->collect_rows(stage->device->stream, &rows, 1, true, zeros,
                          dp_stage_weight_at(stage, offset), y);
    }
    return status;
}

dp_status dp_chunk_bias_grad(const struct dp_chunk *chunk, int64_t offset, int64_t width,
                             const void *dy, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    const struct dp_rows rows = {.rows = chunk->tokens, .cols = width, .to_kind = DP_OPERAND_REAL};
    const size_t bytes = (size_t)chunk->tokens * sizeof(int32_t);
    void *zeros;
    dp_status status = dp_stage_scratch(stage, DP_SCRATCH_ZEROS, bytes, &zeros, err);
    if (status == DP_OK) {
        ops->fill(stage->device->stream, zeros, 0, bytes);
        ops->add_rows(stage->device->stream, &rows, zeros, dy, dp_stage_gradient_at(stage, offset));
    }
    return status;
}

void dp_chunk_vector_grad(const struct dp_chunk *chunk, const struct dp_slot *dvector, int64_t from,
                          int64_t count, int64_t offset)
{
    const struct dp_stage *stage = chunk->stage;
    stage->device->ops->add(stage->device->stream, count, DP_OPERAND_REAL,
                            dp_real_at(stage, dvector->memory, from), DP_OPERAND_REAL,
                            dp_stage_gradient_at(stage, offset));
}

// Attention over the layer's slots; keys, and queries, may lie in scratch.
static dp_status attention_of(struct dp_chunk *chunk, int32_t layer,
                              struct dp_attention *ret_attention, struct dp_error *err)
{
    const struct dp_stage *stage = chunk->stage;
    const struct dp_model_spec *model = &stage->config.model;
    const struct dp_layer_state *state = &chunk->layers[layer];
    const bool is_latent = model->mla_kv_rank > 0;
    struct dp_attention attention = {
        .samples = chunk->samples,
        .sequence = stage->config.sequence,
        .heads = model->heads,
        .kv_heads = is_latent ? model->heads : model->kv_heads,
        .qk_dim = is_latent ? model->mla_nope_dim + model->mla_rope_dim : model->head_dim,
        .v_dim = stage->q_width / model->heads,
        .scale = stage->attention_scale,
        .window = dp_model_layer_window(model, stage->config.layer_begin + layer),
        .sink = model->sinks > 0 ? dp_stage_master_at(stage, stage->layers[layer].sinks) : NULL,
        .output = state->attended.memory,
        .lse = state->lse.memory};
    dp_status status = projections_of(chunk)->view(chunk, layer, &attention, err);
    if (status == DP_OK) {
        *ret_attention = attention;
    }
    return status;
}

static dp_status take_attended(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    const struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_take takes[] = {
        {&state->attended, dp_chunk_element_bytes(chunk, chunk->tokens * stage->q_width)},
        {&state->lse, dp_chunk_real_bytes(chunk, chunk->tokens * stage->config.model.heads)},
    };
    return dp_chunk_take(chunk, takes, DP_ARRAY_LENGTH(takes), err);
}

// Everything up to the attended rows, from x. A norm that is not kept lies in scratch.
static dp_status attend(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_take take = {&state->rstd, dp_chunk_real_bytes(chunk, chunk->tokens)};
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    if (status == DP_OK) {
        status = take_attended(chunk, layer, err);
    }
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    struct dp_attention attention;
    void *normed;
    status = dp_chunk_norm_forward(chunk, &norm, &state->normed, &normed, err);
    if (status == DP_OK) {
        status = projections_of(chunk)->forward(chunk, layer, normed, err);
    }
    if (status == DP_OK) {
        status = attention_of(chunk, layer, &attention, err);
    }
    if (status == DP_OK) {
        stage->device->ops->attention_forward(stage->device->stream, &attention);
    }
    return status;
}

static bool has_output_bias(const struct dp_chunk *chunk)
{
    return (chunk->stage->config.model.biases & DP_BIAS_OUTPUT) != 0;
}

// y = x + output(attended).
static dp_status join(struct dp_chunk *chunk, int32_t layer, void *y, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear output = output_linear(chunk, layer);
    stage->device->ops->copy(stage->device->stream, y, state->x.memory, (size_t)state->x.bytes);
    dp_linear_forward(stage, &output, state->attended.memory, y, true);
    return has_output_bias(chunk)
               ? dp_chunk_add_bias(chunk, stage->layers[layer].output_bias, output.out, y, err)
               : DP_OK;
}

static void drop_projections(struct dp_chunk *chunk, struct dp_layer_state *state)
{
    struct dp_slot *const slots[] = {&state->qkv,        &state->kv,       &state->q_latent,
                                     &state->kv_latent,  &state->q_normed, &state->kv_normed,
                                     &state->latent_rstd};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(slots); i++) {
        dp_chunk_drop(chunk, slots[i]);
    }
}

static void drop_what_comes_again(struct dp_chunk *chunk, struct dp_layer_state *state)
{
    if (!dp_stage_keeps(chunk->stage, DP_RECOMPUTE_ATTENTION)) {
        dp_chunk_drop(chunk, &state->attended);
        dp_chunk_drop(chunk, &state->lse);
    }
    const bool is_latent = chunk->stage->config.model.mla_kv_rank > 0;
    if (is_latent && !dp_stage_keeps(chunk->stage, DP_RECOMPUTE_UP)) {
        dp_chunk_drop(chunk, &state->kv);
        if (state->q_latent.memory != NULL) {
            dp_chunk_drop(chunk, &state->qkv);
        }
    }
    if (!dp_stage_keeps(chunk->stage, DP_RECOMPUTE_FULL)) {
        dp_chunk_drop(chunk, &state->rstd);
        dp_chunk_drop(chunk, &state->normed);
        drop_projections(chunk, state);
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
        status = join(chunk, layer, chunk->x.memory, err);
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
        status = join(chunk, layer, state->ffn_x.memory, err);
    }
    return status;
}

// What FORWARD has not kept, and attention's view of it.
static dp_status attend_again(struct dp_chunk *chunk, int32_t layer,
                              struct dp_attention *ret_attention, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const bool is_kept = chunk->layers[layer].attended.memory != NULL;
    dp_status status = projections_of(chunk)->again(chunk, layer, err);
    if (status == DP_OK && !is_kept) {
        status = take_attended(chunk, layer, err);
    }
    if (status == DP_OK) {
        status = attention_of(chunk, layer, ret_attention, err);
    }
    if (status == DP_OK && !is_kept) {
        stage->device->ops->attention_forward(stage->device->stream, ret_attention);
    }
    return status;
}

// The gradients of queries, keys and values take their places.
static dp_status attention_grad(struct dp_chunk *chunk, int32_t layer,
                                const struct dp_attention *attention, const void *dattended,
                                struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_layer_state *state = &chunk->layers[layer];
    if (attention->sink != NULL) {
        const struct dp_take take = {&state->dsink, dp_chunk_real_bytes(chunk, attention->heads)};
        dp_status status = dp_chunk_take(chunk, &take, 1, err);
        if (status != DP_OK) {
            return status;
        }
        ops->fill(stage->device->stream, state->dsink.memory, 0, (size_t)state->dsink.bytes);
    }
    ops->attention_input_grad(stage->device->stream, attention, dattended, (void *)attention->q,
                              (void *)attention->k, (void *)attention->v, state->dsink.memory);
    dp_chunk_drop(chunk, &state->lse);
    return DP_OK;
}

static dp_status attention_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear output = output_linear(chunk, layer);
    struct dp_attention attention;
    dp_slot_move(&chunk->dx, &state->dy);
    void *dattended, *dnormed;
    dp_status status = attend_again(chunk, layer, &attention, err);
    if (status == DP_OK) {
        status =
            dp_stage_elements(stage, DP_SCRATCH_WIDE, chunk->tokens * output.in, &dattended, err);
    }
    if (status == DP_OK) {
        status =
            dp_stage_elements(stage, DP_SCRATCH_GRAD, chunk->tokens * output.out, &dnormed, err);
    }
    if (status != DP_OK) {
        return status;
    }
    dp_linear_input_grad(stage, &output, state->dy.memory, dattended, false);
    status = attention_grad(chunk, layer, &attention, dattended, err);
    if (status == DP_OK) {
        status = projections_of(chunk)->input(chunk, layer, &attention, dnormed, err);
    }
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    return dp_chunk_residual_grad(chunk, &norm, &state->dy, dnormed, &state->dgain, err);
}

static dp_status attention_weight(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_layer_tensors *at = &stage->layers[layer];
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct dp_linear output = output_linear(chunk, layer);
    const struct dp_rmsnorm norm = norm_of(chunk, layer);
    void *normed;
    dp_status status = dp_chunk_norm_again(chunk, &norm, &state->normed, &normed, err);
    if (status == DP_OK) {
        status = projections_of(chunk)->weight(chunk, layer, normed, err);
    }
    if (status == DP_OK && has_output_bias(chunk)) {
        status = dp_chunk_bias_grad(chunk, at->output_bias, output.out, state->dy.memory, err);
    }
    if (status != DP_OK) {
        return status;
    }
    dp_linear_weight_grad(stage, &output, state->dy.memory, state->attended.memory);
    dp_chunk_gain_grad(chunk, &state->dgain, at->attention_norm);
    if (state->dsink.memory != NULL) {
        dp_chunk_vector_grad(chunk, &state->dsink, 0, stage->config.model.heads, at->sinks);
    }
    drop_projections(chunk, state);
    struct dp_slot *const slots[] = {&state->x,     &state->rstd,   &state->normed,
                                     &state->dy,    &state->dgain,  &state->attended,
                                     &state->dsink, &state->dlatent};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(slots); i++) {
        dp_chunk_drop(chunk, slots[i]);
    }
    return DP_OK;
}

const struct dp_component_ops dp_component_attention = {
    .name = "attention",
    .begin = {attention_forward, attention_input, attention_weight},
};
