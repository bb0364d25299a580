#include "dp/auto.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "search.h"

// The default budget: so many actions are looked at, some seconds' work for large orders, whose
// tables no cache holds.
#define WORK_DEFAULT 2e8
#define WORK_PER_ACTION 600
#define WORK_MOST 4e8
// Building a list takes so much longer than running one, and more with many lanes to look at.
enum { BUILD_WORK = 6, BUILD_WORK_PER_LANE = 2 };
// The first presets are for all placements, the next for the better ones, the last for the best.
enum { PRESETS_FOR_ALL = 10, PRESETS_FOR_MANY = 48, MANY = 4, FEW = 2 };
// A round on one placement.
enum { RULE_MOVES = 8, SHIFT_MOVES = 128 };
#define BORROWED_SHARE 1.1
// An objective this close to its bound is at it.
#define AT_BOUND 1e-9

static bool longest_span(const struct search *search)
{
    return search->problem->objective == DP_AUTO_LONGEST_SPAN;
}

bool dp_auto_search_stops(struct search *search)
{
    const struct dp_auto_options *options = search->options;
    if (!search->is_stopped && options != NULL && options->stop != NULL) {
        search->is_stopped = options->stop(options->context);
    }
    return search->is_stopped;
}

static void search_deinit(struct search *search)
{
    for (int32_t i = 0; i < search->count; i++) {
        dp_auto_entry_free(search->entries[i]);
    }
}

static double best_value(const struct search *search)
{
    double best = search->family_value;
    for (int32_t i = 0; i < search->count; i++) {
        const struct entry *entry = search->entries[i];
        best = entry->is_open && entry->score.value < best ? entry->score.value : best;
    }
    return best;
}

// Whether the entry could still give a better answer.
static bool is_promising(const struct entry *entry, double best)
{
    return entry->is_open && entry->bound < best * (1 - AT_BOUND);
}

static bool goes_on(struct search *search)
{
    int64_t most = search->options != NULL ? search->options->moves_max : 0;
    bool has_budget = most > 0 ? search->moves < most : search->work < search->work_max;
    return has_budget && !dp_auto_search_stops(search);
}

// Whether there is a move left, and something to gain by it on this placement.
static bool can_improve(struct search *search, const struct entry *entry)
{
    return is_promising(entry, entry->score.value) && goes_on(search);
}

// The entry from `begin` to `end` that has the best family of those not open, for which there is
// room; or NULL.
static struct entry *next_to_open(const struct search *search, int32_t begin, int32_t end,
                                  double room)
{
    struct entry *best = NULL;
    for (int32_t i = begin; i < end; i++) {
        struct entry *entry = search->entries[i];
        if (!entry->is_open && dp_auto_entry_size(entry) <= room &&
            (best == NULL || score_is_less(entry->family_score, best->family_score))) {
            best = entry;
        }
    }
    return best;
}

// Opens the problem's own placements, and the best of those that came with families, as far as
// their tables may all be kept.
static void open_entries(struct search *search)
{
    double room = DP_AUTO_ACTIONS_MAX;
    int32_t own = search->own;
    struct entry *entry;
    while ((entry = next_to_open(search, 0, own, room)) != NULL) {
        dp_auto_entry_open(entry, longest_span(search));
        room -= dp_auto_entry_size(entry);
    }
    for (int opened = 0; opened < AUTO_BORROWED_MOST; opened++) {
        entry = next_to_open(search, own, search->count, room);
        bool is_close =
            entry != NULL && entry->family_score.value <= BORROWED_SHARE * search->family_value;
        if (is_close || (entry != NULL && own == 0)) {
            dp_auto_entry_open(entry, longest_span(search));
            room -= dp_auto_entry_size(entry);
        }
    }
    for (int32_t i = 0; i < search->count; i++) {
        if (i != search->family_entry) {
            dp_schedule_deinit(&search->entries[i]->family);
        }
    }
}

// Builds a list by the entry's trial rules, and keeps both where they are better.
static void try_rules(struct search *search, struct entry *entry)
{
    search->moves++;
    search->work += (BUILD_WORK + BUILD_WORK_PER_LANE * entry->field.lanes_most) *
                    dp_auto_entry_size(entry);
    if (!dp_auto_list_build(&entry->trial, &entry->field, &entry->outlook, &entry->trial_rules,
                            &entry->trial_clock)) {
        return;
    }
    struct score score =
        dp_auto_clock_run(&entry->trial_clock, &entry->trial, longest_span(search), false);
    if (!score_is_less(entry->rules_score, score)) {
        entry->rules_score = score;
        dp_auto_rules_copy(&entry->rules, &entry->trial_rules, &entry->field);
    }
    dp_auto_entry_offer(entry, score, search->moves);
}

// How many promising entries have a better score than entry `index`.
static int rank_of(const struct search *search, int32_t index, double best)
{
    double value = search->entries[index]->score.value;
    int rank = 0;
    for (int32_t i = 0; i < search->count; i++) {
        const struct entry *other = search->entries[i];
        rank += is_promising(other, best) && (other->score.value < value ||
                                              (other->score.value <= value && i < index));
    }
    return rank;
}

// The promising entry of this rank (0 = best score), or NULL.
static struct entry *entry_ranked(const struct search *search, int rank)
{
    double best = best_value(search);
    for (int32_t i = 0; i < search->count; i++) {
        if (is_promising(search->entries[i], best) && rank_of(search, i, best) == rank) {
            return search->entries[i];
        }
    }
    return NULL;
}

static void try_presets(struct search *search)
{
    for (int number = 0; number < AUTO_PRESETS; number++) {
        int most = number < PRESETS_FOR_ALL    ? AUTO_ENTRIES_MAX
                   : number < PRESETS_FOR_MANY ? MANY
                                               : FEW;
        for (int32_t i = 0; i < search->count; i++) {
            struct entry *entry = search->entries[i];
            double best = best_value(search);
            if (!is_promising(entry, best) || rank_of(search, i, best) >= most) {
                continue;
            }
            if (!goes_on(search)) {
                return;
            }
            dp_auto_rules_preset(&entry->trial_rules, &entry->field, &entry->outlook, number);
            try_rules(search, entry);
        }
    }
}

// A walk from the best order of the entry: strict, or free to pass through worse ones.
static void walk(struct search *search, struct entry *entry)
{
    static const double slacks[] = {0, 0, 0.03, 0.1, 0.3};
    double share = slacks[dice_below(&search->dice, DP_ARRAY_LENGTH(slacks))];
    struct walk walk = {.first = search->moves + 1,
                        .count = SHIFT_MOVES,
                        .slack = share * (entry->score.value - entry->bound),
                        .longest_span = longest_span(search)};
    dp_auto_walk_begin(entry, &walk);
    for (int32_t i = 0; i < walk.count && can_improve(search, entry); i++) {
        search->moves++;
        search->work += dp_auto_entry_size(entry);
        dp_auto_walk_step(entry, &walk, i, &search->dice);
    }
    dp_auto_walk_end(entry);
}

// Rounds on good entries: the best every second time, the second best every fourth, and so on.
static void improve(struct search *search)
{
    while (goes_on(search)) {
        int rank = 0;
        while (dice_below(&search->dice, 2) == 0 && entry_ranked(search, rank + 1) != NULL) {
            rank++;
        }
        struct entry *entry = entry_ranked(search, rank);
        if (entry == NULL) {
            return; // nothing can be better
        }
        bool has_rules = entry->rules_score.value < INFINITY;
        for (int i = 0; i < RULE_MOVES && has_rules && can_improve(search, entry); i++) {
            dp_auto_rules_copy(&entry->trial_rules, &entry->rules, &entry->field);
            dp_auto_rules_mutate(&entry->trial_rules, &entry->field, &entry->outlook,
                                 &search->dice);
            try_rules(search, entry);
        }
        walk(search, entry);
    }
}

// Measures the answer and hands it over with the costs of its placement.
static dp_status finish(struct search *search, struct entry *entry, struct dp_schedule *schedule,
                        struct dp_auto_result *ret_result, struct dp_error *err)
{
    struct dp_auto_result result = {.moves = search->moves,
                                    .best_at = entry->is_open ? entry->found_at : 1,
                                    .is_stopped = search->is_stopped,
                                    .family_virtual_stages = search->family_virtual_stages,
                                    .family_objective = search->family_value,
                                    .left_out = search->left_out,
                                    .bound = INFINITY};
    DP_COPY_TEXT(result.family, search->family);
    DP_COPY_TEXT(schedule->name, "auto");
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result times = {0};
    dp_status status = dp_schedule_validate(schedule, err);
    if (status == DP_OK) {
        status = dp_simulate(schedule, &entry->field.costs, false, &times, err);
    }
    if (status != DP_OK) {
        return dp_fail_in(err, "the order that was found");
    }
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        result.longest_span =
            fmax(result.longest_span, times.ranks[rank].end - times.ranks[rank].begin);
    }
    result.makespan = times.makespan;
    result.objective = longest_span(search) ? result.longest_span : result.makespan;
    for (int32_t i = 0; i < search->count; i++) {
        result.bound = fmin(result.bound, search->entries[i]->bound);
    }
    result.schedule = *schedule;
    *schedule = (struct dp_schedule){0};
    dp_sim_costs_copy(&result.costs, &entry->field.costs);
    result.static_bytes = dp_memdup(entry->field.static_bytes,
                                    (size_t)entry->field.pipeline * sizeof(uint64_t));
    *ret_result = result;
    return DP_OK;
}

static dp_status take_best(struct search *search, struct dp_auto_result *ret_result,
                           struct dp_error *err)
{
    struct entry *best = NULL;
    for (int32_t i = 0; i < search->count; i++) {
        struct entry *entry = search->entries[i];
        if (entry->is_open && entry->score.value < search->family_value &&
            (best == NULL || entry->score.value < best->score.value)) {
            best = entry;
        }
    }
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    if (best != NULL) {
        dp_auto_order_write(&best->order, &best->field, &schedule);
    } else {
        DP_CHECK(search->family_entry >= 0);
        best = search->entries[search->family_entry];
        best->found_at = 1;
        schedule = best->family;
        best->family = (struct dp_schedule){0};
    }
    return finish(search, best, &schedule, ret_result, err);
}

dp_status dp_auto_search(const struct dp_auto_problem *problem,
                         const struct dp_auto_options *options, struct dp_auto_result *ret_result,
                         struct dp_error *err)
{
    if (problem->pipeline < 1 || problem->pipeline > DP_PIPELINE_MAX ||
        problem->microbatches < 1 || problem->microbatches > DP_MICROBATCHES_MAX) {
        return dp_fail(err, DP_INVALID,
                       "auto: pipeline must be 1 to %d, it is %d; microbatches 1 to %d, they are "
                       "%d",
                       DP_PIPELINE_MAX, problem->pipeline, DP_MICROBATCHES_MAX,
                       problem->microbatches);
    }
    DP_CLEANUP(search_deinit) struct search search = {
        .problem = problem,
        .options = options,
        .dice = {options != NULL ? options->seed : 0},
        .work_max = fmin(WORK_MOST, WORK_DEFAULT + WORK_PER_ACTION * 3.0 * problem->pipeline *
                                                       problem->microbatches)};
    dp_status status = dp_auto_search_start(&search, err);
    if (status != DP_OK) {
        return status;
    }
    open_entries(&search);
    try_presets(&search);
    improve(&search);
    return take_best(&search, ret_result, err);
}

void dp_auto_result_deinit(struct dp_auto_result *result)
{
    dp_schedule_deinit(&result->schedule);
    dp_sim_costs_deinit(&result->costs);
    free(result->static_bytes);
    *result = (struct dp_auto_result){0};
}
