// The client's end of a bidirectional stream, pumped by an event loop.
#include <string.h>

#include "client.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "loop.h"

struct stream_tag {
    struct rpc_tag base;
    struct dp_rpc_stream *stream;
};

struct queued {
    struct queued *next;
    grpc_byte_buffer *bytes;
    size_t length;
};

struct dp_rpc_stream {
    struct rpc_loop loop;
    struct dp_rpc_client *client;
    grpc_call *call;
    struct dp_rpc_stream_events events;
    struct rpc_result result;
    struct stream_tag headers_tag, status_tag, receive_tag, send_tag;
    grpc_byte_buffer *received, *sending;
    struct queued *first, **last;
    size_t queued_count, queued_bytes;
    bool half_closing, half_closed;
    bool send_out; // a message or the half-close
    bool over;     // the status is here
    bool told;     // on_closed ran
    bool pumping;
    bool doomed; // freed while pumping
};

static struct dp_rpc_stream *stream_of(struct rpc_tag *tag)
{
    return ((struct stream_tag *)tag)->stream;
}

static void drop(grpc_byte_buffer **buffer)
{
    if (*buffer != NULL) {
        grpc_byte_buffer_destroy(*buffer);
        *buffer = NULL;
    }
}

static void drop_queue(struct dp_rpc_stream *stream)
{
    while (stream->first != NULL) {
        struct queued *queued = stream->first;
        stream->first = queued->next;
        grpc_byte_buffer_destroy(queued->bytes);
        free(queued);
    }
    stream->last = &stream->first;
    stream->queued_count = 0;
    stream->queued_bytes = 0;
}

static bool is_open(const struct dp_rpc_stream *stream)
{
    return !stream->over && !stream->doomed;
}

static bool start_batch(struct dp_rpc_stream *stream, struct stream_tag *tag, const grpc_op *ops,
                        size_t count)
{
    return dp_rpc_loop_start(&stream->loop, &tag->base, stream->call, ops, count);
}

static void write_next(struct dp_rpc_stream *stream)
{
    grpc_op op = {0};
    struct queued *queued = stream->first;
    if (stream->send_out || !is_open(stream) || stream->half_closed) {
        return;
    }
    if (queued != NULL) {
        stream->first = queued->next;
        stream->last = stream->first == NULL ? &stream->first : stream->last;
        stream->queued_count--;
        stream->queued_bytes -= queued->length;
        stream->sending = queued->bytes;
        free(queued);
        op.op = GRPC_OP_SEND_MESSAGE;
        op.data.send_message.send_message = stream->sending;
    } else if (stream->half_closing) {
        stream->half_closed = true;
        op.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    } else {
        return;
    }
    stream->send_out = start_batch(stream, &stream->send_tag, &op, 1);
}

static void receive_next(struct dp_rpc_stream *stream)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &stream->received;
    start_batch(stream, &stream->receive_tag, &op, 1);
}

static void on_headers(struct rpc_tag *tag, bool success)
{
    (void)tag;
    (void)success;
}

// Always "succeeds": the status says how the call ended.
static void on_status(struct rpc_tag *tag, bool success)
{
    (void)success;
    stream_of(tag)->over = true;
}

static void on_received(struct rpc_tag *tag, bool success)
{
    (void)success;
    struct dp_rpc_stream *stream = stream_of(tag);
    grpc_byte_buffer *buffer = stream->received;
    stream->received = NULL;
    // Without a message the server has sent its last one: the status follows.
    if (buffer == NULL) {
        return;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    bool readable = dp_rpc_bytes_read(buffer, &bytes);
    drop(&buffer);
    if (!readable) {
        grpc_call_cancel(stream->call, NULL);
        return;
    }
    if (!stream->doomed) {
        stream->events.on_message(stream->events.context, bytes.bytes == NULL ? "" : bytes.bytes,
                                  bytes.length);
    }
    if (!stream->doomed) {
        receive_next(stream);
    }
}

static void on_sent(struct rpc_tag *tag, bool success)
{
    struct dp_rpc_stream *stream = stream_of(tag);
    drop(&stream->sending);
    stream->send_out = false;
    if (success) {
        write_next(stream);
    } else {
        drop_queue(stream);
        stream->half_closed = true;
    }
}

static void start(struct dp_rpc_stream *stream)
{
    // Waiting for a connection keeps the channel polled, so a controller that comes back is found.
    grpc_op ops[2];
    dp_rpc_client_headers_op(true, &ops[0]);
    dp_rpc_result_headers_op(&stream->result, &ops[1]);
    start_batch(stream, &stream->headers_tag, ops, 2);
    grpc_op status;
    dp_rpc_result_status_op(&stream->result, &status);
    start_batch(stream, &stream->status_tag, &status, 1);
    receive_next(stream);
}

dp_status dp_rpc_stream_open(struct dp_rpc_client *client, dp_method_id method,
                             const struct dp_rpc_stream_events *events,
                             struct dp_rpc_stream **ret_stream, struct dp_error *err)
{
    if (!dp_methods[method].client_streaming || !dp_methods[method].server_streaming) {
        return dp_fail(err, DP_INTERNAL, "%s is not a bidirectional stream",
                       dp_methods[method].name);
    }
    struct dp_rpc_stream *stream = dp_new(struct dp_rpc_stream);
    dp_rpc_loop_init(&stream->loop, 1);
    stream->client = client;
    dp_rpc_client_enter(client);
    stream->events = *events;
    stream->last = &stream->first;
    stream->headers_tag = (struct stream_tag){.base.run = on_headers, .stream = stream};
    stream->status_tag = (struct stream_tag){.base.run = on_status, .stream = stream};
    stream->receive_tag = (struct stream_tag){.base.run = on_received, .stream = stream};
    stream->send_tag = (struct stream_tag){.base.run = on_sent, .stream = stream};
    dp_rpc_result_init(&stream->result);
    stream->call = dp_rpc_client_make_call(client, method, stream->loop.cq, 0);
    start(stream);
    *ret_stream = stream;
    return DP_OK;
}

int dp_rpc_stream_fd(const struct dp_rpc_stream *stream)
{
    return stream->loop.fd;
}

// The last that happens to a stream; the callback may free it.
static void tell_closed(struct dp_rpc_stream *stream)
{
    struct dp_error err = {0};
    err.status = dp_rpc_result_status(&stream->result, stream->client->address, &err);
    stream->told = true;
    drop_queue(stream);
    stream->events.on_closed(stream->events.context, &err);
}

void dp_rpc_stream_pump(struct dp_rpc_stream *stream)
{
    stream->pumping = true;
    dp_rpc_loop_pump(&stream->loop);
    stream->pumping = false;
    if (stream->doomed) {
        dp_rpc_stream_free(stream);
    } else if (stream->over && !stream->told) {
        tell_closed(stream);
    }
}

dp_status dp_rpc_stream_send(struct dp_rpc_stream *stream, const ProtobufCMessage *message,
                             struct dp_error *err)
{
    const char *address = stream->client->address;
    if (!is_open(stream) || stream->half_closing || stream->half_closed) {
        return dp_fail(err, DP_UNAVAILABLE, "the stream to %s is over", address);
    }
    size_t bytes_max = 2 * stream->client->message_bytes_max;
    if (stream->queued_count >= DP_STREAM_QUEUE_MAX || stream->queued_bytes >= bytes_max) {
        return dp_fail(err, DP_TOO_LARGE, "%zu messages of %zu bytes wait for %s",
                       stream->queued_count, stream->queued_bytes, address);
    }
    size_t length = 0;
    grpc_byte_buffer *bytes =
        dp_rpc_message_pack(message, stream->client->message_bytes_max, &length);
    if (bytes == NULL) {
        return dp_fail(err, DP_TOO_LARGE, "a message for %s has %zu bytes; the limit is %zu",
                       address, length, stream->client->message_bytes_max);
    }
    struct queued *queued = dp_new(struct queued);
    queued->bytes = bytes;
    queued->length = length;
    *stream->last = queued;
    stream->last = &queued->next;
    stream->queued_count++;
    stream->queued_bytes += length;
    write_next(stream);
    return DP_OK;
}

size_t dp_rpc_stream_queued(const struct dp_rpc_stream *stream)
{
    return stream->queued_count;
}

size_t dp_rpc_stream_queued_bytes(const struct dp_rpc_stream *stream)
{
    return stream->queued_bytes;
}

void dp_rpc_stream_half_close(struct dp_rpc_stream *stream)
{
    stream->half_closing = true;
    write_next(stream);
}

void dp_rpc_stream_free(struct dp_rpc_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    stream->doomed = true;
    if (stream->pumping) {
        return;
    }
    grpc_call_cancel(stream->call, NULL);
    dp_rpc_loop_deinit(&stream->loop);
    drop_queue(stream);
    drop(&stream->received);
    drop(&stream->sending);
    dp_rpc_result_deinit(&stream->result);
    grpc_call_unref(stream->call);
    dp_rpc_client_leave(stream->client);
    free(stream);
}
