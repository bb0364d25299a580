#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/utf8.h"
#include "trace.h"

static uint32_t hash_of(const char *text, size_t length)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    }
    return hash;
}

static size_t slot_of(const struct name_table *table, const char *text, size_t length)
{
    size_t slot = hash_of(text, length) & (table->slots_count - 1);
    while (table->slots[slot] != 0) {
        const char *name = table->names[table->slots[slot] - 1];
        if (strncmp(name, text, length) == 0 && name[length] == '\0') {
            break;
        }
        slot = (slot + 1) & (table->slots_count - 1);
    }
    return slot;
}

static void grow_slots(struct name_table *table)
{
    free(table->slots);
    table->slots_count = table->slots_count == 0 ? 1024 : 2 * table->slots_count;
    table->slots = dp_new_array(uint32_t, table->slots_count);
    for (size_t i = 0; i < table->count; i++) {
        table->slots[slot_of(table, table->names[i], strlen(table->names[i]))] = (uint32_t)i + 1;
    }
}

int32_t dp_names_add(struct name_table *table, const char *text, size_t length)
{
    char clean[DP_TRACE_TEXT_MAX + 8];
    length = length < DP_TRACE_TEXT_MAX ? length : DP_TRACE_TEXT_MAX;
    memcpy(clean, text, length);
    clean[length] = '\0';
    dp_utf8_clean(clean, length, "");
    length = strlen(clean);
    if (2 * table->count >= table->slots_count) {
        grow_slots(table);
    }
    size_t slot = slot_of(table, clean, length);
    if (table->slots[slot] != 0) {
        return (int32_t)table->slots[slot] - 1;
    }
    if (table->count == DP_TRACE_NAMES_MAX) {
        return -1;
    }
    if (table->count == table->capacity) {
        table->capacity = table->capacity == 0 ? 256 : 2 * table->capacity;
        table->names = dp_realloc(table->names, table->capacity, sizeof(*table->names));
    }
    table->names[table->count++] = dp_strndup(clean, length);
    table->slots[slot] = (uint32_t)table->count;
    return (int32_t)table->count - 1;
}

static void names_deinit(struct name_table *table)
{
    for (size_t i = 0; i < table->count; i++) {
        free(table->names[i]);
    }
    free(table->names);
    free(table->slots);
    *table = (struct name_table){0};
}

void dp_rows_deinit(struct trace_rows *rows)
{
    free(rows->kernels);
    free(rows->launches);
    free(rows->operators);
    free(rows->ranges);
    free(rows->device_ranges);
    free(rows->strings);
    free(rows->streams);
    free(rows->threads);
    names_deinit(&rows->names);
    *rows = (struct trace_rows){0};
}

// Room for one more; NULL when there may be no more.
static void *room(void *memory, size_t size, size_t count, size_t *capacity)
{
    if (count == DP_TRACE_EVENTS_MAX) {
        return NULL;
    }
    if (count < *capacity) {
        return memory;
    }
    *capacity = *capacity == 0 ? 1024 : 2 * *capacity;
    return dp_realloc(memory, *capacity, size);
}

static dp_status too_many(const char *what, struct dp_error *err)
{
    return dp_fail(err, DP_TOO_LARGE,
                   "more than %u %s: trace fewer steps (a profiler's schedule with active=1)",
                   DP_TRACE_EVENTS_MAX, what);
}

#define ADD(rows, list, item, what, err)                                                           \
    void *grown =                                                                                  \
        room((rows)->list, sizeof(*(rows)->list), (rows)->list##_count, &(rows)->list##_capacity); \
    if (grown == NULL) {                                                                           \
        return too_many(what, err);                                                                \
    }                                                                                              \
    (rows)->list = grown;                                                                          \
    (rows)->list[(rows)->list##_count++] = *(item);                                                \
    return DP_OK

dp_status dp_rows_add_kernel(struct trace_rows *rows, const struct raw_kernel *kernel,
                             struct dp_error *err)
{
    ADD(rows, kernels, kernel, "kernels", err);
}

dp_status dp_rows_add_launch(struct trace_rows *rows, const struct host_event *event,
                             struct dp_error *err)
{
    ADD(rows, launches, event, "calls that start kernels", err);
}

dp_status dp_rows_add_operator(struct trace_rows *rows, const struct host_event *event,
                               struct dp_error *err)
{
    ADD(rows, operators, event, "operators", err);
}

dp_status dp_rows_add_range(struct trace_rows *rows, const struct dp_trace_range *range,
                            bool on_device, struct dp_error *err)
{
    if (on_device) {
        ADD(rows, device_ranges, range, "ranges", err);
    }
    ADD(rows, ranges, range, "ranges", err);
}

dp_status dp_rows_add_string(struct trace_rows *rows, int64_t id, const char *text, size_t length,
                             struct dp_error *err)
{
    if (id < 0 || id >= DP_TRACE_NAMES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "string %lld: ids go up to %u", (long long)id,
                       DP_TRACE_NAMES_MAX - 1);
    }
    size_t needed = (size_t)id + 1;
    if (needed > rows->strings_count) {
        size_t count = needed > 2 * rows->strings_count ? needed : 2 * rows->strings_count;
        rows->strings = dp_realloc(rows->strings, count, sizeof(*rows->strings));
        for (size_t i = rows->strings_count; i < count; i++) {
            rows->strings[i] = -1;
        }
        rows->strings_count = count;
    }
    rows->strings[id] = dp_names_add(&rows->names, text, length);
    return DP_OK;
}

// Few of them: a search from the newest finds most at once.
static int32_t number_of(int64_t **keys, size_t *count, size_t *capacity, int64_t key)
{
    for (size_t i = *count; i-- > 0;) {
        if ((*keys)[i] == key) {
            return (int32_t)i;
        }
    }
    // More than this many are no streams or threads: they share the last number.
    enum { KEYS_MAX = 512 };
    if (*count == KEYS_MAX) {
        return KEYS_MAX - 1;
    }
    if (*count == *capacity) {
        *capacity = *capacity == 0 ? 16 : 2 * *capacity;
        *keys = dp_realloc(*keys, *capacity, sizeof(**keys));
    }
    (*keys)[(*count)++] = key;
    return (int32_t)*count - 1;
}

int32_t dp_rows_stream(struct trace_rows *rows, int64_t key)
{
    return number_of(&rows->streams, &rows->streams_count, &rows->streams_capacity, key);
}

int32_t dp_rows_thread(struct trace_rows *rows, int64_t key)
{
    return number_of(&rows->threads, &rows->threads_count, &rows->threads_capacity, key);
}
