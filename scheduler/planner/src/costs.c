// From a layout to what simulate needs.

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/rank_memory.h"
#include "internal.h"

struct dp_cost_stage dp_planner_stage_of(const struct problem *problem, const struct layout *layout,
                                         int32_t stage)
{
    return (struct dp_cost_stage){
        .layer_begin = layout->layer_begin[stage],
        .layer_end = layout->layer_begin[stage + 1],
        .has_embedding = stage == 0,
        .has_head = stage == layout->choice.stages - 1,
        .has_mtp = stage == layout->choice.stages - 1 && problem->spec->model.mtp_layers > 0,
    };
}

struct dp_cost_batch dp_planner_batch_of(const struct problem *problem, const struct layout *layout)
{
    return (struct dp_cost_batch){
        .samples = layout->choice.micro_batch_size,
        .sequence = problem->spec->train.sequence,
        .ep_size = layout->choice.expert,
        .ep_nodes = layout->ep_nodes,
        .recompute = layout->choice.recompute,
        .offload = problem->offload,
        .save_fp8 = problem->save_fp8,
        .fp8 = problem->fp8,
        .threads = problem->spec->resources.threads_per_rank,
        .imbalance = problem->spec->parallel.imbalance,
    };
}

// The chunk of a stage. The sim device has no exchange of its own: its times include it.
static struct dp_cost_chunk stage_chunk(const struct problem *problem, const struct layout *layout,
                                        int32_t stage)
{
    struct dp_cost_stage shape = dp_planner_stage_of(problem, layout, stage);
    struct dp_cost_chunk chunk = {0};
    if (problem->is_sim) {
        struct dp_cost_sim_chunk sim;
        dp_cost_sim_chunk(&problem->spec->sim, &shape, &sim);
        chunk.forward_s = sim.forward_s;
        chunk.input_s = sim.input_s;
        chunk.weight_s = sim.weight_s;
        return chunk;
    }
    struct dp_cost_batch batch = dp_planner_batch_of(problem, layout);
    dp_cost_chunk(&problem->spec->model, problem->profile, &shape, &batch, &chunk);
    chunk.forward_s *= layout->slowdown;
    chunk.input_s *= layout->slowdown;
    chunk.weight_s *= layout->slowdown;
    return chunk;
}

static double pair_s(const struct problem *problem, const struct layout *layout, int32_t forward,
                     int32_t backward, bool with_weight)
{
    if (problem->is_sim) {
        struct dp_cost_stage f = dp_planner_stage_of(problem, layout, forward),
                             b = dp_planner_stage_of(problem, layout, backward);
        return dp_cost_sim_pair_s(&problem->spec->sim, &f, &b, with_weight);
    }
    struct dp_cost_chunk f = stage_chunk(problem, layout, forward);
    struct dp_cost_chunk b = stage_chunk(problem, layout, backward);
    return dp_cost_pair_s(problem->profile, &f, &b, with_weight);
}

static void fill_chunk(const struct problem *problem, const struct layout *layout, int32_t stage,
                       struct dp_sim_chunk *ret_chunk)
{
    struct dp_cost_chunk chunk = stage_chunk(problem, layout, stage);
    struct dp_cost_stage shape = dp_planner_stage_of(problem, layout, stage);
    struct dp_cost_batch batch = dp_planner_batch_of(problem, layout);
    struct dp_cost_chunk_bytes bytes;
    dp_cost_chunk_bytes(&problem->spec->model, problem->profile, &shape, &batch, NULL, &bytes);
    double input = chunk.input_s + chunk.backward_exchange_s;
    ret_chunk->seconds[DP_ACTION_F] = chunk.forward_s + chunk.forward_exchange_s;
    ret_chunk->seconds[DP_ACTION_I] = input;
    ret_chunk->seconds[DP_ACTION_W] = chunk.weight_s;
    ret_chunk->seconds[DP_ACTION_B] = input + chunk.weight_s;
    ret_chunk->activation_bytes = (uint64_t)bytes.after_forward;
}

struct dp_rank_memory dp_planner_memory_of(const struct problem *problem,
                                           const struct layout *layout,
                                           const struct dp_schedule *schedule)
{
    return (struct dp_rank_memory){.model = &problem->spec->model,
                                   .profile = problem->profile,
                                   .schedule = schedule,
                                   .layer_begin = layout->layer_begin,
                                   .batch = dp_planner_batch_of(problem, layout),
                                   .data = layout->choice.data,
                                   .expert_copies = problem->spec->parallel.expert_copies,
                                   .is_sharded = layout->choice.shard == DP_SHARD_ZERO1,
                                   .no_overlap = problem->spec->parallel.overlap < 0};
}

void dp_planner_rank_memory(const struct problem *problem, const struct layout *layout,
                            const struct dp_schedule *schedule, int32_t rank,
                            struct dp_memory_parts *ret_parts)
{
    const struct dp_rank_memory memory = dp_planner_memory_of(problem, layout, schedule);
    dp_rank_memory_parts(&memory, rank, ret_parts, NULL);
}

// Whether all ranks that hold the gradients of a stage on two positions (or one) stand on one node.
static bool sums_stay_on_node(const struct layout *layout, int32_t one, int32_t other)
{
    int32_t pipeline = layout->choice.pipeline;
    int32_t node = layout->places[one].node;
    for (int32_t d = 0; d < layout->choice.data; d++) {
        const struct place *replica = layout->places + d * pipeline;
        if (replica[one].node != node || replica[other].node != node) {
            return false;
        }
    }
    return true;
}

// Sums go stage by stage, over all replicas and, with two directions, over both holders (the rank
// in the middle of an odd pipeline is both). Experts are summed apart only where others hold them.
static double stage_sums_s(const struct problem *problem, const struct layout *layout,
                           const struct dp_schedule *schedule, int32_t stage,
                           const struct dp_cost_parameters *parameters)
{
    const struct dp_profile *profile = problem->profile;
    int32_t one = schedule->placement[2 * stage], other = schedule->placement[2 * stage + 1];
    const struct dp_link_profile *link =
        sums_stay_on_node(layout, one, other) ? &profile->local : &profile->network;
    int32_t members = layout->choice.data * (one == other ? 1 : 2);
    double shared = parameters->shared * profile->gradient_bytes;
    double experts = parameters->experts * profile->gradient_bytes;
    if (layout->choice.expert == 1) {
        return dp_cost_sum_s(link, shared + experts, members);
    }
    return dp_cost_sum_s(link, shared, members) +
           dp_cost_sum_s(link, experts, members / layout->choice.expert);
}

// All ranks are at it at the same time, and sums keep their cores busy as the optimizer does.
static void fill_step_end(const struct problem *problem, const struct layout *layout,
                          const struct place *places, const struct dp_schedule *schedule,
                          struct dp_sim_costs *costs)
{
    if (problem->is_sim) {
        return; // its ranks have nothing to sum and nothing to update
    }
    for (int32_t rank = 0; rank < costs->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
        double sums_s = 0, parameters = 0;
        for (int32_t i = 0; i < count; i++) {
            struct dp_cost_stage shape = dp_planner_stage_of(problem, layout, stages[i]);
            struct dp_cost_parameters one;
            dp_cost_stage_parameters(&problem->spec->model, &shape, layout->choice.expert, &one);
            sums_s += stage_sums_s(problem, layout, schedule, stages[i], &one);
            parameters += one.shared + one.experts;
        }
        double crowd = dp_planner_ranks_per_core(problem, layout, places[rank].node);
        costs->gradient_sync[rank] = crowd * sums_s;
        costs->optimizer[rank] = crowd * dp_cost_optimizer_s(problem->profile, parameters);
    }
}

static void fill_hops(const struct problem *problem, const struct layout *layout,
                      const struct place *places, struct dp_sim_costs *costs)
{
    const struct dp_profile *profile = problem->profile;
    struct dp_cost_batch batch = dp_planner_batch_of(problem, layout);
    double bytes = dp_cost_hop_bytes(&problem->spec->model, profile, &batch);
    costs->message_bytes_f = costs->message_bytes_b = problem->is_sim ? 0 : bytes;
    for (int32_t a = 0; a < costs->pipeline; a++) {
        for (int32_t b = 0; b < costs->pipeline; b++) {
            const struct dp_link_profile *link =
                places[a].node == places[b].node ? &profile->local : &profile->network;
            struct dp_sim_hop *hop = dp_sim_hop_at(costs, a, b);
            hop->latency = a == b ? 0 : link->latency_s;
            hop->bytes_per_second = a == b || problem->is_sim ? 0 : link->bytes_per_s;
            if (problem->is_sim && a != b) {
                hop->latency += problem->spec->sim.hop_s * problem->spec->sim.scale;
            }
        }
    }
}

// Machines of this replica, numbered as they come, and its share of their cores. The sim device
// only waits: cores do not limit it.
static void fill_hosts(const struct problem *problem, const struct layout *layout,
                       const struct place *places, struct dp_sim_costs *costs)
{
    int32_t pipeline = costs->pipeline, hosts = 0;
    int32_t *first = dp_new_array(int32_t, (size_t)pipeline);
    for (int32_t rank = 0; rank < pipeline; rank++) {
        int32_t host = 0;
        while (host < hosts &&
               !dp_planner_same_host(problem, places[first[host]].node, places[rank].node)) {
            host++;
        }
        if (host == hosts) {
            first[hosts++] = rank;
        }
        costs->host[rank] = host;
    }
    free(costs->cores);
    costs->cores = dp_new_array(double, (size_t)hosts);
    costs->hosts = hosts;
    for (int32_t host = 0; host < hosts; host++) {
        int32_t node = places[first[host]].node;
        int32_t cores = problem->is_sim ? 0 : dp_planner_host_cores(problem, node);
        int32_t own = 0;
        for (int32_t rank = 0; rank < pipeline; rank++) {
            own += costs->host[rank] == host;
        }
        int32_t all = cores > 0 ? dp_planner_ranks_on_host(problem, layout, node) : 0;
        costs->cores[host] = cores > 0 && cores < all ? (double)cores * own / all : 0;
    }
    free(first);
}

void dp_planner_layout_costs(const struct problem *problem, const struct layout *layout,
                             int32_t replica, const struct dp_schedule *schedule,
                             struct dp_sim_costs *ret_costs)
{
    const struct place *places = layout->places + replica * layout->choice.pipeline;
    dp_sim_costs_init(ret_costs, schedule);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
        for (int32_t f = 0; f < count; f++) {
            fill_chunk(problem, layout, stages[f], dp_sim_chunk_at(ret_costs, rank, f));
            for (int32_t b = 0; b < count; b++) {
                size_t pair = dp_sim_pair_index(ret_costs, rank, f, b);
                ret_costs->fb[pair] = pair_s(problem, layout, stages[f], stages[b], true);
                ret_costs->fi[pair] = pair_s(problem, layout, stages[f], stages[b], false);
            }
        }
    }
    fill_hops(problem, layout, places, ret_costs);
    fill_hosts(problem, layout, places, ret_costs);
    fill_step_end(problem, layout, places, schedule, ret_costs);
}

double dp_planner_exposed_exchange_s(const struct problem *problem, const struct layout *layout,
                                     const struct dp_schedule *schedule,
                                     const struct dp_sim_costs *costs, int32_t rank)
{
    if (problem->is_sim || layout->choice.expert <= 1) {
        return 0;
    }
    int32_t stages[DP_RANK_STAGES_MAX], slot_of[DP_STAGES_MAX];
    struct dp_cost_chunk chunks[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
    for (int32_t i = 0; i < count; i++) {
        slot_of[stages[i]] = i;
        chunks[i] = stage_chunk(problem, layout, stages[i]);
    }
    double exposed = 0;
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const struct dp_action *action = &schedule->actions[i];
        const struct dp_cost_chunk *chunk = &chunks[slot_of[action->stage]];
        if (action->kind == DP_ACTION_F) {
            exposed += chunk->forward_exchange_s;
        } else if (action->kind == DP_ACTION_B || action->kind == DP_ACTION_I) {
            exposed += chunk->backward_exchange_s;
        } else if (action->kind == DP_ACTION_FB) {
            int32_t slot = slot_of[action->b_stage];
            bool with_weight = action->b_kind == DP_ACTION_B;
            size_t pair = dp_sim_pair_index(costs, rank, slot_of[action->stage], slot);
            double compute =
                chunk->forward_s + chunks[slot].input_s + (with_weight ? chunks[slot].weight_s : 0);
            exposed += fmax(0, (with_weight ? costs->fb : costs->fi)[pair] - compute);
        }
    }
    return exposed;
}

// Compute of one micro-batch on all layers, pairs taken at their best.
static double whole_model_s(const struct problem *problem, const struct choice *choice)
{
    const struct dp_job_spec *spec = problem->spec;
    struct dp_cost_stage whole = {0, spec->model.layers, true, true, false};
    if (problem->is_sim) {
        struct dp_cost_sim_chunk chunk;
        dp_cost_sim_chunk(&spec->sim, &whole, &chunk);
        double alone = chunk.forward_s + chunk.input_s + chunk.weight_s;
        return fmin(alone, dp_cost_sim_pair_s(&spec->sim, &whole, &whole, true));
    }
    struct dp_cost_batch batch = {.samples = choice->micro_batch_size,
                                  .sequence = spec->train.sequence,
                                  .ep_size = choice->expert,
                                  .ep_nodes = 1,
                                  .recompute = choice->recompute};
    struct dp_cost_chunk chunk;
    dp_cost_chunk(&spec->model, problem->profile, &whole, &batch, &chunk);
    // Stages have an action's overhead each; the whole has it once.
    return chunk.forward_s + chunk.input_s + chunk.weight_s;
}

double dp_planner_choice_bound_s(const struct problem *problem, const struct choice *choice)
{
    double work = whole_model_s(problem, choice) * choice->microbatches;
    double by_ranks = work / choice->pipeline;
    double by_cores = problem->cores > 0 ? work * choice->data / (double)problem->cores : 0;
    return fmax(by_ranks, by_cores);
}
