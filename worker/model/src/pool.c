#include "pool.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"

#define SMALLEST 64

// Size classes in sixty-fourths of a power of two, and never less than 64 bytes apart: at most a
// sixty-fourth is wasted.
static int32_t class_of(size_t bytes, size_t *ret_class_bytes)
{
    size_t size = bytes < SMALLEST ? SMALLEST : bytes;
    int32_t log2 = 63 - __builtin_clzll(size);
    size_t step = log2 < 12 ? SMALLEST : (size_t)1 << (log2 - 6);
    size_t steps = (size + step - 1) / step; // up to 128
    *ret_class_bytes = steps * step;
    int32_t index = log2 < 12 ? (int32_t)steps : (log2 - 12) * 64 + (int32_t)steps;
    DP_CHECK(index < DP_POOL_CLASSES);
    return index;
}

void dp_pool_init(struct dp_pool *pool, struct dp_device *device, dp_memory_tag tag, bool poison)
{
    *pool = (struct dp_pool){.device = device, .tag = tag, .poison = poison};
}

void dp_pool_deinit(struct dp_pool *pool)
{
    for (int32_t i = 0; i < DP_POOL_CLASSES; i++) {
        struct dp_pool_class *class = &pool->classes[i];
        for (int32_t j = 0; j < class->count; j++) {
            pool->device->ops->free(pool->device, class->free_blocks[j]);
        }
        free(class->free_blocks);
    }
}

// Gives idle blocks back until `bytes` more fit under the most that has been in use.
static void make_room(struct dp_pool *pool, size_t bytes)
{
    for (int32_t i = DP_POOL_CLASSES - 1; i >= 0 && pool->idle > 0; i--) {
        struct dp_pool_class *class = &pool->classes[i];
        while (class->count > 0 && pool->used + pool->idle + bytes > pool->most_used) {
            pool->device->ops->free(pool->device, class->free_blocks[--class->count]);
            pool->idle -= class->bytes;
        }
    }
}

dp_status dp_pool_get(struct dp_pool *pool, size_t bytes, void **ret_memory, struct dp_error *err)
{
    size_t class_bytes;
    struct dp_pool_class *class = &pool->classes[class_of(bytes, &class_bytes)];
    if (class->count > 0) {
        *ret_memory = class->free_blocks[--class->count];
        pool->idle -= class_bytes;
    } else {
        make_room(pool, class_bytes);
        dp_status status =
            pool->device->ops->alloc(pool->device, pool->tag, class_bytes, ret_memory, err);
        if (status != DP_OK) {
            return status;
        }
    }
    pool->used += class_bytes;
    pool->most_used = pool->used > pool->most_used ? pool->used : pool->most_used;
    pool->high = pool->used > pool->high ? pool->used : pool->high;
    if (pool->poison) {
        pool->device->ops->fill(pool->device->stream, *ret_memory, 0xff, class_bytes);
    }
    return DP_OK;
}

void dp_pool_put(struct dp_pool *pool, void *memory, size_t bytes)
{
    size_t class_bytes;
    struct dp_pool_class *class = &pool->classes[class_of(bytes, &class_bytes)];
    if (class->count == class->capacity) {
        class->capacity = class->capacity == 0 ? 8 : 2 * class->capacity;
        class->free_blocks =
            dp_realloc(class->free_blocks, (size_t) class->capacity, sizeof(void *));
    }
    class->bytes = class_bytes;
    class->free_blocks[class->count++] = memory;
    pool->used -= class_bytes;
    pool->idle += class_bytes;
}
