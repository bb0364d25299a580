#include "dp/check.h"
#include "stage.h"

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
            dp_pool_get(&chunk->stage->pool, (size_t)takes[i].bytes, &slot->memory, err);
        if (status != DP_OK) {
            return status;
        }
        slot->bytes = takes[i].bytes;
        chunk->live_bytes += slot->bytes;
        chunk->stage->live_bytes += slot->bytes;
    }
    return DP_OK;
}

static void give_back(struct dp_chunk *chunk, struct dp_slot *slot)
{
    dp_pool_put(&chunk->stage->pool, slot->memory, (size_t)slot->bytes);
    slot->memory = NULL;
    chunk->live_bytes -= slot->bytes;
    chunk->stage->live_bytes -= slot->bytes;
}

void dp_slot_retire(struct dp_chunk *chunk, struct dp_slot *slot)
{
    give_back(chunk, slot);
    chunk->host_bytes += slot->bytes;
}

dp_status dp_slot_return(struct dp_chunk *chunk, struct dp_slot *slot, struct dp_error *err)
{
    void *host = slot->host;
    const struct dp_take take = {slot, slot->bytes};
    dp_status status = dp_chunk_take(chunk, &take, 1, err);
    slot->host = host;
    chunk->host_bytes -= status == DP_OK ? slot->bytes : 0;
    return status;
}

void dp_slot_forget_host(struct dp_chunk *chunk, struct dp_slot *slot)
{
    if (slot->host == NULL) {
        return;
    }
    dp_pool_put(&chunk->stage->host_pool, slot->host, (size_t)slot->bytes);
    chunk->host_bytes -= slot->memory == NULL ? slot->bytes : 0;
    slot->host = NULL;
}

void dp_chunk_drop(struct dp_chunk *chunk, struct dp_slot *slot)
{
    dp_slot_forget_host(chunk, slot);
    if (slot->memory != NULL) {
        give_back(chunk, slot);
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
    if (bytes > stage->scratch[which].bytes) {
        ops->free(stage->device, stage->scratch[which].memory);
        stage->scratch[which].memory = NULL;
        stage->scratch[which].bytes = 0;
        dp_status status =
            ops->alloc(stage->device, DP_MEMORY_SCRATCH, bytes, &stage->scratch[which].memory, err);
        if (status != DP_OK) {
            return status;
        }
        stage->scratch[which].bytes = bytes;
    }
    if (stage->config.poison) {
        ops->fill(stage->device->stream, stage->scratch[which].memory, 0xff, bytes);
    }
    *ret_memory = stage->scratch[which].memory;
    return DP_OK;
}
