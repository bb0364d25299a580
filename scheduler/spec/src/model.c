// What follows from a model's shape: parameter counts, part by part.

#include <string.h>

#include "dp/alloc.h"
#include "spec_internal.h"

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
    if (m->window > 0 && m->window_layers == 0 && m->window_from < m->layers) {
        m->window_layers = m->layers - m->window_from;
    }
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

static void count_attention(const struct dp_model_spec *m, struct dp_layer_parts *parts)
{
    int64_t h = m->hidden, heads = m->heads, output = 0;
    int64_t projected = 0; // widths that a bias of queries, keys and values is added to
    if (m->mla_kv_rank == 0) {
        int64_t query = heads * m->head_dim, key = (int64_t)m->kv_heads * m->head_dim;
        parts->attention = h * query + 2 * h * key;
        parts->norms += m->qk_norm > 0 ? 2 * (int64_t)m->head_dim : 0;
        projected = query + 2 * key;
        output = query;
    } else {
        int64_t key = (int64_t)m->mla_nope_dim + m->mla_rope_dim;
        int64_t kv = m->mla_kv_rank, q = m->mla_q_rank;
        parts->attention = q > 0 ? h * q + q * heads * key : h * heads * key;
        parts->attention += h * (kv + m->mla_rope_dim);
        parts->attention += kv * heads * (m->mla_nope_dim + m->mla_v_dim);
        parts->norms += q + kv;
        projected = q + kv + m->mla_rope_dim;
        output = heads * m->mla_v_dim;
    }
    parts->attention += output * h;
    parts->attention_biases = (m->biases & DP_BIAS_QKV) != 0 ? projected : 0;
    parts->attention_biases += (m->biases & DP_BIAS_OUTPUT) != 0 ? h : 0;
    parts->attention_biases += m->sinks > 0 ? heads : 0;
}

static int64_t ffn_matrices(const struct dp_model_spec *m)
{
    return m->ffn_matrices > 0 ? m->ffn_matrices : 3;
}

// Biases of an FFN: of its hidden widths and of what it gives.
static int64_t ffn_biases(const struct dp_model_spec *m, int32_t bias, int64_t width)
{
    bool exist = (m->biases & bias) != 0 && width > 0;
    return exist ? (ffn_matrices(m) - 1) * width + m->hidden : 0;
}

void dp_model_layer_parts(const struct dp_model_spec *m, int32_t layer,
                          struct dp_layer_parts *ret_parts)
{
    int64_t h = m->hidden, matrices = ffn_matrices(m);
    struct dp_layer_parts parts = {0};
    parts.norms = 2 * h * ((m->biases & DP_BIAS_NORM) != 0 ? 2 : 1);
    count_attention(m, &parts);
    if (!dp_model_layer_is_moe(m, layer)) {
        parts.shared = matrices * h * m->ffn;
        parts.shared_biases = ffn_biases(m, DP_BIAS_FFN, m->ffn);
        *ret_parts = parts;
        return;
    }
    int64_t shared = (int64_t)m->shared_experts * m->expert_ffn;
    parts.experts = m->experts;
    parts.visited = m->top_k;
    parts.router = h * m->experts;
    parts.router_biases = (m->biases & DP_BIAS_ROUTER) != 0 ? m->experts : 0;
    parts.shared = matrices * h * shared + (m->shared_gate > 0 ? h : 0);
    parts.shared_biases = ffn_biases(m, DP_BIAS_FFN, shared);
    parts.expert_each = matrices * h * m->expert_ffn;
    parts.expert_biases_each = ffn_biases(m, DP_BIAS_EXPERT, m->expert_ffn);
    *ret_parts = parts;
}

int64_t dp_layer_parts_common(const struct dp_layer_parts *parts)
{
    return parts->attention + parts->router + parts->shared + parts->norms +
           parts->attention_biases + parts->router_biases + parts->shared_biases;
}

static int64_t experts_of(const struct dp_layer_parts *parts, int64_t count)
{
    return count * (parts->expert_each + parts->expert_biases_each);
}

int64_t dp_layer_parts_total(const struct dp_layer_parts *parts)
{
    return dp_layer_parts_common(parts) + experts_of(parts, parts->experts);
}

int64_t dp_layer_parts_active(const struct dp_layer_parts *parts)
{
    return dp_layer_parts_common(parts) + experts_of(parts, parts->visited);
}

int32_t dp_model_layer_window(const struct dp_model_spec *m, int32_t layer)
{
    if (m->window == 0 || m->window_layers == 0 || layer < m->window_from || layer >= m->layers) {
        return 0;
    }
    // Of the first n layers from there on, ceil(n * window_layers / layers) have it.
    int64_t layers = (int64_t)m->layers - m->window_from, n = (int64_t)layer - m->window_from;
    int64_t before = (n * m->window_layers + layers - 1) / layers;
    int64_t with = ((n + 1) * m->window_layers + layers - 1) / layers;
    return with > before ? m->window : 0;
}

int64_t dp_model_embedding_parameters(const struct dp_model_spec *m)
{
    return (int64_t)m->hidden * ((int64_t)m->vocabulary + m->positions);
}

int64_t dp_model_head_parameters(const struct dp_model_spec *m)
{
    int64_t h = m->hidden, norm = h * ((m->biases & DP_BIAS_NORM) != 0 ? 2 : 1);
    return h * m->vocabulary + norm;
}

int64_t dp_model_layer_shared_parameters(const struct dp_model_spec *m, int32_t layer)
{
    struct dp_layer_parts parts;
    dp_model_layer_parts(m, layer, &parts);
    return dp_layer_parts_common(&parts);
}

int64_t dp_model_layer_parameters(const struct dp_model_spec *m, int32_t layer)
{
    struct dp_layer_parts parts;
    dp_model_layer_parts(m, layer, &parts);
    return dp_layer_parts_total(&parts);
}

int64_t dp_model_parameters(const struct dp_model_spec *m)
{
    int64_t total = dp_model_embedding_parameters(m) + dp_model_head_parameters(m);
    total -= m->tied_embedding > 0 ? (int64_t)m->hidden * m->vocabulary : 0;
    for (int32_t layer = 0; layer < m->layers; layer++) {
        total += dp_model_layer_parameters(m, layer);
    }
    return total;
}

double dp_model_estimate(const struct dp_model_spec *m)
{
    struct dp_layer_parts dense, last;
    dp_model_layer_parts(m, 0, &dense);
    dp_model_layer_parts(m, m->layers, &last);
    double few = m->dense_layers < m->layers ? m->dense_layers : m->layers;
    double outside = (double)dp_model_embedding_parameters(m) + (double)dp_model_head_parameters(m);
    return few * (double)dp_layer_parts_total(&dense) + outside +
           ((double)m->layers - few + m->mtp_layers) * (double)dp_layer_parts_total(&last);
}

int64_t dp_model_active_parameters(const struct dp_model_spec *m)
{
    int64_t total = dp_model_head_parameters(m);
    for (int32_t layer = 0; layer < m->layers; layer++) {
        struct dp_layer_parts parts;
        dp_model_layer_parts(m, layer, &parts);
        total += dp_layer_parts_active(&parts);
    }
    return total;
}

// Around the layer of an MTP module: norms of both inputs and of the output, and the projection of
// the two to one (arXiv 2412.19437, 2.2; the tensors enorm, hnorm, eh_proj, shared_head.norm).
static int64_t mtp_frame(const struct dp_model_spec *m)
{
    int64_t h = m->hidden;
    return 2 * h * h + 3 * h;
}

int64_t dp_model_mtp_parameters(const struct dp_model_spec *m)
{
    return m->mtp_layers * (dp_model_layer_parameters(m, m->layers) + mtp_frame(m));
}

int64_t dp_model_mtp_active_parameters(const struct dp_model_spec *m)
{
    struct dp_layer_parts parts;
    dp_model_layer_parts(m, m->layers, &parts);
    int64_t head = (int64_t)m->hidden * m->vocabulary;
    return m->mtp_layers * (dp_layer_parts_active(&parts) + mtp_frame(m) + head);
}
