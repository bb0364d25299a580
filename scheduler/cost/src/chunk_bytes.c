// What a chunk of the executor keeps alive between its passes.

#include <math.h>

#include "dp/cost.h"
#include "dp/strategy.h"

// What is summed up for one phase of a chunk. Reals are what stays in float whatever the elements
// are: norms' scales, logits, log-sum-exps, routing weights.
struct sum {
    const struct dp_model_spec *model;
    double tokens;
    uint32_t recompute;
    bool after_input;
    double elements, reals, indices;
};

static bool keeps(const struct sum *s, uint32_t bits)
{
    return (s->recompute & (bits | DP_RECOMPUTE_FULL)) == 0;
}

// After the input gradient everything is there that the weight gradient reads.
static bool has(const struct sum *s, uint32_t bits)
{
    return s->after_input || keeps(s, bits);
}

// Latent attention keeps its compressed rows as well.
static double qkv_width(const struct dp_model_spec *m)
{
    if (m->mla_kv_rank == 0) {
        return ((double)m->heads + 2.0 * m->kv_heads) * m->head_dim;
    }
    double key = (double)m->mla_nope_dim + m->mla_rope_dim;
    double latent = (double)m->mla_q_rank + m->mla_kv_rank + m->mla_rope_dim;
    return latent + m->heads * (2 * key + m->mla_v_dim);
}

static double attended_width(const struct dp_model_spec *m)
{
    return (double)m->heads * (m->mla_kv_rank == 0 ? m->head_dim : m->mla_v_dim);
}

// Scale and output of a norm; after the input gradient that of the gain has come.
static void add_norm(struct sum *s)
{
    s->reals += s->tokens + (s->after_input ? s->model->hidden : 0);
    s->elements += keeps(s, DP_RECOMPUTE_NORM) ? s->tokens * s->model->hidden : 0;
}

// Input, norm, rows and log-sum-exp; after the input gradient the log-sum-exp is gone, the output's
// gradient has come.
static void add_attention(struct sum *s)
{
    s->elements += s->tokens * s->model->hidden;
    if (!has(s, DP_RECOMPUTE_FULL)) {
        return;
    }
    add_norm(s);
    s->elements += s->tokens * qkv_width(s->model);
    s->elements += has(s, DP_RECOMPUTE_ATTENTION) ? s->tokens * attended_width(s->model) : 0;
    s->elements += s->after_input ? s->tokens * s->model->hidden : 0;
    bool has_lse = !s->after_input && keeps(s, DP_RECOMPUTE_ATTENTION);
    s->reals += has_lse ? s->tokens * s->model->heads : 0;
}

// Gate and up, later their gradients, and what the activation makes of them.
static void add_gated(struct sum *s, double rows, double width, uint32_t bits)
{
    s->elements += has(s, bits) ? 2 * rows * width : 0;
    s->elements += has(s, bits | DP_RECOMPUTE_ACTIVATION) ? rows * width : 0;
}

static void add_ffn(struct sum *s)
{
    s->elements += s->tokens * s->model->hidden * (s->after_input ? 2 : 1);
    add_norm(s);
}

// Where rows went and their weights; the rows that came, later their gradients as well.
static void add_experts(struct sum *s, const struct dp_cost_routed *routed)
{
    const struct dp_model_spec *m = s->model;
    s->reals += s->after_input ? 0 : routed->rows;
    s->indices += s->after_input ? 0 : (s->tokens + routed->tokens) * m->top_k;
    if (!has(s, DP_RECOMPUTE_FULL)) {
        return;
    }
    add_ffn(s);
    s->reals += s->tokens * m->experts;
    s->elements += routed->rows * m->hidden * (s->after_input ? 2 : 1);
    add_gated(s, routed->rows, m->expert_ffn, DP_RECOMPUTE_EXPERTS);
    add_gated(s, s->tokens, (double)m->shared_experts * m->expert_ffn, DP_RECOMPUTE_EXPERTS);
}

static void add_layer(struct sum *s, int32_t layer, const struct dp_cost_routed *routed)
{
    add_attention(s);
    if (dp_model_layer_is_moe(s->model, layer)) {
        add_experts(s, routed);
    } else if (has(s, DP_RECOMPUTE_FULL)) {
        add_ffn(s);
        add_gated(s, s->tokens, s->model->ffn, DP_RECOMPUTE_FULL);
    }
}

// Token numbers and the rows' gradient; logits and what the head's norm needs, targets.
static void add_ends(struct sum *s, const struct dp_cost_stage *stage)
{
    if (stage->has_embedding) {
        s->indices += s->tokens;
        s->elements += s->after_input ? s->tokens * s->model->hidden : 0;
    }
    if (stage->has_head) {
        add_norm(s);
        s->elements += s->tokens * s->model->hidden;
        s->reals += s->tokens * (s->model->vocabulary + (s->after_input ? 0.0 : 1.0));
        s->indices += s->after_input ? 0 : s->tokens;
    }
}

// Every rank sends this one as much as it gets from each: top_k rows for a token of its own, in
// which those tokens take part that have at least one of their experts here. Choices are taken as
// independent.
static struct dp_cost_routed balanced_routing(const struct dp_model_spec *m,
                                              const struct dp_cost_batch *batch)
{
    double tokens = (double)batch->samples * batch->sequence, ranks = batch->ep_size;
    double visits = 1 - pow(1 - 1 / ranks, m->top_k);
    return (struct dp_cost_routed){.tokens = tokens * ranks * visits, .rows = tokens * m->top_k};
}

static double bytes_of(const struct sum *s, const struct dp_profile *profile)
{
    double real_bytes = profile->element_bytes > 4 ? profile->element_bytes : 4;
    return profile->activation_share *
           (s->elements * profile->element_bytes + s->reals * real_bytes +
            s->indices * (double)sizeof(int32_t));
}

static double kept_bytes(const struct dp_model_spec *m, const struct dp_profile *profile,
                         const struct dp_cost_stage *stage, const struct dp_cost_batch *batch,
                         const struct dp_cost_routed *routed, bool after_input)
{
    const struct dp_cost_routed balanced = balanced_routing(m, batch);
    struct sum sum = {.model = m,
                      .tokens = (double)batch->samples * batch->sequence,
                      .recompute = batch->recompute,
                      .after_input = after_input};
    for (int32_t layer = stage->layer_begin; layer < stage->layer_end; layer++) {
        add_layer(&sum, layer, routed != NULL ? &routed[layer - stage->layer_begin] : &balanced);
    }
    add_ends(&sum, stage);
    return bytes_of(&sum, profile);
}

void dp_cost_chunk_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                         const struct dp_cost_stage *stage, const struct dp_cost_batch *batch,
                         const struct dp_cost_routed *routed, struct dp_cost_chunk_bytes *ret_bytes)
{
    double hop = dp_cost_hop_bytes(model, profile, batch);
    ret_bytes->after_forward = kept_bytes(model, profile, stage, batch, routed, false);
    ret_bytes->after_input = kept_bytes(model, profile, stage, batch, routed, true);
    ret_bytes->end_of_forward = ret_bytes->after_forward + (stage->has_head ? 0 : hop);
    ret_bytes->end_of_input = ret_bytes->after_input + (stage->has_embedding ? 0 : hop);
}

// One layer while a pass is inside it.
struct inside {
    const struct dp_model_spec *model;
    const struct dp_profile *profile;
    const struct dp_cost_batch *batch;
    struct dp_cost_routed routed;
    bool is_moe;
};

static struct sum sum_of(const struct inside *in, uint32_t recompute)
{
    return (struct sum){.model = in->model,
                        .tokens = (double)in->batch->samples * in->batch->sequence,
                        .recompute = recompute};
}

static double attention_bytes(const struct inside *in, uint32_t recompute)
{
    struct sum sum = sum_of(in, recompute);
    add_attention(&sum);
    return bytes_of(&sum, in->profile);
}

static double ffn_bytes(const struct inside *in, uint32_t recompute)
{
    struct sum sum = sum_of(in, recompute);
    if (in->is_moe) {
        add_experts(&sum, &in->routed);
    } else if (has(&sum, DP_RECOMPUTE_FULL)) {
        add_ffn(&sum);
        add_gated(&sum, sum.tokens, in->model->ffn, DP_RECOMPUTE_FULL);
    }
    return bytes_of(&sum, in->profile);
}

// Before an FFN drops what it does not keep. An activation that is not kept never has room of its
// own in forward.
static uint32_t ffn_inside(uint32_t recompute)
{
    uint32_t light = DP_RECOMPUTE_NORM | DP_RECOMPUTE_ACTIVATION;
    if ((recompute & DP_RECOMPUTE_FULL) != 0) {
        return light;
    }
    bool drops = (recompute & DP_RECOMPUTE_EXPERTS) != 0;
    return (recompute & light) | (drops ? DP_RECOMPUTE_ACTIVATION : 0u);
}

// Beside what a layer keeps: rows that leave and arrive, outputs of experts before and after they
// are added up; in a backward pass gradients of both sides. Each is [rows, hidden] of elements.
static void ffn_rows(const struct inside *in, struct sum *forward, struct sum *backward)
{
    const struct dp_model_spec *m = in->model;
    double h = m->hidden, hop = forward->tokens * h;
    forward->elements = hop;      // the output
    backward->elements = 2 * hop; // gradients of output and input
    backward->reals = h;
    if (!in->is_moe) {
        return;
    }
    double rows = in->routed.rows * h, tokens = in->routed.tokens * h;
    forward->elements += rows + tokens;
    backward->elements = hop + 2 * rows + tokens + (m->shared_experts > 0 ? hop : 0);
    backward->reals = in->routed.rows + in->routed.tokens * m->top_k;
}

// Room that the stage's passes share: for a norm, a gradient, and the widest activation.
static double scratch_bytes(const struct inside *in)
{
    const struct dp_model_spec *m = in->model;
    struct sum sum = sum_of(in, in->batch->recompute);
    double width = fmax(attended_width(m), m->dense_layers > 0 || m->experts == 0 ? m->ffn : 0);
    width = fmax(width, (double)m->shared_experts * m->expert_ffn);
    sum.elements = sum.tokens * (m->hidden * (keeps(&sum, DP_RECOMPUTE_NORM) ? 1 : 2) + width);
    return bytes_of(&sum, in->profile);
}

void dp_cost_layer_during(const struct dp_model_spec *model, const struct dp_profile *profile,
                          const struct dp_cost_batch *batch, bool is_moe,
                          struct dp_cost_during *ret_during)
{
    const struct inside in = {model, profile, batch, balanced_routing(model, batch), is_moe};
    uint32_t kept = batch->recompute;
    bool is_full = (kept & DP_RECOMPUTE_FULL) != 0;
    uint32_t whole = is_full ? DP_RECOMPUTE_NORM : kept & DP_RECOMPUTE_NORM;
    struct sum forward = sum_of(&in, 0), backward = sum_of(&in, 0);
    ffn_rows(&in, &forward, &backward);
    double hop = dp_cost_hop_bytes(model, profile, batch) * profile->activation_share;
    double all = attention_bytes(&in, kept) + ffn_bytes(&in, kept);
    double ffn = attention_bytes(&in, kept) + ffn_bytes(&in, ffn_inside(kept));
    ret_during->forward =
        fmax(attention_bytes(&in, whole) + hop, ffn + bytes_of(&forward, profile)) - all;
    ffn = attention_bytes(&in, is_full ? whole : kept) + ffn_bytes(&in, whole);
    ret_during->backward =
        fmax(attention_bytes(&in, whole) + 2 * hop, ffn + bytes_of(&backward, profile)) - all;
    ret_during->forward += scratch_bytes(&in);
    ret_during->backward += scratch_bytes(&in);
}

void dp_cost_ends_during(const struct dp_model_spec *model, const struct dp_profile *profile,
                         const struct dp_cost_batch *batch, bool is_head,
                         struct dp_cost_during *ret_during)
{
    const struct inside in = {.model = model, .profile = profile, .batch = batch};
    double hop = dp_cost_hop_bytes(model, profile, batch) * profile->activation_share;
    struct sum gain = sum_of(&in, 0);
    gain.reals = is_head ? model->hidden : 0;
    *ret_during = (struct dp_cost_during){.forward = is_head ? 0 : hop,
                                          .backward = hop + bytes_of(&gain, profile)};
    ret_during->forward += scratch_bytes(&in);
    ret_during->backward += scratch_bytes(&in);
}
