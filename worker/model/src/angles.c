// Rotary positions: the table of angles that queries and keys are turned by.
#include <math.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "stage.h"

int32_t dp_stage_turned(const struct dp_stage *stage)
{
    const struct dp_model_spec *m = &stage->config.model;
    return m->mla_kv_rank > 0 ? m->mla_rope_dim : m->head_dim;
}

dp_status dp_stage_make_angles(struct dp_stage *stage, struct dp_error *err)
{
    struct dp_device *device = stage->device;
    const int64_t dim = dp_stage_turned(stage), half = dim / 2;
    const int64_t count = stage->config.sequence * dim;
    dp_status status = device->ops->alloc(
        device, DP_MEMORY_WEIGHTS, (size_t)count * stage->real_bytes, &stage->rope_table, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE double *table = dp_new_array(double, (size_t)count);
    for (int64_t t = 0; t < stage->config.sequence; t++) {
        for (int64_t i = 0; i < half; i++) {
            double angle =
                (double)t * pow(stage->config.model.rope_theta, -2.0 * (double)i / (double)dim);
            table[t * dim + i] = cos(angle);
            table[t * dim + half + i] = sin(angle);
        }
    }
    device->ops->from_double(device->stream, count, table, DP_OPERAND_REAL, stage->rope_table);
    return DP_OK;
}
