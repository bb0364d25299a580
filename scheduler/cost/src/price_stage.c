// Sums of unit prices: chunks, the actions on them, and overlapped pairs.

#include <math.h>

#include "dp/price.h"

struct dp_stage_units dp_stage_units_of(const struct dp_model_spec *model, int32_t layer_begin,
                                        int32_t layer_end, bool is_first, bool is_last)
{
    struct dp_stage_units units = {{0}};
    for (int32_t layer = layer_begin; layer < layer_end; layer++) {
        units.count[dp_model_layer_is_moe(model, layer) ? DP_UNIT_MOE : DP_UNIT_DENSE]++;
    }
    units.count[DP_UNIT_EMBEDDING] = is_first;
    units.count[DP_UNIT_HEAD] = is_last;
    units.count[DP_UNIT_MTP] = is_last ? model->mtp_layers : 0;
    return units;
}

void dp_price_chunk(const struct dp_price *price, const struct dp_stage_units *stage,
                    struct dp_chunk_price *ret_chunk)
{
    struct dp_chunk_price sum = {
        .forward_s = price->action_overhead_s,
        .input_s = price->action_overhead_s,
        .weight_s = price->action_overhead_s,
    };
    for (int i = 0; i < DP_UNIT_COUNT; i++) {
        double times = stage->count[i];
        const struct dp_unit_price *unit = &price->units[i];
        sum.forward_s += times * unit->forward_s;
        sum.input_s += times * unit->input_s;
        sum.weight_s += times * unit->weight_s;
        sum.forward_wait_s += times * unit->forward_wait_s;
        sum.backward_wait_s += times * unit->backward_wait_s;
        sum.forward_exchange_s += times * unit->forward_exchange_s;
        sum.backward_exchange_s += times * unit->backward_exchange_s;
    }
    *ret_chunk = sum;
}

double dp_price_forward_s(const struct dp_chunk_price *chunk)
{
    return chunk->forward_s + chunk->forward_wait_s + chunk->forward_exchange_s;
}

double dp_price_input_s(const struct dp_chunk_price *chunk)
{
    return chunk->input_s + chunk->backward_wait_s + chunk->backward_exchange_s;
}

double dp_price_weight_s(const struct dp_chunk_price *chunk)
{
    return chunk->weight_s;
}

double dp_price_pair_s(const struct dp_price *price, const struct dp_chunk_price *forward,
                       const struct dp_chunk_price *backward, bool with_weight,
                       double *ret_exposed_s)
{
    double compute =
        forward->forward_s + backward->input_s + (with_weight ? backward->weight_s : 0);
    double wait = forward->forward_wait_s + backward->backward_wait_s;
    double alone = forward->forward_exchange_s + backward->backward_exchange_s;
    double best = compute + wait + alone, exposed = wait + alone;
    // Without an exchange there is nothing to hide: F, then B.
    for (int32_t i = 0; alone > 0 && i < price->pair_modes_count; i++) {
        const struct dp_pair_mode *mode = &price->pair_modes[i];
        double slowed = compute / (1 - mode->device_share);
        double exchange = alone * mode->exchange_factor + mode->hops_s;
        double shown = exchange * mode->exposed_share;
        double seconds = fmax(slowed + wait, exchange - shown) + shown;
        if (i == 0 || seconds < best) {
            best = seconds;
            exposed = seconds - slowed;
        }
    }
    if (ret_exposed_s != NULL) {
        *ret_exposed_s = exposed;
    }
    return best;
}
