#include "searched.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/auto.h"
#include "dp/cleanup.h"
#include "peak.h"

// About as many actions are looked at for one order.
enum { ACTIONS_TRIED = 20000000, MOVES_LEAST = 200, MOVES_MOST = 2000 };
// An order that is as slow as a family but for rounding was asked for.
#define TIE_SHARE 1e-9
// An action in a list takes no fewer bytes.
enum { BYTES_LISTED = sizeof("{\"kind\":\"F\",\"stage\":0,\"microbatch\":0},") - 1 };

void dp_planner_searched_deinit(struct searched *searched)
{
    dp_schedule_deinit(&searched->schedule);
    free(searched->layer_begin);
    free(searched->note);
    *searched = (struct searched){0};
}

struct asked {
    struct explorer *explorer;
    const struct choice *choice;
};

// The cut of as many stages by the rule of the choice, or by one before it that cuts alike.
static const struct cut *cut_of(const struct asked *asked, int32_t stages)
{
    struct cuts *cuts = asked->explorer->cuts;
    const struct cut *cut = NULL;
    for (int rule = asked->choice->split; rule >= 0 && cut == NULL; rule--) {
        cut = dp_planner_cuts_allow(cuts, stages) ? dp_planner_cuts_get(cuts, stages, rule) : NULL;
    }
    return cut;
}

// Caps are on what a rank keeps of chunks; what a running action holds besides, at most, counts as
// always there. Both parts of a pair hold theirs at once.
static uint64_t fill_rank_bytes(const struct pricing *pricing, const struct cut *cut,
                                const struct dp_schedule *shape, int32_t rank,
                                struct dp_sim_costs *costs)
{
    struct dp_stage_units units[DP_RANK_STAGES_MAX];
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(shape, rank, stages);
    double more = 1 + pricing->input.profile->memory.fragmentation_share;
    double forward = 0, backward = 0;
    for (int32_t slot = 0; slot < count; slot++) {
        struct dp_chunk_bytes bytes;
        units[slot] = cut->classes[cut->class_of[stages[slot]]];
        dp_memory_chunk(pricing->price.bytes, &units[slot], &bytes);
        double kept = ceil(more * fmax(bytes.after_forward, bytes.after_input));
        struct dp_sim_chunk *chunk = dp_sim_chunk_at(costs, rank, slot);
        chunk->activation_bytes = (uint64_t)kept;
        chunk->released_at_i_bytes = (uint64_t)floor(kept - more * bytes.after_input);
        forward = fmax(forward, more * bytes.forward_peak - kept);
        backward = fmax(backward, more * fmax(bytes.backward_peak, bytes.input_peak));
    }
    struct dp_unit_parameters held;
    struct dp_memory_parts parts = {0};
    dp_memory_held(&pricing->input, pricing->price.bytes, units, count, &held);
    dp_memory_state(&pricing->input, &held, shape->directions, &parts);
    dp_planner_peak_fragments(pricing->input.profile, &parts);
    return (uint64_t)ceil(dp_memory_total(&parts) + fmax(0, forward) + backward);
}

static dp_status costs_of(void *context, const struct dp_schedule *shape,
                          struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                          struct dp_error *err)
{
    const struct asked *asked = context;
    const struct cut *cut = cut_of(asked, shape->stages);
    if (cut == NULL) {
        return dp_fail(err, DP_INVALID, "%d stages of a model that has %d layers", shape->stages,
                       asked->explorer->problem->spec->model.layers);
    }
    DP_AUTO_FREE struct pricing *pricing = dp_new(struct pricing);
    pricing->price = dp_planner_prices_get(asked->explorer, asked->choice)->price;
    dp_planner_strategy_of(asked->explorer, asked->choice, &pricing->strategy);
    pricing->input = dp_planner_price_input(asked->explorer, asked->choice, &pricing->strategy);
    dp_planner_pricing_costs(pricing, cut->layer_begin, shape, ret_costs);
    for (int32_t rank = 0; rank < shape->pipeline; rank++) {
        ret_static_bytes[rank] = fill_rank_bytes(pricing, cut, shape, rank, ret_costs);
    }
    return DP_OK;
}

static int64_t moves_for(const struct choice *choice, int32_t stages)
{
    int64_t moves = ACTIONS_TRIED / (3 * (int64_t)choice->microbatches * stages);
    return moves < MOVES_LEAST ? MOVES_LEAST : moves > MOVES_MOST ? MOVES_MOST : moves;
}

// Keeps what is faster than before and really fits.
static dp_status keep_if_better(const struct asked *asked, const struct dp_schedule_family *row,
                                struct dp_auto_result *result, struct searched *searched,
                                struct dp_error *err)
{
    struct choice choice = *asked->choice;
    choice.family = row;
    choice.virtual_stages = 0;
    choice.stages = result->schedule.stages;
    const struct cut *cut = cut_of(asked, choice.stages);
    DP_CLEANUP(dp_planner_appraisal_deinit) struct appraisal appraisal = {0};
    dp_status status = dp_planner_appraise_with(asked->explorer, &choice, cut->layer_begin,
                                                asked->explorer->problem->profile,
                                                &result->schedule, &appraisal, err);
    double limit = asked->explorer->memory_limit;
    bool fits = limit <= 0 || appraisal.fullest_bytes <= limit;
    if (status != DP_OK || !fits ||
        (searched->layer_begin != NULL && appraisal.result.step >= searched->step_s)) {
        return status;
    }
    dp_planner_searched_deinit(searched);
    *searched = (struct searched){
        .choice = choice,
        .schedule = result->schedule,
        .layer_begin =
            dp_memdup(cut->layer_begin, ((size_t)cut->stages + 1) * sizeof(*cut->layer_begin)),
        .step_s = appraisal.result.step,
        .note = dp_planner_order_describe(result, row),
    };
    result->schedule = (struct dp_schedule){0};
    return DP_OK;
}

static dp_status search_row(const struct asked *asked, size_t row, const uint64_t *caps,
                            struct searched *searched, struct dp_error *err)
{
    size_t rows_count;
    const struct dp_schedule_family *rows = dp_planner_order_rows(&rows_count);
    const struct problem *problem = asked->explorer->problem;
    const struct dp_auto_problem request = {
        .pipeline = asked->choice->pipeline,
        .microbatches = asked->choice->microbatches,
        .costs = costs_of,
        .context = (void *)asked,
        .memory_cap = asked->explorer->memory_limit > 0 ? caps : NULL,
        .placements = dp_planner_order_placement(&rows[row]),
        .virtual_stages = rows[row].stages_per_rank / rows[row].directions};
    int32_t stages = request.pipeline * rows[row].stages_per_rank / rows[row].directions;
    const struct dp_auto_options options = {.moves_max = moves_for(asked->choice, stages),
                                            .stop = problem->stop,
                                            .context = problem->stop_context};
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = {0};
    dp_status status = dp_auto_search(&request, &options, &result, err);
    if (status == DP_OK && result.is_stopped) {
        return dp_fail(err, DP_INTERRUPTED, "planning was stopped after %lld orders",
                       (long long)result.moves);
    }
    if (status == DP_OK) {
        return keep_if_better(asked, &rows[row], &result, searched, err);
    }
    if (status != DP_INTERRUPTED && searched->note == NULL) {
        searched->note =
            dp_asprintf("auto with the stages placed %s: %s\n", rows[row].summary, err->message);
    }
    return status == DP_INTERRUPTED ? status : DP_OK;
}

dp_status dp_planner_searched_find(struct explorer *explorer, const struct search *search,
                                   struct searched *ret_searched, struct dp_error *err)
{
    const struct choice *choice = &search->outcomes[search->best].choice;
    size_t rows_count;
    const struct dp_schedule_family *rows = dp_planner_order_rows(&rows_count);
    struct asked asked = {explorer, choice};
    uint64_t caps[DP_PIPELINE_MAX];
    for (int32_t rank = 0; rank < choice->pipeline; rank++) {
        caps[rank] = (uint64_t)explorer->memory_limit;
    }
    struct searched searched = {0};
    dp_status status = DP_OK;
    for (size_t row = 0; row < rows_count && status == DP_OK; row++) {
        int32_t stages = choice->pipeline * rows[row].stages_per_rank / rows[row].directions;
        // At least a forward and a backward of each chunk.
        size_t actions = 2 * (size_t)stages * (size_t)choice->microbatches;
        if (actions * BYTES_LISTED <= DP_PLAN_SCHEDULE_BYTES_MAX) {
            status = search_row(&asked, row, caps, &searched, err);
        } else if (searched.note == NULL) {
            struct dp_error why = {0};
            dp_planner_order_is_too_long(actions, actions * BYTES_LISTED, &why);
            searched.note = dp_asprintf("auto: %s\n", why.message);
        }
    }
    if (status == DP_OK && searched.layer_begin != NULL &&
        searched.step_s > search->outcomes[search->best].step_s * (1 + TIE_SHARE)) {
        free(searched.layer_begin);
        searched.layer_begin = NULL; // the families do better: the note says how close it came
    }
    if (status != DP_OK) {
        dp_planner_searched_deinit(&searched);
        return status;
    }
    *ret_searched = searched;
    return DP_OK;
}
