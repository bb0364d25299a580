// Device memory for activations, kept for reuse so that a steady state allocates nothing.
#pragma once

#include "dp/device.h"

#define DP_POOL_CLASSES 256

struct dp_pool_class {
    void **free_blocks;
    int32_t count, capacity;
};

struct dp_pool {
    struct dp_device *device; // borrowed
    bool poison;              // fill what is handed out with NaN
    struct dp_pool_class classes[DP_POOL_CLASSES];
};

void dp_pool_init(struct dp_pool *pool, struct dp_device *device, bool poison);
// Every block must have been put back.
void dp_pool_deinit(struct dp_pool *pool);
// Content undefined.
dp_status dp_pool_get(struct dp_pool *pool, size_t bytes, void **ret_memory, struct dp_error *err);
// `bytes` as given to get.
void dp_pool_put(struct dp_pool *pool, void *memory, size_t bytes);
