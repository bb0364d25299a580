// Products of tiles of reals that lie packed in scratch memory, for kernels that chain several of
// them with masks in between; a BLAS call for each would cost as much as the smallest do. Written
// with vectors of the compiler: it knows their registers from the variant's instruction set.
#pragma once

#include "cpu_real.h"

#if defined(__AVX512F__)
#define TILE_VECTOR_BYTES 64
#define TILE_STRIP 8
#define TILE_WIDE 2
#elif defined(__AVX__)
#define TILE_VECTOR_BYTES 32
#define TILE_STRIP 4
#define TILE_WIDE 3
#else
#define TILE_VECTOR_BYTES 16
#define TILE_STRIP 4
#define TILE_WIDE 2
#endif

// Apart from their callers these keep their loops in registers.
#define TILE_FUNCTION static __attribute__((noinline, unused))

typedef real tile_vector
    __attribute__((vector_size(TILE_VECTOR_BYTES), aligned(sizeof(real)), may_alias));

enum { TILE_LANES = TILE_VECTOR_BYTES / (int)sizeof(real) };

// Columns of a tile's row, so that vectors of it stay inside.
static inline int64_t tile_columns(int64_t count)
{
    return (count + TILE_LANES - 1) / TILE_LANES * TILE_LANES;
}

// Rows of a tile: strips of it stay inside.
static inline int64_t tile_rows(int64_t count)
{
    return (count + TILE_STRIP - 1) / TILE_STRIP * TILE_STRIP;
}

struct tile_span {
    int64_t begin, end;
};

// c[m, n] (+)= a[m, k] * b[k, n]. a may be the transpose of what is stored: its element (i, j) is
// at i * a_row + j * a_column. Rows of a and c are computed in strips of TILE_STRIP, those of b and
// c in whole vectors: memory has tile_rows(m) rows and tile_columns(n) columns, and what comes out
// past m and n means nothing.
struct tile_product {
    int64_t m, n, k;
    const real *a;
    int64_t a_row, a_column;
    const real *b;
    int64_t b_row;
    real *c;
    int64_t c_row;
    bool accumulate;
    // For each strip of rows: the columns that are wanted, and the terms that are not zero. NULL =
    // all of them.
    const struct tile_span *wanted, *terms;
};

// A strip times `vectors` vectors of columns.
static inline __attribute__((always_inline)) void tile_strip(const struct tile_product *p,
                                                             const int vectors, int64_t row,
                                                             int64_t column, struct tile_span terms)
{
    const real *a = p->a + row * p->a_row;
    const real *b = p->b + column;
    real *c = p->c + row * p->c_row + column;
    tile_vector sum[TILE_STRIP][TILE_WIDE];
#pragma GCC unroll 8
    for (int i = 0; i < TILE_STRIP; i++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            sum[i][v] = p->accumulate ? *(tile_vector *)(c + i * p->c_row + v * TILE_LANES)
                                      : (tile_vector){0};
        }
    }
    for (int64_t j = terms.begin; j < terms.end; j++) {
        tile_vector x[TILE_WIDE];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            x[v] = *(const tile_vector *)(b + j * p->b_row + v * TILE_LANES);
        }
#pragma GCC unroll 8
        for (int i = 0; i < TILE_STRIP; i++) {
            const real y = a[i * p->a_row + j * p->a_column];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                sum[i][v] += y * x[v];
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < TILE_STRIP; i++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            *(tile_vector *)(c + i * p->c_row + v * TILE_LANES) = sum[i][v];
        }
    }
}

TILE_FUNCTION void tile_multiply(const struct tile_product *p)
{
    const int64_t columns = tile_columns(p->n);
    for (int64_t column = 0; column < columns; column += TILE_WIDE * TILE_LANES) {
        const int64_t vectors = (columns - column) / TILE_LANES;
        for (int64_t row = 0; row < p->m; row += TILE_STRIP) {
            const int64_t strip = row / TILE_STRIP;
            const struct tile_span terms =
                p->terms == NULL ? (struct tile_span){0, p->k} : p->terms[strip];
            if (p->wanted != NULL && (column >= p->wanted[strip].end ||
                                      column + TILE_WIDE * TILE_LANES <= p->wanted[strip].begin)) {
                continue;
            }
            if (vectors >= TILE_WIDE) {
                tile_strip(p, TILE_WIDE, row, column, terms);
            } else if (vectors == 2) {
                tile_strip(p, 2, row, column, terms);
            } else {
                tile_strip(p, 1, row, column, terms);
            }
        }
    }
}

// Rows of elements, `stride` apart, to rows of reals, `columns` apart and zero after `width`; and
// zero rows up to a whole strip.
TILE_FUNCTION void tile_load(int64_t rows, int64_t width, const element *from, int64_t stride,
                             real factor, real *to, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++) {
        const element *restrict x = from + r * stride;
        real *restrict y = to + r * columns;
        for (int64_t i = 0; i < width; i++) {
            y[i] = factor * element_load(x[i]);
        }
        memset(y + width, 0, (size_t)(columns - width) * sizeof(real));
    }
    memset(to + rows * columns, 0, (size_t)((tile_rows(rows) - rows) * columns) * sizeof(real));
}

typedef real tile_quad __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real))));

// The transpose of four rows of four.
static inline void tile_turn(const element *from, int64_t stride, real *to, int64_t columns)
{
    tile_quad rows[4];
    for (int r = 0; r < 4; r++) {
        const element *x = from + r * stride;
        rows[r] = (tile_quad){element_load(x[0]), element_load(x[1]), element_load(x[2]),
                              element_load(x[3])};
    }
    const tile_quad a = rows[0], b = rows[1], c = rows[2], d = rows[3];
    const tile_quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const tile_quad cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const tile_quad ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const tile_quad cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(tile_quad *)to = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(tile_quad *)(to + columns) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    *(tile_quad *)(to + 2 * columns) = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    *(tile_quad *)(to + 3 * columns) = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

// As tile_load, to the transpose: to[i, r], `columns` from i to i + 1. Sixteen rows at a time fill
// whole cache lines on both sides.
TILE_FUNCTION void tile_load_transpose(int64_t rows, int64_t width, const element *from,
                                       int64_t stride, real *to, int64_t columns)
{
    const int64_t turned = rows / 4 * 4, across = width / 4 * 4;
    for (int64_t at = 0; at < turned; at += 16) {
        const int64_t end = turned - at < 16 ? turned : at + 16;
        for (int64_t i = 0; i < across; i += 4) {
            for (int64_t r = at; r < end; r += 4) {
                tile_turn(from + r * stride + i, stride, to + i * columns + r, columns);
            }
        }
    }
    for (int64_t i = 0; i < width; i++) {
        for (int64_t r = i < across ? turned : 0; r < rows; r++) {
            to[i * columns + r] = element_load(from[r * stride + i]);
        }
        memset(to + i * columns + rows, 0, (size_t)(columns - rows) * sizeof(real));
    }
}

TILE_FUNCTION void tile_store(int64_t rows, int64_t width, const real *from, int64_t columns,
                              real factor, element *to, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++) {
        const real *restrict x = from + r * columns;
        element *restrict y = to + r * stride;
        for (int64_t i = 0; i < width; i++) {
            y[i] = element_store(factor * x[i]);
        }
    }
}
