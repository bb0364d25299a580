// What every server stream is; types keep their messages apart.
#pragma once

#include "client.h"

struct stream {
    struct dp_rpc_reader *reader;
    dp_method_id method;
};

dp_status dp_client_stream_open(struct dp_client *client, dp_method_id method,
                                const ProtobufCMessage *request, struct stream *stream,
                                struct dp_error *err);
// As dp_client_watch_next.
dp_status dp_client_stream_next(struct stream *stream, unsigned timeout_ms, struct dp_arena *arena,
                                ProtobufCMessage **ret_message, bool *ret_end,
                                struct dp_error *err);
