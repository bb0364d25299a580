// Value by value: conversions, sums, AdamW; and the sum of many doubles into one.
#include <math.h>

#include "element.cuh"
#include "reduce.cuh"

#define PER_BLOCK 1024 // values that are worth a block
#define SUM_BLOCKS 256

template <typename F, typename T> struct values_args {
    int64_t count;
    const F *from;
    T *to;
    float factor;
};

static __device__ __forceinline__ float load(double value)
{
    return (float)value;
}

static __device__ __forceinline__ int64_t first_value(void)
{
    return blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ int64_t value_stride(void)
{
    return gridDim.x * (int64_t)blockDim.x;
}

template <typename F, typename T> static __global__ void values_convert(values_args<F, T> a)
{
    for (int64_t i = first_value(); i < a.count; i += value_stride()) {
        store(&a.to[i], load(a.from[i]));
    }
}

template <typename F, typename T> static __global__ void values_add(values_args<F, T> a)
{
    for (int64_t i = first_value(); i < a.count; i += value_stride()) {
        store(&a.to[i], load(a.to[i]) + load(a.from[i]));
    }
}

template <typename F, typename T> static __global__ void values_scale(values_args<F, T> a)
{
    for (int64_t i = first_value(); i < a.count; i += value_stride()) {
        store(&a.to[i], load(a.to[i]) * a.factor);
    }
}

// A partial sum for each block.
template <typename F> static __global__ void values_squares(values_args<F, double> a)
{
    double sum = 0;
    for (int64_t i = first_value(); i < a.count; i += value_stride()) {
        sum += (double)load(a.from[i]) * (double)load(a.from[i]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        a.to[blockIdx.x] = sum;
    }
}

// One block; thread by thread in a fixed order.
static __global__ void values_total(values_args<double, double> a)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < a.count; i += blockDim.x) {
        sum += a.from[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        a.to[0] = sum;
    }
}

template <typename M> struct adamw_args {
    int64_t count;
    const float *grad;
    float *weight;
    M *m, *v;
    float beta1, rest1, beta2, rest2, keep, step, root, eps, grad_scale;
};

template <typename M> static __global__ void values_adamw(adamw_args<M> a)
{
    for (int64_t i = first_value(); i < a.count; i += value_stride()) {
        const float g = a.grad[i] * a.grad_scale;
        const float m = a.beta1 * load(a.m[i]) + a.rest1 * g;
        const float v = a.beta2 * load(a.v[i]) + a.rest2 * g * g;
        store(&a.m[i], m);
        store(&a.v[i], v);
        a.weight[i] = a.weight[i] * a.keep - a.step * m / (sqrtf(v) * a.root + a.eps);
    }
}

template <typename F, typename T>
static values_args<F, T> values_of(int64_t count, const void *from, void *to, double factor)
{
    const values_args<F, T> a = {count, (const F *)from, (T *)to, (float)factor};
    return a;
}

static void from_double(struct dp_stream *stream, int64_t count, const double *from,
                        dp_operand to_kind, void *to)
{
    const size_t bytes = (size_t)count * sizeof(double);
    void *copied = count == 0 ? NULL : dp_cuda_scratch(stream, bytes);
    if (copied == NULL) {
        return;
    }
    stream->device->ops->copy(stream, copied, from, bytes);
    DP_BY_KIND(
        stream, to_kind, T,
        const values_args<double, T> a = values_of<double, T>(count, copied, to, 1);
        DP_LAUNCH(stream, (values_convert<double, T>), dp_grid(count, PER_BLOCK), 256, 0, a));
}

static void convert(struct dp_stream *stream, int64_t count, dp_operand from_kind, const void *from,
                    dp_operand to_kind, void *to)
{
    if (count == 0) {
        return;
    }
    DP_BY_KINDS(stream, from_kind, to_kind,
                const values_args<F, T> a = values_of<F, T>(count, from, to, 1);
                DP_LAUNCH(stream, (values_convert<F, T>), dp_grid(count, PER_BLOCK), 256, 0, a));
}

static void add(struct dp_stream *stream, int64_t count, dp_operand x_kind, const void *x,
                dp_operand y_kind, void *y)
{
    if (count == 0) {
        return;
    }
    DP_BY_KINDS(stream, x_kind, y_kind, const values_args<F, T> a = values_of<F, T>(count, x, y, 1);
                DP_LAUNCH(stream, (values_add<F, T>), dp_grid(count, PER_BLOCK), 256, 0, a));
}

static void scale(struct dp_stream *stream, int64_t count, double factor, dp_operand kind, void *x)
{
    if (count == 0) {
        return;
    }
    DP_BY_KIND(stream, kind, T, const values_args<T, T> a = values_of<T, T>(count, NULL, x, factor);
               DP_LAUNCH(stream, (values_scale<T, T>), dp_grid(count, PER_BLOCK), 256, 0, a));
}

extern "C" void dp_cuda_sum_doubles(struct dp_stream *stream, int64_t count, double *values,
                                    double *ret_sum)
{
    static_assert(DP_CUDA_SUM_BYTES >= sizeof(double), "the total has a place of its own");
    const values_args<double, double> a = {count, values, values + count, 1};
    DP_LAUNCH(stream, values_total, 1, 256, 0, a);
    dp_cuda_fetch_double(stream, a.to, ret_sum);
}

static void sum_squares(struct dp_stream *stream, int64_t count, dp_operand kind, const void *x,
                        double *ret_sum)
{
    if (count == 0) {
        *ret_sum = 0;
        return;
    }
    const unsigned blocks = least(dp_grid(count, PER_BLOCK), (unsigned)SUM_BLOCKS);
    double *sums = (double *)dp_cuda_scratch(stream, blocks * sizeof(double) + DP_CUDA_SUM_BYTES);
    if (sums == NULL) {
        return;
    }
    DP_BY_KIND(stream, kind, T,
               const values_args<T, double> a = values_of<T, double>(count, x, sums, 1);
               DP_LAUNCH(stream, values_squares<T>, blocks, 256, 0, a));
    dp_cuda_sum_doubles(stream, blocks, sums, ret_sum);
}

template <typename M>
static adamw_args<M> adamw_of(const struct dp_adamw *c, int64_t count, const void *grad,
                              void *weight, void *m, void *v)
{
    adamw_args<M> a = {};
    a.count = count;
    a.grad = (const float *)grad;
    a.weight = (float *)weight;
    a.m = (M *)m;
    a.v = (M *)v;
    a.beta1 = (float)c->beta1;
    a.rest1 = (float)(1 - c->beta1);
    a.beta2 = (float)c->beta2;
    a.rest2 = (float)(1 - c->beta2);
    a.keep = (float)(1 - c->lr * c->weight_decay);
    a.step = (float)(c->lr / (1 - pow(c->beta1, (double)c->step)));
    a.root = (float)(1 / sqrt(1 - pow(c->beta2, (double)c->step)));
    a.eps = (float)c->eps;
    a.grad_scale = (float)c->grad_scale;
    return a;
}

static void adamw(struct dp_stream *stream, const struct dp_adamw *config, int64_t count,
                  const void *grad, void *weight, void *m, void *v)
{
    if (count == 0) {
        return;
    }
    if (config->bf16_moments) {
        const adamw_args<bf16> a = adamw_of<bf16>(config, count, grad, weight, m, v);
        DP_LAUNCH(stream, values_adamw<bf16>, dp_grid(count, PER_BLOCK), 256, 0, a);
    } else {
        const adamw_args<float> a = adamw_of<float>(config, count, grad, weight, m, v);
        DP_LAUNCH(stream, values_adamw<float>, dp_grid(count, PER_BLOCK), 256, 0, a);
    }
}

void dp_cuda_install_arithmetic(struct dp_device_ops *ops)
{
    ops->from_double = from_double;
    ops->convert = convert;
    ops->add = add;
    ops->scale = scale;
    ops->sum_squares = sum_squares;
    ops->adamw = adamw;
}
