// SwiGLU with the routing weight inside, a block for each row.
#include "element.cuh"
#include "reduce.cuh"

template <typename E> struct swiglu_args {
    int64_t rows, width;
    const E *gate_up, *doutput;
    const float *weight;
    E *output, *dgate_up;
    float *dweight;
};

template <typename E> static __global__ void swiglu_value(swiglu_args<E> a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const E *gate = a.gate_up + 2 * r * a.width, *up = gate + a.width;
        const float w = a.weight == NULL ? 1 : a.weight[r];
        for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
            const float g = load(gate[i]);
            store(&a.output[r * a.width + i], w * load(up[i]) * g / (1 + expf(-g)));
        }
    }
}

// dgate_up may be gate_up itself: a thread reads both of its values before it writes them.
template <typename E> static __global__ void swiglu_grad(swiglu_args<E> a)
{
    for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const E *x = a.gate_up + 2 * r * a.width;
        E *dx = a.dgate_up + 2 * r * a.width;
        const float w = a.weight == NULL ? 1 : a.weight[r];
        float dw = 0;
        for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
            const float g = load(x[i]), u = load(x[a.width + i]);
            const float d = load(a.doutput[r * a.width + i]);
            const float sigmoid = 1 / (1 + expf(-g)), silu = g * sigmoid;
            dw += d * silu * u;
            store(&a.output[r * a.width + i], w * silu * u);
            store(&dx[i], w * d * u * sigmoid * (1 + g - silu));
            store(&dx[a.width + i], w * d * silu);
        }
        if (a.dweight != NULL) {
            dw = block_sum(dw);
            if (threadIdx.x == 0) {
                a.dweight[r] = dw;
            }
        }
    }
}

template <typename E> static swiglu_args<E> swiglu_of(const struct dp_swiglu *swiglu)
{
    swiglu_args<E> a = {};
    a.rows = swiglu->rows;
    a.width = swiglu->width;
    a.gate_up = (const E *)swiglu->gate_up;
    a.weight = (const float *)swiglu->weight;
    return a;
}

static void swiglu_forward(struct dp_stream *stream, const struct dp_swiglu *swiglu, void *output)
{
    if (swiglu->rows == 0 || swiglu->width == 0) {
        return;
    }
    DP_BY_ELEMENT(
        stream, swiglu_args<E> a = swiglu_of<E>(swiglu); a.output = (E *)output;
        DP_LAUNCH(stream, swiglu_value<E>, dp_grid(a.rows, 1), dp_block(a.width, 256), 0, a));
}

static void swiglu_input_grad(struct dp_stream *stream, const struct dp_swiglu *swiglu,
                              const void *doutput, void *dgate_up, void *dweight, void *output)
{
    if (swiglu->rows == 0 || swiglu->width == 0) {
        return;
    }
    DP_BY_ELEMENT(
        stream, swiglu_args<E> a = swiglu_of<E>(swiglu); a.doutput = (const E *)doutput;
        a.dgate_up = (E *)dgate_up; a.dweight = (float *)dweight; a.output = (E *)output;
        DP_LAUNCH(stream, swiglu_grad<E>, dp_grid(a.rows, 1), dp_block(a.width, 256), 0, a));
}

void dp_cuda_install_swiglu(struct dp_device_ops *ops)
{
    ops->swiglu_forward = swiglu_forward;
    ops->swiglu_input_grad = swiglu_input_grad;
}
