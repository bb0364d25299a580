// What a rank has, cut at the borders of tensors.
#include <stdio.h>

#include "dp/alloc.h"
#include "internal.h"

static dp_dtype reals_of(const struct dp_device *device)
{
    return dp_element_real(device->element) == DP_F64 ? DP_DTYPE_F64 : DP_DTYPE_F32;
}

static void append(struct dp_state *state, const struct dp_state_part *part)
{
    if (state->count == state->room) {
        state->room = state->room == 0 ? 64 : 2 * state->room;
        state->parts = dp_realloc(state->parts, (size_t)state->room, sizeof state->parts[0]);
    }
    state->parts[state->count++] = *part;
}

// Elements of a stage as they lie in a buffer that begins with element `origin`.
struct run {
    dp_archive_kind kind;
    dp_dtype dtype;
    int64_t begin, end, origin;
    const void *values;
};

static void append_run(struct dp_state *state, const struct dp_stage *stage, const struct run *run)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(stage, &count);
    for (int32_t i = 0; i < count; i++) {
        const struct dp_tensor *tensor = &tensors[i];
        const int64_t last = tensor->offset + tensor->count;
        const int64_t from = run->begin > tensor->offset ? run->begin : tensor->offset;
        const int64_t to = run->end < last ? run->end : last;
        if (from >= to) {
            continue;
        }
        struct dp_state_part part = {.kind = run->kind,
                                     .dtype = run->dtype,
                                     .begin = from - tensor->offset,
                                     .end = to - tensor->offset,
                                     .count = tensor->count,
                                     .values =
                                         (const char *)run->values +
                                         (size_t)(from - run->origin) * dp_dtype_bytes(run->dtype)};
        DP_COPY_TEXT(part.own, tensor->name);
        append(state, &part);
    }
}

void dp_state_add_weights(struct dp_state *state, struct dp_stage *stage, int64_t begin,
                          int64_t end)
{
    state->device = dp_stage_device(stage);
    const struct run run = {.kind = DP_ARCHIVE_WEIGHT,
                            .dtype = reals_of(state->device),
                            .begin = begin,
                            .end = end,
                            .values = dp_stage_weights(stage)};
    append_run(state, stage, &run);
}

void dp_state_add_moments(struct dp_state *state, const struct dp_stage *stage,
                          const struct dp_checkpoint_run *moments)
{
    state->device = dp_stage_device(stage);
    struct run run = {.kind = DP_ARCHIVE_M,
                      .dtype = moments->is_bf16 ? DP_DTYPE_BF16 : reals_of(state->device),
                      .begin = moments->begin,
                      .end = moments->end,
                      .origin = moments->begin,
                      .values = moments->m};
    append_run(state, stage, &run);
    run.kind = DP_ARCHIVE_V;
    run.values = moments->v;
    append_run(state, stage, &run);
}

void dp_state_add_biases(struct dp_state *state, struct dp_stage *stage)
{
    state->device = dp_stage_device(stage);
    const struct dp_stage_config *config = dp_stage_config(stage);
    // Multi-token prediction has a layer behind the last.
    for (int32_t layer = config->layer_begin; layer <= config->layer_end; layer++) {
        const void *bias = dp_stage_router_bias(stage, layer);
        if (bias == NULL) {
            continue;
        }
        struct dp_state_part part = {.kind = DP_ARCHIVE_WEIGHT,
                                     .dtype = reals_of(state->device),
                                     .end = config->model.experts,
                                     .count = config->model.experts,
                                     .values = bias};
        snprintf(part.own, sizeof part.own, "layers.%d.router.bias", layer);
        append(state, &part);
    }
}
