// Loads of experts and the bias that evens them out, against sums worked out here.
#include "cluster.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "layout.h"

DP_DEFINE_CLEANUP(cleanup_optim, struct dp_optim, dp_optim_free)

enum { EXPERTS = 4, LAYERS = 4, STEPS = 5 };

// How often the tokens of a rank chose an expert in a step.
static int64_t choices(int32_t rank, int32_t stage, int32_t layer, int32_t expert, int64_t step)
{
    return (rank * 7 + stage * 3 + layer * 5 + expert * (int64_t)(rank + 2) * step) % 11;
}

static bool has_layer(const struct dp_optim_stage *stage, int32_t layer)
{
    const struct dp_stage_config *config = dp_stage_config(stage->stage);
    return layer >= config->layer_begin && layer < config->layer_end;
}

static dp_status set_counts(const struct held *held, int32_t rank, int64_t step,
                            struct dp_error *err)
{
    for (int32_t i = 0; i < held->count * LAYERS; i++) {
        const struct dp_optim_stage *stage = &held->stages[i / LAYERS];
        int32_t layer = i % LAYERS;
        if (!has_layer(stage, layer)) {
            continue;
        }
        int64_t *counts = dp_stage_expert_counts(stage->stage, layer);
        int64_t *slots = dp_stage_slot_counts(stage->stage, layer); // one an expert, in order
        EXPECT((counts != NULL) == (layer > 0));                    // layer 0 is dense
        for (int32_t e = 0; e < EXPERTS && counts != NULL; e++) {
            EXPECT(counts[e] == 0 && slots[e] == 0);
            counts[e] = slots[e] = choices(rank, stage->index, layer, e, step);
        }
    }
    return DP_OK;
}

struct sums {
    int64_t tokens[EXPERTS], own[EXPERTS], all, group;
    int32_t lowest; // rank that holds the stage
};

// Over the ranks that hold the stage, and over those that share this rank's experts.
static struct sums sum_up(const struct layout *layout, const struct dp_optim_stage *stage,
                          int32_t rank, int32_t layer, int64_t step)
{
    const int32_t world = layout->pipeline * layout->data;
    struct sums sums = {.lowest = world};
    for (int32_t r = 0; r < world; r++) {
        bool holds = false;
        for (int32_t p = 0; p < stage->position_count; p++) {
            holds = holds || stage->positions[p] == r % layout->pipeline;
        }
        bool is_peer =
            r % layout->pipeline == rank % layout->pipeline &&
            r / layout->pipeline / layout->expert == rank / layout->pipeline / layout->expert;
        sums.lowest = holds && r < sums.lowest ? r : sums.lowest;
        for (int32_t e = 0; e < EXPERTS && holds; e++) {
            int64_t count = choices(r, stage->index, layer, e, step);
            sums.tokens[e] += count;
            sums.all += count;
            sums.own[e] += is_peer ? count : 0;
            sums.group += is_peer ? count : 0;
        }
    }
    return sums;
}

static dp_status check_load(const struct layout *layout, const struct dp_optim_stage *stage,
                            int32_t rank, int64_t step, const struct dp_expert_load *load,
                            double *wanted, struct dp_error *err)
{
    const struct sums sums = sum_up(layout, stage, rank, load->layer, step);
    const double *bias = dp_stage_router_bias(stage->stage, load->layer);
    EXPECT(load->experts == EXPERTS && load->count == EXPERTS / layout->expert);
    EXPECT(load->reports == (sums.lowest == rank));
    EXPECT(load->group == sums.group && load->group_ranks == layout->expert);
    for (int32_t e = 0; e < EXPERTS; e++) {
        double mean = (double)sums.all / EXPERTS, count = (double)sums.tokens[e];
        wanted[e] += count < mean ? 0.125 : count > mean ? -0.125 : 0;
        EXPECT(load->tokens[e] == sums.tokens[e]);
        EXPECT(bias[e] == wanted[e]);
    }
    for (int32_t e = 0; e < load->count; e++) {
        EXPECT(load->own[e] == sums.own[load->first + e]);
    }
    return DP_OK;
}

static dp_status balance(struct dp_transport *transport, void *context, struct dp_error *err)
{
    const struct layout *layout = context;
    int32_t rank = dp_transport_rank(transport);
    DP_CLEANUP(held_deinit) struct held held;
    EXPECT_OK(layout_hold(layout, rank, &held, err));
    DP_CLEANUP(cleanup_optim) struct dp_optim *optim = NULL;
    struct dp_optim_world world = {.transport = transport,
                                   .pipeline = layout->pipeline,
                                   .data = layout->data,
                                   .expert = layout->expert};
    static const struct dp_optimizer_spec spec = {.lr = 1};
    EXPECT_OK(dp_optim_new(&world, &spec, 1, held.stages, held.count, 100, &optim, err));
    EXPECT(dp_optim_load_count(optim) == 0);
    double wanted[LAYERS][EXPERTS] = {{0}};
    for (int64_t step = 1; step <= STEPS; step++) {
        EXPECT_OK(set_counts(&held, rank, step, err));
        EXPECT_OK(dp_optim_balance(optim, err));
        int32_t layers = 0;
        for (int32_t k = 0; k < dp_optim_load_count(optim); k++) {
            struct dp_expert_load load;
            dp_optim_load_at(optim, k, &load);
            const struct dp_optim_stage *stage =
                has_layer(&held.stages[0], load.layer) ? &held.stages[0] : &held.stages[1];
            EXPECT_OK(check_load(layout, stage, rank, step, &load, wanted[load.layer], err));
            layers |= 1 << load.layer;
        }
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            bool is_held = has_layer(&held.stages[0], layer) ||
                           (held.count > 1 && has_layer(&held.stages[1], layer));
            EXPECT((layers >> layer & 1) == (layer > 0 && is_held));
        }
    }
    return DP_OK;
}

static const struct layout layouts[] = {
    {1, 1, 1, false, DP_F64}, {1, 2, 2, false, DP_F64}, {2, 2, 1, true, DP_F64},
    {2, 4, 2, true, DP_F64},  {1, 4, 2, false, DP_F64}, {4, 1, 1, true, DP_F64},
};

static void loads_are_summed_over_all_copies_and_the_bias_moves_against_them(void **state)
{
    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(layouts); i++) {
        struct layout layout = layouts[i];
        cluster_run(CLUSTER_LOOPBACK, layout.pipeline * layout.data, balance, &layout);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_are_summed_over_all_copies_and_the_bias_moves_against_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
