// EMBEDDING and HEAD: where tokens come in and where the loss comes out.
#include "dp/check.h"
#include "stage.h"

static dp_status embedding_forward(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)layer;
    struct dp_stage *stage = chunk->stage;
    DP_CHECK(chunk->token_ids.memory != NULL);
    const struct dp_take take = {&chunk->x, (int64_t)dp_chunk_hidden_bytes(chunk)};
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rows rows = {.rows = chunk->tokens, .cols = stage->config.model.hidden};
    stage->device->ops->collect_rows(stage->device->stream, &rows, 1, false,
                                     chunk->token_ids.memory,
                                     dp_stage_weight_at(stage, stage->embedding), chunk->x.memory);
    return DP_OK;
}

static dp_status embedding_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)layer;
    (void)err;
    dp_slot_move(&chunk->dx, &chunk->embedding_dy);
    return DP_OK;
}

static dp_status embedding_weight(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)layer;
    (void)err;
    struct dp_stage *stage = chunk->stage;
    DP_CHECK(chunk->embedding_dy.memory != NULL);
    const struct dp_rows rows = {
        .rows = chunk->tokens, .cols = stage->config.model.hidden, .to_kind = DP_OPERAND_REAL};
    stage->device->ops->add_rows(stage->device->stream, &rows, chunk->token_ids.memory,
                                 chunk->embedding_dy.memory,
                                 dp_stage_gradient_at(stage, stage->embedding));
    dp_chunk_drop(chunk, &chunk->embedding_dy);
    dp_chunk_drop(chunk, &chunk->token_ids);
    return DP_OK;
}

const struct dp_component_ops dp_component_embedding = {
    .name = "embedding",
    .begin = {embedding_forward, embedding_input, embedding_weight},
};

static struct dp_linear head_linear(const struct dp_chunk *chunk)
{
    const struct dp_model_spec *model = &chunk->stage->config.model;
    return (struct dp_linear){.offset = chunk->stage->head_output,
                              .rows = chunk->tokens,
                              .in = model->hidden,
                              .out = model->vocabulary,
                              .y_kind = DP_OPERAND_REAL};
}

static struct dp_rmsnorm head_norm(const struct dp_chunk *chunk)
{
    return dp_chunk_norm(chunk, chunk->stage->head_norm, &chunk->head_x, &chunk->head_rstd);
}

static struct dp_cross_entropy head_loss(const struct dp_chunk *chunk)
{
    return (struct dp_cross_entropy){.tokens = chunk->tokens,
                                     .vocabulary = chunk->stage->config.model.vocabulary,
                                     .targets = chunk->target_ids.memory,
                                     .lse = chunk->lse.memory};
}

static dp_status head_forward(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)layer;
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_stream *stream = stage->device->stream;
    const struct dp_linear linear = head_linear(chunk);
    const int64_t tokens = chunk->tokens;
    DP_CHECK(chunk->target_ids.memory != NULL);
    dp_slot_move(&chunk->x, &chunk->head_x);
    const struct dp_take takes[] = {
        {&chunk->head_rstd, dp_chunk_real_bytes(chunk, tokens)},
        {&chunk->lse, dp_chunk_real_bytes(chunk, tokens)},
        {&chunk->logits, dp_chunk_real_bytes(chunk, tokens * linear.out)},
    };
    void *normed, *sum;
    dp_status status = dp_chunk_take(chunk, takes, 3, err);
    if (status == DP_OK) {
        status = dp_stage_scratch(stage, DP_SCRATCH_SMALL, sizeof(double), &sum, err);
    }
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rmsnorm norm = head_norm(chunk);
    status = dp_chunk_norm_forward(chunk, &norm, &chunk->head_normed, &normed, err);
    if (status != DP_OK) {
        return status;
    }
    dp_linear_forward(stage, &linear, normed, chunk->logits.memory, false);
    const struct dp_cross_entropy loss = head_loss(chunk);
    ops->cross_entropy_forward(stream, &loss, chunk->logits.memory, sum);
    ops->copy(stream, &chunk->loss_sum, sum, sizeof(double));
    return ops->stream_sync(stream, err);
}

static dp_status head_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)layer;
    struct dp_stage *stage = chunk->stage;
    const struct dp_linear linear = head_linear(chunk);
    void *dnormed;
    dp_status status =
        dp_stage_elements(stage, DP_SCRATCH_GRAD, chunk->tokens * linear.in, &dnormed, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_cross_entropy loss = head_loss(chunk);
    stage->device->ops->cross_entropy_input_grad(stage->device->stream, &loss, chunk->loss_scale,
                                                 chunk->logits.memory);
    dp_chunk_drop(chunk, &chunk->lse);
    dp_chunk_drop(chunk, &chunk->target_ids);
    dp_linear_input_grad(stage, &linear, chunk->logits.memory, dnormed, false);
    const struct dp_rmsnorm norm = head_norm(chunk);
    return dp_chunk_residual_grad(chunk, &norm, NULL, dnormed, &chunk->head_dgain, err);
}

static dp_status head_weight(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)layer;
    struct dp_stage *stage = chunk->stage;
    const struct dp_linear linear = head_linear(chunk);
    const struct dp_rmsnorm norm = head_norm(chunk);
    void *normed;
    dp_status status = dp_chunk_norm_again(chunk, &norm, &chunk->head_normed, &normed, err);
    if (status != DP_OK) {
        return status;
    }
    dp_linear_weight_grad(stage, &linear, chunk->logits.memory, normed);
    dp_chunk_gain_grad(chunk, &chunk->head_dgain, stage->head_norm);
    dp_chunk_drop(chunk, &chunk->head_x);
    dp_chunk_drop(chunk, &chunk->head_rstd);
    dp_chunk_drop(chunk, &chunk->head_normed);
    dp_chunk_drop(chunk, &chunk->logits);
    dp_chunk_drop(chunk, &chunk->head_dgain);
    return DP_OK;
}

const struct dp_component_ops dp_component_head = {
    .name = "head",
    .begin = {head_forward, head_input, head_weight},
};
