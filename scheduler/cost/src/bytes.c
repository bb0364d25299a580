// Bytes: what travels, what a rank keeps for its parameters, what a chunk keeps.

#include <math.h>

#include "dp/cost.h"

double dp_cost_hop_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                         const struct dp_cost_batch *batch)
{
    return (double)batch->samples * batch->sequence * model->hidden * profile->element_bytes;
}

double dp_cost_exchange_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                              const struct dp_cost_batch *batch)
{
    double copies = (double)batch->samples * batch->sequence * model->top_k;
    double leaving = copies * (batch->ep_size - 1) / batch->ep_size;
    return leaving * model->hidden * profile->element_bytes;
}

double dp_cost_node_limited_bytes(const struct dp_model_spec *model, int64_t tokens, int32_t nodes,
                                  int32_t element_bits)
{
    double visited = model->top_groups > 0 ? fmin(model->top_groups, nodes) : nodes;
    double row = (double)model->hidden * element_bits / 8;
    if (element_bits == 8) {
        row += 4.0 * model->hidden / 128;
    }
    return (double)tokens * visited * row;
}

void dp_cost_stage_parameters(const struct dp_model_spec *model, const struct dp_cost_stage *stage,
                              int32_t ep_size, struct dp_cost_parameters *ret_parameters)
{
    struct dp_cost_parameters sum = {0, 0};
    for (int32_t layer = stage->layer_begin; layer < stage->layer_end; layer++) {
        double shared = (double)dp_model_layer_shared_parameters(model, layer);
        sum.shared += shared;
        sum.experts += ((double)dp_model_layer_parameters(model, layer) - shared) / ep_size;
    }
    double table = (double)model->hidden * model->vocabulary;
    sum.shared += stage->has_embedding ? table : 0;
    sum.shared += stage->has_head ? table + model->hidden : 0;
    *ret_parameters = sum;
}

double dp_cost_state_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                           const struct dp_cost_stage *stages, int32_t stages_count,
                           int32_t ep_size, int32_t data)
{
    double resident = profile->weight_bytes + profile->gradient_bytes;
    double bytes = 0;
    for (int32_t i = 0; i < stages_count; i++) {
        struct dp_cost_parameters count;
        dp_cost_stage_parameters(model, &stages[i], ep_size, &count);
        double shards = profile->optimizer_sharded ? data : 1;
        double expert_shards = profile->optimizer_sharded ? (double)data / ep_size : 1;
        bytes += count.shared * (resident + profile->optimizer_bytes / shards);
        bytes += count.experts * (resident + profile->optimizer_bytes / expert_shards);
    }
    return bytes;
}
