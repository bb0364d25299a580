// What is computed again is what was there before, bit for bit; and shorter elements stay near.
#include "dp_test.h"

#include "world.h"

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

#define TOKENS (WORLD_SEQUENCE * WORLD_SAMPLES)

static struct dp_model_spec small_model(void)
{
    struct dp_model_spec model = world_model();
    model.aux_loss_weight = 0.1;
    return model;
}

static double run(struct world *world, world_order order)
{
    const struct dp_model_spec *model = &dp_stage_config(world->stages[0][0])->model;
    DP_AUTO_FREE int32_t *tokens = world_tokens(model, 3, 4 * TOKENS);
    DP_AUTO_FREE int32_t *targets = world_tokens(model, 4, 4 * TOKENS);
    world_scale(world, 10);
    return world_step(world, 4, tokens, targets, order);
}

static void assert_same_bits(const struct world *one, const struct world *two, uint32_t recompute)
{
    for (int32_t i = 0; i < one->stage_count * one->ranks; i++) {
        struct dp_stage *a = one->stages[i / one->ranks][i % one->ranks];
        struct dp_stage *b = two->stages[i / one->ranks][i % one->ranks];
        const size_t bytes =
            (size_t)dp_stage_parameter_count(a) * dp_device_real_bytes(one->device);
        if (memcmp(dp_stage_gradients(a), dp_stage_gradients(b), bytes) != 0) {
            fail_msg("gradients differ with recompute %u", recompute);
        }
        for (int32_t layer = 1; layer < dp_stage_config(a)->model.layers; layer++) {
            const int64_t *counts = dp_stage_expert_counts(a, layer);
            if (counts != NULL) {
                assert_memory_equal(counts, dp_stage_expert_counts(b, layer),
                                    (size_t)dp_stage_config(a)->model.experts * sizeof(*counts));
            }
        }
    }
}

static void compare(dp_element element, int32_t stages, int32_t ranks, world_order order)
{
    const struct dp_model_spec model = small_model();
    struct world *kept = world_recompute(&model, element, stages, ranks, 0);
    const double loss = run(kept, order);
    for (uint32_t recompute = 1; recompute <= DP_RECOMPUTE_FULL; recompute++) {
        struct world *again = world_recompute(&model, element, stages, ranks, recompute);
        assert_true(run(again, order) == loss);
        assert_same_bits(kept, again, recompute);
        world_free(again);
    }
    world_free(kept);
}

// Of the balance loss as well, which a layer that runs twice would count twice; nor are choices.
static void every_choice_of_what_is_computed_again_gives_the_same_bits(void **state)
{
    (void)state;
    compare(DP_F32, 1, 1, WORLD_B);
    compare(DP_F32, 2, 2, WORLD_I_THEN_W);
    compare(DP_BF16, 1, 2, WORLD_B);
}

static void what_waits_in_host_memory_comes_back_with_the_same_bits(void **state)
{
    (void)state;
    const struct dp_model_spec model = small_model();
    struct world *kept = world_recompute(&model, DP_F32, 2, 2, 0);
    const double loss = run(kept, WORLD_I_THEN_W);
    for (uint32_t offload = 1; offload < 2 * DP_OFFLOAD_EXPERTS; offload++) {
        struct world *away = world_offload(&model, DP_F32, 2, 2, offload);
        assert_true(run(away, WORLD_I_THEN_W) == loss);
        assert_same_bits(kept, away, offload);
        world_free(away);
    }
    world_free(kept);
}

static void rows_that_are_kept_in_fp8_come_again_with_the_same_bits(void **state)
{
    (void)state;
    const struct dp_model_spec model = small_model();
    struct world *kept = world_saved_fp8(&model, 2, 0);
    const double loss = run(kept, WORLD_B);
    const uint32_t choices[] = {DP_RECOMPUTE_EXPERTS, DP_RECOMPUTE_FULL};
    for (int i = 0; i < 2; i++) {
        struct world *again = world_saved_fp8(&model, 2, choices[i]);
        assert_true(run(again, WORLD_B) == loss);
        assert_same_bits(kept, again, choices[i]);
        world_free(again);
    }
    world_free(kept);
}

static int64_t live_after_forward(uint32_t recompute)
{
    struct dp_error err;
    const struct dp_model_spec model = small_model();
    struct world *world = world_recompute(&model, DP_F32, 1, 1, recompute);
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 3, TOKENS);
    struct dp_chunk *chunk = dp_chunk_new(world->stages[0][0], WORLD_SAMPLES, 1);
    assert_ok(dp_chunk_set_tokens(chunk, tokens, &err), &err);
    assert_ok(dp_chunk_set_targets(chunk, tokens, &err), &err);
    assert_ok(dp_chunk_run_all(chunk, DP_PASS_FORWARD, &err), &err);
    const int64_t bytes = dp_chunk_live_bytes(chunk);
    dp_chunk_free(chunk);
    world_free(world);
    return bytes;
}

static void what_is_computed_again_is_not_kept(void **state)
{
    (void)state;
    const uint32_t bits[] = {DP_RECOMPUTE_NORM, DP_RECOMPUTE_ACTIVATION, DP_RECOMPUTE_ATTENTION,
                             DP_RECOMPUTE_EXPERTS};
    const int64_t all = live_after_forward(0);
    uint32_t together = 0;
    int64_t last = all;
    for (int i = 0; i < 4; i++) {
        assert_true(live_after_forward(bits[i]) < all);
        together |= bits[i];
        const int64_t bytes = live_after_forward(together);
        assert_true(bytes < last);
        last = bytes;
    }
    assert_true(live_after_forward(DP_RECOMPUTE_FULL) < last);
}

static double relative_distance(const double *x, const double *y, int64_t count)
{
    double square = 0, distance = 0;
    for (int64_t i = 0; i < count; i++) {
        square += x[i] * x[i];
        distance += (x[i] - y[i]) * (x[i] - y[i]);
    }
    return sqrt(distance / square);
}

// Frees `rounded`.
static void expect_near_double(const struct dp_model_spec *model, struct world *rounded,
                               double loss_tolerance, double tolerance)
{
    struct world *exact = world_recompute(model, DP_F64, 1, 1, 0);
    const int32_t count = 4 * TOKENS;
    DP_AUTO_FREE int32_t *tokens = world_tokens(model, 3, count);
    DP_AUTO_FREE int32_t *targets = world_tokens(model, 4, count);
    struct world *const worlds[] = {exact, rounded};
    double losses[2];
    for (int i = 0; i < 2; i++) {
        world_scale(worlds[i], 4);
        losses[i] = world_step(worlds[i], 4, tokens, targets, WORLD_B) / count;
    }
    assert_true(fabs(losses[1] - losses[0]) < loss_tolerance * losses[0]);
    int32_t tensor_count;
    const struct dp_tensor *tensors = dp_stage_tensors(exact->stages[0][0], &tensor_count);
    for (int32_t i = 0; i < tensor_count; i++) {
        int64_t elements;
        DP_AUTO_FREE double *x = world_gradient(exact, tensors[i].name, &elements);
        DP_AUTO_FREE double *y = world_gradient(rounded, tensors[i].name, &elements);
        const double distance = relative_distance(x, y, elements);
        if (!(distance < tolerance)) {
            fail_msg("%s is off by %g", tensors[i].name, distance);
        }
    }
    world_free(exact);
    world_free(rounded);
}

// bfloat16 has 8 bits of mantissa: one rounding is off by 2^-9 at most, a few layers of them stay
// within some percent. Every expert is chosen, so that no choice turns at a hair's breadth.
static void bf16_stays_near_double(void **state)
{
    (void)state;
    struct dp_model_spec model = small_model();
    model.top_k = model.experts;
    expect_near_double(&model, world_recompute(&model, DP_BF16, 1, 2, 0), 1e-2, 1e-1);
}

// E4M3 has 4 bits: each operand is off by 2^-4 at most, 2.6 % on average of normal numbers.
static void fp8_products_stay_near_double(void **state)
{
    (void)state;
    struct dp_model_spec model = small_model();
    model.top_k = model.experts;
    model.hidden = 144; // more than a tile, and no multiple of one
    model.expert_ffn = 136;
    expect_near_double(&model, world_fp8(&model, DP_BF16, 1), 2e-2, 4e-1);
    expect_near_double(&model, world_fp8(&model, DP_BF16, 2), 2e-2, 4e-1);
    expect_near_double(&model, world_fp8(&model, DP_F32, 2), 2e-2, 4e-1);
    expect_near_double(&model, world_saved_fp8(&model, 2, 0), 2e-2, 4e-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_choice_of_what_is_computed_again_gives_the_same_bits),
        cmocka_unit_test(what_waits_in_host_memory_comes_back_with_the_same_bits),
        cmocka_unit_test(rows_that_are_kept_in_fp8_come_again_with_the_same_bits),
        cmocka_unit_test(what_is_computed_again_is_not_kept),
        cmocka_unit_test(bf16_stays_near_double),
        cmocka_unit_test(fp8_products_stay_near_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
