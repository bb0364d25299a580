// What the typed calls share.
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "dp/client.h"
#include "dp/method.h"
#include "dp/rpc.h"

struct dp_client {
    struct dp_rpc_client *rpc;
    struct dp_arena arena; // of `version`
    Dp__V1__VersionInfo *version;
};

// One unary call; the answer is checked. `again`: once more when the connection broke.
dp_status dp_client_call(struct dp_client *client, dp_method_id method,
                         const ProtobufCMessage *request, bool again, struct dp_arena *arena,
                         ProtobufCMessage **ret_answer, struct dp_error *err);
