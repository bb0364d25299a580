#include "cpu_real.h"

static void cross_entropy_forward(struct dp_stream *stream, int64_t tokens, int64_t vocabulary,
                                  const void *logits, const int32_t *targets, void *lse,
                                  double *ret_sum)
{
    (void)stream;
    double total = 0;
    for (int64_t t = 0; t < tokens; t++) {
        const real *x = (const real *)logits + t * vocabulary;
        real max = x[0], sum = 0;
#pragma omp simd reduction(max : max)
        for (int64_t i = 0; i < vocabulary; i++) {
            max = x[i] > max ? x[i] : max;
        }
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < vocabulary; i++) {
            sum += real_exp(x[i] - max);
        }
        const real row_lse = max + (real)log((double)sum);
        ((real *)lse)[t] = row_lse;
        total += (double)max - (double)x[targets[t]] + log((double)sum);
    }
    *ret_sum = total;
}

static void cross_entropy_input_grad(struct dp_stream *stream, int64_t tokens, int64_t vocabulary,
                                     double scale, const int32_t *targets, const void *lse,
                                     void *logits)
{
    (void)stream;
    const real factor = (real)scale;
    for (int64_t t = 0; t < tokens; t++) {
        real *x = (real *)logits + t * vocabulary;
        const real row_lse = ((const real *)lse)[t];
        for (int64_t i = 0; i < vocabulary; i++) {
            x[i] = factor * real_exp(x[i] - row_lse);
        }
        x[targets[t]] -= factor;
    }
}

void DP_CPU_INSTALLER(loss)(struct dp_device_ops *ops)
{
    ops->cross_entropy_forward = cross_entropy_forward;
    ops->cross_entropy_input_grad = cross_entropy_input_grad;
}
