#include <stdlib.h>

#include "dp/alloc.h"
#include "search.h"

void dp_planner_evaluation_deinit(struct evaluation *evaluation)
{
    for (int32_t d = 0; evaluation->replicas != NULL && d < evaluation->layout.choice.data; d++) {
        dp_sim_costs_deinit(&evaluation->replicas[d].costs);
        dp_sim_result_deinit(&evaluation->replicas[d].result);
    }
    free(evaluation->replicas);
    free(evaluation->note);
    dp_schedule_deinit(&evaluation->schedule);
    dp_planner_layout_deinit(&evaluation->layout);
    *evaluation = (struct evaluation){0};
}

const struct replica *dp_planner_evaluation_replica(const struct evaluation *evaluation,
                                                    int32_t replica)
{
    return &evaluation->replicas[evaluation->replicas[replica].like];
}

// Whether two replicas change nodes at the same positions and find the same share of cores there.
static bool stand_alike(const struct problem *problem, const struct layout *layout, int32_t a,
                        int32_t b)
{
    int32_t pipeline = layout->choice.pipeline;
    const struct place *one = layout->places + a * pipeline, *two = layout->places + b * pipeline;
    for (int32_t p = 0; p < pipeline; p++) {
        if (p > 0 && ((one[p].node == one[p - 1].node) != (two[p].node == two[p - 1].node) ||
                      dp_planner_same_host(problem, one[p].node, one[p - 1].node) !=
                          dp_planner_same_host(problem, two[p].node, two[p - 1].node))) {
            return false;
        }
        bool limited =
            problem->nodes[one[p].node].cores > 0 || problem->nodes[two[p].node].cores > 0;
        if (limited && !problem->is_sim &&
            (dp_planner_host_cores(problem, one[p].node) !=
                 dp_planner_host_cores(problem, two[p].node) ||
             dp_planner_ranks_on_host(problem, layout, one[p].node) !=
                 dp_planner_ranks_on_host(problem, layout, two[p].node))) {
            return false;
        }
    }
    return true;
}

static dp_status simulate_replicas(const struct problem *problem, struct evaluation *evaluation,
                                   struct dp_error *err)
{
    int32_t data = evaluation->layout.choice.data;
    evaluation->replicas = dp_new_array(struct replica, (size_t)data);
    for (int32_t d = 0; d < data; d++) {
        struct replica *replica = &evaluation->replicas[d];
        replica->like = d;
        for (int32_t before = 0; before < d && replica->like == d; before++) {
            if (evaluation->replicas[before].like == before &&
                stand_alike(problem, &evaluation->layout, before, d)) {
                replica->like = before;
            }
        }
        if (replica->like != d) {
            continue;
        }
        dp_planner_layout_costs(problem, &evaluation->layout, d, &evaluation->schedule,
                                &replica->costs);
        dp_status status =
            dp_simulate(&evaluation->schedule, &replica->costs, false, &replica->result, err);
        if (status != DP_OK) {
            return status;
        }
        if (replica->result.step > evaluation->replicas[evaluation->slowest].result.step) {
            evaluation->slowest = d;
        }
    }
    return DP_OK;
}

dp_status dp_planner_evaluate(const struct problem *problem, const struct choice *choice,
                              struct evaluation *ret_evaluation, struct dp_error *err)
{
    const struct dp_schedule_params params = {.pipeline = choice->pipeline,
                                              .microbatches = choice->microbatches,
                                              .virtual_stages = choice->virtual_stages};
    struct evaluation evaluation = {.slowest = 0};
    dp_status status =
        dp_planner_is_auto(choice->family)
            ? dp_planner_order_find(problem, choice, &evaluation.schedule, &evaluation.note, err)
            : dp_schedule_generate(choice->family->name, &params, &evaluation.schedule, err);
    if (status != DP_OK) {
        return status;
    }
    dp_planner_layout_init(&evaluation.layout, problem, choice, &evaluation.schedule);
    status = simulate_replicas(problem, &evaluation, err);
    if (status != DP_OK) {
        dp_planner_evaluation_deinit(&evaluation);
        return status;
    }
    *ret_evaluation = evaluation;
    return DP_OK;
}

double dp_planner_backward_weight_s(const struct dp_schedule *schedule,
                                    const struct dp_sim_costs *costs, int32_t rank,
                                    double backward_s)
{
    int32_t stages[DP_RANK_STAGES_MAX], slot_of[DP_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
    for (int32_t slot = 0; slot < count; slot++) {
        slot_of[stages[slot]] = slot;
    }
    double weight = 0, both = 0;
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const struct dp_action *action = &schedule->actions[i];
        if (action->kind == DP_ACTION_B) {
            const double *seconds = dp_sim_chunk_at(costs, rank, slot_of[action->stage])->seconds;
            weight += seconds[DP_ACTION_W];
            both += seconds[DP_ACTION_I] + seconds[DP_ACTION_W];
        }
    }
    return both > 0 ? backward_s * weight / both : 0;
}

double dp_planner_fullest_rank(const struct problem *problem, const struct evaluation *evaluation,
                               double *ret_limit, int32_t *ret_position)
{
    const struct layout *layout = &evaluation->layout;
    double fullest = 0, limit_of_fullest = 0, least_room = 0;
    for (int32_t p = 0; p < layout->choice.pipeline; p++) {
        struct dp_memory_parts parts;
        dp_planner_rank_memory(problem, layout, &evaluation->schedule, p, &parts);
        double bytes = dp_memory_total(&parts);
        for (int32_t d = 0; d < layout->choice.data; d++) {
            double limit =
                problem->nodes[layout->places[d * layout->choice.pipeline + p].node].memory_bytes;
            double room = limit > 0 ? limit - bytes : 0;
            if ((p == 0 && d == 0) || room < least_room ||
                (room <= least_room && bytes > fullest)) {
                fullest = bytes;
                limit_of_fullest = limit;
                least_room = room;
                *ret_position = p;
            }
        }
    }
    *ret_limit = limit_of_fullest;
    return fullest;
}
