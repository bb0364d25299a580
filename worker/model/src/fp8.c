// The recipe of DeepSeek-V3 (arXiv 2412.19437, section 3.3) for matrix products: E4M3 operands with
// a scale for each 1 x 128 of activations and gradients, and each 128 x 128 of weights; where a
// product sums over rows, operands are tiled 128 x 1.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "stage.h"

#define TILE 128

static int64_t tiles(int64_t count)
{
    return (count + TILE - 1) / TILE;
}

// An operand in scratch or beside the weights.
struct codes {
    const uint8_t *codes;
    struct dp_fp8_scales scales;
};

static void add(struct dp_stage *stage, int64_t offset, int64_t rows, int64_t cols)
{
    stage->fp8 = dp_realloc(stage->fp8, (size_t)stage->fp8_count + 1, sizeof(*stage->fp8));
    stage->fp8[stage->fp8_count++] = (struct dp_fp8_matrix){
        .offset = offset, .rows = rows, .cols = cols, .scales_at = stage->fp8_scale_count};
    stage->fp8_scale_count += tiles(rows) * tiles(cols);
}

// gate and up as one matrix, and down.
static void add_swiglu(struct dp_stage *stage, int64_t gate_up, int64_t width)
{
    const int64_t hidden = stage->config.model.hidden;
    if (width > 0) {
        add(stage, gate_up, 2 * width, hidden);
        add(stage, gate_up + 2 * width * hidden, hidden, width);
    }
}

static void add_projections(struct dp_stage *stage, const struct dp_layer_tensors *at)
{
    const struct dp_model_spec *m = &stage->config.model;
    if (m->mla_kv_rank == 0) {
        add(stage, at->qkv, stage->qkv_width, m->hidden);
        return;
    }
    if (m->mla_q_rank > 0) {
        add(stage, at->q_down, m->mla_q_rank, m->hidden);
    }
    add(stage, at->qkv, stage->qkv_width, m->mla_q_rank > 0 ? m->mla_q_rank : m->hidden);
    add(stage, at->kv_down, (int64_t)m->mla_kv_rank + m->mla_rope_dim, m->hidden);
    add(stage, at->kv_up, m->heads * ((int64_t)m->mla_nope_dim + m->mla_v_dim), m->mla_kv_rank);
}

// Attention's projections and every FFN; the embedding, the head and routers stay as they are.
static void list_matrices(struct dp_stage *stage)
{
    const struct dp_model_spec *model = &stage->config.model;
    for (int32_t i = 0; i < stage->layer_count; i++) {
        const struct dp_layer_tensors *at = &stage->layers[i];
        add_projections(stage, at);
        add(stage, at->output, model->hidden, stage->q_width);
        add_swiglu(stage, at->gate_up, at->dense ? model->ffn : stage->shared_width);
        for (int32_t e = 0; !at->dense && e < stage->local_experts; e++) {
            const int64_t expert = 3 * (int64_t)model->expert_ffn * model->hidden;
            add_swiglu(stage, at->experts + e * expert, model->expert_ffn);
        }
    }
}

static int compare(const void *key, const void *matrix)
{
    const int64_t offset = *(const int64_t *)key;
    const int64_t other = ((const struct dp_fp8_matrix *)matrix)->offset;
    return offset < other ? -1 : offset > other;
}

static int compare_matrices(const void *one, const void *two)
{
    return compare(&((const struct dp_fp8_matrix *)one)->offset, two);
}

dp_status dp_stage_make_fp8(struct dp_stage *stage, struct dp_error *err)
{
    struct dp_device *device = stage->device;
    if (!stage->config.fp8) {
        return DP_OK;
    }
    list_matrices(stage);
    qsort(stage->fp8, (size_t)stage->fp8_count, sizeof(*stage->fp8), compare_matrices);
    dp_status status = device->ops->alloc(device, DP_MEMORY_WEIGHTS, (size_t)stage->parameter_count,
                                          (void **)&stage->fp8_codes, err);
    if (status == DP_OK) {
        status = device->ops->alloc(device, DP_MEMORY_WEIGHTS,
                                    (size_t)stage->fp8_scale_count * sizeof(float),
                                    (void **)&stage->fp8_scales, err);
    }
    return status;
}

void dp_stage_free_fp8(struct dp_stage *stage)
{
    stage->device->ops->free(stage->device, stage->fp8_codes);
    stage->device->ops->free(stage->device, stage->fp8_scales);
    free(stage->fp8);
}

void dp_stage_refresh_fp8(struct dp_stage *stage)
{
    for (int32_t i = 0; i < stage->fp8_count; i++) {
        const struct dp_fp8_matrix *matrix = &stage->fp8[i];
        const struct dp_fp8 fp8 = {
            .rows = matrix->rows, .cols = matrix->cols, .tile_rows = TILE, .tile_cols = TILE};
        stage->device->ops->quantize_fp8(
            stage->device->stream, &fp8, DP_OPERAND_REAL, dp_stage_master_at(stage, matrix->offset),
            stage->fp8_codes + matrix->offset, stage->fp8_scales + matrix->scales_at);
    }
}

const struct dp_fp8_matrix *dp_linear_fp8(const struct dp_stage *stage,
                                          const struct dp_linear *linear)
{
    if (stage->fp8_count == 0 || linear->rows == 0) {
        return NULL;
    }
    const struct dp_fp8_matrix *matrix =
        bsearch(&linear->offset, stage->fp8, (size_t)stage->fp8_count, sizeof(*matrix), compare);
    DP_CHECK(matrix == NULL || (matrix->rows == linear->out && matrix->cols == linear->in));
    return matrix;
}

static struct codes weight_codes(const struct dp_stage *stage, const struct dp_fp8_matrix *matrix)
{
    return (struct codes){stage->fp8_codes + matrix->offset,
                          {stage->fp8_scales + matrix->scales_at, TILE, TILE}};
}

// Codes of a matrix of elements, with tiles of tile_rows x tile_cols. Scales come first, for their
// alignment.
static dp_status quantize(struct dp_stage *stage, dp_scratch which, const struct dp_fp8 *fp8,
                          const void *from, struct codes *ret_codes, struct dp_error *err)
{
    const int64_t tile_rows = (fp8->rows + fp8->tile_rows - 1) / fp8->tile_rows;
    const int64_t tile_cols = (fp8->cols + fp8->tile_cols - 1) / fp8->tile_cols;
    const size_t scale_bytes = (size_t)(tile_rows * tile_cols) * sizeof(float);
    void *memory;
    dp_status status =
        dp_stage_scratch(stage, which, scale_bytes + (size_t)(fp8->rows * fp8->cols), &memory, err);
    if (status != DP_OK) {
        return status;
    }
    uint8_t *codes = (uint8_t *)memory + scale_bytes;
    stage->device->ops->quantize_fp8(stage->device->stream, fp8, DP_OPERAND_ELEMENT, from, codes,
                                     memory);
    *ret_codes = (struct codes){codes, {memory, fp8->tile_rows, fp8->tile_cols}};
    return DP_OK;
}

int64_t dp_fp8_row_bytes(int64_t cols)
{
    return tiles(cols) * (int64_t)sizeof(float) + cols;
}

static struct dp_fp8 rows_as_codes(int64_t rows, int64_t cols)
{
    return (struct dp_fp8){.rows = rows, .cols = cols, .tile_rows = 1, .tile_cols = TILE};
}

dp_status dp_fp8_pack(struct dp_chunk *chunk, int64_t rows, int64_t cols, struct dp_slot *from,
                      struct dp_slot *to, struct dp_error *err)
{
    const struct dp_device *device = chunk->stage->device;
    const struct dp_fp8 fp8 = rows_as_codes(rows, cols);
    const struct dp_take take = {to, rows * dp_fp8_row_bytes(cols)};
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    if (status == DP_OK) {
        uint8_t *codes = (uint8_t *)to->memory + rows * tiles(cols) * (int64_t)sizeof(float);
        device->ops->quantize_fp8(device->stream, &fp8, DP_OPERAND_ELEMENT, from->memory, codes,
                                  to->memory);
        dp_chunk_drop(chunk, from);
    }
    return status;
}

dp_status dp_fp8_unpack(struct dp_chunk *chunk, int64_t rows, int64_t cols,
                        const struct dp_slot *from, struct dp_slot *to, struct dp_error *err)
{
    const struct dp_device *device = chunk->stage->device;
    const struct dp_fp8 fp8 = rows_as_codes(rows, cols);
    const struct dp_take take = {to, dp_chunk_element_bytes(chunk, rows * cols)};
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    if (status == DP_OK) {
        const uint8_t *codes =
            (const uint8_t *)from->memory + rows * tiles(cols) * (int64_t)sizeof(float);
        device->ops->dequantize_fp8(device->stream, &fp8, codes, from->memory, DP_OPERAND_ELEMENT,
                                    to->memory);
    }
    return status;
}

dp_status dp_fp8_forward(struct dp_stage *stage, const struct dp_linear *linear,
                         const struct dp_fp8_matrix *matrix, const void *x, void *y,
                         bool accumulate, struct dp_error *err)
{
    const struct dp_fp8 fp8 = {
        .rows = linear->rows, .cols = linear->in, .tile_rows = 1, .tile_cols = TILE};
    struct codes a;
    dp_status status = quantize(stage, DP_SCRATCH_FP8_A, &fp8, x, &a, err);
    if (status != DP_OK) {
        return status;
    }
    const struct codes b = weight_codes(stage, matrix);
    const struct dp_gemm gemm = {.transpose_b = true,
                                 .accumulate = accumulate,
                                 .m = linear->rows,
                                 .n = linear->out,
                                 .k = linear->in,
                                 .a = a.codes,
                                 .lda = linear->in,
                                 .b = b.codes,
                                 .ldb = linear->in,
                                 .c = y,
                                 .ldc = linear->out,
                                 .a_kind = DP_OPERAND_FP8,
                                 .b_kind = DP_OPERAND_FP8,
                                 .a_scales = a.scales,
                                 .b_scales = b.scales};
    stage->device->ops->gemm(stage->device->stream, &gemm);
    return DP_OK;
}

dp_status dp_fp8_input_grad(struct dp_stage *stage, const struct dp_linear *linear,
                            const struct dp_fp8_matrix *matrix, const void *dy, void *dx,
                            bool accumulate, struct dp_error *err)
{
    const struct dp_fp8 fp8 = {
        .rows = linear->rows, .cols = linear->out, .tile_rows = 1, .tile_cols = TILE};
    struct codes a;
    dp_status status = quantize(stage, DP_SCRATCH_FP8_A, &fp8, dy, &a, err);
    if (status != DP_OK) {
        return status;
    }
    const struct codes b = weight_codes(stage, matrix);
    const struct dp_gemm gemm = {.accumulate = accumulate,
                                 .m = linear->rows,
                                 .n = linear->in,
                                 .k = linear->out,
                                 .a = a.codes,
                                 .lda = linear->out,
                                 .b = b.codes,
                                 .ldb = linear->in,
                                 .c = dx,
                                 .ldc = linear->in,
                                 .a_kind = DP_OPERAND_FP8,
                                 .b_kind = DP_OPERAND_FP8,
                                 .a_scales = a.scales,
                                 .b_scales = b.scales};
    stage->device->ops->gemm(stage->device->stream, &gemm);
    return DP_OK;
}

dp_status dp_fp8_weight_grad(struct dp_stage *stage, const struct dp_linear *linear, const void *dy,
                             const void *x, struct dp_error *err)
{
    const struct dp_fp8 fp8_dy = {
        .rows = linear->rows, .cols = linear->out, .tile_rows = TILE, .tile_cols = 1};
    const struct dp_fp8 fp8_x = {
        .rows = linear->rows, .cols = linear->in, .tile_rows = TILE, .tile_cols = 1};
    struct codes a, b;
    dp_status status = quantize(stage, DP_SCRATCH_FP8_A, &fp8_dy, dy, &a, err);
    if (status == DP_OK) {
        status = quantize(stage, DP_SCRATCH_FP8_B, &fp8_x, x, &b, err);
    }
    if (status != DP_OK) {
        return status;
    }
    const struct dp_gemm gemm = {.transpose_a = true,
                                 .accumulate = true,
                                 .m = linear->out,
                                 .n = linear->in,
                                 .k = linear->rows,
                                 .a = a.codes,
                                 .lda = linear->out,
                                 .b = b.codes,
                                 .ldb = linear->in,
                                 .c = dp_stage_gradient_at(stage, linear->offset),
                                 .ldc = linear->in,
                                 .a_kind = DP_OPERAND_FP8,
                                 .b_kind = DP_OPERAND_FP8,
                                 .c_kind = DP_OPERAND_REAL,
                                 .a_scales = a.scales,
                                 .b_scales = b.scales};
    stage->device->ops->gemm(stage->device->stream, &gemm);
    return DP_OK;
}
