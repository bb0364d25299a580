// Formats below float: bfloat16 and E4M3 against their definitions, and products over them against
// products in double. Tolerances on 1 - 2<x, y> / (<x, x> + <y, y>) are those of DeepGEMM's tests.
#include "gradient.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/device.h"

static struct dp_device *devices[3]; // by element

static int open_devices(void **state)
{
    (void)state;
    for (int i = DP_F32; i <= DP_BF16; i++) {
        if (dp_device_open_cpu((dp_element)i, &devices[i], NULL) != DP_OK) {
            return -1;
        }
    }
    return 0;
}

static int close_devices(void **state)
{
    (void)state;
    for (int i = DP_F32; i <= DP_BF16; i++) {
        dp_device_close(devices[i]);
    }
    return 0;
}

// The number that a bfloat16 stands for, from its three fields.
static double bf16_number(uint16_t bits)
{
    const int exponent = bits >> 7 & 0xff, mantissa = bits & 0x7f;
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 0xff) {
        return mantissa == 0 ? sign * INFINITY : NAN;
    }
    return exponent == 0 ? sign * ldexp(mantissa, -133)
                         : sign * ldexp(128 + mantissa, exponent - 134);
}

// The nearest bfloat16 to a finite positive number: of the neighbours that enclose it the nearer,
// or the even one. Past the largest, infinity takes the place of the number that would follow it.
static uint16_t bf16_nearest(double x)
{
    uint16_t below = 0;
    for (int bit = 14; bit >= 0; bit--) {
        const uint16_t higher = (uint16_t)(below | 1 << bit);
        if (higher <= 0x7f7f && bf16_number(higher) <= x) {
            below = higher;
        }
    }
    const double lower = bf16_number(below);
    const double upper = below == 0x7f7f ? ldexp(1, 128) : bf16_number((uint16_t)(below + 1));
    const bool up = x - lower > upper - x || (x - lower == upper - x && (below & 1) != 0);
    return (uint16_t)(below + up);
}

static void bf16_rounds_to_the_nearest_even_and_keeps_nan(void **state)
{
    (void)state;
    const struct dp_device *device = devices[DP_BF16];
    // Every upper half, and lower halves around each kind of tie.
    const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint32_t high = 0; high < 0x8000; high++) {
        uint32_t words[6];
        float values[6], back[6];
        uint16_t stored[6];
        for (int i = 0; i < 6; i++) {
            words[i] = high << 16 | low[i];
        }
        memcpy(values, words, sizeof(values));
        device->ops->convert(device->stream, 6, DP_OPERAND_REAL, values, DP_OPERAND_ELEMENT,
                             stored);
        device->ops->convert(device->stream, 6, DP_OPERAND_ELEMENT, stored, DP_OPERAND_REAL, back);
        for (int i = 0; i < 6; i++) {
            if (isnan(values[i])) {
                assert_true(isnan(bf16_number(stored[i])) && isnan(back[i]));
            } else if (isinf(values[i])) {
                assert_int_equal(stored[i], 0x7f80);
            } else {
                assert_int_equal(stored[i], bf16_nearest((double)values[i]));
                assert_true((double)back[i] == bf16_number(stored[i]));
            }
        }
    }
}

static double e4m3_number(int code)
{
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double sign = code & 0x80 ? -1 : 1;
    if (exponent == 15 && mantissa == 7) {
        return NAN;
    }
    return exponent == 0 ? sign * ldexp(mantissa, -9) : sign * ldexp(8 + mantissa, exponent - 10);
}

static void every_e4m3_code_is_the_number_of_its_fields(void **state)
{
    (void)state;
    uint8_t codes[256];
    for (int i = 0; i < 256; i++) {
        codes[i] = (uint8_t)i;
    }
    const float scale = 1;
    const struct dp_fp8 fp8 = {.rows = 1, .cols = 256, .tile_rows = 1, .tile_cols = 256};
    float values[256];
    devices[DP_BF16]->ops->dequantize_fp8(devices[DP_BF16]->stream, &fp8, codes, &scale,
                                          DP_OPERAND_REAL, values);
    for (int i = 0; i < 256; i++) {
        const double number = e4m3_number(i);
        assert_true(isnan(number) ? isnan(values[i]) : (double)values[i] == number);
        assert_int_equal(signbit(values[i]) != 0, i >= 128);
    }
    assert_true(e4m3_number(0x7e) == 448 && e4m3_number(1) == 0x1p-9);
}

// The code of a number in [0, 448] by looking at all of them.
static int e4m3_nearest(double x)
{
    int best = 0;
    for (int code = 1; code < 0x7f; code++) {
        const double gain = fabs(e4m3_number(best) - x) - fabs(e4m3_number(code) - x);
        best = gain > 0 || (gain == 0 && code % 2 == 0) ? code : best;
    }
    return best;
}

static void numbers_become_the_nearest_e4m3_code(void **state)
{
    (void)state;
    const struct dp_device *device = devices[DP_F32];
    enum { COUNT = 126 * 7 };
    float values[2 * COUNT + 1];
    uint8_t codes[2 * COUNT + 1];
    for (int code = 0; code < 126; code++) {
        const float a = (float)e4m3_number(code), b = (float)e4m3_number(code + 1);
        const float middle = (a + b) / 2;
        const float around[] = {a,      nextafterf(a, 1000),      nextafterf(middle, 0),
                                middle, nextafterf(middle, 1000), nextafterf(b, 0),
                                b};
        for (int i = 0; i < 7; i++) {
            values[code * 7 + i] = around[i];
            values[COUNT + code * 7 + i] = -around[i];
        }
    }
    values[2 * COUNT] = 448; // the scale is 1
    const struct dp_fp8 fp8 = {
        .rows = 1, .cols = 2 * COUNT + 1, .tile_rows = 1, .tile_cols = 2 * COUNT + 1};
    float scale = NAN;
    device->ops->quantize_fp8(device->stream, &fp8, DP_OPERAND_REAL, values, codes, &scale);
    assert_true(scale == 1);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(codes[i], e4m3_nearest((double)values[i]));
        assert_int_equal(codes[COUNT + i], codes[i] | 0x80);
    }
}

static void powers_of_two_are_rounded_up_at_every_exponent(void **state)
{
    (void)state;
    const struct dp_device *device = devices[DP_F32];
    for (int exponent = -13; exponent < 128; exponent++) {
        for (int step = 0; step < 8; step++) {
            const float amax = ldexpf(1 + (float)step / 8, exponent);
            const float values[4] = {amax, -amax / 3, 0, amax / 448};
            const struct dp_fp8 fp8 = {1, 4, 1, 4, true};
            uint8_t codes[4];
            float scale = NAN;
            int two_to;
            device->ops->quantize_fp8(device->stream, &fp8, DP_OPERAND_REAL, values, codes, &scale);
            assert_true(frexpf(scale, &two_to) == 0.5f);
            const double least = fmax((double)amax, 1e-4) / 448;
            assert_true((double)scale >= least * (1 - 1e-7) && (double)scale < 2 * least);
            for (int i = 0; i < 4; i++) {
                const double x = (double)values[i] / (double)scale;
                assert_int_equal(codes[i], e4m3_nearest(fabs(x)) | (x < 0 ? 0x80 : 0));
            }
        }
    }
    struct dp_error err;
    assert_ok(device->ops->stream_sync(device->stream, &err), &err);
}

static void a_tile_of_zeros_stays_zeros(void **state)
{
    (void)state;
    const struct dp_device *device = devices[DP_F32];
    const float zeros[256] = {0};
    uint8_t codes[256];
    float scales[2], back[256];
    for (int two = 0; two < 2; two++) {
        const struct dp_fp8 fp8 = {2, 128, 1, 128, two == 1};
        device->ops->quantize_fp8(device->stream, &fp8, DP_OPERAND_REAL, zeros, codes, scales);
        device->ops->dequantize_fp8(device->stream, &fp8, codes, scales, DP_OPERAND_REAL, back);
        assert_true(scales[0] > 0 && scales[1] > 0 && scales[0] < 1e-6f);
        assert_memory_equal(back, zeros, sizeof(back));
    }
}

static void what_is_not_finite_is_reported_and_leaves_its_tile_alone(void **state)
{
    (void)state;
    const struct dp_device *device = devices[DP_F32];
    const float bad[] = {INFINITY, -INFINITY, NAN};
    const int wanted[] = {0x7e, 0xfe, 0x7f};
    for (int i = 0; i < 3; i++) {
        for (int tall = 0; tall < 2; tall++) {
            const float values[4] = {1, bad[i], -2, 0.5f};
            const struct dp_fp8 fp8 = {tall ? 4 : 1, tall ? 1 : 4, tall ? 4 : 1, tall ? 1 : 4,
                                       false};
            uint8_t codes[4];
            float scale = NAN;
            struct dp_error err;
            device->ops->quantize_fp8(device->stream, &fp8, DP_OPERAND_REAL, values, codes, &scale);
            assert_refused(device->ops->stream_sync(device->stream, &err), DP_INVALID, &err,
                           "infinite or NaN");
            assert_ok(device->ops->stream_sync(device->stream, &err), &err);
            assert_int_equal(codes[1] & (i == 2 ? 0x7f : 0xff), wanted[i]);
            assert_int_equal(codes[2], 0xfe);
            assert_near((double)scale, 2.0 / 448, 1e-9);
        }
    }
}

// Numbers as doubles, and as they were before: reals of a device that are rounded from them.
struct matrix {
    int64_t rows, cols;
    double *numbers; // [rows, cols]
    void *stored;    // as `kind` says, on `device`
    float *scales;
    dp_operand kind;
    int32_t tile_rows, tile_cols;
};

static void matrix_deinit(struct matrix *m)
{
    free(m->numbers);
    free(m->stored);
    free(m->scales);
}

#define MATRIX DP_CLEANUP(matrix_deinit) struct matrix

// What is stored, as doubles.
static double *stored_numbers(struct dp_device *device, const struct matrix *m)
{
    const int64_t count = m->rows * m->cols;
    const size_t real_bytes = dp_device_real_bytes(device);
    DP_AUTO_FREE char *reals = dp_alloc_aligned((size_t)count, real_bytes);
    if (m->kind == DP_OPERAND_FP8) {
        const struct dp_fp8 fp8 = {m->rows, m->cols, m->tile_rows, m->tile_cols, false};
        device->ops->dequantize_fp8(device->stream, &fp8, m->stored, m->scales, DP_OPERAND_REAL,
                                    reals);
    } else {
        device->ops->convert(device->stream, count, m->kind, m->stored, DP_OPERAND_REAL, reals);
    }
    double *numbers = dp_new_array(double, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        numbers[i] =
            real_bytes == 8 ? ((double *)(void *)reals)[i] : (double)((float *)(void *)reals)[i];
    }
    return numbers;
}

static struct matrix make(struct dp_device *device, uint64_t seed, int64_t rows, int64_t cols,
                          dp_operand kind, int32_t tile_rows, int32_t tile_cols)
{
    const int64_t count = rows * cols;
    struct matrix m = {.rows = rows,
                       .cols = cols,
                       .numbers = dp_new_array(double, (size_t)count),
                       .stored = dp_alloc_aligned((size_t)count, 8),
                       .scales = dp_new_array(float, (size_t)count),
                       .kind = kind,
                       .tile_rows = tile_rows,
                       .tile_cols = tile_cols};
    struct dp_rand rand;
    dp_rand_init(&rand, seed);
    fill_normal(&rand, m.numbers, count, 1);
    if (kind == DP_OPERAND_FP8) {
        const struct dp_fp8 fp8 = {rows, cols, tile_rows, tile_cols, false};
        DP_AUTO_FREE double *reals = dp_new_array(double, (size_t)count);
        device->ops->from_double(device->stream, count, m.numbers, DP_OPERAND_REAL, reals);
        device->ops->quantize_fp8(device->stream, &fp8, DP_OPERAND_REAL, reals, m.stored, m.scales);
    } else {
        device->ops->from_double(device->stream, count, m.numbers, kind, m.stored);
    }
    return m;
}

static double *product(const struct dp_gemm *g, const double *a, const double *b, const double *c)
{
    double *result = dp_new_array(double, (size_t)(g->m * g->n));
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            double sum = g->accumulate ? c[i * g->n + j] : 0;
            for (int64_t k = 0; k < g->k; k++) {
                sum += a[g->transpose_a ? k * g->m + i : i * g->k + k] *
                       b[g->transpose_b ? j * g->k + k : k * g->n + j];
            }
            result[i * g->n + j] = sum;
        }
    }
    return result;
}

// 1 - 2<x, y> / (<x, x> + <y, y>), which is |x - y|^2 / (|x|^2 + |y|^2); 0 when both are zero.
static double diff(const double *x, const double *y, int64_t count)
{
    double apart = 0, sum = 0;
    for (int64_t i = 0; i < count; i++) {
        apart += (x[i] - y[i]) * (x[i] - y[i]);
        sum += x[i] * x[i] + y[i] * y[i];
    }
    return apart == 0 ? 0 : apart / sum;
}

struct trial {
    dp_element element;
    bool transpose_a, transpose_b, accumulate;
    dp_operand a, b, c;
    int64_t m, n, k;
};

// How far the product is from that of the numbers as drawn, and of the numbers as stored.
static void run_trial(const struct trial *t, double *ret_drawn, double *ret_stored)
{
    struct dp_device *device = devices[t->element];
    MATRIX a = make(device, 1, t->transpose_a ? t->k : t->m, t->transpose_a ? t->m : t->k, t->a,
                    t->transpose_a ? 128 : 1, t->transpose_a ? 1 : 128);
    MATRIX b =
        make(device, 2, t->transpose_b ? t->n : t->k, t->transpose_b ? t->k : t->n, t->b, 128, 128);
    MATRIX c = make(device, 3, t->m, t->n, t->c, 0, 0);
    DP_AUTO_FREE double *stored_a = stored_numbers(device, &a);
    DP_AUTO_FREE double *stored_b = stored_numbers(device, &b);
    DP_AUTO_FREE double *stored_c = stored_numbers(device, &c);
    const struct dp_gemm g = {.transpose_a = t->transpose_a,
                              .transpose_b = t->transpose_b,
                              .accumulate = t->accumulate,
                              .m = t->m,
                              .n = t->n,
                              .k = t->k,
                              .a = a.stored,
                              .lda = a.cols,
                              .b = b.stored,
                              .ldb = b.cols,
                              .c = c.stored,
                              .ldc = t->n,
                              .a_kind = t->a,
                              .b_kind = t->b,
                              .c_kind = t->c,
                              .a_scales = {a.scales, a.tile_rows, a.tile_cols},
                              .b_scales = {b.scales, b.tile_rows, b.tile_cols}};
    DP_AUTO_FREE double *drawn = product(&g, a.numbers, b.numbers, c.numbers);
    DP_AUTO_FREE double *stored = product(&g, stored_a, stored_b, stored_c);
    device->ops->gemm(device->stream, &g);
    DP_AUTO_FREE double *got = stored_numbers(device, &c);
    *ret_drawn = diff(got, drawn, t->m * t->n);
    *ret_stored = diff(got, stored, t->m * t->n);
}

static void products_keep_to_the_tolerances_of_their_formats(void **state)
{
    (void)state;
    const struct {
        struct trial trial;
        double drawn, stored;
    } rows[] = {
        // Relative error 1e-6 sqrt(K / 1024), as diff.
        {{.element = DP_F32, .m = 33, .n = 65, .k = 1024, .transpose_b = true}, 5e-13, 5e-13},
        {{.element = DP_F32, .m = 33, .n = 65, .k = 4096}, 2e-12, 2e-12},
        {{.element = DP_F64, .m = 33, .n = 65, .k = 1024}, 1e-30, 1e-30},
        {{.element = DP_BF16, .m = 64, .n = 96, .k = 4096, .transpose_b = true}, 1e-5, 1e-5},
        {{.element = DP_BF16, .m = 64, .n = 96, .k = 512, .c = DP_OPERAND_REAL}, 1e-5, 1e-12},
        {{.element = DP_BF16,
          .m = 64,
          .n = 96,
          .k = 4096,
          .transpose_b = true,
          .a = DP_OPERAND_FP8,
          .b = DP_OPERAND_FP8},
         1e-3,
         1e-5},
        {{.element = DP_BF16,
          .m = 64,
          .n = 96,
          .k = 4096,
          .a = DP_OPERAND_FP8,
          .b = DP_OPERAND_FP8,
          .c = DP_OPERAND_REAL},
         1e-3,
         1e-11},
        {{.element = DP_F32,
          .m = 64,
          .n = 96,
          .k = 1000,
          .transpose_a = true,
          .a = DP_OPERAND_FP8,
          .b = DP_OPERAND_FP8},
         1e-3,
         1e-11},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double drawn, stored;
        run_trial(&rows[i].trial, &drawn, &stored);
        if (!(drawn <= rows[i].drawn && stored <= rows[i].stored)) {
            fail_msg("row %zu: %g from what was drawn, %g from what is stored", i, drawn, stored);
        }
    }
}

static void set_threads(dp_element element, int32_t threads)
{
    struct dp_error err;
    assert_ok(dp_device_set_threads(devices[element], threads, &err), &err);
}

static void products_of_every_mix_of_kinds_and_any_shape_are_right(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 17);
    const long runs = dp_fuzz_runs(300);
    for (long i = 0; i < runs; i++) {
        const int64_t limit = dp_rand_below(&rand, 4) == 0 ? 300 : 40;
        const struct trial t = {.element = (dp_element)dp_rand_below(&rand, 3),
                                .transpose_a = dp_rand_below(&rand, 2) == 1,
                                .transpose_b = dp_rand_below(&rand, 2) == 1,
                                .accumulate = dp_rand_below(&rand, 2) == 1,
                                .a = (dp_operand)dp_rand_below(&rand, 3),
                                .b = (dp_operand)dp_rand_below(&rand, 3),
                                .c = (dp_operand)dp_rand_below(&rand, 2),
                                .m = (int64_t)dp_rand_below(&rand, (uint64_t)limit),
                                .n = (int64_t)dp_rand_below(&rand, (uint64_t)limit),
                                .k = (int64_t)dp_rand_below(&rand, (uint64_t)limit)};
        set_threads(t.element, 1 + (int32_t)(i / 8 % 3));
        double drawn, stored;
        run_trial(&t, &drawn, &stored);
        // One rounding of bf16 moves a value by at most 2^-9 of it: as diff, 2^-19.
        const bool rounded = t.element == DP_BF16 && t.c == DP_OPERAND_ELEMENT;
        if (!(stored <= (rounded ? 2e-6 : 1e-12))) {
            fail_msg("run %ld: %g (%lld x %lld x %lld)", i, stored, (long long)t.m, (long long)t.n,
                     (long long)t.k);
        }
    }
    for (int i = DP_F32; i <= DP_BF16; i++) {
        set_threads((dp_element)i, 1);
    }
}

static void tiles_have_scales_of_their_own_up_to_cut_edges(void **state)
{
    (void)state;
    const struct {
        int32_t rows, cols;
    } tiles[] = {{1, 128}, {128, 128}, {128, 1}, {3, 7}};
    const int64_t rows = 130, cols = 257;
    struct dp_device *device = devices[DP_F32];
    for (int i = 0; i < 4; i++) {
        MATRIX m = make(device, 9, rows, cols, DP_OPERAND_FP8, tiles[i].rows, tiles[i].cols);
        const int64_t across = (cols + tiles[i].cols - 1) / tiles[i].cols;
        for (int64_t r = 0; r < rows; r += tiles[i].rows) {
            for (int64_t c = 0; c < cols; c += tiles[i].cols) {
                double amax = 0;
                for (int64_t y = r; y < rows && y < r + tiles[i].rows; y++) {
                    for (int64_t x = c; x < cols && x < c + tiles[i].cols; x++) {
                        amax = fmax(amax, fabs(m.numbers[y * cols + x]));
                    }
                }
                assert_near((double)m.scales[r / tiles[i].rows * across + c / tiles[i].cols],
                            amax / 448, 1e-6 * amax);
            }
        }
        // 4 significant bits: at most 2^-4 of a value, or half of the least number.
        DP_AUTO_FREE double *back = stored_numbers(device, &m);
        for (int64_t j = 0; j < rows * cols; j++) {
            assert_near(back[j], m.numbers[j], fabs(m.numbers[j]) / 16 + 6.0 / 448 / 1024);
        }
        assert_true(diff(back, m.numbers, rows * cols) < 1e-3);
    }
}

// A number as the element of bf16 that it is rounded to.
static double as_bf16(double x)
{
    return x < 0 ? -bf16_number(bf16_nearest(-x)) : bf16_number(bf16_nearest(x));
}

static void rows_are_summed_before_they_are_rounded(void **state)
{
    (void)state;
    enum { ROWS = 40, COLS = 700, TERMS = 3 };
    struct dp_device *device = devices[DP_BF16];
    MATRIX from = make(device, 5, ROWS, COLS, DP_OPERAND_ELEMENT, 0, 0);
    MATRIX to = make(device, 6, ROWS, COLS, DP_OPERAND_ELEMENT, 0, 0);
    MATRIX real = make(device, 7, ROWS, COLS, DP_OPERAND_REAL, 0, 0);
    DP_AUTO_FREE double *x = stored_numbers(device, &from), *y = stored_numbers(device, &to);
    int32_t index[ROWS * TERMS];
    for (int32_t i = 0; i < ROWS * TERMS; i++) {
        index[i] = i % 5 == 2 ? -1 : (i * 7) % ROWS;
    }
    const struct dp_rows rows = {.rows = ROWS, .cols = COLS};
    const struct dp_rows widened = {
        .rows = ROWS, .cols = COLS, .from_kind = DP_OPERAND_ELEMENT, .to_kind = DP_OPERAND_REAL};
    device->ops->collect_rows(device->stream, &rows, TERMS, true, index, from.stored, to.stored);
    device->ops->collect_rows(device->stream, &widened, TERMS, false, index, from.stored,
                              real.stored);
    DP_AUTO_FREE double *got = stored_numbers(device, &to), *wide = stored_numbers(device, &real);
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        double sum = 0;
        for (int j = 0; j < TERMS; j++) {
            const int32_t row = index[i / COLS * TERMS + j];
            sum += row < 0 ? 0 : x[row * COLS + i % COLS];
        }
        assert_near(wide[i], sum, 1e-6);
        // Half of the last of 8 significant bits.
        assert_near(got[i], y[i] + sum, ldexp(1, ilogb(fabs(y[i] + sum) + 1e-9) - 8) + 1e-6);
    }
}

// Moments beside those that are kept as floats: one rounding each, of the new value.
static void bf16_moments_are_floats_moments_rounded(void **state)
{
    (void)state;
    enum { COUNT = 2000 };
    struct dp_device *device = devices[DP_F32];
    MATRIX g = make(device, 1, 1, COUNT, DP_OPERAND_REAL, 0, 0);
    MATRIX w = make(device, 2, 1, COUNT, DP_OPERAND_REAL, 0, 0);
    MATRIX again = make(device, 2, 1, COUNT, DP_OPERAND_REAL, 0, 0);
    float m[COUNT] = {0}, v[COUNT] = {0};
    uint16_t short_m[COUNT] = {0}, short_v[COUNT] = {0};
    struct dp_adamw adamw = {.lr = 1e-2,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .step = 1,
                             .grad_scale = 0.5};
    device->ops->adamw(device->stream, &adamw, COUNT, g.stored, w.stored, m, v);
    adamw.bf16_moments = true;
    device->ops->adamw(device->stream, &adamw, COUNT, g.stored, again.stored, short_m, short_v);
    // The first step moves the weights by what was computed, before anything is rounded.
    assert_memory_equal(w.stored, again.stored, COUNT * sizeof(float));
    for (int i = 0; i < COUNT; i++) {
        assert_true(bf16_number(short_m[i]) == as_bf16((double)m[i]));
        assert_true(bf16_number(short_v[i]) == as_bf16((double)v[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_rounds_to_the_nearest_even_and_keeps_nan),
        cmocka_unit_test(every_e4m3_code_is_the_number_of_its_fields),
        cmocka_unit_test(numbers_become_the_nearest_e4m3_code),
        cmocka_unit_test(powers_of_two_are_rounded_up_at_every_exponent),
        cmocka_unit_test(a_tile_of_zeros_stays_zeros),
        cmocka_unit_test(what_is_not_finite_is_reported_and_leaves_its_tile_alone),
        cmocka_unit_test(products_keep_to_the_tolerances_of_their_formats),
        cmocka_unit_test(products_of_every_mix_of_kinds_and_any_shape_are_right),
        cmocka_unit_test(rows_are_summed_before_they_are_rounded),
        cmocka_unit_test(bf16_moments_are_floats_moments_rounded),
        cmocka_unit_test(tiles_have_scales_of_their_own_up_to_cut_edges),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
