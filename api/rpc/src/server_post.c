// Requests for calls that have not come yet.
#include "server.h"

#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/log.h"

static void post(struct rpc_posted *posted)
{
    struct dp_rpc_server *server = posted->server;
    grpc_call_error error;
    posted->core = NULL;
    posted->payload = NULL;
    grpc_metadata_array_init(&posted->metadata);
    grpc_call_details_init(&posted->details);
    dp_rpc_loop_hand_over(&server->loop, &posted->tag);
    if (posted->handler == NULL) {
        error = grpc_server_request_call(server->core, &posted->core, &posted->details,
                                         &posted->metadata, server->loop.cq, server->loop.cq,
                                         &posted->tag);
    } else {
        bool streams = dp_methods[posted->handler->method].client_streaming;
        error = grpc_server_request_registered_call(
            server->core, posted->registered, &posted->core, &posted->deadline, &posted->metadata,
            streams ? NULL : &posted->payload, server->loop.cq, server->loop.cq, &posted->tag);
    }
    DP_CHECK(error == GRPC_CALL_OK);
    server->posted_out++;
}

static void clear(struct rpc_posted *posted)
{
    grpc_metadata_array_destroy(&posted->metadata);
    grpc_call_details_destroy(&posted->details);
}

static void on_call(struct rpc_tag *tag, bool success)
{
    struct rpc_posted *posted = (struct rpc_posted *)tag;
    struct dp_rpc_server *server = posted->server;
    server->posted_out--;
    // Without success the server is shutting down: the request is void, and not posted again.
    if (!success) {
        clear(posted);
        return;
    }
    char method[256] = "";
    if (posted->handler == NULL) {
        size_t length = GRPC_SLICE_LENGTH(posted->details.method);
        length = length < sizeof method ? length : sizeof method - 1;
        memcpy(method, GRPC_SLICE_START_PTR(posted->details.method), length);
    }
    clear(posted);
    grpc_call *core = posted->core;
    grpc_byte_buffer *payload = posted->payload;
    if (!server->stopping) {
        post(posted);
    }
    dp_rpc_call_begin(server, posted->handler, core, payload, method);
}

static void add(struct dp_rpc_server *server, const struct dp_rpc_handler *handler,
                void *registered, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        server->posted[server->posted_count++] = (struct rpc_posted){
            .tag = {.run = on_call},
            .server = server,
            .handler = handler,
            .registered = registered,
        };
    }
}

dp_status dp_rpc_posted_register(struct dp_rpc_server *server,
                                 const struct dp_rpc_server_options *options, struct dp_error *err)
{
    size_t count = options->handlers_count * RPC_POSTED_PER_METHOD + RPC_POSTED_CATCH_ALL;
    server->posted = dp_new_array(struct rpc_posted, count);
    for (size_t i = 0; i < options->handlers_count; i++) {
        const struct dp_rpc_handler *handler = &options->handlers[i];
        const struct dp_method *method = &dp_methods[handler->method];
        DP_CHECK(handler->on_message != NULL);
        // Any host: with one, calls under another :authority would hang. Twice is refused here.
        void *registered = grpc_server_register_method(
            server->core, method->name, NULL,
            method->client_streaming ? GRPC_SRM_PAYLOAD_NONE
                                     : GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER,
            0);
        if (registered == NULL) {
            return dp_fail(err, DP_INTERNAL, "method %s has two handlers", method->name);
        }
        add(server, handler, registered, RPC_POSTED_PER_METHOD);
    }
    // Without these a call of an unknown method would wait until its deadline.
    add(server, NULL, NULL, RPC_POSTED_CATCH_ALL);
    return DP_OK;
}

void dp_rpc_posted_start(struct dp_rpc_server *server)
{
    for (size_t i = 0; i < server->posted_count; i++) {
        post(&server->posted[i]);
    }
}
