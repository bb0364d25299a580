// What a chunk of the executor keeps alive between its passes.

#include "chunk_bytes.h"

#include <math.h>

struct sum dp_cost_sum_of(const struct dp_model_spec *model, const struct dp_cost_batch *batch)
{
    return (struct sum){.model = model,
                        .tokens = (double)batch->samples * batch->sequence,
                        .recompute = batch->recompute,
                        .offload = batch->offload,
                        .save_fp8 = batch->save_fp8};
}

bool dp_cost_keeps(const struct sum *s, uint32_t bits)
{
    return (s->recompute & (bits | DP_RECOMPUTE_FULL)) == 0;
}

// After the input gradient everything is there that the weight gradient reads.
static bool has(const struct sum *s, uint32_t bits)
{
    return s->after_input || dp_cost_keeps(s, bits);
}

// What of it is on the device: between forward and backward, what is offloaded is not.
static double on_device(const struct sum *s, uint32_t offload, double elements)
{
    return !s->after_input && (s->offload & offload) != 0 ? 0 : elements;
}

double dp_cost_attended_width(const struct dp_model_spec *m)
{
    return (double)m->heads * (m->mla_kv_rank == 0 ? m->head_dim : m->mla_v_dim);
}

// Queries, keys and values of a token. Latent attention keeps what is compressed, before and after
// its norm, and what comes up from it.
static double qkv_width(const struct sum *s)
{
    const struct dp_model_spec *m = s->model;
    if (m->mla_kv_rank == 0) {
        return ((double)m->heads + 2.0 * m->kv_heads) * m->head_dim;
    }
    double low = m->mla_q_rank, kv = m->mla_kv_rank, heads = m->heads;
    double query = heads * ((double)m->mla_nope_dim + m->mla_rope_dim);
    double raised = heads * ((double)m->mla_nope_dim + m->mla_v_dim) + (low > 0 ? query : 0);
    double width = kv + m->mla_rope_dim + (low > 0 ? low : query);
    width += has(s, DP_RECOMPUTE_NORM) ? low + kv : 0;
    return width + (has(s, DP_RECOMPUTE_UP) ? raised : 0);
}

// Scales of norms inside attention; after the input gradient those of their gains and of sinks.
static double attention_reals(const struct sum *s)
{
    const struct dp_model_spec *m = s->model;
    double scales = 0, gains = m->sinks > 0 ? m->heads : 0;
    if (m->mla_kv_rank > 0) {
        scales = m->mla_q_rank > 0 ? 2 : 1;
        gains += (double)m->mla_kv_rank + m->mla_q_rank;
    } else if (m->qk_norm > 0) {
        scales = (double)m->heads + m->kv_heads;
        gains += 2.0 * m->head_dim;
    }
    return s->tokens * scales + (s->after_input ? gains : 0);
}

// Scale and output of a norm; after the input gradient that of the gain has come.
static void add_norm(struct sum *s)
{
    s->reals += s->tokens + (s->after_input ? s->model->hidden : 0);
    s->elements += dp_cost_keeps(s, DP_RECOMPUTE_NORM) ? s->tokens * s->model->hidden : 0;
}

void dp_cost_add_attention(struct sum *s)
{
    s->elements += on_device(s, DP_OFFLOAD_INPUTS, s->tokens * s->model->hidden);
    if (!has(s, DP_RECOMPUTE_FULL)) {
        return;
    }
    double width = qkv_width(s);
    width += has(s, DP_RECOMPUTE_ATTENTION) ? dp_cost_attended_width(s->model) : 0;
    add_norm(s);
    s->elements += on_device(s, DP_OFFLOAD_ATTENTION, s->tokens * width);
    s->elements += s->after_input ? s->tokens * s->model->hidden : 0;
    s->reals += attention_reals(s);
    bool has_lse = !s->after_input && dp_cost_keeps(s, DP_RECOMPUTE_ATTENTION);
    s->reals += has_lse ? s->tokens * s->model->heads : 0;
}

// Gate and up, later their gradients, and what the activation makes of them.
static void add_gated(struct sum *s, double rows, double width, uint32_t bits, bool is_routed)
{
    uint32_t offload = is_routed ? DP_OFFLOAD_EXPERTS : DP_OFFLOAD_FFN;
    double active = has(s, bits | DP_RECOMPUTE_ACTIVATION) ? rows * width : 0;
    s->elements += has(s, bits) ? on_device(s, offload, 2 * rows * width) : 0;
    s->elements += is_routed ? active : on_device(s, offload, active);
}

static void add_norm_and_input(struct sum *s)
{
    double hop = s->tokens * s->model->hidden;
    s->elements += on_device(s, DP_OFFLOAD_INPUTS, hop) + (s->after_input ? hop : 0);
    add_norm(s);
}

// Where rows went and their weights; the rows that came, later their gradients as well.
static void add_experts(struct sum *s, const struct dp_cost_routed *routed)
{
    const struct dp_model_spec *m = s->model;
    s->reals += s->after_input ? 0 : routed->rows;
    s->indices += s->after_input ? 0 : (s->tokens + routed->tokens) * m->top_k;
    s->reals += m->shared_gate > 0 ? (s->after_input ? 1 : 2) * s->tokens : 0;
    if (!has(s, DP_RECOMPUTE_FULL)) {
        return;
    }
    add_norm_and_input(s);
    s->reals += s->tokens * m->experts;
    double codes = routed->rows * (m->hidden + ceil(m->hidden / 128.0) * 4);
    s->bytes += s->save_fp8 ? on_device(s, DP_OFFLOAD_EXPERTS, codes) : 0;
    s->elements += s->save_fp8 ? 0 : on_device(s, DP_OFFLOAD_EXPERTS, routed->rows * m->hidden);
    s->elements += s->after_input ? routed->rows * m->hidden : 0;
    add_gated(s, routed->rows, m->expert_ffn, DP_RECOMPUTE_EXPERTS, true);
    add_gated(s, s->tokens, (double)m->shared_experts * m->expert_ffn, DP_RECOMPUTE_EXPERTS, false);
}

void dp_cost_add_ffn(struct sum *s, bool is_moe, const struct dp_cost_routed *routed)
{
    if (is_moe) {
        add_experts(s, routed);
    } else if (has(s, DP_RECOMPUTE_FULL)) {
        add_norm_and_input(s);
        add_gated(s, s->tokens, s->model->ffn, DP_RECOMPUTE_FULL, false);
    }
}

static void add_layer(struct sum *s, int32_t layer, const struct dp_cost_routed *routed)
{
    dp_cost_add_attention(s);
    dp_cost_add_ffn(s, dp_model_layer_is_moe(s->model, layer), routed);
}

// Logits and what the head's norm needs, targets.
void dp_cost_add_head(struct sum *s)
{
    add_norm(s);
    s->elements += s->tokens * s->model->hidden;
    s->reals += s->tokens * (s->model->vocabulary + (s->after_input ? 0.0 : 1.0));
    s->indices += s->after_input ? 0 : s->tokens;
}

// The next tokens, their embedding, it and the hidden rows normed side by side, scales of both
// norms; after the input gradient, which has left the hidden rows' in the head's, those of the
// projection, the embedding and the gains. Then a layer, of which nothing is offloaded, and a head.
void dp_cost_add_mtp(struct sum *s, const struct dp_cost_routed *routed)
{
    double hop = s->tokens * s->model->hidden;
    uint32_t offload = s->offload;
    s->offload = 0;
    s->indices += s->tokens;
    s->elements += (s->after_input ? 5 : 3) * hop;
    s->reals += 2 * s->tokens + (s->after_input ? 2.0 * s->model->hidden : 0);
    add_layer(s, s->model->layers, routed);
    dp_cost_add_head(s);
    s->offload = offload;
}

// Token numbers and the rows' gradient; the head.
static void add_ends(struct sum *s, const struct dp_cost_stage *stage)
{
    if (stage->has_embedding) {
        s->indices += s->tokens;
        s->elements += s->after_input ? s->tokens * s->model->hidden : 0;
    }
    if (stage->has_head) {
        dp_cost_add_head(s);
    }
}

// Every rank sends this one as much as it gets from each: top_k rows for a token of its own, in
// which those tokens take part that have at least one of their experts here. Choices are taken as
// independent.
struct dp_cost_routed dp_cost_balanced(const struct dp_model_spec *m,
                                       const struct dp_cost_batch *batch)
{
    double tokens = (double)batch->samples * batch->sequence, ranks = batch->ep_size;
    double visits = 1 - pow(1 - 1 / ranks, m->top_k);
    double more = ranks > 1 ? fmin(fmax(batch->imbalance, 1), ranks) : 1;
    return (struct dp_cost_routed){.tokens = tokens * ranks * fmin(visits * more, 1),
                                   .rows = tokens * m->top_k * more};
}

double dp_cost_sum_bytes(const struct sum *s, const struct dp_profile *profile)
{
    double real_bytes = profile->element_bytes > 4 ? profile->element_bytes : 4;
    return profile->activation_share *
           (s->elements * profile->element_bytes + s->reals * real_bytes +
            s->indices * (double)sizeof(int32_t) + s->bytes);
}

static double kept_bytes(const struct dp_model_spec *m, const struct dp_profile *profile,
                         const struct dp_cost_stage *stage, const struct dp_cost_batch *batch,
                         const struct dp_cost_routed *routed, bool after_input)
{
    const struct dp_cost_routed balanced = dp_cost_balanced(m, batch);
    struct sum sum = dp_cost_sum_of(m, batch);
    sum.after_input = after_input;
    for (int32_t layer = stage->layer_begin; layer < stage->layer_end; layer++) {
        add_layer(&sum, layer, routed != NULL ? &routed[layer - stage->layer_begin] : &balanced);
    }
    add_ends(&sum, stage);
    if (stage->has_mtp) {
        dp_cost_add_mtp(&sum, routed != NULL ? &routed[stage->layer_end - stage->layer_begin]
                                             : &balanced);
    }
    return dp_cost_sum_bytes(&sum, profile);
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
