#include "stage.h"

void *dp_element_at(const struct dp_stage *stage, void *base, int64_t elements)
{
    return (char *)base + elements * (int64_t)stage->element_bytes;
}

void *dp_real_at(const struct dp_stage *stage, void *base, int64_t reals)
{
    return (char *)base + reals * (int64_t)stage->real_bytes;
}

void *dp_stage_weight_at(const struct dp_stage *stage, int64_t offset)
{
    return dp_element_at(stage, stage->gemm_weights, offset);
}

void *dp_stage_master_at(const struct dp_stage *stage, int64_t offset)
{
    return dp_real_at(stage, stage->weights, offset);
}

void *dp_stage_gradient_at(const struct dp_stage *stage, int64_t offset)
{
    return dp_real_at(stage, stage->gradients, offset);
}

static const void *weight_of(const struct dp_stage *stage, const struct dp_linear *linear)
{
    return linear->weight_kind == DP_OPERAND_REAL ? dp_stage_master_at(stage, linear->offset)
                                                  : dp_stage_weight_at(stage, linear->offset);
}

static void keep_failure(struct dp_stage *stage, dp_status status, const struct dp_error *err)
{
    if (status != DP_OK && stage->failed == DP_OK) {
        stage->failed = status;
        stage->failure = *err;
    }
}

void dp_linear_forward(struct dp_stage *stage, const struct dp_linear *linear, const void *x,
                       void *y, bool accumulate)
{
    const struct dp_fp8_matrix *matrix = dp_linear_fp8(stage, linear);
    if (matrix != NULL) {
        struct dp_error err;
        keep_failure(stage, dp_fp8_forward(stage, linear, matrix, x, y, accumulate, &err), &err);
        return;
    }
    const struct dp_gemm gemm = {.transpose_b = true,
                                 .accumulate = accumulate,
                                 .m = linear->rows,
                                 .n = linear->out,
                                 .k = linear->in,
                                 .a = x,
                                 .lda = linear->in,
                                 .b = weight_of(stage, linear),
                                 .ldb = linear->in,
                                 .c = y,
                                 .ldc = linear->out,
                                 .b_kind = linear->weight_kind,
                                 .c_kind = linear->y_kind};
    stage->device->ops->gemm(stage->device->stream, &gemm);
}

void dp_linear_input_grad(struct dp_stage *stage, const struct dp_linear *linear, const void *dy,
                          void *dx, bool accumulate)
{
    const struct dp_fp8_matrix *matrix = dp_linear_fp8(stage, linear);
    if (matrix != NULL) {
        struct dp_error err;
        keep_failure(stage, dp_fp8_input_grad(stage, linear, matrix, dy, dx, accumulate, &err),
                     &err);
        return;
    }
    const struct dp_gemm gemm = {.accumulate = accumulate,
                                 .m = linear->rows,
                                 .n = linear->in,
                                 .k = linear->out,
                                 .a = dy,
                                 .lda = linear->out,
                                 .b = weight_of(stage, linear),
                                 .ldb = linear->in,
                                 .c = dx,
                                 .ldc = linear->in,
                                 .a_kind = linear->y_kind,
                                 .b_kind = linear->weight_kind};
    stage->device->ops->gemm(stage->device->stream, &gemm);
}

void dp_linear_weight_grad(struct dp_stage *stage, const struct dp_linear *linear, const void *dy,
                           const void *x)
{
    if (dp_linear_fp8(stage, linear) != NULL) {
        struct dp_error err;
        keep_failure(stage, dp_fp8_weight_grad(stage, linear, dy, x, &err), &err);
        return;
    }
    const struct dp_gemm gemm = {.transpose_a = true,
                                 .accumulate = true,
                                 .m = linear->out,
                                 .n = linear->in,
                                 .k = linear->rows,
                                 .a = dy,
                                 .lda = linear->out,
                                 .b = x,
                                 .ldb = linear->in,
                                 .c = dp_stage_gradient_at(stage, linear->offset),
                                 .ldc = linear->in,
                                 .a_kind = linear->y_kind,
                                 .c_kind = DP_OPERAND_REAL};
    stage->device->ops->gemm(stage->device->stream, &gemm);
}

struct dp_rmsnorm dp_chunk_norm(const struct dp_chunk *chunk, int64_t offset,
                                const struct dp_slot *x, const struct dp_slot *rstd)
{
    return (struct dp_rmsnorm){.rows = chunk->tokens,
                               .cols = chunk->stage->config.model.hidden,
                               .eps = chunk->stage->config.model.norm_eps,
                               .x = x->memory,
                               .gain = dp_stage_master_at(chunk->stage, offset),
                               .rstd = rstd->memory};
}

bool dp_stage_keeps(const struct dp_stage *stage, uint32_t bit)
{
    return (stage->config.recompute & (bit | DP_RECOMPUTE_FULL)) == 0;
}

dp_status dp_chunk_norm_forward(struct dp_chunk *chunk, const struct dp_rmsnorm *norm,
                                struct dp_slot *slot, void **ret_normed, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_take take = {slot, (int64_t)dp_chunk_hidden_bytes(chunk)};
    void *normed = NULL;
    dp_status status = DP_OK;
    if (dp_stage_keeps(stage, DP_RECOMPUTE_NORM)) {
        status = dp_chunk_take(chunk, &take, 1, err);
        normed = slot->memory;
    } else {
        status = dp_stage_elements(stage, DP_SCRATCH_NORMED, norm->rows * norm->cols, &normed, err);
    }
    if (status == DP_OK) {
        stage->device->ops->rmsnorm_forward(stage->device->stream, norm, normed);
        *ret_normed = normed;
    }
    return status;
}

dp_status dp_chunk_norm_again(struct dp_chunk *chunk, const struct dp_rmsnorm *norm,
                              const struct dp_slot *slot, void **ret_normed, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    if (slot->memory != NULL) {
        *ret_normed = slot->memory;
        return DP_OK;
    }
    dp_status status =
        dp_stage_elements(stage, DP_SCRATCH_NORMED, norm->rows * norm->cols, ret_normed, err);
    if (status == DP_OK) {
        stage->device->ops->rmsnorm_again(stage->device->stream, norm, *ret_normed);
    }
    return status;
}

dp_status dp_chunk_residual_grad(struct dp_chunk *chunk, const struct dp_rmsnorm *norm,
                                 const struct dp_slot *dy, const void *dnormed,
                                 struct dp_slot *dgain, struct dp_error *err)
{
    const struct dp_device_ops *ops = chunk->stage->device->ops;
    struct dp_stream *stream = chunk->stage->device->stream;
    const struct dp_take takes[] = {
        {&chunk->dx, (int64_t)dp_chunk_hidden_bytes(chunk)},
        {dgain, dp_chunk_real_bytes(chunk, norm->cols)},
    };
    dp_status status = dp_chunk_take(chunk, takes, 2, err);
    if (status != DP_OK) {
        return status;
    }
    if (dy != NULL) {
        ops->copy(stream, chunk->dx.memory, dy->memory, (size_t)dy->bytes);
    } else {
        ops->fill(stream, chunk->dx.memory, 0, (size_t)chunk->dx.bytes);
    }
    ops->rmsnorm_input_grad(stream, norm, dnormed, chunk->dx.memory);
    ops->fill(stream, dgain->memory, 0, (size_t)dgain->bytes);
    ops->rmsnorm_weight_grad(stream, norm, dnormed, dgain->memory);
    return DP_OK;
}

static void gated_linears(const struct dp_stage *stage, const struct dp_gated *gated,
                          struct dp_linear *ret_wide, struct dp_linear *ret_down)
{
    const int64_t hidden = stage->config.model.hidden;
    *ret_wide = (struct dp_linear){gated->gate_up, gated->rows, hidden, 2 * gated->width, 0, 0};
    *ret_down = (struct dp_linear){gated->down, gated->rows, gated->width, hidden, 0, 0};
}

dp_status dp_gated_forward(struct dp_stage *stage, const struct dp_gated *gated, const void *x,
                           const void *weight, void *gate_up, void *active, void *y,
                           bool accumulate, struct dp_error *err)
{
    struct dp_linear wide, down;
    gated_linears(stage, gated, &wide, &down);
    dp_status status = active != NULL ? DP_OK
                                      : dp_stage_elements(stage, DP_SCRATCH_WIDE,
                                                          gated->rows * gated->width, &active, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_swiglu swiglu = {gated->rows, gated->width, gate_up, weight};
    dp_linear_forward(stage, &wide, x, gate_up, false);
    stage->device->ops->swiglu_forward(stage->device->stream, &swiglu, active);
    dp_linear_forward(stage, &down, active, y, accumulate);
    return DP_OK;
}

void dp_gated_again(struct dp_stage *stage, const struct dp_gated *gated, const void *x,
                    void *gate_up)
{
    struct dp_linear wide, down;
    gated_linears(stage, gated, &wide, &down);
    dp_linear_forward(stage, &wide, x, gate_up, false);
}

dp_status dp_gated_input_grad(struct dp_stage *stage, const struct dp_gated *gated, const void *dy,
                              const void *weight, void *gate_up, void *dweight, void *active,
                              void *dx, struct dp_error *err)
{
    struct dp_linear wide, down;
    gated_linears(stage, gated, &wide, &down);
    void *dactive;
    dp_status status =
        dp_stage_elements(stage, DP_SCRATCH_WIDE, gated->rows * gated->width, &dactive, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_swiglu swiglu = {gated->rows, gated->width, gate_up, weight};
    dp_linear_input_grad(stage, &down, dy, dactive, false);
    stage->device->ops->swiglu_input_grad(stage->device->stream, &swiglu, dactive, gate_up, dweight,
                                          active);
    dp_linear_input_grad(stage, &wide, gate_up, dx, false);
    return DP_OK;
}

void dp_chunk_gain_grad(const struct dp_chunk *chunk, const struct dp_slot *dgain, int64_t offset)
{
    const struct dp_stage *stage = chunk->stage;
    stage->device->ops->add(stage->device->stream, stage->config.model.hidden, DP_OPERAND_REAL,
                            dgain->memory, DP_OPERAND_REAL, dp_stage_gradient_at(stage, offset));
}

void dp_gated_weight_grad(struct dp_stage *stage, const struct dp_gated *gated, const void *dy,
                          const void *x, const void *dgate_up, const void *active)
{
    struct dp_linear wide, down;
    gated_linears(stage, gated, &wide, &down);
    dp_linear_weight_grad(stage, &wide, dgate_up, x);
    dp_linear_weight_grad(stage, &down, dy, active);
}
