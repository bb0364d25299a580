#include "dp/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

struct dp_arena_block {
    struct dp_arena_block *next;
    size_t capacity;
    size_t used;
    _Alignas(16) unsigned char bytes[];
};

#define BLOCK_BYTES 4096u

void dp_arena_init(struct dp_arena *arena, size_t max_bytes)
{
    *arena = (struct dp_arena){.max_bytes = max_bytes};
}

void dp_arena_deinit(struct dp_arena *arena)
{
    struct dp_arena_block *block = arena->blocks;
    while (block != NULL) {
        struct dp_arena_block *next = block->next;
        free(block);
        block = next;
    }
    arena->blocks = NULL;
    arena->used_bytes = 0;
}

void *dp_arena_alloc(struct dp_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) {
        return NULL;
    }
    size_t rounded = (bytes + 15) & ~(size_t)15;
    if (arena->max_bytes != 0 && rounded > arena->max_bytes - arena->used_bytes) {
        return NULL;
    }
    struct dp_arena_block *block = arena->blocks;
    if (block == NULL || block->capacity - block->used < rounded) {
        size_t capacity = rounded > BLOCK_BYTES ? rounded : BLOCK_BYTES;
        block = dp_alloc(1, sizeof *block + capacity);
        block->capacity = capacity;
        block->next = arena->blocks;
        arena->blocks = block;
    }
    void *memory = block->bytes + block->used;
    block->used += rounded;
    arena->used_bytes += rounded;
    return memory;
}

char *dp_arena_strdup(struct dp_arena *arena, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = dp_arena_alloc(arena, size);
    return copy == NULL ? NULL : memcpy(copy, text, size);
}

char *dp_arena_printf(struct dp_arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = length < 0 ? NULL : dp_arena_alloc(arena, (size_t)length + 1);
    if (text != NULL) {
        vsnprintf(text, (size_t)length + 1, format, again);
    }
    va_end(again);
    return text;
}
