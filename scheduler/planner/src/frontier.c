#include "frontier.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "queue.h"
#include "simulation.h"

enum { MOVES_DEFAULT = 20000 };
// How far behind the best a runner-up is looked for, how often for the best of one kind, and on how
// many candidates beyond those that the best itself took.
#define HORIZON 1.5
// The same for less memory.
#define PARETO_HORIZON 3
enum { KIND_MOVES = 12, RUNNERS_SCORED = 120000 };
// Work on fewer ranks while nothing fits on them either.
enum { UNFIT_WORK = 300000 };

// Candidates that share a schedule, a pipeline depth, a tensor or an expert size: the best of each
// is worth knowing, to say why it lost.
enum { KIND_SCHEDULE, KIND_PIPELINE, KIND_TENSOR, KIND_EXPERT, KIND_COUNT };
enum { KINDS_MAX = 1024 };
struct kind {
    int what;
    int32_t value;
    int32_t moves;
    double best_s;
};

enum frontier_mode { MODE_RUNNERS, MODE_PARETO };

struct point {
    double step_s, bytes;
};

struct frontier {
    struct explorer *explorer;
    struct search *search;
    size_t outcomes_room;
    struct queue queue;
    struct queue spare; // candidates that fit only into a little more memory
    struct kind kinds[KINDS_MAX];
    int32_t kinds_count;
    int64_t world;           // ranks of what was opened last; 0 = fewer are not looked at
    int64_t work_at_most;    // when the most ranks were known
    int64_t scored_for_best; // when the best was known; 0 = it is not yet
    struct dp_sim_scratch *scratch;
    const struct choice *division; // that is being taken apart
    enum frontier_mode mode;
    // What no other beats in both step and memory, by step; of MODE_PARETO.
    struct point *front;
    size_t front_count, front_room;
};

static struct kind *kind_of(struct frontier *frontier, int what, int32_t value)
{
    for (int32_t i = 0; i < frontier->kinds_count; i++) {
        struct kind *kind = &frontier->kinds[i];
        if (kind->what == what && kind->value == value) {
            return kind;
        }
    }
    if (frontier->kinds_count == KINDS_MAX) {
        return NULL;
    }
    struct kind *kind = &frontier->kinds[frontier->kinds_count++];
    *kind = (struct kind){what, value, 0, INFINITY};
    return kind;
}

static int32_t value_of(const struct choice *choice, int what)
{
    size_t count;
    switch (what) {
    case KIND_SCHEDULE:
        return (int32_t)(choice->family - dp_schedule_families(&count));
    case KIND_PIPELINE:
        return choice->pipeline;
    case KIND_TENSOR:
        return choice->tensor;
    default:
        return choice->expert;
    }
}

static bool is_open(const struct kind *kind, double bound_s)
{
    return kind != NULL && kind->moves < KIND_MOVES && bound_s < kind->best_s;
}

// Whether the best of some kind may still come from here.
static bool serves_a_kind(struct frontier *frontier, const struct choice *choice)
{
    for (int what = choice->family == NULL ? KIND_PIPELINE : KIND_SCHEDULE; what < KIND_COUNT;
         what++) {
        if (is_open(kind_of(frontier, what, value_of(choice, what)), choice->bound_s)) {
            return true;
        }
    }
    return false;
}

static bool some_schedule_is_open(const struct frontier *frontier, double bound_s)
{
    for (int32_t i = 0; i < frontier->kinds_count; i++) {
        const struct kind *kind = &frontier->kinds[i];
        if (kind->what == KIND_SCHEDULE && is_open(kind, bound_s)) {
            return true;
        }
    }
    return false;
}

static double best_s(const struct frontier *frontier)
{
    const struct search *search = frontier->search;
    return search->count > 0 ? search->outcomes[search->best].step_s : INFINITY;
}

// Whether something that was simulated is at least as good in both.
static bool is_beaten(const struct frontier *frontier, const struct node *node)
{
    for (size_t i = 0; i < frontier->front_count; i++) {
        const struct point *point = &frontier->front[i];
        if (point->step_s <= node->choice.bound_s && point->bytes <= node->bytes) {
            return true;
        }
    }
    return false;
}

static void push_candidate(struct frontier *frontier, const struct choice *choice)
{
    struct score score;
    dp_planner_score(frontier->explorer, choice, &score);
    struct node node = {*choice, score.bytes, score.position};
    node.choice.bound_s = fmax(score.bound_s, frontier->division->bound_s);
    double limit = frontier->explorer->memory_limit;
    bool fits = limit <= 0 || score.bytes <= limit;
    if (!fits && frontier->mode == MODE_RUNNERS && frontier->scored_for_best == 0 &&
        score.bytes <= (1 + DP_PLANNER_MORE_MEMORY) * limit) {
        dp_planner_queue_push(&frontier->spare, &node);
    }
    double horizon = frontier->mode == MODE_PARETO ? PARETO_HORIZON : HORIZON;
    if (fits && node.choice.bound_s <= horizon * best_s(frontier) &&
        (frontier->mode != MODE_PARETO || !is_beaten(frontier, &node))) {
        dp_planner_queue_push(&frontier->queue, &node);
    }
}

// All cuts of a schedule on a division.
static void visit_schedule(void *context, const struct choice *choice)
{
    struct frontier *frontier = context;
    if (frontier->explorer->is_stopped ||
        (frontier->scored_for_best > 0 && !serves_a_kind(frontier, choice))) {
        return;
    }
    struct choice candidate = *choice;
    for (int rule = 0; rule < CUT_ALL_COUNT; rule++) {
        candidate.split = rule;
        if (dp_planner_cuts_get(frontier->explorer->cuts, choice->stages, rule) != NULL) {
            push_candidate(frontier, &candidate);
        }
    }
}

static bool outcome_is_better(const struct outcome *a, const struct outcome *b)
{
    if (a->step_s != b->step_s) {
        return a->step_s < b->step_s;
    }
    if (a->memory_bytes != b->memory_bytes) {
        return a->memory_bytes < b->memory_bytes;
    }
    return dp_planner_choice_compare(&a->choice, &b->choice) < 0;
}

static void add_outcome(struct frontier *frontier, const struct outcome *outcome)
{
    struct search *search = frontier->search;
    if (search->count == frontier->outcomes_room) {
        frontier->outcomes_room = 2 * frontier->outcomes_room + 64;
        search->outcomes =
            dp_realloc(search->outcomes, frontier->outcomes_room, sizeof(*search->outcomes));
    }
    search->outcomes[search->count++] = *outcome;
    if (search->count == 1 || outcome_is_better(outcome, &search->outcomes[search->best])) {
        search->best = search->count - 1;
    }
    for (int what = 0; what < KIND_COUNT; what++) {
        struct kind *kind = kind_of(frontier, what, value_of(&outcome->choice, what));
        if (kind != NULL) {
            kind->best_s = fmin(kind->best_s, outcome->step_s);
            kind->moves += frontier->scored_for_best > 0;
        }
    }
}

static void add_point(struct frontier *frontier, const struct outcome *outcome)
{
    const struct point added = {outcome->step_s, outcome->memory_bytes};
    size_t kept = 0;
    for (size_t i = 0; i < frontier->front_count; i++) {
        const struct point *point = &frontier->front[i];
        if (point->step_s <= added.step_s && point->bytes <= added.bytes) {
            return;
        }
        if (point->step_s < added.step_s || point->bytes < added.bytes) {
            frontier->front[kept++] = *point;
        }
    }
    if (kept == frontier->front_room) {
        frontier->front_room = 2 * kept + 16;
        frontier->front =
            dp_realloc(frontier->front, frontier->front_room, sizeof(*frontier->front));
    }
    frontier->front[kept] = added;
    frontier->front_count = kept + 1;
}

static dp_status simulate(struct frontier *frontier, const struct choice *choice, double *ret_step,
                          struct dp_error *err)
{
    struct explorer *explorer = frontier->explorer;
    const struct dp_schedule_params params = {.pipeline = choice->pipeline,
                                              .microbatches = choice->microbatches,
                                              .virtual_stages = choice->virtual_stages};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    dp_status status = dp_schedule_generate(choice->family->name, &params, &schedule, err);
    if (status != DP_OK) {
        return status;
    }
    struct pricing pricing = {.price = dp_planner_prices_get(explorer, choice)->price};
    dp_planner_strategy_of(explorer, choice, &pricing.strategy);
    pricing.input = dp_planner_price_input(explorer, choice, &pricing.strategy);
    const struct cut *cut = dp_planner_cuts_get(explorer->cuts, choice->stages, choice->split);
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs = {0};
    dp_planner_pricing_costs(&pricing, cut->layer_begin, &schedule, &costs);
    double makespan;
    frontier->search->moves++;
    if (!dp_planner_explorer_works(explorer,
                                   16 + explorer_work_of(dp_schedule_action_count(&schedule)))) {
        return dp_planner_explorer_fail_stopped(explorer, err);
    }
    return dp_simulate_makespan(&schedule, &costs, frontier->scratch, &makespan, ret_step, err);
}

static dp_status look_at(struct frontier *frontier, const struct node *node, struct dp_error *err)
{
    double step;
    dp_status status = simulate(frontier, &node->choice, &step, err);
    if (status != DP_OK) {
        return status;
    }
    const struct outcome outcome = {
        .choice = node->choice,
        .simulated = true,
        .fits = true,
        .step_s = step,
        .memory_bytes = node->bytes,
        .memory_limit_bytes = frontier->explorer->memory_limit,
        .memory_position = node->position,
    };
    add_outcome(frontier, &outcome);
    if (frontier->mode == MODE_PARETO) {
        add_point(frontier, &outcome);
    }
    return DP_OK;
}

// Whether anything is left to be learnt from a node, and so from those behind it.
static bool goes_on(struct frontier *frontier, const struct node *node)
{
    const struct search *search = frontier->search;
    if (search->moves >= search->moves_max) {
        return false;
    }
    if (node->choice.bound_s <= best_s(frontier)) {
        return true;
    }
    frontier->search->reached_s = node->choice.bound_s;
    if (frontier->mode == MODE_PARETO) {
        return node->choice.bound_s <= PARETO_HORIZON * best_s(frontier);
    }
    if (frontier->scored_for_best == 0) {
        frontier->scored_for_best = frontier->explorer->scored;
    }
    return node->choice.bound_s <= HORIZON * best_s(frontier) &&
           frontier->explorer->scored - frontier->scored_for_best < RUNNERS_SCORED;
}

static dp_status visit_node(struct frontier *frontier, const struct node *node,
                            struct dp_error *err)
{
    if (frontier->mode == MODE_PARETO && is_beaten(frontier, node)) {
        return DP_OK;
    }
    bool for_best = frontier->scored_for_best == 0;
    if (node->choice.family != NULL) {
        return for_best || serves_a_kind(frontier, &node->choice) ? look_at(frontier, node, err)
                                                                  : DP_OK;
    }
    if (for_best || serves_a_kind(frontier, &node->choice) ||
        some_schedule_is_open(frontier, node->choice.bound_s)) {
        frontier->division = &node->choice;
        dp_planner_space_families(frontier->explorer, &node->choice, visit_schedule, frontier);
    }
    return DP_OK;
}

// With more memory the best is what it is, or one of those that it makes room for.
static dp_status look_at_spare(struct frontier *frontier, struct dp_error *err)
{
    struct search *search = frontier->search;
    search->more_memory_s = best_s(frontier);
    dp_status status = DP_OK;
    while (frontier->spare.count > 0 && status == DP_OK && search->moves < search->moves_max) {
        struct node node = dp_planner_queue_pop(&frontier->spare);
        if (node.choice.bound_s >= search->more_memory_s) {
            break;
        }
        double step = INFINITY;
        status = simulate(frontier, &node.choice, &step, err);
        search->more_memory_s = fmin(search->more_memory_s, step);
    }
    return status;
}

static void push_divisions(struct frontier *frontier, size_t first)
{
    const struct explorer *explorer = frontier->explorer;
    double limit = (1 + DP_PLANNER_MORE_MEMORY) * explorer->memory_limit;
    for (size_t i = first; i < explorer->divisions_count; i++) {
        const struct division *division = &explorer->divisions[i];
        if (limit <= 0 || division->bytes <= limit) {
            const struct node node = {.choice = division->choice, .bytes = division->bytes};
            dp_planner_queue_push(&frontier->queue, &node);
        }
    }
}

// Whether so many ranks are worth looking at: where nothing fits on more of them, that is a matter
// of sizes that do not divide, and soon found.
static bool is_tried(const struct frontier *frontier, int64_t world)
{
    const struct explorer *explorer = frontier->explorer;
    return isfinite(best_s(frontier)) ||
           (2 * world >= explorer->world && explorer->work - frontier->work_at_most < UNFIT_WORK);
}

// Once the best on more ranks is known: divisions of the next smaller number of them that may be
// faster. False when there are none.
static bool open_smaller(struct frontier *frontier, dp_status *ret_status, struct dp_error *err)
{
    struct explorer *explorer = frontier->explorer;
    if (frontier->world == explorer->world) {
        frontier->search->largest_s = best_s(frontier);
        frontier->work_at_most = explorer->work;
    }
    size_t first = explorer->divisions_count, before = frontier->queue.count;
    while (frontier->world > 0 && frontier->queue.count == before && *ret_status == DP_OK) {
        frontier->world = dp_planner_space_smaller(explorer, frontier->world);
        if (frontier->world > 0 && is_tried(frontier, frontier->world)) {
            *ret_status = dp_planner_space_open(explorer, frontier->world, best_s(frontier), err);
            push_divisions(frontier, first);
            explorer->divisions_count = first;
        }
    }
    return frontier->queue.count > before;
}

static dp_status run(struct frontier *frontier, struct dp_error *err)
{
    const struct explorer *explorer = frontier->explorer;
    push_divisions(frontier, 0);
    dp_status status = DP_OK;
    while (status == DP_OK) {
        bool is_known = frontier->queue.count == 0 ||
                        frontier->queue.nodes[0].choice.bound_s > best_s(frontier);
        if (is_known && frontier->world > 0 && open_smaller(frontier, &status, err)) {
            continue;
        }
        if (frontier->queue.count == 0 || status != DP_OK) {
            break;
        }
        struct node node = dp_planner_queue_pop(&frontier->queue);
        if (!goes_on(frontier, &node)) {
            break;
        }
        status = visit_node(frontier, &node, err);
        if (status == DP_OK && explorer->is_stopped) {
            status = dp_planner_explorer_fail_stopped(explorer, err);
        }
    }
    return status == DP_OK && frontier->mode == MODE_RUNNERS && frontier->search->count > 0
               ? look_at_spare(frontier, err)
               : status;
}

static dp_status look(struct explorer *explorer, const struct dp_planner_options *options,
                      enum frontier_mode mode, struct search *ret_search, struct dp_error *err)
{
    struct search search = {.moves_max = MOVES_DEFAULT};
    if (options != NULL && options->moves_max > 0) {
        search.moves_max = options->moves_max;
    }
    struct frontier *frontier = dp_new(struct frontier);
    frontier->explorer = explorer;
    frontier->search = &search;
    frontier->mode = mode;
    frontier->world = explorer->world;
    frontier->scratch = dp_sim_scratch_new();
    dp_status status = run(frontier, err);
    dp_sim_scratch_free(frontier->scratch);
    free(frontier->queue.nodes);
    free(frontier->spare.nodes);
    free(frontier->front);
    free(frontier);
    search.scored = explorer->scored;
    if (status != DP_OK) {
        dp_planner_search_deinit(&search);
        return status;
    }
    *ret_search = search;
    return DP_OK;
}

dp_status dp_planner_frontier_run(struct explorer *explorer,
                                  const struct dp_planner_options *options,
                                  struct search *ret_search, struct dp_error *err)
{
    return look(explorer, options, MODE_RUNNERS, ret_search, err);
}

dp_status dp_planner_frontier_pareto(struct explorer *explorer,
                                     const struct dp_planner_options *options,
                                     struct search *ret_search, struct dp_error *err)
{
    return look(explorer, options, MODE_PARETO, ret_search, err);
}
