// MTP: the token after the next one, from the residual stream and the next token's embedding
// (DeepSeek-V3, arXiv 2412.19437, section 2.2): x = projection([norm(embedding); norm(hidden)]),
// one more layer, and the head with a norm of its own. The layer's exchanges are waited for inside
// the component's passes.
#include <string.h>

#include "dp/check.h"
#include "stage.h"

static int32_t layer_of(const struct dp_stage *stage)
{
    return stage->layer_count - 1;
}

static struct dp_linear projection(const struct dp_chunk *chunk)
{
    const int64_t hidden = chunk->stage->config.model.hidden;
    return (struct dp_linear){.offset = chunk->stage->mtp.projection,
                              .rows = chunk->tokens,
                              .in = 2 * hidden,
                              .out = hidden};
}

// The norm of the embedding, or of the hidden rows, into its half of the joined rows.
static struct dp_rmsnorm norm_of(const struct dp_chunk *chunk, bool is_hidden)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_model_spec *model = &stage->config.model;
    return (struct dp_rmsnorm){
        .rows = chunk->tokens,
        .cols = model->hidden,
        .eps = model->norm_eps,
        .x = is_hidden ? chunk->head.x.memory : chunk->mtp.embedded.memory,
        .gain = dp_stage_master_at(stage,
                                   is_hidden ? stage->mtp.hidden_norm : stage->mtp.embedding_norm),
        .rstd = dp_real_at(stage, chunk->mtp.rstd.memory, is_hidden ? chunk->tokens : 0),
        .y_stride = 2 * (int64_t)model->hidden};
}

// The next tokens, and those after them: -1 where the sample has none.
static void shift_targets(struct dp_chunk *chunk)
{
    const struct dp_device_ops *ops = chunk->stage->device->ops;
    struct dp_stream *stream = chunk->stage->device->stream;
    const size_t sequence = (size_t)chunk->stage->config.sequence;
    struct dp_mtp_state *mtp = &chunk->mtp;
    ops->copy(stream, mtp->tokens.memory, chunk->head.targets.memory, (size_t)mtp->tokens.bytes);
    for (int32_t s = 0; s < chunk->samples; s++) {
        const int32_t *from = (const int32_t *)chunk->head.targets.memory + (size_t)s * sequence;
        int32_t *to = (int32_t *)mtp->head.targets.memory + (size_t)s * sequence;
        ops->copy(stream, to, from + 1, (sequence - 1) * sizeof(*to));
        ops->fill(stream, to + sequence - 1, 0xff, sizeof(*to));
    }
}

static dp_status join(struct dp_chunk *chunk, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_stream *stream = stage->device->stream;
    struct dp_mtp_state *mtp = &chunk->mtp;
    const int64_t tokens = chunk->tokens, hidden = stage->config.model.hidden;
    const int64_t ids = tokens * (int64_t)sizeof(int32_t);
    const struct dp_take takes[] = {
        {&mtp->tokens, ids},
        {&mtp->head.targets, ids},
        {&mtp->embedded, dp_chunk_element_bytes(chunk, tokens * hidden)},
        {&mtp->rstd, dp_chunk_real_bytes(chunk, 2 * tokens)},
        {&mtp->joined, dp_chunk_element_bytes(chunk, 2 * tokens * hidden)},
        {&chunk->x, (int64_t)dp_chunk_hidden_bytes(chunk)},
    };
    dp_status status = dp_chunk_take(chunk, takes, DP_ARRAY_LENGTH(takes), err);
    if (status != DP_OK) {
        return status;
    }
    shift_targets(chunk);
    const struct dp_rows rows = {.rows = tokens, .cols = hidden};
    ops->collect_rows(stream, &rows, 1, false, mtp->tokens.memory,
                      dp_stage_weight_at(stage, stage->embedding), mtp->embedded.memory);
    for (int is_hidden = 0; is_hidden < 2; is_hidden++) {
        const struct dp_rmsnorm norm = norm_of(chunk, is_hidden);
        ops->rmsnorm_forward(stream, &norm,
                             dp_element_at(stage, mtp->joined.memory, is_hidden * hidden));
    }
    const struct dp_linear linear = projection(chunk);
    dp_linear_forward(stage, &linear, mtp->joined.memory, chunk->x.memory, false);
    return DP_OK;
}

// A pass of the layer's components, begin and end of each.
static dp_status run_layer(struct dp_chunk *chunk, dp_pass pass, struct dp_error *err)
{
    static const struct dp_component_ops *const dense[] = {&dp_component_attention,
                                                           &dp_component_ffn};
    static const struct dp_component_ops *const routed[] = {
        &dp_component_attention, &dp_component_dispatch, &dp_component_experts,
        &dp_component_combine};
    const int32_t layer = layer_of(chunk->stage);
    const bool is_dense = chunk->stage->layers[layer].dense;
    const struct dp_component_ops *const *parts = is_dense ? dense : routed;
    const int32_t count = is_dense ? 2 : 4;
    dp_status status = DP_OK;
    for (int32_t i = 0; i < count && status == DP_OK; i++) {
        const struct dp_component_ops *part = parts[pass == DP_PASS_FORWARD ? i : count - 1 - i];
        if (part->begin[pass] != NULL) {
            status = part->begin[pass](chunk, layer, err);
        }
        if (status == DP_OK && part->end[pass] != NULL) {
            status = part->end[pass](chunk, layer, err);
        }
        if (status != DP_OK) {
            dp_fail_in(err, "%s of its layer", part->name);
        }
    }
    return status;
}

static dp_status mtp_forward(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)layer;
    struct dp_mtp_state *mtp = &chunk->mtp;
    mtp->head.norm = chunk->stage->mtp.head_norm;
    dp_status status = join(chunk, err);
    if (status == DP_OK) {
        status = run_layer(chunk, DP_PASS_FORWARD, err);
    }
    return status == DP_OK ? dp_head_forward(chunk, &mtp->head, &mtp->loss_sum, err) : status;
}

// From the joined rows' gradient to those of the embedding and of the hidden rows.
static dp_status take_apart(struct dp_chunk *chunk, const void *djoined, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_stream *stream = stage->device->stream;
    struct dp_mtp_state *mtp = &chunk->mtp;
    const int64_t hidden = stage->config.model.hidden;
    const struct dp_take takes[] = {
        {&mtp->dembedded, (int64_t)dp_chunk_hidden_bytes(chunk)},
        {&mtp->dhidden, (int64_t)dp_chunk_hidden_bytes(chunk)},
        {&mtp->dgain, dp_chunk_real_bytes(chunk, 2 * hidden)},
    };
    dp_status status = dp_chunk_take(chunk, takes, DP_ARRAY_LENGTH(takes), err);
    if (status != DP_OK) {
        return status;
    }
    ops->fill(stream, mtp->dgain.memory, 0, (size_t)mtp->dgain.bytes);
    for (int is_hidden = 0; is_hidden < 2; is_hidden++) {
        struct dp_rmsnorm norm = norm_of(chunk, is_hidden);
        const void *dy = dp_element_at(stage, (void *)djoined, is_hidden * hidden);
        norm.replace = true;
        ops->rmsnorm_weight_grad(stream, &norm, dy,
                                 dp_real_at(stage, mtp->dgain.memory, is_hidden * hidden));
        ops->rmsnorm_input_grad(stream, &norm, dy,
                                is_hidden ? mtp->dhidden.memory : mtp->dembedded.memory);
    }
    return DP_OK;
}

static dp_status mtp_input(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)layer;
    struct dp_stage *stage = chunk->stage;
    struct dp_mtp_state *mtp = &chunk->mtp;
    const struct dp_linear linear = projection(chunk);
    const double weight = stage->config.model.mtp_loss_weight;
    dp_status status = dp_head_input(chunk, &mtp->head,
                                     chunk->loss_scale * (weight > 0 ? weight : 0.3), NULL, err);
    if (status == DP_OK) {
        status = run_layer(chunk, DP_PASS_INPUT, err);
    }
    void *djoined;
    if (status == DP_OK) {
        status =
            dp_stage_elements(stage, DP_SCRATCH_WIDE, chunk->tokens * linear.in, &djoined, err);
    }
    if (status != DP_OK) {
        return status;
    }
    dp_slot_move(&chunk->dx, &mtp->dy);
    dp_linear_input_grad(stage, &linear, mtp->dy.memory, djoined, false);
    return take_apart(chunk, djoined, err);
}

void dp_mtp_drop(struct dp_chunk *chunk)
{
    struct dp_mtp_state *mtp = &chunk->mtp;
    struct dp_slot *const slots[] = {&mtp->tokens, &mtp->embedded,  &mtp->rstd, &mtp->joined,
                                     &mtp->dy,     &mtp->dembedded, &mtp->dgain};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(slots); i++) {
        dp_chunk_drop(chunk, slots[i]);
    }
}

static dp_status mtp_weight(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    (void)layer;
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_mtp_state *mtp = &chunk->mtp;
    const int64_t hidden = stage->config.model.hidden;
    dp_status status = dp_head_weight(chunk, &mtp->head, err);
    if (status == DP_OK) {
        status = run_layer(chunk, DP_PASS_WEIGHT, err);
    }
    if (status != DP_OK) {
        return status;
    }
    const struct dp_linear linear = projection(chunk);
    const struct dp_rows rows = {.rows = chunk->tokens, .cols = hidden, .to_kind = DP_OPERAND_REAL};
    dp_linear_weight_grad(stage, &linear, mtp->dy.memory, mtp->joined.memory);
    dp_chunk_vector_grad(chunk, &mtp->dgain, 0, hidden, stage->mtp.embedding_norm);
    dp_chunk_vector_grad(chunk, &mtp->dgain, hidden, hidden, stage->mtp.hidden_norm);
    ops->add_rows(stage->device->stream, &rows, mtp->tokens.memory, mtp->dembedded.memory,
                  dp_stage_gradient_at(stage, stage->embedding));
    dp_mtp_drop(chunk);
    return DP_OK;
}

const struct dp_component_ops dp_component_mtp = {
    .name = "mtp",
    .begin = {mtp_forward, mtp_input, mtp_weight},
};
