#include "simulation.h"

#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

// What stages are made of and take, by stage.
struct stages {
    struct dp_stage_units units[DP_STAGES_MAX];
    struct dp_chunk_price prices[DP_STAGES_MAX];
    struct dp_chunk_bytes bytes[DP_STAGES_MAX];
};

static void fill_stages(const struct pricing *pricing, const int32_t *layer_begin, int32_t count,
                        struct stages *stages)
{
    for (int32_t s = 0; s < count; s++) {
        stages->units[s] = dp_stage_units_of(pricing->input.model, layer_begin[s],
                                             layer_begin[s + 1], s == 0, s == count - 1);
        const struct dp_stage_units *units = &stages->units[s];
        if (s > 0 && memcmp(units, units - 1, sizeof(*units)) == 0) {
            stages->prices[s] = stages->prices[s - 1];
            stages->bytes[s] = stages->bytes[s - 1];
            continue;
        }
        dp_price_chunk(&pricing->price, &stages->units[s], &stages->prices[s]);
        dp_memory_chunk(pricing->price.bytes, &stages->units[s], &stages->bytes[s]);
    }
}

static bool has_pairs(const struct dp_schedule *schedule)
{
    for (size_t i = 0; i < dp_schedule_action_count(schedule); i++) {
        if (schedule->actions[i].kind == DP_ACTION_FB) {
            return true;
        }
    }
    return dp_schedule_action_count(schedule) == 0; // an order that is yet to be found
}

static void fill_rank(const struct pricing *pricing, const struct stages *stages, bool with_pairs,
                      const int32_t *held, int32_t count, int32_t rank, int32_t copies,
                      struct dp_sim_costs *costs)
{
    struct dp_stage_units units[DP_RANK_STAGES_MAX];
    for (int32_t f = 0; f < count; f++) {
        const struct dp_chunk_price *price = &stages->prices[held[f]];
        struct dp_sim_chunk *chunk = dp_sim_chunk_at(costs, rank, f);
        units[f] = stages->units[held[f]];
        chunk->seconds[DP_ACTION_F] = dp_price_forward_s(price);
        chunk->seconds[DP_ACTION_I] = dp_price_input_s(price);
        chunk->seconds[DP_ACTION_W] = dp_price_weight_s(price);
        chunk->seconds[DP_ACTION_B] = dp_price_input_s(price) + dp_price_weight_s(price);
        chunk->activation_bytes = (uint64_t)stages->bytes[held[f]].after_forward;
        for (int32_t b = 0; b < count && with_pairs; b++) {
            size_t pair = dp_sim_pair_index(costs, rank, f, b);
            const struct dp_chunk_price *other = &stages->prices[held[b]];
            costs->fb[pair] = dp_price_pair_s(&pricing->price, price, other, true, NULL);
            costs->fi[pair] = dp_price_pair_s(&pricing->price, price, other, false, NULL);
        }
    }
    struct dp_unit_parameters parameters;
    struct dp_step_end end;
    dp_memory_held(&pricing->input, pricing->price.bytes, units, count, &parameters);
    dp_price_step_end(&pricing->input, &parameters, copies, &end);
    costs->gradient_sync[rank] = end.gradient_s;
    costs->optimizer[rank] = end.optimizer_s;
}

void dp_planner_pricing_costs(const struct pricing *pricing, const int32_t *layer_begin,
                              const struct dp_schedule *schedule, struct dp_sim_costs *ret_costs)
{
    DP_AUTO_FREE struct stages *stages = dp_new(struct stages);
    fill_stages(pricing, layer_begin, schedule->stages, stages);
    bool with_pairs = has_pairs(schedule);
    dp_sim_costs_init(ret_costs, schedule);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        int32_t held[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(schedule, rank, held);
        fill_rank(pricing, stages, with_pairs, held, count, rank, schedule->directions, ret_costs);
    }
    const struct dp_schedule_family *family = dp_schedule_family_find(schedule->name);
    if (family != NULL && family->waits && pricing->input.profile->device.hop_waits >= 0.5) {
        ret_costs->p2p = DP_SIM_P2P_BLOCKING;
    }
    // All of a hop's time occupies the link.
    ret_costs->message_bytes_f = ret_costs->message_bytes_b = pricing->price.hop_bytes;
    for (int32_t a = 0; a < schedule->pipeline; a++) {
        for (int32_t b = 0; b < schedule->pipeline; b++) {
            struct dp_sim_hop *hop = dp_sim_hop_at(ret_costs, a, b);
            bool moves = a != b && pricing->price.hop_s > 0;
            hop->bytes_per_second = moves ? pricing->price.hop_bytes / pricing->price.hop_s : 0;
        }
    }
}
