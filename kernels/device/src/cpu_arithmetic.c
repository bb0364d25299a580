#include "cpu_real.h"

static void from_double(struct dp_stream *stream, int64_t count, const double *from, void *to)
{
    (void)stream;
    real *y = to;
    for (int64_t i = 0; i < count; i++) {
        y[i] = (real)from[i];
    }
}

static void add(struct dp_stream *stream, int64_t count, const void *from, void *to)
{
    (void)stream;
    const real *restrict x = from;
    real *restrict y = to;
    for (int64_t i = 0; i < count; i++) {
        y[i] += x[i];
    }
}

static void scale(struct dp_stream *stream, int64_t count, double factor, void *values)
{
    (void)stream;
    real *x = values;
    for (int64_t i = 0; i < count; i++) {
        x[i] *= (real)factor;
    }
}

static void sum_squares(struct dp_stream *stream, int64_t count, const void *values,
                        double *ret_sum)
{
    (void)stream;
    const real *x = values;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    *ret_sum = sum;
}

static void adamw(struct dp_stream *stream, const struct dp_adamw *a, int64_t count,
                  const void *grad, void *weight, void *moment1, void *moment2)
{
    (void)stream;
    const real *restrict g = grad;
    real *restrict w = weight;
    real *restrict m = moment1;
    real *restrict v = moment2;
    const real beta1 = (real)a->beta1, rest1 = (real)(1 - a->beta1);
    const real beta2 = (real)a->beta2, rest2 = (real)(1 - a->beta2);
    const real keep = (real)(1 - a->lr * a->weight_decay);
    const real step = (real)(a->lr / (1 - pow(a->beta1, (double)a->step)));
    const real root = (real)(1 / sqrt(1 - pow(a->beta2, (double)a->step)));
    const real eps = (real)a->eps, grad_scale = (real)a->grad_scale;
    for (int64_t i = 0; i < count; i++) {
        const real gi = g[i] * grad_scale;
        m[i] = beta1 * m[i] + rest1 * gi;
        v[i] = beta2 * v[i] + rest2 * gi * gi;
        w[i] = w[i] * keep - step * m[i] / (real_sqrt(v[i]) * root + eps);
    }
}

void DP_CPU_INSTALLER(arithmetic)(struct dp_device_ops *ops)
{
    ops->from_double = from_double;
    ops->add = add;
    ops->scale = scale;
    ops->sum_squares = sum_squares;
    ops->adamw = adamw;
}
