#include "client.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/limits.h"
#include "dp/wire.h"

#define RECONNECT_MS 3000

const ProtobufCMessage *dp_client_with_user(const struct dp_client *client,
                                            const ProtobufCMessage *request, void **ret_copy)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(request->descriptor, "user");
    *ret_copy = NULL;
    if (field == NULL || field->type != PROTOBUF_C_TYPE_STRING || client->user == NULL) {
        return request;
    }
    char *copy = dp_memdup(request, request->descriptor->sizeof_message);
    char **user = (char **)(void *)(copy + field->offset);
    *user = (*user)[0] == '\0' ? client->user : *user;
    *ret_copy = copy;
    return (const ProtobufCMessage *)(const void *)copy;
}

void dp_client_set_user(struct dp_client *client, const char *user)
{
    free(client->user);
    client->user = user[0] == '\0' ? NULL : dp_strdup(user);
}

dp_status dp_client_call(struct dp_client *client, dp_method_id method,
                         const ProtobufCMessage *request, bool again, struct dp_arena *arena,
                         ProtobufCMessage **ret_answer, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    DP_AUTO_FREE void *copy = NULL;
    request = dp_client_with_user(client, request, &copy);
    dp_status status = dp_rpc_client_call(client->rpc, method, request, NULL, &bytes, err);
    if (status == DP_UNAVAILABLE && again) {
        // Waiting in vain tells less than the first refusal did.
        if (dp_rpc_client_connect(client->rpc, RECONNECT_MS, NULL) != DP_OK) {
            return DP_UNAVAILABLE;
        }
        // What seems connected may be the connection that has just broken.
        const struct dp_rpc_call_options patient = {.wait_for_ready = true};
        status = dp_rpc_client_call(client->rpc, method, request, &patient, &bytes, err);
    }
    if (status != DP_OK) {
        return status;
    }
    status = dp_wire_unpack(dp_methods[method].response, bytes.bytes == NULL ? "" : bytes.bytes,
                            bytes.length, arena, ret_answer, err);
    return status == DP_OK
               ? DP_OK
               : dp_fail_in(err, "answer of %s to %s", dp_rpc_client_address(client->rpc),
                            dp_methods[method].name);
}

// "@FILE" holds the address, as the controller writes it once it serves.
static dp_status resolve(const char *address, struct dp_buf *ret_address, struct dp_error *err)
{
    if (address[0] != '@') {
        dp_buf_puts(ret_address, address);
        return DP_OK;
    }
    dp_status status = dp_read_file(address + 1, DP_ADDRESS_FILE_BYTES_MAX, ret_address, err);
    if (status != DP_OK) {
        return dp_fail(err, DP_UNAVAILABLE,
                       "no controller has written its address to %s; start one with \"dpctl local "
                       "up\", or give its address with --controller",
                       address + 1);
    }
    while (ret_address->length > 0 && ret_address->bytes[ret_address->length - 1] == '\n') {
        ret_address->bytes[--ret_address->length] = '\0';
    }
    return DP_OK;
}

static dp_status check_version(struct dp_client *client, struct dp_error *err)
{
    Dp__V1__GetVersionRequest request = DP__V1__GET_VERSION_REQUEST__INIT;
    request.client_version = DP_VERSION;
    request.client_protocol = DP_PROTOCOL_VERSION;
    ProtobufCMessage *answer = NULL;
    dp_status status = dp_client_call(client, DP_METHOD_GET_VERSION, &request.base, true,
                                      &client->arena, &answer, err);
    if (status != DP_OK) {
        return status;
    }
    client->version = (Dp__V1__VersionInfo *)answer;
    if (client->version->protocol != DP_PROTOCOL_VERSION) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "the controller at %s is version %s and speaks protocol %u; this is "
                       "version %s, protocol %u: use the same version on both sides",
                       dp_rpc_client_address(client->rpc), client->version->version,
                       client->version->protocol, DP_VERSION, DP_PROTOCOL_VERSION);
    }
    return DP_OK;
}

static dp_status connect_client(struct dp_client *client, unsigned wait_ms, struct dp_error *err)
{
    dp_status status = dp_rpc_client_connect(client->rpc, wait_ms, err);
    if (status != DP_OK) {
        return dp_fail(err, DP_UNAVAILABLE,
                       "no controller answers at %s; start one with \"dpctl local up\", or give "
                       "its address with --controller",
                       dp_rpc_client_address(client->rpc));
    }
    return check_version(client, err);
}

dp_status dp_client_open(const char *address, unsigned wait_ms, struct dp_client **ret_client,
                         struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = resolve(address, &text, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_client *client = dp_new(struct dp_client);
    struct dp_rpc_client_options options = {.address = text.bytes == NULL ? "" : text.bytes};
    status = dp_rpc_client_open(&options, &client->rpc, err);
    if (status == DP_OK) {
        status = connect_client(client, wait_ms, err);
    }
    if (status != DP_OK) {
        dp_client_close(client);
        return status;
    }
    *ret_client = client;
    return DP_OK;
}

void dp_client_close(struct dp_client *client)
{
    if (client == NULL) {
        return;
    }
    dp_rpc_client_close(client->rpc);
    dp_arena_deinit(&client->arena);
    free(client->user);
    free(client);
}

const char *dp_client_address(const struct dp_client *client)
{
    return dp_rpc_client_address(client->rpc);
}

const Dp__V1__VersionInfo *dp_client_version(const struct dp_client *client)
{
    return client->version;
}
