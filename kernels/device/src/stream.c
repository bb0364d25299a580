// Streams of the cpu: scratch memory, failures, events, and the division of an operation's work.
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "crew.h"
#include "dp/alloc.h"
#include "memory.h"
#include "queue.h"

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

struct parts {
    struct dp_stream *stream;
    int32_t count;
    int64_t items;
    dp_cpu_range range;
    void *context;
};

static void run_part(int32_t part, void *context)
{
    const struct parts *p = context;
    p->range(p->stream->lanes[part], p->items * part / p->count, p->items * (part + 1) / p->count,
             p->context);
}

static void open_lanes(struct dp_stream *stream, int32_t count)
{
    if (count <= stream->lane_count) {
        return;
    }
    stream->lanes = dp_realloc(stream->lanes, (size_t)count, sizeof(struct dp_stream *));
    for (; stream->lane_count < count; stream->lane_count++) {
        stream->lanes[stream->lane_count] = dp_stream_new(stream->device, stream->kernels);
    }
}

void dp_cpu_parallel(struct dp_stream *stream, int64_t count, int64_t grain, dp_cpu_range range,
                     void *context)
{
    if (count == 0) {
        return;
    }
    const int64_t threads = stream->crew == NULL ? 1 : dp_crew_threads(stream->crew);
    const int64_t most = count / (grain > 0 ? grain : 1);
    struct parts parts = {.stream = stream,
                          .count = (int32_t)(most < threads ? most : threads),
                          .items = count,
                          .range = range,
                          .context = context};
    parts.count = parts.count < 1 ? 1 : parts.count;
    open_lanes(stream, parts.count);
    if (parts.count == 1) {
        run_part(0, &parts);
    } else {
        dp_crew_run(stream->crew, parts.count, run_part, &parts);
    }
    for (int32_t i = 0; i < parts.count; i++) {
        take_failure(stream, stream->lanes[i]);
    }
}

struct dp_stream *dp_stream_new(struct dp_device *device, const struct dp_device_ops *kernels)
{
    struct dp_stream *stream = dp_new(struct dp_stream);
    stream->device = device;
    stream->kernels = kernels;
    return stream;
}

static dp_status stream_open(struct dp_device *device, struct dp_stream **ret_stream,
                             struct dp_error *err)
{
    struct dp_stream *stream = dp_stream_new(device, device->stream->kernels);
    dp_status status = dp_queue_open(stream, &stream->queue, err);
    if (status != DP_OK) {
        free(stream);
        return status;
    }
    *ret_stream = stream;
    return DP_OK;
}

static void stream_close(struct dp_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    if (stream->queue != NULL) {
        dp_queue_close(stream->queue);
    }
    for (int32_t i = 0; i < stream->lane_count; i++) {
        stream_close(stream->lanes[i]);
    }
    dp_account_remove(stream->device, DP_MEMORY_SCRATCH, stream->scratch_bytes);
    free(stream->lanes);
    free(stream->scratch);
    free(stream);
}

static dp_status stream_sync(struct dp_stream *stream, struct dp_error *err)
{
    if (stream->queue != NULL) {
        dp_queue_drain(stream->queue);
    }
    if (stream->err.status == DP_OK) {
        return DP_OK;
    }
    dp_status status = dp_fail(err, stream->err.status, "%s", stream->err.message);
    stream->err.status = DP_OK;
    return status;
}

// Held by its opener, by the record that is to come, and by those who wait.
struct dp_event {
    pthread_mutex_t lock;
    pthread_cond_t reached;
    bool done;
    int32_t holders;
};

static void event_hold(struct dp_event *event)
{
    pthread_mutex_lock(&event->lock);
    event->holders++;
    pthread_mutex_unlock(&event->lock);
}

static void event_close(struct dp_event *event)
{
    if (event == NULL) {
        return;
    }
    pthread_mutex_lock(&event->lock);
    bool last = --event->holders == 0;
    pthread_mutex_unlock(&event->lock);
    if (last) {
        pthread_cond_destroy(&event->reached);
        pthread_mutex_destroy(&event->lock);
        free(event);
    }
}

static void reach(struct dp_stream *stream, void *arguments)
{
    (void)stream;
    struct dp_event *event = *(struct dp_event **)arguments;
    pthread_mutex_lock(&event->lock);
    event->done = true;
    pthread_cond_broadcast(&event->reached);
    pthread_mutex_unlock(&event->lock);
    event_close(event);
}

static void await(struct dp_stream *stream, void *arguments)
{
    (void)stream;
    struct dp_event *event = *(struct dp_event **)arguments;
    pthread_mutex_lock(&event->lock);
    while (!event->done) {
        pthread_cond_wait(&event->reached, &event->lock);
    }
    pthread_mutex_unlock(&event->lock);
    event_close(event);
}

// Now, or when the stream's queue gets there; with the event held meanwhile.
static void put_event(struct dp_stream *stream, dp_task task, struct dp_event *event)
{
    event_hold(event);
    if (stream->queue == NULL) {
        task(stream, &event);
    } else {
        dp_queue_put(stream->queue, task, &event, sizeof(event));
    }
}

static dp_status event_record(struct dp_stream *stream, struct dp_event **ret_event,
                              struct dp_error *err)
{
    (void)err;
    struct dp_event *event = dp_new(struct dp_event);
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->reached, NULL);
    event->holders = 1;
    put_event(stream, reach, event);
    *ret_event = event;
    return DP_OK;
}

static void event_wait(struct dp_stream *stream, struct dp_event *event)
{
    put_event(stream, await, event);
}

static bool event_done(struct dp_event *event)
{
    pthread_mutex_lock(&event->lock);
    bool done = event->done;
    pthread_mutex_unlock(&event->lock);
    return done;
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
