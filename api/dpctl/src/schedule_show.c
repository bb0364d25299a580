// dpctl schedule show: the drawing, and as JSON the times of every action and how much later it
// might end.

#include "dp/cleanup.h"
#include "dp/render.h"
#include "schedule_verbs.h"

static json_t *spans_json(const struct schedule_request *request,
                          const struct dp_schedule *schedule, const struct dp_sim_result *result,
                          const struct dp_sim_analysis *analysis)
{
    json_t *ranks = json_array();
    for (int32_t r = 0; r < schedule->pipeline; r++) {
        json_t *spans = json_array();
        for (size_t i = schedule->rank_begin[r]; i < schedule->rank_begin[r + 1]; i++) {
            DP_CLEANUP(dp_buf_deinit) struct dp_buf title = {0};
            dp_action_format(&schedule->actions[i], &title);
            json_array_append_new(spans,
                                  json_pack("{s:s, s:f, s:f, s:f}", "action", title.bytes,
                                            "start_s", result->spans[i].start, "end_s",
                                            result->spans[i].end, "slack_s", analysis->slack[i]));
        }
        json_array_append_new(ranks, spans);
    }
    return json_pack("{s:o, s:s, s:i, s:i, s:i, s:f, s:o}", "request",
                     schedule_request_json(request), "name", schedule->name, "pipeline",
                     (int)schedule->pipeline, "microbatches", (int)schedule->microbatches, "stages",
                     (int)schedule->stages, "makespan_s", result->makespan, "ranks", ranks);
}

dp_status schedule_show(struct dpctl *ctl, const struct schedule_request *request,
                        struct dp_error *err)
{
    DP_CLEANUP(schedule_subject_deinit) struct schedule_subject subject = {0};
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    DP_CLEANUP(dp_sim_analysis_deinit) struct dp_sim_analysis analysis = {0};
    dp_status status = schedule_obtain_subject(request, NULL, &subject, err);
    if (status == DP_OK && ctl->json) {
        status = dp_simulate_analyzed(&subject.schedule, &subject.costs, &result, &analysis, err);
    } else if (status == DP_OK) {
        status = dp_simulate(&subject.schedule, &subject.costs, true, &result, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl, spans_json(request, &subject.schedule, &result, &analysis),
                         "dp.spans/1");
        return DP_OK;
    }
    struct dp_render_options render = {.width = request->width >= 0 ? request->width : ctl->width,
                                       .color = ctl->color};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (request->table) {
        size_t count = dp_schedule_action_count(&subject.schedule);
        double unit = dp_render_table_unit(&result, count);
        status = dp_render_table(&subject.schedule, &result, unit, &render, &text, err);
    } else {
        dp_render_gantt(&subject.schedule, &result, &render, &text);
    }
    if (status == DP_OK) {
        dpctl_print(&text);
    }
    return status;
}
