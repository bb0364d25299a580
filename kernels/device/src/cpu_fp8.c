#include "cpu_fp8.h"

#include <float.h>

#include "cpu_real.h"

#define AMAX_MIN 1e-4f // keeps the scale of a tile of zeros from being zero

struct job {
    const struct dp_fp8 *fp8;
    dp_operand kind;
    const void *from; // of quantize
    void *to;         // of dequantize
    uint8_t *codes;
    float *scales;
};

static int64_t tiles_across(const struct dp_fp8 *fp8)
{
    return (fp8->cols + fp8->tile_cols - 1) / fp8->tile_cols;
}

static int64_t tile_end(const struct dp_fp8 *fp8, int64_t begin)
{
    return begin + fp8->tile_cols < fp8->cols ? begin + fp8->tile_cols : fp8->cols;
}

static void load_row(const struct job *job, int64_t row, float *values)
{
    const int64_t cols = job->fp8->cols;
    real block[BLOCK];
    for (int64_t c = 0; c < cols; c += BLOCK) {
        const int64_t n = block_count(c, cols);
        const real *x = block_load(job->kind, job->from, row * cols + c, n, block);
        for (int64_t i = 0; i < n; i++) {
            values[c + i] = (float)x[i];
        }
    }
}

// Largest finite magnitudes of a row's tiles, over what is in amax. The number of values that are
// not finite.
static int64_t row_amax(const struct dp_fp8 *fp8, const float *values, float *amax)
{
    int64_t bad = 0;
    if (fp8->tile_cols == 1) {
        for (int64_t c = 0; c < fp8->cols; c++) {
            const float a = fabsf(values[c]);
            amax[c] = a <= FLT_MAX && a > amax[c] ? a : amax[c];
            bad += !(a <= FLT_MAX);
        }
        return bad;
    }
    for (int64_t c = 0, t = 0; c < fp8->cols; c = tile_end(fp8, c), t++) {
        float max = amax[t];
        const int64_t end = tile_end(fp8, c);
#pragma omp simd reduction(max : max) reduction(+ : bad)
        for (int64_t i = c; i < end; i++) {
            const float a = fabsf(values[i]);
            const float finite = a <= FLT_MAX ? a : 0;
            max = finite > max ? finite : max;
            bad += !(a <= FLT_MAX);
        }
        amax[t] = max;
    }
    return bad;
}

static float scale_of(const struct dp_fp8 *fp8, float amax)
{
    float scale = (amax > AMAX_MIN ? amax : AMAX_MIN) / DP_FP8_MAX;
    if (fp8->power_of_two) {
        uint32_t bits;
        memcpy(&bits, &scale, sizeof(bits));
        bits = (bits + 0x7fffffu) & 0xff800000u;
        memcpy(&scale, &bits, sizeof(scale));
    }
    return scale;
}

static void encode_tile(int64_t count, const float *restrict values, float scale,
                        uint8_t *restrict codes)
{
    for (int64_t i = 0; i < count; i++) {
        codes[i] = dp_fp8_encode(values[i] / scale);
    }
}

static void encode_columns(int64_t count, const float *restrict values,
                           const float *restrict scales, uint8_t *restrict codes)
{
    for (int64_t i = 0; i < count; i++) {
        codes[i] = dp_fp8_encode(values[i] / scales[i]);
    }
}

static void encode_row(const struct dp_fp8 *fp8, const float *values, const float *scales,
                       uint8_t *codes)
{
    if (fp8->tile_cols == 1) {
        encode_columns(fp8->cols, values, scales, codes);
        return;
    }
    for (int64_t c = 0, t = 0; c < fp8->cols; c = tile_end(fp8, c), t++) {
        encode_tile(tile_end(fp8, c) - c, values + c, scales[t], codes + c);
    }
}

// Rows of tiles [begin, end).
static void quantize_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    const struct job *job = context;
    const struct dp_fp8 *fp8 = job->fp8;
    const int64_t across = tiles_across(fp8);
    float *values = dp_stream_scratch(stream, (size_t)fp8->cols * sizeof(float));
    int64_t bad = 0;
    for (int64_t band = begin; band < end; band++) {
        float *scales = job->scales + band * across;
        const int64_t first = band * fp8->tile_rows;
        const int64_t last =
            first + fp8->tile_rows < fp8->rows ? first + fp8->tile_rows : fp8->rows;
        memset(scales, 0, (size_t)across * sizeof(float));
        for (int64_t r = first; r < last; r++) {
            load_row(job, r, values);
            bad += row_amax(fp8, values, scales);
        }
        for (int64_t t = 0; t < across; t++) {
            scales[t] = scale_of(fp8, scales[t]);
        }
        for (int64_t r = first; r < last; r++) {
            load_row(job, r, values);
            encode_row(fp8, values, scales, job->codes + r * fp8->cols);
        }
    }
    if (bad > 0) {
        dp_stream_fail(stream, DP_INVALID,
                       "%lld of the values to be stored as fp8 are infinite or NaN; lower the "
                       "learning rate or train in bf16",
                       (long long)bad);
    }
}

static void quantize(struct dp_stream *stream, const struct dp_fp8 *fp8, dp_operand from_kind,
                     const void *from, uint8_t *codes, float *scales)
{
    if (fp8->rows == 0 || fp8->cols == 0) {
        return;
    }
    struct job job = {
        .fp8 = fp8, .kind = from_kind, .from = from, .codes = codes, .scales = scales};
    const int64_t bands = (fp8->rows + fp8->tile_rows - 1) / fp8->tile_rows;
    dp_cpu_parallel(stream, bands, 1 + 16384 / (fp8->tile_rows * fp8->cols), quantize_range, &job);
}

static void decode_row(const struct dp_fp8 *fp8, const uint8_t *codes, const float *scales,
                       real *values)
{
    if (fp8->tile_cols == 1) {
        for (int64_t c = 0; c < fp8->cols; c++) {
            values[c] = (real)(dp_fp8_decode(codes[c]) * scales[c]);
        }
        return;
    }
    for (int64_t c = 0, t = 0; c < fp8->cols; c = tile_end(fp8, c), t++) {
        const float scale = scales[t];
        for (int64_t i = c; i < tile_end(fp8, c); i++) {
            values[i] = (real)(dp_fp8_decode(codes[i]) * scale);
        }
    }
}

static void dequantize_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    const struct job *job = context;
    const int64_t cols = job->fp8->cols;
    real *row = dp_stream_scratch(stream, (size_t)cols * sizeof(real));
    for (int64_t r = begin; r < end; r++) {
        real *values = kind_is_real(job->kind) ? (real *)job->to + r * cols : row;
        decode_row(job->fp8, job->codes + r * cols,
                   job->scales + r / job->fp8->tile_rows * tiles_across(job->fp8), values);
        block_store(job->kind, job->to, r * cols, cols, values);
    }
}

static void dequantize(struct dp_stream *stream, const struct dp_fp8 *fp8, const uint8_t *codes,
                       const float *scales, dp_operand to_kind, void *to)
{
    if (fp8->rows == 0 || fp8->cols == 0) {
        return;
    }
    struct job job = {.fp8 = fp8,
                      .kind = to_kind,
                      .to = to,
                      .codes = (uint8_t *)codes,
                      .scales = (float *)scales};
    dp_cpu_parallel(stream, fp8->rows, 1 + 16384 / fp8->cols, dequantize_range, &job);
}

void fp8_decode_rows(const struct dp_fp8 *fp8, int64_t first, int64_t rows, const uint8_t *codes,
                     int64_t ld, const float *scales, real *to)
{
    for (int64_t r = first; r < first + rows; r++) {
        decode_row(fp8, codes + r * ld, scales + r / fp8->tile_rows * tiles_across(fp8),
                   to + (r - first) * fp8->cols);
    }
}

void DP_CPU_INSTALLER(fp8)(struct dp_device_ops *ops)
{
    ops->quantize_fp8 = quantize;
    ops->dequantize_fp8 = dequantize;
}
