// A server stream, one message at a time: while nobody reads, flow control holds the server.
#include "client.h"

#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"

struct dp_rpc_reader {
    struct dp_rpc_client *client;
    grpc_call *call;
    grpc_byte_buffer *request;
    grpc_byte_buffer *received;
    struct rpc_result result;
    // Batches that are out; their addresses are the tags.
    bool starting, receiving, running;
    bool over;
    struct dp_error err; // once over
};

static void start_call(struct dp_rpc_reader *reader, bool wait_for_ready)
{
    grpc_op ops[4] = {0};
    dp_rpc_client_headers_op(wait_for_ready, &ops[0]);
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = reader->request;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    dp_rpc_result_headers_op(&reader->result, &ops[3]);
    reader->starting =
        dp_rpc_batch_start(reader->call, ops, DP_ARRAY_LENGTH(ops), &reader->starting);
    grpc_op status;
    dp_rpc_result_status_op(&reader->result, &status);
    reader->running = dp_rpc_batch_start(reader->call, &status, 1, &reader->running);
}

dp_status dp_rpc_reader_open(struct dp_rpc_client *client, dp_method_id method,
                             const ProtobufCMessage *request,
                             const struct dp_rpc_call_options *options,
                             struct dp_rpc_reader **ret_reader, struct dp_error *err)
{
    DP_CHECK(dp_methods[method].server_streaming && !dp_methods[method].client_streaming);
    size_t length = 0;
    grpc_byte_buffer *bytes = dp_rpc_message_pack(request, client->message_bytes_max, &length);
    if (bytes == NULL) {
        return dp_fail(err, DP_TOO_LARGE, "the request has %zu bytes; the limit is %zu", length,
                       client->message_bytes_max);
    }
    struct dp_rpc_reader *reader = dp_new(struct dp_rpc_reader);
    reader->client = client;
    dp_rpc_client_enter(client);
    reader->request = bytes;
    reader->call = dp_rpc_client_make_call(client, method, client->cq,
                                           options == NULL ? 0 : options->deadline_ms);
    dp_rpc_result_init(&reader->result);
    start_call(reader, options != NULL && options->wait_for_ready);
    *ret_reader = reader;
    return DP_OK;
}

// Takes back one batch; false when it is still out at the deadline.
static bool take_back(struct dp_rpc_reader *reader, bool *out, gpr_timespec deadline)
{
    bool success = false;
    if (*out && !dp_rpc_client_pluck(reader->client, out, deadline, &success)) {
        return false;
    }
    *out = false;
    return true;
}

static bool receive(struct dp_rpc_reader *reader, unsigned timeout_ms)
{
    if (!reader->receiving) {
        grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
        op.data.recv_message.recv_message = &reader->received;
        reader->receiving = dp_rpc_batch_start(reader->call, &op, 1, &reader->receiving);
    }
    return take_back(reader, &reader->receiving, dp_rpc_deadline_ms(timeout_ms));
}

static void drop_received(struct dp_rpc_reader *reader)
{
    if (reader->received != NULL) {
        grpc_byte_buffer_destroy(reader->received);
        reader->received = NULL;
    }
}

static void end(struct dp_rpc_reader *reader)
{
    take_back(reader, &reader->running, dp_rpc_deadline_never());
    reader->over = true;
    reader->err.status =
        dp_rpc_result_status(&reader->result, reader->client->address, &reader->err);
}

static dp_status take_message(struct dp_rpc_reader *reader, struct dp_buf *ret_bytes,
                              struct dp_error *err)
{
    bool readable = dp_rpc_bytes_read(reader->received, ret_bytes);
    drop_received(reader);
    if (!readable) {
        return dp_fail(err, DP_INVALID, "%s: a message cannot be decompressed",
                       reader->client->address);
    }
    return DP_OK;
}

dp_status dp_rpc_reader_next(struct dp_rpc_reader *reader, unsigned timeout_ms,
                             dp_rpc_read *ret_read, struct dp_buf *ret_bytes, struct dp_error *err)
{
    if (!reader->over) {
        if (!receive(reader, timeout_ms)) {
            *ret_read = DP_RPC_IDLE;
            return DP_OK;
        }
        if (reader->received != NULL) {
            *ret_read = DP_RPC_MESSAGE;
            return take_message(reader, ret_bytes, err);
        }
        end(reader);
    }
    if (reader->err.status != DP_OK) {
        return dp_fail(err, reader->err.status, "%s", reader->err.message);
    }
    *ret_read = DP_RPC_END;
    return DP_OK;
}

void dp_rpc_reader_close(struct dp_rpc_reader *reader)
{
    if (reader == NULL) {
        return;
    }
    grpc_call_cancel(reader->call, NULL);
    take_back(reader, &reader->starting, dp_rpc_deadline_never());
    take_back(reader, &reader->receiving, dp_rpc_deadline_never());
    take_back(reader, &reader->running, dp_rpc_deadline_never());
    drop_received(reader);
    grpc_byte_buffer_destroy(reader->request);
    dp_rpc_result_deinit(&reader->result);
    grpc_call_unref(reader->call);
    dp_rpc_client_leave(reader->client);
    free(reader);
}
