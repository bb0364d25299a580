#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "internal.h"

// Seconds of one micro-batch, all passes, of one layer or of what stands before and behind them;
// forward and backward overlapped where the schedule pairs them.
static double all_passes_s(const struct problem *problem, const struct dp_cost_batch *batch,
                           bool paired, const struct dp_cost_stage *stage)
{
    struct dp_cost_chunk chunk;
    dp_cost_chunk(&problem->spec->model, problem->profile, stage, batch, &chunk);
    if (paired) {
        return dp_cost_pair_s(problem->profile, &chunk, &chunk, true);
    }
    return chunk.forward_s + chunk.input_s + chunk.weight_s + chunk.forward_exchange_s +
           chunk.backward_exchange_s;
}

static void split_for_sim(const struct problem *problem, struct layout *layout, double *cost)
{
    const struct dp_sim_spec *sim = &problem->spec->sim;
    int32_t layers = problem->spec->model.layers;
    double layer = sim->forward_s + sim->input_grad_s + sim->weight_grad_s;
    for (int32_t l = 0; l < layers; l++) {
        cost[l] = layer;
    }
    double factor = layer / sim->forward_s;
    dp_planner_split_layers(cost, layers, layout->choice.stages, sim->embedding_s * factor,
                            sim->head_s * factor, layout->layer_begin);
}

static void split_by_cost(const struct problem *problem, struct layout *layout, bool paired,
                          double *cost)
{
    const struct dp_model_spec *model = &problem->spec->model;
    struct dp_cost_batch batch = dp_planner_batch_of(problem, layout);
    struct dp_cost_stage none = {0}, embedding = {.has_embedding = true};
    struct dp_cost_stage head = {.has_head = true};
    double overhead = all_passes_s(problem, &batch, paired, &none);
    double of_kind[2] = {-1, -1}; // dense, MoE
    for (int32_t l = 0; l < model->layers; l++) {
        int kind = dp_model_layer_is_moe(model, l);
        if (of_kind[kind] < 0) {
            struct dp_cost_stage one = {.layer_begin = l, .layer_end = l + 1};
            of_kind[kind] = all_passes_s(problem, &batch, paired, &one) - overhead;
        }
        cost[l] = of_kind[kind];
    }
    dp_planner_split_layers(cost, model->layers, layout->choice.stages,
                            all_passes_s(problem, &batch, paired, &embedding) - overhead,
                            all_passes_s(problem, &batch, paired, &head) - overhead,
                            layout->layer_begin);
}

// What the job says, which its check has read before.
static void split_as_set(const struct problem *problem, struct layout *layout)
{
    DP_AUTO_FREE int32_t *layers = dp_new_array(int32_t, DP_STAGES_MAX);
    int32_t stages = 0;
    dp_status status =
        dp_layers_per_stage_parse(problem->spec->parallel.layers_per_stage,
                                  problem->spec->model.layers, layers, &stages, NULL);
    DP_CHECK(status == DP_OK && stages == layout->choice.stages);
    for (int32_t s = 0; s < stages; s++) {
        layout->layer_begin[s + 1] = layout->layer_begin[s] + layers[s];
    }
}

static bool has_pairs(const struct dp_schedule *schedule)
{
    for (size_t i = 0; i < dp_schedule_action_count(schedule); i++) {
        if (schedule->actions[i].kind == DP_ACTION_FB) {
            return true;
        }
    }
    return false;
}

void dp_planner_layout_init(struct layout *ret_layout, const struct problem *problem,
                            const struct choice *choice, const struct dp_schedule *schedule)
{
    struct layout layout = {.choice = *choice};
    layout.layer_begin = dp_new_array(int32_t, (size_t)choice->stages + 1);
    layout.places = dp_new_array(struct place, (size_t)choice->pipeline * (size_t)choice->data);
    dp_planner_place_ranks(problem, choice, layout.places);
    layout.ep_nodes = dp_planner_ep_group_nodes(choice, layout.places);
    layout.slowdown = dp_planner_compute_slowdown(problem, &layout);
    DP_AUTO_FREE double *cost = dp_new_array(double, (size_t)problem->spec->model.layers);
    if (problem->set_stages > 0) {
        split_as_set(problem, &layout);
    } else if (problem->is_sim) {
        split_for_sim(problem, &layout, cost);
    } else {
        // An order is searched for given stages, before it is known what it pairs.
        bool paired = has_pairs(schedule) && !dp_planner_is_auto(choice->family);
        split_by_cost(problem, &layout, paired, cost);
    }
    *ret_layout = layout;
}

void dp_planner_layout_deinit(struct layout *layout)
{
    free(layout->layer_begin);
    free(layout->places);
    *layout = (struct layout){0};
}
