// What routers are balanced by: a bias of each expert's score, and how often each was chosen.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "stage.h"

static int64_t first_of(const struct dp_stage *stage, int32_t layer)
{
    return (int64_t)(layer - stage->config.layer_begin) * stage->config.model.experts;
}

dp_status dp_stage_make_balance(struct dp_stage *stage, struct dp_error *err)
{
    const struct dp_model_spec *model = &stage->config.model;
    const size_t experts = (size_t)stage->layer_count * (size_t)model->experts;
    stage->expert_counts = dp_new_array(int64_t, experts);
    const bool has_bias = model->bias_update > 0 || (model->biases & DP_BIAS_ROUTER) != 0;
    if (!has_bias || experts == 0) {
        return DP_OK;
    }
    struct dp_device *device = stage->device;
    const size_t bytes = experts * stage->real_bytes;
    dp_status status =
        device->ops->alloc(device, DP_MEMORY_WEIGHTS, bytes, &stage->router_bias, err);
    if (status == DP_OK) {
        device->ops->fill(device->stream, stage->router_bias, 0, bytes);
    }
    return status;
}

void dp_stage_free_balance(struct dp_stage *stage)
{
    stage->device->ops->free(stage->device, stage->router_bias);
    free(stage->expert_counts);
    free(stage->host_index);
}

void *dp_stage_router_bias(struct dp_stage *stage, int32_t layer)
{
    return stage->router_bias == NULL || !dp_stage_routes(stage, layer)
               ? NULL
               : dp_real_at(stage, stage->router_bias, first_of(stage, layer));
}

int64_t *dp_stage_expert_counts(struct dp_stage *stage, int32_t layer)
{
    return dp_stage_routes(stage, layer) ? stage->expert_counts + first_of(stage, layer) : NULL;
}

dp_status dp_chunk_take_choices(struct dp_chunk *chunk, int32_t layer, const int32_t **ret_index,
                                struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    const size_t slots = (size_t)(chunk->tokens * stage->config.model.top_k);
    // Alone, a rank keeps every expert in its slot, and its exchanger keeps the index.
    const bool is_alone = stage->config.ep_size == 1;
    if (is_alone) {
        *ret_index = chunk->layers[layer].index.memory;
    }
    if (is_alone && chunk->loss_scale == 0) {
        return DP_OK;
    }
    if (slots > stage->host_index_count) {
        free(stage->host_index);
        stage->host_index = dp_new_array(int32_t, slots);
        stage->host_index_count = slots;
    }
    ops->copy(stage->device->stream, stage->host_index, chunk->layers[layer].index.memory,
              slots * sizeof(int32_t));
    dp_status status = ops->stream_sync(stage->device->stream, err);
    int64_t *counts = dp_stage_expert_counts(stage, stage->config.layer_begin + layer);
    for (size_t i = 0; i < slots && status == DP_OK && chunk->loss_scale != 0; i++) {
        counts[stage->host_index[i]]++;
    }
    if (status == DP_OK) {
        dp_chunk_place(chunk, layer, stage->host_index);
    }
    if (status == DP_OK && !is_alone) {
        *ret_index = stage->host_index;
    }
    return status;
}
