// The first look at a candidate: a bound on its step and its exact memory.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "explorer.h"
#include "peak.h"

// Kinds of ranks that are kept for one division, of them those of one candidate; classes whose
// pairs are kept.
enum { KINDS_MAX = 512, KINDS_USED_MAX = 32, PAIRS_KNOWN = 24 };
// A bound adds up in another order than the simulator does: room for what that rounds.
#define ROUNDING (1 - 1e-12)

// Ranks that hold stages of the same classes of a cut.
struct kind {
    const struct cut *cut;
    int32_t directions;
    int32_t classes[DP_RANK_STAGES_MAX];
    int32_t slots;
    struct dp_step_end end;
    struct dp_memory_parts parts;
};

struct scorer {
    struct dp_chunk_price prices[DP_STAGES_MAX]; // by class
    struct dp_chunk_bytes bytes[DP_STAGES_MAX];
    double pairs[PAIRS_KNOWN][PAIRS_KNOWN][2]; // by class of F and of B; negative = not known
    struct choice division;                    // that the kinds are of
    struct kind kinds[KINDS_MAX];
    int32_t kinds_count;
    int32_t used[KINDS_USED_MAX]; // by the candidate
    int32_t used_count;
    double *seconds; // [pipeline][terms]
    size_t seconds_room;
    double gradient_s[DP_PIPELINE_MAX], optimizer_s[DP_PIPELINE_MAX];
};

struct scorer *dp_planner_scorer_new(void)
{
    return dp_new(struct scorer);
}

void dp_planner_scorer_free(struct scorer *scorer)
{
    free(scorer->seconds);
    free(scorer);
}

// What is known of the candidate while it is looked at.
struct look {
    struct scorer *scorer;
    const struct explorer *explorer;
    const struct shape *shape;
    const struct cut *cut;
    const struct dp_price *price;
    const struct dp_price_input *input;
};

static double pair_s(const struct look *look, int32_t forward, int32_t backward, bool with_weight)
{
    struct scorer *scorer = look->scorer;
    bool is_kept = forward < PAIRS_KNOWN && backward < PAIRS_KNOWN;
    if (is_kept && scorer->pairs[forward][backward][with_weight] >= 0) {
        return scorer->pairs[forward][backward][with_weight];
    }
    double seconds = dp_price_pair_s(look->price, &scorer->prices[forward],
                                     &scorer->prices[backward], with_weight, NULL);
    if (is_kept) {
        scorer->pairs[forward][backward][with_weight] = seconds;
    }
    return seconds;
}

static double term_s(const struct look *look, const struct shape_rank *rank,
                     const struct shape_term *term)
{
    int32_t class = look->cut->class_of[rank->stages[term->slot]];
    const struct dp_chunk_price *chunk = &look->scorer->prices[class];
    switch (term->kind) {
    case DP_ACTION_F:
        return dp_price_forward_s(chunk);
    case DP_ACTION_I:
        return dp_price_input_s(chunk);
    case DP_ACTION_W:
        return dp_price_weight_s(chunk);
    case DP_ACTION_B:
        return dp_price_input_s(chunk) + dp_price_weight_s(chunk);
    default:
        return pair_s(look, class, look->cut->class_of[rank->stages[term->b_slot]],
                      term->b_kind == DP_ACTION_B);
    }
}

static void fill_kind(const struct look *look, const struct shape_rank *rank, struct kind *kind)
{
    struct dp_stage_units stages[DP_RANK_STAGES_MAX];
    kind->cut = look->cut;
    kind->directions = look->shape->directions;
    kind->slots = rank->slots;
    for (int32_t slot = 0; slot < rank->slots; slot++) {
        kind->classes[slot] = look->cut->class_of[rank->stages[slot]];
        stages[slot] = look->cut->classes[kind->classes[slot]];
    }
    struct dp_unit_parameters held;
    dp_memory_held(look->input, look->price->bytes, stages, rank->slots, &held);
    kind->parts = (struct dp_memory_parts){0};
    dp_memory_state(look->input, &held, look->shape->directions, &kind->parts);
    dp_price_step_end(look->input, &held, look->shape->directions, &kind->end);
}

static bool is_of(const struct look *look, const struct shape_rank *rank, const struct kind *kind)
{
    if (kind->cut != look->cut || kind->directions != look->shape->directions ||
        kind->slots != rank->slots) {
        return false;
    }
    for (int32_t slot = 0; slot < rank->slots; slot++) {
        if (kind->classes[slot] != look->cut->class_of[rank->stages[slot]]) {
            return false;
        }
    }
    return true;
}

static const struct kind *kind_of(const struct look *look, const struct shape_rank *rank)
{
    struct scorer *scorer = look->scorer;
    for (int32_t i = 0; i < scorer->used_count; i++) {
        if (is_of(look, rank, &scorer->kinds[scorer->used[i]])) {
            return &scorer->kinds[scorer->used[i]];
        }
    }
    int32_t found = 0;
    while (found < scorer->kinds_count && !is_of(look, rank, &scorer->kinds[found])) {
        found++;
    }
    if (found == KINDS_MAX) {
        found = scorer->kinds_count = scorer->used_count = 0; // all of them are found again
    }
    if (found == scorer->kinds_count) {
        fill_kind(look, rank, &scorer->kinds[scorer->kinds_count++]);
    }
    if (scorer->used_count < KINDS_USED_MAX) {
        scorer->used[scorer->used_count++] = found;
    }
    return &scorer->kinds[found];
}

static double rank_bytes(const struct look *look, const struct shape_rank *rank,
                         const struct kind *kind)
{
    struct dp_chunk_bytes chunks[DP_RANK_STAGES_MAX];
    double running[8 * DP_RANK_STAGES_MAX];
    for (int32_t slot = 0; slot < rank->slots; slot++) {
        chunks[slot] = look->scorer->bytes[kind->classes[slot]];
    }
    for (int32_t t = 0; t < rank->terms_count; t++) {
        const struct shape_term *term = &rank->terms[t];
        running[t] =
            dp_planner_peak_running(chunks, term->kind, term->b_kind, term->slot, term->b_slot);
    }
    double most = 0;
    for (int32_t i = 0; i < rank->live_count; i++) {
        const struct shape_live *live = &rank->live[i];
        double bytes = running[live->term];
        for (int32_t slot = 0; slot < rank->slots; slot++) {
            bytes += live->chunks[slot] * chunks[slot].after_forward +
                     live->chunks[rank->slots + slot] * chunks[slot].after_input;
        }
        most = bytes > most ? bytes : most;
    }
    struct dp_memory_parts parts = kind->parts;
    parts.activations = most;
    dp_planner_peak_fragments(look->input->profile, &parts);
    return dp_memory_total(&parts);
}

static void reserve(struct scorer *scorer, const struct shape *shape)
{
    size_t needed = (size_t)shape->pipeline * (size_t)shape->terms_max;
    if (needed > scorer->seconds_room) {
        scorer->seconds_room = needed;
        scorer->seconds = dp_realloc(scorer->seconds, needed, sizeof(*scorer->seconds));
    }
}

static void price_classes(const struct look *look)
{
    struct scorer *scorer = look->scorer;
    int32_t count = look->cut->classes_count;
    for (int32_t class = 0; class < count; class ++) {
        dp_price_chunk(look->price, &look->cut->classes[class], &scorer->prices[class]);
        dp_memory_chunk(look->price->bytes, &look->cut->classes[class], &scorer->bytes[class]);
    }
    int32_t known = count < PAIRS_KNOWN ? count : PAIRS_KNOWN;
    for (int32_t f = 0; f < known; f++) {
        for (int32_t b = 0; b < known; b++) {
            scorer->pairs[f][b][0] = scorer->pairs[f][b][1] = -1;
        }
    }
    scorer->used_count = 0;
}

// Kinds hold for all schedules and cuts of one division.
static void forget_kinds(struct scorer *scorer, const struct choice *choice)
{
    const struct choice *known = &scorer->division;
    if (known->mesh != choice->mesh || known->micro_batch_size != choice->micro_batch_size ||
        known->recompute != choice->recompute || known->shard != choice->shard ||
        known->pipeline != choice->pipeline || known->data != choice->data ||
        known->tensor != choice->tensor || known->context != choice->context ||
        known->expert != choice->expert || scorer->kinds_count == 0) {
        scorer->kinds_count = 0;
        scorer->division = *choice;
    }
}

void dp_planner_score(struct explorer *explorer, const struct choice *choice,
                      struct score *ret_score)
{
    struct scorer *scorer = explorer->scorer;
    struct dp_strategy strategy;
    dp_planner_strategy_of(explorer, choice, &strategy);
    const struct dp_price_input input = dp_planner_price_input(explorer, choice, &strategy);
    const struct shape *shape = dp_planner_shapes_get(explorer, choice);
    const struct look look = {
        .scorer = scorer,
        .explorer = explorer,
        .shape = shape,
        .cut = dp_planner_cuts_get(explorer->cuts, choice->stages, choice->split),
        .price = &dp_planner_prices_get(explorer, choice)->price,
        .input = &input,
    };
    reserve(scorer, shape);
    forget_kinds(scorer, choice);
    price_classes(&look);
    struct score score = {.bytes = -1};
    for (int32_t r = 0; r < shape->pipeline; r++) {
        const struct shape_rank *rank = &shape->ranks[r];
        const struct kind *kind = kind_of(&look, rank);
        scorer->gradient_s[r] = kind->end.gradient_s;
        scorer->optimizer_s[r] = kind->end.optimizer_s;
        double *seconds = scorer->seconds + (size_t)r * (size_t)shape->terms_max;
        for (int32_t t = 0; t < rank->terms_count; t++) {
            seconds[t] = term_s(&look, rank, &rank->terms[t]);
        }
        double bytes = rank_bytes(&look, rank, kind);
        if (bytes > score.bytes) {
            score.bytes = bytes;
            score.position = r;
        }
    }
    const struct shape_costs costs = {scorer->seconds, look.price->hop_s, scorer->gradient_s,
                                      scorer->optimizer_s};
    score.bound_s = ROUNDING * dp_planner_shape_bound_s(shape, &costs, NULL);
    explorer->scored++;
    dp_planner_explorer_works(explorer, 1);
    *ret_score = score;
}

// Units of the whole model, and of the average rank.
static void whole_model(const struct explorer *explorer, double ret_counts[DP_UNIT_COUNT])
{
    const struct dp_model_spec *model = &explorer->problem->spec->model;
    struct dp_stage_units units = dp_stage_units_of(model, 0, model->layers, true, true);
    for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
        ret_counts[unit] = units.count[unit];
    }
}

// Of the seconds that one micro-batch takes in each unit.
static double bound_of_units(const struct explorer *explorer, const struct choice *division,
                             const double least[DP_UNIT_COUNT])
{
    const struct dp_model_spec *model = &explorer->problem->spec->model;
    double counts[DP_UNIT_COUNT], all = 0, layer = INFINITY;
    whole_model(explorer, counts);
    for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
        bool is_layer = unit == DP_UNIT_DENSE || unit == DP_UNIT_MOE;
        all += counts[unit] * least[unit];
        layer = is_layer && counts[unit] > 0 ? fmin(layer, least[unit]) : layer;
    }
    // Some rank holds no fewer layers than the mean, or half as many of both directions.
    int32_t halves = (2 * model->layers + division->pipeline - 1) / division->pipeline;
    return ROUNDING * division->microbatches * fmax(all / division->pipeline, 0.5 * halves * layer);
}

double dp_planner_division_bound_s(struct explorer *explorer, const struct choice *division)
{
    const struct price_entry *entry = dp_planner_prices_get(explorer, division);
    return bound_of_units(explorer, division, entry->least_s[division->split != 0]);
}

double dp_planner_compute_bound_s(struct explorer *explorer, const struct choice *division)
{
    const struct price_entry *entry = dp_planner_prices_get(explorer, division);
    double least[DP_UNIT_COUNT];
    for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
        const struct dp_unit_price *price = &entry->price.units[unit];
        least[unit] = price->forward_s + price->input_s + price->weight_s;
    }
    return bound_of_units(explorer, division, least);
}

double dp_planner_division_bytes(struct explorer *explorer, const struct choice *division)
{
    const struct dp_price *price = &dp_planner_prices_get(explorer, division)->price;
    struct dp_strategy strategy;
    dp_planner_strategy_of(explorer, division, &strategy);
    const struct dp_price_input input = dp_planner_price_input(explorer, division, &strategy);
    double counts[DP_UNIT_COUNT];
    whole_model(explorer, counts);
    struct dp_unit_parameters held = {0};
    for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
        held.dense += counts[unit] * price->bytes[unit].parameters.dense / division->pipeline;
        held.experts += counts[unit] * price->bytes[unit].parameters.experts / division->pipeline;
    }
    struct dp_memory_parts parts = {0};
    dp_memory_state(&input, &held, 1, &parts);
    dp_planner_peak_fragments(input.profile, &parts);
    return dp_memory_total(&parts);
}
