// Reads the text of dp.schedule/1 so that everything that is wrong has its line and column. jansson
// keeps none, so the text is gone through again when there is something to be said.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/utf8.h"
#include "problems.h"
#include "schedule_json.h"

// A place in a text that jansson has taken for good JSON.
struct scan {
    const char *at, *end;
    struct dp_schedule_place place;
};

static void step(struct scan *scan)
{
    unsigned char c = (unsigned char)*scan->at++;
    if (c == '\n') {
        scan->place.line++;
        scan->place.column = 1;
    } else if ((c & 0xc0) != 0x80) {
        scan->place.column++;
    }
}

// The next character that is no blank; 0 at the end.
static char peek(struct scan *scan)
{
    while (scan->at < scan->end && strchr(" \t\r\n", *scan->at) != NULL) {
        step(scan);
    }
    return scan->at < scan->end ? *scan->at : '\0';
}

static bool take(struct scan *scan, char c)
{
    if (peek(scan) != c || c == '\0') {
        return false;
    }
    step(scan);
    return true;
}

static void skip_string(struct scan *scan)
{
    step(scan);
    while (scan->at < scan->end && *scan->at != '"') {
        if (*scan->at == '\\' && scan->at + 1 < scan->end) {
            step(scan);
        }
        step(scan);
    }
    take(scan, '"');
}

static void skip_value(struct scan *scan)
{
    int depth = 0;
    do {
        char c = peek(scan);
        if (c == '"') {
            skip_string(scan);
            continue;
        }
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (c != '\0') {
            step(scan);
        }
        // The rest of a number or a word.
        while (depth == 0 && scan->at < scan->end && strchr(",]} \t\r\n", *scan->at) == NULL &&
               c != '}' && c != ']') {
            step(scan);
        }
    } while (depth > 0 && scan->at < scan->end);
}

static struct scan scan_begin(const char *text, size_t length)
{
    struct scan scan = {text + dp_utf8_mark(text, length), text + length, {1, 1}};
    peek(&scan);
    return scan;
}

// Goes to the value of a key of the document; false when it is not there as it is written here.
static bool go_to_key(struct scan *scan, const char *key)
{
    size_t length = strlen(key);
    if (!take(scan, '{')) {
        return false;
    }
    while (peek(scan) == '"') {
        const char *name = scan->at + 1;
        skip_string(scan);
        bool found = (size_t)(scan->at - name) == length + 1 && memcmp(name, key, length) == 0;
        take(scan, ':');
        peek(scan);
        if (found) {
            return true;
        }
        skip_value(scan);
        take(scan, ',');
    }
    return false;
}

// Goes to an element of the list that begins here; false when there is none.
static bool go_to_entry(struct scan *scan, int32_t entry)
{
    if (!take(scan, '[')) {
        return false;
    }
    for (int32_t i = 0; i < entry; i++) {
        peek(scan);
        skip_value(scan);
        take(scan, ',');
    }
    return peek(scan) != ']';
}

static struct dp_schedule_place find(const char *text, size_t length, const char *key,
                                     int32_t entry)
{
    struct scan scan = scan_begin(text, length);
    struct scan value = scan;
    if (key == NULL || !go_to_key(&value, key)) {
        return scan.place;
    }
    struct scan element = value;
    return entry >= 0 && go_to_entry(&element, entry) ? element.place : value.place;
}

// The places of all elements of the lists under "ranks"; the caller frees them.
static struct dp_schedule_place *find_actions(const char *text, size_t length, size_t count)
{
    struct dp_schedule_place *places = dp_new_array(struct dp_schedule_place, count);
    struct scan scan = scan_begin(text, length);
    size_t at = 0;
    bool inside = go_to_key(&scan, "ranks") && take(&scan, '[');
    while (inside && take(&scan, '[')) {
        while (peek(&scan) != ']' && at < count) {
            places[at++] = scan.place;
            skip_value(&scan);
            take(&scan, ',');
        }
        inside = take(&scan, ']') && take(&scan, ',');
    }
    return places;
}

static size_t count_actions(const json_t *json)
{
    const json_t *lists = json_object_get(json, "ranks");
    size_t count = 0;
    for (size_t rank = 0; rank < json_array_size(lists); rank++) {
        count += json_array_size(json_array_get(lists, rank));
    }
    return count;
}

// Every action that is none; some is.
static void note_actions(const char *text, size_t length, const json_t *json,
                         struct dp_diags *diags)
{
    DP_AUTO_FREE struct dp_schedule_place *places = find_actions(text, length, count_actions(json));
    const json_t *lists = json_object_get(json, "ranks");
    size_t at = 0;
    for (size_t rank = 0; rank < json_array_size(lists); rank++) {
        const json_t *list = json_array_get(lists, rank);
        for (size_t i = 0; i < json_array_size(list); i++, at++) {
            struct dp_error err;
            struct dp_action action;
            if (dp_action_from_json(json_array_get(list, i), &action, &err) != DP_OK) {
                dp_diags_add(diags, places[at].line, places[at].column, NULL,
                             "rank %zu, position %zu: %s", rank, i, err.message);
            }
        }
    }
}

static void audit(const char *text, size_t length, const struct dp_schedule *schedule,
                  struct dp_diags *diags)
{
    DP_AUTO_FREE struct dp_schedule_place *places =
        find_actions(text, length, dp_schedule_action_count(schedule));
    const struct dp_schedule_source source = {.words.places = places,
                                              .sizes = find(text, length, NULL, -1),
                                              .placement = find(text, length, "placement", -1),
                                              .lists = find(text, length, "ranks", -1)};
    dp_schedule_audit_source(schedule, &source, diags);
}

dp_status dp_schedule_read_json(const char *text, size_t length, struct dp_schedule *ret_schedule,
                                struct dp_diags *diags, struct dp_error *err)
{
    if (length > DP_SCHEDULE_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "a schedule of %zu bytes; the limit is %u", length,
                       DP_SCHEDULE_BYTES_MAX);
    }
    json_error_t where;
    DP_AUTO_JSON json_t *json = dp_json_load(text, length, &where);
    if (json == NULL) {
        dp_diags_add(diags, where.line > 0 ? where.line : 1, where.column > 0 ? where.column : 1,
                     NULL, "%s", where.text);
        return dp_diags_status(diags, err);
    }
    struct dp_schedule schedule;
    struct dp_json_subject subject;
    struct dp_error why;
    dp_status status = dp_schedule_build_from_json(json, &schedule, &subject, &why);
    if (status != DP_OK && subject.actions) {
        note_actions(text, length, json, diags);
        return dp_diags_status(diags, err);
    }
    if (status != DP_OK) {
        struct dp_schedule_place place = find(text, length, subject.key, subject.entry);
        dp_diags_add(diags, place.line, place.column, NULL, "%s", why.message);
        return dp_diags_status(diags, err);
    }
    if (dp_schedule_validate(&schedule, NULL) == DP_OK) {
        *ret_schedule = schedule;
        return DP_OK;
    }
    audit(text, length, &schedule, diags);
    dp_schedule_deinit(&schedule);
    return dp_diags_status(diags, err);
}
