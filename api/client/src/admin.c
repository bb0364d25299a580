// What operators decide about nodes and users.
#include "client.h"

dp_status dp_client_drain_node(struct dp_client *client, const Dp__V1__DrainNodeRequest *request,
                               struct dp_arena *arena, Dp__V1__Node **ret_node,
                               struct dp_error *err)
{
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_DRAIN_NODE, &request->base, false, arena, &answer, err);
    if (status == DP_OK) {
        *ret_node = (Dp__V1__Node *)answer;
    }
    return status;
}

dp_status dp_client_undrain_node(struct dp_client *client, const char *node, struct dp_arena *arena,
                                 Dp__V1__Node **ret_node, struct dp_error *err)
{
    Dp__V1__UndrainNodeRequest request = DP__V1__UNDRAIN_NODE_REQUEST__INIT;
    request.node = (char *)node;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_UNDRAIN_NODE, &request.base, false, arena, &answer, err);
    if (status == DP_OK) {
        *ret_node = (Dp__V1__Node *)answer;
    }
    return status;
}

dp_status dp_client_set_node(struct dp_client *client, const Dp__V1__SetNodeRequest *request,
                             struct dp_arena *arena, Dp__V1__Node **ret_node, struct dp_error *err)
{
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_SET_NODE, &request->base, false, arena, &answer, err);
    if (status == DP_OK) {
        *ret_node = (Dp__V1__Node *)answer;
    }
    return status;
}

dp_status dp_client_set_quota(struct dp_client *client, const Dp__V1__SetQuotaRequest *request,
                              struct dp_arena *arena, Dp__V1__Quota **ret_quota,
                              struct dp_error *err)
{
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_SET_QUOTA, &request->base, false, arena, &answer, err);
    if (status == DP_OK) {
        *ret_quota = (Dp__V1__Quota *)answer;
    }
    return status;
}

dp_status dp_client_list_quotas(struct dp_client *client, struct dp_arena *arena,
                                Dp__V1__ListQuotasResponse **ret_response, struct dp_error *err)
{
    Dp__V1__ListQuotasRequest request = DP__V1__LIST_QUOTAS_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_LIST_QUOTAS, &request.base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_response = (Dp__V1__ListQuotasResponse *)answer;
    }
    return status;
}
