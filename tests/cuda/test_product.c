// What cuBLASLt is asked for, for every kind of product and GPU. It needs no GPU.
#include "dp_test.h"

#include "dp/rand.h"
#include "product.h"

#ifdef DP_HAS_CUBLASLT
#include <cublasLt.h>
#endif

#define ELEMENT DP_OPERAND_ELEMENT
#define REAL DP_OPERAND_REAL
#define FP8 DP_OPERAND_FP8

static struct dp_gemm fp8_gemm(int32_t a_tile_rows, int32_t b_tile_rows)
{
    return (struct dp_gemm){.m = 48,
                            .n = 64,
                            .k = 256,
                            .lda = 256,
                            .ldb = 256,
                            .ldc = 64,
                            .transpose_b = true,
                            .a_kind = FP8,
                            .b_kind = FP8,
                            .c_kind = REAL,
                            .a_scales = {NULL, a_tile_rows, 128},
                            .b_scales = {NULL, b_tile_rows, 128}};
}

static struct dp_cuda_product planned(int sm, dp_element element, const struct dp_gemm *gemm)
{
    struct dp_error err;
    struct dp_cuda_product product;
    assert_ok(dp_cuda_product_plan(sm, element, gemm, &product, &err), &err);
    return product;
}

static void refused(int sm, const struct dp_gemm *gemm, const char *part)
{
    struct dp_error err;
    struct dp_cuda_product product;
    assert_refused(dp_cuda_product_plan(sm, DP_BF16, gemm, &product, &err), DP_UNSUPPORTED, &err,
                   part);
}

// Where a column-major library finds element (row, col) of an operand that it may transpose.
static int64_t place_of(const struct dp_cuda_operand *operand, int64_t row, int64_t col)
{
    const int64_t r = operand->transposed ? col : row, c = operand->transposed ? row : col;
    assert_in_range(r, 0, operand->rows - 1);
    assert_in_range(c, 0, operand->cols - 1);
    return c * operand->ld + r;
}

// A library that follows the plan, on plain numbers, against the row-major definition.
static void plans_multiply_what_the_caller_means(void **state)
{
    (void)state;
    enum { M = 3, N = 4, K = 5, LD = 7 };
    struct dp_rand rand;
    dp_rand_init(&rand, 1);
    for (int n = 0; n < 8; n++) {
        double a[LD * LD], b[LD * LD], c[LD * LD], wanted[LD * LD];
        for (int i = 0; i < LD * LD; i++) {
            a[i] = dp_rand_normal(&rand);
            b[i] = dp_rand_normal(&rand);
            wanted[i] = c[i] = dp_rand_normal(&rand);
        }
        const struct dp_gemm g = {.transpose_a = n % 2 == 1,
                                  .transpose_b = n / 2 % 2 == 1,
                                  .accumulate = n / 4 == 1,
                                  .m = M,
                                  .n = N,
                                  .k = K,
                                  .lda = LD,
                                  .ldb = LD,
                                  .ldc = LD};
        for (int i = 0; i < M; i++) {
            for (int j = 0; j < N; j++) {
                double sum = g.accumulate ? c[i * LD + j] : 0;
                for (int k = 0; k < K; k++) {
                    sum += (g.transpose_a ? a[k * LD + i] : a[i * LD + k]) *
                           (g.transpose_b ? b[j * LD + k] : b[k * LD + j]);
                }
                wanted[i * LD + j] = sum;
            }
        }
        const struct dp_cuda_product p = planned(90, DP_BF16, &g);
        for (int64_t i = 0; i < p.m; i++) {
            for (int64_t j = 0; j < p.n; j++) {
                double sum = 0;
                for (int64_t k = 0; k < p.k; k++) {
                    sum += b[place_of(&p.first, i, k)] * a[place_of(&p.second, k, j)];
                }
                double *d = &c[place_of(&p.d, i, j)];
                *d = sum + (double)p.beta * *d;
            }
        }
        for (int i = 0; i < LD * LD; i++) {
            assert_true(c[i] - wanted[i] < 1e-12 && wanted[i] - c[i] < 1e-12);
        }
    }
}

static void types_follow_the_kinds(void **state)
{
    (void)state;
    struct dp_gemm g = {.m = 3, .n = 4, .k = 5, .lda = 5, .ldb = 9, .ldc = 8};
    struct dp_cuda_product p = planned(80, DP_BF16, &g);
    assert_int_equal(p.first.type, DP_CUDA_BF16);
    assert_int_equal(p.second.type, DP_CUDA_BF16);
    assert_int_equal(p.d.type, DP_CUDA_BF16);
    p = planned(80, DP_F32, &g);
    assert_int_equal(p.first.type, DP_CUDA_F32);
    assert_int_equal(p.d.type, DP_CUDA_F32);
    g.c_kind = REAL; // gradients of weights
    p = planned(80, DP_BF16, &g);
    assert_int_equal(p.first.type, DP_CUDA_BF16);
    assert_int_equal(p.d.type, DP_CUDA_F32);
    assert_false(p.d.widened);
    g.b_kind = REAL; // the router: bf16 rows, float weights
    p = planned(80, DP_BF16, &g);
    assert_int_equal(p.second.type, DP_CUDA_F32);
    assert_true(p.second.widened && !p.first.widened && !p.d.widened);
    assert_int_equal(p.second.ld, 5);
    assert_int_equal(p.first.ld, 9);
    g.a_kind = REAL; // its gradient: floats into bf16
    g.c_kind = ELEMENT;
    p = planned(80, DP_BF16, &g);
    assert_true(p.d.widened && !p.first.widened && !p.second.widened);
    assert_int_equal(p.d.type, DP_CUDA_F32);
    assert_int_equal(p.d.ld, 4);
}

static void fp8_scales_are_what_each_gpu_takes(void **state)
{
    (void)state;
    struct dp_gemm g = fp8_gemm(1, 128);
    struct dp_cuda_product p = planned(90, DP_BF16, &g);
    assert_int_equal(p.second.scale, DP_CUDA_SCALE_VEC128);
    assert_int_equal(p.second.scale_bytes, 48 * 2 * 4);
    assert_int_equal(p.first.scale, DP_CUDA_SCALE_BLK128);
    assert_int_equal(p.first.scale_bytes, 1 * 4 * 4);
    assert_true(p.first.transposed && !p.second.transposed);
    p = planned(100, DP_BF16, &g);
    assert_int_equal(p.first.scale, DP_CUDA_SCALE_VEC32);
    assert_int_equal(p.second.scale, DP_CUDA_SCALE_VEC32);
    assert_int_equal(p.second.scale_bytes, 128 * 8);
    refused(80, &g, "fp8 products need tensor cores of sm_90 or newer and this GPU has sm_80");
    g = fp8_gemm(1, 1);
    assert_int_equal(planned(90, DP_BF16, &g).first.scale, DP_CUDA_SCALE_VEC128);
}

static void fp8_that_no_gpu_takes_is_refused(void **state)
{
    (void)state;
    struct dp_gemm g = fp8_gemm(128, 128);
    refused(90, &g, "both fp8 operands have scales for 128 x 128");
    g = fp8_gemm(7, 1);
    refused(90, &g, "operand a has fp8 scales for tiles of 7 x 128");
    g = fp8_gemm(1, 1);
    g.transpose_b = false;
    g.ldb = 64;
    refused(90, &g, "operand b is fp8 and not stored along k");
    g = fp8_gemm(1, 1);
    g.a_kind = ELEMENT;
    refused(90, &g, "quantise both or neither");
    g = fp8_gemm(1, 1);
    g.k = 250;
    refused(90, &g, "multiples of 16");
}

#ifdef DP_HAS_CUBLASLT
static int32_t attribute(void *product, cublasLtMatmulDescAttributes_t name)
{
    int32_t value = -1;
    size_t bytes;
    assert_int_equal(cublasLtMatmulDescGetAttribute(product, name, &value, sizeof(value), &bytes),
                     0);
    assert_int_equal(bytes, sizeof(value));
    return value;
}

static int64_t of_layout(void *layout, cublasLtMatrixLayoutAttribute_t name, size_t bytes)
{
    int64_t value = 0;
    size_t written;
    assert_int_equal(cublasLtMatrixLayoutGetAttribute(layout, name, &value, bytes, &written), 0);
    assert_int_equal(written, bytes);
    return value;
}

static void cublaslt_describes_each_plan(void **state)
{
    (void)state;
    static const int modes[][3] = {
        {90, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F},
        {100, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0}};
    const struct dp_gemm g = fp8_gemm(1, 128);
    static const float scales[2] = {1, 2};
    for (int n = 0; n < 2; n++) {
        struct dp_error err;
        struct dp_cuda_descriptors d;
        const struct dp_cuda_product p = planned(modes[n][0], DP_BF16, &g);
        assert_ok(dp_cuda_descriptors_init(&d, &p, &scales[0], &scales[1], &err), &err);
        assert_int_equal(attribute(d.product, CUBLASLT_MATMUL_DESC_TRANSA), CUBLAS_OP_T);
        assert_int_equal(attribute(d.product, CUBLASLT_MATMUL_DESC_TRANSB), CUBLAS_OP_N);
        assert_int_equal(attribute(d.product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE), modes[n][1]);
        assert_int_equal(attribute(d.product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE), modes[n][2]);
        assert_int_equal(attribute(d.product, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE),
                         CUBLAS_COMPUTE_32F);
        const void *pointer = NULL;
        size_t bytes;
        cublasLtMatmulDescGetAttribute(d.product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &pointer,
                                       sizeof(pointer), &bytes);
        assert_ptr_equal(pointer, &scales[1]);
        assert_int_equal(of_layout(d.first, CUBLASLT_MATRIX_LAYOUT_TYPE, 4), CUDA_R_8F_E4M3);
        assert_int_equal(of_layout(d.first, CUBLASLT_MATRIX_LAYOUT_ROWS, 8), 256);
        assert_int_equal(of_layout(d.first, CUBLASLT_MATRIX_LAYOUT_COLS, 8), 64);
        assert_int_equal(of_layout(d.second, CUBLASLT_MATRIX_LAYOUT_LD, 8), 256);
        assert_int_equal(of_layout(d.d, CUBLASLT_MATRIX_LAYOUT_TYPE, 4), CUDA_R_32F);
        dp_cuda_descriptors_deinit(&d);
        assert_null(d.product);
    }
}

static void bf16_products_accumulate_in_float(void **state)
{
    (void)state;
    struct dp_error err;
    struct dp_cuda_descriptors d;
    const struct dp_gemm g = {.m = 3, .n = 4, .k = 5, .lda = 5, .ldb = 9, .ldc = 8};
    const struct dp_cuda_product p = planned(80, DP_BF16, &g);
    assert_ok(dp_cuda_descriptors_init(&d, &p, NULL, NULL, &err), &err);
    assert_int_equal(attribute(d.product, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE), CUBLAS_COMPUTE_32F);
    assert_int_equal(attribute(d.product, CUBLASLT_MATMUL_DESC_SCALE_TYPE), CUDA_R_32F);
    assert_int_equal(of_layout(d.first, CUBLASLT_MATRIX_LAYOUT_TYPE, 4), CUDA_R_16BF);
    assert_int_equal(of_layout(d.first, CUBLASLT_MATRIX_LAYOUT_LD, 8), 9);
    dp_cuda_descriptors_deinit(&d);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_multiply_what_the_caller_means),
        cmocka_unit_test(types_follow_the_kinds),
        cmocka_unit_test(fp8_scales_are_what_each_gpu_takes),
        cmocka_unit_test(fp8_that_no_gpu_takes_is_refused),
#ifdef DP_HAS_CUBLASLT
        cmocka_unit_test(cublaslt_describes_each_plan),
        cmocka_unit_test(bf16_products_accumulate_in_float),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
