// Attention by blocks of query rows and of keys: nothing of the size [sequence, sequence] is kept.
// Forward keeps a running maximum and sum of each row's softmax; backward recomputes the
// probabilities from the scores and the saved log-sum-exp (Dao et al., arXiv 2205.14135).
//
// One item of work is a key head of a sequence with the query heads that read it: everything that
// is summed is summed inside an item, in one order, whatever the number of threads.
#include "cpu_tile.h"

// Of one block; multiples of TILE_STRIP and TILE_LANES in every variant.
#define ROWS 64
#define KEYS 256
// From row to row of scores: powers of two would fall on few sets of a cache.
#define SCORES (KEYS + TILE_LANES)

// Strides with their defaults filled in.
struct strides {
    int64_t q, k, v; // from head to head
};

// What a range of items works in, carved from the stream's scratch memory.
struct tiles {
    int64_t qk, v, keys;   // columns of a row
    real *k_t, *v_t;       // [qk_dim, keys], [v_dim, keys]
    real *k, *values;      // [sequence, qk], [sequence, v]
    real *dk, *dv;         // the same
    real *q, *dq;          // [ROWS, qk]
    real *out, *dout;      // [ROWS, v]
    real *scores, *grads;  // [ROWS, KEYS]
    real *max, *sum, *dot; // [ROWS]; dot of output and its gradient
};

// One query head of one sequence.
struct head {
    const struct dp_attention *a;
    int64_t row, index; // first row of the sequence; query head
    real scale;
    struct strides heads;
};

// Rows [row, row + rows) of the sequence against keys [key, key + keys); and for strips of either,
// which of the others they meet.
struct block {
    int64_t row, rows, key, keys;
    struct tile_span keys_of[ROWS / TILE_STRIP], rows_of[KEYS / TILE_STRIP];
};

static int64_t smaller(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static int64_t larger(int64_t x, int64_t y)
{
    return x > y ? x : y;
}

static int64_t first_key(const struct dp_attention *a, int64_t row)
{
    return a->window > 0 ? larger(0, row - a->window + 1) : 0;
}

// The keys of the block that a row sees.
static struct tile_span seen(const struct dp_attention *a, const struct block *b, int64_t row)
{
    struct tile_span span = {larger(first_key(a, row) - b->key, 0),
                             smaller(row + 1 - b->key, b->keys)};
    span.end = larger(span.end, 0);
    span.begin = smaller(span.begin, span.end);
    return span;
}

// The spans of strips start at a whole strip, so that a key which one row of a strip of rows meets
// is inside the span of that strip.
static struct block block_at(const struct dp_attention *a, int64_t row, int64_t key)
{
    struct block b = {.row = row, .key = key};
    b.rows = smaller(a->sequence - row, ROWS);
    b.keys = smaller(a->sequence - key, KEYS);
    for (int64_t r = 0; r < b.rows; r += TILE_STRIP) {
        const int64_t last = row + smaller(r + TILE_STRIP, b.rows) - 1;
        const struct tile_span span = {seen(a, &b, row + r).begin, seen(a, &b, last).end};
        b.keys_of[r / TILE_STRIP] =
            (struct tile_span){smaller(span.begin / TILE_STRIP * TILE_STRIP, span.end), span.end};
    }
    for (int64_t k = 0; k < b.keys; k += TILE_STRIP) {
        const int64_t last = key + smaller(k + TILE_STRIP, b.keys) - 1;
        const int64_t end = a->window > 0 ? last + a->window : a->sequence;
        struct tile_span span = {larger(key + k - row, 0), smaller(end - row, b.rows)};
        span.end = larger(span.end, 0);
        span.begin = smaller(span.begin, span.end);
        b.rows_of[k / TILE_STRIP] = span;
    }
    return b;
}

static int64_t or_else(int64_t stride, int64_t otherwise)
{
    return stride != 0 ? stride : otherwise;
}

static struct head head_at(const struct dp_attention *a, int64_t sample, int64_t index)
{
    return (struct head){.a = a,
                         .row = sample * a->sequence,
                         .index = index,
                         .scale = (real)(a->scale != 0 ? a->scale : 1 / sqrt((double)a->qk_dim)),
                         .heads = {or_else(a->q_head_stride, a->qk_dim),
                                   or_else(a->k_head_stride, a->qk_dim),
                                   or_else(a->v_head_stride, a->v_dim)}};
}

static int64_t q_at(const struct head *h, int64_t row)
{
    return (h->row + row) * h->a->q_stride + h->index * h->heads.q;
}

static int64_t k_at(const struct head *h)
{
    const int64_t key_head = h->index / (h->a->heads / h->a->kv_heads);
    return h->row * h->a->k_stride + key_head * h->heads.k;
}

static int64_t v_at(const struct head *h)
{
    const int64_t key_head = h->index / (h->a->heads / h->a->kv_heads);
    return h->row * h->a->v_stride + key_head * h->heads.v;
}

static int64_t out_at(const struct head *h, int64_t row)
{
    return ((h->row + row) * h->a->heads + h->index) * h->a->v_dim;
}

// Memory being parted; without a base it only measures.
struct carve {
    real *base;
    int64_t used;
};

static real *carve(struct carve *from, int64_t count)
{
    real *part = from->base == NULL ? NULL : from->base + from->used;
    from->used += (count + 15) / 16 * 16;
    return part;
}

static struct tiles carve_tiles(const struct dp_attention *a, bool grad, struct carve *scratch)
{
    struct tiles t = {.qk = tile_columns(a->qk_dim), .v = tile_columns(a->v_dim)};
    const int64_t rows = tile_rows(a->sequence);
    t.keys = tile_columns(rows) + TILE_LANES;
    t.k_t = carve(scratch, a->qk_dim * t.keys);
    t.q = carve(scratch, ROWS * t.qk);
    t.scores = carve(scratch, ROWS * SCORES);
    t.max = carve(scratch, ROWS);
    if (!grad) {
        t.values = carve(scratch, rows * t.v);
        t.out = carve(scratch, ROWS * t.v);
        t.sum = carve(scratch, ROWS);
        return t;
    }
    t.v_t = carve(scratch, a->v_dim * t.keys);
    t.k = carve(scratch, rows * t.qk);
    t.dk = carve(scratch, rows * t.qk);
    t.dv = carve(scratch, rows * t.v);
    t.dq = carve(scratch, ROWS * t.qk);
    t.dout = carve(scratch, ROWS * t.v);
    t.grads = carve(scratch, ROWS * SCORES);
    t.dot = carve(scratch, ROWS);
    return t;
}

static struct tiles make_tiles(struct dp_stream *stream, const struct dp_attention *a, bool grad)
{
    struct carve size = {0};
    carve_tiles(a, grad, &size);
    struct carve scratch = {.base = dp_stream_scratch(stream, (size_t)size.used * sizeof(real))};
    return carve_tiles(a, grad, &scratch);
}

// Sets what a row has inside the span of its strip, made up to whole vectors, and does not see.
static void fill_unseen(real *x, struct tile_span strip, struct tile_span row, real value)
{
    for (int64_t i = strip.begin / TILE_LANES * TILE_LANES; i < row.begin; i++) {
        x[i] = value;
    }
    for (int64_t i = row.end; i < tile_columns(strip.end); i++) {
        x[i] = value;
    }
}

// Scores become exp(score - maximum so far); what was summed before shrinks to the new maximum.
static void block_softmax(const struct head *h, const struct block *b, const struct tiles *t)
{
    for (int64_t r = 0; r < b->rows; r++) {
        real *restrict x = t->scores + r * SCORES;
        const struct tile_span strip = b->keys_of[r / TILE_STRIP];
        const struct tile_span row = seen(h->a, b, b->row + r);
        // Whole vectors: what is unseen adds nothing, and ends as 0.
        const int64_t begin = strip.begin / TILE_LANES;
        const int64_t count = (tile_columns(strip.end) / TILE_LANES - begin) * TILE_LANES;
        real *restrict y = x + begin * TILE_LANES;
        real max = t->max[r], sum = 0;
        if (row.begin == row.end) {
            fill_unseen(x, strip, row, 0);
            continue;
        }
        fill_unseen(x, strip, row, -(real)INFINITY);
#pragma omp simd reduction(max : max)
        for (int64_t i = 0; i < count; i++) {
            max = y[i] > max ? y[i] : max;
        }
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++) {
            y[i] = real_exp(y[i] - max);
            sum += y[i];
        }
        fill_unseen(x, strip, row, 0);
        if (max != t->max[r]) {
            const real shrink = real_exp(t->max[r] - max);
            real *restrict out = t->out + r * t->v;
            for (int64_t i = 0; i < t->v; i++) {
                out[i] *= shrink;
            }
            t->sum[r] *= shrink;
        }
        t->max[r] = max;
        t->sum[r] += sum;
    }
}

static void block_scores(const struct head *h, const struct block *b, const struct tiles *t)
{
    const struct tile_product scores = {.m = b->rows,
                                        .n = b->keys,
                                        .k = h->a->qk_dim,
                                        .a = t->q,
                                        .a_row = t->qk,
                                        .a_column = 1,
                                        .b = t->k_t + b->key,
                                        .b_row = t->keys,
                                        .c = t->scores,
                                        .c_row = SCORES,
                                        .wanted = b->keys_of};
    tile_multiply(&scores);
}

static void block_forward(const struct head *h, const struct block *b, const struct tiles *t)
{
    block_scores(h, b, t);
    block_softmax(h, b, t);
    const struct tile_product out = {.m = b->rows,
                                     .n = h->a->v_dim,
                                     .k = b->keys,
                                     .a = t->scores,
                                     .a_row = SCORES,
                                     .a_column = 1,
                                     .b = t->values + b->key * t->v,
                                     .b_row = t->v,
                                     .c = t->out,
                                     .c_row = t->v,
                                     .accumulate = true,
                                     .terms = b->keys_of};
    tile_multiply(&out);
}

// A sink is a score that was there first.
static void rows_start(const struct head *h, int64_t row, int64_t rows, const struct tiles *t)
{
    const struct dp_attention *a = h->a;
    const real *sink = a->sink;
    tile_load(rows, a->qk_dim, (const element *)a->q + q_at(h, row), a->q_stride, h->scale, t->q,
              t->qk);
    memset(t->out, 0, (size_t)(ROWS * t->v) * sizeof(real));
    for (int64_t r = 0; r < rows; r++) {
        t->max[r] = sink == NULL ? -(real)INFINITY : sink[h->index];
        t->sum[r] = sink == NULL ? 0 : 1;
    }
}

static void rows_finish(const struct head *h, int64_t row, int64_t rows, const struct tiles *t)
{
    const struct dp_attention *a = h->a;
    for (int64_t r = 0; r < rows; r++) {
        tile_store(1, a->v_dim, t->out + r * t->v, t->v, 1 / t->sum[r],
                   (element *)a->output + out_at(h, row + r), 0);
        ((real *)a->lse)[(h->row + row + r) * a->heads + h->index] =
            t->max[r] + (real)log((double)t->sum[r]);
    }
}

static void forward_items(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    const struct dp_attention *a = context;
    const struct tiles t = make_tiles(stream, a, false);
    const int64_t shared = a->heads / a->kv_heads;
    for (int64_t item = begin; item < end; item++) {
        struct head h = head_at(a, item / a->kv_heads, item % a->kv_heads * shared);
        tile_load_transpose(a->sequence, a->qk_dim, (const element *)a->k + k_at(&h), a->k_stride,
                            t.k_t, t.keys);
        tile_load(a->sequence, a->v_dim, (const element *)a->v + v_at(&h), a->v_stride, 1, t.values,
                  t.v);
        const int64_t last = h.index + shared;
        for (; h.index < last; h.index++) {
            for (int64_t row = 0; row < a->sequence; row += ROWS) {
                const int64_t rows = smaller(a->sequence - row, ROWS);
                rows_start(&h, row, rows, &t);
                for (int64_t key = first_key(a, row) / KEYS * KEYS; key < row + rows; key += KEYS) {
                    const struct block block = block_at(a, row, key);
                    block_forward(&h, &block, &t);
                }
                rows_finish(&h, row, rows, &t);
            }
        }
    }
}

static void attention_forward(struct dp_stream *stream, const struct dp_attention *attention)
{
    struct dp_attention a = *attention;
    dp_cpu_parallel(stream, a.samples * a.kv_heads, 1, forward_items, &a);
}

struct grad {
    struct dp_attention a;
    const void *doutput;
    void *dq, *dk, *dv, *dsink;
};

static real dot(int64_t count, const element *x, const element *y)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        sum += element_load(x[i]) * element_load(y[i]);
    }
    return sum;
}

// Scores become probabilities, and their gradients those of the scaled scores.
static void block_scores_grad(const struct head *h, const struct block *b, const struct tiles *t)
{
    for (int64_t r = 0; r < b->rows; r++) {
        real *restrict p = t->scores + r * SCORES;
        real *restrict d = t->grads + r * SCORES;
        const struct tile_span strip = b->keys_of[r / TILE_STRIP];
        const struct tile_span row = seen(h->a, b, b->row + r);
        const int64_t begin = strip.begin / TILE_LANES;
        const int64_t count = (tile_columns(strip.end) / TILE_LANES - begin) * TILE_LANES;
        const real lse = t->max[r], mean = t->dot[r];
        real *restrict y = p + begin * TILE_LANES;
        real *restrict z = d + begin * TILE_LANES;
        for (int64_t i = 0; i < count; i++) {
            y[i] = real_exp(y[i] - lse);
            z[i] = y[i] * (z[i] - mean);
        }
        fill_unseen(p, strip, row, 0);
        fill_unseen(d, strip, row, 0);
    }
}

// x[keys, n] += y[rows, keys]^T z[rows, n]
static void add_over_rows(const struct block *b, const real *y, const real *z, int64_t n, real *x)
{
    const struct tile_product product = {.m = b->keys,
                                         .n = n,
                                         .k = b->rows,
                                         .a = y,
                                         .a_row = 1,
                                         .a_column = SCORES,
                                         .b = z,
                                         .b_row = n,
                                         .c = x,
                                         .c_row = n,
                                         .accumulate = true,
                                         .terms = b->rows_of};
    tile_multiply(&product);
}

static void block_input_grad(const struct head *h, const struct block *b, const struct tiles *t)
{
    block_scores(h, b, t);
    const struct tile_product grads = {.m = b->rows,
                                       .n = b->keys,
                                       .k = h->a->v_dim,
                                       .a = t->dout,
                                       .a_row = t->v,
                                       .a_column = 1,
                                       .b = t->v_t + b->key,
                                       .b_row = t->keys,
                                       .c = t->grads,
                                       .c_row = SCORES,
                                       .wanted = b->keys_of};
    tile_multiply(&grads);
    block_scores_grad(h, b, t);
    const struct tile_product dq = {.m = b->rows,
                                    .n = t->qk,
                                    .k = b->keys,
                                    .a = t->grads,
                                    .a_row = SCORES,
                                    .a_column = 1,
                                    .b = t->k + b->key * t->qk,
                                    .b_row = t->qk,
                                    .c = t->dq,
                                    .c_row = t->qk,
                                    .accumulate = true,
                                    .terms = b->keys_of};
    tile_multiply(&dq);
    add_over_rows(b, t->grads, t->q, t->qk, t->dk + b->key * t->qk);
    add_over_rows(b, t->scores, t->dout, t->v, t->dv + b->key * t->v);
}

static void grad_rows(const struct grad *grad, const struct head *h, int64_t row,
                      const struct tiles *t)
{
    const struct dp_attention *a = h->a;
    const int64_t rows = smaller(a->sequence - row, ROWS);
    const element *dout = (const element *)grad->doutput + out_at(h, row);
    const element *out = (const element *)a->output + out_at(h, row);
    const int64_t out_stride = (int64_t)a->heads * a->v_dim;
    tile_load(rows, a->qk_dim, (const element *)a->q + q_at(h, row), a->q_stride, h->scale, t->q,
              t->qk);
    tile_load(rows, a->v_dim, dout, out_stride, 1, t->dout, t->v);
    memset(t->dq, 0, (size_t)(ROWS * t->qk) * sizeof(real));
    for (int64_t r = 0; r < rows; r++) {
        t->max[r] = ((const real *)a->lse)[(h->row + row + r) * a->heads + h->index];
        t->dot[r] = dot(a->v_dim, out + r * out_stride, dout + r * out_stride);
    }
    for (int64_t key = first_key(a, row) / KEYS * KEYS; key < row + rows; key += KEYS) {
        const struct block block = block_at(a, row, key);
        block_input_grad(h, &block, t);
    }
    tile_store(rows, a->qk_dim, t->dq, t->qk, h->scale, (element *)grad->dq + q_at(h, row),
               a->q_stride);
}

static void grad_items(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    const struct grad *grad = context;
    const struct dp_attention *a = &grad->a;
    const struct tiles t = make_tiles(stream, a, true);
    const int64_t shared = a->heads / a->kv_heads, rows = tile_rows(a->sequence);
    for (int64_t item = begin; item < end; item++) {
        struct head h = head_at(a, item / a->kv_heads, item % a->kv_heads * shared);
        const int64_t k = k_at(&h), v = v_at(&h);
        tile_load_transpose(a->sequence, a->qk_dim, (const element *)a->k + k, a->k_stride, t.k_t,
                            t.keys);
        tile_load_transpose(a->sequence, a->v_dim, (const element *)a->v + v, a->v_stride, t.v_t,
                            t.keys);
        tile_load(a->sequence, a->qk_dim, (const element *)a->k + k, a->k_stride, 1, t.k, t.qk);
        memset(t.dk, 0, (size_t)(rows * t.qk) * sizeof(real));
        memset(t.dv, 0, (size_t)(rows * t.v) * sizeof(real));
        const int64_t last = h.index + shared;
        for (; h.index < last; h.index++) {
            for (int64_t row = 0; row < a->sequence; row += ROWS) {
                grad_rows(grad, &h, row, &t);
            }
        }
        tile_store(a->sequence, a->qk_dim, t.dk, t.qk, 1, (element *)grad->dk + k, a->k_stride);
        tile_store(a->sequence, a->v_dim, t.dv, t.v, 1, (element *)grad->dv + v, a->v_stride);
    }
}

// The sink's share of every softmax pulls against the output's gradient.
static void grad_sinks(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    (void)stream;
    const struct grad *grad = context;
    const struct dp_attention *a = &grad->a;
    for (int64_t i = begin; i < end; i++) {
        const struct head h = head_at(a, 0, i);
        const real sink = ((const real *)a->sink)[i];
        real sum = 0;
        for (int64_t r = 0; r < a->samples * a->sequence; r++) {
            const real share = real_exp(sink - ((const real *)a->lse)[r * a->heads + i]);
            sum += share * dot(a->v_dim, (const element *)a->output + out_at(&h, r),
                               (const element *)grad->doutput + out_at(&h, r));
        }
        ((real *)grad->dsink)[i] -= sum;
    }
}

static void attention_input_grad(struct dp_stream *stream, const struct dp_attention *attention,
                                 const void *doutput, void *dq, void *dk, void *dv, void *dsink)
{
    struct grad context = {*attention, doutput, dq, dk, dv, dsink};
    dp_cpu_parallel(stream, attention->samples * attention->kv_heads, 1, grad_items, &context);
    if (attention->sink != NULL && dsink != NULL) {
        dp_cpu_parallel(stream, attention->heads, 1, grad_sinks, &context);
    }
}

void DP_CPU_INSTALLER(attention)(struct dp_device_ops *ops)
{
    ops->attention_forward = attention_forward;
    ops->attention_input_grad = attention_input_grad;
}
