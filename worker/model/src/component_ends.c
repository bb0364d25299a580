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

static struct dp_rmsnorm head_norm(const struct dp_chunk *chunk, const struct dp_head_state *head)
{
    return dp_chunk_norm(chunk, head->norm, &head->x, &head->rstd);
}

static struct dp_cross_entropy head_loss(const struct dp_chunk *chunk,
                                         const struct dp_head_state *head)
{
    return (struct dp_cross_entropy){.tokens = chunk->tokens,
                                     .vocabulary = chunk->stage->config.model.vocabulary,
                                     .targets = head->targets.memory,
                                     .lse = head->lse.memory};
}

dp_status dp_head_forward(struct dp_chunk *chunk, struct dp_head_state *head, double *ret_sum,
                          struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_stream *stream = stage->device->stream;
    const struct dp_linear linear = head_linear(chunk);
    const int64_t tokens = chunk->tokens;
    DP_CHECK(head->targets.memory != NULL);
    dp_slot_move(&chunk->x, &head->x);
    const struct dp_take takes[] = {
        {&head->rstd, dp_chunk_real_bytes(chunk, tokens)},
        {&head->lse, dp_chunk_real_bytes(chunk, tokens)},
        {&head->logits, dp_chunk_real_bytes(chunk, tokens * linear.out)},
    };
    void *normed, *sum;
    dp_status status = dp_chunk_take(chunk, takes, 3, err);
    if (status == DP_OK) {
        status = dp_stage_scratch(stage, DP_SCRATCH_SMALL, sizeof(double), &sum, err);
    }
    if (status != DP_OK) {
        return status;
    }
    const struct dp_rmsnorm norm = head_norm(chunk, head);
    status = dp_chunk_norm_forward(chunk, &norm, &head->normed, &normed, err);
    if (status != DP_OK) {
        return status;
    }
    dp_linear_forward(stage, &linear, normed, head->logits.memory, false);
    const struct dp_cross_entropy loss = head_loss(chunk, head);
    ops->cross_entropy_forward(stream, &loss, head->logits.memory, sum);
    ops->copy(stream, ret_sum, sum, sizeof(double));
    return ops->stream_sync(stream, err);
}

dp_status dp_head_input(struct dp_chunk *chunk, struct dp_head_state *head, double scale,
                        const struct dp_slot *dy, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_linear linear = head_linear(chunk);
    void *dnormed;
    dp_status status =
        dp_stage_elements(stage, DP_SCRATCH_GRAD, chunk->tokens * linear.in, &dnormed, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_cross_entropy loss = head_loss(chunk, head);
    stage->device->ops->cross_entropy_input_grad(stage->device->stream, &loss, scale,
                                                 head->logits.memory);
    dp_chunk_drop(chunk, &head->lse);
    dp_chunk_drop(chunk, &head->targets);
    dp_linear_input_grad(stage, &linear, head->logits.memory, dnormed, false);
    const struct dp_rmsnorm norm = head_norm(chunk, head);
    return dp_chunk_residual_grad(chunk, &norm, dy, dnormed, &head->dgain, err);
}

dp_status dp_head_weight(struct dp_chunk *chunk, struct dp_head_state *head, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_linear linear = head_linear(chunk);
    const struct dp_rmsnorm norm = head_norm(chunk, head);
    void *normed;
    dp_status status = dp_chunk_norm_again(chunk, &norm, &head->normed, &normed, err);
    if (status != DP_OK) {
        return status;
    }
    dp_linear_weight_grad(stage, &linear, head->logits.memory, normed);
    dp_chunk_gain_grad(chunk, &head->dgain, head->norm);
    dp_head_drop(chunk, head);
    return DP_OK;
}

void dp_head_drop(struct dp_chunk *chunk, struct dp_head_state *head)
{
    struct dp_slot *const slots[] = {&head->x,   &head->rstd,  &head->normed, &head->logits,
                                     &head->lse, &head->dgain, &head->targets};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(slots); i++) {
        dp_chunk_drop(chunk, slots[i]);
    }
}

static dp_status head_forward(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)layer;
    chunk->head.norm = chunk->stage->head_norm;
    return dp_head_forward(chunk, &chunk->head, &chunk->loss_sum, err);
}

// The gradient of what multi-token prediction read of the same rows comes in addition.
static dp_status head_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)layer;
    const struct dp_slot *beside = chunk->mtp.dhidden.memory != NULL ? &chunk->mtp.dhidden : NULL;
    dp_status status = dp_head_input(chunk, &chunk->head, chunk->loss_scale, beside, err);
    dp_chunk_drop(chunk, &chunk->mtp.dhidden);
    return status;
}

static dp_status head_weight(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)layer;
    return dp_head_weight(chunk, &chunk->head, err);
}

const struct dp_component_ops dp_component_head = {
    .name = "head",
    .begin = {head_forward, head_input, head_weight},
};
