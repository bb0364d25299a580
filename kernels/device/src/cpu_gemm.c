// Products of elements and of codes: what is not real already is converted to it, a panel of b's
// columns at a time, multiplied, and rounded once.
#include "blas.h"
#include "cpu_real.h"

// Multiplications that are worth a thread of their own.
#define GRAIN 1000000
// Values of a converted panel: half a megabyte of floats stays in a core's second cache.
#define PANEL_VALUES 131072

static void clear(const struct dp_gemm *g)
{
    for (int64_t i = 0; i < g->m; i++) {
        const int64_t bytes = g->ldc * (int64_t)kind_bytes(g->c_kind);
        memset((char *)g->c + i * bytes, 0, (size_t)g->n * kind_bytes(g->c_kind));
    }
}

void real_gemm(struct dp_stream *stream, const struct dp_gemm *g)
{
    (void)stream;
    if (g->m == 0 || g->n == 0) {
        return;
    }
    if (g->k == 0) {
        if (!g->accumulate) {
            for (int64_t i = 0; i < g->m; i++) {
                memset((real *)g->c + i * g->ldc, 0, (size_t)g->n * sizeof(real));
            }
        }
        return;
    }
#ifdef DP_CPU_DOUBLE
    dp_blas_f64(g);
#else
    dp_blas_f32(g);
#endif
}

// A stored matrix, of which rows and columns are taken.
struct stored {
    dp_operand kind;
    const void *values;
    int64_t ld, rows, cols;
    struct dp_fp8_scales scales;
};

static bool is_real(dp_operand kind)
{
    return kind != DP_OPERAND_FP8 && kind_is_real(kind);
}

// Rows [first, first + rows) as dense reals.
static void load_rows(const struct stored *s, int64_t first, int64_t rows, real *to)
{
    if (s->kind == DP_OPERAND_FP8) {
        const struct dp_fp8 fp8 = {.rows = s->rows,
                                   .cols = s->cols,
                                   .tile_rows = s->scales.tile_rows,
                                   .tile_cols = s->scales.tile_cols};
        fp8_decode_rows(&fp8, first, rows, s->values, s->ld, s->scales.values, to);
        return;
    }
    for (int64_t r = first; r < first + rows; r++) {
        load_elements(s->cols, (const element *)s->values + r * s->ld, to + (r - first) * s->cols);
    }
}

static struct stored stored_a(const struct dp_gemm *g)
{
    return (struct stored){
        g->a_kind,  g->a, g->lda, g->transpose_a ? g->k : g->m, g->transpose_a ? g->m : g->k,
        g->a_scales};
}

static struct stored stored_b(const struct dp_gemm *g)
{
    return (struct stored){
        g->b_kind,  g->b, g->ldb, g->transpose_b ? g->n : g->k, g->transpose_b ? g->k : g->n,
        g->b_scales};
}

// c as reals and back.
static void load_c(const struct dp_gemm *g, real *to)
{
    for (int64_t i = 0; i < g->m; i++) {
        load_elements(g->n, (const element *)g->c + i * g->ldc, to + i * g->n);
    }
}

static void store_c(const struct dp_gemm *g, const real *from)
{
    for (int64_t i = 0; i < g->m; i++) {
        store_elements(g->n, from + i * g->n, (element *)g->c + i * g->ldc);
    }
}

// a and b are reals; c is of its kind.
static void multiply(struct dp_stream *stream, const struct dp_gemm *g, real *c)
{
    struct dp_gemm product = *g;
    if (!kind_is_real(g->c_kind)) {
        product.c = c;
        product.ldc = g->n;
        if (g->accumulate) {
            load_c(g, c);
        }
    }
    real_gemm(stream, &product);
    if (!kind_is_real(g->c_kind)) {
        store_c(g, c);
    }
}

// The part of a product with rows [row, row + rows) and columns [col, col + cols) of c; b's columns
// are only taken from a b that is real or transposed.
static struct dp_gemm part_of(const struct dp_gemm *g, int64_t row, int64_t rows, int64_t col,
                              int64_t cols)
{
    struct dp_gemm part = *g;
    part.m = rows;
    part.n = cols;
    part.a = (const real *)g->a + (g->transpose_a ? row : row * g->lda);
    part.b = (const real *)g->b + (g->transpose_b ? col * g->ldb : col);
    part.c = (char *)g->c + (row * g->ldc + col) * (int64_t)kind_bytes(g->c_kind);
    return part;
}

// A product whose a is real already; rows and columns are divided among threads.
struct division {
    const struct dp_gemm *gemm;
    bool by_rows;
};

// Columns [begin, end) of c from a b that is stored in rows of k and converted here.
static void convert_and_multiply(struct dp_stream *stream, const struct dp_gemm *g, int64_t begin,
                                 int64_t end)
{
    const struct stored b = stored_b(g);
    int64_t panel = PANEL_VALUES / g->k;
    panel = panel < 64 ? 64 : panel;
    panel = panel > end - begin ? end - begin : panel;
    real *scratch = dp_stream_scratch(stream, (size_t)panel * (size_t)(g->k + g->m) * sizeof(real));
    for (int64_t col = begin; col < end; col += panel) {
        const int64_t cols = end - col < panel ? end - col : panel;
        load_rows(&b, col, cols, scratch);
        struct dp_gemm part = part_of(g, 0, g->m, col, cols);
        part.b = scratch;
        part.ldb = g->k;
        multiply(stream, &part, scratch + panel * g->k);
    }
}

static void division_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    const struct division *d = context;
    const struct dp_gemm *g = d->gemm;
    if (!is_real(g->b_kind)) {
        convert_and_multiply(stream, g, begin, end);
        return;
    }
    const struct dp_gemm part = d->by_rows ? part_of(g, begin, end - begin, 0, g->n)
                                           : part_of(g, 0, g->m, begin, end - begin);
    real *c = NULL;
    if (!kind_is_real(g->c_kind)) {
        c = dp_stream_scratch(stream, (size_t)(part.m * part.n) * sizeof(real));
    }
    multiply(stream, &part, c);
}

struct loading {
    struct stored stored;
    real *to;
};

static void loading_range(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct loading *l = context;
    load_rows(&l->stored, begin, end - begin, l->to + begin * l->stored.cols);
}

static void load_matrix(struct dp_stream *stream, const struct stored *stored, real *to)
{
    struct loading loading = {*stored, to};
    dp_cpu_parallel(stream, stored->rows, 1 + 65536 / stored->cols, loading_range, &loading);
}

static void gemm(struct dp_stream *stream, const struct dp_gemm *given)
{
    struct dp_gemm g = *given;
    if (g.m == 0 || g.n == 0) {
        return;
    }
    if (g.k == 0) {
        if (!g.accumulate) {
            clear(&g);
        }
        return;
    }
    const struct stored a = stored_a(&g), b = stored_b(&g);
    // b's columns are not its rows: converted whole, as a is.
    const bool whole_b = !is_real(g.b_kind) && !g.transpose_b;
    const int64_t a_values = is_real(g.a_kind) ? 0 : g.m * g.k;
    const int64_t b_values = whole_b ? g.n * g.k : 0;
    real *scratch = NULL;
    if (a_values + b_values > 0) {
        scratch = dp_stream_scratch(stream, (size_t)(a_values + b_values) * sizeof(real));
    }
    if (a_values > 0) {
        load_matrix(stream, &a, scratch);
        g.a = scratch;
        g.lda = a.cols;
        g.a_kind = DP_OPERAND_REAL;
    }
    if (b_values > 0) {
        load_matrix(stream, &b, scratch + a_values);
        g.b = scratch + a_values;
        g.ldb = b.cols;
        g.b_kind = DP_OPERAND_REAL;
    }
    struct division division = {&g, is_real(g.b_kind) && g.m > g.n};
    const int64_t count = division.by_rows ? g.m : g.n;
    const int64_t other = (division.by_rows ? g.n : g.m) * g.k;
    dp_cpu_parallel(stream, count, 1 + GRAIN / other, division_range, &division);
}

void DP_CPU_INSTALLER(gemm)(struct dp_device_ops *ops)
{
    ops->gemm = gemm;
}
