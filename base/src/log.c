#include "dp/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

static const char *const level_names[] = {"debug", "info", "warn", "error"};
static const char *log_program = "dp";
static atomic_int log_threshold = DP_LOG_WARN;

void dp_log_init(const char *program, dp_log_level threshold)
{
    log_program = program;
    const char *wanted = getenv("DP_LOG");
    for (int level = 0; wanted != NULL && level <= DP_LOG_ERROR; level++) {
        if (strcmp(wanted, level_names[level]) == 0) {
            threshold = (dp_log_level)level;
        }
    }
    atomic_store(&log_threshold, (int)threshold);
}

void dp_log(dp_log_level level, const char *event, const char *format, ...)
{
    if ((int)level < atomic_load_explicit(&log_threshold, memory_order_relaxed)) {
        return;
    }
    char time[32];
    DP_CLEANUP(dp_buf_deinit) struct dp_buf line = {0};
    dp_buf_printf(&line, "%s level=%s program=%s time=%s ", event, level_names[level], log_program,
                  dp_clock_format_utc(time, dp_clock_realtime_ns()));
    va_list args;
    va_start(args, format);
    dp_buf_vprintf(&line, format, args);
    va_end(args);
    // One line stays one line, whatever a message holds.
    for (size_t i = 0; i < line.length; i++) {
        if (line.bytes[i] == '\n') {
            line.bytes[i] = ' ';
        }
    }
    dp_buf_puts(&line, "\n");
    fwrite(line.bytes, 1, line.length, stderr);
}

const char *dp_log_quote(char *buffer, unsigned long size, const char *value)
{
    if (value[0] != '\0' && strpbrk(value, " \"=\n\t\r\\") == NULL) {
        snprintf(buffer, size, "%s", value);
        return buffer;
    }
    size_t at = 0;
    buffer[at++] = '"';
    for (; *value != '\0' && at + 4 < size; value++) {
        if (*value == '"' || *value == '\\') {
            buffer[at++] = '\\';
        }
        buffer[at++] = *value == '\n' || *value == '\r' ? ' ' : *value;
    }
    buffer[at++] = '"';
    buffer[at] = '\0';
    return buffer;
}
