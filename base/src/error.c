#include "dp/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *dp_status_text(dp_status status)
{
    switch (status) {
#define X(name, text, grpc, http, exit)                                                            \
    case DP_##name:                                                                                \
        return text;
        DP_STATUS_LIST(X)
#undef X
    case DP_STATUS_COUNT:
        break;
    }
    return "unknown status";
}

const char *dp_status_name(dp_status status)
{
    switch (status) {
#define X(name, text, grpc, http, exit)                                                            \
    case DP_##name:                                                                                \
        return #name;
        DP_STATUS_LIST(X)
#undef X
    case DP_STATUS_COUNT:
        break;
    }
    return "UNKNOWN";
}

static const struct {
    int grpc, http, exit;
} codes[DP_STATUS_COUNT] = {
#define X(name, text, grpc, http, exit) [DP_##name] = {grpc, http, exit},
    DP_STATUS_LIST(X)
#undef X
};

int dp_status_grpc_code(dp_status status)
{
    return status < DP_STATUS_COUNT ? codes[status].grpc : 2;
}

int dp_status_http_code(dp_status status)
{
    return status < DP_STATUS_COUNT ? codes[status].http : 500;
}

int dp_status_exit_code(dp_status status)
{
    return status < DP_STATUS_COUNT ? codes[status].exit : 1;
}

dp_status dp_status_from_grpc(int grpc_code)
{
    switch (grpc_code) {
    case 0:
        return DP_OK;
    case 1: // by the peer, when it shuts down; an interrupt of our own never comes this way
        return DP_UNAVAILABLE;
    case 3:
        return DP_INVALID;
    case 4:
        return DP_TIMEOUT;
    case 5:
        return DP_NOT_FOUND;
    case 6:
    case 9:
    case 10:
        return DP_CONFLICT;
    case 7:
    case 16:
        return DP_DENIED;
    case 8:
        return DP_UNSCHEDULABLE;
    case 11:
        return DP_TOO_LARGE;
    case 12:
        return DP_UNSUPPORTED;
    case 14:
        return DP_UNAVAILABLE;
    default:
        return DP_INTERNAL;
    }
}

static void set_message(struct dp_error *err, const char *format, va_list args)
{
    // A cut message still ends with "..." so that nobody takes it for whole.
    int length = vsnprintf(err->message, sizeof err->message, format, args);
    if (length >= (int)sizeof err->message) {
        memcpy(err->message + sizeof err->message - 4, "...", 4);
    }
}

dp_status dp_fail(struct dp_error *err, dp_status status, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        err->status = status;
        set_message(err, format, args);
        va_end(args);
    }
    return status;
}

dp_status dp_fail_in(struct dp_error *err, const char *format, ...)
{
    if (err == NULL) {
        return DP_INTERNAL;
    }
    char cause[DP_ERROR_MESSAGE_MAX];
    memcpy(cause, err->message, sizeof cause);
    va_list args;
    va_start(args, format);
    int used = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    size_t start = used < 0 ? 0 : (size_t)used;
    if (start < sizeof err->message) {
        snprintf(err->message + start, sizeof err->message - start, ": %s", cause);
    }
    return err->status;
}

static dp_status status_of_errno(int errnum)
{
    switch (errnum) {
    case ENOENT:
        return DP_NOT_FOUND;
    case EACCES:
    case EPERM:
        return DP_DENIED;
    case EADDRINUSE:
    case EEXIST:
        return DP_CONFLICT;
    case ECONNREFUSED:
    case ECONNRESET:
    case ENETUNREACH:
    case EHOSTUNREACH:
        return DP_UNAVAILABLE;
    case ETIMEDOUT:
        return DP_TIMEOUT;
    default:
        return DP_IO;
    }
}

dp_status dp_fail_errno(struct dp_error *err, int errnum, const char *format, ...)
{
    dp_status status = status_of_errno(errnum);
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        set_message(err, format, args);
        va_end(args);
        err->status = status;
        size_t used = strlen(err->message);
        snprintf(err->message + used, sizeof err->message - used, ": %s", strerror(errnum));
    }
    return status;
}
