// Answers go to a call by its id, whichever door it came through.
#include "daemon.h"

void call_reply(struct daemon *daemon, uint64_t call, const ProtobufCMessage *message)
{
    if (dp_rest_is_call(call)) {
        dp_rest_call_reply(daemon->rest, call, message);
    } else {
        dp_rpc_call_reply(daemon->server, call, message);
    }
}

void call_reply_json(struct daemon *daemon, uint64_t call, struct dp_buf *json)
{
    size_t length = json->length;
    dp_rest_call_reply_json(daemon->rest, call, dp_buf_take(json), length);
}

dp_status call_send(struct daemon *daemon, uint64_t call, const ProtobufCMessage *message)
{
    return dp_rest_is_call(call) ? dp_rest_call_send(daemon->rest, call, message)
                                 : dp_rpc_call_send(daemon->server, call, message);
}

size_t call_queued(const struct daemon *daemon, uint64_t call)
{
    return dp_rest_is_call(call) ? dp_rest_call_queued(daemon->rest, call)
                                 : dp_rpc_call_queued(daemon->server, call);
}

void call_wake(struct daemon *daemon, uint64_t call)
{
    if (dp_rest_is_call(call)) {
        dp_rest_call_wake(daemon->rest, call);
    } else {
        dp_rpc_call_wake(daemon->server, call);
    }
}

void call_finish(struct daemon *daemon, uint64_t call)
{
    if (dp_rest_is_call(call)) {
        dp_rest_call_finish(daemon->rest, call);
    } else {
        dp_rpc_call_finish(daemon->server, call);
    }
}

void call_fail(struct daemon *daemon, uint64_t call, dp_status status, const char *message)
{
    if (dp_rest_is_call(call)) {
        dp_rest_call_fail(daemon->rest, call, status, message);
    } else {
        dp_rpc_call_fail(daemon->server, call, status, message);
    }
}

void call_fail_error(struct daemon *daemon, uint64_t call, const struct dp_error *err)
{
    call_fail(daemon, call, err->status, err->message);
}
