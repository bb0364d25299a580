// Streams of the cpu: scratch memory, failures, and the division of an operation's work.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "dp/alloc.h"
#include "memory.h"

void *dp_stream_scratch(struct dp_stream *stream, size_t bytes)
{
    if (bytes > stream->scratch_bytes) {
        free(stream->scratch);
        dp_account_remove(stream->device, DP_MEMORY_SCRATCH, stream->scratch_bytes);
        if (!dp_account_add(stream->device, DP_MEMORY_SCRATCH, bytes, true)) {
            struct dp_error err;
            dp_account_fail(stream->device, DP_MEMORY_SCRATCH, bytes, &err);
            dp_stream_fail(stream, err.status, "%s", err.message);
        }
        stream->scratch = dp_alloc_aligned(1, bytes);
        stream->scratch_bytes = bytes;
    }
    return stream->scratch;
}

void dp_stream_fail(struct dp_stream *stream, dp_status status, const char *format, ...)
{
    if (stream->err.status != DP_OK) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(stream->err.message, sizeof(stream->err.message), format, arguments);
    va_end(arguments);
    stream->err.status = status;
}

// The earlier failure of two streams stays with the first.
static void take_failure(struct dp_stream *stream, struct dp_stream *lane)
{
    if (lane->err.status != DP_OK) {
        dp_stream_fail(stream, lane->err.status, "%s", lane->err.message);
        lane->err.status = DP_OK;
    }
}

void dp_cpu_parallel(struct dp_stream *stream, int64_t count, int64_t grain, dp_cpu_range range,
                     void *context)
{
    (void)grain;
    if (count == 0) {
        return;
    }
    if (stream->lane == NULL) {
        stream->lane = dp_new(struct dp_stream);
        stream->lane->device = stream->device;
    }
    range(stream->lane, 0, count, context);
    take_failure(stream, stream->lane);
}

static void free_stream(struct dp_stream *stream)
{
    dp_account_remove(stream->device, DP_MEMORY_SCRATCH, stream->scratch_bytes);
    free(stream->scratch);
    free(stream);
}

static dp_status stream_open(struct dp_device *device, struct dp_stream **ret_stream,
                             struct dp_error *err)
{
    (void)err;
    struct dp_stream *stream = dp_new(struct dp_stream);
    stream->device = device;
    *ret_stream = stream;
    return DP_OK;
}

static void stream_close(struct dp_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    if (stream->lane != NULL) {
        free_stream(stream->lane);
    }
    free_stream(stream);
}

static dp_status stream_sync(struct dp_stream *stream, struct dp_error *err)
{
    if (stream->err.status == DP_OK) {
        return DP_OK;
    }
    dp_status status = dp_fail(err, stream->err.status, "%s", stream->err.message);
    stream->err.status = DP_OK;
    return status;
}

static dp_status event_record(struct dp_stream *stream, struct dp_event **ret_event,
                              struct dp_error *err)
{
    (void)stream;
    (void)err;
    *ret_event = NULL;
    return DP_OK;
}

static void event_wait(struct dp_stream *stream, struct dp_event *event)
{
    (void)stream;
    (void)event;
}

static bool event_done(struct dp_event *event)
{
    (void)event;
    return true;
}

static void event_close(struct dp_event *event)
{
    (void)event;
}

static void copy(struct dp_stream *stream, void *to, const void *from, size_t bytes)
{
    (void)stream;
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
}

static void fill(struct dp_stream *stream, void *to, int value, size_t bytes)
{
    (void)stream;
    if (bytes > 0) {
        memset(to, value, bytes);
    }
}

void dp_cpu_install_streams(struct dp_device_ops *ops)
{
    ops->copy = copy;
    ops->fill = fill;
    ops->stream_open = stream_open;
    ops->stream_close = stream_close;
    ops->stream_sync = stream_sync;
    ops->event_record = event_record;
    ops->event_wait = event_wait;
    ops->event_done = event_done;
    ops->event_close = event_close;
}
