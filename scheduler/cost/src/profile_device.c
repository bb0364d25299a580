// An accelerator's profile as JSON: figures with their sources, on top of another profile.

#include <math.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/diag.h"
#include "profile_internal.h"

struct row {
    const char *key;
    size_t offset;
    double minimum, maximum;
};

static const struct row rows[] = {
#define ROW(name, minimum, maximum)                                                                \
    {#name, offsetof(struct dp_device_figures, name), minimum, maximum},
    DP_DEVICE_FIGURES(ROW)
#undef ROW
};

#define TRAIT(name, maximum)                                                                       \
    {                                                                                              \
#name, offsetof(struct dp_memory_traits, name), 0, maximum                                 \
    }

static const struct row traits[] = {
    TRAIT(runtime_bytes, 1e15), TRAIT(fragmentation_share, 10), TRAIT(group_bytes, 1e15),
    TRAIT(exchange_rows, 1e3),  TRAIT(moment_bytes, 8),         TRAIT(master_bytes, 8),
    TRAIT(gradient_bytes, 8),
};

#define FLAG(name)                                                                                 \
    {                                                                                              \
#name, offsetof(struct dp_memory_traits, name), 0, 1                                       \
    }

static const struct row flags[] = {
    FLAG(scores_kept),       FLAG(dropout),         FLAG(weights_after_fc2),   FLAG(loss_fused),
    FLAG(scratch_gradients), FLAG(operands_stored), FLAG(weights_as_operands),
};

// The members of an accelerator's profile.
static const char *const keys[] = {"schema",
                                   "name",
                                   "base",
                                   "provenance",
                                   "measured_at_s",
                                   "error_share",
                                   "moe_error_share",
                                   "ranking_error_share",
                                   "figures",
                                   "memory",
                                   "cores",
                                   "fitted_on",
                                   "fitted_expert_domains",
                                   "levels",
                                   "fitted_formats",
                                   "default_stack",
                                   NULL};

const char *dp_device_figure_text(dp_device_figure figure)
{
    return (size_t)figure < DP_ARRAY_LENGTH(rows) ? rows[figure].key : NULL;
}

dp_device_figure dp_device_gemm_figure(dp_format format)
{
    switch (format) {
    case DP_FORMAT_FP8:
        return DP_DEVICE_fp8_gemm_share;
    case DP_FORMAT_FP8_BLOCK:
        return DP_DEVICE_fp8_block_gemm_share;
    case DP_FORMAT_MXFP8:
        return DP_DEVICE_mxfp8_gemm_share;
    case DP_FORMAT_NVFP4:
        return DP_DEVICE_nvfp4_gemm_share;
    default:
        return DP_DEVICE_bf16_gemm_share;
    }
}

static dp_status unknown(const char *where, const char *key, const char *const *known,
                         struct dp_error *err)
{
    const char *near = dp_suggest(key, known);
    return dp_fail(err, DP_INVALID, "profile: %s has no \"%.60s\"%s%s%s", where, key,
                   near == NULL ? "" : "; did you mean \"", near == NULL ? "" : near,
                   near == NULL ? "" : "\"?");
}

static const struct row *row_of(const struct row *list, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i].key, key) == 0) {
            return &list[i];
        }
    }
    return NULL;
}

static void name_rows(const struct row *list, size_t count, const char **ret_names)
{
    for (size_t i = 0; i < count; i++) {
        ret_names[i] = list[i].key;
    }
}

static dp_status read_number(const json_t *json, const struct row *row, void *object,
                             struct dp_error *err)
{
    double number = json_number_value(json);
    if (!json_is_number(json) || !isfinite(number) || number < row->minimum ||
        number > row->maximum) {
        return dp_fail(err, DP_INVALID, "profile: \"%s\" must be a number from %g to %g", row->key,
                       row->minimum, row->maximum);
    }
    *(double *)(void *)((char *)object + row->offset) = number;
    return DP_OK;
}

// One text serves all figures that name it.
static dp_status add_source(struct dp_device_sources *sources, size_t figure, const char *text,
                            struct dp_error *err)
{
    int32_t i = 0;
    while (i < sources->texts_count && strcmp(sources->texts[i], text) != 0) {
        i++;
    }
    if (i == DP_DEVICE_SOURCES_MAX) {
        return dp_fail(err, DP_INVALID, "profile: figures name more than %d different sources",
                       DP_DEVICE_SOURCES_MAX);
    }
    if (i == sources->texts_count) {
        if (!DP_COPY_TEXT(sources->texts[i], text)) {
            return dp_fail(err, DP_INVALID, "profile: the source of \"%s\" is longer than %d bytes",
                           rows[figure].key, DP_DEVICE_SOURCE_MAX - 1);
        }
        sources->texts_count++;
    }
    sources->source[figure] = (uint8_t)(i + 1);
    return DP_OK;
}

static dp_status read_figure(const char *key, const json_t *json, struct dp_profile *profile,
                             struct dp_error *err)
{
    const struct row *row = row_of(rows, DP_ARRAY_LENGTH(rows), key);
    if (row == NULL) {
        const char *names[DP_ARRAY_LENGTH(rows) + 1] = {NULL};
        name_rows(rows, DP_ARRAY_LENGTH(rows), names);
        return unknown("\"figures\"", key, names, err);
    }
    const json_t *value = json_is_object(json) ? json_object_get(json, "value") : json;
    const char *source = json_string_value(json_object_get(json, "source"));
    dp_status status = read_number(value, row, &profile->device, err);
    if (status != DP_OK || source == NULL) {
        return status;
    }
    return add_source(&profile->sources, (size_t)(row - rows), source, err);
}

static dp_status read_figures(const json_t *figures, struct dp_profile *profile, bool complete,
                              struct dp_error *err)
{
    const char *key;
    json_t *value;
    dp_status status = DP_OK;
    json_object_foreach((json_t *)figures, key, value)
    {
        status = status == DP_OK ? read_figure(key, value, profile, err) : status;
    }
    for (size_t i = 0; status == DP_OK && complete && i < DP_ARRAY_LENGTH(rows); i++) {
        if (json_object_get(figures, rows[i].key) == NULL) {
            status =
                dp_fail(err, DP_INVALID,
                        "profile: \"figures\" lacks \"%s\"; give it, or a \"base\" that has it",
                        rows[i].key);
        }
    }
    return status;
}

static dp_status read_memory(const json_t *memory, struct dp_memory_traits *ret_traits,
                             struct dp_error *err)
{
    const char *key;
    json_t *value;
    dp_status status = DP_OK;
    json_object_foreach((json_t *)memory, key, value)
    {
        const struct row *number = row_of(traits, DP_ARRAY_LENGTH(traits), key);
        const struct row *flag = row_of(flags, DP_ARRAY_LENGTH(flags), key);
        // {"value": .., "source": ".."} as in "figures"; the source is for who reads the file.
        const json_t *plain = json_is_object(value) ? json_object_get(value, "value") : value;
        if (status != DP_OK) {
            return status;
        }
        if (number != NULL) {
            status = read_number(plain, number, ret_traits, err);
        } else if (flag != NULL && json_is_boolean(plain)) {
            *(bool *)(void *)((char *)ret_traits + flag->offset) = json_is_true(plain);
        } else if (flag != NULL) {
            status = dp_fail(err, DP_INVALID, "profile: \"%s\" must be true or false", key);
        } else {
            const char *names[DP_ARRAY_LENGTH(traits) + DP_ARRAY_LENGTH(flags) + 1] = {NULL};
            name_rows(traits, DP_ARRAY_LENGTH(traits), names);
            name_rows(flags, DP_ARRAY_LENGTH(flags), names + DP_ARRAY_LENGTH(traits));
            status = unknown("\"memory\"", key, names, err);
        }
    }
    return status;
}

static dp_status read_fitted(const json_t *json, struct dp_profile *profile, struct dp_error *err)
{
    const json_t *on = json_object_get(json, "fitted_on");
    const json_t *formats = json_object_get(json, "fitted_formats");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    for (size_t i = 0; i < json_array_size(on); i++) {
        const char *name = json_string_value(json_array_get(on, i));
        if (name == NULL) {
            return dp_fail(err, DP_INVALID, "profile: \"fitted_on\" must be a list of texts");
        }
        dp_buf_printf(&text, "%s%s", i == 0 ? "" : "; ", name);
    }
    if (on != NULL && !DP_COPY_TEXT(profile->fitted_on, text.length > 0 ? text.bytes : "")) {
        return dp_fail(err, DP_INVALID, "profile: \"fitted_on\" is longer than %d bytes",
                       DP_PROFILE_FITTED_MAX - 1);
    }
    profile->fitted_formats = formats != NULL ? 0 : profile->fitted_formats;
    for (size_t i = 0; i < json_array_size(formats); i++) {
        const char *name = json_string_value(json_array_get(formats, i));
        dp_format format = DP_FORMAT_AUTO;
        dp_status status = dp_format_parse(name == NULL ? "" : name, &format, err);
        if (status != DP_OK) {
            return dp_fail_in(err, "profile: \"fitted_formats\"");
        }
        profile->fitted_formats |= 1 << format;
    }
    return DP_OK;
}

static dp_status read_levels(const json_t *levels, struct dp_profile *profile, struct dp_error *err)
{
    static const struct row bounds[] = {
        {"bytes_per_s", offsetof(struct dp_device_level, bytes_per_s), 1, 1e15},
        {"latency_s", offsetof(struct dp_device_level, latency_s), 0, 1},
    };
    size_t count = json_array_size(levels);
    if (count > DP_CLUSTER_LEVELS_MAX) {
        return dp_fail(err, DP_INVALID, "profile: \"levels\" has more than %d entries",
                       DP_CLUSTER_LEVELS_MAX);
    }
    dp_status status = DP_OK;
    for (size_t i = 0; status == DP_OK && i < 2 * count; i++) {
        const struct row *row = &bounds[i % 2];
        status = read_number(json_object_get(json_array_get(levels, i / 2), row->key), row,
                             &profile->levels[i / 2], err);
    }
    profile->levels_count = levels != NULL ? (int32_t)count : profile->levels_count;
    return status;
}

static dp_status read_plain(const json_t *json, struct dp_profile *profile, struct dp_error *err)
{
    const char *name = NULL, *provenance = profile->provenance;
    json_int_t measured_at = 0, domains = profile->fitted_expert_domains, cores = profile->cores;
    double errors[] = {profile->error_share, profile->moe_error_share,
                       profile->ranking_error_share};
    json_error_t where;
    if (json_unpack_ex((json_t *)json, &where, 0, "{s:s, s?s, s?I, s?I, s?I, s?F, s?F, s?F}",
                       "name", &name, "provenance", &provenance, "measured_at_s", &measured_at,
                       "fitted_expert_domains", &domains, "cores", &cores, "error_share",
                       &errors[0], "moe_error_share", &errors[1], "ranking_error_share",
                       &errors[2]) != 0) {
        return dp_fail(err, DP_INVALID, "profile: %s", where.text);
    }
    char kept[DP_PROVENANCE_MAX];
    bool fits = DP_COPY_TEXT(kept, provenance);
    if (!fits || !DP_COPY_TEXT(profile->name, name)) {
        return dp_fail(err, DP_INVALID, "profile: \"name\" or \"provenance\" is too long");
    }
    memcpy(profile->provenance, kept, sizeof(kept));
    bool legal =
        domains >= 0 && domains <= DP_RANKS_MAX && cores >= 0 && cores <= DP_NODE_SLOTS_MAX * 64;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(errors); i++) {
        legal = legal && isfinite(errors[i]) && errors[i] >= 0 && errors[i] <= 10;
    }
    if (!legal) {
        return dp_fail(err, DP_INVALID,
                       "profile: \"error_share\" (or moe_, ranking_), \"cores\" or "
                       "\"fitted_expert_domains\" is out of range");
    }
    profile->measured_at_s = measured_at;
    profile->fitted_expert_domains = (int32_t)domains;
    profile->cores = (int32_t)cores;
    profile->error_share = errors[0];
    profile->moe_error_share = errors[1];
    profile->ranking_error_share = errors[2];
    return DP_OK;
}

static dp_status check_types(const json_t *json, struct dp_error *err)
{
    static const struct {
        const char *key;
        bool object;
    } types[] = {{"figures", true},
                 {"memory", true},
                 {"levels", false},
                 {"fitted_on", false},
                 {"fitted_formats", false}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(types); i++) {
        const json_t *value = json_object_get(json, types[i].key);
        if (value != NULL && (types[i].object ? !json_is_object(value) : !json_is_array(value))) {
            return dp_fail(err, DP_INVALID, "profile: \"%s\" must be %s", types[i].key,
                           types[i].object ? "an object" : "a list");
        }
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value)
    {
        bool known = false;
        for (int i = 0; keys[i] != NULL; i++) {
            known = known || strcmp(keys[i], key) == 0;
        }
        if (!known) {
            return unknown("the file", key, keys, err);
        }
    }
    return DP_OK;
}

dp_status dp_profile_device_from_json(const json_t *json, const struct dp_profile *base,
                                      struct dp_profile *ret_profile, struct dp_error *err)
{
    DP_AUTO_FREE struct dp_profile *profile = dp_new(struct dp_profile);
    if (base != NULL) {
        *profile = *base;
    }
    profile->is_accelerator = true;
    dp_status status = check_types(json, err);
    status = status == DP_OK ? read_plain(json, profile, err) : status;
    status = status == DP_OK
                 ? read_figures(json_object_get(json, "figures"), profile, base == NULL, err)
                 : status;
    status = status == DP_OK ? read_memory(json_object_get(json, "memory"), &profile->memory, err)
                             : status;
    status = status == DP_OK ? read_fitted(json, profile, err) : status;
    status = status == DP_OK ? read_levels(json_object_get(json, "levels"), profile, err) : status;
    if (status == DP_OK) {
        dp_profile_device_settle(profile);
        *ret_profile = *profile;
    }
    return status;
}

static json_t *figures_to_json(const struct dp_profile *profile)
{
    json_t *figures = json_object();
    for (size_t i = 0; i < DP_ARRAY_LENGTH(rows); i++) {
        const void *at = (const char *)&profile->device + rows[i].offset;
        json_t *figure = json_pack("{s:f}", "value", *(const double *)at);
        uint8_t source = profile->sources.source[i];
        if (source > 0) {
            json_object_set_new(figure, "source", json_string(profile->sources.texts[source - 1]));
        }
        json_object_set_new(figures, rows[i].key, figure);
    }
    return figures;
}

static json_t *memory_to_json(const struct dp_memory_traits *memory)
{
    json_t *json = json_object();
    for (size_t i = 0; i < DP_ARRAY_LENGTH(traits); i++) {
        const void *at = (const char *)memory + traits[i].offset;
        json_object_set_new(json, traits[i].key, json_real(*(const double *)at));
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(flags); i++) {
        const void *at = (const char *)memory + flags[i].offset;
        json_object_set_new(json, flags[i].key, json_boolean(*(const bool *)at));
    }
    return json;
}

json_t *dp_profile_device_to_json(const struct dp_profile *profile)
{
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:I, s:i, s:f, s:i}", "schema", "dp.profile/1", "name",
                  profile->name, "provenance", profile->provenance, "measured_at_s",
                  (json_int_t)profile->measured_at_s, "cores", profile->cores, "error_share",
                  profile->error_share, "fitted_expert_domains", profile->fitted_expert_domains);
    json_object_set_new(json, "moe_error_share", json_real(profile->moe_error_share));
    json_object_set_new(json, "ranking_error_share", json_real(profile->ranking_error_share));
    json_object_set_new(json, "figures", figures_to_json(profile));
    json_object_set_new(json, "memory", memory_to_json(&profile->memory));
    json_t *fitted = json_array(), *formats = json_array(), *levels = json_array();
    if (profile->fitted_on[0] != '\0') {
        json_array_append_new(fitted, json_string(profile->fitted_on));
    }
    for (int i = 0; i < DP_FORMAT_COUNT; i++) {
        if ((profile->fitted_formats & 1 << i) != 0) {
            json_array_append_new(formats, json_string(dp_format_text((dp_format)i)));
        }
    }
    for (int32_t i = 0; i < profile->levels_count; i++) {
        json_array_append_new(levels,
                              json_pack("{s:f, s:f}", "bytes_per_s", profile->levels[i].bytes_per_s,
                                        "latency_s", profile->levels[i].latency_s));
    }
    json_object_set_new(json, "fitted_on", fitted);
    json_object_set_new(json, "fitted_formats", formats);
    json_object_set_new(json, "levels", levels);
    return json;
}
