// Whole models against finite differences: every tensor's gradient, whatever the routing.
#include "gradient.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "world.h"

#define SEQUENCE WORLD_SEQUENCE
#define SAMPLES WORLD_SAMPLES
#define TOKENS (SEQUENCE * SAMPLES)

static void every_tensor_of_a_whole_model_matches_differences(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    struct world *world = world_new(&model, DP_F64, 1, 1, SEQUENCE, SAMPLES);
    world_scale(world, 12);
    world_check_differences(world);
}

static void every_tensor_of_a_split_model_matches_differences(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    struct world *world = world_new(&model, DP_F64, 3, 1, SEQUENCE, SAMPLES);
    world_scale(world, 12);
    world_check_differences(world);
}

static void a_model_that_computes_again_matches_differences(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    const uint32_t choices[] = {DP_RECOMPUTE_FULL, DP_RECOMPUTE_EXPERTS | DP_RECOMPUTE_ATTENTION};
    for (int i = 0; i < 2; i++) {
        struct world *world = world_recompute(&model, DP_F64, 1, 1, choices[i]);
        world_scale(world, 12);
        world_check_differences(world);
    }
}

static void a_dense_model_matches_differences(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.experts = 0;
    model.layers = 2;
    struct world *world = world_new(&model, DP_F64, 1, 1, SEQUENCE, SAMPLES);
    world_scale(world, 12);
    world_check_differences(world);
}

static void a_model_without_a_shared_expert_matches_differences(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.shared_experts = 0;
    model.dense_layers = 0;
    model.layers = 2;
    struct world *world = world_new(&model, DP_F64, 1, 1, SEQUENCE, SAMPLES);
    world_scale(world, 12);
    world_check_differences(world);
}

// Every token has a large first component, and the routers look at nothing else: experts below
// `wanted` win always.
static void route_all_to(struct world *world, const struct dp_model_spec *model, int32_t wanted)
{
    for (int32_t v = 0; v < model->vocabulary; v++) {
        world_set(world, "embedding", (int64_t)v * model->hidden, 20);
    }
    for (int32_t layer = model->dense_layers; layer < model->layers; layer++) {
        char name[DP_NAME_MAX];
        snprintf(name, sizeof(name), "layers.%d.router", layer);
        for (int32_t e = 0; e < model->experts; e++) {
            world_set(world, name, (int64_t)e * model->hidden, e < wanted ? 1 : -1);
        }
    }
}

static void experts_without_tokens_have_zero_gradients(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    struct world *world = world_new(&model, DP_F64, 1, 1, SEQUENCE, SAMPLES);
    world_scale(world, 12);
    route_all_to(world, &model, 2);
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 1, TOKENS);
    world_step(world, 1, tokens, tokens, WORLD_B);
    int64_t count;
    DP_AUTO_FREE double *idle = world_gradient(world, "layers.2.experts.3.up", &count);
    DP_AUTO_FREE double *busy = world_gradient(world, "layers.2.experts.1.up", &count);
    for (int64_t i = 0; i < count; i++) {
        assert_true(idle[i] == 0);
        assert_true(busy[i] != 0);
    }
    dp_stage_zero_gradients(world->stages[0][0]);
    world_check_differences(world);
}

static void all_tokens_to_one_expert_match_differences(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.top_k = 1;
    struct world *world = world_new(&model, DP_F64, 1, 1, SEQUENCE, SAMPLES);
    world_scale(world, 12);
    route_all_to(world, &model, 1);
    world_check_differences(world);
}

static void peers_without_tokens_match_differences(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    struct world *world = world_new(&model, DP_F64, 1, 2, SEQUENCE, SAMPLES);
    struct world *alone = world_new(&model, DP_F64, 1, 1, SEQUENCE, SAMPLES);
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 1, 2 * TOKENS);
    struct world *const both[] = {world, alone};
    double loss[2];
    for (int i = 0; i < 2; i++) {
        world_scale(both[i], 12);
        route_all_to(both[i], &model, 2);
        loss[i] = world_step(both[i], 2, tokens, tokens, WORLD_I_THEN_W);
    }
    assert_near(loss[0], loss[1], 1e-12);
    const char *const names[] = {"embedding",
                                 "layers.1.router",
                                 "layers.1.experts.0.down",
                                 "layers.2.experts.2.gate",
                                 "layers.2.shared.up",
                                 "head.norm"};
    for (int i = 0; i < 6; i++) {
        int64_t count;
        DP_AUTO_FREE double *spread = world_gradient(world, names[i], &count);
        DP_AUTO_FREE double *together = world_gradient(alone, names[i], &count);
        for (int64_t j = 0; j < count; j++) {
            assert_near(spread[j], together[j], 1e-12);
        }
    }
    world_free(world);
    world_free(alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_of_a_whole_model_matches_differences),
        cmocka_unit_test(every_tensor_of_a_split_model_matches_differences),
        cmocka_unit_test(a_model_that_computes_again_matches_differences),
        cmocka_unit_test(a_dense_model_matches_differences),
        cmocka_unit_test(a_model_without_a_shared_expert_matches_differences),
        cmocka_unit_test(experts_without_tokens_have_zero_gradients),
        cmocka_unit_test(all_tokens_to_one_expert_match_differences),
        cmocka_unit_test(peers_without_tokens_match_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
