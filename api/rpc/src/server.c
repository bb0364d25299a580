#include "server.h"

#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/log.h"

static void make_core(struct dp_rpc_server *server, unsigned threads)
{
    struct rpc_args args = {0};
    dp_rpc_args_common(&args, server->message_bytes_max);
    // Otherwise a second server would share the port without a word.
    dp_rpc_args_int(&args, GRPC_ARG_ALLOW_REUSEPORT, 0);
    // Agents ping every 10 s; by default more than one in 5 min costs them the connection.
    dp_rpc_args_int(&args, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
    grpc_channel_args view = dp_rpc_args_view(&args);
    server->core = grpc_server_create(&view, NULL);
    dp_rpc_loop_init(&server->loop, threads);
    // A queue that is registered late, or not at all, serves nothing and says nothing.
    grpc_server_register_completion_queue(server->core, server->loop.cq, NULL);
}

static dp_status bind_port(struct dp_rpc_server *server, struct dp_error *err)
{
    if (server->listen.is_unix) {
        dp_status status = dp_rpc_address_probe(&server->listen, err);
        if (status != DP_OK) {
            return status;
        }
    }
    grpc_server_credentials *plain = grpc_insecure_server_credentials_create();
    int port = grpc_server_add_http2_port(server->core, server->listen.target, plain);
    grpc_server_credentials_release(plain);
    if (port == 0) {
        // The library does not say why.
        dp_status status = dp_rpc_address_probe(&server->listen, err);
        return status != DP_OK
                   ? status
                   : dp_fail(err, DP_UNAVAILABLE, "cannot listen on %s", server->listen.target);
    }
    dp_rpc_address_print(&server->listen, (unsigned)port, server->address, sizeof server->address);
    return DP_OK;
}

static dp_status start(struct dp_rpc_server *server, const struct dp_rpc_server_options *options,
                       struct dp_error *err)
{
    make_core(server, options->threads == 0 ? 2 : options->threads);
    dp_status status = dp_rpc_posted_register(server, options, err);
    if (status == DP_OK) {
        status = bind_port(server, err);
    }
    if (status == DP_OK) {
        grpc_server_start(server->core);
        dp_rpc_posted_start(server);
    }
    return status;
}

dp_status dp_rpc_server_new(const struct dp_rpc_server_options *options,
                            struct dp_rpc_server **ret_server, struct dp_error *err)
{
    struct rpc_address listen = {0};
    dp_status status = dp_rpc_address_parse(options->listen, true, &listen, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_rpc_server *server = dp_new(struct dp_rpc_server);
    size_t bytes_max = options->message_bytes_max;
    server->listen = listen;
    server->handlers = options->handlers;
    server->context = options->context;
    server->message_bytes_max = bytes_max == 0 ? DP_MESSAGE_BYTES_MAX : bytes_max;
    server->queue_messages_max =
        options->queue_messages_max == 0 ? DP_STREAM_QUEUE_MAX : options->queue_messages_max;
    server->queue_bytes_max =
        options->queue_bytes_max == 0 ? 2 * server->message_bytes_max : options->queue_bytes_max;
    server->next_id = 1;
    dp_rpc_core_enter();
    dp_rpc_accept_prepare();
    sigset_t old;
    dp_rpc_signals_block(&old);
    status = start(server, options, err);
    dp_rpc_signals_restore(&old);
    if (status != DP_OK) {
        dp_rpc_server_free(server);
        return status;
    }
    *ret_server = server;
    return DP_OK;
}

const char *dp_rpc_server_address(const struct dp_rpc_server *server)
{
    return server->address;
}

int dp_rpc_server_fd(const struct dp_rpc_server *server)
{
    return server->loop.fd;
}

void dp_rpc_server_pump(struct dp_rpc_server *server)
{
    if (!server->stopped) {
        dp_rpc_loop_pump(&server->loop);
    }
}

size_t dp_rpc_server_calls(const struct dp_rpc_server *server)
{
    return HASH_COUNT(server->calls);
}

uint64_t dp_rpc_server_ended(const struct dp_rpc_server *server, dp_method_id method, int code)
{
    return server->ended[method][code];
}

static void on_shut_down(struct rpc_tag *tag, bool success)
{
    (void)success;
    char *base = (char *)tag;
    ((struct dp_rpc_server *)(base - offsetof(struct dp_rpc_server, shutdown_tag)))->shut_down =
        true;
}

static void end_calls(struct dp_rpc_server *server)
{
    struct rpc_call *call = NULL, *next = NULL;
    HASH_ITER(hh, server->calls, call, next)
    {
        dp_rpc_call_cut(call);
    }
}

static void pump_until_shut_down(struct dp_rpc_server *server, unsigned grace_ms)
{
    int64_t end_ns = dp_clock_monotonic_ns() + (int64_t)grace_ms * DP_NS_PER_MS;
    while (!server->shut_down) {
        int64_t left_ns = end_ns - dp_clock_monotonic_ns();
        if (left_ns <= 0) {
            return;
        }
        dp_rpc_loop_wait(&server->loop, (int)(left_ns / DP_NS_PER_MS) + 1);
        dp_rpc_loop_pump(&server->loop);
        end_calls(server); // those that were already accepted
    }
}

// The order matters: destroying a server whose shutdown has not completed aborts, and shutdown
// completes only when every call has ended.
void dp_rpc_server_stop(struct dp_rpc_server *server, unsigned grace_ms)
{
    if (server->stopped) {
        return;
    }
    server->stopping = true;
    server->shutdown_tag.run = on_shut_down;
    dp_rpc_loop_hand_over(&server->loop, &server->shutdown_tag);
    grpc_server_shutdown_and_notify(server->core, server->loop.cq, &server->shutdown_tag);
    end_calls(server);
    pump_until_shut_down(server, grace_ms);
    if (!server->shut_down) {
        grpc_server_cancel_all_calls(server->core);
    }
    while (!server->shut_down || server->posted_out > 0 || server->calls != NULL) {
        dp_rpc_loop_wait(&server->loop, -1);
        dp_rpc_loop_pump(&server->loop);
        end_calls(server);
    }
    grpc_server_destroy(server->core);
    server->core = NULL;
    dp_rpc_loop_deinit(&server->loop);
    dp_rpc_core_leave();
    server->stopped = true;
}

void dp_rpc_server_free(struct dp_rpc_server *server)
{
    if (server == NULL) {
        return;
    }
    dp_rpc_server_stop(server, 0);
    free(server->posted);
    free(server);
}
