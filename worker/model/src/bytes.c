// The closed form of what a chunk holds. Written from the model's equations, not from the slots: a
// test holds the two together.
#include "stage.h"

// Widths that the sums below are made of, and the phase they are for.
struct shape {
    const struct dp_stage *stage;
    int64_t tokens, hidden;
    uint32_t offload; // of the layer
    bool is_forward;
};

struct count {
    int64_t elements, reals, indices, bytes;
};

// In forward, what the bit stands for is there when it is kept; later it always is.
static bool has(const struct shape *s, uint32_t bit)
{
    return !s->is_forward || dp_stage_keeps(s->stage, bit);
}

// What of it is on the device: between forward and backward, what is offloaded is not.
static int64_t on_device(const struct shape *s, uint32_t offload, int64_t elements)
{
    return s->is_forward && (s->offload & offload) != 0 ? 0 : elements;
}

// A norm's scale, its output when that is kept, and after INPUT the gain's gradient.
static void add_norm(const struct shape *s, struct count *sum)
{
    sum->reals += s->tokens + (s->is_forward ? 0 : s->hidden);
    sum->elements += dp_stage_keeps(s->stage, DP_RECOMPUTE_NORM) ? s->tokens * s->hidden : 0;
}

// Latents before and after their norms, and what comes up from them, in elements of a token.
static int64_t latent_widths(const struct shape *s)
{
    const struct dp_model_spec *m = &s->stage->config.model;
    const int64_t low = m->mla_q_rank, kv = m->mla_kv_rank, heads = m->heads;
    int64_t query = heads * ((int64_t)m->mla_nope_dim + m->mla_rope_dim);
    int64_t raised = heads * ((int64_t)m->mla_nope_dim + m->mla_v_dim) + (low > 0 ? query : 0);
    int64_t width = kv + m->mla_rope_dim + (low > 0 ? low : query);
    bool has_normed = !s->is_forward || dp_stage_keeps(s->stage, DP_RECOMPUTE_NORM);
    return width + (has_normed ? low + kv : 0) + (has(s, DP_RECOMPUTE_UP) ? raised : 0);
}

// Scales of the norms inside attention; after INPUT, gradients of their gains and of sinks.
static int64_t attention_reals(const struct shape *s)
{
    const struct dp_model_spec *m = &s->stage->config.model;
    int64_t scales = 0, gains = 0;
    if (m->mla_kv_rank > 0) {
        scales = m->mla_q_rank > 0 ? 2 : 1;
        gains = (int64_t)m->mla_kv_rank + m->mla_q_rank;
    } else if (m->qk_norm > 0) {
        scales = m->heads + m->kv_heads;
        gains = 2 * (int64_t)m->head_dim;
    }
    gains += m->sinks > 0 ? m->heads : 0;
    return s->tokens * scales + (s->is_forward ? 0 : gains);
}

static void add_attention(const struct shape *s, struct count *sum)
{
    const struct dp_model_spec *m = &s->stage->config.model;
    sum->elements += on_device(s, DP_OFFLOAD_INPUTS, s->tokens * s->hidden);
    if (!has(s, DP_RECOMPUTE_FULL)) {
        return;
    }
    int64_t width = m->mla_kv_rank > 0 ? latent_widths(s) : s->stage->qkv_width;
    width += has(s, DP_RECOMPUTE_ATTENTION) ? s->stage->q_width : 0;
    add_norm(s, sum);
    sum->elements += on_device(s, DP_OFFLOAD_ATTENTION, s->tokens * width);
    sum->reals += attention_reals(s);
    if (!s->is_forward) {
        sum->elements += s->tokens * s->hidden; // dy
    } else if (dp_stage_keeps(s->stage, DP_RECOMPUTE_ATTENTION)) {
        sum->reals += s->tokens * m->heads;
    }
}

// A SwiGLU over `rows`: gate and up (then their gradients), and what the activation makes of them.
static void add_gated(const struct shape *s, int64_t rows, int64_t width, uint32_t bits,
                      bool is_shared, struct count *sum)
{
    const uint32_t offload =
        bits == DP_RECOMPUTE_EXPERTS && !is_shared ? DP_OFFLOAD_EXPERTS : DP_OFFLOAD_FFN;
    int64_t active = has(s, bits | DP_RECOMPUTE_ACTIVATION) ? rows * width : 0;
    sum->elements += has(s, bits) ? on_device(s, offload, 2 * rows * width) : 0;
    sum->elements += offload == DP_OFFLOAD_FFN ? on_device(s, offload, active) : active;
}

// x and norm of an FFN; INPUT adds the output's gradient.
static void add_ffn(const struct shape *s, struct count *sum)
{
    sum->elements += on_device(s, DP_OFFLOAD_INPUTS, s->tokens * s->hidden);
    sum->elements += s->is_forward ? 0 : s->tokens * s->hidden;
    add_norm(s, sum);
}

static void add_routed(const struct shape *s, const struct dp_routed *routed, struct count *sum)
{
    const struct dp_model_spec *model = &s->stage->config.model;
    if (s->is_forward) {
        sum->reals += routed->rows; // the routing weights
        sum->indices += (s->tokens + routed->tokens) * model->top_k;
    }
    // The gate's logits, and its weights up to INPUT.
    sum->reals += model->shared_gate > 0 ? (s->is_forward ? 2 : 1) * s->tokens : 0;
    if (!has(s, DP_RECOMPUTE_FULL)) {
        return;
    }
    add_ffn(s, sum);
    sum->reals += s->tokens * model->experts;
    if (s->stage->config.save_fp8) {
        sum->bytes += on_device(s, DP_OFFLOAD_EXPERTS, routed->rows * dp_fp8_row_bytes(s->hidden));
    } else {
        sum->elements += on_device(s, DP_OFFLOAD_EXPERTS, routed->rows * s->hidden);
    }
    sum->elements += s->is_forward ? 0 : routed->rows * s->hidden; // dy
    add_gated(s, routed->rows, model->expert_ffn, DP_RECOMPUTE_EXPERTS, false, sum);
    add_gated(s, s->tokens, s->stage->shared_width, DP_RECOMPUTE_EXPERTS, true, sum);
}

static void add_dense(const struct shape *s, struct count *sum)
{
    if (has(s, DP_RECOMPUTE_FULL)) {
        add_ffn(s, sum);
        add_gated(s, s->tokens, s->stage->config.model.ffn, DP_RECOMPUTE_FULL, true, sum);
    }
}

// Logits, what the head's norm needs, and targets.
static void add_head(const struct shape *s, struct count *sum)
{
    add_norm(s, sum);
    sum->elements += s->tokens * s->hidden;
    sum->reals += s->tokens * s->stage->config.model.vocabulary;
    sum->reals += s->is_forward ? s->tokens : 0;
    sum->indices += s->is_forward ? s->tokens : 0;
}

// Token numbers and the rows' gradient, and the head.
static void add_ends(const struct shape *s, struct count *sum)
{
    if (s->stage->config.has_embedding) {
        sum->indices += s->tokens;
        sum->elements += s->is_forward ? 0 : s->tokens * s->hidden;
    }
    if (s->stage->config.has_head) {
        add_head(s, sum);
    }
}

// The next tokens and those after them, their embedding and its norm beside that of the hidden
// rows, and a head of its own; later gradients of the projection, of both that it joins (that of
// the hidden rows has gone into HEAD's), and of the gains.
static void add_mtp(const struct shape *s, struct count *sum)
{
    sum->indices += s->tokens;
    sum->elements += 3 * s->tokens * s->hidden;
    sum->reals += 2 * s->tokens;
    sum->elements += s->is_forward ? 0 : 2 * s->tokens * s->hidden;
    sum->reals += s->is_forward ? 0 : 2 * s->hidden;
    add_head(s, sum);
}

int64_t dp_stage_chunk_bytes(const struct dp_stage *stage, int32_t samples,
                             const struct dp_routed *routed, dp_chunk_phase phase)
{
    struct shape shape = {.stage = stage,
                          .tokens = (int64_t)samples * stage->config.sequence,
                          .hidden = stage->config.model.hidden,
                          .is_forward = phase == DP_CHUNK_FORWARD_DONE};
    struct count sum = {0, 0, 0, 0};
    add_ends(&shape, &sum);
    if (dp_stage_predicts(&stage->config)) {
        add_mtp(&shape, &sum);
    }
    for (int32_t i = 0; i < stage->layer_count; i++) {
        // The layer of multi-token prediction stays.
        bool is_mtp = i == stage->layer_count - 1 && dp_stage_predicts(&stage->config);
        shape.offload = is_mtp ? 0 : stage->config.offload;
        add_attention(&shape, &sum);
        if (stage->layers[i].dense) {
            add_dense(&shape, &sum);
        } else {
            add_routed(&shape, &routed[i], &sum);
        }
    }
    return sum.elements * (int64_t)stage->element_bytes + sum.reals * (int64_t)stage->real_bytes +
           sum.indices * (int64_t)sizeof(int32_t) + sum.bytes;
}
