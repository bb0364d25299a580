#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compose.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/rank_memory.h"
#include "internal.h"
#include "search.h"

// What [parallel] and [optimizer] say of what the cpu device keeps.
static dp_status take_choices(const struct dp_job_spec *spec, struct dp_profile *profile,
                              struct problem *problem, struct dp_error *err)
{
    const struct dp_parallel_spec *parallel = &spec->parallel;
    dp_format format = DP_FORMAT_AUTO;
    dp_moments moments = DP_MOMENTS_FP32;
    dp_status status = DP_OK;
    if (parallel->precision[0] != '\0') {
        status = dp_format_parse(parallel->precision, &format, err);
    }
    if (status == DP_OK) {
        status = dp_moments_parse(spec->optimizer.moments, &moments, err);
    }
    if (status == DP_OK && parallel->offload[0] != '\0') {
        status = dp_offload_parse(parallel->offload, &problem->offload, err);
    }
    dp_profile_set_cpu_format(profile, format, moments);
    problem->fp8 = format == DP_FORMAT_FP8_BLOCK;
    problem->save_fp8 = parallel->save_fp8 > 0;
    return status;
}

// `profile` has the fallback, and the one that the problem rests on where that is not a device's.
static dp_status make_problem(const struct dp_job_spec *spec,
                              const struct dp_planner_resources *resources,
                              struct dp_profile *fallback, struct problem *ret_problem,
                              struct dp_error *err)
{
    struct problem problem = {
        .spec = spec,
        .nodes = resources->nodes,
        .nodes_count = resources->nodes_count,
        .profile = resources->profile != NULL ? resources->profile : fallback,
        .is_sim = spec->resources.device == DP_DEVICE_SIM,
    };
    problem.is_fabric = !problem.is_sim && problem.profile->is_accelerator;
    dp_status status = dp_job_spec_check(spec, err);
    if (status == DP_OK && !problem.is_sim && !problem.is_fabric) {
        *fallback = *problem.profile;
        problem.profile = fallback;
        status = take_choices(spec, fallback, &problem, err);
    }
    DP_AUTO_FREE int32_t *layers = dp_new_array(int32_t, DP_STAGES_MAX);
    if (status == DP_OK) {
        status = dp_layers_per_stage_parse(spec->parallel.layers_per_stage, spec->model.layers,
                                           layers, &problem.set_stages, err);
    }
    for (size_t i = 0; i < resources->nodes_count; i++) {
        problem.slots += resources->nodes[i].slots;
    }
    problem.cores = problem.is_sim ? 0 : dp_planner_all_cores(&problem);
    *ret_problem = problem;
    return status;
}

static dp_status plan(const struct dp_job_spec *spec, const struct dp_planner_resources *resources,
                      const struct dp_planner_options *options, bool pareto,
                      struct dp_plan *ret_plan, struct dp_error *err)
{
    DP_AUTO_FREE struct dp_profile *fallback = dp_new(struct dp_profile);
    dp_profile_default_cpu(fallback);
    struct problem problem;
    dp_status status = make_problem(spec, resources, fallback, &problem, err);
    if (status != DP_OK) {
        return status;
    }
    if (options != NULL) {
        problem.stop = options->stop;
        problem.stop_context = options->context;
    }
    if (problem.is_fabric) {
        return dp_planner_compose(&problem, options, pareto, ret_plan, err);
    }
    DP_CLEANUP(dp_planner_choices_deinit) struct choices choices = {0};
    status = dp_planner_enumerate_choices(&problem, &choices, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_planner_search_deinit) struct search search = {0};
    status = dp_planner_search_run(&problem, &choices, options, &search, err);
    if (status != DP_OK) {
        return status;
    }
    return dp_planner_search_make_plan(&search, &problem, &choices, ret_plan, err);
}

dp_status dp_planner_plan(const struct dp_job_spec *spec,
                          const struct dp_planner_resources *resources,
                          const struct dp_planner_options *options, struct dp_plan *ret_plan,
                          struct dp_error *err)
{
    return plan(spec, resources, options, false, ret_plan, err);
}

// Candidates of CPU and sim jobs are few and all simulated: what others beat is left out.
static void keep_unbeaten(struct dp_plan *plan)
{
    double least = INFINITY;
    size_t kept = 0;
    for (size_t i = 0; i < plan->candidates_count; i++) {
        struct dp_plan_candidate *candidate = &plan->candidates[i];
        bool fits = candidate->memory_limit_bytes <= 0 ||
                    candidate->memory_max_bytes <= candidate->memory_limit_bytes;
        if (candidate->legal && fits && candidate->memory_max_bytes < least) {
            least = candidate->memory_max_bytes;
            plan->candidates[kept++] = *candidate;
        } else {
            free(candidate->reason);
        }
    }
    plan->candidates_count = kept;
}

dp_status dp_planner_pareto(const struct dp_job_spec *spec,
                            const struct dp_planner_resources *resources,
                            const struct dp_planner_options *options, struct dp_plan *ret_plan,
                            struct dp_error *err)
{
    dp_status status = plan(spec, resources, options, true, ret_plan, err);
    if (status == DP_OK) {
        keep_unbeaten(ret_plan);
    }
    return status;
}

// The layout that a plan describes; nodes are found by name.
static dp_status layout_of_plan(const struct problem *problem, const struct dp_plan *plan,
                                struct layout *ret_layout, struct dp_error *err)
{
    struct layout layout = {
        .choice = {.pipeline = plan->pipeline,
                   .expert = plan->expert,
                   .data = plan->data,
                   .microbatches = plan->microbatches,
                   .micro_batch_size = plan->micro_batch_size,
                   .virtual_stages = plan->virtual_stages,
                   .stages = plan->stages},
    };
    int32_t world = dp_plan_world(plan);
    layout.places = dp_new_array(struct place, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        size_t node = 0;
        while (node < problem->nodes_count &&
               strcmp(problem->nodes[node].name, plan->ranks[i].node) != 0) {
            node++;
        }
        if (node == problem->nodes_count) {
            free(layout.places);
            return dp_fail(err, DP_NOT_FOUND, "rank %d stands on node \"%s\", which is not given",
                           i, plan->ranks[i].node);
        }
        layout.places[i] = (struct place){(int32_t)node, plan->ranks[i].slot};
    }
    layout.layer_begin =
        dp_memdup(plan->layer_begin, ((size_t)plan->stages + 1) * sizeof(*plan->layer_begin));
    layout.ep_nodes = dp_planner_ep_group_nodes(&layout.choice, layout.places);
    layout.slowdown = dp_planner_compute_slowdown(problem, &layout);
    *ret_layout = layout;
    return DP_OK;
}

// The nodes that the plan names, without limits: enough where only its times are asked for.
static void nodes_of_plan(const struct dp_plan *plan, struct dp_planner_node **ret_nodes,
                          size_t *ret_count)
{
    struct dp_planner_node *nodes =
        dp_new_array(struct dp_planner_node, (size_t)dp_plan_world(plan));
    size_t count = 0;
    for (int32_t i = 0; i < dp_plan_world(plan); i++) {
        size_t node = 0;
        while (node < count && strcmp(nodes[node].name, plan->ranks[i].node) != 0) {
            node++;
        }
        if (node == count) {
            DP_COPY_TEXT(nodes[count++].name, plan->ranks[i].node);
        }
        nodes[node].slots++;
    }
    *ret_nodes = nodes;
    *ret_count = count;
}

// What an equal share of the tokens, times `load`, brings to a rank's experts: rows of each token
// that visits it grow first, since a token visits a rank once.
static struct dp_cost_routed routed_at(const struct dp_model_spec *model,
                                       const struct dp_cost_batch *batch, double load)
{
    double tokens = (double)batch->samples * batch->sequence, ranks = batch->ep_size;
    double visits = 1 - pow(1 - 1 / ranks, model->top_k);
    return (struct dp_cost_routed){.tokens = tokens * ranks * fmin(visits * load, 1),
                                   .rows = tokens * model->top_k * fmin(load, ranks)};
}

dp_status dp_planner_memory(const struct dp_job_spec *spec, const struct dp_plan *plan,
                            int32_t position, double load, struct dp_memory_parts *ret_parts,
                            struct dp_error *err)
{
    if (position < 0 || position >= plan->pipeline ||
        plan->layer_begin[plan->stages] != spec->model.layers) {
        return dp_fail(err, DP_INVALID, "position %d of a plan that has %d", position,
                       plan->pipeline);
    }
    DP_AUTO_FREE struct dp_profile *fallback = dp_new(struct dp_profile);
    dp_profile_default_cpu(fallback);
    DP_AUTO_FREE struct dp_planner_node *nodes = NULL;
    struct dp_planner_resources resources = {0};
    nodes_of_plan(plan, &nodes, &resources.nodes_count);
    resources.nodes = nodes;
    struct problem problem;
    DP_CLEANUP(dp_planner_layout_deinit) struct layout layout = {0};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    dp_status status = make_problem(spec, &resources, fallback, &problem, err);
    if (status == DP_OK) {
        status = layout_of_plan(&problem, plan, &layout, err);
    }
    if (status == DP_OK) {
        status = dp_plan_schedule(plan, &schedule, err);
    }
    if (status != DP_OK) {
        return status;
    }
    layout.choice.shard = plan->shard;
    layout.choice.recompute = plan->recompute;
    struct dp_rank_memory memory = dp_planner_memory_of(&problem, &layout, &schedule);
    size_t layers = (size_t)spec->model.layers + 1;
    DP_AUTO_FREE struct dp_cost_routed *routed = dp_new_array(struct dp_cost_routed, layers);
    for (size_t i = 0; i < layers; i++) {
        routed[i] = routed_at(&spec->model, &memory.batch, load);
    }
    memory.routed = spec->model.experts > 0 ? routed : NULL;
    dp_rank_memory_parts(&memory, position, ret_parts, NULL);
    return DP_OK;
}

dp_status dp_planner_costs(const struct dp_job_spec *spec, const struct dp_plan *plan,
                           const struct dp_planner_resources *resources, int32_t replica,
                           const struct dp_schedule *schedule, struct dp_sim_costs *ret_costs,
                           struct dp_error *err)
{
    if (replica < 0 || replica >= plan->data) {
        return dp_fail(err, DP_INVALID, "replica %d of a plan that has %d", replica, plan->data);
    }
    if (plan->layer_begin[plan->stages] != spec->model.layers ||
        schedule->pipeline != plan->pipeline || schedule->stages != plan->stages) {
        return dp_fail(err, DP_INVALID, "plan, job and schedule do not belong together");
    }
    DP_AUTO_FREE struct dp_profile *fallback = dp_new(struct dp_profile);
    dp_profile_default_cpu(fallback);
    DP_AUTO_FREE struct dp_planner_node *nodes = NULL;
    struct dp_planner_resources of_plan = {0};
    if (resources == NULL) {
        nodes_of_plan(plan, &nodes, &of_plan.nodes_count);
        of_plan.nodes = nodes;
        resources = &of_plan;
    }
    struct problem problem;
    dp_status status = make_problem(spec, resources, fallback, &problem, err);
    if (status != DP_OK) {
        return status;
    }
    if (problem.is_fabric) {
        return dp_planner_compose_costs(&problem, plan, schedule, ret_costs, err);
    }
    DP_CLEANUP(dp_planner_layout_deinit) struct layout layout = {0};
    status = layout_of_plan(&problem, plan, &layout, err);
    if (status == DP_OK) {
        dp_planner_layout_costs(&problem, &layout, replica, schedule, ret_costs);
    }
    return status;
}
