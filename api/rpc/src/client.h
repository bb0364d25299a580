// The client's insides.
#pragma once

#include "address.h"
#include "core.h"
#include "dp/rpc.h"
#include "result.h"

struct dp_rpc_client {
    grpc_channel *channel;
    grpc_completion_queue *cq; // pluck: of the blocking calls, one tag for each batch
    size_t message_bytes_max;
    unsigned users; // readers and streams that are open
    bool closing;   // goes with the last of them
    struct rpc_address peer;
    char address[DP_ADDRESS_MAX];
};

// A reader or stream opens, or has gone.
void dp_rpc_client_enter(struct dp_rpc_client *client);
void dp_rpc_client_leave(struct dp_rpc_client *client);
// A call on the client's channel whose batches complete in cq; 0 ms = no deadline.
grpc_call *dp_rpc_client_make_call(struct dp_rpc_client *client, dp_method_id method,
                                   grpc_completion_queue *cq, unsigned deadline_ms);
// Waits for one batch of the client's own queue; false after the deadline.
bool dp_rpc_client_pluck(struct dp_rpc_client *client, void *tag, gpr_timespec deadline,
                         bool *ret_success);
void dp_rpc_client_headers_op(bool wait_for_ready, grpc_op *ret_op);
