#include "cpu_real.h"

// Rows are moved by threads when each gets so many values.
#define VALUES_PER_THREAD 16384

struct move {
    const struct dp_rows *rows;
    int32_t repeat; // of spread, terms of collect
    bool accumulate;
    const int32_t *index;
    const void *from;
    void *to;
};

static int64_t grain_of(int64_t cols)
{
    return cols >= VALUES_PER_THREAD ? 1 : VALUES_PER_THREAD / (cols > 0 ? cols : 1);
}

static void add_values(int64_t count, const real *restrict from, real *restrict to)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] += from[i];
    }
}

// Row `to_row` = row `from_row`.
static void copy_row(const struct move *m, int64_t from_row, int64_t to_row)
{
    const dp_operand from_kind = m->rows->from_kind, to_kind = m->rows->to_kind;
    const int64_t cols = m->rows->cols;
    if (kind_bytes(from_kind) == kind_bytes(to_kind)) {
        const int64_t bytes = cols * (int64_t)kind_bytes(to_kind);
        memcpy((char *)m->to + to_row * bytes, (const char *)m->from + from_row * bytes,
               (size_t)bytes);
        return;
    }
    real block[BLOCK];
    for (int64_t c = 0; c < cols; c += BLOCK) {
        const int64_t count = block_count(c, cols), at = to_row * cols + c;
        const real *x = block_load(from_kind, m->from, from_row * cols + c, count, block);
        if (kind_is_real(to_kind)) {
            memcpy((real *)m->to + at, x, (size_t)count * sizeof(real));
        }
        block_store(to_kind, m->to, at, count, x);
    }
}

// Row `to_row` = (accumulate ? itself : 0) + the rows index[0 .. terms) but those of -1.
static void sum_row(const struct move *m, const int32_t *index, int32_t terms, bool accumulate,
                    int64_t to_row)
{
    const dp_operand from_kind = m->rows->from_kind, to_kind = m->rows->to_kind;
    const int64_t cols = m->rows->cols;
    real block[BLOCK], term[BLOCK];
    for (int64_t c = 0; c < cols; c += BLOCK) {
        const int64_t count = block_count(c, cols), at = to_row * cols + c;
        real *sum = block_target(to_kind, m->to, at, block);
        if (!accumulate) {
            memset(sum, 0, (size_t)count * sizeof(real));
        } else if (sum == block) {
            load_elements(count, (const element *)m->to + at, block);
        }
        for (int32_t j = 0; j < terms; j++) {
            if (index[j] >= 0) {
                add_values(count, block_load(from_kind, m->from, index[j] * cols + c, count, term),
                           sum);
            }
        }
        block_store(to_kind, m->to, at, count, sum);
    }
}

static void spread_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct move *m = context;
    for (int64_t i = begin; i < end; i++) {
        if (m->index[i] >= 0) {
            copy_row(m, i / m->repeat, m->index[i]);
        }
    }
}

static void spread_rows(struct dp_stream *stream, const struct dp_rows *rows, int32_t repeat,
                        const int32_t *index, const void *from, void *to)
{
    struct move m = {rows, repeat, false, index, from, to};
    dp_cpu_parallel(stream, rows->rows, grain_of(rows->cols), spread_range, &m);
}

static void collect_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct move *m = context;
    for (int64_t t = begin; t < end; t++) {
        const int32_t *index = m->index + t * m->repeat;
        if (m->repeat == 1 && !m->accumulate && index[0] >= 0) {
            copy_row(m, index[0], t);
        } else {
            sum_row(m, index, m->repeat, m->accumulate, t);
        }
    }
}

static void collect_rows(struct dp_stream *stream, const struct dp_rows *rows, int32_t terms,
                         bool accumulate, const int32_t *index, const void *from, void *to)
{
    struct move m = {rows, terms, accumulate, index, from, to};
    dp_cpu_parallel(stream, rows->rows, grain_of(rows->cols * terms), collect_range, &m);
}

// Indices may repeat, so one thread adds.
static void add_rows(struct dp_stream *stream, const struct dp_rows *rows, const int32_t *index,
                     const void *from, void *to)
{
    (void)stream;
    const struct move m = {rows, 1, true, NULL, from, to};
    for (int64_t i = 0; i < rows->rows; i++) {
        const int32_t from_row = (int32_t)i;
        if (index[i] >= 0) {
            sum_row(&m, &from_row, 1, true, index[i]);
        }
    }
}

struct heads {
    struct dp_heads h;
    const element *from;
    element *to;
};

static void copy_heads_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct heads *m = context;
    for (int64_t r = begin; r < end; r++) {
        for (int32_t h = 0; h < m->h.heads; h++) {
            memcpy(m->to + r * m->h.to_stride + h * m->h.to_head_stride,
                   m->from + r * m->h.from_stride + h * m->h.from_head_stride,
                   (size_t)m->h.width * sizeof(element));
        }
    }
}

static void copy_heads(struct dp_stream *stream, const struct dp_heads *heads, const void *from,
                       void *to)
{
    struct heads m = {*heads, from, to};
    dp_cpu_parallel(stream, heads->rows, grain_of(heads->width * heads->heads), copy_heads_range,
                    &m);
}

static void sum_heads_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct heads *m = context;
    real block[BLOCK];
    for (int64_t r = begin; r < end; r++) {
        const element *from = m->from + r * m->h.from_stride;
        for (int64_t c = 0; c < m->h.width; c += BLOCK) {
            const int64_t count = block_count(c, m->h.width);
            memset(block, 0, (size_t)count * sizeof(real));
            for (int32_t h = 0; h < m->h.heads; h++) {
                const element *x = from + h * m->h.from_head_stride + c;
                for (int64_t i = 0; i < count; i++) {
                    block[i] += element_load(x[i]);
                }
            }
            for (int64_t i = 0; i < count; i++) {
                m->to[r * m->h.to_stride + c + i] = element_store(block[i]);
            }
        }
    }
}

static void sum_heads(struct dp_stream *stream, const struct dp_heads *heads, const void *from,
                      void *to)
{
    struct heads m = {*heads, from, to};
    dp_cpu_parallel(stream, heads->rows, grain_of(heads->width * heads->heads), sum_heads_range,
                    &m);
}

void DP_CPU_INSTALLER(rows)(struct dp_device_ops *ops)
{
    ops->spread_rows = spread_rows;
    ops->collect_rows = collect_rows;
    ops->add_rows = add_rows;
    ops->copy_heads = copy_heads;
    ops->sum_heads = sum_heads;
}
