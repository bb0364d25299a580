// One list of everything that can go wrong: enum, text, and the code each door answers with.
#pragma once

// X(name, text, gRPC status code, HTTP status, process exit code)
#define DP_STATUS_LIST(X)                                                                          \
    X(OK, "ok", 0, 200, 0)                                                                         \
    X(INTERNAL, "internal error", 13, 500, 1)                                                      \
    X(IO, "input/output error", 13, 500, 1)                                                        \
    X(USAGE, "wrong usage", 3, 400, 2)                                                             \
    X(INVALID, "invalid input", 3, 400, 3)                                                         \
    X(UNSUPPORTED, "not supported", 12, 501, 3)                                                    \
    X(NOT_FOUND, "not found", 5, 404, 4)                                                           \
    X(DENIED, "not permitted", 7, 403, 5)                                                          \
    X(CONFLICT, "conflict", 9, 409, 6)                                                             \
    X(UNSCHEDULABLE, "does not fit", 8, 422, 7)                                                    \
    X(UNAVAILABLE, "unreachable", 14, 503, 8)                                                      \
    X(TIMEOUT, "timed out", 4, 504, 8)                                                             \
    X(TOO_LARGE, "over a limit", 11, 413, 3)                                                       \
    X(JOB_FAILED, "job failed", 9, 409, 9)                                                         \
    X(JOB_CANCELLED, "job cancelled", 1, 409, 10)                                                  \
    X(PLAN_DIFFERS, "plan differs from what runs", 9, 409, 20)                                     \
    X(INTERRUPTED, "interrupted", 1, 499, 130)                                                     \
    X(BUSY, "busy", 8, 429, 8)

typedef enum dp_status {
#define X(name, text, grpc, http, exit) DP_##name,
    DP_STATUS_LIST(X)
#undef X
        DP_STATUS_COUNT
} dp_status;

// Short English text, static.
const char *dp_status_text(dp_status status);
// Upper-case name without prefix ("NOT_FOUND"), static.
const char *dp_status_name(dp_status status);
int dp_status_grpc_code(dp_status status);
int dp_status_http_code(dp_status status);
int dp_status_exit_code(dp_status status);
// The status that best matches a gRPC status code that came from a peer.
dp_status dp_status_from_grpc(int grpc_code);
