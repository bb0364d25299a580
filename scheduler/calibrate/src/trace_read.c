// Members of events to fields, events to rows.
#include "dp/trace_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "trace.h"

// What is kept of an event. Both forms, and the tables of an nsys jsonlines file, share them.
typedef enum event_field {
    FIELD_PH,
    FIELD_CAT,
    FIELD_NAME, // or the text of an NVTX range
    FIELD_TABLE,
    FIELD_VALUE,
    FIELD_TEXTS, // the ones above are texts
    FIELD_TS_US = FIELD_TEXTS,
    FIELD_DURATION_US,
    FIELD_START_NS,
    FIELD_END_NS,
    FIELD_PROCESS,
    FIELD_THREAD,
    FIELD_STREAM,
    FIELD_DEVICE,
    FIELD_CORRELATION,
    FIELD_NAME_ID,
    FIELD_SHORT_NAME_ID,
    FIELD_TEXT_ID,
    FIELD_COPY_KIND,
    FIELD_TYPE,
    FIELD_ID,
    FIELD_BLOCKS, // a product
    FIELD_COUNT
} event_field;

// Objects and lists that hold fields; 0 is the document itself, or an event in a list.
enum {
    NODE_EVENTS = 1,
    NODE_ARGS,
    NODE_CUDA,
    NODE_KERNEL,
    NODE_MEMCPY,
    NODE_MEMSET,
    NODE_SYNC,
    NODE_API,
    NODE_NVTX,
    NODE_STRINGS,
    NODE_FIELDS = 32 // and from here a field's
};

static const struct {
    int32_t parent;
    const char *key;
    int32_t node;
} members[] = {
    {JSON_NODE_TOP, "traceEvents", NODE_EVENTS},
    {JSON_NODE_TOP, "args", NODE_ARGS},
    {JSON_NODE_TOP, "CudaEvent", NODE_CUDA},
    {JSON_NODE_TOP, "TraceProcessEvent", NODE_API},
    {JSON_NODE_TOP, "NvtxEvent", NODE_NVTX},
    {JSON_NODE_TOP, "data", NODE_STRINGS},
    {NODE_CUDA, "kernel", NODE_KERNEL},
    {NODE_CUDA, "memcpy", NODE_MEMCPY},
    {NODE_CUDA, "memset", NODE_MEMSET},
    {NODE_CUDA, "sync", NODE_SYNC},
#define F(parent, key, field)                                                                      \
    {                                                                                              \
        parent, key, NODE_FIELDS + FIELD_##field                                                   \
    }
    F(JSON_NODE_TOP, "ph", PH),
    F(JSON_NODE_TOP, "cat", CAT),
    F(JSON_NODE_TOP, "name", NAME),
    F(JSON_NODE_TOP, "ts", TS_US),
    F(JSON_NODE_TOP, "dur", DURATION_US),
    F(JSON_NODE_TOP, "pid", PROCESS),
    F(JSON_NODE_TOP, "tid", THREAD),
    F(NODE_ARGS, "stream", STREAM),
    F(NODE_ARGS, "device", DEVICE),
    F(NODE_ARGS, "correlation", CORRELATION),
    F(NODE_ARGS, "grid", BLOCKS),
    F(JSON_NODE_TOP, "Type", TYPE),
    F(NODE_CUDA, "startNs", START_NS),
    F(NODE_CUDA, "endNs", END_NS),
    F(NODE_CUDA, "correlationId", CORRELATION),
    F(NODE_CUDA, "streamId", STREAM),
    F(NODE_CUDA, "deviceId", DEVICE),
    F(NODE_KERNEL, "demangledName", NAME_ID),
    F(NODE_KERNEL, "shortName", SHORT_NAME_ID),
    F(NODE_KERNEL, "gridX", BLOCKS),
    F(NODE_KERNEL, "gridY", BLOCKS),
    F(NODE_KERNEL, "gridZ", BLOCKS),
    F(NODE_MEMCPY, "copyKind", COPY_KIND),
    F(NODE_API, "startNs", START_NS),
    F(NODE_API, "endNs", END_NS),
    F(NODE_API, "correlationId", CORRELATION),
    F(NODE_API, "globalTid", THREAD),
    F(NODE_NVTX, "Timestamp", START_NS),
    F(NODE_NVTX, "EndTimestamp", END_NS),
    F(NODE_NVTX, "GlobalTid", THREAD),
    F(NODE_NVTX, "TextId", TEXT_ID),
    F(NODE_NVTX, "Text", NAME),
    F(JSON_NODE_TOP, "table", TABLE),
    F(JSON_NODE_TOP, "id", ID),
    F(JSON_NODE_TOP, "value", VALUE),
    F(JSON_NODE_TOP, "start", START_NS),
    F(JSON_NODE_TOP, "end", END_NS),
    F(JSON_NODE_TOP, "streamId", STREAM),
    F(JSON_NODE_TOP, "deviceId", DEVICE),
    F(JSON_NODE_TOP, "correlationId", CORRELATION),
    F(JSON_NODE_TOP, "globalTid", THREAD),
    F(JSON_NODE_TOP, "demangledName", NAME_ID),
    F(JSON_NODE_TOP, "shortName", SHORT_NAME_ID),
    F(JSON_NODE_TOP, "gridX", BLOCKS),
    F(JSON_NODE_TOP, "gridY", BLOCKS),
    F(JSON_NODE_TOP, "gridZ", BLOCKS),
    F(JSON_NODE_TOP, "copyKind", COPY_KIND),
    F(JSON_NODE_TOP, "text", NAME),
    F(JSON_NODE_TOP, "textId", TEXT_ID),
#undef F
};

struct event {
    uint32_t known; // bit by field
    uint32_t wrong; // known, but of another type
    uint32_t nodes; // bit by node
    int64_t offset; // of its first byte
    int64_t integers[FIELD_COUNT];
    char texts[FIELD_TEXTS][DP_TRACE_TEXT_MAX + 8];
    size_t lengths[FIELD_TEXTS];
};

struct dp_trace_reader {
    char *file;
    struct json_stream stream;
    struct trace_rows rows;
    struct event event;
    bool is_chrome; // a list of events was seen
};

// Whole numbers exactly, and decimals scaled by 10^digits; false when it does not fit.
static bool decimal(const char *text, int digits, int64_t *ret_value)
{
    static const int64_t most = INT64_C(4000000000000000000);
    bool negative = *text == '-';
    int64_t value = 0;
    int left = digits;
    text += negative;
    if (text[strcspn(text, "eE")] != '\0') {
        double scale = 1;
        for (; left > 0; left--) {
            scale *= 10;
        }
        char *end;
        double real = strtod(text, &end) * scale;
        if (*end != '\0' || end == text || !(real >= 0 && real < (double)most)) {
            return false;
        }
        *ret_value = negative ? -(int64_t)real : (int64_t)real;
        return true;
    }
    bool behind = false;
    for (; *text != '\0' && !(behind && left == 0); text++) {
        if (*text == '.') {
            behind = true;
            continue;
        }
        if (*text < '0' || *text > '9' || value > most / 10) {
            return false;
        }
        value = 10 * value + (*text - '0');
        left -= behind;
    }
    for (; left > 0; left--) {
        if (value > most / 10) {
            return false;
        }
        value *= 10;
    }
    *ret_value = negative ? -value : value;
    return true;
}

// Threads and processes may have names.
static int64_t key_of(const char *text, size_t length)
{
    int64_t key;
    if (length > 0 && decimal(text, 0, &key)) {
        return key;
    }
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(1099511628211);
    }
    return (int64_t)(hash >> 2);
}

static void take_integer(struct event *event, event_field field, const struct json_value *value)
{
    int64_t integer = 0;
    uint32_t bit = 1u << field;
    bool is_key = field == FIELD_THREAD || field == FIELD_PROCESS || field == FIELD_STREAM;
    bool is_us = field == FIELD_TS_US || field == FIELD_DURATION_US;
    if (is_key && (value->kind == VALUE_TEXT || value->kind == VALUE_NUMBER)) {
        integer = key_of(value->text, value->length);
    } else if ((value->kind != VALUE_NUMBER && value->kind != VALUE_TEXT) || value->length == 0 ||
               !decimal(value->text, is_us ? 3 : 0, &integer)) {
        event->wrong |= bit;
    }
    if (field == FIELD_BLOCKS) {
        int64_t before = (event->known & bit) != 0 ? event->integers[field] : 1;
        integer = integer > 0 && integer < INT32_MAX && before < INT32_MAX ? before * integer : 0;
    }
    event->known |= bit;
    event->integers[field] = integer;
}

static void take_text(struct event *event, event_field field, const struct json_value *value)
{
    event->known |= 1u << field;
    if (value->kind != VALUE_TEXT) {
        event->wrong |= 1u << field;
    }
    memcpy(event->texts[field], value->text, value->length + 1);
    event->lengths[field] = value->length;
}

static int32_t on_member(void *context, int32_t parent, const char *key, size_t length)
{
    (void)context;
    int32_t from = parent == NODE_EVENTS ? JSON_NODE_TOP : parent;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(members); i++) {
        if (members[i].parent == from && members[i].key[0] == key[0] &&
            strcmp(members[i].key, key) == 0) {
            return members[i].node;
        }
    }
    (void)length;
    return JSON_NODE_NONE;
}

static void clear_event(struct dp_trace_reader *reader, int64_t offset)
{
    reader->event.known = reader->event.wrong = reader->event.nodes = 0;
    reader->event.offset = offset;
}

// The document, an event of its list, or a document that is a list.
static bool is_record(int32_t node, bool is_array, int32_t depth)
{
    return !is_array &&
           ((node == JSON_NODE_TOP && depth <= 1) || (node == NODE_EVENTS && depth == 2));
}

static dp_status on_begin(void *context, int32_t node, bool is_array, int32_t depth,
                          struct dp_error *err)
{
    (void)err;
    struct dp_trace_reader *reader = context;
    if (is_record(node, is_array, depth)) {
        clear_event(reader, reader->stream.offset);
    } else if (node < NODE_FIELDS) {
        reader->event.nodes |= 1u << node;
    }
    if (is_array && (node == NODE_EVENTS || (node == JSON_NODE_TOP && depth == 0))) {
        reader->is_chrome = true;
    }
    return DP_OK;
}

static dp_status on_value(void *context, const struct json_value *value, struct dp_error *err)
{
    struct dp_trace_reader *reader = context;
    if (value->node == NODE_STRINGS && value->index >= 0 && value->depth == 2 &&
        value->kind == VALUE_TEXT) {
        reader->rows.is_nsight = true;
        return dp_rows_add_string(&reader->rows, value->index, value->text, value->length, err);
    }
    if (value->node < NODE_FIELDS) {
        return DP_OK;
    }
    event_field field = (event_field)(value->node - NODE_FIELDS);
    if (field < FIELD_TEXTS) {
        take_text(&reader->event, field, value);
    } else {
        take_integer(&reader->event, field, value);
    }
    return DP_OK;
}

static bool knows(const struct event *event, event_field field)
{
    return (event->known >> field & 1) != 0;
}

// What an event must have, as whole numbers.
static dp_status demand(const struct event *event, event_field field, const char *name,
                        struct dp_error *err)
{
    if (!knows(event, field) || (event->wrong >> field & 1) != 0) {
        return dp_fail(err, DP_INVALID, "byte %lld: the event's \"%s\" is %s",
                       (long long)event->offset, name,
                       knows(event, field) ? "no number within range" : "missing");
    }
    return DP_OK;
}

static dp_status times_of(const struct event *event, int64_t *ret_start_ns, int64_t *ret_end_ns,
                          struct dp_error *err)
{
    bool chrome = knows(event, FIELD_TS_US);
    dp_status status = chrome ? demand(event, FIELD_TS_US, "ts", err)
                              : demand(event, FIELD_START_NS, "startNs", err);
    if (status == DP_OK) {
        status = chrome ? demand(event, FIELD_DURATION_US, "dur", err)
                        : demand(event, FIELD_END_NS, "endNs", err);
    }
    if (status != DP_OK) {
        return status;
    }
    int64_t start_ns = event->integers[chrome ? FIELD_TS_US : FIELD_START_NS];
    int64_t end_ns =
        chrome ? start_ns + event->integers[FIELD_DURATION_US] : event->integers[FIELD_END_NS];
    if (end_ns < start_ns) {
        return dp_fail(err, DP_INVALID, "byte %lld: the event ends before it starts (by %lld ns)",
                       (long long)event->offset, (long long)(start_ns - end_ns));
    }
    *ret_start_ns = start_ns;
    *ret_end_ns = end_ns;
    return DP_OK;
}

static int64_t integer_or(const struct event *event, event_field field, int64_t otherwise)
{
    return knows(event, field) && (event->wrong >> field & 1) == 0 ? event->integers[field]
                                                                   : otherwise;
}

// Streams of several devices are different ones.
static int32_t stream_of(struct dp_trace_reader *reader)
{
    const struct event *event = &reader->event;
    int64_t device = integer_or(event, FIELD_DEVICE, integer_or(event, FIELD_PROCESS, 0));
    int64_t stream = integer_or(event, FIELD_STREAM, integer_or(event, FIELD_THREAD, 0));
    return dp_rows_stream(&reader->rows, (int64_t)((uint64_t)device * 0x9e3779b9u) ^ stream);
}

static int32_t name_of(struct dp_trace_reader *reader)
{
    const struct event *event = &reader->event;
    if (knows(event, FIELD_NAME)) {
        return dp_names_add(&reader->rows.names, event->texts[FIELD_NAME],
                            event->lengths[FIELD_NAME]);
    }
    int64_t id =
        integer_or(event, FIELD_NAME_ID,
                   integer_or(event, FIELD_SHORT_NAME_ID, integer_or(event, FIELD_TEXT_ID, -1)));
    return id < 0 || id >= DP_TRACE_NAMES_MAX ? -1 : (int32_t)(-2 - id);
}

static dp_status add_kernel(struct dp_trace_reader *reader, const char *name, struct dp_error *err)
{
    const struct event *event = &reader->event;
    struct raw_kernel raw = {.correlation = integer_or(event, FIELD_CORRELATION, 0)};
    raw.kernel.blocks =
        (int32_t)integer_or(event, FIELD_BLOCKS, 0) > 0 && event->integers[FIELD_BLOCKS] < INT32_MAX
            ? (int32_t)event->integers[FIELD_BLOCKS]
            : 0;
    raw.kernel.name =
        name == NULL ? name_of(reader) : dp_names_add(&reader->rows.names, name, strlen(name));
    dp_status status = times_of(event, &raw.kernel.start_ns, &raw.kernel.end_ns, err);
    if (status != DP_OK) {
        return status;
    }
    if (raw.kernel.name == -1) {
        return dp_fail(err, DP_INVALID, "byte %lld: a kernel without a name, or too many names",
                       (long long)event->offset);
    }
    raw.kernel.stream = stream_of(reader);
    return dp_rows_add_kernel(&reader->rows, &raw, err);
}

static int32_t thread_of(struct dp_trace_reader *reader)
{
    const struct event *event = &reader->event;
    int64_t process = integer_or(event, FIELD_PROCESS, 0);
    return dp_rows_thread(&reader->rows, (int64_t)((uint64_t)process * 0x9e3779b9u) ^
                                             integer_or(event, FIELD_THREAD, 0));
}

static dp_status add_host(struct dp_trace_reader *reader, bool is_launch, struct dp_error *err)
{
    const struct event *event = &reader->event;
    struct host_event host = {.correlation = integer_or(event, FIELD_CORRELATION, 0)};
    if (is_launch && host.correlation == 0) {
        return DP_OK;
    }
    dp_status status = times_of(event, &host.start_ns, &host.end_ns, err);
    if (status != DP_OK) {
        return status;
    }
    host.thread = thread_of(reader);
    if (is_launch) {
        return dp_rows_add_launch(&reader->rows, &host, err);
    }
    host.name = name_of(reader);
    return dp_rows_add_operator(&reader->rows, &host, err);
}

static dp_status add_range(struct dp_trace_reader *reader, bool on_device, struct dp_error *err)
{
    struct dp_trace_range range = {.name = name_of(reader)};
    if (range.name == -1) {
        reader->rows.dropped++; // without a text
        return DP_OK;
    }
    dp_status status = times_of(&reader->event, &range.start_ns, &range.end_ns, err);
    if (status != DP_OK) {
        return status;
    }
    range.thread = on_device ? stream_of(reader) : thread_of(reader);
    return dp_rows_add_range(&reader->rows, &range, on_device, err);
}

static bool is_text(const struct event *event, event_field field, const char *text)
{
    return knows(event, field) && strcasecmp(event->texts[field], text) == 0;
}

static bool begins(const struct event *event, event_field field, const char *text)
{
    return knows(event, field) && strncasecmp(event->texts[field], text, strlen(text)) == 0;
}

// Without Kineto, PyTorch gives no categories: operators have a namespace, ranges do not.
static dp_status take_plain(struct dp_trace_reader *reader, struct dp_error *err)
{
    static const char process[] = "CPU functions";
    const struct event *event = &reader->event;
    if (!knows(event, FIELD_NAME) ||
        integer_or(event, FIELD_PROCESS, 0) != key_of(process, sizeof process - 1)) {
        reader->rows.dropped++;
        return DP_OK;
    }
    return strstr(event->texts[FIELD_NAME], "::") != NULL ? add_host(reader, false, err)
                                                          : add_range(reader, false, err);
}

static dp_status take_chrome(struct dp_trace_reader *reader, struct dp_error *err)
{
    const struct event *event = &reader->event;
    if (!is_text(event, FIELD_PH, "X")) {
        reader->rows.dropped++;
        return DP_OK;
    }
    if (!knows(event, FIELD_CAT)) {
        return take_plain(reader, err);
    }
    if (is_text(event, FIELD_CAT, "kernel") || is_text(event, FIELD_CAT, "gpu_memcpy") ||
        is_text(event, FIELD_CAT, "gpu_memset")) {
        return add_kernel(reader, NULL, err);
    }
    if (begins(event, FIELD_CAT, "cuda_") || begins(event, FIELD_CAT, "hip_") ||
        begins(event, FIELD_CAT, "musa_") || is_text(event, FIELD_CAT, "runtime")) {
        return add_host(reader, true, err);
    }
    if (is_text(event, FIELD_CAT, "cpu_op") || is_text(event, FIELD_CAT, "operator")) {
        return add_host(reader, false, err);
    }
    if (is_text(event, FIELD_CAT, "user_annotation")) {
        return add_range(reader, false, err);
    }
    if (is_text(event, FIELD_CAT, "gpu_user_annotation")) {
        return add_range(reader, true, err);
    }
    reader->rows.dropped++;
    return DP_OK;
}

// The kinds of CUPTI_ACTIVITY_MEMCPY_KIND: 10 = between devices.
static const char *copy_name(const struct event *event)
{
    return integer_or(event, FIELD_COPY_KIND, 0) == 10 ? "Memcpy PtoP" : "Memcpy";
}

static dp_status take_table_row(struct dp_trace_reader *reader, struct dp_error *err)
{
    const struct event *event = &reader->event;
    if (is_text(event, FIELD_TABLE, "StringIds")) {
        reader->rows.is_nsight = true;
        dp_status status = demand(event, FIELD_ID, "id", err);
        return status != DP_OK || !knows(event, FIELD_VALUE)
                   ? status
                   : dp_rows_add_string(&reader->rows, event->integers[FIELD_ID],
                                        event->texts[FIELD_VALUE], event->lengths[FIELD_VALUE],
                                        err);
    }
    if (is_text(event, FIELD_TABLE, "CUPTI_ACTIVITY_KIND_KERNEL")) {
        return add_kernel(reader, NULL, err);
    }
    if (is_text(event, FIELD_TABLE, "CUPTI_ACTIVITY_KIND_MEMCPY")) {
        return add_kernel(reader, copy_name(event), err);
    }
    if (is_text(event, FIELD_TABLE, "CUPTI_ACTIVITY_KIND_RUNTIME")) {
        return add_host(reader, true, err);
    }
    if (is_text(event, FIELD_TABLE, "NVTX_EVENTS") && knows(event, FIELD_END_NS)) {
        return add_range(reader, false, err);
    }
    reader->rows.dropped++;
    return DP_OK;
}

static dp_status take_nsight(struct dp_trace_reader *reader, struct dp_error *err)
{
    const struct event *event = &reader->event;
    if (knows(event, FIELD_TABLE)) {
        return take_table_row(reader, err);
    }
    if ((event->nodes >> NODE_KERNEL & 1) != 0) {
        reader->rows.is_nsight = true;
        return add_kernel(reader, NULL, err);
    }
    if ((event->nodes >> NODE_MEMCPY & 1) != 0) {
        return add_kernel(reader, copy_name(event), err);
    }
    if ((event->nodes >> NODE_API & 1) != 0) {
        return add_host(reader, true, err);
    }
    // A range that never ended has no end.
    if ((event->nodes >> NODE_NVTX & 1) != 0 && knows(event, FIELD_END_NS)) {
        return add_range(reader, false, err);
    }
    reader->rows.dropped++;
    return DP_OK;
}

static dp_status on_end(void *context, int32_t node, bool is_array, int32_t depth,
                        struct dp_error *err)
{
    struct dp_trace_reader *reader = context;
    if (!is_record(node, is_array, depth)) {
        return DP_OK;
    }
    dp_status status = DP_OK;
    if (depth > 0) {
        status = take_chrome(reader, err);
    } else if (!reader->is_chrome) {
        status = take_nsight(reader, err);
    }
    clear_event(reader, 0);
    return status;
}

struct dp_trace_reader *dp_trace_reader_new(const char *file)
{
    struct dp_trace_reader *reader = dp_new(struct dp_trace_reader);
    reader->file = dp_strdup(file);
    struct json_handler handler = {.context = reader,
                                   .member = on_member,
                                   .begin = on_begin,
                                   .end = on_end,
                                   .value = on_value};
    dp_json_stream_init(&reader->stream, &handler);
    return reader;
}

void dp_trace_reader_free(struct dp_trace_reader *reader)
{
    if (reader != NULL) {
        dp_rows_deinit(&reader->rows);
        free(reader->file);
        free(reader);
    }
}

dp_status dp_trace_reader_feed(struct dp_trace_reader *reader, const void *bytes, size_t length,
                               struct dp_error *err)
{
    if ((uint64_t)reader->stream.offset + length > DP_TRACE_BYTES_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "%s: more than %llu bytes: trace fewer steps",
                       reader->file, (unsigned long long)DP_TRACE_BYTES_MAX);
    }
    const char *text = bytes;
    static const char mark[] = "\xef\xbb\xbf";
    bool has_mark = reader->stream.offset == 0 && length >= 3 && memcmp(text, mark, 3) == 0;
    if (has_mark) {
        text += 3;
        length -= 3;
        reader->stream.offset = 3;
    }
    dp_status status = dp_json_stream_feed(&reader->stream, text, length, err);
    return status == DP_OK ? DP_OK : dp_fail_in(err, "%s", reader->file);
}

dp_status dp_trace_reader_finish(struct dp_trace_reader *reader, struct dp_trace *ret_trace,
                                 struct dp_error *err)
{
    dp_status status = dp_json_stream_finish(&reader->stream, err);
    if (status == DP_OK) {
        status = dp_rows_join(&reader->rows, ret_trace, err);
    }
    return status == DP_OK ? DP_OK : dp_fail_in(err, "%s", reader->file);
}
