// Where the search starts: placements, and what the fixed families make of them.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "search.h"

// So many actions of families' orders are looked at, some seconds' work; of ranks that share cores
// or block on messages fewer, which take longer.
#define FAMILIES_ACTIONS 1.2e8
#define FAMILIES_ACTIONS_SLOW 2e7
// Making and simulating one takes so many times what looking at it in the search takes.
enum { FAMILY_WORK = 5 };

// Notes a placement that the caps rule out. Returns whether they do.
static bool is_too_tight(struct search *search, const struct entry *entry)
{
    uint64_t excess = 0, needed = 0;
    int32_t worst = -1;
    const struct dp_auto_problem *problem = search->problem;
    for (int32_t rank = 0; problem->memory_cap != NULL && rank < problem->pipeline; rank++) {
        uint64_t least =
            entry->field.static_bytes[rank] + dp_auto_entry_least_bytes(entry, rank);
        uint64_t cap = problem->memory_cap[rank];
        if (least > cap && least - cap > excess) {
            excess = least - cap;
            needed = least;
            worst = rank;
        }
    }
    if (worst >= 0 && (search->tight.status == DP_OK || excess < search->least_excess)) {
        search->least_excess = excess;
        dp_fail(&search->tight, DP_INVALID,
                "no order fits: of %d stages rank %d needs at least %llu bytes (%llu of them all "
                "the time, the others for one micro-batch) and may use %llu; raise its cap, or "
                "take more ranks or smaller micro-batches",
                entry->field.shape.stages, worst, (unsigned long long)needed,
                (unsigned long long)entry->field.static_bytes[worst],
                (unsigned long long)problem->memory_cap[worst]);
    }
    return worst >= 0;
}

// Takes the shape. The entry's index, or -1 when the placement is left out.
static int32_t add_entry(struct search *search, struct dp_schedule *shape)
{
    const struct dp_auto_problem *problem = search->problem;
    DP_AUTO_FREE uint64_t *fixed = dp_new_array(uint64_t, (size_t)problem->pipeline);
    struct dp_sim_costs costs = {0};
    struct dp_error why = {0};
    dp_status status = DP_INVALID;
    if (search->count < AUTO_ENTRIES_MAX) {
        status = problem->costs(problem->context, shape, &costs, fixed, &why);
    }
    if (status == DP_OK) {
        status = dp_sim_costs_check(&costs, shape, &why);
    }
    if (status != DP_OK) {
        search->refused = why;
        dp_sim_costs_deinit(&costs);
        dp_schedule_deinit(shape);
        return -1;
    }
    struct entry *entry = dp_auto_entry_new(shape, &costs, dp_steal(fixed), problem);
    if (is_too_tight(search, entry)) {
        dp_auto_entry_free(entry);
        return -1;
    }
    search->entries[search->count] = entry;
    return search->count++;
}

// The entry of the schedule's placement, made when it is new; -1 when it is left out.
static int32_t entry_of(struct search *search, const struct dp_schedule *schedule)
{
    for (int32_t i = 0; i < search->count; i++) {
        if (dp_auto_shape_equal(&search->entries[i]->field.shape, schedule)) {
            return i;
        }
    }
    if (!dp_auto_shape_is_wanted(search->problem, schedule)) {
        return -1;
    }
    struct dp_schedule shape;
    dp_auto_shape_copy(schedule, &shape);
    return add_entry(search, &shape);
}

// The schedule's score; infinite when it takes more than there is room for.
static struct score score_of(const struct search *search, const struct entry *entry,
                             const struct dp_schedule *schedule)
{
    struct score score = {INFINITY, INFINITY};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    if (dp_simulate(schedule, &entry->field.costs, false, &result, NULL) != DP_OK) {
        return score;
    }
    bool spans = search->problem->objective == DP_AUTO_LONGEST_SPAN;
    struct score found = {0, 0};
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        const struct dp_sim_rank *times = &result.ranks[rank];
        if (times->peak_bytes > entry->field.room[rank]) {
            return score;
        }
        double value = times->end - (spans ? times->begin : 0);
        found.value = value > found.value ? value : found.value;
        found.sum += value;
    }
    return found;
}

// Of families on placements that are not the problem's own, only the best are ever gone on with.
static void forget_families(struct search *search)
{
    for (int32_t i = search->own; i < search->count; i++) {
        struct score score = search->entries[i]->family_score;
        int better = 0;
        for (int32_t j = search->own; j < search->count; j++) {
            struct score other = search->entries[j]->family_score;
            better += score_is_less(other, score) || (j < i && !score_is_less(score, other));
        }
        if (better >= AUTO_BORROWED_MOST && i != search->family_entry) {
            dp_schedule_deinit(&search->entries[i]->family);
        }
    }
}

static void try_family(struct search *search, const struct dp_schedule_family *family,
                       const struct dp_schedule_params *params)
{
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    if (dp_schedule_generate(family->name, params, &schedule, NULL) != DP_OK) {
        return;
    }
    int32_t at = entry_of(search, &schedule);
    if (at < 0) {
        return;
    }
    struct entry *entry = search->entries[at];
    struct score score = score_of(search, entry, &schedule);
    search->work += FAMILY_WORK * (double)dp_schedule_action_count(&schedule);
    if (score.value < search->family_value) {
        search->family_value = score.value;
        search->family_entry = at;
        search->family_virtual_stages = params->virtual_stages;
        DP_COPY_TEXT(search->family, family->name);
    }
    if (score_is_less(score, entry->family_score)) {
        entry->family_score = score;
        dp_schedule_deinit(&entry->family);
        entry->family = schedule;
        schedule = (struct dp_schedule){0};
    }
    forget_families(search);
}

// A family with a number of chunks per rank.
struct candidate {
    const struct dp_schedule_family *family;
    struct dp_schedule_params params;
    double actions; // at most
    bool is_taken;
};

struct candidates {
    struct candidate *items;
    size_t count, capacity;
};

// Whether the family's placement is wanted and its costs are known. A few micro-batches tell: where
// stages stand depends on no more.
static bool has_place(struct search *search, const struct candidate *candidate)
{
    struct dp_schedule_params few = candidate->params;
    for (int32_t turns = 1; turns <= 2; turns++) {
        few.microbatches = turns * few.pipeline;
        DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
        if (few.microbatches < candidate->params.microbatches &&
            dp_schedule_generate(candidate->family->name, &few, &schedule, NULL) == DP_OK) {
            schedule.microbatches = candidate->params.microbatches;
            return entry_of(search, &schedule) >= 0;
        }
    }
    return true;
}

static void add_candidate(struct search *search, struct candidates *candidates,
                          const struct dp_schedule_family *family, int32_t virtual_stages)
{
    struct candidate next = {.family = family,
                             .params = {.pipeline = search->problem->pipeline,
                                        .microbatches = search->problem->microbatches,
                                        .virtual_stages = virtual_stages}};
    if (dp_auto_search_stops(search) ||
        dp_schedule_check(family->name, &next.params, NULL) != DP_OK) {
        return;
    }
    next.actions =
        3.0 * dp_schedule_family_stages(family, &next.params) * next.params.microbatches;
    if (!has_place(search, &next)) {
        return;
    }
    if (candidates->count == candidates->capacity) {
        candidates->capacity = 2 * candidates->capacity + 64;
        candidates->items =
            dp_realloc(candidates->items, candidates->capacity, sizeof(*candidates->items));
    }
    candidates->items[candidates->count++] = next;
}

static void find_candidates(struct search *search, struct candidates *candidates)
{
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    for (size_t i = 0; i < count; i++) {
        const struct dp_schedule_family *family = &families[i];
        int32_t step = family->virtual_step;
        for (int32_t chunks = step; chunks <= family->virtual_max; chunks += step) {
            add_candidate(search, candidates, family, chunks);
        }
        if (family->virtual_max == 0) {
            add_candidate(search, candidates, family, 0);
        }
    }
}

// As many as can be tried in reasonable time, the shortest first.
static void take_candidates(struct search *search, struct candidates *candidates)
{
    bool is_simple = search->count == 0 || search->entries[0]->field.is_simple;
    double most = is_simple ? FAMILIES_ACTIONS : FAMILIES_ACTIONS_SLOW;
    for (double actions = 0;;) {
        struct candidate *shortest = NULL;
        for (size_t i = 0; i < candidates->count; i++) {
            struct candidate *item = &candidates->items[i];
            bool is_shorter = shortest == NULL || item->actions < shortest->actions;
            shortest = !item->is_taken && is_shorter ? item : shortest;
        }
        if (shortest == NULL || shortest->actions > DP_AUTO_ACTIONS_MAX ||
            actions + shortest->actions > most) {
            break;
        }
        shortest->is_taken = true;
        actions += shortest->actions;
    }
    for (size_t i = 0; i < candidates->count; i++) {
        search->left_out += !candidates->items[i].is_taken;
    }
}

static void try_families(struct search *search)
{
    struct candidates candidates = {0};
    find_candidates(search, &candidates);
    take_candidates(search, &candidates);
    for (size_t i = 0; i < candidates.count && !dp_auto_search_stops(search); i++) {
        if (candidates.items[i].is_taken) {
            try_family(search, candidates.items[i].family, &candidates.items[i].params);
        }
    }
    free(candidates.items);
}

// Whether the tables of any placement may be kept.
static dp_status check_size(const struct search *search, struct dp_error *err)
{
    double least = INFINITY;
    for (int32_t i = 0; i < search->count; i++) {
        least = fmin(least, dp_auto_entry_size(search->entries[i]));
    }
    if (least <= DP_AUTO_ACTIONS_MAX) {
        return DP_OK;
    }
    int32_t microbatches = search->problem->microbatches;
    return dp_fail(err, DP_TOO_LARGE,
                   "orders of %d micro-batches on %d ranks have up to %.0f actions or more, and "
                   "auto looks at %u at most: take %d micro-batches or fewer (the steady part of "
                   "an order repeats), or a family by its name",
                   microbatches, search->problem->pipeline, least, DP_AUTO_ACTIONS_MAX,
                   (int)(DP_AUTO_ACTIONS_MAX / least * microbatches));
}

dp_status dp_auto_search_start(struct search *search, struct dp_error *err)
{
    search->family_value = INFINITY;
    search->family_entry = -1;
    struct dp_schedule shape;
    for (int i = 0; dp_auto_shape(search->problem, i, &shape); i++) {
        entry_of(search, &shape);
        dp_schedule_deinit(&shape);
    }
    search->own = search->count;
    try_families(search);
    search->moves = 1;
    if (search->is_stopped) {
        return dp_fail(err, DP_INTERRUPTED, "stopped before all fixed families were tried");
    }
    if (search->count > 0) {
        return check_size(search, err);
    }
    const struct dp_error *why =
        search->tight.status != DP_OK ? &search->tight : &search->refused;
    return dp_fail(err, DP_INVALID, "%s",
                   why->status != DP_OK ? why->message
                                        : "no placement of stages is allowed on these ranks");
}
