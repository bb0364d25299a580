// From a checkpoint, without the nodes that are slow.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "anew.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"

static void loosen(struct dp_job_spec *spec, int step)
{
    struct dp_parallel_spec *p = &spec->parallel;
    spec->resources.ranks = step > 0 ? 0 : spec->resources.ranks;
    if (step >= 1) {
        p->data = p->microbatches = 0;
    }
    if (step >= 2) {
        p->pipeline = p->expert = p->virtual_stages = 0;
        p->layers_per_stage[0] = '\0';
    }
    if (step >= 3) {
        p->schedule[0] = '\0';
        p->tensor = p->context = p->expert_tensor = p->micro_batch_size = 0;
    }
}

dp_status dp_adapt_plan_anew(const struct dp_job_spec *spec,
                             const struct dp_planner_resources *resources,
                             const struct dp_planner_options *options, bool loosens,
                             struct dp_plan *ret_plan, const char **ret_gave, struct dp_error *err)
{
    static const char *const gave[] = {"", "the number of replicas",
                                       "the numbers of replicas, stages and expert ranks",
                                       "all sizes that the job sets"};
    DP_AUTO_FREE struct dp_job_spec *looser = dp_new(struct dp_job_spec);
    dp_status status = DP_UNSCHEDULABLE;
    for (int step = loosens ? 1 : 0; step < (loosens ? 4 : 1); step++) {
        *looser = *spec;
        loosen(looser, step);
        status = dp_planner_plan(looser, resources, options, ret_plan, err);
        if (status != DP_UNSCHEDULABLE && status != DP_INVALID) {
            *ret_gave = gave[step];
            return status;
        }
    }
    return status;
}

static bool is_slow_node(const struct adapt *adapt, const char *name)
{
    for (int32_t r = 0; r < adapt->world; r++) {
        if (adapt->places[r].slow >= 1.05 && strcmp(adapt->places[r].name, name) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < adapt->input->links_count; i++) {
        const struct dp_adapt_link *link = &adapt->input->links[i];
        int32_t rank = link->at_fault == DP_ADAPT_FROM ? link->from
                       : link->at_fault == DP_ADAPT_TO ? link->to
                                                       : -1;
        if (rank >= 0 && strcmp(adapt->places[rank].name, name) == 0) {
            return true;
        }
    }
    return false;
}

dp_status dp_adapt_plan_well(struct adapt *adapt, bool loosens, struct dp_plan *ret_plan,
                             const char **ret_gave, struct dp_buf *left_out, struct dp_error *err)
{
    struct dp_planner_resources rest = *adapt->input->resources;
    DP_AUTO_FREE struct dp_planner_node *nodes =
        dp_new_array(struct dp_planner_node, rest.nodes_count);
    size_t count = 0;
    for (size_t i = 0; i < rest.nodes_count; i++) {
        if (is_slow_node(adapt, rest.nodes[i].name)) {
            dp_buf_printf(left_out, "%s%s", left_out->length > 0 ? "," : "", rest.nodes[i].name);
        } else {
            nodes[count++] = rest.nodes[i];
        }
    }
    if (count == 0) {
        return dp_fail(err, DP_UNSCHEDULABLE, "all nodes are slow");
    }
    rest.nodes = nodes;
    rest.nodes_count = count;
    const struct dp_adapt_limits *limits = &adapt->input->limits;
    const struct dp_planner_options options = {.stop = limits->stop, .context = limits->context};
    return dp_adapt_plan_anew(adapt->input->spec, &rest, &options, loosens, ret_plan, ret_gave,
                              err);
}

dp_status dp_adapt_no_plan(const struct dp_error *refusal, char *ret_why, struct dp_error *err)
{
    if (refusal->status == DP_INTERRUPTED) {
        return dp_fail(err, DP_INTERRUPTED, "the search for a plan was stopped");
    }
    snprintf(ret_why, DP_ADAPT_WHY_MAX, "%.*s", DP_ADAPT_WHY_MAX - 1, refusal->message);
    return DP_OK;
}

double dp_adapt_planner_off(struct adapt *adapt, double scale)
{
    adapt->ignores_slowness = true;
    double healthy = dp_adapt_layout_step(adapt, &adapt->base) * scale;
    adapt->ignores_slowness = false;
    return adapt->plan->step_s > 0 && healthy > 0 ? healthy / adapt->plan->step_s : 1;
}

static bool some_node_is_slow(const struct adapt *adapt)
{
    const struct dp_planner_resources *resources = adapt->input->resources;
    for (size_t i = 0; i < resources->nodes_count; i++) {
        if (is_slow_node(adapt, resources->nodes[i].name)) {
            return true;
        }
    }
    return false;
}

dp_status dp_adapt_restart(struct adapt *adapt, double scale, struct dp_adapt_answer *answer,
                           char *ret_why, struct dp_error *err)
{
    const struct dp_adapt_input *input = adapt->input;
    if (input->spec == NULL || input->resources == NULL) {
        snprintf(ret_why, DP_ADAPT_WHY_MAX, "the job's file and nodes were not given");
        return DP_OK;
    }
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf nodes = {0};
    if (!some_node_is_slow(adapt)) {
        snprintf(ret_why, DP_ADAPT_WHY_MAX, "no node is slow as a whole");
        return DP_OK;
    }
    struct dp_error refusal = {0};
    const char *gave = "";
    dp_status status = dp_adapt_plan_well(adapt, false, &plan, &gave, &nodes, &refusal);
    if (status != DP_OK) {
        return dp_adapt_no_plan(&refusal, ret_why, err);
    }
    answer->possible = true;
    answer->after_s = plan.step_s * dp_adapt_planner_off(adapt, scale);
    answer->cost_s = input->acting.checkpoint_s + input->acting.restart_s;
    answer->action =
        dp_asprintf("checkpoint, then start again without %s on %d ranks (pipeline %d x data %d)",
                    nodes.bytes, dp_plan_world(&plan), plan.pipeline, plan.data);
    answer->without = dp_strdup(nodes.bytes);
    answer->plan = dp_new(struct dp_plan);
    *answer->plan = plan;
    plan = (struct dp_plan){0};
    return DP_OK;
}
