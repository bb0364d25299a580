#include "keys.h"

#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/limits.h"
#include "dp/spec.h"
#include "spec_internal.h"

enum { KEYS_MAX = 64, LABEL_MAX = 80 };

const char *dp_section_label(const struct dp_section *section, char *buffer, size_t size)
{
    if (section->name[0] == '\0') {
        return "the top level";
    }
    snprintf(buffer, size, "[%s]", section->name);
    return buffer;
}

const struct dp_key *dp_section_find_key(const struct dp_section *section, const char *name)
{
    for (size_t i = 0; i < section->keys_count; i++) {
        if (strcmp(section->keys[i].name, name) == 0) {
            return &section->keys[i];
        }
    }
    return NULL;
}

const struct dp_section *dp_section_find(const struct dp_section *sections, const char *name)
{
    for (; sections->name != NULL; sections++) {
        if (strcmp(sections->name, name) == 0) {
            return sections;
        }
    }
    return NULL;
}

static bool is_integer(dp_key_type type)
{
    return type == DP_KEY_INT32 || type == DP_KEY_INT64 || type == DP_KEY_UINT64;
}

// Written as a name out of a list.
static bool is_named(dp_key_type type)
{
    return type == DP_KEY_FORMAT || type == DP_KEY_BIASES || type == DP_KEY_ROUTER ||
           type == DP_KEY_ROPE;
}

static bool is_text(dp_key_type type)
{
    return type == DP_KEY_TEXT || type == DP_KEY_PATH || type == DP_KEY_TEXTS ||
           type == DP_KEY_DEVICE || is_named(type);
}

static void add_wrong_type(const struct dp_section *section, const struct dp_key *key,
                           const struct dp_toml_node *node, struct dp_diags *diags)
{
    char label[LABEL_MAX];
    const char *wanted = is_integer(key->type)       ? "an integer"
                         : key->type == DP_KEY_TEXTS ? "a list of strings"
                         : is_text(key->type)        ? "a string"
                                                     : "a number";
    dp_diags_add(diags, node->line, node->column, key->help, "\"%s\" in %s must be %s, not %s",
                 key->name, dp_section_label(section, label, sizeof(label)), wanted,
                 dp_toml_type_text(node->type));
}

// Numbers in messages: whole ones without an exponent.
static void print_number(char buffer[32], double value)
{
    if (fabs(value) < 1e15 && value == floor(value)) {
        snprintf(buffer, 32, "%.0f", value);
    } else {
        snprintf(buffer, 32, "%g", value);
    }
}

static bool in_range(const struct dp_section *section, const struct dp_key *key,
                     const struct dp_toml_node *node, double value, struct dp_diags *diags)
{
    if (value >= key->min && (key->below_max ? value < key->max : value <= key->max)) {
        return true;
    }
    char label[LABEL_MAX], min[32], max[32], got[32];
    print_number(min, key->min);
    print_number(max, key->max);
    print_number(got, value);
    dp_diags_add(diags, node->line, node->column, key->help,
                 "\"%s\" in %s is %s; it must be at least %s and %s %s", key->name,
                 dp_section_label(section, label, sizeof(label)), got, min,
                 key->below_max ? "below" : "at most", max);
    return false;
}

static void store_integer(const struct dp_section *section, const struct dp_key *key,
                          const struct dp_toml_node *node, struct dp_diags *diags, void *member)
{
    bool flag = node->type == DP_TOML_BOOLEAN && key->min >= 0 && key->max <= 1;
    if (node->type != DP_TOML_INTEGER && !flag) {
        add_wrong_type(section, key, node, diags);
        return;
    }
    int64_t value = flag ? node->value.boolean : node->value.integer;
    if (!in_range(section, key, node, (double)value, diags)) {
        return;
    }
    if (key->type == DP_KEY_INT32) {
        *(int32_t *)member = (int32_t)value;
    } else {
        *(int64_t *)member = value;
    }
}

static void store_double(const struct dp_section *section, const struct dp_key *key,
                         const struct dp_toml_node *node, struct dp_diags *diags, void *member)
{
    if (node->type != DP_TOML_FLOAT && node->type != DP_TOML_INTEGER) {
        add_wrong_type(section, key, node, diags);
        return;
    }
    double value = node->type == DP_TOML_FLOAT ? node->value.number : (double)node->value.integer;
    if (in_range(section, key, node, value, diags)) {
        *(double *)member = value;
    }
}

static void store_device(const struct dp_section *section, const struct dp_key *key,
                         const struct dp_toml_node *node, struct dp_diags *diags, void *member)
{
    static const char *const names[] = {"cpu", "sim", "cuda", NULL};
    for (int kind = 0; names[kind] != NULL; kind++) {
        if (strcmp(names[kind], node->value.string) == 0) {
            *(dp_device_kind *)member = (dp_device_kind)kind;
            return;
        }
    }
    char label[LABEL_MAX];
    const char *near = dp_suggest(node->value.string, names);
    DP_AUTO_FREE char *help = near == NULL ? dp_strdup("the kinds are cpu, sim and cuda")
                                           : dp_asprintf("did you mean \"%s\"?", near);
    dp_diags_add(diags, node->line, node->column, help, "\"%s\" in %s is no kind of device: \"%s\"",
                 key->name, dp_section_label(section, label, sizeof(label)), node->value.string);
}

// A format, a set of biases or a kind of router or of rotary angles by name.
static void store_named(const struct dp_section *section, const struct dp_key *key,
                        const struct dp_toml_node *node, struct dp_diags *diags, void *member)
{
    struct dp_error err = {0};
    const char *text = node->value.string;
    dp_status status = key->type == DP_KEY_FORMAT   ? dp_format_parse(text, member, &err)
                       : key->type == DP_KEY_ROUTER ? dp_router_kind_parse(text, member, &err)
                       : key->type == DP_KEY_ROPE   ? dp_rope_kind_parse(text, member, &err)
                                                    : dp_biases_parse(text, member, &err);
    if (status != DP_OK) {
        char label[LABEL_MAX];
        dp_diags_add(diags, node->line, node->column, key->help, "\"%s\" in %s: %s", key->name,
                     dp_section_label(section, label, sizeof(label)), err.message);
    }
}

static void store_text(const struct dp_section *section, const struct dp_key *key,
                       const struct dp_toml_node *node, const char *base_directory,
                       struct dp_diags *diags, void *member)
{
    if (node->type != DP_TOML_STRING) {
        add_wrong_type(section, key, node, diags);
        return;
    }
    char buffer[LABEL_MAX];
    const char *label = dp_section_label(section, buffer, sizeof(buffer));
    const char *text = node->value.string;
    if (strlen(text) != node->string_length) {
        dp_diags_add(diags, node->line, node->column, NULL, "\"%s\" in %s holds a NUL character",
                     key->name, label);
        return;
    }
    if (key->type == DP_KEY_DEVICE) {
        store_device(section, key, node, diags, member);
        return;
    }
    if (is_named(key->type)) {
        store_named(section, key, node, diags, member);
        return;
    }
    bool is_relative = key->type == DP_KEY_PATH && text[0] != '\0' && text[0] != '/';
    if (is_relative && base_directory == NULL) {
        dp_diags_add(diags, node->line, node->column, NULL,
                     "\"%s\" in %s must be absolute: the file came without the directory that "
                     "\"%.200s\" would be in",
                     key->name, label, text);
        return;
    }
    DP_AUTO_FREE char *joined = is_relative ? dp_path_join(base_directory, text) : dp_strdup(text);
    memset(member, 0, key->size); // equal specs have equal bytes
    if (!dp_copy_text(member, key->size, joined)) {
        dp_diags_add(diags, node->line, node->column, NULL,
                     "\"%s\" in %s is too long: %zu bytes, at most %zu fit", key->name, label,
                     strlen(joined), key->size - 1);
    }
}

// A list becomes one text, as which a list is kept.
static void store_texts(const struct dp_section *section, const struct dp_key *key,
                        const struct dp_toml_node *node, struct dp_diags *diags, void *member)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf joined = {0};
    for (size_t i = 0; i < node->children_count; i++) {
        const struct dp_toml_node *item = &node->children[i];
        if (item->type != DP_TOML_STRING || strlen(item->value.string) != item->string_length ||
            strchr(item->value.string, ';') != NULL) {
            add_wrong_type(section, key, item, diags);
            return;
        }
        dp_buf_printf(&joined, "%s%s", i == 0 ? "" : ";", item->value.string);
    }
    struct dp_toml_node text = *node;
    text.type = DP_TOML_STRING;
    text.value.string = joined.length == 0 ? "" : joined.bytes;
    text.string_length = joined.length;
    store_text(section, key, &text, NULL, diags, member);
}

void dp_key_store(const struct dp_section *section, const struct dp_key *key,
                  const struct dp_toml_node *node, const char *base_directory,
                  struct dp_diags *diags, void *object)
{
    void *member = (char *)object + key->offset;
    if (is_integer(key->type)) {
        store_integer(section, key, node, diags, member);
    } else if (key->type == DP_KEY_DOUBLE) {
        store_double(section, key, node, diags, member);
    } else if (key->type == DP_KEY_TEXTS && node->type == DP_TOML_ARRAY) {
        store_texts(section, key, node, diags, member);
    } else if (is_text(key->type)) {
        store_text(section, key, node, base_directory, diags, member);
    }
}

// The help for an unknown key: a near name here, else the section that has it, else all names.
static char *help_for_unknown(const struct dp_section *section, const struct dp_section *sections,
                              const char *name)
{
    const char *names[KEYS_MAX + 1] = {0};
    DP_CHECK(section->keys_count <= KEYS_MAX);
    for (size_t i = 0; i < section->keys_count; i++) {
        names[i] = section->keys[i].name;
    }
    const char *near = dp_suggest(name, names);
    if (near != NULL) {
        return dp_asprintf("did you mean \"%s\"?", near);
    }
    for (; sections != NULL && sections->name != NULL; sections++) {
        if (dp_section_find_key(sections, name) != NULL) {
            char label[LABEL_MAX];
            return dp_asprintf("\"%s\" belongs in %s", name,
                               dp_section_label(sections, label, sizeof(label)));
        }
    }
    struct dp_buf text = {0};
    dp_buf_puts(&text, "the keys here are");
    for (size_t i = 0; i < section->keys_count; i++) {
        dp_buf_printf(&text, "%s %s", i == 0 ? "" : ",", names[i]);
    }
    return dp_buf_take(&text);
}

void dp_keys_read(const struct dp_section *section, const struct dp_section *sections,
                  const struct dp_toml_node *table, const char *base_directory,
                  struct dp_diags *diags, void *object)
{
    char label[LABEL_MAX];
    for (size_t i = 0; i < table->children_count; i++) {
        const struct dp_toml_node *node = &table->children[i];
        const struct dp_key *key = dp_section_find_key(section, node->key);
        if (key != NULL) {
            dp_key_store(section, key, node, base_directory, diags, object);
        } else if (section->name[0] != '\0' || node->type != DP_TOML_TABLE) {
            DP_AUTO_FREE char *help = help_for_unknown(section, sections, node->key);
            dp_diags_add(diags, node->key_line, node->key_column, help, "unknown key \"%s\" in %s",
                         node->key, dp_section_label(section, label, sizeof(label)));
        }
    }
}

static bool is_absent(const struct dp_key *key, const void *object)
{
    const char *member = (const char *)object + key->offset;
    switch (key->type) {
    case DP_KEY_INT32:
        return *(const int32_t *)(const void *)member == 0;
    case DP_KEY_INT64:
    case DP_KEY_UINT64:
        return *(const int64_t *)(const void *)member == 0;
    case DP_KEY_DOUBLE:
        return fpclassify(*(const double *)(const void *)member) == FP_ZERO;
    case DP_KEY_TEXT:
    case DP_KEY_PATH:
    case DP_KEY_TEXTS:
        return member[0] == '\0';
    case DP_KEY_FORMAT:
        return *(const dp_format *)(const void *)member == DP_FORMAT_AUTO;
    case DP_KEY_BIASES:
        return *(const int32_t *)(const void *)member == 0;
    case DP_KEY_ROUTER:
        return *(const dp_router_kind *)(const void *)member == DP_MODEL_SOFTMAX;
    case DP_KEY_ROPE:
        return *(const dp_rope_kind *)(const void *)member == DP_ROPE_PLAIN;
    case DP_KEY_DEVICE:
    case DP_KEY_SPECIAL:
        break;
    }
    return false;
}

void dp_keys_require(const struct dp_section *section, const struct dp_toml_node *section_node,
                     struct dp_diags *diags, const void *object)
{
    char label[LABEL_MAX];
    for (size_t i = 0; i < section->keys_count; i++) {
        const struct dp_key *key = &section->keys[i];
        bool given = section_node != NULL && dp_toml_get(section_node, key->name) != NULL;
        if (key->required && !given && is_absent(key, object)) {
            DP_AUTO_FREE char *help = dp_asprintf("%s: %s", key->name, key->help);
            dp_diags_add(diags, section_node == NULL ? 0 : section_node->key_line,
                         section_node == NULL ? 0 : section_node->key_column, help,
                         "\"%s\" is missing in %s", key->name,
                         dp_section_label(section, label, sizeof(label)));
        }
    }
}

// The shortest decimal that reads back to the same double.
static void write_double(double value, struct dp_buf *out)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    dp_buf_puts(out, text);
    if (strpbrk(text, ".e") == NULL) {
        dp_buf_puts(out, ".0");
    }
}

static void write_text(const char *text, struct dp_buf *out)
{
    dp_buf_puts(out, "\"");
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            dp_buf_printf(out, "\\%c", c);
        } else if (c < 0x20 || c == 0x7f) {
            dp_buf_printf(out, "\\u%04x", c);
        } else {
            dp_buf_append(out, text, 1);
        }
    }
    dp_buf_puts(out, "\"");
}

static void write_texts(const char *texts, struct dp_buf *out)
{
    DP_AUTO_FREE char *copy = dp_strdup(texts);
    char *rest = copy;
    const char *between = "[";
    for (char *item = strsep(&rest, ";"); item != NULL; item = strsep(&rest, ";")) {
        dp_buf_puts(out, between);
        write_text(item, out);
        between = ", ";
    }
    dp_buf_puts(out, "]");
}

static void write_value(const struct dp_key *key, const void *member, struct dp_buf *out)
{
    switch (key->type) {
    case DP_KEY_INT32:
        dp_buf_printf(out, "%" PRId32, *(const int32_t *)member);
        break;
    case DP_KEY_INT64:
    case DP_KEY_UINT64:
        dp_buf_printf(out, "%" PRId64, *(const int64_t *)member);
        break;
    case DP_KEY_DOUBLE:
        write_double(*(const double *)member, out);
        break;
    case DP_KEY_TEXT:
    case DP_KEY_PATH:
        write_text(member, out);
        break;
    case DP_KEY_TEXTS:
        write_texts(member, out);
        break;
    case DP_KEY_DEVICE:
        write_text(dp_device_kind_text(*(const dp_device_kind *)member), out);
        break;
    case DP_KEY_FORMAT:
        write_text(dp_format_text(*(const dp_format *)member), out);
        break;
    case DP_KEY_BIASES: {
        char text[DP_NAME_MAX];
        dp_biases_text(*(const int32_t *)member, text);
        write_text(text, out);
        break;
    }
    case DP_KEY_ROUTER:
        write_text(dp_router_kind_text(*(const dp_router_kind *)member), out);
        break;
    case DP_KEY_ROPE:
        write_text(dp_rope_kind_text(*(const dp_rope_kind *)member), out);
        break;
    case DP_KEY_SPECIAL:
        break;
    }
}

void dp_keys_write(const struct dp_section *section, const void *object, struct dp_buf *out)
{
    if (section->name[0] != '\0') {
        dp_buf_printf(out, "\n[%s]\n", section->name);
    }
    for (size_t i = 0; i < section->keys_count; i++) {
        const struct dp_key *key = &section->keys[i];
        bool zero_is_legal = (is_integer(key->type) || key->type == DP_KEY_DOUBLE) && key->min <= 0;
        if (key->type == DP_KEY_SPECIAL || (!zero_is_legal && is_absent(key, object))) {
            continue;
        }
        dp_buf_printf(out, "%s = ", key->name);
        write_value(key, (const char *)object + key->offset, out);
        dp_buf_puts(out, "\n");
    }
}
