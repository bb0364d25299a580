// Costs by layer as the planner has them: what one more layer adds to the first stage.

#include <math.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

struct question {
    const struct dp_job_spec *spec;
    const struct dp_planner_resources *resources;
    const struct dp_schedule *schedule;
    struct dp_plan plan; // its cut of the layers changes
};

// What one stage takes on the rank that holds it.
static const double *seconds_of(const struct question *question, const struct dp_sim_costs *costs,
                                int32_t stage)
{
    int32_t rank = question->schedule->placement[2 * stage], slot = 0;
    int32_t stages[DP_RANK_STAGES_MAX];
    dp_schedule_rank_stages(question->schedule, rank, stages);
    while (stages[slot] != stage) {
        slot++;
    }
    return dp_sim_chunk_at(costs, rank, slot)->seconds;
}

// With `layers` layers in the first stage, none in those between and the rest in the last.
static dp_status cut_at(struct question *question, int32_t layers, struct dp_sim_costs *ret_costs,
                        struct dp_error *err)
{
    struct dp_plan *plan = &question->plan;
    for (int32_t s = 1; s < plan->stages; s++) {
        plan->layer_begin[s] = layers;
    }
    return dp_planner_costs(question->spec, plan, question->resources, 0, question->schedule,
                            ret_costs, err);
}

static dp_status fill_layers(struct question *question, struct dp_adapt_costs *costs,
                             struct dp_error *err)
{
    double before[DP_ADAPT_KINDS] = {0};
    int32_t stages = question->plan.stages;
    for (int32_t l = 0; l <= costs->layers; l++) {
        DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs cut = {0};
        dp_status status = cut_at(question, l, &cut, err);
        if (status != DP_OK) {
            return status;
        }
        const double *first = seconds_of(question, &cut, 0);
        for (int kind = 0; kind < DP_ADAPT_KINDS; kind++) {
            if (l == 0) {
                costs->action[kind] = stages > 2 ? seconds_of(question, &cut, 1)[kind] : 0;
                costs->first[kind] = fmax(0, first[kind] - costs->action[kind]);
            } else {
                costs->layer[l - 1][kind] = fmax(0, first[kind] - before[kind]);
            }
            before[kind] = first[kind];
        }
        if (l == costs->layers) {
            const double *last = seconds_of(question, &cut, stages - 1);
            for (int kind = 0; kind < DP_ADAPT_KINDS; kind++) {
                costs->last[kind] = fmax(0, last[kind] - costs->action[kind]);
            }
        }
    }
    return DP_OK;
}

// A single stage cannot be cut: its layers share its time evenly.
static void fill_evenly(const struct question *question, const struct dp_sim_costs *now,
                        struct dp_adapt_costs *costs)
{
    const double *all = seconds_of(question, now, 0);
    for (int32_t l = 0; l < costs->layers; l++) {
        for (int kind = 0; kind < DP_ADAPT_KINDS; kind++) {
            costs->layer[l][kind] = all[kind] / costs->layers;
        }
    }
}

static void fill_pairs(const struct dp_sim_costs *now, struct dp_adapt_costs *costs)
{
    const double *seconds = dp_sim_chunk_at(now, 0, 0)->seconds;
    double with_b = seconds[DP_ACTION_F] + seconds[DP_ACTION_B];
    double with_i = seconds[DP_ACTION_F] + seconds[DP_ACTION_I];
    costs->pair_share = with_b > 0 ? now->fb[0] / with_b : 1;
    costs->pair_input_share = with_i > 0 ? now->fi[0] / with_i : 1;
}

// Links of the kinds that the plan has; one that it does not have counts as the other.
static void fill_links(const struct dp_plan *plan, const struct dp_sim_costs *now,
                       struct dp_adapt_costs *costs)
{
    bool has_local = false, has_network = false;
    int32_t shards = dp_plan_shards(plan);
    for (int32_t a = 0; a < plan->pipeline; a++) {
        for (int32_t b = 0; b < plan->pipeline; b++) {
            bool is_local = strcmp(plan->ranks[a * shards].node, plan->ranks[b * shards].node) == 0;
            if (a != b && is_local && !has_local) {
                costs->local = *dp_sim_hop_at(now, a, b);
                has_local = true;
            } else if (a != b && !is_local && !has_network) {
                costs->network = *dp_sim_hop_at(now, a, b);
                has_network = true;
            }
        }
    }
    costs->local = has_local ? costs->local : costs->network;
    costs->network = has_network ? costs->network : costs->local;
}

dp_status dp_adapt_costs_predict(const struct dp_job_spec *spec, const struct dp_plan *plan,
                                 const struct dp_planner_resources *resources,
                                 struct dp_adapt_costs *ret_costs, struct dp_error *err)
{
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs now = {0};
    dp_status status = dp_plan_schedule(plan, &schedule, err);
    status =
        status == DP_OK ? dp_planner_costs(spec, plan, resources, 0, &schedule, &now, err) : status;
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs;
    dp_adapt_costs_init(&costs, plan->layer_begin[plan->stages], plan->pipeline);
    struct question question = {.spec = spec, .resources = resources, .schedule = &schedule};
    dp_plan_copy(&question.plan, plan);
    if (plan->stages > 1) {
        status = fill_layers(&question, &costs, err);
    } else {
        fill_evenly(&question, &now, &costs);
    }
    dp_plan_deinit(&question.plan);
    if (status != DP_OK) {
        return status;
    }
    fill_pairs(&now, &costs);
    fill_links(plan, &now, &costs);
    costs.message_bytes_f = now.message_bytes_f;
    costs.message_bytes_b = now.message_bytes_b;
    costs.p2p = now.p2p;
    size_t bytes = (size_t)plan->pipeline * sizeof(double);
    memcpy(costs.gradient_s, now.gradient_sync, bytes);
    memcpy(costs.optimizer_s, now.optimizer, bytes);
    *ret_costs = costs;
    costs = (struct dp_adapt_costs){0};
    return DP_OK;
}
