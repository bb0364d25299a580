// Schedules and costs that a comparison with another tool names, measured here: peer_schedules.py
// writes one problem as JSON to stdin and reads a line per order from stdout.
//
// {"pipeline", "microbatches", "stages": [[F, I, W] per stage], "hop", "pair", "activation",
//  "released_at_i", "cap": bytes on a rank or null, "placement": dp_auto bits,
//  "objective": "makespan" or "span", "auto": moves (absent: no search), "families": [names],
//  "files": [names of .csv or .json]}. "pair" scales F + B of an overlapped pair.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dp/auto.h"
#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/json.h"
#include "dp/schedule_audit.h"
#include "dp/simulate.h"
#include "made_costs.h"

enum { PROBLEM_BYTES_MAX = 1 << 20, REPEATS = 5 };

struct timing {
    double generate, validate, lower, simulate;
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void give_up(const char *what, const struct dp_error *err)
{
    fprintf(stderr, "%s: %s\n", what, err->message);
    exit(1);
}

static double number_of(const json_t *problem, const char *key)
{
    return json_number_value(json_object_get(problem, key));
}

static void fill_chunks(const json_t *problem, const struct dp_schedule *shape,
                        struct dp_sim_costs *costs)
{
    const json_t *rows = json_object_get(problem, "stages");
    for (int32_t rank = 0; rank < shape->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(shape, rank, stages);
        for (int32_t slot = 0; slot < count; slot++) {
            const json_t *row = json_array_get(rows, (size_t)stages[slot]);
            double f = json_number_value(json_array_get(row, 0));
            double i = json_number_value(json_array_get(row, 1));
            double w = json_number_value(json_array_get(row, 2));
            *dp_sim_chunk_at(costs, rank, slot) = (struct dp_sim_chunk){
                .seconds = {[DP_ACTION_F] = f,
                            [DP_ACTION_B] = i + w,
                            [DP_ACTION_I] = i,
                            [DP_ACTION_W] = w},
                .activation_bytes = (uint64_t)number_of(problem, "activation"),
                .released_at_i_bytes = (uint64_t)number_of(problem, "released_at_i")};
        }
    }
}

// As dp_auto_problem wants it.
static dp_status fill_costs(void *context, const struct dp_schedule *shape,
                            struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                            struct dp_error *err)
{
    const json_t *problem = context;
    size_t stages = json_array_size(json_object_get(problem, "stages"));
    (void)ret_static_bytes;
    if (stages != (size_t)shape->stages) {
        return dp_fail(err, DP_INVALID, "costs are of %zu stages", stages);
    }
    dp_sim_costs_init(ret_costs, shape);
    fill_chunks(problem, shape, ret_costs);
    costs_add_pairs(ret_costs);
    double pair = number_of(problem, "pair");
    int32_t pairs = shape->pipeline * ret_costs->slots * ret_costs->slots;
    for (int32_t i = 0; pair > 0 && i < pairs; i++) {
        ret_costs->fb[i] *= pair;
    }
    for (int32_t from = 0; from < shape->pipeline; from++) {
        for (int32_t to = 0; to < shape->pipeline; to++) {
            dp_sim_hop_at(ret_costs, from, to)->latency =
                from == to ? 0 : number_of(problem, "hop");
        }
    }
    return DP_OK;
}

struct figures {
    double makespan, span, bubble, span_bubble, activations;
    uint64_t bytes;
};

static void take_figures(const struct dp_sim_result *result, struct figures *ret_figures)
{
    *ret_figures = (struct figures){.makespan = result->makespan,
                                    .bubble = dp_sim_bubble_ratio(result),
                                    .span_bubble = dp_sim_own_span_bubble_ratio(result)};
    for (int32_t rank = 0; rank < result->pipeline; rank++) {
        const struct dp_sim_rank *own = &result->ranks[rank];
        ret_figures->span = fmax(ret_figures->span, own->end - own->begin);
        ret_figures->activations = fmax(ret_figures->activations, own->peak_activations);
        if (own->peak_bytes > ret_figures->bytes) {
            ret_figures->bytes = own->peak_bytes;
        }
    }
}

// Simulates the order and prints its line.
static void report(json_t *problem, const char *name, const struct dp_schedule *schedule,
                   struct timing timing, int64_t moves)
{
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs = {0};
    struct dp_error err;
    if (fill_costs(problem, schedule, &costs, NULL, &err) != DP_OK) {
        give_up(name, &err);
    }
    struct figures figures = {0};
    timing.simulate = timing.validate = timing.lower = INFINITY;
    for (int i = 0; i < REPEATS; i++) {
        DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
        DP_CLEANUP(dp_lowered_deinit) struct dp_lowered lowered = {0};
        double times[4] = {now()};
        if (dp_schedule_validate(schedule, &err) != DP_OK) {
            give_up(name, &err);
        }
        times[1] = now();
        if (dp_schedule_lower_all(schedule, &lowered, &err) != DP_OK) {
            give_up(name, &err);
        }
        times[2] = now();
        if (dp_simulate(schedule, &costs, false, &result, &err) != DP_OK) {
            give_up(name, &err);
        }
        times[3] = now();
        timing.validate = fmin(timing.validate, times[1] - times[0]);
        timing.lower = fmin(timing.lower, times[2] - times[1]);
        timing.simulate = fmin(timing.simulate, times[3] - times[2]);
        take_figures(&result, &figures);
    }
    printf("{\"name\":\"%s\",\"actions\":%zu,\"makespan\":%.17g,\"span\":%.17g,\"bubble_ratio\":"
           "%.9g,\"own_span_bubble_ratio\":%.9g,\"peak_bytes\":%llu,\"peak_activations\":%.9g,"
           "\"generate_s\":%.9g,\"validate_s\":%.9g,\"lower_s\":%.9g,\"simulate_s\":%.9g,\"moves\":"
           "%lld}\n",
           name, dp_schedule_action_count(schedule), figures.makespan, figures.span, figures.bubble,
           figures.span_bubble, (unsigned long long)figures.bytes, figures.activations,
           timing.generate, timing.validate, timing.lower, timing.simulate, (long long)moves);
}

static void run_family(json_t *problem, const char *name, const struct dp_schedule_params *params)
{
    struct timing timing = {.generate = INFINITY};
    struct dp_schedule schedule = {0};
    struct dp_error err;
    for (int i = 0; i < REPEATS; i++) {
        dp_schedule_deinit(&schedule);
        double start = now();
        if (dp_schedule_generate(name, params, &schedule, &err) != DP_OK) {
            give_up(name, &err);
        }
        timing.generate = fmin(timing.generate, now() - start);
    }
    report(problem, name, &schedule, timing, 0);
    dp_schedule_deinit(&schedule);
}

static void run_file(json_t *problem, const char *name)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    struct dp_error err;
    if (dp_read_file(name, DP_SCHEDULE_BYTES_MAX, &text, &err) != DP_OK) {
        give_up(name, &err);
    }
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags = {0};
    dp_diags_init(&diags, name, text.bytes, text.length);
    DP_CLEANUP(dp_schedule_csv_deinit) struct dp_schedule_csv csv = {0};
    struct timing timing = {0};
    const char *dot = strrchr(name, '.');
    double start = now();
    dp_status status =
        dot != NULL && strcmp(dot, ".csv") == 0
            ? dp_schedule_read_csv(text.bytes, text.length, DP_SCHEDULE_LETTERS_NEW, &csv, &diags,
                                   &err)
            : dp_schedule_read_json(text.bytes, text.length, &csv.schedule, &diags, &err);
    timing.generate = now() - start;
    if (status != DP_OK) {
        give_up(name, &err);
    }
    report(problem, name, &csv.schedule, timing, 0);
}

static void run_search(json_t *problem, const struct dp_schedule_params *params)
{
    uint64_t caps[DP_PIPELINE_MAX];
    const json_t *cap = json_object_get(problem, "cap");
    for (int32_t rank = 0; rank < params->pipeline; rank++) {
        caps[rank] = (uint64_t)json_number_value(cap);
    }
    const char *objective = json_string_value(json_object_get(problem, "objective"));
    const struct dp_auto_problem search = {
        .pipeline = params->pipeline,
        .microbatches = params->microbatches,
        .costs = fill_costs,
        .context = problem,
        .memory_cap = json_is_number(cap) ? caps : NULL,
        .placements = (unsigned)number_of(problem, "placement"),
        .objective = objective != NULL && strcmp(objective, "span") == 0 ? DP_AUTO_LONGEST_SPAN
                                                                         : DP_AUTO_MAKESPAN};
    const struct dp_auto_options options = {.moves_max = (int64_t)number_of(problem, "auto")};
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = {0};
    struct dp_error err;
    struct timing timing = {0};
    double start = now();
    if (dp_auto_search(&search, &options, &result, &err) != DP_OK) {
        give_up("auto", &err);
    }
    timing.generate = now() - start;
    report(problem, "auto", &result.schedule, timing, result.moves);
}

int main(void)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_JSON json_t *problem = NULL;
    struct dp_error err;
    if (dp_read_file("-", PROBLEM_BYTES_MAX, &text, &err) != DP_OK ||
        dp_json_parse(text.bytes, text.length, PROBLEM_BYTES_MAX, "stdin", &problem, &err) !=
            DP_OK) {
        give_up("the problem", &err);
    }
    const struct dp_schedule_params params = {.pipeline = (int32_t)number_of(problem, "pipeline"),
                                              .microbatches =
                                                  (int32_t)number_of(problem, "microbatches")};
    if (params.pipeline < 1 || params.pipeline > DP_PIPELINE_MAX) {
        fprintf(stderr, "pipeline must be 1 to %d\n", DP_PIPELINE_MAX);
        return 1;
    }
    size_t index;
    json_t *name;
    json_array_foreach(json_object_get(problem, "families"), index, name)
    {
        run_family(problem, json_string_value(name), &params);
    }
    json_array_foreach(json_object_get(problem, "files"), index, name)
    {
        run_file(problem, json_string_value(name));
    }
    if (json_object_get(problem, "auto") != NULL) {
        run_search(problem, &params);
    }
    return 0;
}
