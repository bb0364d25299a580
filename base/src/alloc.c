#include "dp/alloc.h"

#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/check.h"

// The heap grows by so much more than is asked for.
#define TOP_PAD (64 << 20)

static void *or_abort(void *memory)
{
    if (memory == NULL) {
        fputs("out of host memory\n", stderr);
        abort();
    }
    return memory;
}

static size_t checked_product(size_t count, size_t size)
{
    size_t bytes;
    DP_CHECK(!__builtin_mul_overflow(count, size, &bytes));
    return bytes == 0 ? 1 : bytes;
}

void *dp_alloc(size_t count, size_t size)
{
    return or_abort(calloc(1, checked_product(count, size)));
}

void *dp_realloc(void *memory, size_t count, size_t size)
{
    return or_abort(realloc(memory, checked_product(count, size)));
}

void *dp_alloc_aligned(size_t count, size_t size)
{
    size_t bytes = checked_product(count, size);
    DP_CHECK(bytes <= SIZE_MAX - 63);
    bytes = (bytes + 63) & ~(size_t)63;
    void *memory = or_abort(aligned_alloc(64, bytes));
    memset(memory, 0, bytes);
    return memory;
}

char *dp_strdup(const char *text)
{
    return or_abort(strdup(text));
}

char *dp_strndup(const char *text, size_t length)
{
    return or_abort(strndup(text, length));
}

void *dp_memdup(const void *bytes, size_t length)
{
    void *copy = dp_alloc(length, 1);
    if (length > 0) {
        memcpy(copy, bytes, length);
    }
    return copy;
}

char *dp_asprintf(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&text, format, args);
    va_end(args);
    return or_abort(length < 0 ? NULL : text);
}

void dp_alloc_keep_freed(void)
{
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1); // never
    mallopt(M_TOP_PAD, TOP_PAD);
}

bool dp_copy_text(char *buffer, size_t size, const char *text)
{
    size_t length = strlen(text);
    bool fits = length < size;
    size_t copied = fits ? length : size - 1;
    memcpy(buffer, text, copied);
    buffer[copied] = '\0';
    return fits;
}
