// The form "dp.profile/1".

#include <math.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "profile_internal.h"

struct figure {
    const char *key;
    size_t offset;
    bool positive; // 0 is not a figure
};

#define FIGURE(member, positive)                                                                   \
    {                                                                                              \
#member, offsetof(struct dp_profile, member), positive                                     \
    }

static const struct figure figures[] = {
    FIGURE(error_share, false),
    FIGURE(gemm_flops_per_s, true),
    FIGURE(attention_flops_per_s, true),
    FIGURE(attention_gradient_flops_per_s, true),
    FIGURE(activation_elements_per_s, true),
    FIGURE(activation_gradient_elements_per_s, true),
    FIGURE(memory_bytes_per_s, true),
    FIGURE(op_overhead_s, false),
    FIGURE(action_overhead_s, false),
    FIGURE(optimizer_bytes_per_s, true),
    FIGURE(busy_slowdown, true),
    {"local_latency_s", offsetof(struct dp_profile, local.latency_s), false},
    {"local_bytes_per_s", offsetof(struct dp_profile, local.bytes_per_s), true},
    {"local_sum_bytes_per_s", offsetof(struct dp_profile, local.sum_bytes_per_s), true},
    {"network_latency_s", offsetof(struct dp_profile, network.latency_s), false},
    {"network_bytes_per_s", offsetof(struct dp_profile, network.bytes_per_s), true},
    {"network_sum_bytes_per_s", offsetof(struct dp_profile, network.sum_bytes_per_s), true},
    FIGURE(exchange_device_share, false),
    FIGURE(exchange_hidden_share, false),
    FIGURE(routing_spread, false),
    FIGURE(activation_share, true),
    FIGURE(weight_bytes, true),
    FIGURE(gradient_bytes, true),
    FIGURE(optimizer_bytes, false),
};

static const char *const kind_names[DP_GEMM_KIND_COUNT] = {"nt", "nn", "tn"};

json_t *dp_profile_to_json(const struct dp_profile *profile)
{
    if (profile->is_accelerator) {
        return dp_profile_device_to_json(profile);
    }
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:I, s:i, s:i, s:b, s:b}", "schema", "dp.profile/1", "name", profile->name,
        "provenance", profile->provenance, "measured_at_s", (json_int_t)profile->measured_at_s,
        "cores", profile->cores, "element_bytes", profile->element_bytes, "optimizer_sharded",
        profile->optimizer_sharded, "exchange_by_node", profile->exchange_by_node);
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        const void *at = (const char *)profile + figures[i].offset;
        json_object_set_new(json, figures[i].key, json_real(*(const double *)at));
    }
    json_t *gemms = json_array();
    for (size_t i = 0; i < profile->gemms_count; i++) {
        const struct dp_gemm_point *point = &profile->gemms[i];
        json_array_append_new(gemms,
                              json_pack("{s:s, s:i, s:i, s:i, s:f}", "kind",
                                        kind_names[point->kind], "m", point->m, "k", point->k, "n",
                                        point->n, "flops_per_s", point->flops_per_s));
    }
    json_object_set_new(json, "gemms", gemms);
    json_t *exchanges = json_array();
    for (size_t i = 0; i < profile->exchanges_count; i++) {
        const struct dp_exchange_point *point = &profile->exchanges[i];
        json_array_append_new(exchanges,
                              json_pack("{s:i, s:f, s:f}", "ranks", point->ranks, "latency_s",
                                        point->latency_s, "bytes_per_s", point->bytes_per_s));
    }
    json_object_set_new(json, "exchanges", exchanges);
    return json;
}

static dp_status read_figures(const json_t *json, struct dp_profile *profile, struct dp_error *err)
{
    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
        const json_t *value = json_object_get(json, figures[i].key);
        double number = json_number_value(value);
        if (!json_is_number(value) || !isfinite(number) || number < 0 ||
            (figures[i].positive && number <= 0)) {
            return dp_fail(err, DP_INVALID, "profile: \"%s\" must be a number %s 0", figures[i].key,
                           figures[i].positive ? "above" : "of at least");
        }
        *(double *)(void *)((char *)profile + figures[i].offset) = number;
    }
    if (profile->exchange_device_share >= 1 || profile->exchange_hidden_share > 1 ||
        profile->activation_share > 1) {
        return dp_fail(err, DP_INVALID, "profile: a share is above 1");
    }
    if (profile->busy_slowdown < 1) {
        return dp_fail(err, DP_INVALID, "profile: \"busy_slowdown\" is below 1");
    }
    return DP_OK;
}

static dp_status read_gemm(const json_t *json, struct dp_gemm_point *point, struct dp_error *err)
{
    const char *kind;
    double rate;
    if (json_unpack((json_t *)json, "{s:s, s:i, s:i, s:i, s:F}", "kind", &kind, "m", &point->m, "k",
                    &point->k, "n", &point->n, "flops_per_s", &rate) != 0) {
        return dp_fail(err, DP_INVALID,
                       "profile: an entry of \"gemms\" needs kind, m, k, n, flops_per_s");
    }
    int found = -1;
    for (int i = 0; i < DP_GEMM_KIND_COUNT; i++) {
        found = strcmp(kind, kind_names[i]) == 0 ? i : found;
    }
    if (found < 0 || point->m < 1 || point->k < 1 || point->n < 1 || !isfinite(rate) || rate <= 0) {
        return dp_fail(err, DP_INVALID, "profile: an entry of \"gemms\" is out of range");
    }
    point->kind = (dp_gemm_kind)found;
    point->flops_per_s = rate;
    return DP_OK;
}

static dp_status read_gemms(const json_t *json, struct dp_profile *profile, struct dp_error *err)
{
    const json_t *gemms = json_object_get(json, "gemms");
    size_t count = json_array_size(gemms);
    if (!json_is_array(gemms) || count > DP_PROFILE_GEMMS_MAX) {
        return dp_fail(err, DP_INVALID, "profile: \"gemms\" must be an array of at most %d",
                       DP_PROFILE_GEMMS_MAX);
    }
    dp_status status = DP_OK;
    for (size_t i = 0; status == DP_OK && i < count; i++) {
        status = read_gemm(json_array_get(gemms, i), &profile->gemms[i], err);
    }
    profile->gemms_count = count;
    return status;
}

// Profiles of before have none.
static dp_status read_exchanges(const json_t *json, struct dp_profile *profile,
                                struct dp_error *err)
{
    const json_t *exchanges = json_object_get(json, "exchanges");
    size_t count = json_array_size(exchanges);
    if ((exchanges != NULL && !json_is_array(exchanges)) || count > DP_PROFILE_EXCHANGES_MAX) {
        return dp_fail(err, DP_INVALID, "profile: \"exchanges\" must be an array of at most %d",
                       DP_PROFILE_EXCHANGES_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        struct dp_exchange_point *point = &profile->exchanges[i];
        if (json_unpack(json_array_get(exchanges, i), "{s:i, s:F, s:F}", "ranks", &point->ranks,
                        "latency_s", &point->latency_s, "bytes_per_s", &point->bytes_per_s) != 0 ||
            point->ranks < 2 || (i > 0 && point->ranks <= point[-1].ranks) ||
            !isfinite(point->latency_s) || point->latency_s < 0 || !isfinite(point->bytes_per_s) ||
            point->bytes_per_s <= 0) {
            return dp_fail(err, DP_INVALID,
                           "profile: an entry of \"exchanges\" needs ranks (2 or more, rising), "
                           "latency_s and bytes_per_s");
        }
    }
    profile->exchanges_count = count;
    return DP_OK;
}

// An accelerator's profile builds on a built-in one, or has every figure itself.
static dp_status accelerator_from_json(const json_t *json, struct dp_profile *ret_profile,
                                       struct dp_error *err)
{
    const json_t *base = json_object_get(json, "base");
    const char *schema = json_string_value(json_object_get(json, "schema"));
    DP_AUTO_FREE struct dp_profile *from = dp_new(struct dp_profile);
    if (schema == NULL || strcmp(schema, "dp.profile/1") != 0) {
        return dp_fail(err, DP_INVALID, "profile: \"schema\" must be \"dp.profile/1\"");
    }
    if (base == NULL) {
        return dp_profile_device_from_json(json, NULL, ret_profile, err);
    }
    if (!json_is_string(base)) {
        return dp_fail(err, DP_INVALID, "profile: \"base\" must be a text");
    }
    if (dp_profile_builtin(json_string_value(base), from, err) != DP_OK) {
        return dp_fail_in(err, "profile: \"base\"");
    }
    if (!from->is_accelerator) {
        return dp_fail(err, DP_INVALID, "profile: \"base\" must be an accelerator");
    }
    return dp_profile_device_from_json(json, from, ret_profile, err);
}

dp_status dp_profile_from_json(const json_t *json, struct dp_profile *ret_profile,
                               struct dp_error *err)
{
    if (json_object_get(json, "figures") != NULL || json_object_get(json, "base") != NULL) {
        return accelerator_from_json(json, ret_profile, err);
    }
    struct dp_profile profile = {0};
    const char *schema = NULL, *name = NULL, *provenance = NULL;
    json_int_t measured_at = 0;
    int sharded = 0, by_node = 0;
    json_error_t where;
    if (json_unpack_ex((json_t *)json, &where, 0, "{s:s, s:s, s:s, s:I, s:i, s:i, s:b, s:b}",
                       "schema", &schema, "name", &name, "provenance", &provenance, "measured_at_s",
                       &measured_at, "cores", &profile.cores, "element_bytes",
                       &profile.element_bytes, "optimizer_sharded", &sharded, "exchange_by_node",
                       &by_node) != 0) {
        return dp_fail(err, DP_INVALID, "profile: %s", where.text);
    }
    if (strcmp(schema, "dp.profile/1") != 0) {
        return dp_fail(err, DP_INVALID, "profile: the schema is \"%s\", not \"dp.profile/1\"",
                       schema);
    }
    if (!DP_COPY_TEXT(profile.name, name) || !DP_COPY_TEXT(profile.provenance, provenance)) {
        return dp_fail(err, DP_INVALID, "profile: \"name\" or \"provenance\" is too long");
    }
    if (profile.cores < 0 || profile.element_bytes < 1 || profile.element_bytes > 8) {
        return dp_fail(err, DP_INVALID, "profile: \"cores\" or \"element_bytes\" is out of range");
    }
    profile.measured_at_s = measured_at;
    profile.optimizer_sharded = sharded != 0;
    profile.exchange_by_node = by_node != 0;
    dp_status status = read_figures(json, &profile, err);
    status = status == DP_OK ? read_gemms(json, &profile, err) : status;
    status = status == DP_OK ? read_exchanges(json, &profile, err) : status;
    if (status == DP_OK) {
        *ret_profile = profile;
    }
    return status;
}

dp_status dp_profile_load(const char *path, struct dp_profile *ret_profile, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_JSON json_t *json = NULL;
    dp_status status = dp_read_file(path, DP_PROFILE_BYTES_MAX, &text, err);
    status = status == DP_OK
                 ? dp_json_parse(text.bytes, text.length, DP_PROFILE_BYTES_MAX, path, &json, err)
                 : status;
    if (status == DP_OK) {
        status = dp_profile_from_json(json, ret_profile, err);
        if (status != DP_OK) {
            (void)dp_fail_in(err, "%s", path);
        }
    }
    return status;
}
