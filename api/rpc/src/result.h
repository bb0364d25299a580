// How a failure travels: gRPC status, cut text, and our own trailing metadata.
#pragma once

#include <grpc/grpc.h>

#include "dp/error.h"

// Server side: what a status batch points to. Kept until its tag is back.
struct rpc_trailer {
    grpc_status_code code;
    grpc_slice details;
    grpc_metadata metadata[2];
    size_t metadata_count;
};

void dp_rpc_trailer_ok(struct rpc_trailer *trailer);
void dp_rpc_trailer_fail(struct rpc_trailer *trailer, dp_status status, const char *message);
void dp_rpc_trailer_deinit(struct rpc_trailer *trailer);
// The batch's op.
void dp_rpc_trailer_op(struct rpc_trailer *trailer, grpc_op *ret_op);

// Client side: where the library puts headers and status. Keys and values belong to the call:
// read them before the call goes.
struct rpc_result {
    grpc_metadata_array headers;
    grpc_metadata_array trailers;
    grpc_status_code code;
    grpc_slice details;
};

void dp_rpc_result_init(struct rpc_result *result);
void dp_rpc_result_deinit(struct rpc_result *result);
void dp_rpc_result_headers_op(struct rpc_result *result, grpc_op *ret_op);
void dp_rpc_result_status_op(struct rpc_result *result, grpc_op *ret_op);
// The status that the server meant, with its own text; else what the library says, with the
// address.
dp_status dp_rpc_result_status(const struct rpc_result *result, const char *address,
                               struct dp_error *err);
