// The profiles that are built in: data/profiles.json, compiled in as bytes.

#include <strings.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "profile_internal.h"

// The file is ours: it parses, or the build is broken.
static json_t *builtin_list(json_t **ret_file)
{
    struct dp_error err;
    dp_status status = dp_json_parse((const char *)dp_profiles_bytes, dp_profiles_bytes_count,
                                     DP_PROFILE_BYTES_MAX, "profiles.json", ret_file, &err);
    DP_CHECK(status == DP_OK);
    return json_object_get(*ret_file, "profiles");
}

static const char *name_of(const json_t *entry)
{
    return json_string_value(json_object_get(entry, "name"));
}

static const json_t *entry_of(const json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        if (strcasecmp(name_of(entry), name) == 0) {
            return entry;
        }
    }
    return NULL;
}

static void list_names(const json_t *list, struct dp_buf *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        dp_buf_printf(out, "%s%s", i == 0 ? "" : ", ", name_of(json_array_get(list, i)));
    }
}

// From the outermost base inwards.
static dp_status build(const json_t *list, const char *name, struct dp_profile *profile,
                       struct dp_error *err)
{
    const json_t *chain[DP_PROFILE_BASES_MAX];
    int length = 0;
    for (const char *next = name; next != NULL;) {
        const json_t *entry = entry_of(list, next);
        if (entry == NULL) {
            DP_CLEANUP(dp_buf_deinit) struct dp_buf names = {0};
            list_names(list, &names);
            return dp_fail(err, DP_NOT_FOUND,
                           "no built-in profile is called \"%.80s\"; they are %s", next,
                           names.bytes);
        }
        if (length == DP_PROFILE_BASES_MAX) {
            return dp_fail(err, DP_INVALID, "profile \"%.80s\": more than %d bases", name,
                           DP_PROFILE_BASES_MAX);
        }
        chain[length++] = entry;
        next = json_string_value(json_object_get(entry, "base"));
    }
    dp_status status = DP_OK;
    for (int i = length - 1; status == DP_OK && i >= 0; i--) {
        status =
            dp_profile_device_from_json(chain[i], i == length - 1 ? NULL : profile, profile, err);
    }
    return status;
}

dp_status dp_profile_builtin(const char *name, struct dp_profile *ret_profile, struct dp_error *err)
{
    if (strcasecmp(name, "cpu") == 0) {
        dp_profile_default_cpu(ret_profile);
        return DP_OK;
    }
    DP_AUTO_JSON json_t *file = NULL;
    DP_AUTO_FREE struct dp_profile *profile = dp_new(struct dp_profile);
    dp_status status = build(builtin_list(&file), name, profile, err);
    if (status == DP_OK) {
        *ret_profile = *profile;
    }
    return status;
}

bool dp_profile_builtin_name(size_t index, char ret_name[DP_NAME_MAX])
{
    DP_AUTO_JSON json_t *file = NULL;
    const json_t *list = builtin_list(&file);
    if (index > json_array_size(list)) {
        return false;
    }
    const char *name =
        index == json_array_size(list) ? "cpu" : name_of(json_array_get(list, index));
    dp_copy_text(ret_name, DP_NAME_MAX, name);
    return true;
}
