// dpctl schedule simulate: where the time and the memory of a schedule go.

#include <stdio.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "schedule_verbs.h"

static json_t *causes_json(const struct dp_sim_rank *rank)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "warmup", rank->warmup, "dependency",
                     rank->dependency, "imbalance", rank->imbalance, "comm", rank->comm, "cooldown",
                     rank->cooldown);
}

static json_t *rank_json(const struct dp_sim_rank *rank, int32_t number)
{
    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:i, s:I, s:f, s:o}", "rank", (int)number, "busy",
                     dp_sim_rank_busy(rank), "bubble", rank->bubble, "own_span_bubble",
                     rank->span_bubble, "peak_activations", rank->peak_activations, "peak_chunks",
                     (int)rank->held_peak_chunks, "peak_bytes", (json_int_t)rank->peak_bytes,
                     "peak_at", rank->peak_at, "bubble_by_cause", causes_json(rank));
}

json_t *schedule_result_json(const struct dp_schedule *schedule, const struct dp_sim_result *result)
{
    json_t *ranks = json_array();
    for (int32_t r = 0; r < result->pipeline; r++) {
        json_array_append_new(ranks, rank_json(&result->ranks[r], r));
    }
    return json_pack("{s:s, s:i, s:i, s:i, s:I, s:f, s:f, s:f, s:o}", "name", schedule->name,
                     "pipeline", (int)schedule->pipeline, "microbatches",
                     (int)schedule->microbatches, "stages", (int)schedule->stages, "actions",
                     (json_int_t)dp_schedule_action_count(schedule), "makespan", result->makespan,
                     "bubble_ratio", dp_sim_bubble_ratio(result), "own_span_bubble_ratio",
                     dp_sim_own_span_bubble_ratio(result), "ranks", ranks);
}

static json_t *path_json(const struct dp_schedule *schedule, const struct dp_sim_analysis *analysis)
{
    json_t *path = json_array();
    for (size_t i = 0; i < analysis->path_count; i++) {
        const struct dp_sim_path_step *step = &analysis->path[i];
        DP_CLEANUP(dp_buf_deinit) struct dp_buf action = {0};
        dp_action_format(&schedule->actions[step->action], &action);
        json_array_append_new(path, json_pack("{s:i, s:s, s:s, s:f, s:f}", "rank", (int)step->rank,
                                              "action", action.bytes, "cause",
                                              dp_sim_cause_text(step->cause), "start", step->start,
                                              "end", step->end));
    }
    return path;
}

// The same schedule before --slow and --slow-link.
static dp_status add_baseline(const struct schedule_subject *subject, json_t *answer,
                              struct dp_error *err)
{
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result before = {0};
    dp_status status = dp_simulate(&subject->schedule, &subject->before, false, &before, err);
    if (status == DP_OK) {
        json_object_set_new(answer, "unchanged",
                            json_pack("{s:f, s:f, s:f}", "makespan", before.makespan,
                                      "bubble_ratio", dp_sim_bubble_ratio(&before),
                                      "own_span_bubble_ratio",
                                      dp_sim_own_span_bubble_ratio(&before)));
    }
    return status;
}

// What the critical path is made of, and the ranks that it visits most.
static void print_path(const json_t *path)
{
    double computing = 0, waiting = 0, before = 0;
    size_t index, hops = 0;
    json_t *step;
    int rank = -1;
    json_array_foreach(path, index, step)
    {
        double start = json_number_value(json_object_get(step, "start"));
        double end = json_number_value(json_object_get(step, "end"));
        int at = (int)json_integer_value(json_object_get(step, "rank"));
        computing += end - start;
        waiting += start - before;
        hops += rank >= 0 && at != rank;
        rank = at;
        before = end;
    }
    printf("critical path: %zu actions, %.6g s computing, %.6g s travelling, %zu changes of rank\n",
           json_array_size(path), computing, waiting, hops);
}

static void print_ranks(const struct dp_sim_result *result)
{
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 11, .right = 0x7ff};
    const char *const heads[] = {"RANK",       "BUSY",      "BUBBLE",    "WARMUP",
                                 "DEPENDENCY", "IMBALANCE", "COMM",      "COOLDOWN",
                                 "OWN_SPAN",   "PEAK_ACT",  "PEAK_BYTES"};
    dpctl_heads(&table, heads);
    for (int32_t r = 0; r < result->pipeline; r++) {
        const struct dp_sim_rank *rank = &result->ranks[r];
        dpctl_cell(&table, "%d", (int)r);
        const double values[] = {dp_sim_rank_busy(rank), rank->bubble,      rank->warmup,
                                 rank->dependency,       rank->imbalance,   rank->comm,
                                 rank->cooldown,         rank->span_bubble, rank->peak_activations};
        for (size_t i = 0; i < DP_ARRAY_LENGTH(values); i++) {
            dpctl_cell(&table, "%.6g", values[i]);
        }
        dpctl_cell(&table, "%llu", (unsigned long long)rank->peak_bytes);
    }
    dpctl_table_print(&table);
}

static void print_search(const struct dp_auto_result *found)
{
    printf("auto: %lld orders tried, found at %lld", (long long)found->moves,
           (long long)found->best_at);
    if (found->family[0] != '\0') {
        printf("; best family %s %.6g s, gain %.2f %%", found->family, found->family_objective,
               100 * (1 - found->objective / found->family_objective));
    }
    printf("; no order takes less than %.6g s\n", found->bound);
}

static void print_answer(const struct schedule_subject *subject, const struct dp_sim_result *result,
                         const json_t *answer)
{
    const struct dp_schedule *schedule = &subject->schedule;
    printf("%s  P=%d M=%d stages=%d  makespan %.6g s  bubble %.2f %%  own span %.2f %%\n",
           schedule->name, (int)schedule->pipeline, (int)schedule->microbatches,
           (int)schedule->stages, result->makespan, 100 * dp_sim_bubble_ratio(result),
           100 * dp_sim_own_span_bubble_ratio(result));
    const json_t *before = json_object_get(answer, "unchanged");
    if (before != NULL) {
        double makespan = json_real_value(json_object_get(before, "makespan"));
        printf("what if: makespan %.6g s -> %.6g s (%+.2f %%)\n", makespan, result->makespan,
               makespan > 0 ? 100 * (result->makespan / makespan - 1) : 0.0);
    }
    if (subject->found != NULL) {
        print_search(subject->found);
    }
    print_path(json_object_get(answer, "critical_path"));
    print_ranks(result);
}

static dp_status analyze(const struct schedule_subject *subject,
                         struct dp_sim_analysis *ret_analysis, struct dp_error *err)
{
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = dp_simulate(&subject->schedule, &subject->costs, true, &result, err);
    return status == DP_OK ? dp_sim_analyze(&subject->schedule, &subject->costs, result.spans,
                                            ret_analysis, err)
                           : status;
}

dp_status schedule_run_simulate(struct dpctl *ctl, const struct schedule_request *request,
                                struct dp_error *err)
{
    DP_CLEANUP(schedule_subject_deinit) struct schedule_subject subject = {0};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    DP_CLEANUP(dp_sim_analysis_deinit) struct dp_sim_analysis analysis = {0};
    dp_status status = schedule_obtain(request, request->subject, &subject, err);
    if (status != DP_OK) {
        return status;
    }
    // Twice, as its time is shown: bubbles and memory alone, then what needs every action's times.
    int64_t begin_ns = dp_clock_monotonic_ns();
    status = dp_simulate(&subject.schedule, &subject.costs, false, &result, err);
    int64_t middle_ns = dp_clock_monotonic_ns();
    if (status == DP_OK) {
        status = analyze(&subject, &analysis, err);
    }
    int64_t end_ns = dp_clock_monotonic_ns();
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_JSON json_t *answer = schedule_result_json(&subject.schedule, &result);
    json_object_set_new(answer, "simulate_s", json_real((double)(middle_ns - begin_ns) * 1e-9));
    json_object_set_new(answer, "analyze_s", json_real((double)(end_ns - middle_ns) * 1e-9));
    json_object_set_new(answer, "critical_path", path_json(&subject.schedule, &analysis));
    if (subject.changed) {
        status = add_baseline(&subject, answer, err);
    }
    if (subject.found != NULL) {
        json_object_set_new(answer, "auto", schedule_auto_json(request, subject.found));
    }
    if (status == DP_OK && ctl->json) {
        dpctl_print_json(ctl, json_incref(answer), "dp.simulation/1");
    } else if (status == DP_OK) {
        print_answer(&subject, &result, answer);
    }
    return status;
}
