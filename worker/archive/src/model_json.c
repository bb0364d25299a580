#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "archive_internal.h"
#include "dp/check.h"

static const struct {
    const char *name;
    size_t offset;
    bool is_real;
    bool is_free;  // training may go on with another value
    bool is_later; // files of earlier versions do not have it: 0
} fields[] = {
#define INTEGER(field)                                                                             \
    {                                                                                              \
#field, offsetof(struct dp_model_spec, field), false, false, false                         \
    }
#define LATER(field)                                                                               \
    {                                                                                              \
#field, offsetof(struct dp_model_spec, field), false, false, true                          \
    }
#define REAL(field)                                                                                \
    {                                                                                              \
#field, offsetof(struct dp_model_spec, field), true, false, false                          \
    }
#define FREE(field)                                                                                \
    {                                                                                              \
#field, offsetof(struct dp_model_spec, field), true, true, false                           \
    }
    INTEGER(layers),
    INTEGER(dense_layers),
    INTEGER(hidden),
    INTEGER(heads),
    INTEGER(kv_heads),
    INTEGER(head_dim),
    INTEGER(ffn),
    INTEGER(experts),
    INTEGER(top_k),
    INTEGER(shared_experts),
    INTEGER(expert_ffn),
    INTEGER(expert_groups),
    INTEGER(top_groups),
    INTEGER(router),
    INTEGER(raw_weights),
    INTEGER(vocabulary),
    INTEGER(mtp_layers),
    INTEGER(mla_q_rank),
    INTEGER(mla_kv_rank),
    INTEGER(mla_nope_dim),
    INTEGER(mla_rope_dim),
    INTEGER(mla_v_dim),
    INTEGER(window),
    INTEGER(window_layers),
    INTEGER(tied_embedding),
    INTEGER(positions),
    INTEGER(qk_norm),
    INTEGER(sinks),
    INTEGER(biases),
    INTEGER(ffn_matrices),
    INTEGER(shared_gate),
    LATER(rotary_dim),
    LATER(window_from),
    INTEGER(rope.kind),
    INTEGER(rope.original),
    INTEGER(rope.untruncated),
    REAL(rope_theta),
    REAL(norm_eps),
    REAL(route_scale),
    REAL(rope.factor),
    REAL(rope.low_factor),
    REAL(rope.high_factor),
    REAL(rope.beta_fast),
    REAL(rope.beta_slow),
    REAL(rope.mscale),
    REAL(rope.mscale_all),
    REAL(rope.attention_factor),
    FREE(aux_loss_weight),
    FREE(bias_update),
    FREE(mtp_loss_weight),
#undef FREE
#undef LATER
#undef INTEGER
#undef REAL
};

static double value_of(const struct dp_model_spec *model, size_t i)
{
    const char *at = (const char *)model + fields[i].offset;
    return fields[i].is_real ? *(const double *)(const void *)at
                             : (double)*(const int32_t *)(const void *)at;
}

json_t *dp_model_to_json(const struct dp_model_spec *model)
{
    json_t *json = json_object();
    for (size_t i = 0; i < DP_ARRAY_LENGTH(fields); i++) {
        double value = value_of(model, i);
        json_object_set_new(json, fields[i].name,
                            fields[i].is_real ? json_real(value) : json_integer((json_int_t)value));
    }
    return json;
}

dp_status dp_model_from_json(const json_t *json, const char *where, struct dp_model_spec *ret_model,
                             struct dp_error *err)
{
    struct dp_model_spec model = {0};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(fields); i++) {
        const json_t *value = json_object_get(json, fields[i].name);
        char *at = (char *)&model + fields[i].offset;
        if (value == NULL && fields[i].is_later) {
            continue;
        }
        bool is_right = fields[i].is_real
                            ? json_is_number(value)
                            : json_is_integer(value) && json_integer_value(value) >= 0 &&
                                  json_integer_value(value) <= INT32_MAX;
        if (!is_right) {
            return dp_fail(err, DP_INVALID, "%s: model.%s is missing or no fitting number", where,
                           fields[i].name);
        }
        if (fields[i].is_real) {
            *(double *)(void *)at = json_number_value(value);
        } else {
            *(int32_t *)(void *)at = (int32_t)json_integer_value(value);
        }
    }
    *ret_model = model;
    return DP_OK;
}

static double or_else(double value, double fallback)
{
    return value > 0 ? value : fallback;
}

static struct dp_rope_scaling plain_rope(const struct dp_rope_scaling *rope)
{
    struct dp_rope_scaling plain = {.kind = rope->kind};
    if (rope->kind == DP_ROPE_PLAIN) {
        return plain;
    }
    plain = *rope;
    if (rope->kind == DP_ROPE_LLAMA3) {
        plain.low_factor = or_else(rope->low_factor, 1);
        plain.high_factor = or_else(rope->high_factor, 4);
    }
    if (rope->kind == DP_ROPE_YARN) {
        plain.beta_fast = or_else(rope->beta_fast, 32);
        plain.beta_slow = or_else(rope->beta_slow, 1);
    }
    return plain;
}

static void plain_experts(struct dp_model_spec *model)
{
    if (model->experts == 0) {
        model->dense_layers = model->top_k = model->shared_experts = model->expert_ffn = 0;
        model->expert_groups = model->raw_weights = model->shared_gate = 0;
        model->router = DP_MODEL_SOFTMAX;
        model->route_scale = 0;
    } else {
        model->ffn = model->dense_layers > 0 ? model->ffn : 0;
        model->route_scale = or_else(model->route_scale, 1);
        model->shared_gate = model->shared_experts > 0 ? model->shared_gate : 0;
    }
    if (model->expert_groups <= 1) {
        model->expert_groups = model->top_groups = 0;
    }
}

// Of several ways to say the same model one: defaults in full, nothing that is not used. Whether
// routers have a bias is left to who loads it.
static struct dp_model_spec plain_model(const struct dp_model_spec *model)
{
    struct dp_model_spec plain = *model;
    plain_experts(&plain);
    plain.rope = plain_rope(&model->rope);
    plain.biases &= ~DP_BIAS_ROUTER;
    plain.ffn_matrices = model->ffn_matrices > 0 ? model->ffn_matrices : 3;
    if (model->mla_kv_rank > 0) {
        // Latent attention has widths of its own.
        plain.kv_heads = plain.head_dim = plain.rotary_dim = 0;
    } else {
        plain.mla_q_rank = plain.mla_nope_dim = plain.mla_rope_dim = plain.mla_v_dim = 0;
        plain.rotary_dim = model->rotary_dim == model->head_dim ? 0 : model->rotary_dim;
    }
    return plain;
}

static bool has_same_windows(const struct dp_model_spec *a, const struct dp_model_spec *b)
{
    bool is_same = a->layers == b->layers;
    for (int32_t layer = 0; is_same && layer < a->layers; layer++) {
        is_same = dp_model_layer_window(a, layer) == dp_model_layer_window(b, layer);
    }
    return is_same;
}

const char *dp_model_difference(const struct dp_model_spec *a, const struct dp_model_spec *b,
                                double *ret_a, double *ret_b)
{
    const struct dp_model_spec left = plain_model(a);
    struct dp_model_spec right = plain_model(b);
    if (has_same_windows(a, b)) {
        right.window = left.window;
        right.window_layers = left.window_layers;
        right.window_from = left.window_from;
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(fields); i++) {
        double x = value_of(&left, i), y = value_of(&right, i);
        // Reals have been through twelve digits of text.
        if (!fields[i].is_free && fabs(x - y) > 1e-11 * fabs(x)) {
            *ret_a = x;
            *ret_b = y;
            return fields[i].name;
        }
    }
    return NULL;
}

json_t *dp_hex_to_json(uint64_t value)
{
    return json_sprintf("0x%016" PRIx64, value);
}

bool dp_hex_from_json(const json_t *json, uint64_t *ret_value)
{
    const char *text = json_string_value(json);
    if (text == NULL || text[0] != '0' || text[1] != 'x') {
        return false;
    }
    char *end;
    errno = 0;
    *ret_value = strtoull(text, &end, 16);
    return errno == 0 && *end == '\0';
}
