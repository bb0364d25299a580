#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "stage.h"

#define DEVIATION 0.02

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool is_norm(const char *name)
{
    return ends_with(name, "norm");
}

static bool starts_at_zero(const char *name)
{
    return ends_with(name, ".bias") || ends_with(name, ".sinks");
}

// Appends a tensor of [rows, cols] behind the last one; returns its offset.
static int64_t append(struct dp_stage *stage, const char *name, int64_t rows, int64_t cols,
                      bool is_expert)
{
    stage->tensors =
        dp_realloc(stage->tensors, (size_t)stage->tensor_count + 1, sizeof(struct dp_tensor));
    struct dp_tensor *tensor = &stage->tensors[stage->tensor_count++];
    *tensor = (struct dp_tensor){.offset = stage->parameter_count,
                                 .count = rows * cols,
                                 .rows = rows,
                                 .cols = cols,
                                 .is_expert = is_expert,
                                 .decays = !is_norm(name) && !starts_at_zero(name)};
    DP_CHECK(DP_COPY_TEXT(tensor->name, name));
    stage->parameter_count += tensor->count;
    return tensor->offset;
}

__attribute__((format(printf, 5, 6))) static int64_t append_named(struct dp_stage *stage,
                                                                  int64_t rows, int64_t cols,
                                                                  bool is_expert,
                                                                  const char *format, ...)
{
    char name[DP_NAME_MAX];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    DP_CHECK(length < (int)sizeof(name));
    return append(stage, name, rows, cols, is_expert);
}

// gate, up and down of one SwiGLU; the offset of gate.
static int64_t append_swiglu(struct dp_stage *stage, const char *prefix, int64_t width,
                             bool is_expert)
{
    const int64_t hidden = stage->config.model.hidden;
    int64_t gate = append_named(stage, width, hidden, is_expert, "%s.gate", prefix);
    append_named(stage, width, hidden, is_expert, "%s.up", prefix);
    append_named(stage, hidden, width, is_expert, "%s.down", prefix);
    return gate;
}

// One product makes q, k and v, which lie one after the other; so do their biases.
static void lay_out_plain(struct dp_stage *stage, struct dp_layer_tensors *at, int32_t layer)
{
    const struct dp_model_spec *model = &stage->config.model;
    const int64_t hidden = model->hidden, kv = (int64_t)model->kv_heads * model->head_dim;
    const int64_t query = (int64_t)model->heads * model->head_dim;
    at->qkv = append_named(stage, query, hidden, false, "layers.%d.attention.q", layer);
    append_named(stage, kv, hidden, false, "layers.%d.attention.k", layer);
    append_named(stage, kv, hidden, false, "layers.%d.attention.v", layer);
    if ((model->biases & DP_BIAS_QKV) != 0) {
        at->qkv_bias = append_named(stage, 1, query, false, "layers.%d.attention.q.bias", layer);
        append_named(stage, 1, kv, false, "layers.%d.attention.k.bias", layer);
        append_named(stage, 1, kv, false, "layers.%d.attention.v.bias", layer);
    }
    if (model->qk_norm > 0) {
        at->q_norm =
            append_named(stage, 1, model->head_dim, false, "layers.%d.attention.q_norm", layer);
        at->k_norm =
            append_named(stage, 1, model->head_dim, false, "layers.%d.attention.k_norm", layer);
    }
}

// Down to the latents, and up from them. Rows of kv_down: the latent, then the turned key.
static void lay_out_latent(struct dp_stage *stage, struct dp_layer_tensors *at, int32_t layer)
{
    const struct dp_model_spec *m = &stage->config.model;
    const bool has_bias = (m->biases & DP_BIAS_QKV) != 0;
    const int64_t hidden = m->hidden, low = m->mla_q_rank, kv = m->mla_kv_rank;
    if (low > 0) {
        at->q_down = append_named(stage, low, hidden, false, "layers.%d.attention.q_down", layer);
        if (has_bias) {
            at->qkv_bias =
                append_named(stage, 1, low, false, "layers.%d.attention.q_down.bias", layer);
        }
        at->q_norm = append_named(stage, 1, low, false, "layers.%d.attention.q_norm", layer);
    }
    at->qkv = append_named(stage, stage->qkv_width, low > 0 ? low : hidden, false,
                           "layers.%d.attention.%s", layer, low > 0 ? "q_up" : "q");
    at->kv_down = append_named(stage, kv + m->mla_rope_dim, hidden, false,
                               "layers.%d.attention.kv_down", layer);
    if (has_bias) {
        at->kv_bias = append_named(stage, 1, kv + m->mla_rope_dim, false,
                                   "layers.%d.attention.kv_down.bias", layer);
    }
    at->kv_norm = append_named(stage, 1, kv, false, "layers.%d.attention.kv_norm", layer);
    at->kv_up = append_named(stage, m->heads * ((int64_t)m->mla_nope_dim + m->mla_v_dim), kv, false,
                             "layers.%d.attention.kv_up", layer);
}

static void lay_out_attention(struct dp_stage *stage, struct dp_layer_tensors *at, int32_t layer)
{
    const struct dp_model_spec *model = &stage->config.model;
    const int64_t hidden = model->hidden;
    at->attention_norm = append_named(stage, 1, hidden, false, "layers.%d.attention.norm", layer);
    if (model->mla_kv_rank > 0) {
        lay_out_latent(stage, at, layer);
    } else {
        lay_out_plain(stage, at, layer);
    }
    if (model->sinks > 0) {
        at->sinks = append_named(stage, 1, model->heads, false, "layers.%d.attention.sinks", layer);
    }
    at->output =
        append_named(stage, hidden, stage->q_width, false, "layers.%d.attention.output", layer);
    if ((model->biases & DP_BIAS_OUTPUT) != 0) {
        at->output_bias =
            append_named(stage, 1, hidden, false, "layers.%d.attention.output.bias", layer);
    }
}

static void lay_out_layer(struct dp_stage *stage, struct dp_layer_tensors *at, int32_t layer)
{
    const struct dp_model_spec *model = &stage->config.model;
    const int64_t hidden = model->hidden;
    char prefix[DP_NAME_MAX];
    lay_out_attention(stage, at, layer);
    at->ffn_norm = append_named(stage, 1, hidden, false, "layers.%d.ffn.norm", layer);
    int64_t width = at->dense ? model->ffn : stage->shared_width;
    if (!at->dense) {
        at->router = append_named(stage, model->experts, hidden, false, "layers.%d.router", layer);
    }
    if (!at->dense && model->shared_gate > 0 && width > 0) {
        at->shared_gate = append_named(stage, 1, hidden, false, "layers.%d.shared.gating", layer);
    }
    if (width > 0) {
        snprintf(prefix, sizeof(prefix), "layers.%d.%s", layer, at->dense ? "ffn" : "shared");
        at->gate_up = append_swiglu(stage, prefix, width, false);
        at->down = at->gate_up + 2 * width * hidden;
    }
}

static void lay_out_experts(struct dp_stage *stage, int32_t layer)
{
    struct dp_layer_tensors *at = &stage->layers[layer];
    char prefix[DP_NAME_MAX];
    at->experts = stage->parameter_count;
    at->expert_tensor = stage->tensor_count;
    for (int32_t e = 0; e < stage->local_experts; e++) {
        bool is_copy;
        const int32_t expert = dp_stage_own_expert(stage, layer, e, &is_copy);
        snprintf(prefix, sizeof(prefix), "layers.%d.experts.%d", stage->config.layer_begin + layer,
                 expert);
        append_swiglu(stage, prefix, stage->config.model.expert_ffn, true);
        for (int32_t i = stage->tensor_count - 3; i < stage->tensor_count; i++) {
            stage->tensors[i].is_copy = is_copy;
        }
    }
}

// Both ends of the model read the embedding where the head is tied to it, or where the next token's
// is read for multi-token prediction: the stage of either end has it then.
static void lay_out_embedding(struct dp_stage *stage)
{
    const struct dp_stage_config *config = &stage->config;
    const bool is_shared = config->model.tied_embedding > 0 || config->model.mtp_layers > 0;
    if (config->has_embedding || (config->has_head && is_shared)) {
        stage->embedding =
            append(stage, "embedding", config->model.vocabulary, config->model.hidden, false);
        stage->tensors[stage->tensor_count - 1].is_tied =
            is_shared && config->has_embedding != config->has_head;
    }
}

static void lay_out_head(struct dp_stage *stage)
{
    const struct dp_model_spec *model = &stage->config.model;
    const int64_t hidden = model->hidden;
    stage->head_norm = append(stage, "head.norm", 1, hidden, false);
    stage->head_output = model->tied_embedding > 0
                             ? stage->embedding
                             : append(stage, "head.output", model->vocabulary, hidden, false);
    if (dp_stage_predicts(&stage->config)) {
        stage->mtp.embedding_norm = append(stage, "mtp.embedding.norm", 1, hidden, false);
        stage->mtp.hidden_norm = append(stage, "mtp.hidden.norm", 1, hidden, false);
        stage->mtp.projection = append(stage, "mtp.projection", hidden, 2 * hidden, false);
        stage->mtp.head_norm = append(stage, "mtp.head.norm", 1, hidden, false);
    }
}

void dp_stage_lay_out_tensors(struct dp_stage *stage)
{
    const struct dp_stage_config *config = &stage->config;
    lay_out_embedding(stage);
    for (int32_t i = 0; i < stage->layer_count; i++) {
        lay_out_layer(stage, &stage->layers[i], config->layer_begin + i);
    }
    if (config->has_head) {
        lay_out_head(stage);
    }
    stage->expert_offset = stage->parameter_count;
    for (int32_t i = 0; i < stage->layer_count; i++) {
        if (!stage->layers[i].dense) {
            lay_out_experts(stage, i);
        }
    }
}

// The projections whose output joins the residual stream.
static bool joins_residual(const struct dp_tensor *tensor)
{
    return ends_with(tensor->name, ".down") || ends_with(tensor->name, ".attention.output");
}

void dp_stage_draw_weights(struct dp_stage *stage)
{
    int64_t longest = 0;
    for (int32_t i = 0; i < stage->tensor_count; i++) {
        longest = stage->tensors[i].count > longest ? stage->tensors[i].count : longest;
    }
    DP_AUTO_FREE double *values = dp_new_array(double, (size_t)longest);
    for (int32_t i = 0; i < stage->tensor_count; i++) {
        const struct dp_tensor *tensor = &stage->tensors[i];
        struct dp_rand rand;
        uint64_t name_hash = dp_hash64(tensor->name, strlen(tensor->name), 0);
        dp_rand_init(&rand, dp_rand_mix(stage->config.seed, name_hash));
        const bool is_one = is_norm(tensor->name), is_zero = starts_at_zero(tensor->name);
        double deviation = DEVIATION;
        if (joins_residual(tensor)) {
            deviation /= sqrt(2.0 * stage->config.model.layers);
        }
        for (int64_t j = 0; j < tensor->count; j++) {
            values[j] = is_one ? 1.0 : is_zero ? 0.0 : deviation * dp_rand_normal(&rand);
        }
        stage->device->ops->from_double(stage->device->stream, tensor->count, values,
                                        DP_OPERAND_REAL, dp_stage_master_at(stage, tensor->offset));
    }
}
