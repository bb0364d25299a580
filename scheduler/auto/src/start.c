// Where the search starts: placements, and what the fixed families make of them.
#include <math.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "search.h"

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
    search->work += (double)dp_schedule_action_count(&schedule);
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
}

static void try_families(struct search *search)
{
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    for (size_t i = 0; i < count; i++) {
        const struct dp_schedule_family *family = &families[i];
        struct dp_schedule_params params = {.pipeline = search->problem->pipeline,
                                            .microbatches = search->problem->microbatches};
        int32_t step = family->virtual_step;
        for (int32_t chunks = step; chunks <= family->virtual_max; chunks += step) {
            params.virtual_stages = chunks;
            if (dp_auto_search_stops(search)) {
                return;
            }
            if (dp_schedule_check(family->name, &params, NULL) == DP_OK) {
                try_family(search, family, &params);
            }
        }
        params.virtual_stages = 0;
        if (family->virtual_max == 0 && !dp_auto_search_stops(search) &&
            dp_schedule_check(family->name, &params, NULL) == DP_OK) {
            try_family(search, family, &params);
        }
    }
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
    try_families(search);
    search->moves = 1;
    if (search->is_stopped) {
        return dp_fail(err, DP_INTERRUPTED, "stopped before all fixed families were tried");
    }
    if (search->count > 0) {
        return DP_OK;
    }
    const struct dp_error *why =
        search->tight.status != DP_OK ? &search->tight : &search->refused;
    return dp_fail(err, DP_INVALID, "%s",
                   why->status != DP_OK ? why->message
                                        : "no placement of stages is allowed on these ranks");
}
