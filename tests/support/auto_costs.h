// Costs callbacks of dp_auto_problem.
#pragma once

#include "dp/auto.h"
#include "made_costs.h"

// For tables that are known for one shape: context is the
// struct dp_sim_costs; it refuses shapes of other sizes.
static inline dp_status fixed_costs(void *context, const struct dp_schedule *shape,
                                    struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                                    struct dp_error *err)
{
    const struct dp_sim_costs *costs = context;
    (void)ret_static_bytes;
    dp_status status = dp_sim_costs_check(costs, shape, err);
    if (status == DP_OK) {
        dp_sim_costs_copy(ret_costs, costs);
    }
    return status;
}

// The same model in any number of stages: what a P-th of it has is split evenly over the S stages
// (S = P gives these numbers, S = 2P halves of them).
struct uniform_model {
    struct dp_sim_uniform stage;
    uint64_t activation_bytes;
    uint64_t released_at_i_bytes;
    uint64_t static_bytes;
};

// The costs callback; context is the struct uniform_model.
static inline dp_status uniform_costs(void *context, const struct dp_schedule *shape,
                                      struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                                      struct dp_error *err)
{
    const struct uniform_model *model = context;
    (void)err;
    double share = (double)shape->pipeline / shape->stages;
    struct dp_sim_uniform chunk = model->stage;
    chunk.f *= share;
    chunk.b *= share;
    chunk.i *= share;
    chunk.w *= share;
    chunk.fb *= share;
    chunk.fi *= share;
    dp_sim_costs_init_uniform(ret_costs, shape, &chunk);
    uint64_t ranks = (uint64_t)shape->pipeline, stages = (uint64_t)shape->stages;
    for (int32_t rank = 0; rank < shape->pipeline; rank++) {
        int32_t held[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(shape, rank, held);
        for (int32_t slot = 0; slot < ret_costs->slots; slot++) {
            struct dp_sim_chunk *to = dp_sim_chunk_at(ret_costs, rank, slot);
            to->activation_bytes = model->activation_bytes * ranks / stages;
            to->released_at_i_bytes = model->released_at_i_bytes * ranks / stages;
        }
        ret_static_bytes[rank] = model->static_bytes * (uint64_t)count * ranks / stages;
    }
    return DP_OK;
}
