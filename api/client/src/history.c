// The methods of the History service.
#include <stdlib.h>

#include "dp/alloc.h"
#include "streams.h"

struct dp_client_events {
    struct stream stream;
};

struct dp_client_backup {
    struct stream stream;
};

dp_status dp_client_list_audit(struct dp_client *client, const Dp__V1__ListAuditRequest *request,
                               struct dp_arena *arena, Dp__V1__ListAuditResponse **ret_response,
                               struct dp_error *err)
{
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_LIST_AUDIT, &request->base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_response = (Dp__V1__ListAuditResponse *)answer;
    }
    return status;
}

dp_status dp_client_list_history(struct dp_client *client,
                                 const Dp__V1__ListHistoryRequest *request, struct dp_arena *arena,
                                 Dp__V1__ListHistoryResponse **ret_response, struct dp_error *err)
{
    ProtobufCMessage *answer = NULL;
    dp_status status =
        dp_client_call(client, DP_METHOD_LIST_HISTORY, &request->base, true, arena, &answer, err);
    if (status == DP_OK) {
        *ret_response = (Dp__V1__ListHistoryResponse *)answer;
    }
    return status;
}

dp_status dp_client_watch_events(struct dp_client *client,
                                 const Dp__V1__WatchEventsRequest *request,
                                 struct dp_client_events **ret_events, struct dp_error *err)
{
    struct dp_client_events *events = dp_new(struct dp_client_events);
    dp_status status =
        dp_client_stream_open(client, DP_METHOD_WATCH_EVENTS, &request->base, &events->stream, err);
    if (status != DP_OK) {
        free(events);
        return status;
    }
    *ret_events = events;
    return DP_OK;
}

dp_status dp_client_events_next(struct dp_client_events *events, unsigned timeout_ms,
                                struct dp_arena *arena, Dp__V1__EventBatch **ret_batch,
                                bool *ret_end, struct dp_error *err)
{
    ProtobufCMessage *message = NULL;
    dp_status status =
        dp_client_stream_next(&events->stream, timeout_ms, arena, &message, ret_end, err);
    if (status == DP_OK) {
        *ret_batch = (Dp__V1__EventBatch *)message;
    }
    return status;
}

void dp_client_events_close(struct dp_client_events *events)
{
    if (events != NULL) {
        dp_rpc_reader_close(events->stream.reader);
        free(events);
    }
}

dp_status dp_client_backup(struct dp_client *client, struct dp_client_backup **ret_backup,
                           struct dp_error *err)
{
    struct dp_client_backup *backup = dp_new(struct dp_client_backup);
    Dp__V1__BackupRequest request = DP__V1__BACKUP_REQUEST__INIT;
    dp_status status =
        dp_client_stream_open(client, DP_METHOD_BACKUP, &request.base, &backup->stream, err);
    if (status != DP_OK) {
        free(backup);
        return status;
    }
    *ret_backup = backup;
    return DP_OK;
}

dp_status dp_client_backup_next(struct dp_client_backup *backup, unsigned timeout_ms,
                                struct dp_arena *arena, Dp__V1__BackupChunk **ret_chunk,
                                bool *ret_end, struct dp_error *err)
{
    ProtobufCMessage *message = NULL;
    dp_status status =
        dp_client_stream_next(&backup->stream, timeout_ms, arena, &message, ret_end, err);
    if (status == DP_OK) {
        *ret_chunk = (Dp__V1__BackupChunk *)message;
    }
    return status;
}

void dp_client_backup_close(struct dp_client_backup *backup)
{
    if (backup != NULL) {
        dp_rpc_reader_close(backup->stream.reader);
        free(backup);
    }
}
