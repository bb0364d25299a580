// Strategies and shapes that the tests of memory share.
#pragma once

#include "planner_support.h"

#include "dp/memory.h"
#include "dp/price.h"
#include "dp/rand.h"
#include "plain_strategy.h"

#define MIB 1048576.0
#define GIB 1073741824.0

struct memory_case {
    struct dp_model_spec model;
    struct dp_profile profile;
    struct dp_strategy strategy;
    int32_t sequence;
};

static inline struct memory_case memory_case_of(const struct dp_model_spec *model, int32_t sequence)
{
    return (struct memory_case){
        .model = *model,
        .profile = {.is_accelerator = true},
        .strategy = plain_strategy(),
        .sequence = sequence,
    };
}

// Borrows all of the case.
static inline struct dp_price_input input_of(const struct memory_case *c)
{
    return (struct dp_price_input){.model = &c->model,
                                   .profile = &c->profile,
                                   .strategy = &c->strategy,
                                   .sequence = c->sequence};
}

static inline void units_of(const struct memory_case *c, struct dp_unit_bytes *ret_units)
{
    struct dp_price_input input = input_of(c);
    dp_memory_units(&input, ret_units);
}

// GPT of arXiv 2205.05198: GELU, LayerNorm with biases, dropout, attention without flash.
static inline struct dp_model_spec gpt(int32_t layers, int32_t hidden, int32_t heads,
                                       int32_t vocabulary)
{
    return (struct dp_model_spec){.layers = layers,
                                  .dense_layers = layers,
                                  .hidden = hidden,
                                  .heads = heads,
                                  .kv_heads = heads,
                                  .head_dim = hidden / heads,
                                  .ffn = 4 * hidden,
                                  .vocabulary = vocabulary,
                                  .ffn_matrices = 2,
                                  .positions = 1024,
                                  .biases =
                                      DP_BIAS_QKV | DP_BIAS_OUTPUT | DP_BIAS_FFN | DP_BIAS_NORM};
}

// The units of layers [begin, end).
static inline struct dp_stage_units stage_of(const struct dp_model_spec *model, int32_t begin,
                                             int32_t end)
{
    struct dp_stage_units stage = {{0}};
    for (int32_t layer = begin; layer < end; layer++) {
        stage.count[dp_model_layer_is_moe(model, layer) ? DP_UNIT_MOE : DP_UNIT_DENSE]++;
    }
    stage.count[DP_UNIT_EMBEDDING] = begin == 0;
    stage.count[DP_UNIT_HEAD] = end == model->layers;
    stage.count[DP_UNIT_MTP] = end == model->layers ? model->mtp_layers : 0;
    return stage;
}
