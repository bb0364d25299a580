// The profiles that are built in: data/profiles.json, compiled in as bytes.

#include <string.h>
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

// An entry, what it builds on, what that builds on, ..
struct chain {
    const json_t *entries[DP_PROFILE_BASES_MAX];
    int length;
};

static dp_status find_chain(const json_t *list, const char *name, struct chain *ret_chain,
                            struct dp_error *err)
{
    struct chain chain = {.length = 0};
    for (const char *next = name; next != NULL;) {
        const json_t *entry = entry_of(list, next);
        if (entry == NULL) {
            DP_CLEANUP(dp_buf_deinit) struct dp_buf names = {0};
            list_names(list, &names);
            return dp_fail(err, DP_NOT_FOUND,
                           "no built-in profile is called \"%.80s\"; they are %s; "
                           "DEVICE@SOFTWARE[+SOFTWARE] puts several together",
                           next, names.bytes);
        }
        if (chain.length == DP_PROFILE_BASES_MAX) {
            return dp_fail(err, DP_INVALID, "profile \"%.80s\": more than %d bases", name,
                           DP_PROFILE_BASES_MAX);
        }
        chain.entries[chain.length++] = entry;
        next = json_string_value(json_object_get(entry, "base"));
    }
    *ret_chain = chain;
    return DP_OK;
}

static bool has(const struct chain *chain, const json_t *entry)
{
    bool found = false;
    for (int i = 0; i < chain->length; i++) {
        found = found || chain->entries[i] == entry;
    }
    return found;
}

// From the outermost base inwards, without what `done` has as well.
static dp_status apply(const struct chain *chain, const struct chain *done,
                       struct dp_profile *profile, struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int i = chain->length - 1; status == DP_OK && i >= 0; i--) {
        bool is_root = done == NULL && i == chain->length - 1;
        if (done == NULL || !has(done, chain->entries[i])) {
            status = dp_profile_device_from_json(chain->entries[i], is_root ? NULL : profile,
                                                 profile, err);
        }
    }
    return status;
}

// "gb200@megatron-bridge-26.06+graphs": a device, then what software on it changes.
static dp_status put_together(const json_t *list, const char *name, struct dp_profile *profile,
                              struct dp_error *err)
{
    char text[DP_NAME_MAX];
    if (!DP_COPY_TEXT(text, name)) {
        return dp_fail(err, DP_NOT_FOUND, "no built-in profile is called \"%.80s\"", name);
    }
    char *rest = NULL, provenance[DP_PROVENANCE_MAX];
    struct chain device, software;
    dp_status status = find_chain(list, strtok_r(text, "@", &rest), &device, err);
    status = status == DP_OK ? apply(&device, NULL, profile, err) : status;
    dp_copy_text(provenance, sizeof(provenance), profile->provenance);
    for (char *part; status == DP_OK && (part = strtok_r(NULL, "+", &rest)) != NULL;) {
        status = find_chain(list, part, &software, err);
        status = status == DP_OK ? apply(&software, &device, profile, err) : status;
    }
    // The name says what stands on the device, the provenance how that was measured.
    DP_COPY_TEXT(profile->name, name);
    dp_copy_text(profile->provenance, sizeof(profile->provenance), provenance);
    return status;
}

static dp_status build(const json_t *list, const char *name, struct dp_profile *profile,
                       struct dp_error *err)
{
    const char *at = strchr(name, '@');
    if (entry_of(list, name) == NULL && at != NULL && at != name) {
        return put_together(list, name, profile, err);
    }
    struct chain chain;
    dp_status status = find_chain(list, name, &chain, err);
    return status == DP_OK ? apply(&chain, NULL, profile, err) : status;
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

dp_status dp_profile_builtin_default(const char *device, struct dp_profile *ret_profile,
                                     struct dp_error *err)
{
    DP_AUTO_JSON json_t *file = NULL;
    const json_t *entry = entry_of(builtin_list(&file), device);
    const char *stack = json_string_value(json_object_get(entry, "default_stack"));
    DP_AUTO_FREE char *name = stack == NULL ? NULL : dp_asprintf("%s@%s", name_of(entry), stack);
    return dp_profile_builtin(name == NULL ? device : name, ret_profile, err);
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
