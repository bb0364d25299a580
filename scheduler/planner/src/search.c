#include "search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

enum { MOVES_DEFAULT = 2000 };
// Steps within this share of each other count as equal: then fewer ranks and simpler sizes win.
#define TIE_SHARE 1e-9
// schedule = "auto" searches for orders on so many sizes.
enum { AUTO_SIZES = 3 };

void dp_planner_search_deinit(struct search *search)
{
    free(search->outcomes);
    free(search->refusal);
    *search = (struct search){0};
}

static int compare(double a, double b)
{
    return (a > b) - (a < b);
}

// Families in the order of their table, then searched orders in that of theirs.
static ptrdiff_t family_index(const struct dp_schedule_family *family)
{
    size_t families_count;
    const struct dp_schedule_family *families = dp_schedule_families(&families_count);
    if (!dp_planner_is_auto(family)) {
        return family - families;
    }
    size_t rows_count;
    return (ptrdiff_t)families_count + (family - dp_planner_order_rows(&rows_count));
}

// Simpler first: fewer ranks, shallower, fewer expert ranks, larger micro-batches, families in the
// order of their table, fewer chunks.
int dp_planner_choice_compare(const struct choice *a, const struct choice *b)
{
    const int64_t keys_a[] = {(int64_t)a->pipeline * a->data, a->pipeline, a->expert,
                              -(int64_t)a->micro_batch_size};
    const int64_t keys_b[] = {(int64_t)b->pipeline * b->data, b->pipeline, b->expert,
                              -(int64_t)b->micro_batch_size};
    for (size_t i = 0; i < sizeof(keys_a) / sizeof(keys_a[0]); i++) {
        if (keys_a[i] != keys_b[i]) {
            return keys_a[i] < keys_b[i] ? -1 : 1;
        }
    }
    if (a->family != b->family) {
        return family_index(a->family) < family_index(b->family) ? -1 : 1;
    }
    return (a->virtual_stages > b->virtual_stages) - (a->virtual_stages < b->virtual_stages);
}

static int compare_bounds(const void *a, const void *b)
{
    const struct outcome *one = a, *two = b;
    int order = compare(one->choice.bound_s, two->choice.bound_s);
    return order != 0 ? order : dp_planner_choice_compare(&one->choice, &two->choice);
}

static bool is_better(const struct outcome *a, const struct outcome *b)
{
    if (a->fits != b->fits) {
        return a->fits;
    }
    if (fabs(a->step_s - b->step_s) > TIE_SHARE * b->step_s) {
        return a->step_s < b->step_s;
    }
    return dp_planner_choice_compare(&a->choice, &b->choice) < 0;
}

static dp_status simulate_outcome(const struct problem *problem, struct outcome *outcome,
                                  struct dp_error *err)
{
    DP_CLEANUP(dp_planner_evaluation_deinit) struct evaluation evaluation = {0};
    dp_status status = dp_planner_evaluate(problem, &outcome->choice, &evaluation, err);
    if (status != DP_OK) {
        return status;
    }
    outcome->simulated = true;
    outcome->step_s = evaluation.replicas[evaluation.slowest].result.step;
    outcome->memory_bytes = dp_planner_fullest_rank(
        problem, &evaluation, &outcome->memory_limit_bytes, &outcome->memory_position);
    dp_planner_explain_parts(problem, &evaluation, outcome);
    outcome->fits = problem->is_sim || outcome->memory_limit_bytes <= 0 ||
                    outcome->memory_bytes <= outcome->memory_limit_bytes;
    return DP_OK;
}

static void format_gb(char buffer[32], double bytes)
{
    snprintf(buffer, 32, "%.3g GB", bytes / 1e9);
}

static dp_status fail_for_memory(const struct problem *problem, const struct search *search,
                                 struct dp_error *err)
{
    const struct outcome *least = NULL;
    for (size_t i = 0; i < search->count; i++) {
        const struct outcome *outcome = &search->outcomes[i];
        if (outcome->simulated && (least == NULL || outcome->memory_bytes < least->memory_bytes)) {
            least = outcome;
        }
    }
    char needed[32], limit[32];
    format_gb(needed, least->memory_bytes);
    format_gb(limit, least->memory_limit_bytes);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf more = {0};
    dp_planner_cpu_refusal_write(problem, least, &more);
    return dp_fail(err, DP_UNSCHEDULABLE,
                   "the job fits into no rank's memory: the leanest of %lld choices (%s, pipeline "
                   "%d, expert %d, data %d) needs %s on one rank, which has %s%s; more ranks hold "
                   "less each",
                   (long long)search->moves, least->choice.family->name, least->choice.pipeline,
                   least->choice.expert, least->choice.data, needed, limit,
                   more.bytes != NULL ? more.bytes : "");
}

static bool is_same_size(const struct choice *a, const struct choice *b)
{
    return a->pipeline == b->pipeline && a->expert == b->expert && a->data == b->data &&
           a->micro_batch_size == b->micro_batch_size;
}

static int compare_results(const void *a, const void *b)
{
    const struct outcome *const *one = a, *const *two = b;
    if ((*one)->simulated != (*two)->simulated) {
        return (*one)->simulated ? -1 : 1;
    }
    return is_better(*one, *two) ? -1 : is_better(*two, *one) ? 1 : 0;
}

// The sizes on which fixed families are best, the best first; returns how many.
static int best_sizes(const struct search *search, struct choice ret_sizes[AUTO_SIZES])
{
    DP_AUTO_FREE const struct outcome **sorted =
        (const struct outcome **)dp_alloc(search->count, sizeof(*sorted));
    for (size_t i = 0; i < search->count; i++) {
        sorted[i] = &search->outcomes[i];
    }
    qsort(sorted, search->count, sizeof(*sorted), compare_results);
    int count = 0;
    for (size_t i = 0; i < search->count && sorted[i]->simulated && count < AUTO_SIZES; i++) {
        bool is_new = true;
        for (int k = 0; k < count; k++) {
            is_new = is_new && !is_same_size(&ret_sizes[k], &sorted[i]->choice);
        }
        if (is_new) {
            ret_sizes[count++] = sorted[i]->choice;
        }
    }
    return count;
}

// Whether `row` can be had on these sizes; completes the choice.
static bool make_auto_choice(const struct problem *problem, const struct dp_schedule_family *row,
                             struct choice *choice)
{
    int32_t wanted = problem->spec->parallel.virtual_stages;
    choice->family = row;
    choice->virtual_stages = row->stages_per_rank / row->directions;
    choice->stages = choice->virtual_stages * choice->pipeline;
    choice->bound_s = 0;
    return (wanted == 0 || wanted == choice->virtual_stages) &&
           (choice->pipeline > 1 || choice->virtual_stages * row->directions == 1) &&
           choice->stages <= problem->spec->model.layers;
}

// Searches for orders on the best sizes. One that is as fast as the best family wins: it was asked
// for.
static dp_status search_orders(const struct problem *problem, struct search *search,
                               struct dp_error *err)
{
    struct dp_error own;
    err = err == NULL ? &own : err;
    struct choice sizes[AUTO_SIZES];
    size_t rows_count;
    const struct dp_schedule_family *rows = dp_planner_order_rows(&rows_count);
    int sizes_count = best_sizes(search, sizes);
    search->outcomes = dp_realloc(search->outcomes, search->count + AUTO_SIZES * rows_count,
                                  sizeof(*search->outcomes));
    for (size_t i = 0; i < (size_t)sizes_count * rows_count; i++) {
        struct outcome outcome = {.choice = sizes[i / rows_count]};
        if (!make_auto_choice(problem, &rows[i % rows_count], &outcome.choice)) {
            continue;
        }
        dp_status status = simulate_outcome(problem, &outcome, err);
        if (status == DP_INTERRUPTED) {
            return status;
        }
        if (status != DP_OK) {
            free(search->refusal);
            search->refusal = dp_asprintf("auto with the stages placed %s: %s\n",
                                          outcome.choice.family->summary, err->message);
            continue;
        }
        const struct outcome *best = &search->outcomes[search->best];
        bool is_close = outcome.fits == best->fits && !dp_planner_is_auto(best->choice.family) &&
                        outcome.step_s <= best->step_s * (1 + TIE_SHARE);
        if (is_close || is_better(&outcome, best)) {
            search->best = search->count;
        }
        search->outcomes[search->count++] = outcome;
        search->moves++;
    }
    return DP_OK;
}

dp_status dp_planner_search_run(const struct problem *problem, const struct choices *choices,
                                const struct dp_planner_options *options, struct search *ret_search,
                                struct dp_error *err)
{
    struct search search = {.count = choices->legal_count};
    search.moves_max =
        options != NULL && options->moves_max > 0 ? options->moves_max : MOVES_DEFAULT;
    search.outcomes = dp_new_array(struct outcome, search.count);
    for (size_t i = 0; i < search.count; i++) {
        search.outcomes[i].choice = choices->legal[i];
        search.outcomes[i].step_s = choices->legal[i].bound_s;
    }
    qsort(search.outcomes, search.count, sizeof(*search.outcomes), compare_bounds);
    dp_status status = DP_OK;
    for (size_t i = 0; i < search.count && search.moves < search.moves_max; i++) {
        struct outcome *best = &search.outcomes[search.best];
        if (search.moves > 0 && best->fits && search.outcomes[i].choice.bound_s > best->step_s) {
            break;
        }
        if (options != NULL && options->stop != NULL && options->stop(options->context)) {
            status = dp_fail(err, DP_INTERRUPTED, "planning was stopped after %lld simulations",
                             (long long)search.moves);
            break;
        }
        status = simulate_outcome(problem, &search.outcomes[i], err);
        if (status != DP_OK) {
            break;
        }
        if (search.moves++ == 0 || is_better(&search.outcomes[i], best)) {
            search.best = i;
        }
    }
    if (status == DP_OK && strcmp(problem->spec->parallel.schedule, "auto") == 0) {
        status = search_orders(problem, &search, err);
    }
    if (status == DP_OK && !search.outcomes[search.best].fits) {
        status = fail_for_memory(problem, &search, err);
    }
    if (status != DP_OK) {
        dp_planner_search_deinit(&search);
        return status;
    }
    *ret_search = search;
    return DP_OK;
}

static void fill_ranks(const struct problem *problem, const struct evaluation *evaluation,
                       struct dp_plan *plan)
{
    const struct layout *layout = &evaluation->layout;
    for (int32_t p = 0; p < plan->pipeline; p++) {
        struct dp_memory_parts parts;
        dp_planner_rank_memory(problem, layout, &evaluation->schedule, p, &parts);
        for (int32_t d = 0; d < plan->data; d++) {
            const struct dp_sim_rank *sim =
                &dp_planner_evaluation_replica(evaluation, d)->result.ranks[p];
            const struct place *place = &layout->places[d * plan->pipeline + p];
            struct dp_plan_rank *rank = &plan->ranks[d * plan->pipeline + p];
            DP_COPY_TEXT(rank->node, problem->nodes[place->node].name);
            rank->slot = place->slot;
            rank->busy_s = dp_sim_rank_busy(sim);
            rank->bubble_s = fmax(0, sim->bubble); // rounding may leave -1e-17
            rank->peak_chunks = (int32_t)sim->peak_chunks;
            rank->peak_activation_bytes = parts.activations + parts.deferred + parts.transient;
            rank->memory_bytes = dp_memory_total(&parts);
            int32_t cores = problem->is_sim ? 0 : dp_planner_host_cores(problem, place->node);
            plan->cores_exceeded |=
                cores > 0 && dp_planner_ranks_on_host(problem, layout, place->node) > cores;
        }
    }
}

// The busiest rank tells where the step's time goes.
static void fill_parts(const struct problem *problem, const struct evaluation *evaluation,
                       struct dp_plan *plan)
{
    const struct replica *slowest = &evaluation->replicas[evaluation->slowest];
    const struct dp_sim_result *result = &slowest->result;
    int32_t busiest = 0;
    double optimizer = 0;
    for (int32_t p = 0; p < plan->pipeline; p++) {
        busiest = dp_sim_rank_busy(&result->ranks[p]) > dp_sim_rank_busy(&result->ranks[busiest])
                      ? p
                      : busiest;
        optimizer = fmax(optimizer, slowest->costs.optimizer[p]);
    }
    const struct dp_sim_rank *rank = &result->ranks[busiest];
    double exchange = dp_planner_exposed_exchange_s(
        problem, &evaluation->layout, &evaluation->schedule, &slowest->costs, busiest);
    plan->step_s = result->step;
    plan->compute_s = fmax(0, dp_sim_rank_busy(rank) - exchange);
    plan->comm_s = exchange + rank->comm;
    plan->bubble_s = fmax(0, rank->bubble - rank->comm);
    plan->optimizer_s = optimizer;
    plan->grad_sync_s = fmax(0, result->step - result->makespan - optimizer);
    const struct dp_train_spec *train = &problem->spec->train;
    plan->tokens_per_s =
        result->step > 0 ? (double)train->global_batch * train->sequence / result->step : 0;
    plan->error_share = problem->is_sim ? 0.03 : problem->profile->error_share;
}

dp_status dp_planner_search_make_plan(const struct search *search, const struct problem *problem,
                                      const struct choices *choices, struct dp_plan *ret_plan,
                                      struct dp_error *err)
{
    const struct choice *choice = &search->outcomes[search->best].choice;
    DP_CLEANUP(dp_planner_evaluation_deinit) struct evaluation evaluation = {0};
    dp_status status = dp_planner_evaluate(problem, choice, &evaluation, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_plan plan = {
        .pipeline = choice->pipeline,
        .expert = choice->expert,
        .data = choice->data,
        .microbatches = choice->microbatches,
        .micro_batch_size = choice->micro_batch_size,
        .virtual_stages = choice->virtual_stages,
        .schedule_hash = dp_schedule_hash(&evaluation.schedule),
        .stages = choice->stages,
        .searched = search->moves,
    };
    DP_COPY_TEXT(plan.schedule, choice->family->name);
    if (dp_planner_is_auto(choice->family)) {
        status = dp_planner_order_write(&evaluation.schedule, &plan.schedule_json, err);
        if (status != DP_OK) {
            return status;
        }
    }
    plan.layer_begin = dp_memdup(evaluation.layout.layer_begin,
                                 ((size_t)choice->stages + 1) * sizeof(*plan.layer_begin));
    plan.ranks = dp_new_array(struct dp_plan_rank, (size_t)dp_plan_world(&plan));
    fill_ranks(problem, &evaluation, &plan);
    fill_parts(problem, &evaluation, &plan);
    plan.positions = dp_planner_explain_positions(problem, &evaluation);
    plan.searched = search->moves;
    DP_COPY_TEXT(plan.model, problem->spec->model.name);
    DP_COPY_TEXT(plan.device, dp_device_kind_text(problem->spec->resources.device));
    dp_planner_explain_candidates(search, choices, &plan);
    plan.provenance = dp_planner_explain_provenance(problem);
    plan.explanation = dp_planner_explain_choice(problem, search, choices, &plan, evaluation.note);
    // The sim device has nothing to hide and nothing to hold.
    dp_plan_explain(&plan, problem->is_sim ? NULL : &problem->spec->model);
    *ret_plan = plan;
    return DP_OK;
}
