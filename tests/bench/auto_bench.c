// What the search gains over the best fixed family where stages are uneven, and what it takes.
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "dp/auto.h"
#include "dp/cleanup.h"
#include "made_costs.h"

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

// F = I = W = 1 for a P-th of the model, and what is uneven about it.
struct bench_case {
    const char *name;
    int32_t pipeline, microbatches;
    unsigned placements;
    double memory;         // micro-batches' activations a rank may hold; 0 = any
    double embedding, head; // of first and last stage beside their layers, in F = I = W
    double slow;           // of rank P/2
    double hop, far_hop;   // between ranks; across the middle of the pipeline
    double fb;             // of a pair of F and B; 0 = no gain
    double goal;           // gain over the best family, at least
};

enum { BOTH = DP_AUTO_VEE | DP_AUTO_BIDIRECTIONAL };

static const struct bench_case cases[] = {
    {"head 0.5", 8, 24, DP_AUTO_STRAIGHT, 8, 0.1, 0.5, 1, 0.05, 0.05, 0, 1},
    {"slow rank 1.5", 8, 24, DP_AUTO_STRAIGHT, 8, 0, 0, 1.5, 0.05, 0.05, 0, 1.015},
    {"slow rank 1.2, far hop", 16, 32, DP_AUTO_STRAIGHT, 16, 0, 0.2, 1.2, 0.05, 1, 0, 1.05},
    {"any placement, head 0.5", 8, 24, 0, 8, 0.1, 0.5, 1, 0.05, 0.05, 0, 1.14},
    {"any placement, slow rank, far hop", 8, 16, 0, 8, 0, 0.2, 1.2, 0.05, 1, 0, 1.1},
    {"pairs, head 0.5", 8, 24, BOTH, 9, 0.1, 0.5, 1, 0.05, 0.05, 2.5, 1.02},
    {"pairs, odd P", 7, 20, BOTH, 8, 0, 0, 1, 0.05, 0.05, 2.5, 1.04},
    {"half memory", 8, 24, DP_AUTO_STRAIGHT | DP_AUTO_VEE, 4, 0, 0, 1, 0.05, 0.05, 0, 1.005},
    {"any placement, pairs", 16, 64, 0, 17, 0.1, 0.3, 1.1, 0.05, 0.2, 2.5, 1.01},
    {"huge", 64, 512, DP_AUTO_VEE, 40, 0.1, 0.3, 1, 0.05, 0.2, 0, 1.01},
};

static dp_status fill(void *context, const struct dp_schedule *shape,
                      struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                      struct dp_error *err)
{
    const struct bench_case *test = context;
    double share = (double)shape->pipeline / shape->stages;
    (void)err;
    (void)ret_static_bytes;
    dp_sim_costs_init(ret_costs, shape);
    for (int32_t rank = 0; rank < shape->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t count = dp_schedule_rank_stages(shape, rank, stages);
        for (int32_t slot = 0; slot < count; slot++) {
            double unit = share + (stages[slot] == 0 ? test->embedding : 0) +
                          (stages[slot] == shape->stages - 1 ? test->head : 0);
            *dp_sim_chunk_at(ret_costs, rank, slot) = (struct dp_sim_chunk){
                .seconds = {[DP_ACTION_F] = unit,
                            [DP_ACTION_B] = 2 * unit,
                            [DP_ACTION_I] = unit,
                            [DP_ACTION_W] = unit},
                .activation_bytes = (uint64_t)(1e6 * share),
                .released_at_i_bytes = (uint64_t)(0.6e6 * share)};
        }
        for (int32_t to = 0; to < shape->pipeline; to++) {
            bool far = (rank < shape->pipeline / 2) != (to < shape->pipeline / 2);
            dp_sim_hop_at(ret_costs, rank, to)->latency =
                rank == to ? 0 : far ? test->far_hop : test->hop;
        }
    }
    costs_add_pairs(ret_costs);
    int32_t pairs = shape->pipeline * ret_costs->slots * ret_costs->slots;
    for (int32_t i = 0; test->fb > 0 && i < pairs; i++) {
        ret_costs->fb[i] *= test->fb / 3;
        ret_costs->fi[i] *= (test->fb - 1) / 2;
    }
    costs_slow_rank(ret_costs, shape->pipeline / 2, test->slow);
    return DP_OK;
}

static void measure(const struct bench_case *test)
{
    uint64_t caps[DP_PIPELINE_MAX];
    for (int32_t rank = 0; rank < test->pipeline; rank++) {
        caps[rank] = (uint64_t)(1e6 * test->memory);
    }
    const struct dp_auto_problem problem = {.pipeline = test->pipeline,
                                            .microbatches = test->microbatches,
                                            .costs = fill,
                                            .context = (void *)test,
                                            .memory_cap = test->memory > 0 ? caps : NULL,
                                            .placements = test->placements};
    DP_CLEANUP(dp_auto_result_deinit) struct dp_auto_result result = {0};
    struct dp_error err;
    double start = now();
    if (dp_auto_search(&problem, NULL, &result, &err) != DP_OK) {
        fprintf(stderr, "%s: %s\n", test->name, err.message);
        return;
    }
    double took = now() - start, gain = result.family_objective / result.objective;
    printf("{\"name\":\"auto P=%d M=%d %s\",\"value\":%.5g,\"unit\":\"F\",\"peer\":\"%s, the "
           "best fixed family: %.5g; no order below %.5g; %lld moves in %.2f s\",\"ratio\":%.4f,"
           "\"goal\":\"gain at least %.3g\",\"met\":%s}\n",
           test->pipeline, test->microbatches, test->name, result.objective, result.family,
           result.family_objective, result.bound, (long long)result.moves, took, gain, test->goal,
           gain >= test->goal ? "true" : "false");
}

int main(void)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        measure(&cases[i]);
    }
    return 0;
}
