// Routings that break exchanges and experts elsewhere: nobody's tokens, everybody's, too many, and
// moves that are left open for long. Buffers are poisoned: what nobody wrote is NaN.
#include "dp_test.h"

#include "world.h"

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

#define TOKENS (WORLD_SEQUENCE * WORLD_SAMPLES)

// Every token has a large first component, and the routers look at nothing else: experts below
// `wanted` win always.
static void route_all_to(struct world *world, int32_t wanted)
{
    const struct dp_model_spec *model = &dp_stage_config(world->stages[0][0])->model;
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

static double step(struct world *world, int32_t micro_batches)
{
    const struct dp_model_spec *model = &dp_stage_config(world->stages[0][0])->model;
    const int64_t tokens =
        (int64_t)micro_batches * world->samples * dp_stage_config(world->stages[0][0])->sequence;
    DP_AUTO_FREE int32_t *values = world_tokens(model, 5, tokens);
    return world_step(world, micro_batches, values, values, WORLD_I_THEN_W);
}

static void assert_finite(const struct world *world)
{
    for (int32_t r = 0; r < world->ranks; r++) {
        struct dp_stage *stage = world->stages[0][r];
        const float *gradients = dp_stage_gradients(stage);
        for (int64_t i = 0; i < dp_stage_parameter_count(stage); i++) {
            assert_true(isfinite(gradients[i]));
        }
    }
}

static void assert_idle_experts_have_zero_gradients(const struct world *world, int32_t first)
{
    char name[DP_NAME_MAX];
    const char *const parts[] = {"gate", "up", "down"};
    for (int i = 0; i < 3; i++) {
        int64_t count;
        snprintf(name, sizeof(name), "layers.2.experts.%d.%s", first, parts[i]);
        DP_AUTO_FREE double *gradient = world_gradient(world, name, &count);
        for (int64_t j = 0; j < count; j++) {
            assert_true(gradient[j] == 0);
        }
    }
}

// Ranks 1 to 3 get no row in any layer, whatever else is on.
static void ranks_without_tokens_leave_zeros_and_make_the_same_calls(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.top_k = 1;
    struct world *const worlds[] = {
        world_recompute(&model, DP_F32, 1, 4, 0),
        world_recompute(&model, DP_F32, 1, 4, DP_RECOMPUTE_FULL),
        world_offload(&model, DP_F32, 1, 4, DP_OFFLOAD_EXPERTS | DP_OFFLOAD_INPUTS),
        world_recompute(&model, DP_BF16, 1, 4, DP_RECOMPUTE_EXPERTS),
        world_fp8(&model, DP_BF16, 4),
        world_saved_fp8(&model, 4, DP_RECOMPUTE_FULL),
    };
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        route_all_to(worlds[i], 1);
        assert_true(isfinite(step(worlds[i], 4)));
        assert_finite(worlds[i]);
        for (int32_t r = 1; r < 4; r++) {
            assert_idle_experts_have_zero_gradients(worlds[i], r);
            assert_int_equal(worlds[i]->groups[r].calls, worlds[i]->groups[0].calls);
        }
        world_free(worlds[i]);
    }
}

static void assert_near_each_other(struct world *spread, struct world *alone, const char *name)
{
    int64_t count;
    DP_AUTO_FREE double *x = world_gradient(spread, name, &count);
    DP_AUTO_FREE double *y = world_gradient(alone, name, &count);
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(y[i]));
        worst = fmax(worst, fabs(x[i] - y[i]));
    }
    assert_true(worst <= 1e-11 * fmax(largest, 1e-3));
}

// Frees both.
static void compare_with_one_rank(struct world *spread, struct world *alone, int32_t wanted,
                                  const char *expert)
{
    struct world *const both[] = {spread, alone};
    double loss[2];
    for (int i = 0; i < 2; i++) {
        world_scale(both[i], 8);
        if (wanted > 0) {
            route_all_to(both[i], wanted);
        }
        loss[i] = step(both[i], 2);
    }
    assert_true(fabs(loss[0] - loss[1]) <= 1e-11 * loss[1]);
    assert_near_each_other(spread, alone, expert);
    assert_near_each_other(spread, alone, "layers.1.router");
    assert_near_each_other(spread, alone, "embedding");
    world_free(spread);
    world_free(alone);
}

static void more_choices_than_32_work(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.experts = 40;
    model.top_k = 33;
    compare_with_one_rank(world_new(&model, DP_F64, 1, 2, WORLD_SEQUENCE, WORLD_SAMPLES),
                          world_new(&model, DP_F64, 1, 1, WORLD_SEQUENCE, WORLD_SAMPLES), 0,
                          "layers.1.experts.39.up");
}

// More than 9180 of them on one rank, where a count has overflowed its field elsewhere.
static void all_of_many_tokens_to_one_expert_work(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.layers = 2;
    model.top_k = 1;
    compare_with_one_rank(world_new(&model, DP_F64, 1, 2, 16, 300),
                          world_new(&model, DP_F64, 1, 1, 16, 300), 1, "layers.1.experts.0.up");
}

// The weight gradients of experts need nothing of the gradients on their way back: they run while
// these are out, and change no bit.
static void weight_gradients_of_experts_do_not_wait_for_the_way_back(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 5, 2 * TOKENS);
    struct world *worlds[2];
    for (int i = 0; i < 2; i++) {
        struct dp_error err;
        struct world *world = worlds[i] = world_recompute(&model, DP_F32, 1, 2, 0);
        struct dp_chunk *chunks[2];
        const int32_t count = dp_stage_component_count(world->stages[0][0]);
        const int32_t dispatch = count - 4; // before experts, combine and head
        for (int32_t r = 0; r < 2; r++) {
            chunks[r] = dp_chunk_new(world->stages[0][r], WORLD_SAMPLES, 0.1);
            assert_ok(dp_chunk_set_tokens(chunks[r], tokens + r * TOKENS, &err), &err);
            assert_ok(dp_chunk_set_targets(chunks[r], tokens + r * TOKENS, &err), &err);
        }
        for (int32_t c = 0; c < count; c++) {
            world_run(chunks, 2, DP_PASS_FORWARD, c);
        }
        for (int32_t c = count - 1; c > dispatch; c--) {
            world_run(chunks, 2, DP_PASS_INPUT, c);
        }
        for (int32_t r = 0; r < 2; r++) {
            assert_ok(dp_chunk_begin(chunks[r], DP_PASS_INPUT, dispatch, &err), &err);
            for (int32_t c = count - 1; i == 1 && c > dispatch; c--) {
                assert_ok(dp_chunk_run(chunks[r], DP_PASS_WEIGHT, c, &err), &err);
            }
        }
        for (int32_t r = 0; r < 2; r++) {
            assert_true(dp_chunk_ready(chunks[r], DP_PASS_INPUT, dispatch));
            assert_ok(dp_chunk_end(chunks[r], DP_PASS_INPUT, dispatch, &err), &err);
        }
        for (int32_t c = count - 1; i == 0 && c > dispatch; c--) {
            world_run(chunks, 2, DP_PASS_WEIGHT, c);
        }
        world_run(chunks, 2, DP_PASS_WEIGHT, dispatch);
        for (int32_t r = 0; r < 2; r++) {
            dp_chunk_free(chunks[r]);
        }
    }
    for (int32_t r = 0; r < 2; r++) {
        struct dp_stage *a = worlds[0]->stages[0][r], *b = worlds[1]->stages[0][r];
        assert_memory_equal(dp_stage_gradients(a), dp_stage_gradients(b),
                            (size_t)dp_stage_parameter_count(a) * sizeof(float));
    }
    world_free(worlds[0]);
    world_free(worlds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_without_tokens_leave_zeros_and_make_the_same_calls),
        cmocka_unit_test(more_choices_than_32_work),
        cmocka_unit_test(all_of_many_tokens_to_one_expert_work),
        cmocka_unit_test(weight_gradients_of_experts_do_not_wait_for_the_way_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
