#include "cpu_real.h"

static void swiglu_forward(struct dp_stream *stream, const struct dp_swiglu *swiglu, void *output)
{
    (void)stream;
    const int64_t width = swiglu->width;
    const real *weight = swiglu->weight;
    for (int64_t r = 0; r < swiglu->rows; r++) {
        const real *restrict gate = (const real *)swiglu->gate_up + 2 * r * width;
        const real *restrict up = gate + width;
        real *restrict y = (real *)output + r * width;
        const real w = weight == NULL ? 1 : weight[r];
        for (int64_t i = 0; i < width; i++) {
            y[i] = w * up[i] * gate[i] / (1 + real_exp(-gate[i]));
        }
    }
}

static void swiglu_input_grad(struct dp_stream *stream, const struct dp_swiglu *swiglu,
                              const void *doutput, void *dgate_up, void *dweight, void *output)
{
    (void)stream;
    const int64_t width = swiglu->width;
    const real *weight = swiglu->weight;
    for (int64_t r = 0; r < swiglu->rows; r++) {
        // gate and dgate may be the same memory: each element is read before it is written.
        const real *gate = (const real *)swiglu->gate_up + 2 * r * width;
        const real *dy = (const real *)doutput + r * width;
        real *dgate = (real *)dgate_up + 2 * r * width;
        real *y = (real *)output + r * width;
        const real w = weight == NULL ? 1 : weight[r];
        real dw = 0;
#pragma omp simd reduction(+ : dw)
        for (int64_t i = 0; i < width; i++) {
            const real g = gate[i], u = gate[width + i], d = dy[i];
            const real sigmoid = 1 / (1 + real_exp(-g));
            const real silu = g * sigmoid;
            y[i] = w * silu * u;
            dw += d * silu * u;
            dgate[i] = w * d * u * sigmoid * (1 + g - silu);
            dgate[width + i] = w * d * silu;
        }
        if (dweight != NULL) {
            ((real *)dweight)[r] = dw;
        }
    }
}

void DP_CPU_INSTALLER(swiglu)(struct dp_device_ops *ops)
{
    ops->swiglu_forward = swiglu_forward;
    ops->swiglu_input_grad = swiglu_input_grad;
}
