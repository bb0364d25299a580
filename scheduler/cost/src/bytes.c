// Bytes: what travels, what a rank keeps for its parameters, what a chunk keeps.

#include <math.h>

#include "dp/cost.h"

double dp_cost_hop_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                         const struct dp_cost_batch *batch)
{
    return (double)batch->samples * batch->sequence * model->hidden * profile->element_bytes;
}

// Copies of a token that leave its rank (or its node, when copies are made there).
static double copies_leaving(const struct dp_model_spec *model, const struct dp_profile *profile,
                             const struct dp_cost_batch *batch)
{
    if (!profile->exchange_by_node) {
        return (double)model->top_k * (batch->ep_size - 1) / batch->ep_size;
    }
    bool across = batch->ep_nodes > 1;
    double places = across ? batch->ep_nodes : batch->ep_size;
    double visited = places * (1 - pow(1 - 1 / places, model->top_k));
    if (across && model->top_groups > 0) {
        visited = fmin(visited, model->top_groups);
    }
    return visited * (places - 1) / places;
}

double dp_cost_exchange_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                              const struct dp_cost_batch *batch)
{
    double tokens = (double)batch->samples * batch->sequence;
    return tokens * copies_leaving(model, profile, batch) * model->hidden * profile->element_bytes;
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
    if (stage->has_mtp) {
        double layer = (double)dp_model_layer_parameters(model, model->layers);
        double experts = layer - (double)dp_model_layer_shared_parameters(model, model->layers);
        bool has_copy = stage->has_head && !stage->has_embedding && model->tied_embedding == 0;
        sum.shared += (double)dp_model_mtp_parameters(model) - experts;
        sum.shared += has_copy ? (double)model->hidden * model->vocabulary : 0;
        sum.experts += experts / ep_size;
    }
    sum.shared += stage->has_embedding ? (double)dp_model_embedding_parameters(model) : 0;
    sum.shared += stage->has_head ? (double)dp_model_head_parameters(model) : 0;
    if (stage->has_embedding && stage->has_head && model->tied_embedding > 0) {
        sum.shared -= (double)model->hidden * model->vocabulary;
    }
    *ret_parameters = sum;
}

double dp_cost_state_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                           const struct dp_cost_stage *stages, int32_t stages_count,
                           int32_t ep_size, int32_t data, bool is_sharded)
{
    bool sharded = is_sharded || profile->optimizer_sharded;
    double resident = profile->weight_bytes + profile->gradient_bytes;
    double bytes = 0;
    for (int32_t i = 0; i < stages_count; i++) {
        struct dp_cost_parameters count;
        dp_cost_stage_parameters(model, &stages[i], ep_size, &count);
        double shards = sharded ? data : 1;
        double expert_shards = sharded ? (double)data / ep_size : 1;
        bytes += count.shared * (resident + profile->optimizer_bytes / shards);
        bytes += count.experts * (resident + profile->optimizer_bytes / expert_shards);
    }
    return bytes;
}
