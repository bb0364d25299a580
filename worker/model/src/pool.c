#include "pool.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"

#define SMALLEST 64

// Size classes in eighths of a power of two: at most an eighth is wasted, and row counts that
// differ a little from one micro-batch to the next share a class.
static int32_t class_of(size_t bytes, size_t *ret_class_bytes)
{
    size_t size = bytes < SMALLEST ? SMALLEST : bytes;
    int32_t log2 = 63 - __builtin_clzll(size);
    size_t step = (size_t)1 << (log2 - 3);
    size_t eighths = (size + step - 1) / step; // 8 to 16
    *ret_class_bytes = eighths * step;
    int32_t index = (log2 - 6) * 8 + (int32_t)eighths - 8;
    DP_CHECK(index < DP_POOL_CLASSES);
    return index;
}

void dp_pool_init(struct dp_pool *pool, struct dp_device *device, bool poison)
{
    *pool = (struct dp_pool){.device = device, .poison = poison};
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

dp_status dp_pool_get(struct dp_pool *pool, size_t bytes, void **ret_memory, struct dp_error *err)
{
    size_t class_bytes;
    struct dp_pool_class *class = &pool->classes[class_of(bytes, &class_bytes)];
    if (class->count > 0) {
        *ret_memory = class->free_blocks[--class->count];
    } else {
        dp_status status = pool->device->ops->alloc(pool->device, DP_MEMORY_ACTIVATIONS,
                                                    class_bytes, ret_memory, err);
        if (status != DP_OK) {
            return status;
        }
    }
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
    class->free_blocks[class->count++] = memory;
}
