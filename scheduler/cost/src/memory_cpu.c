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

void dp_memory_units_of_cpu(const struct dp_price_input *input, struct dp_unit_bytes *ret_units)
{
    const struct dp_model_spec *m = input->model;
    struct dp_cost_batch batch = batch_of(input);
    int32_t dense = m->experts > 0 ? m->dense_layers : m->layers;
    const struct dp_cost_stage stages[DP_UNIT_COUNT] = {
        [DP_UNIT_DENSE] = {0, dense > 0 ? 1 : 0, false, false},
        [DP_UNIT_MOE] = {dense, dense < m->layers ? dense + 1 : dense, false, false},
        [DP_UNIT_EMBEDDING] = {0, 0, true, false},
        [DP_UNIT_HEAD] = {0, 0, false, true},
    };
    for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
        ret_units[unit] = (struct dp_unit_bytes){0};
        if (unit == DP_UNIT_MTP) {
            continue; // the executor has none
        }
        struct dp_cost_chunk_bytes bytes;
        dp_cost_chunk_bytes(m, input->profile, &stages[unit], &batch, NULL, &bytes);
        struct dp_cost_during during;
        if (unit == DP_UNIT_DENSE || unit == DP_UNIT_MOE) {
            dp_cost_layer_during(m, input->profile, &batch, unit == DP_UNIT_MOE, &during);
        } else {
            dp_cost_ends_during(m, input->profile, &batch, unit == DP_UNIT_HEAD, &during);
        }
        struct dp_cost_parameters held;
        dp_cost_stage_parameters(m, &stages[unit], batch.ep_size, &held);
        ret_units[unit] = (struct dp_unit_bytes){
            .parameters = {.dense = held.shared, .experts = held.experts},
            .after_forward = bytes.after_forward,
            .after_input = bytes.after_input,
            .during_forward = during.away + during.forward,
            .during_backward = during.away + during.backward,
            .result = dp_cost_hop_bytes(m, input->profile, &batch),
        };
    }
}
