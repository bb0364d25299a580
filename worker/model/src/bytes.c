// The closed form of what a chunk holds. Written from the model's equations, not from the slots: a
// test holds the two together.
#include "stage.h"

// Widths that the sums below are made of, in elements.
struct widths {
    int64_t tokens, hidden, q, kv, heads;
};

static int64_t attention_elements(const struct widths *w, dp_chunk_phase phase)
{
    // x, rstd, qkv (then its gradient), attention output
    int64_t kept = w->tokens * (w->hidden + 1 + w->q + 2 * w->kv + w->q);
    return phase == DP_CHUNK_FORWARD_DONE ? kept + w->tokens * w->heads
                                          : kept + w->tokens * w->hidden + w->hidden;
}

// A SwiGLU over `rows`: gate and up (then their gradients), and the activation for WEIGHT.
static int64_t gated_elements(int64_t rows, int64_t width, dp_chunk_phase phase)
{
    return phase == DP_CHUNK_FORWARD_DONE ? 2 * rows * width : 3 * rows * width;
}

// x and rstd of the FFN norm; INPUT adds the output's gradient and the gain's.
static int64_t ffn_norm_elements(const struct widths *w, dp_chunk_phase phase)
{
    int64_t kept = w->tokens * (w->hidden + 1);
    return phase == DP_CHUNK_FORWARD_DONE ? kept : kept + w->tokens * w->hidden + w->hidden;
}

static int64_t routed_elements(const struct dp_stage *stage, const struct widths *w, int64_t rows,
                               dp_chunk_phase phase)
{
    const struct dp_model_spec *model = &stage->config.model;
    int64_t elements = w->tokens * model->experts + rows * w->hidden;
    elements += gated_elements(rows, model->expert_ffn, phase);
    elements += gated_elements(w->tokens, stage->shared_width, phase);
    // the routing weights go, the rows' gradients come
    return elements + (phase == DP_CHUNK_FORWARD_DONE ? rows : rows * w->hidden);
}

static int64_t ends_elements(const struct dp_stage *stage, const struct widths *w,
                             dp_chunk_phase phase)
{
    int64_t elements = 0;
    if (stage->config.has_embedding && phase == DP_CHUNK_INPUT_DONE) {
        elements += w->tokens * w->hidden;
    }
    if (stage->config.has_head) {
        elements += w->tokens * (w->hidden + 1 + stage->config.model.vocabulary);
        elements += phase == DP_CHUNK_FORWARD_DONE ? w->tokens : w->hidden;
    }
    return elements;
}

// Token numbers, targets and the two int32 tables of routing: of the own tokens and of those that
// arrived.
static int64_t index_bytes(const struct dp_stage *stage, const struct dp_routed *routed,
                           int64_t tokens, dp_chunk_phase phase)
{
    int64_t indices = stage->config.has_embedding ? tokens : 0;
    if (phase == DP_CHUNK_FORWARD_DONE) {
        indices += stage->config.has_head ? tokens : 0;
        for (int32_t i = 0; i < stage->layer_count; i++) {
            int64_t slots = (tokens + routed[i].tokens) * stage->config.model.top_k;
            indices += stage->layers[i].dense ? 0 : slots;
        }
    }
    return indices * (int64_t)sizeof(int32_t);
}

int64_t dp_stage_chunk_bytes(const struct dp_stage *stage, int32_t samples,
                             const struct dp_routed *routed, dp_chunk_phase phase)
{
    const struct dp_model_spec *model = &stage->config.model;
    const struct widths w = {.tokens = (int64_t)samples * stage->config.sequence,
                             .hidden = model->hidden,
                             .q = (int64_t)model->heads * model->head_dim,
                             .kv = (int64_t)model->kv_heads * model->head_dim,
                             .heads = model->heads};
    int64_t elements = ends_elements(stage, &w, phase);
    for (int32_t i = 0; i < stage->layer_count; i++) {
        elements += attention_elements(&w, phase) + ffn_norm_elements(&w, phase);
        elements += stage->layers[i].dense ? gated_elements(w.tokens, model->ffn, phase)
                                           : routed_elements(stage, &w, routed[i].rows, phase);
    }
    return elements * (int64_t)stage->element_bytes + index_bytes(stage, routed, w.tokens, phase);
}
