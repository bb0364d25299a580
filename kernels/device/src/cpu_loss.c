#include "cpu_real.h"

// Logits that are worth another thread.
#define GRAIN 16384

struct loss {
    struct dp_cross_entropy loss;
    real *logits;
    real scale;
    double *each; // [tokens]
};

static void for_tokens(struct dp_stream *stream, struct loss *loss, dp_cpu_range range)
{
    dp_cpu_parallel(stream, loss->loss.tokens, 1 + GRAIN / (1 + loss->loss.vocabulary), range,
                    loss);
}

static void forward_tokens(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct loss *loss = context;
    const int64_t vocabulary = loss->loss.vocabulary;
    for (int64_t t = begin; t < end; t++) {
        const real *x = loss->logits + t * vocabulary;
        const int32_t target = loss->loss.targets[t];
        if (target < 0) {
            ((real *)loss->loss.lse)[t] = 0;
            loss->each[t] = 0;
            continue;
        }
        real max = x[0], sum = 0;
#pragma omp simd reduction(max : max)
        for (int64_t i = 0; i < vocabulary; i++) {
            max = x[i] > max ? x[i] : max;
        }
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < vocabulary; i++) {
            sum += real_exp(x[i] - max);
        }
        const double above = log((double)sum);
        ((real *)loss->loss.lse)[t] = max + (real)above;
        loss->each[t] = (double)max - (double)x[target] + above;
    }
}

static void cross_entropy_forward(struct dp_stream *stream, const struct dp_cross_entropy *loss,
                                  const void *logits, double *ret_sum)
{
    struct loss context = {.loss = *loss, .logits = (real *)(uintptr_t)logits};
    context.each = dp_stream_scratch(stream, (size_t)loss->tokens * sizeof(double));
    for_tokens(stream, &context, forward_tokens);
    double sum = 0;
    for (int64_t t = 0; t < loss->tokens; t++) {
        sum += context.each[t];
    }
    *ret_sum = sum;
}

static void grad_tokens(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct loss *loss = context;
    const int64_t vocabulary = loss->loss.vocabulary;
    for (int64_t t = begin; t < end; t++) {
        real *x = loss->logits + t * vocabulary;
        const int32_t target = loss->loss.targets[t];
        if (target < 0) {
            memset(x, 0, (size_t)vocabulary * sizeof(real));
            continue;
        }
        const real lse = ((const real *)loss->loss.lse)[t];
        for (int64_t i = 0; i < vocabulary; i++) {
            x[i] = loss->scale * real_exp(x[i] - lse);
        }
        x[target] -= loss->scale;
    }
}

static void cross_entropy_input_grad(struct dp_stream *stream, const struct dp_cross_entropy *loss,
                                     double scale, void *logits)
{
    struct loss context = {.loss = *loss, .logits = logits, .scale = (real)scale};
    for_tokens(stream, &context, grad_tokens);
}

void DP_CPU_INSTALLER(loss)(struct dp_device_ops *ops)
{
    ops->cross_entropy_forward = cross_entropy_forward;
    ops->cross_entropy_input_grad = cross_entropy_input_grad;
}
