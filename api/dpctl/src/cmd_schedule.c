// dpctl schedule: everything about schedules that needs no cluster.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/diag.h"
#include "dp/render.h"
#include "schedule_request.h"

static dp_status list(struct dpctl *ctl, const struct schedule_request *request,
                      const struct dp_schedule *none, struct dp_error *err)
{
    (void)request;
    (void)none;
    (void)err;
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
        dpctl_print_json(ctl, json_pack("{s:o}", "schedules", rows), "dp.schedules/1");
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

static json_t *spans_json(const struct dp_schedule *schedule, const struct dp_sim_result *result)
{
    json_t *ranks = json_array();
    for (int32_t r = 0; r < schedule->pipeline; r++) {
        json_t *spans = json_array();
        for (size_t i = schedule->rank_begin[r]; i < schedule->rank_begin[r + 1]; i++) {
            DP_CLEANUP(dp_buf_deinit) struct dp_buf title = {0};
            dp_action_format(&schedule->actions[i], &title);
            json_array_append_new(spans,
                                  json_pack("{s:s, s:f, s:f}", "action", title.bytes, "start_s",
                                            result->spans[i].start, "end_s", result->spans[i].end));
        }
        json_array_append_new(ranks, spans);
    }
    return json_pack("{s:s, s:i, s:i, s:i, s:f, s:o}", "name", schedule->name, "pipeline",
                     (int)schedule->pipeline, "microbatches", (int)schedule->microbatches, "stages",
                     (int)schedule->stages, "makespan_s", result->makespan, "ranks", ranks);
}

static dp_status show(struct dpctl *ctl, const struct schedule_request *request,
                      const struct dp_schedule *schedule, struct dp_error *err)
{
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = schedule_simulate(request, schedule, true, &result, err);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, spans_json(schedule, &result), "dp.spans/1");
        return DP_OK;
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

static dp_status print_simulation(struct dpctl *ctl, const struct schedule_request *request,
                                  const struct dp_schedule *schedule, struct dp_error *err)
{
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = schedule_simulate(request, schedule, false, &result, err);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, schedule_result_json(schedule, &result), "dp.simulation/1");
        return DP_OK;
    }
    printf("%s  P=%d M=%d stages=%d  makespan %.6g s\n", schedule->name, (int)schedule->pipeline,
           (int)schedule->microbatches, (int)schedule->stages, result.makespan);
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 8, .right = 0xff};
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

static dp_status export_perfetto(const struct schedule_request *request,
                                 const struct dp_schedule *schedule, struct dp_buf *out,
                                 struct dp_error *err)
{
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    dp_status status = schedule_simulate(request, schedule, true, &result, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE struct dp_action_span *spans = NULL;
    size_t count = 0;
    dp_render_spans(schedule, &result, 0, &spans, &count);
    struct dp_trace_track track = {
        .name = "predicted", .pipeline = schedule->pipeline, .spans = spans, .count = count};
    dp_render_trace(&track, 1, out);
    return DP_OK;
}

static dp_status export(struct dpctl *ctl, const struct schedule_request *request,
                        const struct dp_schedule *schedule, struct dp_error *err)
{
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
    return status == DP_OK ? dpctl_write(ctl, request->out, &text, err) : status;
}

// Obtains the schedule itself: one that is not valid is an answer.
static dp_status check(struct dpctl *ctl, const struct schedule_request *request,
                       const struct dp_schedule *none, struct dp_error *err)
{
    (void)none;
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    dp_status status = schedule_obtain(request, request->subject, &schedule, err);
    if (dp_status_exit_code(status) == dp_status_exit_code(DP_INVALID) && ctl->json) {
        const struct dp_diags no_positions = {0};
        dpctl_print_json(ctl,
                         json_pack("{s:b, s:o}", "valid", 0, "problems",
                                   dpctl_problems_json(&no_positions, err)),
                         "dp.check/1");
    }
    if (status != DP_OK) {
        return status;
    }
    size_t count = dp_schedule_action_count(&schedule);
    char hash[32];
    snprintf(hash, sizeof hash, "0x%016llx", (unsigned long long)dp_schedule_hash(&schedule));
    if (ctl->json) {
        dpctl_print_json(ctl,
                         json_pack("{s:s, s:b, s:i, s:i, s:i, s:I, s:s}", "name", schedule.name,
                                   "valid", 1, "pipeline", (int)schedule.pipeline, "microbatches",
                                   (int)schedule.microbatches, "stages", (int)schedule.stages,
                                   "actions", (json_int_t)count, "schedule_hash", hash),
                         "dp.check/1");
    } else {
        printf("%s: valid, P=%d M=%d stages=%d, %zu actions, hash %s\n", schedule.name,
               (int)schedule.pipeline, (int)schedule.microbatches, (int)schedule.stages, count,
               hash);
    }
    return DP_OK;
}

static const struct verb {
    const char *name;
    uint32_t takes;     // schedule_options
    bool with_subject;  // a family or a file
    bool with_schedule; // gets it made; else NULL
    dp_status (*run)(struct dpctl *ctl, const struct schedule_request *request,
                     const struct dp_schedule *schedule, struct dp_error *err);
} verbs[] = {
    {"list", 0, false, false, list},
    {"show", SCHEDULE_SIZES | SCHEDULE_COSTS | SCHEDULE_DRAWING, true, true, show},
    {"simulate", SCHEDULE_SIZES | SCHEDULE_COSTS, true, true, print_simulation},
    {"compare", SCHEDULE_SIZES | SCHEDULE_COSTS | SCHEDULE_FAMILIES, false, false,
     schedule_compare},
    {"check", SCHEDULE_SIZES, true, false, check},
    {"export", SCHEDULE_SIZES | SCHEDULE_COSTS | SCHEDULE_FILES, true, true, export},
};

static const struct {
    schedule_options group;
    const char *names;
} option_names[] = {
    {SCHEDULE_SIZES, "-P or -M"},          {SCHEDULE_COSTS, "--f, --b, --i, --w, --fb or --hop"},
    {SCHEDULE_FAMILIES, "--schedules"},    {SCHEDULE_DRAWING, "--table or --width"},
    {SCHEDULE_FILES, "--format or --out"},
};

static dp_status run_verb(struct dpctl *ctl, const struct verb *verb,
                          const struct schedule_request *request, struct dp_error *err)
{
    for (size_t i = 0; i < DP_ARRAY_LENGTH(option_names); i++) {
        if ((request->given & ~verb->takes & option_names[i].group) != 0) {
            return dp_fail(err, DP_USAGE, "`dpctl schedule %s` does not take %s", verb->name,
                           option_names[i].names);
        }
    }
    if (verb->with_subject && request->subject == NULL) {
        return dp_fail(err, DP_USAGE, "%s needs a schedule's name or a .json file", verb->name);
    }
    if (!verb->with_subject && request->subject != NULL) {
        return dp_fail(err, DP_USAGE, "unexpected argument \"%s\" after %s", request->subject,
                       verb->name);
    }
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    if (!verb->with_schedule) {
        return verb->run(ctl, request, NULL, err);
    }
    dp_status status = schedule_obtain(request, request->subject, &schedule, err);
    return status == DP_OK ? verb->run(ctl, request, &schedule, err) : status;
}

dp_status dpctl_cmd_schedule(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    struct schedule_request request;
    schedule_request_parse(ctl, argc, argv, &request);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(verbs); i++) {
        if (strcmp(verbs[i].name, request.verb) == 0) {
            return run_verb(ctl, &verbs[i], &request, err);
        }
    }
    return dp_fail(err, DP_USAGE,
                   "unknown verb \"%s\"; there are list, show, simulate, compare, check, export",
                   request.verb);
}
