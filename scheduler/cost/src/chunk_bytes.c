// What a chunk of the executor keeps alive between its passes.

#include "dp/cost.h"

// Bytes of `element_bytes` elements and of 4-byte indices.
struct count {
    double elements, indices;
};

static double attention_row(const struct dp_model_spec *m)
{
    if (m->mla_kv_rank == 0) {
        return (m->heads + 2.0 * m->kv_heads) * m->head_dim;
    }
    double nope = m->mla_nope_dim, rope = m->mla_rope_dim;
    return m->mla_q_rank + m->mla_kv_rank + rope + m->heads * (2 * (nope + rope) + m->mla_v_dim);
}

static double attention_output(const struct dp_model_spec *m)
{
    return (double)m->heads * (m->mla_kv_rank > 0 ? m->mla_v_dim : m->head_dim);
}

// Input, norm, query-key-value rows, output and log-sum-exp; gradients of both products later.
static struct count attention(const struct dp_model_spec *m, double tokens, bool after_input)
{
    double h = m->hidden, rows = attention_row(m), out = attention_output(m);
    double kept = h + 1 + out + rows;
    return (struct count){tokens * (kept + (after_input ? h : m->heads)), 0};
}

static struct count ffn(double rows, double hidden, double width, bool after_input)
{
    return (struct count){rows * (hidden + 2 * width + (after_input ? hidden + width : 0)), 0};
}

static struct count moe(const struct dp_model_spec *m, double tokens, double routed,
                        bool after_input)
{
    double h = m->hidden, slots = tokens * m->top_k;
    struct count shared = ffn(tokens, 0, (double)m->shared_experts * m->expert_ffn, after_input);
    struct count experts = ffn(routed, h, m->expert_ffn, after_input);
    struct count sum = {shared.elements + experts.elements, 0};
    sum.elements += tokens * (h + 1 + m->experts) + (after_input ? 0 : slots + routed);
    sum.indices += after_input ? 0 : 2 * slots;
    return sum;
}

static void add(struct count *sum, struct count more)
{
    sum->elements += more.elements;
    sum->indices += more.indices;
}

static struct count layer_count(const struct dp_model_spec *m, int32_t layer, double tokens,
                                double routed, bool after_input)
{
    struct count sum = attention(m, tokens, after_input);
    if (dp_model_layer_is_moe(m, layer)) {
        add(&sum, moe(m, tokens, routed, after_input));
    } else {
        add(&sum, ffn(tokens, m->hidden, m->ffn, after_input));
        sum.elements += tokens;
    }
    return sum;
}

static double bytes_of(const struct dp_profile *profile, struct count count)
{
    return profile->activation_share *
           (count.elements * profile->element_bytes + 4 * count.indices);
}

void dp_cost_chunk_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                         const struct dp_cost_stage *stage, const struct dp_cost_batch *batch,
                         const int64_t *routed_rows, struct dp_cost_chunk_bytes *ret_bytes)
{
    double tokens = (double)batch->samples * batch->sequence;
    double bytes[2];
    for (int phase = 0; phase < 2; phase++) {
        bool after_input = phase == 1;
        struct count sum = {0, 0};
        for (int32_t layer = stage->layer_begin; layer < stage->layer_end; layer++) {
            double routed = routed_rows != NULL ? (double)routed_rows[layer - stage->layer_begin]
                                                : tokens * model->top_k;
            add(&sum, layer_count(model, layer, tokens, routed, after_input));
        }
        if (stage->has_embedding) {
            sum.indices += tokens;
            sum.elements += after_input ? tokens * model->hidden : 0;
        }
        if (stage->has_head) {
            sum.elements += tokens * (model->hidden + 1.0 + model->vocabulary);
            sum.indices += after_input ? 0 : tokens;
        }
        bytes[phase] = bytes_of(profile, sum);
    }
    *ret_bytes = (struct dp_cost_chunk_bytes){bytes[0], bytes[1]};
}
