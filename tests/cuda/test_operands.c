// Copies in float of bf16 operands, and scales where cuBLASLt looks for them: against the places
// that its documentation gives, walked the other way round: from every scale to its places.
#include "twin.h"

#include "operands.h"

static void bf16_matrices_are_copied_and_rounded_back(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{0, 5, 5}, {1, 1, 3}, {17, 100, 110}, {5, 300, 300}};
    for (size_t n = 0; n < 4; n++) {
        struct twin t = twin_open(DP_BF16, n);
        const int64_t rows = sizes[n][0], cols = sizes[n][1], ld = sizes[n][2];
        const struct dp_cuda_operand operand = {.rows = cols, .cols = rows, .ld = ld};
        const int wide = twin_values(&t, DP_OPERAND_ELEMENT, rows * ld, 1);
        const int dense = twin_values(&t, DP_OPERAND_REAL, rows * cols, 0);
        const int back = twin_values(&t, DP_OPERAND_ELEMENT, rows * ld, 0);
        for (int schedule = 0; schedule < twin_schedules(); schedule++) {
            twin_schedule(&t, n + 1, schedule);
            struct dp_stream *stream = t.device[GPU]->stream;
            dp_cuda_widen(stream, &operand, ld, t.at[wide][GPU], t.at[dense][GPU]);
            dp_cuda_narrow(stream, &operand, ld, t.at[dense][GPU], t.at[back][GPU]);
            twin_sync(&t);
            for (int64_t i = 0; i < rows * cols; i++) {
                const int64_t at = i / cols * ld + i % cols;
                assert_true(twin_value(&t, dense, GPU, i) == twin_value(&t, wide, GPU, at));
                assert_true(twin_value(&t, back, GPU, at) == twin_value(&t, wide, GPU, at));
            }
        }
        twin_close(&t);
    }
}

struct laid {
    struct dp_cuda_product product;
    int given, to;
};

// The plan of a product whose a has the scales that are asked for.
static void plan(struct twin *t, int sm, int64_t rows, int64_t k, int32_t tile_rows,
                 struct laid *laid)
{
    struct dp_error err;
    const struct dp_gemm gemm = {.m = rows,
                                 .n = 16,
                                 .k = k,
                                 .lda = k,
                                 .ldb = k,
                                 .ldc = 16,
                                 .transpose_b = true,
                                 .a_kind = DP_OPERAND_FP8,
                                 .b_kind = DP_OPERAND_FP8,
                                 .a_scales = {NULL, tile_rows, 128},
                                 .b_scales = {NULL, 1, 128}};
    assert_ok(dp_cuda_product_plan(sm, DP_BF16, &gemm, &laid->product, &err), &err);
    const int64_t count = (rows + tile_rows - 1) / tile_rows * ((k + 127) / 128);
    float *scales = dp_new_array(float, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        scales[i] = ldexpf(1, (int)(i % 100) - 50);
    }
    laid->given = twin_bytes(t, (size_t)count * sizeof(float), scales);
    laid->to = twin_bytes(t, laid->product.second.scale_bytes, NULL);
    free(scales);
}

static void lay(struct twin *t, const struct laid *laid, int schedule)
{
    twin_schedule(t, 7, schedule);
    dp_cuda_lay_scales(t->device[GPU]->stream, &laid->product.second, t->at[laid->given][GPU],
                       t->at[laid->to][GPU]);
    twin_sync(t);
}

static const int64_t shapes[][2] = {{1, 16}, {16, 128}, {100, 144}, {300, 1040}};

static void scales_of_hopper_lie_along_the_rows(void **state)
{
    (void)state;
    for (size_t n = 0; n < 8; n++) {
        const int64_t rows = shapes[n / 2][0], k = shapes[n / 2][1], across = (k + 127) / 128;
        const int32_t tile_rows = n % 2 == 0 ? 1 : 128;
        struct laid laid;
        struct twin t = twin_open(DP_BF16, n);
        plan(&t, 90, rows, k, tile_rows, &laid);
        for (int schedule = 0; schedule < twin_schedules(); schedule++) {
            lay(&t, &laid, schedule);
            const float *given = t.at[laid.given][GPU], *to = t.at[laid.to][GPU];
            for (int64_t r = 0; r < rows; r++) {
                for (int64_t tile = 0; tile < across; tile++) {
                    const int64_t place =
                        tile_rows == 1 ? tile * rows + r : r / 128 * ((across + 3) / 4 * 4) + tile;
                    assert_true(to[place] == given[r / tile_rows * across + tile]);
                }
            }
        }
        twin_close(&t);
    }
}

// Row r and block b of 32 values: tile (r / 128, b / 4) of 512 bytes, in it (r % 32) * 16 +
// (r % 128 / 32) * 4 + b % 4.
static void scales_of_blackwell_are_exponents_in_tiles(void **state)
{
    (void)state;
    for (size_t n = 0; n < 8; n++) {
        const int64_t rows = shapes[n / 2][0], k = shapes[n / 2][1], across = (k + 127) / 128;
        const int32_t tile_rows = n % 2 == 0 ? 1 : 128;
        struct laid laid;
        struct twin t = twin_open(DP_BF16, n);
        plan(&t, 100, rows, k, tile_rows, &laid);
        for (int schedule = 0; schedule < twin_schedules(); schedule++) {
            lay(&t, &laid, schedule);
            const float *given = t.at[laid.given][GPU];
            const uint8_t *to = t.at[laid.to][GPU];
            for (int64_t r = 0; r < rows; r++) {
                for (int64_t b = 0; b < (k + 31) / 32; b++) {
                    const int64_t place =
                        (r / 128 * across + b / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + b % 4;
                    const float scale = given[r / tile_rows * across + b / 4];
                    assert_true(ldexpf(1, to[place] - 127) == scale);
                }
            }
        }
        twin_close(&t);
    }
}

static void scales_that_are_no_powers_of_two_are_counted(void **state)
{
    (void)state;
    struct laid laid;
    struct twin t = twin_open(DP_BF16, 1);
    plan(&t, 100, 16, 128, 1, &laid);
    ((float *)t.first[laid.given])[3] = 0.3f;
    twin_schedule(&t, 1, 1);
    struct dp_stream *stream = t.device[GPU]->stream;
    dp_cuda_lay_scales(stream, &laid.product.second, t.at[laid.given][GPU], t.at[laid.to][GPU]);
    assert_true(*stream->bad_scales == 4); // its four blocks of 32
    twin_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_matrices_are_copied_and_rounded_back),
        cmocka_unit_test(scales_of_hopper_lie_along_the_rows),
        cmocka_unit_test(scales_of_blackwell_are_exponents_in_tiles),
        cmocka_unit_test(scales_that_are_no_powers_of_two_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
