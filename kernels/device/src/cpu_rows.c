#include "cpu_real.h"

static void add_row(int64_t cols, const real *restrict from, real *restrict to)
{
    for (int64_t i = 0; i < cols; i++) {
        to[i] += from[i];
    }
}

static void spread_rows(struct dp_stream *stream, int64_t rows, int64_t cols, int32_t repeat,
                        const int32_t *index, const void *from, void *to)
{
    (void)stream;
    const size_t bytes = (size_t)cols * sizeof(real);
    for (int64_t i = 0; i < rows; i++) {
        if (index[i] >= 0) {
            memcpy((real *)to + index[i] * cols, (const real *)from + i / repeat * cols, bytes);
        }
    }
}

static void collect_rows(struct dp_stream *stream, int64_t rows, int64_t cols, int32_t terms,
                         bool accumulate, const int32_t *index, const void *from, void *to)
{
    (void)stream;
    const real *x = from;
    for (int64_t t = 0; t < rows; t++) {
        real *y = (real *)to + t * cols;
        const int32_t *at = index + t * terms;
        bool has_value = accumulate;
        for (int32_t j = 0; j < terms; j++) {
            if (at[j] >= 0 && has_value) {
                add_row(cols, x + at[j] * cols, y);
            } else if (at[j] >= 0) {
                memcpy(y, x + at[j] * cols, (size_t)cols * sizeof(real));
                has_value = true;
            }
        }
        if (!has_value) {
            memset(y, 0, (size_t)cols * sizeof(real));
        }
    }
}

static void add_rows(struct dp_stream *stream, int64_t rows, int64_t cols, const int32_t *index,
                     const void *from, void *to)
{
    (void)stream;
    for (int64_t i = 0; i < rows; i++) {
        add_row(cols, (const real *)from + i * cols, (real *)to + index[i] * cols);
    }
}

void DP_CPU_INSTALLER(rows)(struct dp_device_ops *ops)
{
    ops->spread_rows = spread_rows;
    ops->collect_rows = collect_rows;
    ops->add_rows = add_rows;
}
