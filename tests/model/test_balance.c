// Statistics of choices and the bias that moves them.
#include "dp_test.h"

#include "world.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

#define SEQUENCE 6
#define SAMPLES 2
#define TOKENS (SEQUENCE * SAMPLES)

static struct world *new_world(const struct dp_model_spec *model)
{
    struct world *world = world_new(model, DP_F32, 1, 1, SEQUENCE, SAMPLES);
    world_scale(world, 10);
    return world;
}

static void every_choice_counts_once_and_evaluations_do_not(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    struct world *world = new_world(&model);
    struct dp_stage *stage = world->stages[0][0];
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 3, 3 * TOKENS);
    world_step(world, 2, tokens, tokens, WORLD_B);
    const double scale = world->loss_scale;
    world->loss_scale = 0;
    world_loss(world, 1, tokens + 2 * TOKENS, tokens + 2 * TOKENS);
    world->loss_scale = scale;
    assert_null(dp_stage_expert_counts(stage, 0));
    for (int32_t layer = 1; layer < model.layers; layer++) {
        const int64_t *counts = dp_stage_expert_counts(stage, layer);
        int64_t sum = 0;
        for (int32_t e = 0; e < model.experts; e++) {
            sum += counts[e];
        }
        assert_int_equal(sum, 2 * TOKENS * model.top_k);
    }
    world_free(world);
}

// 20 is more than any probability: the chosen ones are known without looking at scores.
static void a_bias_decides_who_is_chosen(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.bias_update = 0.001;
    struct world *world = new_world(&model);
    struct dp_stage *stage = world->stages[0][0];
    assert_null(dp_stage_router_bias(stage, 0));
    float *bias = dp_stage_router_bias(stage, 2);
    bias[1] = bias[3] = 20;
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 3, TOKENS);
    world_step(world, 1, tokens, tokens, WORLD_B);
    const int64_t *counts = dp_stage_expert_counts(stage, 2);
    const int64_t expected[] = {0, TOKENS, 0, TOKENS};
    for (int32_t e = 0; e < model.experts; e++) {
        assert_int_equal(counts[e], expected[e]);
    }
    world_free(world);
}

static void limited_groups_keep_a_token_inside_them(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.experts = 8;
    model.top_k = 2;
    model.expert_groups = 4;
    model.top_groups = 1;
    struct world *world = new_world(&model);
    struct dp_stage *stage = world->stages[0][0];
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 3, TOKENS);
    world_step(world, 1, tokens, tokens, WORLD_B);
    // A group of two experts is a token's whole choice: both are chosen equally often.
    const int64_t *counts = dp_stage_expert_counts(stage, 1);
    for (int32_t e = 0; e < model.experts; e += 2) {
        assert_int_equal(counts[e], counts[e + 1]);
    }
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_choice_counts_once_and_evaluations_do_not),
        cmocka_unit_test(a_bias_decides_who_is_chosen),
        cmocka_unit_test(limited_groups_keep_a_token_inside_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
