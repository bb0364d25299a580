#include <math.h>
#include <stdlib.h>

#include "analysis.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"

const char *dp_sim_cause_text(dp_sim_cause cause)
{
    static const char *const texts[] = {"start", "order", "dependency", "comm"};
    return texts[cause];
}

dp_status dp_sim_refuse_spans(const struct analysis *analysis, int32_t rank, struct dp_error *err)
{
    return dp_fail(err, DP_INVALID,
                   "the times of rank %d are not those of schedule %s with these costs; take them "
                   "from a simulation with the same costs",
                   rank, analysis->schedule->name);
}

struct path {
    struct dp_sim_path_step *steps;
    size_t count, capacity;
};

static void add_step(struct path *path, struct dp_sim_path_step step)
{
    if (path->count == path->capacity) {
        path->capacity = path->capacity == 0 ? 64 : 2 * path->capacity;
        path->steps = dp_realloc(path->steps, path->capacity, sizeof(*path->steps));
    }
    path->steps[path->count++] = step;
}

// The rank whose first action starts at 0 and may not end later; -1 when there is none.
static int32_t first_rank(const struct analysis *analysis)
{
    const struct dp_schedule *schedule = analysis->schedule;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        size_t first = schedule->rank_begin[rank];
        if (first < schedule->rank_begin[rank + 1] && is_bound(analysis, first, 0)) {
            return rank;
        }
    }
    return -1;
}

// What the last step holds back; false when there is nothing, though the makespan is later.
static bool next_step(const struct analysis *analysis, const struct dp_sim_path_step *last,
                      struct dp_sim_path_step *ret_step)
{
    size_t next = last->action + 1;
    int32_t rank = last->rank;
    bool order = !is_last(analysis, rank, last->action) && is_bound(analysis, next, last->end);
    if (!order) {
        bool blocking = analysis->costs->p2p == DP_SIM_P2P_BLOCKING;
        next = blocking ? dp_sim_path_next_blocking(analysis, rank, last->action, &rank)
                        : dp_sim_path_next_free(analysis, rank, last->action, &rank);
    }
    if (next == NO_ACTION) {
        return false;
    }
    double start = analysis->spans[next].start;
    *ret_step = (struct dp_sim_path_step){.rank = rank,
                                          .cause = order               ? DP_SIM_CAUSE_ORDER
                                                   : start > last->end ? DP_SIM_CAUSE_COMM
                                                                       : DP_SIM_CAUSE_DEPENDENCY,
                                          .action = next,
                                          .start = start,
                                          .end = analysis->spans[next].end};
    return true;
}

static dp_status trace_path(const struct analysis *analysis, struct path *path,
                            struct dp_error *err)
{
    int32_t rank = first_rank(analysis);
    if (rank < 0) {
        return dp_sim_refuse_spans(analysis, 0, err);
    }
    size_t first = analysis->schedule->rank_begin[rank];
    struct dp_sim_path_step step = {.rank = rank,
                                    .cause = DP_SIM_CAUSE_START,
                                    .action = first,
                                    .start = analysis->spans[first].start,
                                    .end = analysis->spans[first].end};
    add_step(path, step);
    while (step.end != analysis->makespan) {
        struct dp_sim_path_step last = step;
        if (!next_step(analysis, &last, &step)) {
            return dp_sim_refuse_spans(analysis, last.rank, err);
        }
        add_step(path, step);
    }
    return DP_OK;
}

static void analysis_init(struct analysis *analysis, const struct dp_schedule *schedule,
                          const struct dp_sim_costs *costs, const struct dp_sim_span *spans)
{
    size_t count = dp_schedule_action_count(schedule);
    size_t links = (size_t)schedule->pipeline * (size_t)schedule->pipeline;
    *analysis = (struct analysis){.schedule = schedule,
                                  .costs = costs,
                                  .spans = spans,
                                  .slack = dp_new_array(double, count),
                                  .links = dp_new_array(struct link, links),
                                  .followers = dp_new_array(struct follower, links)};
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        size_t end = schedule->rank_begin[rank + 1];
        bool empty = end == schedule->rank_begin[rank];
        double done = empty ? 0 : spans[end - 1].end;
        analysis->makespan = done > analysis->makespan ? done : analysis->makespan;
    }
    dp_sim_set_links(schedule, costs, analysis->links);
    for (size_t i = 0; i < links; i++) {
        analysis->followers[i] = (struct follower){INFINITY, 0};
    }
}

static void analysis_deinit(struct analysis *analysis)
{
    free(analysis->slack);
    free(analysis->links);
    free(analysis->followers);
    free(analysis->consumer);
    free(analysis->base);
    dp_lowered_deinit(&analysis->lowered);
    free(analysis->met);
    free(analysis->wired);
    free(analysis->room);
}

// Takes what is in `lowered`, nothing or the messages.
static dp_status analyze(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                         const struct dp_sim_span *spans, struct dp_lowered *lowered,
                         struct dp_sim_analysis *ret_analysis, struct dp_error *err)
{
    DP_CLEANUP(analysis_deinit) struct analysis analysis;
    analysis_init(&analysis, schedule, costs, spans);
    analysis.lowered = *lowered;
    *lowered = (struct dp_lowered){0};
    dp_status status = costs->p2p == DP_SIM_P2P_BLOCKING ? dp_sim_slack_blocking(&analysis, err)
                                                         : dp_sim_slack_free(&analysis, err);
    struct path path = {0};
    if (status == DP_OK) {
        status = trace_path(&analysis, &path, err);
    }
    if (status != DP_OK) {
        free(path.steps);
        return status;
    }
    *ret_analysis = (struct dp_sim_analysis){
        .slack = dp_steal(analysis.slack), .path = path.steps, .path_count = path.count};
    return DP_OK;
}

dp_status dp_sim_analyze(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                         const struct dp_sim_span *spans, struct dp_sim_analysis *ret_analysis,
                         struct dp_error *err)
{
    struct dp_lowered lowered = {0};
    return analyze(schedule, costs, spans, &lowered, ret_analysis, err);
}

dp_status dp_simulate_analyzed(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                               struct dp_sim_result *ret_result,
                               struct dp_sim_analysis *ret_analysis, struct dp_error *err)
{
    struct dp_sim_result result;
    struct dp_sim_scratch sim = {0};
    dp_status status = dp_sim_simulate_in(&sim, schedule, costs, true, &result, err);
    struct dp_lowered lowered = sim.batches.lowered;
    sim.batches.lowered = (struct dp_lowered){0};
    dp_sim_release(&sim);
    if (status != DP_OK) {
        dp_lowered_deinit(&lowered);
        return status;
    }
    status = analyze(schedule, costs, result.spans, &lowered, ret_analysis, err);
    if (status != DP_OK) {
        dp_sim_result_deinit(&result);
        return status;
    }
    *ret_result = result;
    return DP_OK;
}

void dp_sim_analysis_deinit(struct dp_sim_analysis *analysis)
{
    free(analysis->slack);
    free(analysis->path);
    *analysis = (struct dp_sim_analysis){0};
}
