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

// Latent attention has widths of its own.
static bool is_plain_attention(size_t offset)
{
    return offset == offsetof(struct dp_model_spec, head_dim) ||
           offset == offsetof(struct dp_model_spec, kv_heads);
}

const char *dp_model_difference(const struct dp_model_spec *a, const struct dp_model_spec *b,
                                double *ret_a, double *ret_b)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(fields); i++) {
        double left = value_of(a, i), right = value_of(b, i);
        if (a->mla_kv_rank > 0 && is_plain_attention(fields[i].offset)) {
            continue;
        }
        // Reals have been through twelve digits of text.
        if (!fields[i].is_free && fabs(left - right) > 1e-11 * fabs(left)) {
            *ret_a = left;
            *ret_b = right;
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
