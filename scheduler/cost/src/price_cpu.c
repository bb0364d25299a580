// Prices of this project's own executor on CPU cores: what dp/cost.h says of single layers.

#include "dp/cost.h"
#include "price_internal.h"

static struct dp_cost_batch batch_of(const struct dp_price_input *input)
{
    const struct dp_span *expert = &input->spans.expert;
    int32_t inside = expert->level > 0 && expert->inside > 0 ? expert->inside : expert->ranks;
    return (struct dp_cost_batch){
        .samples = input->strategy->micro_batch_size,
        .sequence = input->sequence,
        .ep_size = input->strategy->expert,
        .ep_nodes = (expert->ranks + inside - 1) / inside,
    };
}

static struct dp_unit_price unit_of(const struct dp_price_input *input,
                                    const struct dp_cost_stage *stage)
{
    struct dp_cost_batch batch = batch_of(input);
    struct dp_cost_chunk chunk;
    dp_cost_chunk(input->model, input->profile, stage, &batch, &chunk);
    double action_s = input->profile->action_overhead_s;
    return (struct dp_unit_price){
        .forward_s = chunk.forward_s - action_s,
        .input_s = chunk.input_s - action_s,
        .weight_s = chunk.weight_s - action_s,
        .forward_exchange_s = chunk.forward_exchange_s,
        .backward_exchange_s = chunk.backward_exchange_s,
    };
}

// MTP is not priced.
void dp_price_cpu_units(const struct dp_price_input *input, struct dp_price *ret_price)
{
    const struct dp_model_spec *m = input->model;
    const struct dp_profile *profile = input->profile;
    struct dp_cost_batch batch = batch_of(input);
    int32_t last = m->layers - 1;
    bool has_dense = !dp_model_layer_is_moe(m, 0), has_moe = dp_model_layer_is_moe(m, last);
    const struct {
        bool exists;
        dp_unit unit;
        struct dp_cost_stage stage;
    } rows[] = {
        {has_dense, DP_UNIT_DENSE, {0, 1, false, false, false}},
        {has_moe, DP_UNIT_MOE, {last, last + 1, false, false, false}},
        {true, DP_UNIT_EMBEDDING, {0, 0, true, false, false}},
        {true, DP_UNIT_HEAD, {0, 0, false, true, false}},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].exists) {
            ret_price->units[rows[i].unit] = unit_of(input, &rows[i].stage);
        }
    }
    double tokens = (double)batch.samples * batch.sequence;
    double sequence = batch.sequence;
    for (int i = DP_UNIT_DENSE; i <= DP_UNIT_MOE; i++) {
        int32_t layer = i == DP_UNIT_MOE ? last : 0;
        double active = (double)dp_model_layer_shared_parameters(m, layer);
        active += i == DP_UNIT_MOE ? 3.0 * m->hidden * m->expert_ffn * m->top_k : 0;
        double width = m->mla_kv_rank > 0 ? m->mla_nope_dim + m->mla_rope_dim + m->mla_v_dim
                                          : 2.0 * m->head_dim;
        ret_price->units[i].flops = tokens * (2 * active + sequence * m->heads * width);
    }
    ret_price->units[DP_UNIT_HEAD].flops = 2 * tokens * m->hidden * m->vocabulary;
    ret_price->action_overhead_s = profile->action_overhead_s;
    ret_price->hop_bytes = dp_cost_hop_bytes(m, profile, &batch);
    const struct dp_link_profile *link =
        input->spans.hop.level > 0 ? &profile->network : &profile->local;
    ret_price->hop_s = link->latency_s + ret_price->hop_bytes / link->bytes_per_s;
    bool overlaps = profile->exchange_hidden_share > 0;
    ret_price->pair_modes_count = 1;
    ret_price->pair_modes[0] = (struct dp_pair_mode){
        .device_share = overlaps ? profile->exchange_device_share : 0,
        .exchange_factor = 1,
        .exposed_share = overlaps ? 1 - profile->exchange_hidden_share : 1,
    };
}

void dp_price_cpu_step_end(const struct dp_price_input *input,
                           const struct dp_unit_parameters *held, const struct dp_span *dense,
                           const struct dp_span *experts, struct dp_step_end *ret_end)
{
    const struct dp_profile *profile = input->profile;
    const struct dp_link_profile *dense_link =
        dense->level > 0 ? &profile->network : &profile->local;
    const struct dp_link_profile *expert_link =
        experts->level > 0 ? &profile->network : &profile->local;
    double bytes = profile->element_bytes;
    ret_end->gradient_s = dp_cost_sum_s(dense_link, held->dense * bytes, dense->ranks) +
                          dp_cost_sum_s(expert_link, held->experts * bytes, experts->ranks);
    ret_end->optimizer_s = dp_cost_optimizer_s(profile, held->dense + held->experts);
}
