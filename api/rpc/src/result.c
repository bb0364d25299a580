#include "result.h"

#include <string.h>

#include "core.h"
#include "dp/utf8.h"

void dp_rpc_trailer_ok(struct rpc_trailer *trailer)
{
    *trailer = (struct rpc_trailer){.code = GRPC_STATUS_OK, .details = grpc_empty_slice()};
}

static void add_metadata(struct rpc_trailer *trailer, const char *key, const char *value,
                         size_t length)
{
    // Keys are literals; values are copied, by length.
    trailer->metadata[trailer->metadata_count++] = (grpc_metadata){
        .key = grpc_slice_from_static_string(key),
        .value = grpc_slice_from_copied_buffer(value, length),
    };
}

void dp_rpc_trailer_fail(struct rpc_trailer *trailer, dp_status status, const char *message)
{
    size_t length = strlen(message);
    size_t cut = dp_utf8_cut(message, length, DP_STATUS_DETAIL_MAX);
    *trailer = (struct rpc_trailer){
        .code = (grpc_status_code)dp_status_grpc_code(status),
        .details = grpc_slice_from_copied_buffer(message, cut),
    };
    const char *name = dp_status_name(status);
    add_metadata(trailer, RPC_KEY_STATUS, name, strlen(name));
    if (cut < length) {
        add_metadata(trailer, RPC_KEY_MESSAGE, message,
                     dp_utf8_cut(message, length, DP_RPC_MESSAGE_TEXT_MAX));
    }
}

void dp_rpc_trailer_deinit(struct rpc_trailer *trailer)
{
    grpc_slice_unref(trailer->details);
    for (size_t i = 0; i < trailer->metadata_count; i++) {
        grpc_slice_unref(trailer->metadata[i].value);
    }
    trailer->metadata_count = 0;
    trailer->details = grpc_empty_slice();
}

void dp_rpc_trailer_op(struct rpc_trailer *trailer, grpc_op *ret_op)
{
    *ret_op = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    ret_op->data.send_status_from_server.status = trailer->code;
    ret_op->data.send_status_from_server.status_details = &trailer->details;
    ret_op->data.send_status_from_server.trailing_metadata = trailer->metadata;
    ret_op->data.send_status_from_server.trailing_metadata_count = trailer->metadata_count;
}

void dp_rpc_result_init(struct rpc_result *result)
{
    *result = (struct rpc_result){.code = GRPC_STATUS_UNKNOWN, .details = grpc_empty_slice()};
    grpc_metadata_array_init(&result->headers);
    grpc_metadata_array_init(&result->trailers);
}

void dp_rpc_result_deinit(struct rpc_result *result)
{
    grpc_metadata_array_destroy(&result->headers);
    grpc_metadata_array_destroy(&result->trailers);
    grpc_slice_unref(result->details);
}

void dp_rpc_result_headers_op(struct rpc_result *result, grpc_op *ret_op)
{
    *ret_op = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA};
    ret_op->data.recv_initial_metadata.recv_initial_metadata = &result->headers;
}

void dp_rpc_result_status_op(struct rpc_result *result, grpc_op *ret_op)
{
    *ret_op = (grpc_op){.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    ret_op->data.recv_status_on_client.trailing_metadata = &result->trailers;
    ret_op->data.recv_status_on_client.status = &result->code;
    ret_op->data.recv_status_on_client.status_details = &result->details;
}

static const grpc_slice *find_trailer(const struct rpc_result *result, const char *key)
{
    for (size_t i = 0; i < result->trailers.count; i++) {
        if (grpc_slice_str_cmp(result->trailers.metadata[i].key, key) == 0) {
            return &result->trailers.metadata[i].value;
        }
    }
    return NULL;
}

// What the library reports by itself, without our metadata.
static dp_status status_of_library(grpc_status_code code)
{
    // Ours says "does not fit" by this code; the library means a message over the limit.
    return code == GRPC_STATUS_RESOURCE_EXHAUSTED ? DP_TOO_LARGE : dp_status_from_grpc((int)code);
}

// A name that does not go with the code is not believed.
static dp_status status_by_name(const grpc_slice *name, grpc_status_code code)
{
    for (int status = DP_OK + 1; name != NULL && status < DP_STATUS_COUNT; status++) {
        if (grpc_slice_str_cmp(*name, dp_status_name((dp_status)status)) == 0 &&
            dp_status_grpc_code((dp_status)status) == (int)code) {
            return (dp_status)status;
        }
    }
    return DP_OK;
}

dp_status dp_rpc_result_status(const struct rpc_result *result, const char *address,
                               struct dp_error *err)
{
    if (result->code == GRPC_STATUS_OK) {
        return DP_OK;
    }
    const grpc_slice *text = &result->details;
    dp_status status = status_by_name(find_trailer(result, RPC_KEY_STATUS), result->code);
    if (status == DP_OK) {
        status = status_of_library(result->code);
        return dp_fail(err, status, "%s: %.*s (gRPC status %d)", address,
                       (int)GRPC_SLICE_LENGTH(*text), GRPC_SLICE_START_PTR(*text),
                       (int)result->code);
    }
    const grpc_slice *whole = find_trailer(result, RPC_KEY_MESSAGE);
    text = whole == NULL ? text : whole;
    return dp_fail(err, status, "%.*s", (int)GRPC_SLICE_LENGTH(*text), GRPC_SLICE_START_PTR(*text));
}
