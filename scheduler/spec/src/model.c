// Built-in shapes, and what follows from a shape: parameter counts.
//
// Shapes are the models' published configurations (config.json or the technical report).

#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "spec_internal.h"

#define DEEPSEEK_MLA(q_rank)                                                                       \
    .mla_q_rank = (q_rank), .mla_kv_rank = 512, .mla_nope_dim = 128, .mla_rope_dim = 64,           \
    .mla_v_dim = 128, .head_dim = 192

static const struct dp_model_spec presets[] = {
    {.name = "tiny-moe",
     .layers = 8,
     .dense_layers = 1,
     .hidden = 128,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 32,
     .ffn = 512,
     .experts = 8,
     .top_k = 2,
     .shared_experts = 1,
     .expert_ffn = 256,
     .vocabulary = 256,
     .rope_theta = 10000,
     .norm_eps = 1e-6,
     .aux_loss_weight = 1e-4},
    {.name = "deepseek-v3",
     .layers = 61,
     .dense_layers = 3,
     .hidden = 7168,
     .heads = 128,
     .kv_heads = 128,
     DEEPSEEK_MLA(1536),
     .ffn = 18432,
     .experts = 256,
     .top_k = 8,
     .shared_experts = 1,
     .expert_ffn = 2048,
     .expert_groups = 8,
     .top_groups = 4,
     .vocabulary = 129280,
     .mtp_layers = 1,
     .rope_theta = 10000,
     .norm_eps = 1e-6},
    {.name = "deepseek-v2",
     .layers = 60,
     .dense_layers = 1,
     .hidden = 5120,
     .heads = 128,
     .kv_heads = 128,
     DEEPSEEK_MLA(1536),
     .ffn = 12288,
     .experts = 160,
     .top_k = 6,
     .shared_experts = 2,
     .expert_ffn = 1536,
     .expert_groups = 8,
     .top_groups = 3,
     .vocabulary = 102400,
     .rope_theta = 10000,
     .norm_eps = 1e-6},
    {.name = "deepseek-v2-lite",
     .layers = 27,
     .dense_layers = 1,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 16,
     DEEPSEEK_MLA(0),
     .ffn = 10944,
     .experts = 64,
     .top_k = 6,
     .shared_experts = 2,
     .expert_ffn = 1408,
     .vocabulary = 102400,
     .rope_theta = 10000,
     .norm_eps = 1e-6},
    {.name = "deepseek-moe-16b",
     .layers = 28,
     .dense_layers = 1,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 16,
     .head_dim = 128,
     .ffn = 10944,
     .experts = 64,
     .top_k = 6,
     .shared_experts = 2,
     .expert_ffn = 1408,
     .vocabulary = 102400,
     .rope_theta = 10000,
     .norm_eps = 1e-6},
    {.name = "mixtral-8x7b",
     .layers = 32,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .experts = 8,
     .top_k = 2,
     .expert_ffn = 14336,
     .vocabulary = 32000,
     .rope_theta = 1e6,
     .norm_eps = 1e-5},
    {.name = "mixtral-8x22b",
     .layers = 56,
     .hidden = 6144,
     .heads = 48,
     .kv_heads = 8,
     .head_dim = 128,
     .experts = 8,
     .top_k = 2,
     .expert_ffn = 16384,
     .vocabulary = 32768,
     .rope_theta = 1e6,
     .norm_eps = 1e-5},
    {.name = "qwen3-235b-a22b",
     .layers = 94,
     .hidden = 4096,
     .heads = 64,
     .kv_heads = 4,
     .head_dim = 128,
     .experts = 128,
     .top_k = 8,
     .expert_ffn = 1536,
     .vocabulary = 151936,
     .rope_theta = 1e6,
     .norm_eps = 1e-6},
    {.name = "qwen3-30b-a3b",
     .layers = 48,
     .hidden = 2048,
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 128,
     .experts = 128,
     .top_k = 8,
     .expert_ffn = 768,
     .vocabulary = 151936,
     .rope_theta = 1e6,
     .norm_eps = 1e-6},
    {.name = "kimi-k2",
     .layers = 61,
     .dense_layers = 1,
     .hidden = 7168,
     .heads = 64,
     .kv_heads = 64,
     DEEPSEEK_MLA(1536),
     .ffn = 18432,
     .experts = 384,
     .top_k = 8,
     .shared_experts = 1,
     .expert_ffn = 2048,
     .vocabulary = 163840,
     .rope_theta = 50000,
     .norm_eps = 1e-6},
    {.name = "glm-4.5",
     .layers = 92,
     .dense_layers = 3,
     .hidden = 5120,
     .heads = 96,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 12288,
     .experts = 160,
     .top_k = 8,
     .shared_experts = 1,
     .expert_ffn = 1536,
     .vocabulary = 151552,
     .mtp_layers = 1,
     .rope_theta = 1e6,
     .norm_eps = 1e-5},
    {.name = "llama-3-70b",
     .layers = 80,
     .dense_layers = 80,
     .hidden = 8192,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 28672,
     .vocabulary = 128256,
     .rope_theta = 500000,
     .norm_eps = 1e-5},
    {.name = "llama-3.1-405b",
     .layers = 126,
     .dense_layers = 126,
     .hidden = 16384,
     .heads = 128,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 53248,
     .vocabulary = 128256,
     .rope_theta = 500000,
     .norm_eps = 1e-5},
};

enum { PRESETS = sizeof(presets) / sizeof(presets[0]) };

const char *const *dp_model_preset_names(void)
{
    // Written with the same values by whoever comes first.
    static const char *names[PRESETS + 1];
    for (size_t i = 0; i < PRESETS; i++) {
        __atomic_store_n(&names[i], presets[i].name, __ATOMIC_RELAXED);
    }
    return names;
}

dp_status dp_model_preset(const char *name, struct dp_model_spec *ret_model, struct dp_error *err)
{
    for (size_t i = 0; i < PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *ret_model = presets[i];
            return DP_OK;
        }
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf names = {0};
    for (size_t i = 0; i < PRESETS; i++) {
        dp_buf_printf(&names, "%s%s", i == 0 ? "" : ", ", presets[i].name);
    }
    return dp_fail(err, DP_NOT_FOUND, "no model is called \"%s\"; the built-in ones are %s", name,
                   names.bytes);
}

void dp_model_complete(struct dp_model_spec *m, const struct dp_toml_node *table)
{
    if (m->name[0] == '\0') {
        DP_COPY_TEXT(m->name, "custom");
    }
    m->kv_heads = m->kv_heads > 0 ? m->kv_heads : m->heads;
    if (m->head_dim == 0 && m->mla_kv_rank > 0) {
        m->head_dim = m->mla_nope_dim + m->mla_rope_dim;
    } else if (m->head_dim == 0 && m->heads > 0) {
        m->head_dim = m->hidden / m->heads;
    }
    m->vocabulary = m->vocabulary > 0 ? m->vocabulary : 256;
    m->rope_theta = m->rope_theta > 0 ? m->rope_theta : 10000;
    bool given = table != NULL && dp_toml_get(table, "norm_eps") != NULL;
    m->norm_eps = m->norm_eps > 0 || given ? m->norm_eps : 1e-6;
    if (m->experts > 0) {
        return;
    }
    m->dense_layers = m->layers;
    // A preset's experts go as a whole; keys given by hand stay and are refused by the check.
    int32_t *members[] = {&m->top_k, &m->shared_experts, &m->expert_ffn, &m->expert_groups,
                          &m->top_groups};
    static const char *const keys[] = {"top_k", "shared_experts", "expert_ffn", "expert_groups",
                                       "top_groups"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (table == NULL || dp_toml_get(table, keys[i]) == NULL) {
            *members[i] = 0;
        }
    }
}

int64_t dp_model_attention_parameters(const struct dp_model_spec *m)
{
    int64_t h = m->hidden, heads = m->heads, norms = 2 * h;
    if (m->mla_kv_rank == 0) {
        int64_t query = heads * m->head_dim, key = (int64_t)m->kv_heads * m->head_dim;
        return norms + h * query + 2 * h * key + query * h;
    }
    int64_t nope = m->mla_nope_dim, rope = m->mla_rope_dim, value = m->mla_v_dim;
    int64_t kv = m->mla_kv_rank, q = m->mla_q_rank;
    int64_t query = q > 0 ? h * q + q + q * heads * (nope + rope) : h * heads * (nope + rope);
    return norms + query + h * (kv + rope) + kv + kv * heads * (nope + value) + heads * value * h;
}

int64_t dp_model_layer_shared_parameters(const struct dp_model_spec *m, int32_t layer)
{
    int64_t h = m->hidden;
    int64_t attention = dp_model_attention_parameters(m);
    if (!dp_model_layer_is_moe(m, layer)) {
        return attention + 3 * h * m->ffn;
    }
    return attention + h * m->experts + 3 * h * m->shared_experts * m->expert_ffn;
}

static int64_t expert_parameters(const struct dp_model_spec *m)
{
    return 3 * (int64_t)m->hidden * m->expert_ffn;
}

int64_t dp_model_layer_parameters(const struct dp_model_spec *m, int32_t layer)
{
    int64_t experts = dp_model_layer_is_moe(m, layer) ? m->experts : 0;
    return dp_model_layer_shared_parameters(m, layer) + experts * expert_parameters(m);
}

int64_t dp_model_parameters(const struct dp_model_spec *m)
{
    int64_t total = 2 * (int64_t)m->hidden * m->vocabulary + m->hidden;
    for (int32_t layer = 0; layer < m->layers; layer++) {
        total += dp_model_layer_parameters(m, layer);
    }
    return total;
}

int64_t dp_model_active_parameters(const struct dp_model_spec *m)
{
    int64_t total = (int64_t)m->hidden * m->vocabulary + m->hidden;
    for (int32_t layer = 0; layer < m->layers; layer++) {
        int64_t visited = dp_model_layer_is_moe(m, layer) ? m->top_k : 0;
        total += dp_model_layer_shared_parameters(m, layer) + visited * expert_parameters(m);
    }
    return total;
}

// Each MTP module is one more layer, two norms and the projection of two hidden states to one;
// embedding and head are the model's own (arXiv 2412.19437, 2.2).
int64_t dp_model_mtp_parameters(const struct dp_model_spec *m)
{
    int64_t h = m->hidden;
    return m->mtp_layers * (dp_model_layer_parameters(m, m->layers - 1) + 2 * h * h + 2 * h);
}
