// dpctl schedule: everything about schedules that needs no cluster.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/render.h"
#include "dp/schedule.h"
#include "dp/simulate.h"
#include "dpctl.h"

enum {
    KEY_SCHEDULES = 1,
    KEY_F,
    KEY_B,
    KEY_I,
    KEY_W,
    KEY_FB,
    KEY_HOP,
    KEY_TABLE,
    KEY_WIDTH,
    KEY_OUT,
    KEY_FORMAT
};

static const struct argp_option options[] = {
    {NULL, 'P', "RANKS", 0, "pipeline ranks", 0},
    {NULL, 'M', "COUNT", 0, "micro-batches per step", 0},
    {"schedules", KEY_SCHEDULES, "LIST", 0, "compare: families, comma separated (default all)", 0},
    {"f", KEY_F, "S", 0, "seconds of a forward chunk (1)", 1},
    {"b", KEY_B, "S", 0, "of a full backward (i + w)", 1},
    {"i", KEY_I, "S", 0, "of an input-gradient backward (1)", 1},
    {"w", KEY_W, "S", 0, "of a weight-gradient backward (1)", 1},
    {"fb", KEY_FB, "S", 0, "of an overlapped pair (f + b)", 1},
    {"hop", KEY_HOP, "S", 0, "latency between ranks (0)", 1},
    {"table", KEY_TABLE, NULL, 0, "show: one cell per time slot", 2},
    {"width", KEY_WIDTH, "COLUMNS", 0, "show: columns to fill", 2},
    {"format", KEY_FORMAT, "NAME", 0, "export: dp (default), torch or perfetto", 2},
    {"out", KEY_OUT, "FILE", 0, "export: write here instead of stdout", 2},
    {0},
};

struct request {
    const char *verb, *subject;
    int32_t pipeline, microbatches;
    const char *schedules, *out, *format;
    double f, b, i, w, fb, hop;
    bool table;
    bool same_model; // compare: seconds are of 1/P of the model, whatever a family makes of it
    int32_t width;
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case 'P':
        request->pipeline = (int32_t)dpctl_number(state, "-P", arg, 1, DP_PIPELINE_MAX);
        return 0;
    case 'M':
        request->microbatches = (int32_t)dpctl_number(state, "-M", arg, 1, DP_MICROBATCHES_MAX);
        return 0;
    case KEY_SCHEDULES:
        request->schedules = arg;
        return 0;
    case KEY_F:
        request->f = dpctl_real(state, "--f", arg, 0);
        return 0;
    case KEY_B:
        request->b = dpctl_real(state, "--b", arg, 0);
        return 0;
    case KEY_I:
        request->i = dpctl_real(state, "--i", arg, 0);
        return 0;
    case KEY_W:
        request->w = dpctl_real(state, "--w", arg, 0);
        return 0;
    case KEY_FB:
        request->fb = dpctl_real(state, "--fb", arg, 0);
        return 0;
    case KEY_HOP:
        request->hop = dpctl_real(state, "--hop", arg, 0);
        return 0;
    case KEY_TABLE:
        request->table = true;
        return 0;
    case KEY_WIDTH:
        request->width = (int32_t)dpctl_number(state, "--width", arg, 40, 10000);
        return 0;
    case KEY_FORMAT:
        request->format = arg;
        return 0;
    case KEY_OUT:
        request->out = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0) {
            request->verb = arg;
        } else if (state->arg_num == 1) {
            request->subject = arg;
        } else {
            argp_error(state, "one schedule at a time, not also \"%s\"", arg);
        }
        return 0;
    case ARGP_KEY_END:
        if (request->verb == NULL) {
            argp_error(state, "say what to do: list, show, simulate, compare, check or export");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static dp_status load_file(const char *path, struct dp_schedule *ret_schedule, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_read_file(path, (size_t)DP_ACTIONS_MAX * 16, &text, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_JSON json_t *json = NULL;
    status = dp_json_parse(text.bytes, text.length, text.length, path, &json, err);
    if (status != DP_OK) {
        return status;
    }
    status = dp_schedule_from_json(json, ret_schedule, err);
    return status == DP_OK ? DP_OK : dp_fail_in(err, "%s", path);
}

static dp_status obtain(const struct request *request, const char *subject,
                        struct dp_schedule *ret_schedule, struct dp_error *err)
{
    size_t length = strlen(subject);
    if (strcmp(subject, "-") == 0 || (length > 5 && strcmp(subject + length - 5, ".json") == 0)) {
        return load_file(subject, ret_schedule, err);
    }
    if (request->pipeline == 0 || request->microbatches == 0) {
        return dp_fail(err, DP_USAGE, "say -P RANKS and -M MICROBATCHES for schedule %s", subject);
    }
    struct dp_schedule_params params = {.pipeline = request->pipeline,
                                        .microbatches = request->microbatches};
    return dp_schedule_generate(subject, &params, ret_schedule, err);
}

static struct dp_sim_uniform costs_of(const struct request *request)
{
    struct dp_sim_uniform costs = {.f = request->f,
                                   .i = request->i,
                                   .w = request->w,
                                   .b = request->b < 0 ? request->i + request->w : request->b,
                                   .hop = {.latency = request->hop}};
    costs.fb = request->fb < 0 ? costs.f + costs.b : request->fb;
    // A pair with an input-gradient part is shorter by what is left out.
    costs.fi = costs.fb - costs.b + costs.i > 0 ? costs.fb - costs.b + costs.i : costs.fb;
    return costs;
}

static dp_status simulate(const struct request *request, const struct dp_schedule *schedule,
                          bool with_spans, struct dp_sim_result *ret_result, struct dp_error *err)
{
    struct dp_sim_uniform uniform = costs_of(request);
    if (request->same_model) {
        // The same model in more stages: each chunk is that much shorter.
        double share = (double)schedule->pipeline / schedule->stages;
        double *const parts[] = {&uniform.f, &uniform.b,  &uniform.i,
                                 &uniform.w, &uniform.fb, &uniform.fi};
        for (size_t i = 0; i < DP_ARRAY_LENGTH(parts); i++) {
            *parts[i] *= share;
        }
    }
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs = {0};
    dp_sim_costs_init_uniform(&costs, schedule, &uniform);
    return dp_simulate(schedule, &costs, with_spans, ret_result, err);
}

static double bubble_max(const struct dp_sim_result *result)
{
    double worst = 0;
    for (int32_t r = 0; r < result->pipeline; r++) {
        worst = result->ranks[r].bubble > worst ? result->ranks[r].bubble : worst;
    }
    return worst;
}

static uint32_t peak_max(const struct dp_sim_result *result)
{
    uint32_t worst = 0;
    for (int32_t r = 0; r < result->pipeline; r++) {
        worst = result->ranks[r].peak_chunks > worst ? result->ranks[r].peak_chunks : worst;
    }
    return worst;
}

static json_t *result_json(const struct dp_schedule *schedule, const struct dp_sim_result *result)
{
    json_t *ranks = json_array();
    for (int32_t r = 0; r < result->pipeline; r++) {
        const struct dp_sim_rank *rank = &result->ranks[r];
        json_array_append_new(
            ranks, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i}", "rank", (int)r,
                             "busy_s", dp_sim_rank_busy(rank), "bubble_s", rank->bubble, "warmup_s",
                             rank->warmup, "dependency_s", rank->dependency, "comm_s", rank->comm,
                             "cooldown_s", rank->cooldown, "span_bubble_s", rank->span_bubble,
                             "peak_chunks", (int)rank->peak_chunks));
    }
    return json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:i, s:o}", "name", schedule->name, "pipeline",
                     (int)schedule->pipeline, "microbatches", (int)schedule->microbatches, "stages",
                     (int)schedule->stages, "makespan_s", result->makespan, "bubble_max_s",
                     bubble_max(result), "peak_chunks_max", (int)peak_max(result), "ranks", ranks);
}

static dp_status list(struct dpctl *ctl)
{
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    if (ctl->json) {
        json_t *rows = json_array();
        for (size_t i = 0; i < count; i++) {
            const struct dp_schedule_family *f = &families[i];
            json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:i, s:i}", "name", f->name,
                                                  "summary", f->summary, "constraint",
                                                  f->constraint, "directions", (int)f->directions,
                                                  "stages_per_rank", (int)f->stages_per_rank));
        }
        dpctl_print_json(json_pack("{s:o}", "schedules", rows), "dp.schedules/1");
        return DP_OK;
    }
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 3};
    dpctl_cell(&table, "NAME");
    dpctl_cell(&table, "LEGAL");
    dpctl_cell(&table, "WHAT IT IS");
    for (size_t i = 0; i < count; i++) {
        dpctl_cell(&table, "%s", families[i].name);
        dpctl_cell(&table, "%s", families[i].constraint);
        dpctl_cell(&table, "%s", families[i].summary);
    }
    dpctl_table_print(&table);
    return DP_OK;
}

static dp_status show(struct dpctl *ctl, const struct request *request,
                      const struct dp_schedule *schedule, struct dp_error *err)
{
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = simulate(request, schedule, true, &result, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_render_options render = {.width = request->width > 0 ? request->width : ctl->width,
                                       .color = ctl->color};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (request->table) {
        double unit = dp_render_table_unit(&result, dp_schedule_action_count(schedule));
        status = dp_render_table(schedule, &result, unit, &render, &text, err);
    } else {
        dp_render_gantt(schedule, &result, &render, &text);
    }
    if (status == DP_OK) {
        dpctl_print(&text);
    }
    return status;
}

static dp_status print_simulation(struct dpctl *ctl, const struct request *request,
                                  const struct dp_schedule *schedule, struct dp_error *err)
{
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = simulate(request, schedule, false, &result, err);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(result_json(schedule, &result), "dp.simulation/1");
        return DP_OK;
    }
    printf("%s  P=%d M=%d stages=%d  makespan %.6g s\n", schedule->name, (int)schedule->pipeline,
           (int)schedule->microbatches, (int)schedule->stages, result.makespan);
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 8};
    const char *const heads[] = {"RANK",         "BUSY_S", "BUBBLE_S",   "WARMUP_S",
                                 "DEPENDENCY_S", "COMM_S", "COOLDOWN_S", "PEAK_CHUNKS"};
    dpctl_heads(&table, heads);
    for (int32_t r = 0; r < result.pipeline; r++) {
        const struct dp_sim_rank *rank = &result.ranks[r];
        dpctl_cell(&table, "%d", (int)r);
        const double values[] = {dp_sim_rank_busy(rank), rank->bubble, rank->warmup,
                                 rank->dependency,       rank->comm,   rank->cooldown};
        for (size_t i = 0; i < DP_ARRAY_LENGTH(values); i++) {
            dpctl_cell(&table, "%.6g", values[i]);
        }
        dpctl_cell(&table, "%u", rank->peak_chunks);
    }
    dpctl_table_print(&table);
    return DP_OK;
}

// One line of the comparison; a family that cannot do (P, M) says why instead.
static void compare_one(const struct request *request, const char *name, json_t *rows)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = obtain(request, name, &schedule, &err);
    if (status == DP_OK) {
        status = simulate(request, &schedule, false, &result, &err);
    }
    if (status == DP_OK) {
        json_t *row = result_json(&schedule, &result);
        json_object_set_new(row, "legal", json_true());
        json_array_append_new(rows, row);
    } else {
        json_array_append_new(
            rows, json_pack("{s:s, s:b, s:s}", "name", name, "legal", 0, "reason", err.message));
    }
}

static void print_comparison(const json_t *rows)
{
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 6};
    const char *const heads[] = {"SCHEDULE",     "STAGES",      "MAKESPAN_S",
                                 "BUBBLE_MAX_S", "PEAK_CHUNKS", "NOTE"};
    dpctl_heads(&table, heads);
    size_t index;
    json_t *row;
    json_array_foreach(rows, index, row)
    {
        dpctl_cell(&table, "%s", json_string_value(json_object_get(row, "name")));
        if (json_is_true(json_object_get(row, "legal"))) {
            dpctl_cell(&table, "%d", (int)json_integer_value(json_object_get(row, "stages")));
            dpctl_cell(&table, "%.6g", json_real_value(json_object_get(row, "makespan_s")));
            dpctl_cell(&table, "%.6g", json_real_value(json_object_get(row, "bubble_max_s")));
            dpctl_cell(&table, "%d",
                       (int)json_integer_value(json_object_get(row, "peak_chunks_max")));
            dpctl_cell(&table, "%s", "");
        } else {
            for (int i = 0; i < 4; i++) {
                dpctl_cell(&table, "%s", "");
            }
            dpctl_cell(&table, "%s", json_string_value(json_object_get(row, "reason")));
        }
    }
    dpctl_table_print(&table);
}

static dp_status compare(struct dpctl *ctl, const struct request *request, struct dp_error *err)
{
    if (request->pipeline == 0 || request->microbatches == 0) {
        return dp_fail(err, DP_USAGE, "say -P RANKS and -M MICROBATCHES");
    }
    DP_AUTO_JSON json_t *rows = json_array();
    if (request->schedules != NULL) {
        DP_AUTO_FREE char *names = dp_strdup(request->schedules);
        char *save = NULL;
        for (char *name = strtok_r(names, ",", &save); name != NULL;
             name = strtok_r(NULL, ",", &save)) {
            if (dp_schedule_family_find(name) == NULL) {
                struct dp_schedule_params params = {.pipeline = 2, .microbatches = 4};
                return dp_schedule_check(name, &params, err);
            }
            compare_one(request, name, rows);
        }
    } else {
        size_t count;
        const struct dp_schedule_family *families = dp_schedule_families(&count);
        for (size_t i = 0; i < count; i++) {
            compare_one(request, families[i].name, rows);
        }
    }
    if (ctl->json) {
        dpctl_print_json(json_pack("{s:O}", "schedules", rows), "dp.comparison/1");
    } else {
        print_comparison(rows);
    }
    return DP_OK;
}

static dp_status export_perfetto(const struct request *request, const struct dp_schedule *schedule,
                                 struct dp_buf *out, struct dp_error *err)
{
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = simulate(request, schedule, true, &result, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE struct dp_action_span *spans = NULL;
    size_t count = 0;
    dp_render_spans(schedule, &result, 0, &spans, &count);
    struct dp_trace_track track = {.name = "predicted", .spans = spans, .count = count};
    dp_render_trace(&track, 1, out);
    return DP_OK;
}

static dp_status export(struct dpctl *ctl, const struct request *request,
                        const struct dp_schedule *schedule, struct dp_error *err)
{
    (void)ctl;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = DP_OK;
    const char *format = request->format == NULL ? "dp" : request->format;
    if (strcmp(format, "dp") == 0) {
        DP_AUTO_JSON json_t *json = dp_schedule_to_json(schedule);
        dp_json_write(json, 0, &text);
        dp_buf_puts(&text, "\n");
    } else if (strcmp(format, "torch") == 0) {
        status = dp_render_torch_csv(schedule, &text, err);
    } else if (strcmp(format, "perfetto") == 0) {
        status = export_perfetto(request, schedule, &text, err);
    } else {
        return dp_fail(err, DP_USAGE, "unknown export format \"%s\"; there are dp, torch, perfetto",
                       format);
    }
    return status == DP_OK ? dpctl_write(request->out, &text, err) : status;
}

static dp_status check(struct dpctl *ctl, const struct request *request,
                       const struct dp_schedule *schedule, struct dp_error *err)
{
    (void)request;
    (void)err;
    size_t count = dp_schedule_action_count(schedule);
    if (ctl->json) {
        dpctl_print_json(json_pack("{s:s, s:b, s:I}", "name", schedule->name, "valid", 1, "actions",
                                   (json_int_t)count),
                         "dp.check/1");
    } else {
        printf("%s: valid, P=%d M=%d stages=%d, %zu actions, hash %016llx\n", schedule->name,
               (int)schedule->pipeline, (int)schedule->microbatches, (int)schedule->stages, count,
               (unsigned long long)dp_schedule_hash(schedule));
    }
    return DP_OK;
}

// What can be done with one schedule.
static const struct verb {
    const char *name;
    dp_status (*run)(struct dpctl *ctl, const struct request *request,
                     const struct dp_schedule *schedule, struct dp_error *err);
} verbs[] = {
    {"show", show},
    {"simulate", print_simulation},
    {"check", check},
    {"export", export},
};

static dp_status run_verb(struct dpctl *ctl, const struct request *request, struct dp_error *err)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(verbs); i++) {
        if (strcmp(verbs[i].name, request->verb) != 0) {
            continue;
        }
        if (request->subject == NULL) {
            return dp_fail(err, DP_USAGE, "%s needs a schedule's name or a .json file",
                           request->verb);
        }
        DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
        dp_status status = obtain(request, request->subject, &schedule, err);
        return status == DP_OK ? verbs[i].run(ctl, request, &schedule, err) : status;
    }
    return dp_fail(err, DP_USAGE,
                   "unknown verb \"%s\"; there are list, show, simulate, compare, check, export",
                   request->verb);
}

dp_status dpctl_cmd_schedule(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        "list\nshow|simulate|export NAME|FILE.json -P RANKS -M COUNT\n"
        "compare -P RANKS -M COUNT\ncheck FILE.json",
        "Pipeline schedules: which there are, what they cost, how they look.\v"
        "Seconds are of one chunk; `compare` takes them as of 1/P of the model, so that a family "
        "with 2P stages has chunks half as long.\n\n"
        "Examples:\n"
        "  dpctl schedule compare -P 8 -M 16 --schedules 1f1b,dualpipe,dualpipev\n"
        "  dpctl schedule show dualpipe -P 4 -M 8 --table\n"
        "  dpctl schedule simulate dualpipe -P 8 -M 20 --fb 2.5 -o json\n"
        "  dpctl schedule export dualpipev -P 4 -M 10 --format torch --out v.csv\n",
        options, handle};
    struct request request = {.f = 1, .b = -1, .i = 1, .w = 1, .fb = -1};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    if (strcmp(request.verb, "list") == 0) {
        return list(ctl);
    }
    if (strcmp(request.verb, "compare") == 0) {
        request.same_model = true;
        return compare(ctl, &request, err);
    }
    return run_verb(ctl, &request, err);
}
