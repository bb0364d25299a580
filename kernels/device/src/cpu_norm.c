#include "cpu_real.h"

// Elements that are worth another thread.
#define GRAIN 16384

struct norm {
    struct dp_rmsnorm n;
    int64_t groups, x_stride, y_stride;
    const element *dy;
    void *to; // y, dx or dgain
};

static struct norm norm_of(const struct dp_rmsnorm *n, const void *dy, void *to)
{
    const int64_t groups = n->groups > 0 ? n->groups : 1, width = groups * n->cols;
    return (struct norm){.n = *n,
                         .groups = groups,
                         .x_stride = n->x_stride != 0 ? n->x_stride : width,
                         .y_stride = n->y_stride != 0 ? n->y_stride : width,
                         .dy = dy,
                         .to = to};
}

static void for_rows(struct dp_stream *stream, struct norm *norm, dp_cpu_range range)
{
    dp_cpu_parallel(stream, norm->n.rows, 1 + GRAIN / (1 + norm->groups * norm->n.cols), range,
                    norm);
}

// Vector `g` of row `r`.
static const element *x_at(const struct norm *n, int64_t r, int64_t g)
{
    return (const element *)n->n.x + r * n->x_stride + g * n->n.cols;
}

static int64_t y_at(const struct norm *n, int64_t r, int64_t g)
{
    return r * n->y_stride + g * n->n.cols;
}

// y may be x.
static void normalise(int64_t cols, const element *x, const real *gain, real rstd, element *y)
{
#pragma omp simd
    for (int64_t i = 0; i < cols; i++) {
        y[i] = element_store(element_load(x[i]) * rstd * gain[i]);
    }
}

static real mean_square(int64_t cols, const element *x)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < cols; i++) {
        sum += element_load(x[i]) * element_load(x[i]);
    }
    return sum / (real)cols;
}

static void forward_rows(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct norm *n = context;
    for (int64_t r = begin; r < end; r++) {
        for (int64_t g = 0; g < n->groups; g++) {
            const element *x = x_at(n, r, g);
            const real rstd = 1 / real_sqrt(mean_square(n->n.cols, x) + (real)n->n.eps);
            ((real *)n->n.rstd)[r * n->groups + g] = rstd;
            normalise(n->n.cols, x, n->n.gain, rstd, (element *)n->to + y_at(n, r, g));
        }
    }
}

static void rmsnorm_forward(struct dp_stream *stream, const struct dp_rmsnorm *norm, void *y)
{
    struct norm n = norm_of(norm, NULL, y);
    for_rows(stream, &n, forward_rows);
}

static void again_rows(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct norm *n = context;
    for (int64_t r = begin; r < end; r++) {
        for (int64_t g = 0; g < n->groups; g++) {
            normalise(n->n.cols, x_at(n, r, g), n->n.gain,
                      ((const real *)n->n.rstd)[r * n->groups + g],
                      (element *)n->to + y_at(n, r, g));
        }
    }
}

static void rmsnorm_again(struct dp_stream *stream, const struct dp_rmsnorm *norm, void *y)
{
    struct norm n = norm_of(norm, NULL, y);
    for_rows(stream, &n, again_rows);
}

// d may be dy under replace.
static void vector_grad(const struct norm *n, const element *x, const element *dy, real rstd,
                        element *d)
{
    const int64_t cols = n->n.cols;
    const real *gain = n->n.gain;
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < cols; i++) {
        sum += element_load(dy[i]) * gain[i] * element_load(x[i]);
    }
    const real along = sum * rstd * rstd / (real)cols;
    if (n->n.replace) {
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            d[i] =
                element_store(rstd * (element_load(dy[i]) * gain[i] - element_load(x[i]) * along));
        }
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < cols; i++) {
        d[i] = element_store(element_load(d[i]) +
                             rstd * (element_load(dy[i]) * gain[i] - element_load(x[i]) * along));
    }
}

static void grad_rows(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct norm *n = context;
    for (int64_t r = begin; r < end; r++) {
        for (int64_t g = 0; g < n->groups; g++) {
            vector_grad(n, x_at(n, r, g), n->dy + y_at(n, r, g),
                        ((const real *)n->n.rstd)[r * n->groups + g],
                        (element *)n->to + r * n->x_stride + g * n->n.cols);
        }
    }
}

static void rmsnorm_input_grad(struct dp_stream *stream, const struct dp_rmsnorm *norm,
                               const void *dy, void *dx)
{
    struct norm n = norm_of(norm, dy, dx);
    for_rows(stream, &n, grad_rows);
}

#define COLUMNS 64

// Blocks [begin, end) of COLUMNS columns, each summed over all rows in their order.
static void gain_grad_columns(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct norm *n = context;
    for (int64_t at = begin * COLUMNS; at < end * COLUMNS && at < n->n.cols; at += COLUMNS) {
        const int64_t columns = n->n.cols - at < COLUMNS ? n->n.cols - at : COLUMNS;
        real sum[COLUMNS] = {0};
        for (int64_t r = 0; r < n->n.rows; r++) {
            for (int64_t g = 0; g < n->groups; g++) {
                const element *restrict x = x_at(n, r, g) + at;
                const element *restrict dy = n->dy + y_at(n, r, g) + at;
                const real rstd = ((const real *)n->n.rstd)[r * n->groups + g];
                for (int64_t i = 0; i < columns; i++) {
                    sum[i] += element_load(dy[i]) * element_load(x[i]) * rstd;
                }
            }
        }
        for (int64_t i = 0; i < columns; i++) {
            ((real *)n->to)[at + i] += sum[i];
        }
    }
}

static void rmsnorm_weight_grad(struct dp_stream *stream, const struct dp_rmsnorm *norm,
                                const void *dy, void *dgain)
{
    struct norm n = norm_of(norm, dy, dgain);
    dp_cpu_parallel(stream, (norm->cols + COLUMNS - 1) / COLUMNS,
                    1 + GRAIN / (1 + norm->rows * COLUMNS), gain_grad_columns, &n);
}

struct turn {
    struct dp_rope rope;
    int64_t head_stride;
    element *x;
};

static void turn_halves(int64_t half, const real *restrict table, real sign, element *restrict x)
{
    for (int64_t i = 0; i < half; i++) {
        const real c = table[i], s = sign * table[half + i];
        const real a = element_load(x[i]), b = element_load(x[half + i]);
        x[i] = element_store(a * c - b * s);
        x[half + i] = element_store(b * c + a * s);
    }
}

static void turn_neighbours(int64_t half, const real *restrict table, real sign,
                            element *restrict x)
{
    for (int64_t i = 0; i < half; i++) {
        const real c = table[i], s = sign * table[half + i];
        const real a = element_load(x[2 * i]), b = element_load(x[2 * i + 1]);
        x[2 * i] = element_store(a * c - b * s);
        x[2 * i + 1] = element_store(b * c + a * s);
    }
}

static void turn_rows(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct turn *turn = context;
    const struct dp_rope *rope = &turn->rope;
    const real sign = rope->inverse ? -1 : 1;
    for (int64_t r = begin; r < end; r++) {
        const real *table = (const real *)rope->table + r % rope->sequence * rope->width;
        for (int64_t h = 0; h < rope->heads; h++) {
            element *x = turn->x + r * rope->stride + h * turn->head_stride;
            if (rope->interleaved) {
                turn_neighbours(rope->width / 2, table, sign, x);
            } else {
                turn_halves(rope->width / 2, table, sign, x);
            }
        }
    }
}

static void rope(struct dp_stream *stream, const struct dp_rope *rope, void *x)
{
    struct turn turn = {*rope, rope->head_stride != 0 ? rope->head_stride : rope->width, x};
    dp_cpu_parallel(stream, rope->rows, 1 + GRAIN / (1 + (int64_t)rope->heads * rope->width),
                    turn_rows, &turn);
}

void DP_CPU_INSTALLER(norm)(struct dp_device_ops *ops)
{
    ops->rmsnorm_forward = rmsnorm_forward;
    ops->rmsnorm_again = rmsnorm_again;
    ops->rmsnorm_input_grad = rmsnorm_input_grad;
    ops->rmsnorm_weight_grad = rmsnorm_weight_grad;
    ops->rope = rope;
}
