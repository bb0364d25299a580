// Attention by blocks of query rows: the scores of one block against every key it may see are one
// gemm, and nothing of the size [sequence, sequence] is kept. Backward recomputes the probabilities
// from the scores and the saved log-sum-exp (Dao et al., arXiv 2205.14135).
#include "cpu_real.h"

// Rows of one block. Larger blocks make larger gemms and waste more on the masked corner.
#define BLOCK_ROWS 64

// One head of one sequence, as pointers to its first row.
struct head {
    const real *q, *k, *v, *output, *doutput;
    real *out, *lse, *dq, *dk, *dv;
    int64_t stride, out_stride, lse_stride;
    int64_t dim;
    real scale;
};

// Rows [begin, begin + rows) against keys [0, keys).
struct block {
    int64_t begin, rows, keys;
    real *scores, *dscores; // [rows, keys]
};

static struct head head_at(const struct dp_attention *a, int64_t sample, int64_t h)
{
    const int64_t dim = a->head_dim, row = sample * a->sequence;
    const int64_t key_head = h / (a->heads / a->kv_heads);
    struct head head = {.stride = (a->heads + 2 * (int64_t)a->kv_heads) * dim,
                        .out_stride = a->heads * dim,
                        .lse_stride = a->heads,
                        .dim = dim,
                        .scale = (real)(1 / sqrt((double)dim))};
    const real *qkv = (const real *)a->qkv + row * head.stride;
    head.q = qkv + h * dim;
    head.k = qkv + (a->heads + key_head) * dim;
    head.v = qkv + (a->heads + a->kv_heads + key_head) * dim;
    head.out = (real *)a->output + row * head.out_stride + h * dim;
    head.output = head.out;
    head.lse = (real *)a->lse + row * head.lse_stride + h;
    return head;
}

static void head_grads(struct head *head, const struct dp_attention *a, int64_t sample, int64_t h,
                       const void *doutput, void *dqkv)
{
    const int64_t dim = a->head_dim, row = sample * a->sequence;
    const int64_t key_head = h / (a->heads / a->kv_heads);
    real *d = (real *)dqkv + row * head->stride;
    head->doutput = (const real *)doutput + row * head->out_stride + h * dim;
    head->dq = d + h * dim;
    head->dk = d + (a->heads + key_head) * dim;
    head->dv = d + (a->heads + a->kv_heads + key_head) * dim;
}

static struct block block_at(int64_t begin, int64_t sequence, real *scratch)
{
    struct block b = {.begin = begin};
    b.rows = sequence - begin < BLOCK_ROWS ? sequence - begin : BLOCK_ROWS;
    b.keys = begin + b.rows;
    b.scores = scratch;
    b.dscores = scratch + b.rows * b.keys;
    return b;
}

static void gemm(struct dp_stream *stream, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                 const real *a, int64_t lda, const real *b, int64_t ldb, real *c, int64_t ldc,
                 bool accumulate)
{
    struct dp_gemm g = {.transpose_a = ta,
                        .transpose_b = tb,
                        .accumulate = accumulate,
                        .m = m,
                        .n = n,
                        .k = k,
                        .a = a,
                        .lda = lda,
                        .b = b,
                        .ldb = ldb,
                        .c = c,
                        .ldc = ldc};
    real_gemm(stream, &g);
}

// Scores become probabilities; keys past the diagonal get 0.
static void block_softmax(const struct head *head, const struct block *b)
{
    for (int64_t r = 0; r < b->rows; r++) {
        real *restrict x = b->scores + r * b->keys;
        const int64_t seen = b->begin + r + 1;
        real max = x[0], sum = 0;
#pragma omp simd reduction(max : max)
        for (int64_t i = 0; i < seen; i++) {
            max = x[i] > max ? x[i] : max;
        }
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < seen; i++) {
            x[i] = real_exp(head->scale * (x[i] - max));
            sum += x[i];
        }
        const real inverse = 1 / sum;
        for (int64_t i = 0; i < seen; i++) {
            x[i] *= inverse;
        }
        memset(x + seen, 0, (size_t)(b->keys - seen) * sizeof(real));
        head->lse[(b->begin + r) * head->lse_stride] = head->scale * max + (real)log((double)sum);
    }
}

static void block_forward(struct dp_stream *stream, const struct head *h, const struct block *b)
{
    gemm(stream, false, true, b->rows, b->keys, h->dim, h->q + b->begin * h->stride, h->stride,
         h->k, h->stride, b->scores, b->keys, false);
    block_softmax(h, b);
    gemm(stream, false, false, b->rows, h->dim, b->keys, b->scores, b->keys, h->v, h->stride,
         h->out + b->begin * h->out_stride, h->out_stride, false);
}

static real row_dot(const struct head *h, int64_t row)
{
    const real *x = h->doutput + row * h->out_stride;
    const real *y = h->output + row * h->out_stride;
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < h->dim; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

// Scores become probabilities, and their gradients the gradients of the unscaled scores.
static void block_scores_grad(const struct head *h, const struct block *b)
{
    for (int64_t r = 0; r < b->rows; r++) {
        real *restrict p = b->scores + r * b->keys;
        real *restrict d = b->dscores + r * b->keys;
        const int64_t row = b->begin + r, seen = row + 1;
        const real lse = h->lse[row * h->lse_stride];
        const real mean = row_dot(h, row);
        for (int64_t i = 0; i < seen; i++) {
            p[i] = real_exp(h->scale * p[i] - lse);
            d[i] = h->scale * p[i] * (d[i] - mean);
        }
        memset(p + seen, 0, (size_t)(b->keys - seen) * sizeof(real));
        memset(d + seen, 0, (size_t)(b->keys - seen) * sizeof(real));
    }
}

static void block_input_grad(struct dp_stream *stream, const struct head *h, const struct block *b)
{
    const real *q = h->q + b->begin * h->stride;
    const real *dout = h->doutput + b->begin * h->out_stride;
    gemm(stream, false, true, b->rows, b->keys, h->dim, q, h->stride, h->k, h->stride, b->scores,
         b->keys, false);
    gemm(stream, false, true, b->rows, b->keys, h->dim, dout, h->out_stride, h->v, h->stride,
         b->dscores, b->keys, false);
    block_scores_grad(h, b);
    gemm(stream, false, false, b->rows, h->dim, b->keys, b->dscores, b->keys, h->k, h->stride,
         h->dq + b->begin * h->stride, h->stride, false);
    gemm(stream, true, false, b->keys, h->dim, b->rows, b->dscores, b->keys, q, h->stride, h->dk,
         h->stride, true);
    gemm(stream, true, false, b->keys, h->dim, b->rows, b->scores, b->keys, dout, h->out_stride,
         h->dv, h->stride, true);
}

static real *block_scratch(struct dp_stream *stream, int64_t sequence)
{
    return dp_stream_scratch(stream, 2 * BLOCK_ROWS * (size_t)sequence * sizeof(real));
}

static void attention_forward(struct dp_stream *stream, const struct dp_attention *attention)
{
    real *scratch = block_scratch(stream, attention->sequence);
    for (int64_t s = 0; s < attention->samples; s++) {
        for (int32_t h = 0; h < attention->heads; h++) {
            const struct head head = head_at(attention, s, h);
            for (int64_t at = 0; at < attention->sequence; at += BLOCK_ROWS) {
                const struct block block = block_at(at, attention->sequence, scratch);
                block_forward(stream, &head, &block);
            }
        }
    }
}

static void attention_input_grad(struct dp_stream *stream, const struct dp_attention *attention,
                                 const void *doutput, void *dqkv)
{
    real *scratch = block_scratch(stream, attention->sequence);
    const int64_t row = (attention->heads + 2 * (int64_t)attention->kv_heads) * attention->head_dim;
    // Keys and values add up over blocks and over the query heads that share them.
    memset(dqkv, 0, (size_t)(attention->samples * attention->sequence * row) * sizeof(real));
    for (int64_t s = 0; s < attention->samples; s++) {
        for (int32_t h = 0; h < attention->heads; h++) {
            struct head head = head_at(attention, s, h);
            head_grads(&head, attention, s, h, doutput, dqkv);
            for (int64_t at = 0; at < attention->sequence; at += BLOCK_ROWS) {
                const struct block block = block_at(at, attention->sequence, scratch);
                block_input_grad(stream, &head, &block);
            }
        }
    }
}

void DP_CPU_INSTALLER(attention)(struct dp_device_ops *ops)
{
    ops->attention_forward = attention_forward;
    ops->attention_input_grad = attention_input_grad;
}
