#include "cpu_real.h"

// Outputs that are worth another thread.
#define GRAIN 4096

struct gate {
    struct dp_swiglu swiglu;
    const element *doutput;
    element *dgate_up, *output;
    real *dweight;
};

static void for_rows(struct dp_stream *stream, struct gate *gate, dp_cpu_range range)
{
    dp_cpu_parallel(stream, gate->swiglu.rows, 1 + GRAIN / (1 + gate->swiglu.width), range, gate);
}

static void forward_rows(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct gate *gate = context;
    const int64_t width = gate->swiglu.width;
    const real *weight = gate->swiglu.weight;
    for (int64_t r = begin; r < end; r++) {
        const element *restrict g = (const element *)gate->swiglu.gate_up + 2 * r * width;
        const element *restrict up = g + width;
        element *restrict y = gate->output + r * width;
        const real w = weight == NULL ? 1 : weight[r];
        for (int64_t i = 0; i < width; i++) {
            const real x = element_load(g[i]);
            y[i] = element_store(w * element_load(up[i]) * x / (1 + real_exp(-x)));
        }
    }
}

static void swiglu_forward(struct dp_stream *stream, const struct dp_swiglu *swiglu, void *output)
{
    struct gate gate = {.swiglu = *swiglu, .output = output};
    for_rows(stream, &gate, forward_rows);
}

static void grad_rows(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct gate *gate = context;
    const int64_t width = gate->swiglu.width;
    const real *weight = gate->swiglu.weight;
    for (int64_t r = begin; r < end; r++) {
        // x and dx may be the same memory: each element is read before it is written.
        const element *x = (const element *)gate->swiglu.gate_up + 2 * r * width;
        const element *dy = gate->doutput + r * width;
        element *dx = gate->dgate_up + 2 * r * width;
        element *y = gate->output + r * width;
        const real w = weight == NULL ? 1 : weight[r];
        real dw = 0;
#pragma omp simd reduction(+ : dw)
        for (int64_t i = 0; i < width; i++) {
            const real g = element_load(x[i]), u = element_load(x[width + i]);
            const real d = element_load(dy[i]);
            const real sigmoid = 1 / (1 + real_exp(-g));
            const real silu = g * sigmoid;
            y[i] = element_store(w * silu * u);
            dw += d * silu * u;
            dx[i] = element_store(w * d * u * sigmoid * (1 + g - silu));
            dx[width + i] = element_store(w * d * silu);
        }
        if (gate->dweight != NULL) {
            gate->dweight[r] = dw;
        }
    }
}

static void swiglu_input_grad(struct dp_stream *stream, const struct dp_swiglu *swiglu,
                              const void *doutput, void *dgate_up, void *dweight, void *output)
{
    struct gate gate = {.swiglu = *swiglu,
                        .doutput = doutput,
                        .dgate_up = dgate_up,
                        .output = output,
                        .dweight = dweight};
    for_rows(stream, &gate, grad_rows);
}

void DP_CPU_INSTALLER(swiglu)(struct dp_device_ops *ops)
{
    ops->swiglu_forward = swiglu_forward;
    ops->swiglu_input_grad = swiglu_input_grad;
}
