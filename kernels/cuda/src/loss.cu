// The next-token loss, a block for each row of logits.
#include <float.h>

#include "element.cuh"
#include "reduce.cuh"

struct loss_args {
    struct dp_cross_entropy loss;
    float *logits;
    float scale;
    double *each; // [tokens]
};

static __global__ void loss_value(loss_args a)
{
    const int64_t vocabulary = a.loss.vocabulary;
    for (int64_t t = blockIdx.x; t < a.loss.tokens; t += gridDim.x) {
        const float *x = a.logits + t * vocabulary;
        const int32_t target = a.loss.targets[t];
        float max = -FLT_MAX, sum = 0;
        for (int64_t i = threadIdx.x; target >= 0 && i < vocabulary; i += blockDim.x) {
            max = x[i] > max ? x[i] : max;
        }
        max = block_max(max);
        for (int64_t i = threadIdx.x; target >= 0 && i < vocabulary; i += blockDim.x) {
            sum += expf(x[i] - max);
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            const double above = target < 0 ? 0 : log((double)sum);
            ((float *)a.loss.lse)[t] = target < 0 ? 0 : max + (float)above;
            a.each[t] = target < 0 ? 0 : (double)max - (double)x[target] + above;
        }
    }
}

static __global__ void loss_grad(loss_args a)
{
    const int64_t vocabulary = a.loss.vocabulary;
    for (int64_t t = blockIdx.x; t < a.loss.tokens; t += gridDim.x) {
        float *x = a.logits + t * vocabulary;
        const int32_t target = a.loss.targets[t];
        const float lse = ((const float *)a.loss.lse)[t];
        for (int64_t i = threadIdx.x; i < vocabulary; i += blockDim.x) {
            const float d = a.scale * expf(x[i] - lse) - (i == target ? a.scale : 0);
            x[i] = target < 0 ? 0 : d;
        }
    }
}

static void cross_entropy_forward(struct dp_stream *stream, const struct dp_cross_entropy *loss,
                                  const void *logits, double *ret_sum)
{
    if (loss->tokens == 0) {
        *ret_sum = 0;
        return;
    }
    loss_args a = {};
    a.loss = *loss;
    a.logits = (float *)logits;
    a.each = (double *)dp_cuda_scratch(stream,
                                       (size_t)loss->tokens * sizeof(double) + DP_CUDA_SUM_BYTES);
    if (a.each == NULL) {
        return;
    }
    DP_LAUNCH(stream, loss_value, dp_grid(loss->tokens, 1), dp_block(loss->vocabulary, 256), 0, a);
    dp_cuda_sum_doubles(stream, loss->tokens, a.each, ret_sum);
}

static void cross_entropy_input_grad(struct dp_stream *stream, const struct dp_cross_entropy *loss,
                                     double scale, void *logits)
{
    if (loss->tokens == 0) {
        return;
    }
    loss_args a = {};
    a.loss = *loss;
    a.logits = (float *)logits;
    a.scale = (float)scale;
    DP_LAUNCH(stream, loss_grad, dp_grid(loss->tokens, 1), dp_block(loss->vocabulary, 256), 0, a);
}

void dp_cuda_install_loss(struct dp_device_ops *ops)
{
    ops->cross_entropy_forward = cross_entropy_forward;
    ops->cross_entropy_input_grad = cross_entropy_input_grad;
}
