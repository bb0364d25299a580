// Host memory. Running out of it aborts: sizes from outside meet limits.h before they get here.
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

// Zeroed memory for `count` items of `size` bytes; aborts on overflow or when none is left.
// The caller owns it and frees it with free(). Never NULL, even for zero bytes.
void *dp_alloc(size_t count, size_t size) __attribute__((returns_nonnull, warn_unused_result));
// As realloc for an array; new bytes are not zeroed.
void *dp_realloc(void *memory, size_t count, size_t size)
    __attribute__((returns_nonnull, warn_unused_result));
// 64-byte aligned, zeroed. Freed with free().
void *dp_alloc_aligned(size_t count, size_t size)
    __attribute__((returns_nonnull, warn_unused_result));
char *dp_strdup(const char *text) __attribute__((returns_nonnull, warn_unused_result));
char *dp_strndup(const char *text, size_t length)
    __attribute__((returns_nonnull, warn_unused_result));
void *dp_memdup(const void *bytes, size_t length)
    __attribute__((returns_nonnull, warn_unused_result));
char *dp_asprintf(const char *format, ...)
    __attribute__((format(printf, 1, 2), returns_nonnull, warn_unused_result));

#define dp_new(type) ((type *)dp_alloc(1, sizeof(type)))
#define dp_new_array(type, count) ((type *)dp_alloc((count), sizeof(type)))

// The process keeps what it frees, and takes large blocks from that: for programs that free and
// take the same large blocks over and over, which otherwise are unmapped, mapped and zeroed each
// time. At the start of a program, whose main thread is the one that does so.
void dp_alloc_keep_freed(void);

// Copies `text` into the fixed array `buffer`, always terminated; false if it was cut.
bool dp_copy_text(char *buffer, size_t size, const char *text);
#define DP_COPY_TEXT(array, text) dp_copy_text((array), sizeof(array), (text))
