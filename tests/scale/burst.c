#include "burst.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/method.h"
#include "dp/v1/history.pb-c.h"

static grpc_channel *open_channel(const char *address, int number)
{
    grpc_arg args[] = {
        {.type = GRPC_ARG_INTEGER, .key = (char *)"dp.connection", .value.integer = number},
        {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_HTTP_PROXY},
        {.type = GRPC_ARG_INTEGER,
         .key = (char *)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
         .value.integer = 1},
    };
    grpc_channel_args all = {sizeof(args) / sizeof(args[0]), args};
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(address, credentials, &all);
    grpc_channel_credentials_release(credentials);
    return channel;
}

static grpc_byte_buffer *pack(const ProtobufCMessage *message)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static void close_queue(grpc_completion_queue *queue)
{
    grpc_completion_queue_shutdown(queue);
    while (grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
           GRPC_QUEUE_SHUTDOWN) {
    }
    grpc_completion_queue_destroy(queue);
}

// A call with one message each way.
struct unary {
    grpc_call *call;
    grpc_byte_buffer *request, *answer;
    grpc_metadata_array headers, trailers;
    grpc_status_code code;
    grpc_slice details;
};

static void unary_start(struct unary *unary, grpc_channel *channel, grpc_completion_queue *queue,
                        dp_method_id method, const ProtobufCMessage *request)
{
    *unary = (struct unary){.request = pack(request)};
    unary->call = grpc_channel_create_call(
        channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue,
        grpc_slice_from_static_string(dp_methods[method].name), NULL,
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(60, GPR_TIMESPAN)), NULL);
    grpc_op ops[6] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA, .flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY},
        {.op = GRPC_OP_SEND_MESSAGE},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA},
        {.op = GRPC_OP_RECV_MESSAGE},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT},
    };
    ops[1].data.send_message.send_message = unary->request;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &unary->headers;
    ops[4].data.recv_message.recv_message = &unary->answer;
    ops[5].data.recv_status_on_client.trailing_metadata = &unary->trailers;
    ops[5].data.recv_status_on_client.status = &unary->code;
    ops[5].data.recv_status_on_client.status_details = &unary->details;
    DP_CHECK(grpc_call_start_batch(unary->call, ops, 6, unary, NULL) == GRPC_CALL_OK);
}

static dp_status unary_finish(struct unary *unary, struct dp_error *err)
{
    dp_status status = DP_OK;
    if (unary->code != GRPC_STATUS_OK) {
        status = dp_fail(err, DP_UNAVAILABLE, "a call ended with %d: %.*s", (int)unary->code,
                         (int)GRPC_SLICE_LENGTH(unary->details),
                         (const char *)GRPC_SLICE_START_PTR(unary->details));
    }
    grpc_byte_buffer_destroy(unary->request);
    grpc_byte_buffer_destroy(unary->answer);
    grpc_metadata_array_destroy(&unary->headers);
    grpc_metadata_array_destroy(&unary->trailers);
    grpc_slice_unref(unary->details);
    grpc_call_unref(unary->call);
    return status;
}

struct submits {
    const char *prefix, *toml;
    uint32_t sent, count;
};

static void submit_next(struct submits *submits, struct unary *unary, grpc_channel *channel,
                        grpc_completion_queue *queue)
{
    char id[64];
    snprintf(id, sizeof(id), "%s-%u", submits->prefix, submits->sent++);
    Dp__V1__SubmitJobRequest request = DP__V1__SUBMIT_JOB_REQUEST__INIT;
    request.request_id = id;
    request.file = (char *)"job.toml";
    request.user = (char *)"scale";
    request.job_toml.data = (uint8_t *)submits->toml;
    request.job_toml.len = strlen(submits->toml);
    unary_start(unary, channel, queue, DP_METHOD_SUBMIT_JOB, &request.base);
}

dp_status burst_submit(const char *address, const char *prefix, const char *toml, uint32_t count,
                       uint32_t at_once, uint32_t connections, double *ret_seconds,
                       struct dp_error *err)
{
    grpc_init();
    grpc_completion_queue *queue = grpc_completion_queue_create_for_next(NULL);
    grpc_channel **channels = dp_new_array(grpc_channel *, connections);
    for (uint32_t i = 0; i < connections; i++) {
        channels[i] = open_channel(address, (int)i);
    }
    struct unary *slots = dp_new_array(struct unary, at_once);
    struct submits submits = {.prefix = prefix, .toml = toml, .count = count};
    uint32_t open = 0;
    dp_status status = DP_OK;
    int64_t begin_ns = dp_clock_monotonic_ns();
    for (uint32_t i = 0; i < at_once && submits.sent < count; i++, open++) {
        submit_next(&submits, &slots[i], channels[i % connections], queue);
    }
    while (open > 0) {
        grpc_event event =
            grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        struct unary *unary = event.tag;
        dp_status one = unary_finish(unary, status == DP_OK ? err : NULL);
        status = status == DP_OK ? one : status;
        open--;
        if (status == DP_OK && submits.sent < count) {
            submit_next(&submits, unary, channels[(unary - slots) % connections], queue);
            open++;
        }
    }
    *ret_seconds = (double)(dp_clock_monotonic_ns() - begin_ns) / 1e9;
    for (uint32_t i = 0; i < connections; i++) {
        grpc_channel_destroy(channels[i]);
    }
    close_queue(queue);
    grpc_shutdown();
    free(channels);
    free(slots);
    return status;
}

typedef enum watch_tag { WATCH_STARTED, WATCH_RECEIVED, WATCH_STATUS, WATCH_TAGS } watch_tag;

struct watcher;
struct watcher_tag {
    struct watcher *watcher;
    watch_tag kind;
};

struct watcher {
    struct watchers *all;
    grpc_call *call;
    struct watcher_tag tags[WATCH_TAGS];
    grpc_byte_buffer *request, *received;
    grpc_metadata_array headers, trailers;
    grpc_status_code code;
    grpc_slice details;
    bool reads, receiving, over;
    unsigned outstanding;
    uint64_t index;
};

struct watchers {
    grpc_completion_queue *queue;
    grpc_channel *channels[4];
    struct watcher *items;
    uint32_t count;
    struct watchers_figures figures;
};

static void watcher_receive(struct watcher *watcher)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &watcher->received;
    DP_CHECK(grpc_call_start_batch(watcher->call, &op, 1, &watcher->tags[WATCH_RECEIVED], NULL) ==
             GRPC_CALL_OK);
    watcher->outstanding++;
    watcher->receiving = true;
}

static void watcher_open(struct watchers *all, struct watcher *watcher, grpc_channel *channel,
                         uint64_t after)
{
    watcher->all = all;
    for (int kind = 0; kind < WATCH_TAGS; kind++) {
        watcher->tags[kind] = (struct watcher_tag){watcher, (watch_tag)kind};
    }
    Dp__V1__WatchEventsRequest request = DP__V1__WATCH_EVENTS_REQUEST__INIT;
    request.after = after;
    watcher->request = pack(&request.base);
    watcher->index = after;
    watcher->call = grpc_channel_create_call(
        channel, NULL, GRPC_PROPAGATE_DEFAULTS, all->queue,
        grpc_slice_from_static_string(dp_methods[DP_METHOD_WATCH_EVENTS].name), NULL,
        gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_op status = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    status.data.recv_status_on_client.trailing_metadata = &watcher->trailers;
    status.data.recv_status_on_client.status = &watcher->code;
    status.data.recv_status_on_client.status_details = &watcher->details;
    grpc_op ops[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA, .flags = GRPC_INITIAL_METADATA_WAIT_FOR_READY},
        {.op = GRPC_OP_SEND_MESSAGE},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA}};
    ops[1].data.send_message.send_message = watcher->request;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &watcher->headers;
    DP_CHECK(grpc_call_start_batch(watcher->call, &status, 1, &watcher->tags[WATCH_STATUS], NULL) ==
             GRPC_CALL_OK);
    DP_CHECK(grpc_call_start_batch(watcher->call, ops, 4, &watcher->tags[WATCH_STARTED], NULL) ==
             GRPC_CALL_OK);
    watcher->outstanding += 2;
    if (watcher->reads) {
        watcher_receive(watcher);
    }
}

dp_status watchers_open(const char *address, uint32_t count, uint32_t reading, uint64_t after,
                        struct watchers **ret_watchers, struct dp_error *err)
{
    if (reading > count) {
        return dp_fail(err, DP_INVALID, "%u of %u watchers read", reading, count);
    }
    grpc_init();
    struct watchers *all = dp_new(struct watchers);
    all->queue = grpc_completion_queue_create_for_next(NULL);
    all->items = dp_new_array(struct watcher, count);
    all->count = count;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(all->channels); i++) {
        all->channels[i] = open_channel(address, (int)(1000 + i));
    }
    for (uint32_t i = 0; i < count; i++) {
        all->items[i].reads = i < reading;
        watcher_open(all, &all->items[i], all->channels[i % DP_ARRAY_LENGTH(all->channels)], after);
    }
    *ret_watchers = all;
    return DP_OK;
}

static void take_batch(struct watcher *watcher)
{
    watcher->receiving = false;
    if (watcher->received == NULL) {
        return;
    }
    grpc_byte_buffer_reader reader;
    DP_CHECK(grpc_byte_buffer_reader_init(&reader, watcher->received));
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    Dp__V1__EventBatch *batch =
        dp__v1__event_batch__unpack(NULL, GRPC_SLICE_LENGTH(slice), GRPC_SLICE_START_PTR(slice));
    DP_CHECK(batch != NULL && batch->index >= watcher->index);
    watcher->index = batch->index;
    watcher->all->figures.batches++;
    dp__v1__event_batch__free_unpacked(batch, NULL);
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(watcher->received);
    watcher->received = NULL;
    watcher_receive(watcher);
}

static void take_status(struct watcher *watcher)
{
    static const char words[] = "lagged: resume from index ";
    struct watchers_figures *figures = &watcher->all->figures;
    char text[160];
    snprintf(text, sizeof(text), "%.*s", (int)GRPC_SLICE_LENGTH(watcher->details),
             (const char *)GRPC_SLICE_START_PTR(watcher->details));
    watcher->over = true;
    if (strncmp(text, words, strlen(words)) != 0) {
        figures->failed++;
        return;
    }
    figures->dropped++;
    figures->gaps += strtoull(text + strlen(words), NULL, 10) > watcher->index;
}

void watchers_run(struct watchers *watchers, int64_t ms)
{
    int64_t end_ns = dp_clock_monotonic_ns() + ms * DP_NS_PER_MS;
    gpr_timespec until =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
    while (dp_clock_monotonic_ns() < end_ns) {
        grpc_event event = grpc_completion_queue_next(watchers->queue, until, NULL);
        if (event.type != GRPC_OP_COMPLETE) {
            continue;
        }
        struct watcher_tag *tag = event.tag;
        tag->watcher->outstanding--;
        if (tag->kind == WATCH_RECEIVED) {
            take_batch(tag->watcher);
        } else if (tag->kind == WATCH_STATUS) {
            take_status(tag->watcher);
        }
    }
}

void watchers_wake(struct watchers *watchers)
{
    for (uint32_t i = 0; i < watchers->count; i++) {
        struct watcher *watcher = &watchers->items[i];
        if (!watcher->reads) {
            watcher->reads = true;
            watcher_receive(watcher);
        }
    }
}

struct watchers_figures watchers_figures(const struct watchers *watchers)
{
    struct watchers_figures figures = watchers->figures;
    figures.index = UINT64_MAX;
    for (uint32_t i = 0; i < watchers->count; i++) {
        const struct watcher *watcher = &watchers->items[i];
        if (watcher->reads && watcher->index < figures.index) {
            figures.index = watcher->index;
        }
    }
    return figures;
}

void watchers_close(struct watchers *watchers)
{
    if (watchers == NULL) {
        return;
    }
    unsigned outstanding = 0;
    for (uint32_t i = 0; i < watchers->count; i++) {
        grpc_call_cancel(watchers->items[i].call, NULL);
        outstanding += watchers->items[i].outstanding;
    }
    for (; outstanding > 0; outstanding--) {
        grpc_completion_queue_next(watchers->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    }
    for (uint32_t i = 0; i < watchers->count; i++) {
        struct watcher *watcher = &watchers->items[i];
        grpc_byte_buffer_destroy(watcher->request);
        grpc_byte_buffer_destroy(watcher->received);
        grpc_metadata_array_destroy(&watcher->headers);
        grpc_metadata_array_destroy(&watcher->trailers);
        grpc_slice_unref(watcher->details);
        grpc_call_unref(watcher->call);
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(watchers->channels); i++) {
        grpc_channel_destroy(watchers->channels[i]);
    }
    close_queue(watchers->queue);
    grpc_shutdown();
    free(watchers->items);
    free(watchers);
}
