// Units of this project's own executor: what dp/cost.h counts, taken apart.

#include "dp/cost.h"
#include "memory_parts.h"

static struct dp_cost_batch batch_of(const struct dp_price_input *input)
{
    return (struct dp_cost_batch){.samples = input->strategy->micro_batch_size,
                                  .sequence = input->sequence,
                                  .ep_size = input->strategy->expert,
                                  .ep_nodes = 1,
                                  .recompute = input->strategy->recompute};
}

// A table that a head shares with the embedding is counted where the rank lacks it.
static struct dp_unit_parameters parameters_of(const struct dp_price_input *input,
                                               const struct dp_cost_stage *stage)
{
    const struct dp_model_spec *m = input->model;
    struct dp_cost_parameters held;
    dp_cost_stage_parameters(m, stage, input->strategy->expert, &held);
    if (stage->has_head && m->tied_embedding > 0) {
        held.shared -= (double)m->hidden * m->vocabulary;
    }
    return (struct dp_unit_parameters){.dense = held.shared, .experts = held.experts};
}

void dp_memory_units_of_cpu(const struct dp_price_input *input, struct dp_unit_bytes *ret_units)
{
    const struct dp_model_spec *m = input->model;
    struct dp_cost_batch batch = batch_of(input);
    int32_t dense = m->experts > 0 ? m->dense_layers : m->layers;
    const struct dp_cost_stage stages[DP_UNIT_COUNT] = {
        [DP_UNIT_DENSE] = {0, dense > 0 ? 1 : 0, false, false, false},
        [DP_UNIT_MOE] = {dense, dense < m->layers ? dense + 1 : dense, false, false, false},
        [DP_UNIT_EMBEDDING] = {0, 0, true, false, false},
        [DP_UNIT_HEAD] = {0, 0, false, true, false},
        [DP_UNIT_MTP] = {0, 0, false, false, true},
    };
    for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
        ret_units[unit] = (struct dp_unit_bytes){0};
        if (unit == DP_UNIT_MTP && m->mtp_layers == 0) {
            continue;
        }
        struct dp_cost_chunk_bytes bytes;
        dp_cost_chunk_bytes(m, input->profile, &stages[unit], &batch, NULL, &bytes);
        struct dp_cost_during during;
        if (unit == DP_UNIT_DENSE || unit == DP_UNIT_MOE) {
            dp_cost_layer_during(m, input->profile, &batch, unit == DP_UNIT_MOE, NULL, &during);
        } else if (unit == DP_UNIT_MTP) {
            dp_cost_mtp_during(m, input->profile, &batch, NULL, &during);
        } else {
            dp_cost_ends_during(m, input->profile, &batch, unit == DP_UNIT_HEAD, &during);
        }
        ret_units[unit] = (struct dp_unit_bytes){
            .parameters = parameters_of(input, &stages[unit]),
            .after_forward = bytes.after_forward,
            .after_input = bytes.after_input,
            .during_forward = during.away + during.forward,
            .during_backward = during.away + during.backward,
            .result = dp_cost_hop_bytes(m, input->profile, &batch),
        };
    }
}
