// From a plan for accelerators back to the costs that its prediction rests on.

#include <stdlib.h>
#include <string.h>

#include "compose.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "simulation.h"

static int32_t at_least_one(int32_t size)
{
    return size > 0 ? size : 1;
}

static struct dp_strategy strategy_of(const struct problem *problem, const struct dp_plan *plan)
{
    struct dp_strategy strategy = {
        .pipeline = plan->pipeline,
        .data = plan->data,
        .tensor = at_least_one(plan->tensor),
        .context = at_least_one(plan->context),
        .expert = plan->expert,
        .expert_tensor = at_least_one(plan->expert_tensor),
        .virtual_stages = plan->virtual_stages,
        .microbatches = plan->microbatches,
        .micro_batch_size = plan->micro_batch_size,
        .sequence_parallel = plan->sequence_parallel,
        .format = plan->format,
        .shard = plan->shard,
        .recompute = plan->recompute,
        .comm_units = problem->spec->parallel.comm_units,
    };
    // The job's: a plan says what its prices made of it.
    double imbalance = problem->spec->parallel.imbalance;
    strategy.imbalance = imbalance >= 1 ? imbalance : 1;
    DP_COPY_TEXT(strategy.schedule, plan->schedule);
    return strategy;
}

// Nodes are found by name; ranks that follow each other mostly stand on the same one.
static dp_status places_of(const struct problem *problem, const struct dp_plan *plan,
                           struct dp_place *places, struct dp_error *err)
{
    size_t node = 0;
    for (int32_t i = 0; i < dp_plan_world(plan); i++) {
        size_t looked = 0;
        while (looked < problem->nodes_count &&
               strcmp(problem->nodes[node].name, plan->ranks[i].node) != 0) {
            node = (node + 1) % problem->nodes_count;
            looked++;
        }
        if (looked == problem->nodes_count) {
            return dp_fail(err, DP_NOT_FOUND, "rank %d stands on node \"%s\", which is not given",
                           i, plan->ranks[i].node);
        }
        places[i] = (struct dp_place){(int32_t)node, plan->ranks[i].slot};
    }
    return DP_OK;
}

dp_status dp_planner_compose_costs(const struct problem *problem, const struct dp_plan *plan,
                                   const struct dp_schedule *schedule,
                                   struct dp_sim_costs *ret_costs, struct dp_error *err)
{
    DP_AUTO_FREE struct dp_place *places =
        dp_new_array(struct dp_place, (size_t)dp_plan_world(plan));
    dp_status status = places_of(problem, plan, places, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE struct pricing *pricing = dp_new(struct pricing);
    pricing->strategy = strategy_of(problem, plan);
    pricing->input = (struct dp_price_input){
        .model = &problem->spec->model,
        .profile = problem->profile,
        .strategy = &pricing->strategy,
        .sequence = problem->spec->train.sequence,
    };
    const struct dp_place_sizes sizes = {
        .pipeline = plan->pipeline,
        .data = plan->data,
        .tensor = pricing->strategy.tensor,
        .context = pricing->strategy.context,
        .expert = plan->expert,
        .expert_tensor = pricing->strategy.expert_tensor,
        .expert_groups = problem->spec->model.expert_groups,
    };
    struct dp_fabric fabric;
    dp_fabric_init(&fabric, problem->nodes, problem->nodes_count);
    dp_place_spans_of(&fabric, &sizes, places, &pricing->input.spans);
    dp_fabric_deinit(&fabric);
    dp_price_units(&pricing->input, &pricing->price);
    dp_planner_pricing_costs(pricing, plan->layer_begin, schedule, ret_costs);
    return DP_OK;
}
