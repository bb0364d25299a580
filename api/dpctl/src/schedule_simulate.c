// dpctl schedule simulate: where the time and the memory of a schedule go.

#include <stdio.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "schedule_verbs.h"

// What both forms of the answer are made from.
struct answer {
    struct schedule_subject subject;
    struct dp_sim_result result;
    struct dp_sim_result before; // without --slow and --slow-link, when the subject is changed
    struct dp_sim_analysis analysis;
    double simulate_s, analyze_s; // what this took here
};

static void answer_deinit(struct answer *answer)
{
    dp_sim_analysis_deinit(&answer->analysis);
    dp_sim_result_deinit(&answer->before);
    dp_sim_result_deinit(&answer->result);
    schedule_subject_deinit(&answer->subject);
}

// The share of the best family's time that the search saved.
static double gain_of(const struct dp_auto_result *found)
{
    return 1 - found->objective / found->family_objective;
}

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

static json_t *search_json(const struct schedule_request *request,
                           const struct dp_schedule *schedule, const struct dp_auto_result *found)
{
    bool is_span = request->objective == DP_AUTO_LONGEST_SPAN;
    json_t *json = json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f}", "objective",
                             dp_auto_objective_text(request->objective), "seed",
                             (json_int_t)request->seed, "moves", (json_int_t)found->moves,
                             "best_at", (json_int_t)found->best_at, "makespan", found->makespan,
                             "longest_span", found->longest_span, "bound", found->bound);
    json_object_update_new(json, json_pack("{s:s, s:i, s:f}", "placement",
                                           schedule_placement_name(schedule), "virtual",
                                           (int)(schedule->stages / schedule->pipeline),
                                           "parameters", schedule_parameters(schedule)));
    if (found->family[0] != '\0') {
        json_object_set_new(json, "best_family", json_string(found->family));
        json_object_set_new(json, is_span ? "best_family_longest_span" : "best_family_makespan",
                            json_real(found->family_objective));
        json_object_set_new(json, "gain", json_real(gain_of(found)));
    }
    return json;
}

static json_t *answer_json(const struct schedule_request *request, const struct answer *answer)
{
    const struct schedule_subject *subject = &answer->subject;
    json_t *json = schedule_result_json(&subject->schedule, &answer->result);
    json_object_set_new(json, "request", schedule_request_json(request));
    json_object_set_new(json, "simulate_s", json_real(answer->simulate_s));
    json_object_set_new(json, "analyze_s", json_real(answer->analyze_s));
    json_object_set_new(json, "critical_path", path_json(&subject->schedule, &answer->analysis));
    if (subject->changed) {
        const struct dp_sim_result *before = &answer->before;
        json_object_set_new(json, "unchanged",
                            json_pack("{s:f, s:f, s:f}", "makespan", before->makespan,
                                      "bubble_ratio", dp_sim_bubble_ratio(before),
                                      "own_span_bubble_ratio",
                                      dp_sim_own_span_bubble_ratio(before)));
    }
    if (subject->found != NULL) {
        json_object_set_new(json, "auto", search_json(request, &subject->schedule, subject->found));
    }
    return json;
}

// What the critical path is made of.
static void print_path(const struct dp_sim_analysis *analysis)
{
    double computing = 0, travelling = 0, before = 0;
    size_t changes = 0;
    for (size_t i = 0; i < analysis->path_count; i++) {
        const struct dp_sim_path_step *step = &analysis->path[i];
        computing += step->end - step->start;
        travelling += step->start - before;
        changes += i > 0 && step->rank != step[-1].rank;
        before = step->end;
    }
    printf("critical path: %zu actions, %.6g s computing, %.6g s travelling, %zu changes of rank\n",
           analysis->path_count, computing, travelling, changes);
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
    printf(
        "Seconds. BUBBLE is what stands from WARMUP to COOLDOWN; OWN_SPAN: of it, after the rank's "
        "first\naction and before its last. PEAK_ACT: activations kept at most, in micro-batches "
        "on "
        "1/P of the\nmodel. PEAK_BYTES: by --activation-bytes or --stage-cost; else 1 a chunk.\n");
}

static void print_search(const struct schedule_request *request, const struct dp_schedule *schedule,
                         const struct dp_auto_result *found)
{
    char orders[64], chunks[64];
    printf(
        "auto: %s placement, %s per rank, parameters held %.3gx\n",
        schedule_placement_name(schedule),
        dpctl_count(chunks, (unsigned long long)(schedule->stages / schedule->pipeline), "chunk"),
        schedule_parameters(schedule));
    if (request->objective == DP_AUTO_LONGEST_SPAN) {
        printf("auto: the longest own span is %.6g s\n", found->longest_span);
    }
    printf("auto: %s tried, found at %lld",
           dpctl_count(orders, (unsigned long long)found->moves, "order"),
           (long long)found->best_at);
    if (found->family[0] != '\0') {
        printf("; best family %s %.6g s, gain %.2f %%", found->family, found->family_objective,
               100 * gain_of(found));
    }
    printf("; no order takes less than %.6g s\n", found->bound);
}

void schedule_print_summary(const struct dp_schedule *schedule, const struct dp_sim_result *result)
{
    printf("%s  P=%d M=%d stages=%d  makespan %.6g s  bubble %.2f %%  own span %.2f %%\n",
           schedule->name, (int)schedule->pipeline, (int)schedule->microbatches,
           (int)schedule->stages, result->makespan, 100 * dp_sim_bubble_ratio(result),
           100 * dp_sim_own_span_bubble_ratio(result));
}

static void print_answer(const struct schedule_request *request, const struct answer *answer)
{
    schedule_print_summary(&answer->subject.schedule, &answer->result);
    if (answer->subject.changed) {
        double before = answer->before.makespan, after = answer->result.makespan;
        printf("what if: makespan %.6g s -> %.6g s (%+.2f %%)\n", before, after,
               before > 0 ? 100 * (after / before - 1) : 0.0);
    }
    if (answer->subject.found != NULL) {
        print_search(request, &answer->subject.schedule, answer->subject.found);
    }
    print_path(&answer->analysis);
    print_ranks(&answer->result);
}

static dp_status analyze(const struct schedule_subject *subject,
                         struct dp_sim_analysis *ret_analysis, struct dp_error *err)
{
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    return dp_simulate_analyzed(&subject->schedule, &subject->costs, &result, ret_analysis, err);
}

// Twice, as its time is shown: bubbles and memory alone, then what needs every action's times.
static dp_status simulate(struct answer *answer, struct dp_error *err)
{
    const struct schedule_subject *subject = &answer->subject;
    int64_t begin_ns = dp_clock_monotonic_ns();
    dp_status status =
        dp_simulate(&subject->schedule, &subject->costs, false, &answer->result, err);
    int64_t middle_ns = dp_clock_monotonic_ns();
    if (status == DP_OK) {
        status = analyze(subject, &answer->analysis, err);
    }
    answer->simulate_s = (double)(middle_ns - begin_ns) * 1e-9;
    answer->analyze_s = (double)(dp_clock_monotonic_ns() - middle_ns) * 1e-9;
    if (status == DP_OK && subject->changed) {
        status = dp_simulate(&subject->schedule, &subject->before, false, &answer->before, err);
    }
    return status;
}

dp_status schedule_run_simulate(struct dpctl *ctl, const struct schedule_request *request,
                                struct dp_error *err)
{
    DP_CLEANUP(answer_deinit) struct answer answer = {0};
    dp_status status = schedule_obtain_subject(request, NULL, &answer.subject, err);
    if (status == DP_OK) {
        status = simulate(&answer, err);
    }
    if (status == DP_OK && ctl->json) {
        dpctl_print_json(ctl, answer_json(request, &answer), "dp.simulation/1");
    } else if (status == DP_OK) {
        print_answer(request, &answer);
    }
    return status;
}
