// dpctl plan: the answer, as a screen of text or as dp.plan/1.

#include <string.h>

#include "dp/cleanup.h"
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
    } else {
        dp_plan_render(plan, request->all, &text);
        if (request->all) {
            dp_buf_printf(&text, "\nagain\n  %s\n", command.bytes);
        }
    }
    return dpctl_write(ctl, request->out, &text, err);
}

dp_status plan_map(struct dpctl *ctl, const struct plan_request *request,
                   const struct plan_question *question, const struct dp_plan *plan,
                   struct dp_error *err)
{
    (void)question;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (!ctl->json) {
        dp_plan_render_map(plan, &text);
        return dpctl_write(ctl, request->out, &text, err);
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
    dpctl_write_json(json_pack("{s:o}", "ranks", ranks), "dp.plan.map/1", &text);
    return dpctl_write(ctl, request->out, &text, err);
}
