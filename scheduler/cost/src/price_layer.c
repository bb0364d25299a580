// The parts of a layer on an accelerator: how many products of which shapes, and how often which
// tensors pass through memory.

#include <math.h>

#include "price_internal.h"

void dp_tally_add(struct dp_tally *sum, const struct dp_tally *part, double times)
{
    sum->forward_s += times * part->forward_s;
    sum->input_s += times * part->input_s;
    sum->weight_s += times * part->weight_s;
    sum->flops += times * part->flops;
}

static bool is_narrow(dp_format format)
{
    return format != DP_FORMAT_BF16 && format != DP_FORMAT_FP32;
}

// Bytes that casts of m rows of `width` into a narrow format move: read as bf16, written narrow.
static double cast_s(const struct dp_pricing *p, dp_format format, double m, double width)
{
    if (!is_narrow(format)) {
        return 0;
    }
    return p->device->cast_passes * m * width * (2 + dp_format_bytes(format)) /
           p->memory_bytes_per_s;
}

// Of an element of a product in bf16, and of one that is added to a weight's gradient in fp32.
#define OUTPUT_BYTES 2
#define SUM_BYTES 8
// Dropout of a score in 16 bits: read, written, and a mask of one byte.
#define DROPOUT_BYTES 5

// What products reach of what large ones do; rows and seconds that each costs besides its own.
struct shares {
    double products, weights, ramp_rows, start_s;
};

// y[m, n] = x[m, k] W[n, k]^T and its gradients. Narrow formats cast x, then dy for the input
// gradient, and both again along the other axis for the weight gradient.
static void add_linear(const struct dp_pricing *p, dp_format format, double groups, double m,
                       double k, double n, const struct shares *shares, bool again,
                       struct dp_tally *tally)
{
    if (groups <= 0 || m <= 0) {
        return;
    }
    double own = m / (m + shares->ramp_rows);
    double share = own * shares->products, weight_share = own * shares->weights;
    double start_s = groups * shares->start_s;
    double forward_s = dp_pricing_gemm_s(p, format, groups, m, n, k, share, OUTPUT_BYTES) +
                       cast_s(p, format, groups * m, k) + start_s;
    tally->forward_s += forward_s;
    tally->input_s += dp_pricing_gemm_s(p, format, groups, m, k, n, share, OUTPUT_BYTES) +
                      cast_s(p, format, groups * m, n) + start_s + (again ? forward_s : 0);
    tally->weight_s += dp_pricing_gemm_s(p, format, groups, n, k, m, weight_share, SUM_BYTES) +
                       cast_s(p, format, groups * m, k + n) + start_s;
    tally->flops += 2 * groups * m * k * n;
}

void dp_pricing_linear(const struct dp_pricing *p, dp_format format, double m, double k, double n,
                       bool again, struct dp_tally *tally)
{
    const struct shares dense = {1, p->device->weight_gemm_share, 0, 0};
    add_linear(p, format, 1, m, k, n, &dense, again, tally);
}

// `elements` of two bytes, read or written so often in each pass.
void dp_pricing_elements(const struct dp_pricing *p, double elements, double forward, double input,
                         double weight, bool again, struct dp_tally *tally)
{
    double forward_s = dp_pricing_memory_s(p, 2 * elements * forward);
    tally->forward_s += forward_s;
    tally->input_s += dp_pricing_memory_s(p, 2 * elements * input) + (again ? forward_s : 0);
    tally->weight_s += dp_pricing_memory_s(p, 2 * elements * weight);
}

// Norm and residual: x and the residual are read, their sum and the norm written; the gradient
// reads x, the residual's gradient and the norm's, and writes their sum; the gain's reads two.
static void add_norm(const struct dp_pricing *p, struct dp_tally *tally)
{
    double tokens = p->strategy->sequence_parallel ? p->split_tokens : p->tokens;
    dp_pricing_elements(p, tokens * p->model->hidden, 4, 5, 2,
                        dp_pricing_again(p, DP_RECOMPUTE_NORM), tally);
}

struct widths {
    double query_key, value; // of one head
    double queries, keys;    // heads of this rank
};

static struct widths widths_of(const struct dp_pricing *p)
{
    const struct dp_model_spec *m = p->model;
    double heads = fmax(1, m->heads / p->tensor);
    if (m->mla_kv_rank > 0) {
        return (struct widths){m->mla_nope_dim + m->mla_rope_dim, m->mla_v_dim, heads, heads};
    }
    return (struct widths){m->head_dim, m->head_dim, heads, fmax(1, m->kv_heads / p->tensor)};
}

static void add_projections(const struct dp_pricing *p, const struct widths *w,
                            struct dp_tally *tally)
{
    const struct dp_model_spec *m = p->model;
    double h = m->hidden, tokens = p->tokens;
    bool up = dp_pricing_again(p, DP_RECOMPUTE_UP);
    if (m->mla_kv_rank == 0) {
        dp_pricing_linear(p, p->format, tokens, h, (w->queries + 2 * w->keys) * m->head_dim, false,
                          tally);
    } else {
        double down_tokens = p->strategy->sequence_parallel ? p->split_tokens : tokens;
        double query_in = m->mla_q_rank > 0 ? m->mla_q_rank : h;
        if (m->mla_q_rank > 0) {
            dp_pricing_linear(p, p->format, down_tokens, h, m->mla_q_rank, false, tally);
            dp_pricing_elements(p, down_tokens * m->mla_q_rank, 2, 3, 1, up, tally);
        }
        dp_pricing_linear(p, p->format, tokens, query_in, w->queries * w->query_key,
                          up && m->mla_q_rank > 0, tally);
        dp_pricing_linear(p, p->format, down_tokens, h, m->mla_kv_rank + m->mla_rope_dim, false,
                          tally);
        dp_pricing_elements(p, down_tokens * m->mla_kv_rank, 2, 3, 1, up, tally);
        dp_pricing_linear(p, p->format, tokens, m->mla_kv_rank,
                          w->keys * (m->mla_nope_dim + w->value), up, tally);
    }
    dp_pricing_linear(p, p->format, tokens, w->queries * w->value, h, false, tally);
}

// Rotation (and norms of queries and keys) read and write them. Latent attention puts each head's
// query and key together from a rotated and another part, and copies its value.
static void add_rotation(const struct dp_pricing *p, const struct widths *w, struct dp_tally *tally)
{
    double elements = (w->queries + w->keys) * w->query_key;
    elements += p->model->mla_kv_rank > 0 ? w->keys * w->value : 0;
    double passes = p->model->mla_kv_rank > 0 ? p->device->latent_passes : 1;
    passes += p->model->qk_norm != 0 ? 1 : 0;
    dp_pricing_elements(p, p->tokens * elements, 2 * passes, 3 * passes - 1, 0,
                        dp_pricing_again(p, DP_RECOMPUTE_UP), tally);
}

// Tokens that a token's query meets: half the sequence, or its window, over the layers' mean.
static double keys_per_query(const struct dp_pricing *p)
{
    const struct dp_model_spec *m = p->model;
    double sequence = p->input->sequence, full = sequence / 2;
    if (m->window <= 0 || m->layers <= 0) {
        return full;
    }
    double windowed = fmin((double)m->window_layers / m->layers, 1);
    return full + windowed * (fmin(m->window, full) - full);
}

// The gradient computes the scores again: five products where the forward pass has two (arXiv
// 2205.14135), three of the keys' width and two of the values'. Rates are of bf16: narrower
// formats leave the core alone.
static void add_core(const struct dp_pricing *p, const struct widths *w, struct dp_tally *tally)
{
    const struct dp_device_figures *d = p->device;
    double keys = keys_per_query(p);
    double pairs = 2 * p->tokens * keys * w->queries;
    double length = p->input->sequence / (p->input->sequence + d->attention_ramp);
    double width = fmin(1, 1.5 * w->query_key / (w->query_key + 64));
    double rate = d->bf16_flops_peak * length * width;
    rate *= is_narrow(p->format) ? d->attention_narrow_factor : 1;
    double forward_s = pairs * (w->query_key + w->value) / (d->attention_forward_share * rate);
    double backward_s =
        pairs * (3 * w->query_key + 2 * w->value) / (d->attention_backward_share * rate);
    double queries = p->tokens * w->queries * (w->query_key + w->value);
    double others = p->tokens * w->keys * (w->query_key + w->value);
    forward_s = fmax(forward_s, 2 * (queries + others) / p->memory_bytes_per_s) + d->kernel_s;
    tally->forward_s += forward_s;
    // Besides: output times its gradient, and queries' gradients that are added up in fp32.
    double extra = p->tokens * w->queries * (2 * 2 * w->value + (4 + 4 + 2) * w->query_key);
    tally->input_s += fmax(backward_s, 4 * (queries + others) / p->memory_bytes_per_s) +
                      extra / p->memory_bytes_per_s + 3 * d->kernel_s +
                      (dp_pricing_again(p, DP_RECOMPUTE_ATTENTION) ? forward_s : 0);
    tally->flops += pairs * (w->query_key + w->value);
}

// Scores that go through memory: the whole square is computed, as matrix products, and its softmax
// (and dropout) read and written. The gradient does all of that twice.
static void add_unfused_core(const struct dp_pricing *p, const struct widths *w,
                             struct dp_tally *tally)
{
    const struct dp_device_figures *d = p->device;
    double scores = p->tokens * p->input->sequence * w->queries;
    double flops = 2 * scores * (w->query_key + w->value);
    double bytes = d->score_bytes + (p->profile->memory.dropout ? DROPOUT_BYTES : 0);
    double forward_s = flops / (d->bf16_gemm_share * d->bf16_flops_peak) +
                       scores * bytes / p->memory_bytes_per_s + 3 * d->kernel_s;
    tally->forward_s += forward_s;
    tally->input_s += 2 * forward_s + (dp_pricing_again(p, DP_RECOMPUTE_ATTENTION) ? forward_s : 0);
    // Only what a causal core needs counts as work done.
    tally->flops += flops / 2;
}

void dp_pricing_attention(const struct dp_pricing *p, struct dp_tally *tally)
{
    struct widths w = widths_of(p);
    add_norm(p, tally);
    add_projections(p, &w, tally);
    add_rotation(p, &w, tally);
    if (p->profile->memory.scores_kept) {
        add_unfused_core(p, &w, tally);
    } else {
        add_core(p, &w, tally);
    }
}

// Of an FFN's first product and of its activation.
static double first_width(const struct dp_model_spec *m, double width)
{
    return (m->ffn_matrices == 2 ? 1 : 2) * width;
}

static void add_activation(const struct dp_pricing *p, double rows, double width, bool again,
                           struct dp_tally *tally)
{
    double in = first_width(p->model, 1);
    dp_pricing_elements(p, rows * width, in + 1, 2 * in + 1, 0, again, tally);
}

static void add_ffn(const struct dp_pricing *p, double groups, double rows, double width,
                    const struct shares *shares, bool again, struct dp_tally *tally)
{
    if (rows <= 0 || width <= 0 || groups <= 0) {
        return;
    }
    const struct dp_model_spec *m = p->model;
    bool activation = dp_pricing_again(p, DP_RECOMPUTE_ACTIVATION);
    add_linear(p, p->format, groups, rows, m->hidden, first_width(m, width), shares, again, tally);
    add_activation(p, groups * rows, width, activation || again, tally);
    add_linear(p, p->format, groups, rows, width, m->hidden, shares, again, tally);
}

void dp_pricing_dense_ffn(const struct dp_pricing *p, struct dp_tally *tally)
{
    const struct shares dense = {1, p->device->weight_gemm_share, 0, 0};
    add_norm(p, tally);
    add_ffn(p, 1, p->tokens, ceil(p->model->ffn / p->tensor), &dense, false, tally);
}

// Scores in fp32, their choice, and what is counted from them.
static void add_router(const struct dp_pricing *p, struct dp_tally *tally)
{
    const struct dp_model_spec *m = p->model;
    dp_pricing_linear(p, DP_FORMAT_BF16, p->split_tokens, m->hidden, m->experts, false, tally);
    dp_pricing_elements(p, p->split_tokens * m->experts, 16, 8, 0, false, tally);
}

void dp_pricing_moe_ffn(const struct dp_pricing *p, struct dp_tally *tally)
{
    const struct dp_model_spec *m = p->model;
    const struct dp_strategy *s = p->strategy;
    const struct dp_device_figures *d = p->device;
    const struct shares dense = {1, d->weight_gemm_share, 0, 0};
    bool narrow = is_narrow(p->format);
    double share = narrow ? d->grouped_narrow_gemm_share : d->grouped_gemm_share;
    const struct shares grouped = {share, share * d->grouped_weight_gemm_share,
                                   d->grouped_ramp_rows,
                                   d->expert_start_s * (narrow ? 1 : 1.0 / 3)};
    bool again = dp_pricing_again(p, DP_RECOMPUTE_EXPERTS);
    add_norm(p, tally);
    add_router(p, tally);
    // Ranks that share an expert's width all compute on the rows of all of them.
    double groups = fmax(1, (double)m->experts / s->expert);
    double rows = p->split_tokens * m->top_k * p->imbalance * s->expert_tensor;
    double width = (double)m->expert_ffn / s->expert_tensor;
    add_ffn(p, groups, rows / groups, width, &grouped, again, tally);
    if ((m->biases & DP_BIAS_EXPERT) != 0) {
        dp_pricing_elements(p, rows * width, d->activation_passes, 2 * d->activation_passes, 0,
                            again || dp_pricing_again(p, DP_RECOMPUTE_ACTIVATION), tally);
    }
    // Rows are put in the order of experts as they came, and back in bf16: read and written.
    double copied = (2 * dp_pricing_dispatch_bytes(p) + 2 * 2) / 2;
    dp_pricing_elements(p, rows * m->hidden, copied, copied, 0, false, tally);
    add_ffn(p, 1, p->tokens, m->shared_experts * m->expert_ffn / p->tensor, &dense, again, tally);
}

void dp_pricing_embedding(const struct dp_pricing *p, struct dp_tally *tally)
{
    dp_pricing_elements(p, p->split_tokens * p->model->hidden, 2, 0, 5, false, tally);
}

// Logits and the loss stay in bf16 and fp32. A fused loss reads logits twice and leaves their
// gradient in their place; else fp32 copies of them pass through memory.
void dp_pricing_head(const struct dp_pricing *p, struct dp_tally *tally)
{
    const struct dp_model_spec *m = p->model;
    double vocabulary = ceil(m->vocabulary / p->tensor);
    bool fused = p->profile->memory.loss_fused;
    add_norm(p, tally);
    dp_pricing_linear(p, DP_FORMAT_BF16, p->tokens, m->hidden, vocabulary, false, tally);
    dp_pricing_elements(p, p->tokens * vocabulary, fused ? 2 : 6, fused ? 2 : 4, 0, false, tally);
}
