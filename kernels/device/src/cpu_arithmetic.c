#include "cpu_real.h"

// Values per thread, and a multiple of BLOCK: where threads meet, no block is cut.
#define GRAIN 32768
// Values that one sum of squares is taken over before such sums are added, whatever the threads.
#define SUM_VALUES 8192

struct arrays {
    int64_t count;
    double factor;
    const double *doubles;
    dp_operand x_kind, y_kind;
    const void *x;
    void *y;
};

// A range in units of BLOCK values, as values.
static int64_t first_value(int64_t block)
{
    return block * BLOCK;
}

static int64_t last_value(int64_t block, int64_t count)
{
    return block * BLOCK < count ? block * BLOCK : count;
}

static void run_blocks(struct dp_stream *stream, int64_t count, dp_cpu_range range, void *context)
{
    dp_cpu_parallel(stream, (count + BLOCK - 1) / BLOCK, GRAIN / BLOCK, range, context);
}

static void from_double(struct dp_stream *stream, int64_t count, const double *from,
                        dp_operand to_kind, void *to)
{
    (void)stream;
    real block[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        const int64_t n = block_count(at, count);
        real *y = block_target(to_kind, to, at, block);
        for (int64_t i = 0; i < n; i++) {
            y[i] = (real)from[at + i];
        }
        block_store(to_kind, to, at, n, y);
    }
}

static void convert_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct arrays *a = context;
    real block[BLOCK];
    for (int64_t at = first_value(begin); at < last_value(end, a->count); at += BLOCK) {
        const int64_t n = block_count(at, a->count);
        const real *x = block_load(a->x_kind, a->x, at, n, block);
        if (kind_is_real(a->y_kind)) {
            memcpy((real *)a->y + at, x, (size_t)n * sizeof(real));
        }
        block_store(a->y_kind, a->y, at, n, x);
    }
}

static void convert(struct dp_stream *stream, int64_t count, dp_operand from_kind, const void *from,
                    dp_operand to_kind, void *to)
{
    if (kind_bytes(from_kind) == kind_bytes(to_kind)) {
        if (from != to && count > 0) {
            memcpy(to, from, (size_t)count * kind_bytes(to_kind));
        }
        return;
    }
    struct arrays a = {.count = count, .x_kind = from_kind, .y_kind = to_kind, .x = from, .y = to};
    run_blocks(stream, count, convert_range, &a);
}

static void add_values(int64_t count, const real *restrict x, real *restrict y)
{
    for (int64_t i = 0; i < count; i++) {
        y[i] += x[i];
    }
}

static void add_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct arrays *a = context;
    real x_block[BLOCK], y_block[BLOCK];
    for (int64_t at = first_value(begin); at < last_value(end, a->count); at += BLOCK) {
        const int64_t n = block_count(at, a->count);
        real *y = block_target(a->y_kind, a->y, at, y_block);
        if (y == y_block) {
            load_elements(n, (const element *)a->y + at, y_block);
        }
        add_values(n, block_load(a->x_kind, a->x, at, n, x_block), y);
        block_store(a->y_kind, a->y, at, n, y);
    }
}

static void add(struct dp_stream *stream, int64_t count, dp_operand x_kind, const void *x,
                dp_operand y_kind, void *y)
{
    struct arrays a = {.count = count, .x_kind = x_kind, .y_kind = y_kind, .x = x, .y = y};
    run_blocks(stream, count, add_range, &a);
}

static void scale_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct arrays *a = context;
    const real factor = (real)a->factor;
    real block[BLOCK];
    for (int64_t at = first_value(begin); at < last_value(end, a->count); at += BLOCK) {
        const int64_t n = block_count(at, a->count);
        const real *x = block_load(a->y_kind, a->y, at, n, block);
        real *y = block_target(a->y_kind, a->y, at, block);
        for (int64_t i = 0; i < n; i++) {
            y[i] = x[i] * factor;
        }
        block_store(a->y_kind, a->y, at, n, y);
    }
}

static void scale(struct dp_stream *stream, int64_t count, double factor, dp_operand kind, void *x)
{
    struct arrays a = {.count = count, .factor = factor, .y_kind = kind, .y = x};
    run_blocks(stream, count, scale_range, &a);
}

struct squares {
    int64_t count;
    dp_operand kind;
    const void *x;
    double *sums; // of each SUM_VALUES values
};

static double sum_of(const struct squares *q, int64_t first, int64_t last)
{
    double sum = 0;
    real block[BLOCK];
    for (int64_t at = first; at < last; at += BLOCK) {
        const int64_t n = block_count(at, last);
        const real *x = block_load(q->kind, q->x, at, n, block);
        double part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = 0; i < n; i++) {
            part += (double)x[i] * (double)x[i];
        }
        sum += part;
    }
    return sum;
}

static void squares_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct squares *q = context;
    for (int64_t i = begin; i < end; i++) {
        const int64_t last = (i + 1) * SUM_VALUES;
        q->sums[i] = sum_of(q, i * SUM_VALUES, last < q->count ? last : q->count);
    }
}

static void sum_squares(struct dp_stream *stream, int64_t count, dp_operand kind,
                        const void *values, double *ret_sum)
{
    const int64_t parts = (count + SUM_VALUES - 1) / SUM_VALUES;
    double sum = 0;
    if (parts > 0) {
        struct squares q = {count, kind, values,
                            dp_stream_scratch(stream, (size_t)parts * sizeof(double))};
        dp_cpu_parallel(stream, parts, GRAIN / SUM_VALUES, squares_range, &q);
        for (int64_t i = 0; i < parts; i++) {
            sum += q.sums[i];
        }
    }
    *ret_sum = sum;
}

struct adamw {
    const struct dp_adamw *config;
    int64_t count;
    const real *grad;
    real *weight;
    void *m, *v;
};

static void adamw_values(const struct dp_adamw *a, int64_t count, const real *restrict g,
                         real *restrict w, real *restrict m, real *restrict v)
{
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

static void load_moments(int64_t count, const dp_bf16 *from, real *to)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = dp_bf16_load(from[i]);
    }
}

static void store_moments(int64_t count, const real *from, dp_bf16 *to)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = dp_bf16_store((float)from[i]);
    }
}

static void adamw_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct adamw *a = context;
    const int64_t first = first_value(begin), last = last_value(end, a->count);
    if (!a->config->bf16_moments) {
        adamw_values(a->config, last - first, a->grad + first, a->weight + first,
                     (real *)a->m + first, (real *)a->v + first);
        return;
    }
    real m[BLOCK], v[BLOCK];
    for (int64_t at = first; at < last; at += BLOCK) {
        const int64_t n = block_count(at, a->count);
        load_moments(n, (const dp_bf16 *)a->m + at, m);
        load_moments(n, (const dp_bf16 *)a->v + at, v);
        adamw_values(a->config, n, a->grad + at, a->weight + at, m, v);
        store_moments(n, m, (dp_bf16 *)a->m + at);
        store_moments(n, v, (dp_bf16 *)a->v + at);
    }
}

static void adamw(struct dp_stream *stream, const struct dp_adamw *config, int64_t count,
                  const void *grad, void *weight, void *m, void *v)
{
    struct adamw a = {config, count, grad, weight, m, v};
    run_blocks(stream, count, adamw_range, &a);
}

void DP_CPU_INSTALLER(arithmetic)(struct dp_device_ops *ops)
{
    ops->from_double = from_double;
    ops->convert = convert;
    ops->add = add;
    ops->scale = scale;
    ops->sum_squares = sum_squares;
    ops->adamw = adamw;
}
