// Row-major products for a column-major library: a row-major [rows, cols] matrix is a column-major
// cols x rows one, so c = op(a) op(b) is asked for as c^T = op(b)^T op(a)^T. The caller's b comes
// first, untransposed where the caller's is.
#include "product.h"

#include <string.h>

#define ALIGN_FP8 16 // fp8 leading dimensions and k are multiples of it

// What the caller gives for one side: stored [rows, cols].
struct side {
    const char *name;
    dp_operand kind;
    int64_t rows, cols, ld;
    struct dp_fp8_scales scales;
    bool along_k; // k is the stored matrix's columns
};

static struct side side_a(const struct dp_gemm *g)
{
    return (struct side){.name = "a",
                         .kind = g->a_kind,
                         .rows = g->transpose_a ? g->k : g->m,
                         .cols = g->transpose_a ? g->m : g->k,
                         .ld = g->lda,
                         .scales = g->a_scales,
                         .along_k = !g->transpose_a};
}

static struct side side_b(const struct dp_gemm *g)
{
    return (struct side){.name = "b",
                         .kind = g->b_kind,
                         .rows = g->transpose_b ? g->n : g->k,
                         .cols = g->transpose_b ? g->k : g->n,
                         .ld = g->ldb,
                         .scales = g->b_scales,
                         .along_k = g->transpose_b};
}

static dp_cuda_type type_of(dp_element element, dp_operand kind)
{
    if (kind == DP_OPERAND_FP8) {
        return DP_CUDA_E4M3;
    }
    return kind == DP_OPERAND_ELEMENT && element == DP_BF16 ? DP_CUDA_BF16 : DP_CUDA_F32;
}

static int64_t tiles(int64_t count, int64_t each)
{
    return (count + each - 1) / each;
}

static dp_status plan_scales(int sm, const struct side *side, struct dp_cuda_operand *operand,
                             struct dp_error *err)
{
    const struct dp_fp8_scales *s = &side->scales;
    if (s->tile_cols != 128 || (s->tile_rows != 1 && s->tile_rows != 128)) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "operand %s has fp8 scales for tiles of %d x %d; cuBLASLt takes 1 x 128 and "
                       "128 x 128 along k",
                       side->name, s->tile_rows, s->tile_cols);
    }
    const int64_t across = tiles(side->cols, 128);
    operand->tile_rows = s->tile_rows;
    operand->scale_cols = across;
    if (sm >= 100) {
        operand->scale = DP_CUDA_SCALE_VEC32;
        operand->scale_bytes =
            (size_t)(tiles(side->rows, 128) * 128 * tiles(tiles(side->cols, 32), 4) * 4);
    } else if (s->tile_rows == 1) {
        operand->scale = DP_CUDA_SCALE_VEC128;
        operand->scale_bytes = (size_t)(across * side->rows) * sizeof(float);
    } else {
        operand->scale = DP_CUDA_SCALE_BLK128;
        operand->scale_bytes =
            (size_t)(tiles(side->rows, 128) * tiles(across, 4) * 4) * sizeof(float);
    }
    return DP_OK;
}

static dp_status plan_fp8(int sm, const struct side *side, struct dp_cuda_operand *operand,
                          struct dp_error *err)
{
    if (sm < 90) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "fp8 products need tensor cores of sm_90 or newer and this GPU has sm_%d; "
                       "use precision = \"bf16\"",
                       sm);
    }
    if (!side->along_k) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "operand %s is fp8 and not stored along k; quantise its transpose",
                       side->name);
    }
    if (side->cols % ALIGN_FP8 != 0 || side->ld % ALIGN_FP8 != 0) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "operand %s is fp8 with k = %lld and %lld values from row to row; both must "
                       "be multiples of %d",
                       side->name, (long long)side->cols, (long long)side->ld, ALIGN_FP8);
    }
    return plan_scales(sm, side, operand, err);
}

// `transposed` of the column-major view: the sides differ in which of theirs is the plain one.
static dp_status plan_side(int sm, dp_element element, const struct side *side, bool transposed,
                           struct dp_cuda_operand *operand, struct dp_error *err)
{
    *operand = (struct dp_cuda_operand){.type = type_of(element, side->kind),
                                        .transposed = transposed,
                                        .rows = side->cols,
                                        .cols = side->rows,
                                        .ld = side->ld};
    return side->kind == DP_OPERAND_FP8 ? plan_fp8(sm, side, operand, err) : DP_OK;
}

static void widen(struct dp_cuda_operand *operand)
{
    operand->widened = operand->type == DP_CUDA_BF16;
    operand->type = DP_CUDA_F32;
    operand->ld = operand->widened ? operand->rows : operand->ld; // the copy is dense
}

dp_status dp_cuda_product_plan(int sm, dp_element element, const struct dp_gemm *gemm,
                               struct dp_cuda_product *ret_product, struct dp_error *err)
{
    const struct side a = side_a(gemm), b = side_b(gemm);
    struct dp_cuda_product p = {
        .m = gemm->n, .n = gemm->m, .k = gemm->k, .beta = gemm->accumulate ? 1.0f : 0.0f};
    dp_status status = plan_side(sm, element, &b, gemm->transpose_b, &p.first, err);
    if (status == DP_OK) {
        status = plan_side(sm, element, &a, gemm->transpose_a, &p.second, err);
    }
    if (status != DP_OK) {
        return status;
    }
    p.d = (struct dp_cuda_operand){
        .type = type_of(element, gemm->c_kind), .rows = gemm->n, .cols = gemm->m, .ld = gemm->ldc};
    const bool one_fp8 = (p.first.type == DP_CUDA_E4M3) != (p.second.type == DP_CUDA_E4M3);
    if (one_fp8) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "one operand is fp8 and the other is not; quantise both or neither");
    }
    if (p.first.scale == DP_CUDA_SCALE_BLK128 && p.second.scale == DP_CUDA_SCALE_BLK128) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "both fp8 operands have scales for 128 x 128; cuBLASLt takes that for one, "
                       "with 1 x 128 for the other");
    }
    // Where one side is bf16 and another float, all are float.
    if (p.first.type != p.second.type ||
        (p.first.type == DP_CUDA_F32 && p.d.type == DP_CUDA_BF16)) {
        widen(&p.first);
        widen(&p.second);
        widen(&p.d);
    }
    *ret_product = p;
    return DP_OK;
}
