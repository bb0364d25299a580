// One call on the server, from its arrival until its last tag is back.
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/log.h"
#include "server.h"

static void write_next(struct rpc_call *call);

static const struct dp_method *method_of(const struct rpc_call *call)
{
    return &dp_methods[call->handler->method];
}

// Open calls only: an answer to one that is over finds nothing.
static struct rpc_call *find(const struct dp_rpc_server *server, uint64_t id)
{
    struct rpc_call *call = NULL;
    HASH_FIND(hh, server->calls, &id, sizeof id, call);
    return call == NULL || call->closed ? NULL : call;
}

static void start(struct rpc_call *call, struct rpc_call_tag *tag, const grpc_op *ops, size_t count)
{
    if (dp_rpc_loop_start(&call->server->loop, &tag->base, call->core, ops, count)) {
        call->tags_out++;
    }
}

static void drop_queue(struct rpc_call *call)
{
    while (call->first != NULL) {
        struct rpc_queued *queued = call->first;
        call->first = queued->next;
        grpc_byte_buffer_destroy(queued->bytes);
        free(queued);
    }
    call->last = &call->first;
    call->queued_count = call->queued_bytes = 0;
}

static void drop_buffer(grpc_byte_buffer **buffer)
{
    if (*buffer != NULL) {
        grpc_byte_buffer_destroy(*buffer);
        *buffer = NULL;
    }
}

static void destroy(struct rpc_call *call)
{
    HASH_DELETE(hh, call->server->calls, call);
    drop_queue(call);
    drop_buffer(&call->received);
    drop_buffer(&call->sending);
    dp_rpc_trailer_deinit(&call->trailer);
    grpc_call_unref(call->core);
    free(call);
}

// Every tag's run ends with this; what the call points to must live until the last one.
static void tag_back(struct rpc_call *call)
{
    DP_CHECK(call->tags_out > 0);
    if (--call->tags_out == 0) {
        destroy(call);
    }
}

static struct rpc_call *call_of(struct rpc_tag *tag)
{
    return ((struct rpc_call_tag *)tag)->call;
}

// Always "succeeds". The only notice of a client that died, cancelled or ran out of time.
static void on_close(struct rpc_tag *tag, bool success)
{
    (void)success;
    struct rpc_call *call = call_of(tag);
    struct dp_rpc_server *server = call->server;
    bool answered = call->ended && call->cancelled == 0 && !call->cut;
    call->closed = true;
    drop_queue(call);
    if (call->handler != NULL) {
        int code = answered || call->cut ? (int)call->trailer.code : GRPC_STATUS_CANCELLED;
        server->ended[call->handler->method][code]++;
    }
    if (call->told && call->handler->on_closed != NULL) {
        call->handler->on_closed(server->context, call->id, !answered);
    }
    tag_back(call);
}

static void on_headers(struct rpc_tag *tag, bool success)
{
    (void)success;
    tag_back(call_of(tag));
}

static void receive_next(struct rpc_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->received;
    start(call, &call->receive_tag, &op, 1);
}

// Gives the bytes to the handler; a message that cannot be read ends the call.
static void deliver(struct rpc_call *call, grpc_byte_buffer *buffer)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    if (!dp_rpc_bytes_read(buffer, &bytes)) {
        dp_rpc_call_end(call, DP_INVALID, "the message cannot be decompressed");
        return;
    }
    call->told = true;
    call->handler->on_message(call->server->context, call->id,
                              bytes.bytes == NULL ? "" : bytes.bytes, bytes.length);
}

static void half_closed(struct rpc_call *call)
{
    if (call->handler->on_half_closed != NULL) {
        call->handler->on_half_closed(call->server->context, call->id);
    } else {
        dp_rpc_call_finish(call->server, call->id);
    }
}

// Success without a message is the client's half-close, or a cancellation whose close is to come.
static void on_received(struct rpc_tag *tag, bool success)
{
    struct rpc_call *call = call_of(tag);
    grpc_byte_buffer *buffer = call->received;
    call->received = NULL;
    bool open = success && !call->closed && !call->ending;
    if (open && buffer != NULL) {
        deliver(call, buffer);
        if (!call->closed && !call->ending) {
            receive_next(call);
        }
    } else if (open) {
        half_closed(call);
    }
    drop_buffer(&buffer);
    tag_back(call);
}

static size_t add_headers(struct rpc_call *call, grpc_op *ops)
{
    if (call->headers_sent) {
        return 0;
    }
    call->headers_sent = true;
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    return 1;
}

static void on_sent(struct rpc_tag *tag, bool success)
{
    struct rpc_call *call = call_of(tag);
    struct dp_rpc_server *server = call->server;
    drop_buffer(&call->sending);
    if (!success) {
        call->send_broken = true;
        drop_queue(call);
    }
    write_next(call);
    bool room = call->queued_count <= server->queue_messages_max / 2 &&
                call->queued_bytes <= server->queue_bytes_max / 2;
    bool due = (call->send_refused && room) || (call->wake && call->queued_count == 0);
    if (due && !call->closed && !call->ending) {
        call->send_refused = call->wake = false;
        call->handler->on_writable(server->context, call->id);
    }
    tag_back(call);
}

static void on_status(struct rpc_tag *tag, bool success)
{
    (void)success;
    struct rpc_call *call = call_of(tag);
    drop_buffer(&call->sending);
    tag_back(call);
}

// `answer` goes in the same batch as the status; NULL = none.
static void send_status(struct rpc_call *call, grpc_byte_buffer *answer)
{
    grpc_op ops[3];
    size_t count = add_headers(call, ops);
    if (answer != NULL) {
        ops[count] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
        ops[count++].data.send_message.send_message = answer;
        call->sending = answer;
    }
    dp_rpc_trailer_op(&call->trailer, &ops[count++]);
    call->ended = true;
    start(call, &call->status_tag, ops, count);
}

// At most one message is out at a time: the library refuses a second.
static void write_next(struct rpc_call *call)
{
    if (call->sending != NULL || call->ended || call->closed || call->send_broken) {
        return;
    }
    struct rpc_queued *queued = call->first;
    if (queued == NULL) {
        if (call->ending) {
            send_status(call, NULL);
        }
        return;
    }
    call->first = queued->next;
    call->last = call->first == NULL ? &call->first : call->last;
    call->queued_count--;
    call->queued_bytes -= queued->length;
    call->sending = queued->bytes;
    free(queued);
    grpc_op ops[2];
    size_t count = add_headers(call, ops);
    ops[count] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
    ops[count++].data.send_message.send_message = call->sending;
    start(call, &call->send_tag, ops, count);
}

void dp_rpc_call_cut(struct rpc_call *call)
{
    call->cut = call->cut || !call->ended;
    dp_rpc_call_end(call, DP_UNAVAILABLE, "the server is stopping; try again in a moment");
}

void dp_rpc_call_end(struct rpc_call *call, dp_status status, const char *message)
{
    if (call->ended || call->closed) {
        return;
    }
    // A finish that still waits for its queue gives way to an error.
    dp_rpc_trailer_deinit(&call->trailer);
    drop_queue(call);
    dp_rpc_trailer_fail(&call->trailer, status, message);
    call->ending = true;
    write_next(call);
}

static struct rpc_call *make_call(struct dp_rpc_server *server,
                                  const struct dp_rpc_handler *handler, grpc_call *core)
{
    struct rpc_call *call = dp_new(struct rpc_call);
    call->id = server->next_id++;
    call->server = server;
    call->handler = handler;
    call->core = core;
    call->last = &call->first;
    call->close_tag = (struct rpc_call_tag){.base.run = on_close, .call = call};
    call->headers_tag = (struct rpc_call_tag){.base.run = on_headers, .call = call};
    call->receive_tag = (struct rpc_call_tag){.base.run = on_received, .call = call};
    call->send_tag = (struct rpc_call_tag){.base.run = on_sent, .call = call};
    call->status_tag = (struct rpc_call_tag){.base.run = on_status, .call = call};
    dp_rpc_trailer_ok(&call->trailer);
    HASH_ADD(hh, server->calls, id, sizeof call->id, call);
    return call;
}

static void open_stream(struct rpc_call *call)
{
    grpc_op ops[1];
    start(call, &call->headers_tag, ops, add_headers(call, ops));
    call->told = true;
    if (call->handler->on_open != NULL) {
        call->handler->on_open(call->server->context, call->id);
    }
    if (!call->ending) {
        receive_next(call);
    }
}

void dp_rpc_call_begin(struct dp_rpc_server *server, const struct dp_rpc_handler *handler,
                       grpc_call *core, grpc_byte_buffer *payload, const char *method)
{
    struct rpc_call *call = make_call(server, handler, core);
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    start(call, &call->close_tag, &op, 1);
    DP_CHECK(call->tags_out == 1);
    if (handler == NULL) {
        char text[320];
        snprintf(text, sizeof text, "this server has no method %s", method);
        dp_rpc_call_end(call, DP_UNSUPPORTED, text);
    } else if (server->stopping) {
        dp_rpc_call_cut(call);
    } else if (method_of(call)->client_streaming) {
        open_stream(call);
    } else if (payload == NULL) {
        dp_rpc_call_end(call, DP_INVALID, "the call holds no message");
    } else {
        deliver(call, payload);
    }
    drop_buffer(&payload);
}

void dp_rpc_call_reply(struct dp_rpc_server *server, uint64_t id, const ProtobufCMessage *message)
{
    struct rpc_call *call = find(server, id);
    if (call == NULL || call->ending) {
        return;
    }
    DP_CHECK(!method_of(call)->server_streaming);
    size_t length = 0;
    grpc_byte_buffer *bytes = dp_rpc_message_pack(message, server->message_bytes_max, &length);
    if (bytes == NULL) {
        char text[128];
        snprintf(text, sizeof text, "the answer has %zu bytes; the limit is %zu", length,
                 server->message_bytes_max);
        dp_rpc_call_end(call, DP_TOO_LARGE, text);
        return;
    }
    call->ending = true;
    send_status(call, bytes);
}

static void enqueue(struct rpc_call *call, grpc_byte_buffer *bytes, size_t length)
{
    struct rpc_queued *queued = dp_new(struct rpc_queued);
    queued->bytes = bytes;
    queued->length = length;
    *call->last = queued;
    call->last = &queued->next;
    call->queued_count++;
    call->queued_bytes += length;
}

dp_status dp_rpc_call_send(struct dp_rpc_server *server, uint64_t id,
                           const ProtobufCMessage *message)
{
    struct rpc_call *call = find(server, id);
    if (call == NULL || call->ending || call->send_broken) {
        return DP_NOT_FOUND;
    }
    DP_CHECK(method_of(call)->server_streaming);
    if (call->queued_count >= server->queue_messages_max ||
        call->queued_bytes >= server->queue_bytes_max) {
        call->send_refused = call->handler->on_writable != NULL;
        return DP_TOO_LARGE;
    }
    size_t length = 0;
    grpc_byte_buffer *bytes = dp_rpc_message_pack(message, server->message_bytes_max, &length);
    if (bytes == NULL) {
        return DP_TOO_LARGE;
    }
    enqueue(call, bytes, length);
    write_next(call);
    return DP_OK;
}

void dp_rpc_call_wake(struct dp_rpc_server *server, uint64_t id)
{
    struct rpc_call *call = find(server, id);
    if (call != NULL && call->handler->on_writable != NULL) {
        call->wake = true;
    }
}

size_t dp_rpc_call_queued(const struct dp_rpc_server *server, uint64_t id)
{
    const struct rpc_call *call = find(server, id);
    return call == NULL ? 0 : call->queued_count;
}

void dp_rpc_call_finish(struct dp_rpc_server *server, uint64_t id)
{
    struct rpc_call *call = find(server, id);
    if (call == NULL || call->ending) {
        return;
    }
    DP_CHECK(method_of(call)->server_streaming);
    call->ending = true;
    write_next(call);
}

void dp_rpc_call_fail(struct dp_rpc_server *server, uint64_t id, dp_status status,
                      const char *message)
{
    DP_CHECK(status != DP_OK);
    struct rpc_call *call = find(server, id);
    if (call != NULL && !call->ending) {
        dp_rpc_call_end(call, status, message);
    }
}

bool dp_rpc_call_peer(const struct dp_rpc_server *server, uint64_t id, char *ret_peer, size_t size)
{
    const struct rpc_call *call = find(server, id);
    if (call == NULL) {
        return false;
    }
    char *peer = grpc_call_get_peer(call->core);
    bool ipv4 = strncmp(peer, "ipv4:", 5) == 0;
    dp_copy_text(ret_peer, size, ipv4 ? peer + 5 : peer);
    gpr_free(peer);
    return true;
}
