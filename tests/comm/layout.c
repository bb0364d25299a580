#include "layout.h"

#include <stdlib.h>

#include "dp/rand.h"

struct dp_model_spec layout_model(void)
{
    return (struct dp_model_spec){.name = "small",
                                  .layers = 4,
                                  .dense_layers = 1,
                                  .hidden = 8,
                                  .heads = 2,
                                  .kv_heads = 1,
                                  .head_dim = 4,
                                  .ffn = 12,
                                  .experts = 4,
                                  .top_k = 2,
                                  .shared_experts = 1,
                                  .expert_ffn = 6,
                                  .vocabulary = 16,
                                  .rope_theta = 10000,
                                  .norm_eps = 1e-6,
                                  .bias_update = 0.125};
}

static dp_status hold_one(const struct layout *layout, int32_t rank, int32_t stage,
                          struct held *held, struct dp_error *err)
{
    struct dp_stage_config config = {
        .model = layout_model(),
        .layer_begin = stage * 4 / layout->pipeline,
        .layer_end = (stage + 1) * 4 / layout->pipeline,
        .has_embedding = stage == 0,
        .has_head = stage == layout->pipeline - 1,
        .ep_rank = rank / layout->pipeline % layout->expert,
        .ep_size = layout->expert,
        .sequence = 8,
        .seed = 5,
    };
    int32_t i = held->count;
    struct dp_optim_stage *made = &held->stages[i];
    dp_status status = dp_stage_new(held->device, &config, &made->stage, err);
    if (status != DP_OK) {
        return status;
    }
    int32_t mirror = layout->pipeline - 1 - stage;
    bool has_two = layout->is_mirrored && mirror != stage;
    held->positions[i][0] = has_two && mirror < stage ? mirror : stage;
    held->positions[i][1] = has_two && mirror < stage ? stage : mirror;
    made->index = stage;
    made->positions = held->positions[i];
    made->position_count = has_two ? 2 : 1;
    held->count++;
    return DP_OK;
}

dp_status layout_hold(const struct layout *layout, int32_t rank, struct held *ret_held,
                      struct dp_error *err)
{
    *ret_held = (struct held){0};
    dp_status status = dp_device_open_cpu(layout->element, &ret_held->device, err);
    int32_t position = rank % layout->pipeline;
    if (status == DP_OK) {
        status = hold_one(layout, rank, position, ret_held, err);
    }
    if (status == DP_OK && layout->is_mirrored) {
        status = hold_one(layout, rank, layout->pipeline - 1 - position, ret_held, err);
    }
    return status;
}

dp_status layout_make_moments(struct held *held, struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t i = 0; i < 2 * held->count && status == DP_OK; i++) {
        void **moments = i % 2 == 0 ? &held->m[i / 2] : &held->v[i / 2];
        size_t bytes = (size_t)dp_stage_parameter_count(held->stages[i / 2].stage) *
                       dp_device_real_bytes(held->device);
        status = held->device->ops->alloc(held->device, DP_MEMORY_MOMENTS, bytes, moments, err);
        if (status == DP_OK) {
            held->device->ops->fill(held->device->stream, *moments, 0, bytes);
        }
    }
    return status;
}

void held_deinit(struct held *held)
{
    for (int32_t i = 0; i < held->count; i++) {
        held->device->ops->free(held->device, held->m[i]);
        held->device->ops->free(held->device, held->v[i]);
        dp_stage_free(held->stages[i].stage);
    }
    if (held->device != NULL) {
        dp_device_close(held->device);
    }
}

double layout_value(const char *name, int64_t element, uint64_t salt)
{
    uint64_t bits = dp_rand_mix(dp_hash64(name, strlen(name), salt), (uint64_t)element);
    return 2 * (double)(bits >> 11) * 0x1.0p-53 - 1;
}

double element_get(const struct dp_device *device, const void *buffer, int64_t index)
{
    return device->element == DP_F32 ? (double)((const float *)buffer)[index]
                                     : ((const double *)buffer)[index];
}

void element_set(const struct dp_device *device, void *buffer, int64_t index, double value)
{
    if (device->element == DP_F32) {
        ((float *)buffer)[index] = (float)value;
    } else {
        ((double *)buffer)[index] = value;
    }
}

int32_t expert_of(const char *name)
{
    const char *at = strstr(name, ".experts.");
    return at == NULL ? -1 : atoi(at + 9);
}
