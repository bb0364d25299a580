// Saved buffers that wait in host memory: a layer's are copied out when its FORWARD is over, and
// back while the layer behind it goes backward. Copies run on a stream of their own.
#include "dp/check.h"
#include "stage.h"

#define LAYER_SLOTS_MAX 14

// The slots of a layer that the stage's choice sends away.
static size_t chosen(struct dp_chunk *chunk, int32_t layer, struct dp_slot *ret_slots[])
{
    struct dp_layer_state *state = &chunk->layers[layer];
    const struct {
        uint32_t bit;
        struct dp_slot *slot;
    } all[LAYER_SLOTS_MAX] = {
        {DP_OFFLOAD_INPUTS, &state->x},
        {DP_OFFLOAD_INPUTS, &state->ffn_x},
        {DP_OFFLOAD_ATTENTION, &state->qkv},
        {DP_OFFLOAD_ATTENTION, &state->attended},
        {DP_OFFLOAD_ATTENTION, &state->kv},
        {DP_OFFLOAD_ATTENTION, &state->q_latent},
        {DP_OFFLOAD_ATTENTION, &state->kv_latent},
        {DP_OFFLOAD_ATTENTION, &state->q_normed},
        {DP_OFFLOAD_ATTENTION, &state->kv_normed},
        {DP_OFFLOAD_FFN, &state->gate_up},
        {DP_OFFLOAD_EXPERTS, &state->rows_x},
        {DP_OFFLOAD_EXPERTS, &state->rows_gate_up},
        {DP_OFFLOAD_FFN, &state->active},
        {DP_OFFLOAD_EXPERTS, &state->rows_codes},
    };
    size_t count = 0;
    for (size_t i = 0; i < LAYER_SLOTS_MAX; i++) {
        if ((chunk->stage->config.offload & all[i].bit) != 0) {
            ret_slots[count++] = all[i].slot;
        }
    }
    return count;
}

// Copies queued from here on start when what the device's own stream has done so far is done.
static dp_status follow_device(struct dp_stage *stage, struct dp_error *err)
{
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_event *event = NULL;
    dp_status status = ops->event_record(stage->device->stream, &event, err);
    if (status == DP_OK) {
        ops->event_wait(stage->copies, event);
        ops->event_close(event);
    }
    return status;
}

// Waits for the layer's copies that are under way.
static void settle(struct dp_chunk *chunk, struct dp_layer_state *state)
{
    const struct dp_device *device = chunk->stage->device;
    if (state->copied != NULL) {
        device->ops->event_wait(device->stream, state->copied);
        device->ops->event_close(state->copied);
        state->copied = NULL;
    }
}

static dp_status leave(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_slot *slots[LAYER_SLOTS_MAX];
    const size_t count = chosen(chunk, layer, slots);
    dp_status status = follow_device(stage, err);
    for (size_t i = 0; i < count && status == DP_OK; i++) {
        struct dp_slot *slot = slots[i];
        if (slot->memory == NULL) {
            continue;
        }
        status = dp_pool_get(&stage->workspace->host_pool, (size_t)slot->bytes, &slot->host, err);
        if (status == DP_OK) {
            ops->copy(stage->copies, slot->host, slot->memory, (size_t)slot->bytes);
        }
    }
    if (status == DP_OK) {
        status = ops->event_record(stage->copies, &chunk->layers[layer].copied, err);
    }
    return status;
}

// What has been copied out makes room.
static void retire(struct dp_chunk *chunk, int32_t layer)
{
    struct dp_slot *slots[LAYER_SLOTS_MAX];
    const size_t count = chosen(chunk, layer, slots);
    settle(chunk, &chunk->layers[layer]);
    for (size_t i = 0; i < count; i++) {
        if (slots[i]->host != NULL) {
            dp_slot_retire(chunk, slots[i]);
        }
    }
}

static dp_status come_back(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    const struct dp_device_ops *ops = stage->device->ops;
    struct dp_slot *slots[LAYER_SLOTS_MAX];
    const size_t count = chosen(chunk, layer, slots);
    size_t away = 0;
    dp_status status = DP_OK;
    for (size_t i = 0; i < count && status == DP_OK; i++) {
        if (slots[i]->host != NULL && slots[i]->memory == NULL) {
            status = dp_slot_return(chunk, slots[i], err);
            slots[away++] = slots[i];
        }
    }
    if (status != DP_OK || away == 0) {
        return status;
    }
    // Memory from the pool may still be read or written by what the device has been given to do.
    status = follow_device(stage, err);
    for (size_t i = 0; i < away && status == DP_OK; i++) {
        ops->copy(stage->copies, slots[i]->memory, slots[i]->host, (size_t)slots[i]->bytes);
    }
    return status == DP_OK ? ops->event_record(stage->copies, &chunk->layers[layer].copied, err)
                           : status;
}

dp_status dp_offload_forward_end(struct dp_chunk *chunk, dp_component_kind kind, int32_t layer,
                                 bool is_last, struct dp_error *err)
{
    const struct dp_stage *stage = chunk->stage;
    dp_status status = DP_OK;
    if (stage->config.offload == 0) {
        return DP_OK;
    }
    if (kind == DP_COMPONENT_FFN || kind == DP_COMPONENT_COMBINE) {
        status = leave(chunk, layer, err);
        if (status == DP_OK && layer > 0) {
            retire(chunk, layer - 1);
        }
    }
    if (status == DP_OK && is_last) {
        const int32_t last = stage->layer_count - (dp_stage_predicts(&stage->config) ? 2 : 1);
        retire(chunk, last);
    }
    return status;
}

dp_status dp_offload_input_begin(struct dp_chunk *chunk, int32_t layer, struct dp_error *err)
{
    struct dp_stage *stage = chunk->stage;
    if (stage->config.offload == 0) {
        return DP_OK;
    }
    const bool is_layer = layer >= 0;
    const int32_t next = is_layer ? layer - 1 : stage->layer_count - 1;
    dp_status status = DP_OK;
    if (is_layer) {
        struct dp_slot *slots[LAYER_SLOTS_MAX];
        const size_t count = chosen(chunk, layer, slots);
        if (chunk->layers[layer].copied == NULL) {
            status = come_back(chunk, layer, err);
        }
        settle(chunk, &chunk->layers[layer]);
        for (size_t i = 0; i < count && status == DP_OK; i++) {
            dp_slot_forget_host(chunk, slots[i]);
        }
    }
    if (status == DP_OK && next >= 0 && chunk->layers[next].copied == NULL) {
        status = come_back(chunk, next, err);
    }
    return status;
}

void dp_offload_settle(struct dp_chunk *chunk)
{
    for (int32_t i = 0; i < chunk->stage->layer_count; i++) {
        settle(chunk, &chunk->layers[i]);
    }
}
