// `--set key=value` and the check that follows edits.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "spec_internal.h"

// The text as the TOML value it looks like; texts need no quotes on a command line.
static struct dp_toml_node value_node(const struct dp_key *key, const char *text)
{
    struct dp_toml_node node = {
        .type = DP_TOML_STRING, .value.string = text, .string_length = strlen(text)};
    if (key->type == DP_KEY_TEXT || key->type == DP_KEY_PATH || key->type == DP_KEY_TEXTS ||
        key->type == DP_KEY_DEVICE || key->type == DP_KEY_FORMAT || key->type == DP_KEY_BIASES) {
        return node;
    }
    char *end;
    long long integer = strtoll(text, &end, 10);
    if (end != text && *end == '\0') { // out of range: the nearest, which is refused
        node.type = DP_TOML_INTEGER;
        node.value.integer = integer;
        return node;
    }
    double number = strtod(text, &end);
    if (end != text && *end == '\0') {
        node.type = DP_TOML_FLOAT;
        node.value.number = number;
    }
    return node;
}

static void free_toml(struct dp_toml **toml)
{
    dp_toml_free(*toml);
}

// Finds "section.key", a key of [parallel], or a key of the top level.
static const struct dp_key *find_key(const char *name, const struct dp_section **ret_section)
{
    const char *dot = strchr(name, '.');
    if (dot == NULL) {
        *ret_section = dp_section_find(dp_job_sections, "parallel");
        const struct dp_key *key = dp_section_find_key(*ret_section, name);
        if (key == NULL) {
            *ret_section = dp_job_sections;
            key = dp_section_find_key(*ret_section, name);
        }
        return key;
    }
    DP_AUTO_FREE char *section = dp_strndup(name, (size_t)(dot - name));
    *ret_section = dp_section_find(dp_job_sections, section);
    return *ret_section == NULL ? NULL : dp_section_find_key(*ret_section, dot + 1);
}

// Every name that --set takes, NULL at the end; the texts and the list are the caller's.
static char **settable_names(void)
{
    size_t count = 0;
    char **names = NULL;
    for (const struct dp_section *s = dp_job_sections; s->name != NULL; s++) {
        bool bare = s->name[0] == '\0' || strcmp(s->name, "parallel") == 0;
        names = dp_realloc(names, count + s->keys_count + 1, sizeof(*names));
        for (size_t i = 0; i < s->keys_count; i++) {
            names[count++] =
                bare ? dp_strdup(s->keys[i].name) : dp_asprintf("%s.%s", s->name, s->keys[i].name);
        }
    }
    names[count] = NULL;
    return names;
}

static dp_status fail_unknown(const char *name, struct dp_error *err)
{
    char **names = settable_names();
    const char *near = dp_suggest(name, (const char *const *)names);
    const char *section_of = NULL;
    for (size_t i = 0; near == NULL && names[i] != NULL; i++) {
        const char *dot = strchr(names[i], '.');
        if (dot != NULL && strcmp(dot + 1, name) == 0) {
            section_of = names[i];
        }
    }
    near = near != NULL ? near : section_of;
    dp_status status =
        near != NULL
            ? dp_fail(err, DP_INVALID, "--set: unknown key \"%s\"; did you mean \"%s\"?", name,
                      near)
            : dp_fail(err, DP_INVALID,
                      "--set: unknown key \"%s\"; keys of [parallel] go by name, others as "
                      "section.key (train.steps)",
                      name);
    for (size_t i = 0; names[i] != NULL; i++) {
        free(names[i]);
    }
    free(names);
    return status;
}

static dp_status store(struct dp_job_spec *spec, const struct dp_section *section,
                       const struct dp_key *key, const char *value, struct dp_error *err)
{
    // A schedule named "auto" is one that is searched for; "any" leaves it to the planner.
    const char *open = strcmp(key->name, "schedule") == 0 ? "any" : "auto";
    if (strcmp(section->name, "parallel") == 0 && strcmp(value, open) == 0) {
        memset((char *)spec + key->offset, 0, key->size);
        return DP_OK;
    }
    DP_AUTO_FREE char *working = getcwd(NULL, 0);
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, "--set", NULL, 0);
    struct dp_toml_node node = value_node(key, value);
    DP_CLEANUP(free_toml) struct dp_toml *list = NULL;
    if (key->type == DP_KEY_TEXTS && value[0] == '[') {
        // Written as in a file; else the items stand between ';'.
        DP_AUTO_FREE char *text = dp_asprintf("list = %s", value);
        if (dp_toml_parse(text, strlen(text), &diags, &list, err) != DP_OK) {
            return dp_fail(err, DP_INVALID,
                           "--set: %s is not a list: [\"one\", \"two\"], or one;two", value);
        }
        node = *dp_toml_get(dp_toml_root(list), "list");
    }
    dp_key_store(section, key, &node, working, &diags, spec);
    return dp_diags_status(&diags, err);
}

dp_status dp_job_spec_set(struct dp_job_spec *spec, const char *assignment, struct dp_error *err)
{
    const char *equals = strchr(assignment, '=');
    if (equals == NULL || equals == assignment) {
        return dp_fail(err, DP_USAGE, "--set %s: write it as key=value", assignment);
    }
    DP_AUTO_FREE char *name = dp_strndup(assignment, (size_t)(equals - assignment));
    const struct dp_section *section = NULL;
    const struct dp_key *key = find_key(name, &section);
    if (key == NULL) {
        return fail_unknown(name, err);
    }
    if (strcmp(key->name, "preset") == 0) {
        return dp_model_preset(equals + 1, &spec->model, err);
    }
    if (key->type == DP_KEY_SPECIAL) {
        return dp_fail(err, DP_INVALID, "--set: \"%s\" can be given in a job file only", name);
    }
    struct dp_job_spec edited = *spec;
    dp_status status = store(&edited, section, key, equals + 1, err);
    if (status != DP_OK) {
        return status;
    }
    dp_model_complete(&edited.model, NULL);
    *spec = edited;
    return DP_OK;
}

dp_status dp_job_spec_check(const struct dp_job_spec *spec, struct dp_error *err)
{
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, spec->name[0] == '\0' ? "job" : spec->name, NULL, 0);
    dp_job_check(spec, NULL, &diags);
    return dp_diags_status(&diags, err);
}
