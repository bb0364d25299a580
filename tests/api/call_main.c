// Calls every unary method of the server at ADDRESS once, with an empty request.
#include <stdio.h>

#include "dp/rpc.h"

int main(int argc, char **argv)
{
    struct dp_error err = {0};
    struct dp_rpc_client *client = NULL;
    struct dp_rpc_client_options options = {.address = argc > 1 ? argv[1] : ""};
    dp_status status = dp_rpc_client_open(&options, &client, &err);
    for (int id = 0; status == DP_OK && id < DP_METHOD_COUNT; id++) {
        const struct dp_method *method = &dp_methods[id];
        if (method->client_streaming || method->server_streaming) {
            continue;
        }
        union {
            ProtobufCMessage base;
            char room[1024];
        } request;
        struct dp_buf answer = {0};
        protobuf_c_message_init(method->request, &request.base);
        status = dp_rpc_client_call(client, (dp_method_id)id, &request.base, NULL, &answer, &err);
        dp_buf_deinit(&answer);
    }
    if (status != DP_OK) {
        fprintf(stderr, "%s\n", err.message);
    }
    dp_rpc_client_close(client);
    return dp_status_exit_code(status);
}
