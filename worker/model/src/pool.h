// Device memory for activations, kept for reuse so that a steady state allocates little, but never
// more of it than has been in use at once: the peak of what a stage holds is that of its chunks.
#pragma once

#include "dp/device.h"

#define DP_POOL_CLASSES 4096

struct dp_pool_class {
    void **free_blocks;
    int32_t count, capacity;
    size_t bytes; // of each block
};

struct dp_pool {
    struct dp_device *device; // borrowed
    dp_memory_tag tag;        // what its memory counts as
    bool poison;              // fill what is handed out with NaN
    struct dp_pool_class classes[DP_POOL_CLASSES];
    // Bytes handed out, the most they have been, and those that lie here for reuse.
    size_t used, most_used, idle;
    size_t high; // the most handed out since it was last asked for
};

void dp_pool_init(struct dp_pool *pool, struct dp_device *device, dp_memory_tag tag, bool poison);
// Every block must have been put back.
void dp_pool_deinit(struct dp_pool *pool);
// Content undefined.
dp_status dp_pool_get(struct dp_pool *pool, size_t bytes, void **ret_memory, struct dp_error *err);
// `bytes` as given to get.
void dp_pool_put(struct dp_pool *pool, void *memory, size_t bytes);
