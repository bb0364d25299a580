// Small jobs with costs of one's own, and an evaluator that knows nothing of the library's.
#pragma once

#include <math.h>

#include "dp/adapt.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "dp_test.h"

struct sizes {
    const char *schedule;
    int32_t pipeline, data, expert, microbatches, layers, virtual_stages, ranks_per_node;
};

// Layers spread as evenly as they go, ranks in order on nodes n0, n1, ...
static inline struct dp_plan plan_of(const struct sizes *sizes)
{
    struct dp_error err = {0};
    const struct dp_schedule_params params = {sizes->pipeline, sizes->microbatches,
                                              sizes->virtual_stages};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    assert_ok(dp_schedule_generate(sizes->schedule, &params, &schedule, &err), &err);
    struct dp_plan plan = {
        .pipeline = sizes->pipeline,
        .expert = sizes->expert > 0 ? sizes->expert : 1,
        .data = sizes->data,
        .microbatches = sizes->microbatches,
        .micro_batch_size = 1,
        .virtual_stages = sizes->virtual_stages,
        .schedule_hash = dp_schedule_hash(&schedule),
        .stages = schedule.stages,
        .step_s = 1,
        .tokens_per_s = 1000,
        .provenance = dp_strdup("made up\n"),
        .explanation = dp_strdup("made up\n"),
    };
    DP_COPY_TEXT(plan.schedule, sizes->schedule);
    plan.layer_begin = dp_new_array(int32_t, (size_t)plan.stages + 1);
    for (int32_t s = 0; s <= plan.stages; s++) {
        plan.layer_begin[s] = sizes->layers * s / plan.stages;
    }
    int32_t world = sizes->pipeline * sizes->data;
    plan.ranks = dp_new_array(struct dp_plan_rank, (size_t)world);
    for (int32_t r = 0; r < world; r++) {
        snprintf(plan.ranks[r].node, DP_NAME_MAX, "n%d", r / sizes->ranks_per_node);
        plan.ranks[r].slot = r % sizes->ranks_per_node;
    }
    return plan;
}

// Every layer alike, B = I + W, nothing around them.
static inline struct dp_adapt_costs even_costs(const struct dp_plan *plan, double f, double i,
                                               double w)
{
    struct dp_adapt_costs costs;
    dp_adapt_costs_init(&costs, plan->layer_begin[plan->stages], plan->pipeline);
    for (int32_t l = 0; l < costs.layers; l++) {
        costs.layer[l][DP_ACTION_F] = f;
        costs.layer[l][DP_ACTION_I] = i;
        costs.layer[l][DP_ACTION_W] = w;
        costs.layer[l][DP_ACTION_B] = i + w;
    }
    return costs;
}

static inline struct dp_adapt_input input_of(const struct dp_plan *plan,
                                             const struct dp_adapt_costs *costs, const double *slow)
{
    struct dp_adapt_input input = {.plan = plan,
                                   .costs = costs,
                                   .slow = slow,
                                   .remaining_steps = 1000,
                                   .excess_s = 1e6,
                                   .trust = 1};
    dp_adapt_limits_init(&input.limits);
    return input;
}

static inline const struct dp_adapt_answer *answer_of(const struct dp_adapt_answers *answers,
                                                      dp_adapt_kind kind)
{
    for (int32_t i = 0; i < answers->count; i++) {
        if (answers->answers[i].kind == kind) {
            return &answers->answers[i];
        }
    }
    fail_msg("no answer \"%s\"", dp_adapt_kind_text(kind));
    return NULL;
}

// One way to run a job, as the tests see it: place_slow[d * P + p] is of where that rank stands.
struct way {
    const struct dp_plan *plan;
    const struct dp_adapt_costs *costs;
    const int32_t *layer_begin, *counts;
    const double *place_slow;
    // Seconds of a message between neighbouring ranks, [world][world]; NULL = none.
    const double *hops;
};

// The step, simulated replica by replica; infinite where the family cannot run a share.
static inline double simulate_way(const struct way *way)
{
    const struct dp_plan *plan = way->plan;
    double longest = 0;
    for (int32_t d = 0; d < plan->data; d++) {
        const struct dp_schedule_params params = {plan->pipeline, way->counts[d],
                                                  plan->virtual_stages};
        DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
        if (dp_schedule_generate(plan->schedule, &params, &schedule, NULL) != DP_OK) {
            return INFINITY;
        }
        DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs;
        dp_sim_costs_init(&costs, &schedule);
        for (int32_t p = 0; p < plan->pipeline; p++) {
            int32_t stages[DP_RANK_STAGES_MAX];
            int32_t count = dp_schedule_rank_stages(&schedule, p, stages);
            double slow = way->place_slow[d * plan->pipeline + p];
            for (int32_t i = 0; i < count; i++) {
                double *seconds = dp_sim_chunk_at(&costs, p, i)->seconds;
                for (int32_t l = way->layer_begin[stages[i]]; l < way->layer_begin[stages[i] + 1];
                     l++) {
                    for (int k = 0; k < DP_ADAPT_KINDS; k++) {
                        seconds[k] += slow * way->costs->layer[l][k];
                    }
                }
                for (int k = 0; k < DP_ADAPT_KINDS; k++) {
                    seconds[k] += stages[i] == 0 ? slow * way->costs->first[k] : 0;
                    seconds[k] += stages[i] == plan->stages - 1 ? slow * way->costs->last[k] : 0;
                }
            }
            for (int32_t f = 0; f < count; f++) {
                for (int32_t b = 0; b < count; b++) {
                    const double *forward = dp_sim_chunk_at(&costs, p, f)->seconds;
                    const double *backward = dp_sim_chunk_at(&costs, p, b)->seconds;
                    size_t pair = dp_sim_pair_index(&costs, p, f, b);
                    costs.fb[pair] = forward[DP_ACTION_F] + backward[DP_ACTION_B];
                    costs.fi[pair] = forward[DP_ACTION_F] + backward[DP_ACTION_I];
                }
            }
            for (int32_t q = 0; q < plan->pipeline && way->hops != NULL; q++) {
                int32_t world = plan->pipeline * plan->data;
                dp_sim_hop_at(&costs, p, q)->latency =
                    p == q ? 0
                           : way->hops[(d * plan->pipeline + p) * world + d * plan->pipeline + q];
            }
        }
        double makespan, step;
        struct dp_error err = {0};
        assert_ok(dp_simulate_makespan(&schedule, &costs, NULL, &makespan, &step, &err), &err);
        longest = fmax(longest, step);
    }
    return longest;
}
