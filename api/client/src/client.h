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
    char *user; // NULL = not said
};

// The request, or a copy of it that says who asks, when it has a field for that and does not say so
// yet. *ret_copy is what the caller frees.
const ProtobufCMessage *dp_client_with_user(const struct dp_client *client,
                                            const ProtobufCMessage *request, void **ret_copy);

// One unary call; the answer is checked. `again`: once more when the connection broke.
dp_status dp_client_call(struct dp_client *client, dp_method_id method,
                         const ProtobufCMessage *request, bool again, struct dp_arena *arena,
                         ProtobufCMessage **ret_answer, struct dp_error *err);
