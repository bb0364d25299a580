// Moves of rows, a block for each: out to experts, back with a sum, embeddings' gradients, heads.
#include <string.h>

#include "element.cuh"

template <typename F, typename T> struct rows_args {
    int64_t rows, cols;
    int32_t repeat; // of spread; terms of collect
    bool accumulate;
    const int32_t *index;
    const F *from;
    T *to;
};

template <typename F, typename T>
static rows_args<F, T> rows_of(const struct dp_rows *rows, int32_t repeat, bool accumulate,
                               const int32_t *index, const void *from, void *to)
{
    rows_args<F, T> a = {};
    a.rows = rows->rows;
    a.cols = rows->cols;
    a.repeat = repeat;
    a.accumulate = accumulate;
    a.index = index;
    a.from = (const F *)from;
    a.to = (T *)to;
    return a;
}

template <typename F, typename T> static __global__ void rows_spread(rows_args<F, T> a)
{
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const int64_t to_row = a.index[i];
        if (to_row < 0) {
            continue;
        }
        const F *from = a.from + i / a.repeat * a.cols;
        T *to = a.to + to_row * a.cols;
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            store(&to[c], load(from[c]));
        }
    }
}

// As rows_spread, where both sides are the same type and rows are multiples of 16 bytes.
struct bytes16 {
    uint32_t words[4];
} __attribute__((aligned(16)));

static __global__ void rows_spread_wide(rows_args<bytes16, bytes16> a)
{
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const int64_t to_row = a.index[i];
        if (to_row < 0) {
            continue;
        }
        const bytes16 *from = a.from + i / a.repeat * a.cols;
        bytes16 *to = a.to + to_row * a.cols;
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            to[c] = from[c];
        }
    }
}

// Terms in their order: the same bits on every device.
template <typename F, typename T> static __global__ void rows_collect(rows_args<F, T> a)
{
    for (int64_t t = blockIdx.x; t < a.rows; t += gridDim.x) {
        const int32_t *index = a.index + t * a.repeat;
        T *to = a.to + t * a.cols;
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            float sum = a.accumulate ? load(to[c]) : 0;
            for (int32_t j = 0; j < a.repeat; j++) {
                if (index[j] >= 0) {
                    sum += load(a.from[index[j] * a.cols + c]);
                }
            }
            store(&to[c], sum);
        }
    }
}

// Rows may repeat, so a thread has a column and goes through the rows in their order.
template <typename F, typename T> static __global__ void rows_add(rows_args<F, T> a)
{
    const int64_t first = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    for (int64_t c = first; c < a.cols; c += (int64_t)gridDim.x * blockDim.x) {
        for (int64_t i = 0; i < a.rows; i++) {
            if (a.index[i] >= 0) {
                T *to = a.to + a.index[i] * a.cols + c;
                store(to, load(*to) + load(a.from[i * a.cols + c]));
            }
        }
    }
}

template <typename E> struct heads_args {
    struct dp_heads h;
    const E *from;
    E *to;
};

template <typename E> static __global__ void heads_copy(heads_args<E> a)
{
    const int64_t width = a.h.width, across = width * a.h.heads;
    for (int64_t r = blockIdx.x; r < a.h.rows; r += gridDim.x) {
        for (int64_t i = threadIdx.x; i < across; i += blockDim.x) {
            const int64_t h = i / width, c = i % width;
            a.to[r * a.h.to_stride + h * a.h.to_head_stride + c] =
                a.from[r * a.h.from_stride + h * a.h.from_head_stride + c];
        }
    }
}

template <typename E> static __global__ void heads_sum(heads_args<E> a)
{
    for (int64_t r = blockIdx.x; r < a.h.rows; r += gridDim.x) {
        for (int64_t c = threadIdx.x; c < a.h.width; c += blockDim.x) {
            float sum = 0;
            for (int32_t h = 0; h < a.h.heads; h++) {
                sum += load(a.from[r * a.h.from_stride + h * a.h.from_head_stride + c]);
            }
            store(&a.to[r * a.h.to_stride + c], sum);
        }
    }
}

static bool is_empty(const struct dp_rows *rows)
{
    return rows->rows == 0 || rows->cols == 0;
}

// Rows of from and to are copied by 16 bytes where they have the same type and alignment.
static bool spread_wide(struct dp_stream *stream, const struct dp_rows *rows, int32_t repeat,
                        const int32_t *index, const void *from, void *to)
{
    const size_t each = dp_operand_bytes(stream->device, rows->to_kind);
    if (dp_operand_bytes(stream->device, rows->from_kind) != each ||
        !dp_is_aligned(from, rows->cols, each) || !dp_is_aligned(to, rows->cols, each)) {
        return false;
    }
    struct dp_rows wide = *rows;
    wide.cols = rows->cols * (int64_t)each / 16;
    const rows_args<bytes16, bytes16> a =
        rows_of<bytes16, bytes16>(&wide, repeat, false, index, from, to);
    DP_LAUNCH(stream, rows_spread_wide, dp_grid(a.rows, 1), dp_block(a.cols, 256), 0, a);
    return true;
}

static void spread_rows(struct dp_stream *stream, const struct dp_rows *rows, int32_t repeat,
                        const int32_t *index, const void *from, void *to)
{
    if (is_empty(rows) || spread_wide(stream, rows, repeat, index, from, to)) {
        return;
    }
    DP_BY_KINDS(
        stream, rows->from_kind, rows->to_kind,
        const rows_args<F, T> a = rows_of<F, T>(rows, repeat, false, index, from, to);
        DP_LAUNCH(stream, (rows_spread<F, T>), dp_grid(a.rows, 1), dp_block(a.cols, 256), 0, a));
}

static void collect_rows(struct dp_stream *stream, const struct dp_rows *rows, int32_t terms,
                         bool accumulate, const int32_t *index, const void *from, void *to)
{
    if (is_empty(rows)) {
        return;
    }
    DP_BY_KINDS(
        stream, rows->from_kind, rows->to_kind,
        const rows_args<F, T> a = rows_of<F, T>(rows, terms, accumulate, index, from, to);
        DP_LAUNCH(stream, (rows_collect<F, T>), dp_grid(a.rows, 1), dp_block(a.cols, 256), 0, a));
}

static void add_rows(struct dp_stream *stream, const struct dp_rows *rows, const int32_t *index,
                     const void *from, void *to)
{
    if (is_empty(rows)) {
        return;
    }
    DP_BY_KINDS(stream, rows->from_kind, rows->to_kind,
                const rows_args<F, T> a = rows_of<F, T>(rows, 1, true, index, from, to);
                DP_LAUNCH(stream, (rows_add<F, T>), dp_grid(a.cols, DP_WARP), DP_WARP, 0, a));
}

#define LAUNCH_HEADS(stream, kernel, heads, across, from, to)                                      \
    do {                                                                                           \
        if ((heads)->rows > 0 && (across) > 0) {                                                   \
            DP_BY_ELEMENT(                                                                         \
                stream, const heads_args<E> a = {*(heads), (const E *)(from), (E *)(to)};          \
                DP_LAUNCH(stream, kernel<E>, dp_grid(a.h.rows, 1), dp_block(across, 256), 0, a));  \
        }                                                                                          \
    } while (0)

static void copy_heads(struct dp_stream *stream, const struct dp_heads *heads, const void *from,
                       void *to)
{
    LAUNCH_HEADS(stream, heads_copy, heads, heads->width * heads->heads, from, to);
}

static void sum_heads(struct dp_stream *stream, const struct dp_heads *heads, const void *from,
                      void *to)
{
    LAUNCH_HEADS(stream, heads_sum, heads, heads->width, from, to);
}

void dp_cuda_install_rows(struct dp_device_ops *ops)
{
    ops->spread_rows = spread_rows;
    ops->collect_rows = collect_rows;
    ops->add_rows = add_rows;
    ops->copy_heads = copy_heads;
    ops->sum_heads = sum_heads;
}
