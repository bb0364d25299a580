// What a chunk of the executor keeps alive between its passes.

#include <math.h>

#include "dp/cost.h"

// Elements of `element_bytes`, and 4-byte indices.
struct count {
    double elements, indices;
};

// Widths that one token has in attention: what is kept of its queries, keys and values, and the
// output. Latent attention keeps its compressed rows as well.
static double attention_rows(const struct dp_model_spec *m)
{
    double heads = m->heads;
    if (m->mla_kv_rank == 0) {
        return (2 * heads + 2.0 * m->kv_heads) * m->head_dim;
    }
    double key = (double)m->mla_nope_dim + m->mla_rope_dim;
    double latent = (double)m->mla_q_rank + m->mla_kv_rank + m->mla_rope_dim;
    return latent + heads * (2 * key + 2.0 * m->mla_v_dim);
}

// Input, norm, rows and log-sum-exp; after the input gradient the log-sum-exp is gone, the output's
// gradient and the norm gain's have come.
static double attention(const struct dp_model_spec *m, double tokens, bool after_input)
{
    double kept = tokens * (m->hidden + 1 + attention_rows(m));
    return kept + (after_input ? (tokens + 1) * m->hidden : tokens * m->heads);
}

// Gate and up (later their gradients, and the activation for the weight gradient).
static double gated(double rows, double width, bool after_input)
{
    return (after_input ? 3 : 2) * rows * width;
}

static double ffn_norm(const struct dp_model_spec *m, double tokens, bool after_input)
{
    return tokens * (m->hidden + 1) + (after_input ? (tokens + 1) * m->hidden : 0);
}

// Probabilities, the rows that came, their weights; later the rows' gradients instead of these.
static double experts(const struct dp_model_spec *m, double tokens, double rows, bool after_input)
{
    double shared = (double)m->shared_experts * m->expert_ffn;
    return tokens * m->experts + rows * m->hidden + gated(rows, m->expert_ffn, after_input) +
           gated(tokens, shared, after_input) + (after_input ? rows * m->hidden : rows);
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

static void add_layer(const struct dp_model_spec *m, int32_t layer, double tokens,
                      const struct dp_cost_routed *routed, bool after_input, struct count *sum)
{
    sum->elements += attention(m, tokens, after_input) + ffn_norm(m, tokens, after_input);
    if (!dp_model_layer_is_moe(m, layer)) {
        sum->elements += gated(tokens, m->ffn, after_input);
        return;
    }
    sum->elements += experts(m, tokens, routed->rows, after_input);
    sum->indices += after_input ? 0 : (tokens + routed->tokens) * m->top_k;
}

// Token numbers and the rows' gradient; logits and what the head's norm needs, targets.
static void add_ends(const struct dp_model_spec *m, const struct dp_cost_stage *stage,
                     double tokens, bool after_input, struct count *sum)
{
    if (stage->has_embedding) {
        sum->indices += tokens;
        sum->elements += after_input ? tokens * m->hidden : 0;
    }
    if (stage->has_head) {
        sum->elements += tokens * (m->hidden + 1.0 + m->vocabulary);
        sum->elements += after_input ? m->hidden : tokens;
        sum->indices += after_input ? 0 : tokens;
    }
}

static double kept_bytes(const struct dp_model_spec *m, const struct dp_profile *profile,
                         const struct dp_cost_stage *stage, const struct dp_cost_batch *batch,
                         const struct dp_cost_routed *routed, bool after_input)
{
    double tokens = (double)batch->samples * batch->sequence;
    struct count sum = {0, 0};
    const struct dp_cost_routed balanced = balanced_routing(m, batch);
    for (int32_t layer = stage->layer_begin; layer < stage->layer_end; layer++) {
        const struct dp_cost_routed *known =
            routed != NULL ? &routed[layer - stage->layer_begin] : &balanced;
        add_layer(m, layer, tokens, known, after_input, &sum);
    }
    add_ends(m, stage, tokens, after_input, &sum);
    return profile->activation_share *
           (sum.elements * profile->element_bytes + sum.indices * (double)sizeof(int32_t));
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
