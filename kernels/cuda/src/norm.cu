// Root-mean-square norm: a block for each vector; its gain's gradient, a block for 32 columns.
// Rotary embedding.
#include "element.cuh"
#include "reduce.cuh"

template <typename E> struct norm_args {
    int64_t vectors, groups, cols, x_stride, y_stride;
    const E *x, *dy;
    const float *gain;
    float *rstd;
    E *to; // y or dx
    float *dgain;
    float eps;
    bool replace;
};

template <typename E>
static norm_args<E> norm_of(const struct dp_rmsnorm *n, const void *dy, void *to)
{
    norm_args<E> a = {};
    a.groups = n->groups > 0 ? n->groups : 1;
    a.vectors = n->rows * a.groups;
    a.cols = n->cols;
    a.x_stride = n->x_stride != 0 ? n->x_stride : a.groups * n->cols;
    a.y_stride = n->y_stride != 0 ? n->y_stride : a.groups * n->cols;
    a.x = (const E *)n->x;
    a.dy = (const E *)dy;
    a.gain = (const float *)n->gain;
    a.rstd = (float *)n->rstd;
    a.to = (E *)to;
    a.eps = (float)n->eps;
    a.replace = n->replace;
    return a;
}

// Where vector v begins, of x (and dx) or y (and dy).
template <typename E>
static __device__ __forceinline__ int64_t vector_at(const norm_args<E> &a, int64_t v,
                                                    int64_t stride)
{
    return v / a.groups * stride + v % a.groups * a.cols;
}

template <typename E> static __device__ void normalise(const norm_args<E> &a, int64_t v, float rstd)
{
    const E *x = a.x + vector_at(a, v, a.x_stride);
    E *y = a.to + vector_at(a, v, a.y_stride);
    for (int64_t i = threadIdx.x; i < a.cols; i += blockDim.x) {
        store(&y[i], load(x[i]) * rstd * a.gain[i]);
    }
}

template <typename E> static __global__ void norm_forward(norm_args<E> a)
{
    for (int64_t v = blockIdx.x; v < a.vectors; v += gridDim.x) {
        const E *x = a.x + vector_at(a, v, a.x_stride);
        float sum = 0;
        for (int64_t i = threadIdx.x; i < a.cols; i += blockDim.x) {
            sum += load(x[i]) * load(x[i]);
        }
        const float rstd = 1 / sqrtf(block_sum(sum) / (float)a.cols + a.eps);
        if (threadIdx.x == 0) {
            a.rstd[v] = rstd;
        }
        normalise(a, v, rstd);
    }
}

template <typename E> static __global__ void norm_again(norm_args<E> a)
{
    for (int64_t v = blockIdx.x; v < a.vectors; v += gridDim.x) {
        normalise(a, v, a.rstd[v]);
    }
}

// dx may be dy or x under replace: a thread reads its elements before it writes them.
template <typename E> static __global__ void norm_input_grad(norm_args<E> a)
{
    for (int64_t v = blockIdx.x; v < a.vectors; v += gridDim.x) {
        const E *x = a.x + vector_at(a, v, a.x_stride);
        const E *dy = a.dy + vector_at(a, v, a.y_stride);
        E *dx = a.to + vector_at(a, v, a.x_stride);
        const float rstd = a.rstd[v];
        float sum = 0;
        for (int64_t i = threadIdx.x; i < a.cols; i += blockDim.x) {
            sum += load(dy[i]) * a.gain[i] * load(x[i]);
        }
        const float along = block_sum(sum) * rstd * rstd / (float)a.cols;
        for (int64_t i = threadIdx.x; i < a.cols; i += blockDim.x) {
            const float d = rstd * (load(dy[i]) * a.gain[i] - load(x[i]) * along);
            store(&dx[i], a.replace ? d : load(dx[i]) + d);
        }
    }
}

#define GAIN_LANES 16 // rows that a block looks at at once

template <typename E> static __global__ void norm_weight_grad(norm_args<E> a)
{
    DP_SHARED(float, partial, GAIN_LANES *DP_WARP);
    for (int64_t first = blockIdx.x * (int64_t)DP_WARP; first < a.cols;
         first += gridDim.x * (int64_t)DP_WARP) {
        const int64_t c = first + threadIdx.x;
        float sum = 0;
        for (int64_t v = threadIdx.y; c < a.cols && v < a.vectors; v += GAIN_LANES) {
            sum += load(a.dy[vector_at(a, v, a.y_stride) + c]) *
                   load(a.x[vector_at(a, v, a.x_stride) + c]) * a.rstd[v];
        }
        partial[threadIdx.y * DP_WARP + threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y == 0 && c < a.cols) {
            float total = 0;
            for (unsigned lane = 0; lane < GAIN_LANES; lane++) {
                total += partial[lane * DP_WARP + threadIdx.x];
            }
            a.dgain[c] += total;
        }
        __syncthreads();
    }
}

template <typename E> struct rope_args {
    struct dp_rope rope;
    int64_t head_stride;
    const float *table;
    float sign;
    E *x;
};

// Pairs of elements turn by the angle of their position, a block for each row.
template <typename E> static __global__ void rope_turn(rope_args<E> a)
{
    const int64_t half = a.rope.width / 2;
    for (int64_t r = blockIdx.x; r < a.rope.rows; r += gridDim.x) {
        const float *table = a.table + r % a.rope.sequence * a.rope.width;
        for (int64_t i = threadIdx.x; i < half * a.rope.heads; i += blockDim.x) {
            E *x = a.x + r * a.rope.stride + i / half * a.head_stride;
            const int64_t pair = i % half;
            const int64_t first = a.rope.interleaved ? 2 * pair : pair;
            const int64_t second = a.rope.interleaved ? first + 1 : half + pair;
            const float c = table[pair], s = a.sign * table[half + pair];
            const float u = load(x[first]), v = load(x[second]);
            store(&x[first], u * c - v * s);
            store(&x[second], v * c + u * s);
        }
    }
}

static void rope(struct dp_stream *stream, const struct dp_rope *rope, void *x)
{
    const int64_t pairs = (int64_t)rope->heads * (rope->width / 2);
    if (rope->rows == 0 || pairs == 0) {
        return;
    }
    DP_BY_ELEMENT(
        stream, rope_args<E> a = {}; a.rope = *rope;
        a.head_stride = rope->head_stride != 0 ? rope->head_stride : rope->width;
        a.table = (const float *)rope->table; a.sign = rope->inverse ? -1.0f : 1.0f; a.x = (E *)x;
        DP_LAUNCH(stream, rope_turn<E>, dp_grid(rope->rows, 1), dp_block(pairs, 256), 0, a));
}

static bool is_empty(const struct dp_rmsnorm *n)
{
    return n->rows == 0 || n->cols == 0;
}

#define LAUNCH_NORM(stream, kernel, n, dy, to)                                                     \
    DP_BY_ELEMENT(stream, const norm_args<E> a = norm_of<E>(n, dy, to); DP_LAUNCH(                 \
                      stream, kernel<E>, dp_grid(a.vectors, 1), dp_block(a.cols, 256), 0, a))

static void rmsnorm_forward(struct dp_stream *stream, const struct dp_rmsnorm *n, void *y)
{
    if (!is_empty(n)) {
        LAUNCH_NORM(stream, norm_forward, n, NULL, y);
    }
}

static void rmsnorm_again(struct dp_stream *stream, const struct dp_rmsnorm *n, void *y)
{
    if (!is_empty(n)) {
        LAUNCH_NORM(stream, norm_again, n, NULL, y);
    }
}

static void rmsnorm_input_grad(struct dp_stream *stream, const struct dp_rmsnorm *n, const void *dy,
                               void *dx)
{
    if (!is_empty(n)) {
        LAUNCH_NORM(stream, norm_input_grad, n, dy, dx);
    }
}

static void rmsnorm_weight_grad(struct dp_stream *stream, const struct dp_rmsnorm *n,
                                const void *dy, void *dgain)
{
    if (is_empty(n)) {
        return;
    }
    DP_BY_ELEMENT(stream, norm_args<E> a = norm_of<E>(n, dy, NULL); a.dgain = (float *)dgain;
                  DP_LAUNCH(stream, norm_weight_grad<E>, dp_grid(a.cols, DP_WARP),
                            dim3(DP_WARP, GAIN_LANES), 0, a));
}

void dp_cuda_install_norm(struct dp_device_ops *ops)
{
    ops->rmsnorm_forward = rmsnorm_forward;
    ops->rmsnorm_again = rmsnorm_again;
    ops->rmsnorm_input_grad = rmsnorm_input_grad;
    ops->rmsnorm_weight_grad = rmsnorm_weight_grad;
    ops->rope = rope;
}
