// What differs between two clusters, from their written forms: whatever is written is compared.

#include <stdio.h>
#include <string.h>

#include "dp/cleanup.h"
#include "dp/cluster.h"

enum { LINES_MAX = 64 + DP_CLUSTER_LEVELS_MAX * 16, SHOWN_MAX = 60 };

// "key = value", in the top level (-1) or in a level.
struct line {
    const char *key, *value;
    int32_t level;
};

struct lines {
    struct dp_buf text;
    struct line items[LINES_MAX];
    size_t count;
};

static void lines_deinit(struct lines *lines)
{
    dp_buf_deinit(&lines->text);
}

static void split(const struct dp_cluster_spec *spec, struct lines *lines)
{
    dp_cluster_spec_write(spec, &lines->text);
    int32_t level = -1;
    for (char *rest = lines->text.bytes, *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *equals = strstr(line, " = ");
        level += strcmp(line, "[[level]]") == 0;
        if (equals != NULL && lines->count < LINES_MAX) {
            *equals = '\0';
            lines->items[lines->count++] = (struct line){line, equals + 3, level};
        }
    }
}

static const char *find(const struct lines *lines, const struct line *wanted)
{
    for (size_t i = 0; i < lines->count; i++) {
        if (lines->items[i].level == wanted->level &&
            strcmp(lines->items[i].key, wanted->key) == 0) {
            return lines->items[i].value;
        }
    }
    return NULL;
}

static void put_value(const char *value, struct dp_buf *out)
{
    size_t length = value == NULL ? 0 : strlen(value);
    if (value == NULL) {
        dp_buf_puts(out, "(none)");
    } else if (length > SHOWN_MAX) {
        dp_buf_printf(out, "%.*s... (%zu bytes)", SHOWN_MAX, value, length);
    } else {
        dp_buf_puts(out, value);
    }
}

static void put_change(const struct line *line, const char *before, const char *after,
                       struct dp_buf *out)
{
    if (line->level >= 0) {
        dp_buf_printf(out, "level[%d].", line->level);
    }
    dp_buf_printf(out, "%s: ", line->key);
    put_value(before, out);
    dp_buf_puts(out, " -> ");
    put_value(after, out);
    dp_buf_puts(out, "\n");
}

void dp_cluster_spec_changes(const struct dp_cluster_spec *before,
                             const struct dp_cluster_spec *after, struct dp_buf *out)
{
    DP_CLEANUP(lines_deinit) struct lines old = {.count = 0}, new = {.count = 0};
    split(before, &old);
    split(after, &new);
    for (size_t i = 0; i < new.count; i++) {
        const char *value = find(&old, &new.items[i]);
        if (value == NULL || strcmp(value, new.items[i].value) != 0) {
            put_change(&new.items[i], value, new.items[i].value, out);
        }
    }
    for (size_t i = 0; i < old.count; i++) {
        if (find(&new, &old.items[i]) == NULL) {
            put_change(&old.items[i], old.items[i].value, NULL, out);
        }
    }
}
