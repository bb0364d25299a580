#include "client.h"

#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/log.h"

#define CONNECT_ONCE_MS 5000 // for the first answer, yes or no

static void make_channel(struct dp_rpc_client *client, bool own_connection)
{
    struct rpc_args args = {0};
    dp_rpc_args_common(&args, client->message_bytes_max);
    // A proxy variable in the environment would capture even 127.0.0.1.
    dp_rpc_args_int(&args, GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // By default a controller that comes back is looked for up to two minutes later. What is called
    // the least backoff is the time that one attempt may take, whatever the machine does meanwhile.
    dp_rpc_args_int(&args, GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
    dp_rpc_args_int(&args, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, CONNECT_ONCE_MS);
    dp_rpc_args_int(&args, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    dp_rpc_args_int(&args, GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
    dp_rpc_args_int(&args, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, own_connection ? 1 : 0);
    grpc_channel_args view = dp_rpc_args_view(&args);
    grpc_channel_credentials *plain = grpc_insecure_credentials_create();
    client->channel = grpc_channel_create(client->peer.target, plain, &view);
    grpc_channel_credentials_release(plain);
}

dp_status dp_rpc_client_open(const struct dp_rpc_client_options *options,
                             struct dp_rpc_client **ret_client, struct dp_error *err)
{
    struct rpc_address peer = {0};
    dp_status status = dp_rpc_address_parse(options->address, false, &peer, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_rpc_client *client = dp_new(struct dp_rpc_client);
    client->peer = peer;
    DP_COPY_TEXT(client->address, options->address);
    client->message_bytes_max =
        options->message_bytes_max == 0 ? DP_MESSAGE_BYTES_MAX : options->message_bytes_max;
    dp_rpc_core_enter();
    sigset_t old;
    dp_rpc_signals_block(&old);
    client->cq = grpc_completion_queue_create_for_pluck(NULL);
    make_channel(client, options->own_connection);
    dp_rpc_signals_restore(&old);
    *ret_client = client;
    return DP_OK;
}

static void destroy(struct dp_rpc_client *client)
{
    grpc_completion_queue_shutdown(client->cq);
    while (grpc_completion_queue_pluck(client->cq, NULL, dp_rpc_deadline_never(), NULL).type !=
           GRPC_QUEUE_SHUTDOWN) {
    }
    grpc_completion_queue_destroy(client->cq);
    grpc_channel_destroy(client->channel);
    dp_rpc_core_leave();
    free(client);
}

void dp_rpc_client_close(struct dp_rpc_client *client)
{
    if (client == NULL) {
        return;
    }
    client->closing = true;
    if (client->users == 0) {
        destroy(client);
    }
}

void dp_rpc_client_enter(struct dp_rpc_client *client)
{
    client->users++;
}

void dp_rpc_client_leave(struct dp_rpc_client *client)
{
    client->users--;
    if (client->closing && client->users == 0) {
        destroy(client);
    }
}

const char *dp_rpc_client_address(const struct dp_rpc_client *client)
{
    return client->address;
}

bool dp_rpc_client_pluck(struct dp_rpc_client *client, void *tag, gpr_timespec deadline,
                         bool *ret_success)
{
    grpc_event event = grpc_completion_queue_pluck(client->cq, tag, deadline, NULL);
    if (event.type != GRPC_OP_COMPLETE) {
        return false;
    }
    *ret_success = event.success != 0;
    return true;
}

// Waits for a change of state and always takes the tag back: one watch gives one event, and it must
// be over before the channel goes.
static void watch_state(struct dp_rpc_client *client, grpc_connectivity_state state,
                        gpr_timespec deadline)
{
    bool changed = false;
    grpc_channel_watch_connectivity_state(client->channel, state, deadline, client->cq, client);
    DP_CHECK(dp_rpc_client_pluck(client, client, dp_rpc_deadline_never(), &changed));
}

dp_status dp_rpc_client_connect(struct dp_rpc_client *client, unsigned wait_ms,
                                struct dp_error *err)
{
    gpr_timespec deadline = dp_rpc_deadline_ms(wait_ms == 0 ? CONNECT_ONCE_MS : wait_ms);
    sigset_t old;
    dp_rpc_signals_block(&old);
    grpc_connectivity_state state = grpc_channel_check_connectivity_state(client->channel, 1);
    while (state != GRPC_CHANNEL_READY &&
           gpr_time_cmp(gpr_now(GPR_CLOCK_MONOTONIC), deadline) < 0 &&
           (wait_ms != 0 || state != GRPC_CHANNEL_TRANSIENT_FAILURE)) {
        watch_state(client, state, deadline);
        state = grpc_channel_check_connectivity_state(client->channel, 1);
    }
    dp_rpc_signals_restore(&old);
    if (state == GRPC_CHANNEL_READY) {
        return DP_OK;
    }
    return wait_ms == 0 ? dp_fail(err, DP_UNAVAILABLE, "nothing answers at %s", client->address)
                        : dp_fail(err, DP_UNAVAILABLE, "nothing answered at %s within %u ms",
                                  client->address, wait_ms);
}

grpc_call *dp_rpc_client_make_call(struct dp_rpc_client *client, dp_method_id method,
                                   grpc_completion_queue *cq, unsigned deadline_ms)
{
    gpr_timespec deadline =
        deadline_ms == 0 ? dp_rpc_deadline_never() : dp_rpc_deadline_ms(deadline_ms);
    grpc_slice name = grpc_slice_from_static_string(dp_methods[method].name);
    sigset_t old;
    dp_rpc_signals_block(&old);
    grpc_call *call = grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, cq,
                                               name, NULL, deadline, NULL);
    dp_rpc_signals_restore(&old);
    DP_CHECK(call != NULL);
    return call;
}

void dp_rpc_client_headers_op(bool wait_for_ready, grpc_op *ret_op)
{
    *ret_op = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    ret_op->flags = wait_for_ready ? GRPC_INITIAL_METADATA_WAIT_FOR_READY |
                                         GRPC_INITIAL_METADATA_WAIT_FOR_READY_EXPLICITLY_SET
                                   : 0;
}

// The whole call is one batch, whose tag comes at the deadline at the latest.
static bool run_unary(struct dp_rpc_client *client, grpc_call *call, grpc_byte_buffer *request,
                      bool wait_for_ready, struct rpc_result *result, grpc_byte_buffer **ret_answer)
{
    grpc_op ops[6] = {0};
    dp_rpc_client_headers_op(wait_for_ready, &ops[0]);
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = request;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    dp_rpc_result_headers_op(result, &ops[3]);
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[4].data.recv_message.recv_message = ret_answer;
    dp_rpc_result_status_op(result, &ops[5]);
    bool success = false;
    return dp_rpc_batch_start(call, ops, DP_ARRAY_LENGTH(ops), call) &&
           dp_rpc_client_pluck(client, call, dp_rpc_deadline_never(), &success);
}

static dp_status take_answer(struct dp_rpc_client *client, const struct rpc_result *result,
                             grpc_byte_buffer *answer, struct dp_buf *ret_bytes,
                             struct dp_error *err)
{
    dp_status status = dp_rpc_result_status(result, client->address, err);
    if (status != DP_OK) {
        return status;
    }
    if (answer == NULL || !dp_rpc_bytes_read(answer, ret_bytes)) {
        return dp_fail(err, DP_INTERNAL, "%s: the answer holds no message", client->address);
    }
    return DP_OK;
}

dp_status dp_rpc_client_call(struct dp_rpc_client *client, dp_method_id method,
                             const ProtobufCMessage *request,
                             const struct dp_rpc_call_options *options, struct dp_buf *ret_bytes,
                             struct dp_error *err)
{
    unsigned deadline_ms = options == NULL ? 0 : options->deadline_ms;
    size_t length = 0;
    grpc_byte_buffer *bytes = dp_rpc_message_pack(request, client->message_bytes_max, &length);
    if (bytes == NULL) {
        return dp_fail(err, DP_TOO_LARGE, "the request has %zu bytes; the limit is %zu", length,
                       client->message_bytes_max);
    }
    if (deadline_ms == 0) {
        deadline_ms = dp_methods[method].deadline_ms;
    }
    grpc_call *call = dp_rpc_client_make_call(client, method, client->cq, deadline_ms);
    struct rpc_result result;
    dp_rpc_result_init(&result);
    grpc_byte_buffer *answer = NULL;
    dp_status status = DP_INTERNAL;
    if (run_unary(client, call, bytes, options != NULL && options->wait_for_ready, &result,
                  &answer)) {
        status = take_answer(client, &result, answer, ret_bytes, err);
    } else {
        dp_fail(err, DP_INTERNAL, "%s: the call could not be made", client->address);
    }
    dp_rpc_result_deinit(&result);
    grpc_byte_buffer_destroy(bytes);
    if (answer != NULL) {
        grpc_byte_buffer_destroy(answer);
    }
    grpc_call_unref(call);
    return status;
}
