// A growable byte string. bytes is never NULL after the first append and always has a 0 after
// bytes[length], so it can be printed. Zero-initialised is empty. Not thread-safe.
#pragma once

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/error.h"

struct dp_buf {
    char *bytes;
    size_t length;
    size_t capacity;
};

void dp_buf_deinit(struct dp_buf *buf);
void dp_buf_clear(struct dp_buf *buf);
void dp_buf_append(struct dp_buf *buf, const void *bytes, size_t length);
void dp_buf_puts(struct dp_buf *buf, const char *text);
void dp_buf_printf(struct dp_buf *buf, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void dp_buf_vprintf(struct dp_buf *buf, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
// Grows the length by `length` and returns where the new (unset) bytes start.
void *dp_buf_extend(struct dp_buf *buf, size_t length);
// Removes the first `length` bytes.
void dp_buf_consume(struct dp_buf *buf, size_t length);
// Gives the bytes (caller owns, free()) and leaves the buffer empty. Never NULL.
char *dp_buf_take(struct dp_buf *buf);

// Whole files. Reading refuses more than max_bytes with DP_TOO_LARGE before it allocates; "-" reads
// standard input.
dp_status dp_read_file(const char *path, size_t max_bytes, struct dp_buf *ret_buf,
                       struct dp_error *err);
// A regular file or a new one is written beside the target, synced and renamed, so that a reader
// never sees half of it; its mode stays. Symbolic links are followed. A device or a FIFO is written
// to, never replaced.
dp_status dp_write_file(const char *path, const void *bytes, size_t length, struct dp_error *err);
// Raises the soft limit of open files to the hard one: a daemon that runs out of descriptors while
// it accepts goes deaf. Best effort.
void dp_raise_file_limit(void);
// mkdir -p with mode 0700 for what it makes.
dp_status dp_make_directories(const char *path, struct dp_error *err);
