#include "appraise.h"

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "peak.h"

void dp_planner_appraisal_deinit(struct appraisal *appraisal)
{
    free(appraisal->layer_begin);
    free(appraisal->positions);
    if (!appraisal->is_borrowed) {
        dp_schedule_deinit(&appraisal->schedule);
    }
    dp_sim_costs_deinit(&appraisal->costs);
    dp_sim_result_deinit(&appraisal->result);
    *appraisal = (struct appraisal){0};
}

// A rank's stages while it is looked at.
struct held {
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count;
    struct dp_stage_units units[DP_RANK_STAGES_MAX];
    struct dp_chunk_price prices[DP_RANK_STAGES_MAX];
    struct dp_chunk_bytes bytes[DP_RANK_STAGES_MAX];
    int32_t slot_of[DP_STAGES_MAX];
};

static void fill_held(const struct appraisal *appraisal, int32_t rank, struct held *held)
{
    const struct pricing *pricing = &appraisal->pricing;
    int32_t last = appraisal->schedule.stages - 1;
    held->count = dp_schedule_rank_stages(&appraisal->schedule, rank, held->stages);
    for (int32_t i = 0; i < held->count; i++) {
        int32_t stage = held->stages[i];
        held->slot_of[stage] = i;
        held->units[i] =
            dp_stage_units_of(pricing->input.model, appraisal->layer_begin[stage],
                              appraisal->layer_begin[stage + 1], stage == 0, stage == last);
        dp_price_chunk(&pricing->price, &held->units[i], &held->prices[i]);
        dp_memory_chunk(pricing->price.bytes, &held->units[i], &held->bytes[i]);
    }
}

// What is inside an action besides compute.
static void add_inside(const struct appraisal *appraisal, const struct held *held,
                       const struct dp_action *action, struct dp_plan_position *position)
{
    const struct dp_chunk_price *chunk = &held->prices[held->slot_of[action->stage]];
    switch (action->kind) {
    case DP_ACTION_F:
        position->wait_s += chunk->forward_wait_s;
        position->exchange_s += chunk->forward_exchange_s;
        break;
    case DP_ACTION_B:
    case DP_ACTION_I:
        position->wait_s += chunk->backward_wait_s;
        position->exchange_s += chunk->backward_exchange_s;
        break;
    case DP_ACTION_FB: {
        const struct dp_chunk_price *other = &held->prices[held->slot_of[action->b_stage]];
        double exposed, wait = chunk->forward_wait_s + other->backward_wait_s;
        dp_price_pair_s(&appraisal->pricing.price, chunk, other, action->b_kind == DP_ACTION_B,
                        &exposed);
        double shown = fmax(0, exposed - wait);
        position->wait_s += fmin(wait, exposed);
        position->exchange_s += shown;
        position->hidden_s +=
            fmax(0, chunk->forward_exchange_s + other->backward_exchange_s - shown);
        break;
    }
    default:
        break;
    }
}

static void fill_seconds(const struct appraisal *appraisal, const struct held *held, int32_t rank,
                         struct dp_plan_position *position)
{
    const struct dp_schedule *schedule = &appraisal->schedule;
    const struct dp_sim_rank *sim = &appraisal->result.ranks[rank];
    position->forward_s = sim->busy[DP_ACTION_F];
    position->backward_s = sim->busy[DP_ACTION_B];
    position->backward_weight_s =
        dp_planner_backward_weight_s(schedule, &appraisal->costs, rank, position->backward_s);
    position->input_s = sim->busy[DP_ACTION_I];
    position->weight_s = sim->busy[DP_ACTION_W];
    position->overlapped_s = sim->busy[DP_ACTION_FB];
    position->gradient_s = appraisal->costs.gradient_sync[rank];
    position->optimizer_s = appraisal->costs.optimizer[rank];
    position->hop_s = sim->comm;
    double busy = dp_sim_rank_busy(sim);
    position->bubble_s =
        fmax(0, appraisal->result.step - busy - position->gradient_s - position->optimizer_s);
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        add_inside(appraisal, held, &schedule->actions[i], position);
    }
    position->compute_s = fmax(0, busy - position->wait_s - position->exchange_s);
}

static void fill_memory(const struct explorer *explorer, const struct appraisal *appraisal,
                        const struct held *held, int32_t rank, struct dp_plan_position *position)
{
    const struct pricing *pricing = &appraisal->pricing;
    struct peak peak;
    dp_memory_held(&pricing->input, pricing->price.bytes, held->units, held->count,
                   &position->held);
    dp_memory_state(&pricing->input, &position->held, appraisal->schedule.directions,
                    &position->memory);
    dp_planner_peak_walk(&appraisal->schedule, rank, held->bytes, &peak);
    position->memory.activations = peak.activations;
    position->memory.deferred = peak.deferred;
    position->memory.transient = peak.transient;
    dp_planner_peak_fragments(pricing->input.profile, &position->memory);
    position->memory_at_s = appraisal->result.spans[peak.action].start;
    position->memory_limit_bytes = explorer->memory_limit;
}

static void fill_positions(const struct explorer *explorer, struct appraisal *appraisal)
{
    int32_t pipeline = appraisal->schedule.pipeline;
    appraisal->positions = dp_new_array(struct dp_plan_position, (size_t)pipeline);
    DP_AUTO_FREE struct held *held = dp_new(struct held);
    appraisal->fullest_bytes = -1;
    for (int32_t rank = 0; rank < pipeline; rank++) {
        struct dp_plan_position *position = &appraisal->positions[rank];
        fill_held(appraisal, rank, held);
        fill_seconds(appraisal, held, rank, position);
        fill_memory(explorer, appraisal, held, rank, position);
        double bytes = dp_memory_total(&position->memory);
        if (bytes > appraisal->fullest_bytes) {
            appraisal->fullest = rank;
            appraisal->fullest_bytes = bytes;
        }
        if (position->bubble_s < appraisal->positions[appraisal->critical].bubble_s) {
            appraisal->critical = rank;
        }
    }
}

dp_status dp_planner_appraise_with(struct explorer *explorer, const struct choice *choice,
                                   const int32_t *layer_begin, const struct dp_profile *profile,
                                   const struct dp_schedule *order, struct appraisal *ret_appraisal,
                                   struct dp_error *err)
{
    struct appraisal *appraisal = ret_appraisal;
    const struct dp_schedule_params params = {.pipeline = choice->pipeline,
                                              .microbatches = choice->microbatches,
                                              .virtual_stages = choice->virtual_stages};
    *appraisal = (struct appraisal){.choice = *choice, .is_borrowed = order != NULL};
    dp_status status = DP_OK;
    if (order != NULL) {
        appraisal->schedule = *order;
    } else {
        status = dp_schedule_generate(choice->family->name, &params, &appraisal->schedule, err);
    }
    if (status != DP_OK) {
        return status;
    }
    struct pricing *pricing = &appraisal->pricing;
    dp_planner_strategy_of(explorer, choice, &pricing->strategy);
    pricing->input = dp_planner_price_input(explorer, choice, &pricing->strategy);
    pricing->input.profile = profile;
    dp_price_units(&pricing->input, &pricing->price);
    appraisal->layer_begin =
        dp_memdup(layer_begin, ((size_t)choice->stages + 1) * sizeof(*layer_begin));
    dp_planner_pricing_costs(pricing, layer_begin, &appraisal->schedule, &appraisal->costs);
    status = dp_simulate(&appraisal->schedule, &appraisal->costs, true, &appraisal->result, err);
    if (status == DP_OK) {
        fill_positions(explorer, appraisal);
    }
    return status;
}

dp_status dp_planner_appraise(struct explorer *explorer, const struct choice *choice,
                              struct appraisal *ret_appraisal, struct dp_error *err)
{
    const struct cut *cut = dp_planner_cuts_get(explorer->cuts, choice->stages, choice->split);
    return dp_planner_appraise_with(explorer, choice, cut->layer_begin, explorer->problem->profile,
                                    NULL, ret_appraisal, err);
}
