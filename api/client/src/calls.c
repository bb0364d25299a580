// One function for each RPC: the request filled in, the answer as its type.
#include "client.h"

dp_status dp_client_submit_job(struct dp_client *client, const Dp__V1__SubmitJobRequest *request,
                               struct dp_arena *arena, Dp__V1__Job **ret_job, struct dp_error *err)
{
    ProtobufCMessage *answer = NULL;
    dp_status status = dp_client_call(client, DP_METHOD_SUBMIT_JOB, &request->base,
                                      request->request_id[0] != '\0', arena, &answer, err);
    if (status == DP_OK) {
        *ret_job = (Dp__V1__Job *)answer;
    }
    return status;
}

dp_status dp_client_get_job(struct dp_client *client, const char *id, struct dp_arena *arena,
                            Dp__V1__Job **ret_job, struct dp_error *err)
{
    Dp__V1__GetJobRequest request = DP__V1__GET_JOB_REQUEST__INIT;
    request.id = (char *)id;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_GET_JOB, &request.base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_job = (Dp__V1__Job *)answer;
    }
    return status;
}

dp_status dp_client_list_jobs(struct dp_client *client, const Dp__V1__ListJobsRequest *request,
                              struct dp_arena *arena, Dp__V1__ListJobsResponse **ret_response,
                              struct dp_error *err)
{
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_LIST_JOBS, &request->base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_response = (Dp__V1__ListJobsResponse *)answer;
    }
    return status;
}

dp_status dp_client_cancel_job(struct dp_client *client, const char *id, const char *reason,
                               struct dp_arena *arena, Dp__V1__Job **ret_job, struct dp_error *err)
{
    Dp__V1__CancelJobRequest request = DP__V1__CANCEL_JOB_REQUEST__INIT;
    request.id = (char *)id;
    request.reason = (char *)reason;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_CANCEL_JOB, &request.base, false, arena, &answer, err);
    if (status == DP_OK) {
        *ret_job = (Dp__V1__Job *)answer;
    }
    return status;
}

dp_status dp_client_update_job(struct dp_client *client, const Dp__V1__UpdateJobRequest *request,
                               struct dp_arena *arena, Dp__V1__Job **ret_job, struct dp_error *err)
{
    // With a request id it may be sent again: it is carried out once.
    bool again = request->request_id[0] != '\0';
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_UPDATE_JOB, &request->base, again, arena, &answer, err);
    if (status == DP_OK) {
        *ret_job = (Dp__V1__Job *)answer;
    }
    return status;
}

dp_status dp_client_checkpoint_job(struct dp_client *client, const char *id, struct dp_arena *arena,
                                   Dp__V1__CheckpointJobResponse **ret_response,
                                   struct dp_error *err)
{
    Dp__V1__CheckpointJobRequest request = DP__V1__CHECKPOINT_JOB_REQUEST__INIT;
    request.id = (char *)id;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_CHECKPOINT_JOB, &request.base, false, arena, &answer, err);
    if (status == DP_OK) {
        *ret_response = (Dp__V1__CheckpointJobResponse *)answer;
    }
    return status;
}

dp_status dp_client_list_decisions(struct dp_client *client, const char *id,
                                   struct dp_arena *arena,
                                   Dp__V1__ListDecisionsResponse **ret_response,
                                   struct dp_error *err)
{
    Dp__V1__ListDecisionsRequest request = DP__V1__LIST_DECISIONS_REQUEST__INIT;
    request.id = (char *)id;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_LIST_DECISIONS, &request.base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_response = (Dp__V1__ListDecisionsResponse *)answer;
    }
    return status;
}

dp_status dp_client_reassign_job(struct dp_client *client,
                                 const Dp__V1__ReassignJobRequest *request, struct dp_arena *arena,
                                 Dp__V1__Job **ret_job, struct dp_error *err)
{
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_REASSIGN_JOB, &request->base, false, arena, &answer, err);
    if (status == DP_OK) {
        *ret_job = (Dp__V1__Job *)answer;
    }
    return status;
}

dp_status dp_client_list_nodes(struct dp_client *client, struct dp_arena *arena,
                               Dp__V1__ListNodesResponse **ret_response, struct dp_error *err)
{
    Dp__V1__ListNodesRequest request = DP__V1__LIST_NODES_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_LIST_NODES, &request.base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_response = (Dp__V1__ListNodesResponse *)answer;
    }
    return status;
}

dp_status dp_client_list_profiles(struct dp_client *client, const char *node, uint32_t limit,
                                  struct dp_arena *arena,
                                  Dp__V1__ListProfilesResponse **ret_response, struct dp_error *err)
{
    Dp__V1__ListProfilesRequest request = DP__V1__LIST_PROFILES_REQUEST__INIT;
    request.node = (char *)node;
    request.limit = limit;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_LIST_PROFILES, &request.base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_response = (Dp__V1__ListProfilesResponse *)answer;
    }
    return status;
}

dp_status dp_client_get_report(struct dp_client *client, const char *id, struct dp_arena *arena,
                               Dp__V1__JobReport **ret_report, struct dp_error *err)
{
    Dp__V1__GetReportRequest request = DP__V1__GET_REPORT_REQUEST__INIT;
    request.id = (char *)id;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_GET_REPORT, &request.base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_report = (Dp__V1__JobReport *)answer;
    }
    return status;
}

dp_status dp_client_get_timeline(struct dp_client *client, const char *id, struct dp_arena *arena,
                                 Dp__V1__Timeline **ret_timeline, struct dp_error *err)
{
    Dp__V1__GetTimelineRequest request = DP__V1__GET_TIMELINE_REQUEST__INIT;
    request.id = (char *)id;
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_GET_TIMELINE, &request.base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_timeline = (Dp__V1__Timeline *)answer;
    }
    return status;
}

dp_status dp_client_list_events(struct dp_client *client, const Dp__V1__ListEventsRequest *request,
                                struct dp_arena *arena, Dp__V1__ListEventsResponse **ret_response,
                                struct dp_error *err)
{
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_LIST_EVENTS, &request->base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_response = (Dp__V1__ListEventsResponse *)answer;
    }
    return status;
}

dp_status dp_client_plan(struct dp_client *client, const Dp__V1__PlanRequest *request,
                         struct dp_arena *arena, Dp__V1__PlanResponse **ret_response,
                         struct dp_error *err)
{
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_PLAN, &request->base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_response = (Dp__V1__PlanResponse *)answer;
    }
    return status;
}
