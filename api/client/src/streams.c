#include <stdlib.h>

#include "client.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/wire.h"
#include "streams.h"

struct dp_client_watch {
    struct stream stream;
};

struct dp_client_logs {
    struct stream stream;
};

struct dp_client_calibration {
    struct stream stream;
};

dp_status dp_client_stream_open(struct dp_client *client, dp_method_id method,
                                const ProtobufCMessage *request, struct stream *stream,
                                struct dp_error *err)
{
    DP_AUTO_FREE void *copy = NULL;
    stream->method = method;
    return dp_rpc_reader_open(client->rpc, method, dp_client_with_user(client, request, &copy),
                              NULL, &stream->reader, err);
}

dp_status dp_client_stream_next(struct stream *stream, unsigned timeout_ms, struct dp_arena *arena,
                                ProtobufCMessage **ret_message, bool *ret_end, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf bytes = {0};
    dp_rpc_read read = DP_RPC_IDLE;
    dp_status status = dp_rpc_reader_next(stream->reader, timeout_ms, &read, &bytes, err);
    if (status != DP_OK) {
        return status;
    }
    *ret_message = NULL;
    *ret_end = read == DP_RPC_END;
    if (read != DP_RPC_MESSAGE) {
        return DP_OK;
    }
    return dp_wire_unpack(dp_methods[stream->method].response,
                          bytes.bytes == NULL ? "" : bytes.bytes, bytes.length, arena, ret_message,
                          err);
}

dp_status dp_client_watch_job(struct dp_client *client, const Dp__V1__WatchJobRequest *request,
                              struct dp_client_watch **ret_watch, struct dp_error *err)
{
    struct dp_client_watch *watch = dp_new(struct dp_client_watch);
    dp_status status =
        dp_client_stream_open(client, DP_METHOD_WATCH_JOB, &request->base, &watch->stream, err);
    if (status != DP_OK) {
        free(watch);
        return status;
    }
    *ret_watch = watch;
    return DP_OK;
}

dp_status dp_client_watch_next(struct dp_client_watch *watch, unsigned timeout_ms,
                               struct dp_arena *arena, Dp__V1__JobEvent **ret_event, bool *ret_end,
                               struct dp_error *err)
{
    ProtobufCMessage *message = NULL;
    dp_status status =
        dp_client_stream_next(&watch->stream, timeout_ms, arena, &message, ret_end, err);
    if (status == DP_OK) {
        *ret_event = (Dp__V1__JobEvent *)message;
    }
    return status;
}

void dp_client_watch_close(struct dp_client_watch *watch)
{
    if (watch != NULL) {
        dp_rpc_reader_close(watch->stream.reader);
        free(watch);
    }
}

dp_status dp_client_read_logs(struct dp_client *client, const Dp__V1__ReadLogsRequest *request,
                              struct dp_client_logs **ret_logs, struct dp_error *err)
{
    struct dp_client_logs *logs = dp_new(struct dp_client_logs);
    dp_status status =
        dp_client_stream_open(client, DP_METHOD_READ_LOGS, &request->base, &logs->stream, err);
    if (status != DP_OK) {
        free(logs);
        return status;
    }
    *ret_logs = logs;
    return DP_OK;
}

dp_status dp_client_logs_next(struct dp_client_logs *logs, unsigned timeout_ms,
                              struct dp_arena *arena, Dp__V1__LogText **ret_text, bool *ret_end,
                              struct dp_error *err)
{
    ProtobufCMessage *message = NULL;
    dp_status status =
        dp_client_stream_next(&logs->stream, timeout_ms, arena, &message, ret_end, err);
    if (status == DP_OK) {
        *ret_text = (Dp__V1__LogText *)message;
    }
    return status;
}

void dp_client_logs_close(struct dp_client_logs *logs)
{
    if (logs != NULL) {
        dp_rpc_reader_close(logs->stream.reader);
        free(logs);
    }
}

dp_status dp_client_calibrate(struct dp_client *client, const Dp__V1__CalibrateRequest *request,
                              struct dp_client_calibration **ret_calibration, struct dp_error *err)
{
    struct dp_client_calibration *calibration = dp_new(struct dp_client_calibration);
    dp_status status = dp_client_stream_open(client, DP_METHOD_CALIBRATE, &request->base,
                                             &calibration->stream, err);
    if (status != DP_OK) {
        free(calibration);
        return status;
    }
    *ret_calibration = calibration;
    return DP_OK;
}

dp_status dp_client_calibrate_next(struct dp_client_calibration *calibration, unsigned timeout_ms,
                                   struct dp_arena *arena, Dp__V1__CalibrateEvent **ret_event,
                                   bool *ret_end, struct dp_error *err)
{
    ProtobufCMessage *message = NULL;
    dp_status status =
        dp_client_stream_next(&calibration->stream, timeout_ms, arena, &message, ret_end, err);
    if (status == DP_OK) {
        *ret_event = (Dp__V1__CalibrateEvent *)message;
    }
    return status;
}

void dp_client_calibrate_close(struct dp_client_calibration *calibration)
{
    if (calibration != NULL) {
        dp_rpc_reader_close(calibration->stream.reader);
        free(calibration);
    }
}
