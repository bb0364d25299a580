#include "cpu_real.h"

static real dot(int64_t count, const real *x, const real *y)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

static void normalise(const struct dp_rmsnorm *norm, int64_t row, real *restrict y)
{
    const real *restrict x = (const real *)norm->x + row * norm->cols;
    const real *restrict gain = norm->gain;
    const real rstd = ((const real *)norm->rstd)[row];
    for (int64_t i = 0; i < norm->cols; i++) {
        y[i] = x[i] * rstd * gain[i];
    }
}

static void rmsnorm_forward(struct dp_stream *stream, const struct dp_rmsnorm *norm, void *y)
{
    (void)stream;
    real *rstd = norm->rstd;
    for (int64_t r = 0; r < norm->rows; r++) {
        const real *x = (const real *)norm->x + r * norm->cols;
        rstd[r] = 1 / real_sqrt(dot(norm->cols, x, x) / (real)norm->cols + (real)norm->eps);
        normalise(norm, r, (real *)y + r * norm->cols);
    }
}

static void rmsnorm_again(struct dp_stream *stream, const struct dp_rmsnorm *norm, void *y)
{
    (void)stream;
    for (int64_t r = 0; r < norm->rows; r++) {
        normalise(norm, r, (real *)y + r * norm->cols);
    }
}

static void rmsnorm_input_grad(struct dp_stream *stream, const struct dp_rmsnorm *norm,
                               const void *dy, void *dx)
{
    (void)stream;
    const real *restrict gain = norm->gain;
    for (int64_t r = 0; r < norm->rows; r++) {
        const real *restrict x = (const real *)norm->x + r * norm->cols;
        const real *restrict g = (const real *)dy + r * norm->cols;
        real *restrict d = (real *)dx + r * norm->cols;
        real sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < norm->cols; i++) {
            sum += g[i] * gain[i] * x[i];
        }
        const real rstd = ((const real *)norm->rstd)[r];
        const real along = sum * rstd * rstd / (real)norm->cols;
        for (int64_t i = 0; i < norm->cols; i++) {
            d[i] += rstd * (g[i] * gain[i] - x[i] * along);
        }
    }
}

static void rmsnorm_weight_grad(struct dp_stream *stream, const struct dp_rmsnorm *norm,
                                const void *dy, void *dgain)
{
    (void)stream;
    real *restrict d = dgain;
    for (int64_t r = 0; r < norm->rows; r++) {
        const real *restrict x = (const real *)norm->x + r * norm->cols;
        const real *restrict g = (const real *)dy + r * norm->cols;
        const real rstd = ((const real *)norm->rstd)[r];
        for (int64_t i = 0; i < norm->cols; i++) {
            d[i] += g[i] * x[i] * rstd;
        }
    }
}

static void rotate(const struct dp_rope *rope, const real *restrict table, real *restrict x)
{
    const int64_t half = rope->head_dim / 2;
    const real sign = rope->inverse ? -1 : 1;
    for (int64_t i = 0; i < half; i++) {
        const real c = table[i], s = sign * table[half + i];
        const real a = x[i], b = x[half + i];
        x[i] = a * c - b * s;
        x[half + i] = b * c + a * s;
    }
}

static void rope(struct dp_stream *stream, const struct dp_rope *rope, void *x)
{
    (void)stream;
    for (int64_t r = 0; r < rope->rows; r++) {
        const real *table = (const real *)rope->table + r % rope->sequence * rope->head_dim;
        for (int64_t h = 0; h < rope->heads; h++) {
            rotate(rope, table, (real *)x + r * rope->stride + h * rope->head_dim);
        }
    }
}

void DP_CPU_INSTALLER(norm)(struct dp_device_ops *ops)
{
    ops->rmsnorm_forward = rmsnorm_forward;
    ops->rmsnorm_again = rmsnorm_again;
    ops->rmsnorm_input_grad = rmsnorm_input_grad;
    ops->rmsnorm_weight_grad = rmsnorm_weight_grad;
    ops->rope = rope;
}
