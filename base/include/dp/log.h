// logfmt lines on stderr: time, level, a stable event name, then key=value pairs.
//
//   dp_log_info("job.running", "job=%s attempt=%d", id, attempt);
//
// Libraries log at debug only; programs log what they handle, once. Any thread.
#pragma once

typedef enum dp_log_level { DP_LOG_DEBUG, DP_LOG_INFO, DP_LOG_WARN, DP_LOG_ERROR } dp_log_level;

// The program's name, put into every line; static storage, borrowed.
void dp_log_init(const char *program, dp_log_level threshold);
// DP_LOG=debug|info|warn|error overrides the threshold given to dp_log_init.
void dp_log(dp_log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define dp_log_debug(...) dp_log(DP_LOG_DEBUG, __VA_ARGS__)
#define dp_log_info(...) dp_log(DP_LOG_INFO, __VA_ARGS__)
#define dp_log_warn(...) dp_log(DP_LOG_WARN, __VA_ARGS__)
#define dp_log_error(...) dp_log(DP_LOG_ERROR, __VA_ARGS__)

// Quotes a value for a logfmt line when it holds spaces, quotes or control characters. Writes at
// most size bytes with the terminator and returns buffer.
const char *dp_log_quote(char *buffer, unsigned long size, const char *value);
