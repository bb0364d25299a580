// Host lists: "node[001-016,020]" and back.

#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/topology.h"

enum { RANGES_MAX = 4096, DIGITS_MAX = 15 };

// Numbers `low` to `high`, with at least `width` digits.
struct range {
    int64_t low, high;
    int width;
};

// One name with brackets: texts[0] ranges[0] texts[1] ranges[1] ... texts[brackets].
struct pattern {
    struct {
        const char *at;
        size_t length;
    } texts[DP_HOST_LIST_BRACKETS_MAX + 1];
    struct {
        struct range *ranges; // owned
        size_t count;
        int64_t numbers; // that they mean together
    } brackets[DP_HOST_LIST_BRACKETS_MAX];
    size_t brackets_count;
};

static void pattern_deinit(struct pattern *pattern)
{
    for (size_t i = 0; i < pattern->brackets_count; i++) {
        free(pattern->brackets[i].ranges);
    }
}

void dp_hosts_deinit(struct dp_hosts *hosts)
{
    for (size_t i = 0; i < hosts->count; i++) {
        free(hosts->names[i]);
    }
    free(hosts->names);
    *hosts = (struct dp_hosts){0};
}

static dp_status read_number(const char **at, int64_t *ret_value, int *ret_digits,
                             struct dp_error *err)
{
    int64_t value = 0;
    int digits = 0;
    for (; isdigit((unsigned char)**at); (*at)++, digits++) {
        if (digits == DIGITS_MAX) {
            return dp_fail(err, DP_INVALID, "a number of more than %d digits", DIGITS_MAX);
        }
        value = value * 10 + (**at - '0');
    }
    if (digits == 0) {
        return dp_fail(err, DP_INVALID, "a number should stand here, inside the brackets");
    }
    *ret_value = value;
    *ret_digits = digits;
    return DP_OK;
}

static dp_status read_range(const char **at, struct range *ret_range, struct dp_error *err)
{
    struct range range;
    dp_status status = read_number(at, &range.low, &range.width, err);
    if (status != DP_OK) {
        return status;
    }
    range.high = range.low;
    if (**at == '-') {
        (*at)++;
        int digits = 0;
        status = read_number(at, &range.high, &digits, err);
        if (status == DP_OK && range.high < range.low) {
            status = dp_fail(err, DP_INVALID, "the range %" PRId64 "-%" PRId64 " runs backwards",
                             range.low, range.high);
        }
    }
    *ret_range = range;
    return status;
}

// Behind "[": ranges up to and with "]".
static dp_status read_bracket(const char **at, struct pattern *pattern, struct dp_error *err)
{
    size_t index = pattern->brackets_count++;
    struct range *ranges = dp_new_array(struct range, 1);
    size_t count = 0;
    dp_status status = DP_OK;
    int64_t numbers = 0;
    for (bool more = true; status == DP_OK && more;) {
        if (count == RANGES_MAX) {
            status = dp_fail(err, DP_TOO_LARGE, "more than %d ranges in brackets", RANGES_MAX);
            break;
        }
        ranges = dp_realloc(ranges, count + 1, sizeof(*ranges));
        ranges[count] = (struct range){0, -1, 0};
        status = read_range(at, &ranges[count], err);
        numbers += ranges[count].high - ranges[count].low + 1;
        count++;
        if (status == DP_OK && numbers > DP_NODES_MAX) {
            status = dp_fail(err, DP_TOO_LARGE, "a range of more than %d hosts", DP_NODES_MAX);
        }
        more = status == DP_OK && **at == ',';
        *at += more;
    }
    if (status == DP_OK && **at != ']') {
        status = dp_fail(err, DP_INVALID,
                         **at == '\0' ? "a bracket is not closed"
                                      : "only digits, \"-\" and \",\" may stand in brackets");
    }
    *at += status == DP_OK;
    pattern->brackets[index].ranges = ranges;
    pattern->brackets[index].count = count;
    pattern->brackets[index].numbers = numbers;
    return status;
}

// One name, up to the comma that ends it or the end.
static dp_status read_pattern(const char **at, struct pattern *pattern, int64_t *ret_names,
                              struct dp_error *err)
{
    int64_t names = 1;
    size_t length = 0;
    for (;;) {
        const char *text = *at;
        while (**at != '\0' && **at != ',' && **at != '[') {
            if (strchr("]\"\\#=", **at) != NULL || !isgraph((unsigned char)**at)) {
                return dp_fail(err, DP_INVALID, "\"%c\" cannot be part of a host's name",
                               isprint((unsigned char)**at) ? **at : '?');
            }
            (*at)++;
        }
        pattern->texts[pattern->brackets_count].at = text;
        pattern->texts[pattern->brackets_count].length = (size_t)(*at - text);
        length += (size_t)(*at - text);
        if (**at != '[') {
            break;
        }
        if (pattern->brackets_count == DP_HOST_LIST_BRACKETS_MAX) {
            return dp_fail(err, DP_TOO_LARGE, "more than %d brackets in one name",
                           DP_HOST_LIST_BRACKETS_MAX);
        }
        (*at)++;
        dp_status status = read_bracket(at, pattern, err);
        if (status != DP_OK) {
            return status;
        }
        names *= pattern->brackets[pattern->brackets_count - 1].numbers;
        if (names > DP_NODES_MAX) {
            return dp_fail(err, DP_TOO_LARGE, "a name that means more than %d hosts", DP_NODES_MAX);
        }
        length += DIGITS_MAX;
    }
    if (length == 0) {
        return dp_fail(err, DP_INVALID, "a host's name is missing");
    }
    if (length >= DP_NAME_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "a host's name of more than %d bytes", DP_NAME_MAX - 1);
    }
    *ret_names = names;
    return DP_OK;
}

// The `index`-th number of a bracket.
static void write_number(const struct pattern *pattern, size_t bracket, int64_t index,
                         struct dp_buf *out)
{
    const struct range *range = pattern->brackets[bracket].ranges;
    for (; index > range->high - range->low; range++) {
        index -= range->high - range->low + 1;
    }
    dp_buf_printf(out, "%0*" PRId64, range->width, range->low + index);
}

static void expand_pattern(const struct pattern *pattern, int64_t names, struct dp_hosts *hosts)
{
    hosts->names = dp_realloc(hosts->names, hosts->count + (size_t)names, sizeof(char *));
    for (int64_t i = 0; i < names; i++) {
        struct dp_buf name = {0};
        int64_t rest = i, below = names;
        for (size_t b = 0; b <= pattern->brackets_count; b++) {
            dp_buf_append(&name, pattern->texts[b].at, pattern->texts[b].length);
            if (b < pattern->brackets_count) {
                below /= pattern->brackets[b].numbers;
                write_number(pattern, b, rest / below, &name);
                rest %= below;
            }
        }
        hosts->names[hosts->count++] = dp_buf_take(&name);
    }
}

dp_status dp_hosts_expand(const char *text, struct dp_hosts *hosts, int *ret_column,
                          struct dp_error *err)
{
    const char *at = text;
    for (;;) {
        DP_CLEANUP(pattern_deinit) struct pattern pattern = {.brackets_count = 0};
        int64_t names = 0;
        dp_status status = read_pattern(&at, &pattern, &names, err);
        if (status == DP_OK && (int64_t)hosts->count + names > DP_NODES_MAX) {
            status = dp_fail(err, DP_TOO_LARGE, "more than %d hosts", DP_NODES_MAX);
        }
        if (status != DP_OK) {
            if (ret_column != NULL) {
                *ret_column = (int)(at - text) + 1;
            }
            return status;
        }
        expand_pattern(&pattern, names, hosts);
        if (*at == '\0') {
            return DP_OK;
        }
        at++; // the comma
    }
}

// A name in parts: before, in and behind its last run of digits.
struct parts {
    size_t prefix;
    int width;
    int64_t number;
    const char *suffix;
};

static bool split_name(const char *name, struct parts *ret_parts)
{
    size_t end = strlen(name);
    while (end > 0 && !isdigit((unsigned char)name[end - 1])) {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && isdigit((unsigned char)name[begin - 1])) {
        begin--;
    }
    if (begin == end || end - begin > DIGITS_MAX) {
        return false;
    }
    *ret_parts =
        (struct parts){begin, (int)(end - begin), strtoll(name + begin, NULL, 10), name + end};
    return true;
}

// Whether `name` is what a range with `width` digits says for `number` between the same texts.
static bool continues(const char *first, const struct parts *parts, int64_t number,
                      const char *name)
{
    char wanted[2 * DP_NAME_MAX];
    int length = snprintf(wanted, sizeof(wanted), "%.*s%0*" PRId64 "%s", (int)parts->prefix, first,
                          parts->width, number, parts->suffix);
    return length > 0 && (size_t)length < sizeof(wanted) && strcmp(wanted, name) == 0;
}

// Whether `name` has the same texts around its number as `first`.
static bool is_alike(const char *first, const struct parts *parts, const char *name,
                     struct parts *ret_parts)
{
    return split_name(name, ret_parts) && ret_parts->prefix == parts->prefix &&
           memcmp(name, first, parts->prefix) == 0 && strcmp(ret_parts->suffix, parts->suffix) == 0;
}

// Writes names from `i` on that differ in their number alone; returns how many they are.
static size_t write_alike(const struct dp_hosts *hosts, size_t i, struct dp_buf *out)
{
    const char *first = hosts->names[i];
    struct parts parts, next;
    bool numbered = split_name(first, &parts);
    if (!numbered || i + 1 == hosts->count ||
        !is_alike(first, &parts, hosts->names[i + 1], &next)) {
        dp_buf_puts(out, first);
        return 1;
    }
    dp_buf_printf(out, "%.*s[", (int)parts.prefix, first);
    size_t count = 0;
    next = parts;
    for (int ranges = 0; ranges < RANGES_MAX && i + count < hosts->count; ranges++) {
        const char *name = hosts->names[i + count];
        if (!is_alike(first, &parts, name, &next)) {
            break;
        }
        size_t run = 1;
        while (i + count + run < hosts->count &&
               continues(name, &next, next.number + (int64_t)run, hosts->names[i + count + run])) {
            run++;
        }
        dp_buf_printf(out, "%s%0*" PRId64, count == 0 ? "" : ",", next.width, next.number);
        if (run > 1) {
            dp_buf_printf(out, "-%0*" PRId64, next.width, next.number + (int64_t)run - 1);
        }
        count += run;
    }
    dp_buf_printf(out, "]%s", parts.suffix);
    return count;
}

void dp_hosts_write(const struct dp_hosts *hosts, struct dp_buf *out)
{
    for (size_t i = 0; i < hosts->count;) {
        dp_buf_puts(out, i == 0 ? "" : ",");
        i += write_alike(hosts, i, out);
    }
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

bool dp_hosts_find_twice(const struct dp_hosts *hosts, struct dp_buf *out)
{
    if (hosts->count == 0) {
        return false;
    }
    DP_AUTO_FREE char **sorted = dp_memdup(hosts->names, hosts->count * sizeof(*hosts->names));
    qsort(sorted, hosts->count, sizeof(*sorted), compare_names);
    for (size_t i = 1; i < hosts->count; i++) {
        if (strcmp(sorted[i], sorted[i - 1]) == 0) {
            dp_buf_printf(out, "host \"%s\" is named twice", sorted[i]);
            return true;
        }
    }
    return false;
}
