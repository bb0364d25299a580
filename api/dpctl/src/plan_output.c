// dpctl plan: the answer, as a screen of text or as dp.plan/1.

#include <string.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/placement.h"
#include "dp/utf8.h"
#include "plan_request.h"

static json_t *request_json(const struct plan_request *request,
                            const struct plan_question *question)
{
    const struct dp_job_spec *spec = &question->spec;
    json_t *sets = json_array();
    for (int i = 0; i < request->sets.count; i++) {
        json_array_append_new(
            sets, dpctl_text_json(request->sets.items[i], strlen(request->sets.items[i])));
    }
    return json_pack(
        "{s:s, s:s, s:i, s:s, s:i, s:i, s:b, s:o}", "model", spec->model.name, "accelerator",
        question->cluster.accelerator, "nodes", (int)question->resources.nodes_count, "profile",
        question->profile.name, "global_batch", (int)spec->train.global_batch, "sequence",
        (int)spec->train.sequence, "ignore_memory", request->ignore_memory, "set", sets);
}

dp_status plan_write_text(struct dpctl *ctl, const struct plan_request *request,
                          struct dp_buf *text, struct dp_error *err)
{
    if (text->length > 0) {
        dp_utf8_clean(text->bytes, text->length, "\n\t");
    }
    return dpctl_write(ctl, request->out, text, err);
}

dp_status plan_show(struct dpctl *ctl, const struct plan_request *request,
                    const struct plan_question *question, const struct dp_plan *plan,
                    struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0}, command = {0};
    plan_command(request, plan, &command);
    if (ctl->json) {
        json_t *json = dp_plan_to_json(plan);
        json_object_set_new(json, "request", request_json(request, question));
        json_object_set_new(json, "command", dpctl_text_json(command.bytes, command.length));
        dpctl_write_json(json, "dp.plan/1", &text);
        return dpctl_write(ctl, request->out, &text, err);
    }
    dp_plan_render(plan, request->all, &text);
    if (request->all) {
        dp_buf_printf(&text, "again      %s\n", command.bytes);
    }
    return plan_write_text(ctl, request, &text, err);
}

// The groups by kind; `inside` members share a scale-up domain, `level` counts from scale-up
// outwards.
static json_t *placement_json(const struct dp_placement *placement)
{
    const struct dp_spans *spans = &placement->spans;
    const struct {
        const char *name;
        const struct dp_span *span;
    } rows[] = {{"tensor", &spans->tensor},           {"context", &spans->context},
                {"expert", &spans->expert},           {"data", &spans->data},
                {"expert_data", &spans->expert_data}, {"hop", &spans->hop}};
    json_t *groups = json_object(), *hops = json_array();
    for (size_t i = 0; i < DP_ARRAY_LENGTH(rows); i++) {
        const struct dp_span *span = rows[i].span;
        json_object_set_new(groups, rows[i].name,
                            json_pack("{s:i, s:i, s:i}", "ranks", span->ranks, "inside",
                                      span->inside, "level", span->level));
    }
    for (int32_t level = 0; level < DP_PLACEMENT_LEVELS; level++) {
        json_array_append_new(hops, json_integer(placement->hops[level]));
    }
    return json_pack("{s:o, s:o, s:i}", "groups", groups, "hops_by_level", hops, "token_domains",
                     placement->token_domains);
}

dp_status plan_map(struct dpctl *ctl, const struct plan_request *request,
                   const struct plan_question *question, const struct dp_plan *plan,
                   struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    struct dp_placement placement;
    const char *levels[DP_CLUSTER_LEVELS_MAX] = {0};
    for (int32_t i = 0; i < question->cluster.levels_count; i++) {
        levels[i] = question->cluster.levels[i].name;
    }
    dp_status status = dp_placement_of(plan, &question->spec.model, question->resources.nodes,
                                       question->resources.nodes_count, &placement, err);
    if (status != DP_OK) {
        return status;
    }
    if (!ctl->json) {
        dp_plan_render_map(plan, &text);
        dp_placement_render(&placement, question->cluster.levels_count > 0 ? levels : NULL, &text);
        return plan_write_text(ctl, request, &text, err);
    }
    json_t *ranks = json_array();
    for (int32_t i = 0; i < dp_plan_world(plan); i++) {
        struct dp_plan_coordinates at = dp_plan_rank_coordinates(plan, i);
        json_array_append_new(
            ranks, json_pack("{s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:i}", "rank", (int)i, "node",
                             plan->ranks[i].node, "slot", (int)plan->ranks[i].slot, "pipeline",
                             (int)at.pipeline, "data", (int)at.data, "context", (int)at.context,
                             "tensor", (int)at.tensor, "expert", (int)at.expert));
    }
    dpctl_write_json(json_pack("{s:o, s:o}", "fabric", placement_json(&placement), "ranks", ranks),
                     "dp.plan.map/1", &text);
    return dpctl_write(ctl, request->out, &text, err);
}

static json_t *point_json(const struct dp_plan_candidate *c)
{
    char recompute[DP_NAME_MAX];
    dp_recompute_text(c->recompute, recompute);
    return json_pack("{s:f, s:f, s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s}",
                     "step_time_s", c->step_s, "memory_bytes", c->memory_max_bytes, "memory_rank",
                     (int)c->memory_position, "schedule", c->schedule, "virtual",
                     (int)c->virtual_stages, "pipeline", (int)c->pipeline, "data", (int)c->data,
                     "expert", (int)c->expert, "tensor", (int)c->tensor, "context", (int)c->context,
                     "expert_tensor", (int)c->expert_tensor, "microbatches", (int)c->microbatches,
                     "micro_batch_size", (int)c->micro_batch_size, "recompute", recompute);
}

static void print_point(const struct dp_plan *plan, const struct dp_plan_candidate *c,
                        struct dpctl_table *cells)
{
    char text[32], recompute[DP_NAME_MAX];
    dp_recompute_text(c->recompute, recompute);
    dpctl_cell(cells, "%s", dpctl_bytes(text, c->memory_max_bytes));
    dpctl_cell(cells, "%s", dpctl_seconds(text, c->step_s));
    dpctl_cell(cells, "%.1f %%", plan->step_s > 0 ? 100 * (c->step_s / plan->step_s - 1) : 0);
    if (c->virtual_stages > 0) {
        dpctl_cell(cells, "%s v%d", c->schedule, c->virtual_stages);
    } else {
        dpctl_cell(cells, "%s", c->schedule);
    }
    const int32_t sizes[] = {c->pipeline, c->data, c->expert, c->tensor, c->context};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        dpctl_cell(cells, "%d", sizes[i] > 1 ? sizes[i] : 1);
    }
    dpctl_cell(cells, "%dx%d", c->microbatches, c->micro_batch_size);
    dpctl_cell(cells, "%s", recompute);
}

dp_status plan_pareto(struct dpctl *ctl, const struct plan_request *request,
                      const struct plan_question *question, const struct dp_plan *plan,
                      struct dp_error *err)
{
    if (ctl->json) {
        json_t *points = json_array();
        for (size_t i = 0; i < plan->candidates_count; i++) {
            if (plan->candidates[i].legal) {
                json_array_append_new(points, point_json(&plan->candidates[i]));
            }
        }
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dpctl_write_json(json_pack("{s:o, s:o, s:f, s:I, s:f}", "points", points, "request",
                                   request_json(request, question), "error_bar", plan->error_share,
                                   "searched", (json_int_t)plan->searched, "search_s",
                                   plan->search_s),
                         "dp.plan.pareto/1", &text);
        return dpctl_write(ctl, request->out, &text, err);
    }
    if (request->out != NULL) {
        return dp_fail(err, DP_USAGE, "--out of --pareto needs -o json");
    }
    static const char *const heads[] = {"memory", "step",   "slower",  "schedule", "P",        "D",
                                        "EP",     "tensor", "context", "batches",  "recompute"};
    struct dpctl_table cells = {.columns = 11, .right = 0x3f7};
    dpctl_heads(&cells, heads);
    for (size_t i = 0; i < plan->candidates_count; i++) {
        if (plan->candidates[i].legal) {
            print_point(plan, &plan->candidates[i], &cells);
        }
    }
    dpctl_table_print(&cells);
    dpctl_table_deinit(&cells);
    ctl->answered = true;
    return DP_OK;
}
