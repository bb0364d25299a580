#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "stage.h"

struct dp_workspace *dp_workspace_new(struct dp_device *device, bool poison)
{
    struct dp_workspace *workspace = dp_new(struct dp_workspace);
    workspace->device = device;
    dp_pool_init(&workspace->pool, device, DP_MEMORY_ACTIVATIONS, poison);
    dp_pool_init(&workspace->host_pool, device, DP_MEMORY_STAGING, poison);
    return workspace;
}

void dp_workspace_free(struct dp_workspace *workspace)
{
    if (workspace == NULL) {
        return;
    }
    dp_pool_deinit(&workspace->pool);
    dp_pool_deinit(&workspace->host_pool);
    for (int32_t i = 0; i < DP_SCRATCH_COUNT; i++) {
        workspace->device->ops->free(workspace->device, workspace->scratch[i].memory);
    }
    free(workspace);
}

void dp_workspace_bytes(struct dp_workspace *workspace, int64_t *ret_now, int64_t *ret_most)
{
    struct dp_pool *pool = &workspace->pool;
    *ret_now = (int64_t)pool->used;
    *ret_most = (int64_t)pool->high;
    pool->high = pool->used;
}

int64_t dp_chunk_element_bytes(const struct dp_chunk *chunk, int64_t elements)
{
    return elements * (int64_t)chunk->stage->element_bytes;
}

int64_t dp_chunk_real_bytes(const struct dp_chunk *chunk, int64_t reals)
{
    return reals * (int64_t)chunk->stage->real_bytes;
}

dp_status dp_chunk_take(struct dp_chunk *chunk, const struct dp_take *takes, size_t count,
                        struct dp_error *err)
{
    for (size_t i = 0; i < count; i++) {
        struct dp_slot *slot = takes[i].slot;
        DP_CHECK(slot->memory == NULL);
        dp_status status =
            dp_pool_get(&chunk->stage->workspace->pool, (size_t)takes[i].bytes, &slot->memory, err);
        if (status != DP_OK) {
            return status;
        }
        slot->bytes = takes[i].bytes;
        chunk->live_bytes += slot->bytes;
        chunk->stage->live_bytes += slot->bytes;
    }
    return DP_OK;
}

void dp_slot_retire(struct dp_chunk *chunk, struct dp_slot *slot)
{
    dp_pool_put(&chunk->stage->workspace->pool, slot->memory, (size_t)slot->bytes);
    slot->memory = NULL;
    chunk->live_bytes -= slot->bytes;
    chunk->stage->live_bytes -= slot->bytes;
}

dp_status dp_slot_return(struct dp_chunk *chunk, struct dp_slot *slot, struct dp_error *err)
{
    const struct dp_take take = {slot, slot->bytes};
    return dp_chunk_take(chunk, &take, 1, err);
}

void dp_slot_forget_host(struct dp_chunk *chunk, struct dp_slot *slot)
{
    if (slot->host == NULL) {
        return;
    }
    dp_pool_put(&chunk->stage->workspace->host_pool, slot->host, (size_t)slot->bytes);
    slot->host = NULL;
}

void dp_chunk_drop(struct dp_chunk *chunk, struct dp_slot *slot)
{
    dp_slot_forget_host(chunk, slot);
    if (slot->memory != NULL) {
        dp_slot_retire(chunk, slot);
    }
    *slot = (struct dp_slot){0};
}

void dp_slot_move(struct dp_slot *from, struct dp_slot *to)
{
    DP_CHECK(from->memory != NULL && to->memory == NULL);
    *to = *from;
    *from = (struct dp_slot){0};
}

dp_status dp_stage_elements(struct dp_stage *stage, dp_scratch which, int64_t elements,
                            void **ret_memory, struct dp_error *err)
{
    return dp_stage_scratch(stage, which, (size_t)elements * stage->element_bytes, ret_memory, err);
}

dp_status dp_stage_scratch(struct dp_stage *stage, dp_scratch which, size_t bytes,
                           void **ret_memory, struct dp_error *err)
{
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_workspace *workspace = stage->workspace;
    void **memory = &workspace->scratch[which].memory;
    if (bytes > workspace->scratch[which].bytes) {
        ops->free(stage->device, *memory);
        *memory = NULL;
        workspace->scratch[which].bytes = 0;
        dp_status status = ops->alloc(stage->device, DP_MEMORY_SCRATCH, bytes, memory, err);
        if (status != DP_OK) {
            return status;
        }
        workspace->scratch[which].bytes = bytes;
    }
    if (stage->config.poison) {
        ops->fill(stage->device->stream, *memory, 0xff, bytes);
    }
    *ret_memory = *memory;
    return DP_OK;
}
