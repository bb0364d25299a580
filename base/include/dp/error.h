// A failure as a value: what kind, and one message that says what, where, why and what to do.
//
// A function that can fail returns dp_status and takes `struct dp_error *err` last; err may be NULL
// where the caller needs the status alone. The place that knows the cause calls dp_fail; callers
// that know what was being done add it with dp_fail_in; the program that handles it logs it once.
#pragma once

#include <stdarg.h>

#include "dp/limits.h"
#include "dp/status.h"

struct dp_error {
    dp_status status;
    char message[DP_ERROR_MESSAGE_MAX];
};

// Records the failure in err (when not NULL) and returns `status`. An over-long message is cut.
dp_status dp_fail(struct dp_error *err, dp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Puts "<what>: " before the message already in err and returns err's status (DP_INTERNAL if err
// is NULL).
dp_status dp_fail_in(struct dp_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// As dp_fail with DP_IO (or a closer status for ENOENT, EACCES, EADDRINUSE, EEXIST) and
// ": <strerror>" after the message.
dp_status dp_fail_errno(struct dp_error *err, int errnum, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
