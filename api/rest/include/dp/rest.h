// The HTTP door: every method of the table that has a verb and a path, in JSON, on libmicrohttpd
// (its one owner). The same handlers serve it as serve gRPC: they are given a call's id and the
// request's bytes, and answer by the id, now or later.
//
// Requests. The fields of the request message come from the path ("/v1/jobs/{id}"), from the query
// ("?limit=5&active=true", a repeated field several times) and from the body: a JSON object, or,
// as application/toml, the text of the message's `job_toml`. A field may be given once. Answers are
// JSON (dp_message_to_json); those of streams are one JSON object a line, as they come
// (application/x-ndjson). Errors are {"code", "status", "message"}, `code` being the HTTP status of
// the table in dp/status.h; a stream that fails after it began ends with {"error": {...}} and
// without the last chunk. GET /openapi.json describes all of this.
//
// Who is served. Loopback only, and only requests whose Host (and Origin, when there is one) is a
// name of this machine: a page in a browser that points a name of its own here gets nothing.
//
// Threads. None of its own: the owner waits for the descriptor and the timeout, calls the pump, and
// every callback runs in there; all functions are called from the owner's thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/method.h"

// Ids of calls have this bit, which those of dp/rpc.h do not get to.
#define DP_REST_CALL (UINT64_C(1) << 52)

static inline bool dp_rest_is_call(uint64_t call)
{
    return (call & DP_REST_CALL) != 0;
}

struct dp_rest_server;

// As dp_rpc_handler. Methods that clients stream to cannot be served.
struct dp_rest_handler {
    dp_method_id method;
    // Bytes are borrowed for the duration of the callback.
    void (*on_message)(void *context, uint64_t call, const void *bytes, size_t length);
    void (*on_writable)(void *context, uint64_t call); // NULL = not needed
    // Once for each call that reached on_message. `cancelled`: the client closed its end, the
    // method's deadline passed, the server stops. NULL = not needed.
    void (*on_closed)(void *context, uint64_t call, bool cancelled);
};

// A document that is no method: GET `path`.
struct dp_rest_page {
    const char *path, *content_type, *summary;
    void (*write)(void *context, struct dp_buf *out);
};

struct dp_rest_server_options {
    const char *listen; // "127.0.0.1:port", "[::1]:port", "localhost:port"; port 0 = a free one
    const struct dp_rest_handler *handlers; // borrowed until free
    size_t handlers_count;
    const struct dp_rest_page *pages; // borrowed until free
    size_t pages_count;
    void *context; // given to every handler and page
    // For a request's line and headers, for its body, and for a client to take an answer.
    // 0 = 10, 30 and 60 s.
    unsigned headers_ms, body_ms, answer_ms;
    size_t connections_max, calls_max; // 0 = DP_REST_CONNECTIONS_MAX, DP_REST_CALLS_MAX
};

// DP_DENIED for an address that is not loopback, DP_INVALID for what is no address, DP_CONFLICT
// when another process has the port.
dp_status dp_rest_server_new(const struct dp_rest_server_options *options,
                             struct dp_rest_server **ret_server, struct dp_error *err);
// "127.0.0.1:8080"; valid until free.
const char *dp_rest_server_address(const struct dp_rest_server *server);
// Readable when the pump has something to do. Owned by the server.
int dp_rest_server_fd(const struct dp_rest_server *server);
// How long until the pump has something to do all the same; -1 = it has not. Ask after each pump
// and after each answer.
int dp_rest_server_timeout_ms(const struct dp_rest_server *server);
// Never blocks. Not to be called from a callback.
void dp_rest_server_pump(struct dp_rest_server *server);
// Answers open calls with 503, gives clients grace_ms to take that, then closes. on_closed runs for
// each; afterwards no callback does.
void dp_rest_server_stop(struct dp_rest_server *server, unsigned grace_ms);
// Stops without grace if still running. Accepts NULL.
void dp_rest_server_free(struct dp_rest_server *server);

// Answers, as those of dp/rpc.h. What is said to a call that is over is ignored.
void dp_rest_call_reply(struct dp_rest_server *server, uint64_t call,
                        const ProtobufCMessage *message);
// The answer's JSON, made elsewhere because it is long. `json` is taken over (malloc).
void dp_rest_call_reply_json(struct dp_rest_server *server, uint64_t call, char *json,
                             size_t length);
dp_status dp_rest_call_send(struct dp_rest_server *server, uint64_t call,
                            const ProtobufCMessage *message);
void dp_rest_call_wake(struct dp_rest_server *server, uint64_t call);
size_t dp_rest_call_queued(const struct dp_rest_server *server, uint64_t call);
void dp_rest_call_finish(struct dp_rest_server *server, uint64_t call);
void dp_rest_call_fail(struct dp_rest_server *server, uint64_t call, dp_status status,
                       const char *message);

// Requests answered so far, by what they asked for and with which code.
struct dp_rest_count {
    const char *verb, *path; // as in the table; "other" for what matched nothing
    int code;                // HTTP
    uint64_t count;
};
// The index-th; false when there are no more.
bool dp_rest_server_count(const struct dp_rest_server *server, size_t index,
                          struct dp_rest_count *ret_count);
// Connections and calls that are open now.
size_t dp_rest_server_connections(const struct dp_rest_server *server);
size_t dp_rest_server_calls(const struct dp_rest_server *server);

// OpenAPI 3.1 of the table's methods that have a verb and a path and are in `handlers`, and of the
// pages. The caller owns the result.
json_t *dp_rest_openapi(const struct dp_rest_handler *handlers, size_t handlers_count,
                        const struct dp_rest_page *pages, size_t pages_count);
