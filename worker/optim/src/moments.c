// Whole moments out of what the ranks keep, and back.
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "optim_internal.h"

// Moments, gradients and weights of the devices that run here are host memory: dp/collective.h.

static double real_get(dp_element real, const void *values, int64_t index)
{
    return real == DP_F64 ? ((const double *)values)[index]
                          : (double)((const float *)values)[index];
}

static void real_put(dp_element real, void *values, int64_t index, float value)
{
    if (real == DP_F64) {
        ((double *)values)[index] = (double)value;
    } else {
        ((float *)values)[index] = value;
    }
}

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

// To nearest, ties to even; moments are finite.
static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void widen(const struct dp_optim *optim, const struct segment *segment, const void *kept,
                  void *whole)
{
    dp_element real = dp_element_real(segment->held->device->element);
    int64_t count = segment->kept_end - segment->kept_begin;
    if (!optim->is_bf16) {
        memcpy(real_at(segment->held, whole, segment->kept_begin), kept,
               (size_t)count * dp_element_bytes(real));
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        real_put(real, whole, segment->kept_begin + i, from_bf16(((const uint16_t *)kept)[i]));
    }
}

static void narrow(const struct dp_optim *optim, const struct segment *segment, const void *whole,
                   void *kept)
{
    dp_element real = dp_element_real(segment->held->device->element);
    int64_t count = segment->kept_end - segment->kept_begin;
    if (!optim->is_bf16) {
        memcpy(kept, real_at(segment->held, (void *)whole, segment->kept_begin),
               (size_t)count * dp_element_bytes(real));
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        ((uint16_t *)kept)[i] = to_bf16((float)real_get(real, whole, segment->kept_begin + i));
    }
}

static dp_status gather_one(struct dp_optim *optim, const struct segment *segment, const void *kept,
                            void **whole, struct dp_error *err)
{
    struct held_stage *held = segment->held;
    void *mine = whole[held - optim->held];
    size_t width = dp_device_real_bytes(held->device);
    widen(optim, segment, kept, mine);
    char *values = real_at(held, mine, segment->begin);
    dp_status status = DP_OK;
    if (optim->is_sharded) {
        status =
            dp_group_all_gather(segment->group, segment->tag, width, values, segment->count, err);
    }
    if (status == DP_OK && segment->twin != NULL) {
        memcpy(real_at(segment->twin, whole[segment->twin - optim->held], segment->twin_begin),
               values, (size_t)segment->count * width);
    }
    return status;
}

static dp_status gather(struct dp_optim *optim, void **m, void **v, struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t i = 0; i < optim->count && status == DP_OK; i++) {
        struct held_stage *held = &optim->held[i];
        size_t bytes =
            (size_t)dp_stage_parameter_count(held->stage) * dp_device_real_bytes(held->device);
        status = held->device->ops->alloc(held->device, DP_MEMORY_STAGING, bytes, &m[i], err);
        if (status == DP_OK) {
            status = held->device->ops->alloc(held->device, DP_MEMORY_STAGING, bytes, &v[i], err);
        }
        if (status == DP_OK) {
            status = held->device->ops->stream_sync(held->device->stream, err);
        }
    }
    for (int32_t i = 0; i < optim->segment_count && status == DP_OK; i++) {
        const struct segment *segment = &optim->segments[i];
        status = gather_one(optim, segment, segment->m, m, err);
        if (status == DP_OK) {
            status = gather_one(optim, segment, segment->v, v, err);
        }
    }
    return status;
}

dp_status dp_optim_gather_moments(struct dp_optim *optim, void **ret_m, void **ret_v,
                                  struct dp_error *err)
{
    size_t count = (size_t)optim->count;
    DP_AUTO_FREE void **m = dp_new_array(void *, count);
    DP_AUTO_FREE void **v = dp_new_array(void *, count);
    dp_status status = gather(optim, m, v, err);
    for (size_t i = 0; i < count; i++) {
        if (status == DP_OK) {
            ret_m[i] = m[i];
            ret_v[i] = v[i];
        } else {
            optim->held[i].device->ops->free(optim->held[i].device, m[i]);
            optim->held[i].device->ops->free(optim->held[i].device, v[i]);
        }
    }
    if (status != DP_OK) {
        dp_fail_in(err, "moments of the optimizer");
    }
    return status;
}

void dp_optim_set_moments(struct dp_optim *optim, int32_t index, const void *m, const void *v)
{
    DP_CHECK(index >= 0 && index < optim->count);
    for (int32_t i = 0; i < optim->segment_count; i++) {
        struct segment *segment = &optim->segments[i];
        if (segment->held == &optim->held[index]) {
            narrow(optim, segment, m, segment->m);
            narrow(optim, segment, v, segment->v);
        }
    }
}
