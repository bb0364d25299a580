// One function for each RPC about clusters. Applying the same file twice changes nothing, so it may
// be tried again.
#include "client.h"

dp_status dp_client_apply_cluster(struct dp_client *client,
                                  const Dp__V1__ApplyClusterRequest *request,
                                  struct dp_arena *arena,
                                  Dp__V1__ApplyClusterResponse **ret_response, struct dp_error *err)
{
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_APPLY_CLUSTER, &request->base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_response = (Dp__V1__ApplyClusterResponse *)answer;
    }
    return status;
}

dp_status dp_client_get_cluster(struct dp_client *client, const char *name, struct dp_arena *arena,
                                Dp__V1__Cluster **ret_cluster, struct dp_error *err)
{
    Dp__V1__GetClusterRequest request = DP__V1__GET_CLUSTER_REQUEST__INIT;
    request.name = (char *)name;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_GET_CLUSTER, &request.base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_cluster = (Dp__V1__Cluster *)answer;
    }
    return status;
}

dp_status dp_client_list_clusters(struct dp_client *client, struct dp_arena *arena,
                                  Dp__V1__ListClustersResponse **ret_response, struct dp_error *err)
{
    Dp__V1__ListClustersRequest request = DP__V1__LIST_CLUSTERS_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_LIST_CLUSTERS, &request.base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_response = (Dp__V1__ListClustersResponse *)answer;
    }
    return status;
}

dp_status dp_client_delete_cluster(struct dp_client *client, const char *name,
                                   struct dp_arena *arena, Dp__V1__Cluster **ret_cluster,
                                   struct dp_error *err)
{
    Dp__V1__DeleteClusterRequest request = DP__V1__DELETE_CLUSTER_REQUEST__INIT;
    request.name = (char *)name;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_DELETE_CLUSTER, &request.base, false, arena, &answer, err);
    if (status == DP_OK) {
        *ret_cluster = (Dp__V1__Cluster *)answer;
    }
    return status;
}
