// Memory for one request: allocate piecemeal, free at once. Not thread-safe.
#pragma once

#include <stddef.h>

struct dp_arena_block;

struct dp_arena {
    struct dp_arena_block *blocks;
    size_t used_bytes; // handed out so far
    size_t max_bytes;  // 0 = no limit
};

// A zero-initialised arena is empty and without limit.
void dp_arena_init(struct dp_arena *arena, size_t max_bytes);
void dp_arena_deinit(struct dp_arena *arena);
// Zeroed, 16-byte aligned, valid until deinit. NULL when max_bytes would be passed: the limit is
// how untrusted input is bounded.
void *dp_arena_alloc(struct dp_arena *arena, size_t bytes);
// Copies; NULL under the same condition.
char *dp_arena_strdup(struct dp_arena *arena, const char *text);
char *dp_arena_printf(struct dp_arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
