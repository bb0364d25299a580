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
    double real_bytes = profile->element_bytes > 4 ? profile->element_bytes : 4;
    return profile->activation_share *
           (sum.elements * profile->element_bytes + sum.reals * real_bytes +
            sum.indices * (double)sizeof(int32_t));
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
