// One model, cut and spread and ordered in many ways, gives one result.
#include "dp_test.h"

#include "world.h"

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "gradient.h"

#define SEQUENCE 6
#define SAMPLES 2
#define TOKENS (SEQUENCE * SAMPLES)

// Names of every tensor of a whole model.
static const struct dp_tensor *all_tensors(const struct world *whole, int32_t *ret_count)
{
    return dp_stage_tensors(whole->stages[0][0], ret_count);
}

// Gradients of every tensor of `whole`, and the same in `other`, within a relative tolerance.
static void assert_same_gradients(const struct world *whole, const struct world *other,
                                  double tolerance)
{
    int32_t tensor_count;
    const struct dp_tensor *tensors = all_tensors(whole, &tensor_count);
    for (int32_t i = 0; i < tensor_count; i++) {
        int64_t count, other_count;
        DP_AUTO_FREE double *expected = world_gradient(whole, tensors[i].name, &count);
        DP_AUTO_FREE double *got = world_gradient(other, tensors[i].name, &other_count);
        assert_int_equal(count, other_count);
        double largest = 0, worst = 0;
        for (int64_t j = 0; j < count; j++) {
            largest = fmax(largest, fabs(expected[j]));
            worst = fmax(worst, fabs(expected[j] - got[j]));
        }
        if (!(worst <= tolerance * largest)) {
            fail_msg("%s: off by %g of %g", tensors[i].name, worst, largest);
        }
    }
}

static struct world *new_world(int32_t stages, int32_t ranks, dp_element element)
{
    const struct dp_model_spec model = world_model();
    struct world *world = world_new(&model, element, stages, ranks, SEQUENCE, SAMPLES);
    world_scale(world, 10);
    return world;
}

// Runs four micro-batches in both worlds and compares; frees both.
static void compare(struct world *whole, struct world *other, world_order order, double tolerance)
{
    const struct dp_model_spec *model = &dp_stage_config(whole->stages[0][0])->model;
    DP_AUTO_FREE int32_t *tokens = world_tokens(model, 3, 4 * TOKENS);
    DP_AUTO_FREE int32_t *targets = world_tokens(model, 4, 4 * TOKENS);
    double expected = world_step(whole, 4, tokens, targets, WORLD_B);
    double loss = world_step(other, 4, tokens, targets, order);
    assert_near(loss, expected, tolerance * expected);
    assert_same_gradients(whole, other, tolerance);
    world_free(whole);
    world_free(other);
}

static void a_split_model_gives_the_same_bits(void **state)
{
    (void)state;
    compare(new_world(1, 1, DP_F64), new_world(2, 1, DP_F64), WORLD_B, 0);
    compare(new_world(1, 1, DP_F64), new_world(3, 1, DP_F64), WORLD_B, 0);
}

static void weight_gradients_later_give_the_same_bits(void **state)
{
    (void)state;
    compare(new_world(1, 1, DP_F64), new_world(1, 1, DP_F64), WORLD_I_THEN_W, 0);
    compare(new_world(1, 1, DP_F32), new_world(3, 1, DP_F32), WORLD_I_THEN_W, 0);
}

static void expert_parallel_ranks_give_the_same_result(void **state)
{
    (void)state;
    compare(new_world(1, 1, DP_F64), new_world(1, 2, DP_F64), WORLD_B, 1e-12);
    compare(new_world(1, 1, DP_F64), new_world(1, 4, DP_F64), WORLD_B, 1e-12);
    compare(new_world(1, 1, DP_F64), new_world(3, 2, DP_F64), WORLD_I_THEN_W, 1e-12);
}

static void float_agrees_with_double(void **state)
{
    (void)state;
    compare(new_world(1, 1, DP_F64), new_world(1, 1, DP_F32), WORLD_B, 2e-5);
    compare(new_world(1, 1, DP_F64), new_world(2, 2, DP_F32), WORLD_B, 2e-5);
}

static void gradients_add_up_over_micro_batches(void **state)
{
    (void)state;
    struct world *together = new_world(1, 1, DP_F64);
    const struct dp_model_spec model = world_model();
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 3, 2 * TOKENS);
    world_step(together, 2, tokens, tokens, WORLD_B);
    struct world *parts[] = {new_world(1, 1, DP_F64), new_world(1, 1, DP_F64)};
    for (int i = 0; i < 2; i++) {
        world_step(parts[i], 1, tokens + i * TOKENS, tokens + i * TOKENS, WORLD_B);
    }
    const double *sum = dp_stage_gradients(together->stages[0][0]);
    const double *first = dp_stage_gradients(parts[0]->stages[0][0]);
    const double *second = dp_stage_gradients(parts[1]->stages[0][0]);
    for (int64_t i = 0; i < dp_stage_parameter_count(together->stages[0][0]); i++) {
        assert_near(sum[i], first[i] + second[i], 1e-15);
    }
    world_free(together);
    world_free(parts[0]);
    world_free(parts[1]);
}

// The scale of the batch, not the number of chunks, decides what a micro-batch weighs.
static void the_balance_loss_moves_routers_but_not_the_reported_loss(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 3, 2 * TOKENS);
    struct world *off = world_new(&model, DP_F64, 1, 1, SEQUENCE, SAMPLES);
    model.aux_loss_weight = 0.5;
    struct world *on = world_new(&model, DP_F64, 1, 1, SEQUENCE, SAMPLES);
    struct world *spread = world_new(&model, DP_F64, 3, 2, SEQUENCE, SAMPLES);
    double without = world_step(off, 2, tokens, tokens, WORLD_B);
    assert_near(world_step(on, 2, tokens, tokens, WORLD_B), without, 0);
    assert_near(world_step(spread, 2, tokens, tokens, WORLD_B), without, 1e-12);
    assert_same_gradients(on, spread, 1e-12);
    int64_t count;
    DP_AUTO_FREE double *plain = world_gradient(off, "layers.2.router", &count);
    DP_AUTO_FREE double *balanced = world_gradient(on, "layers.2.router", &count);
    double moved = 0;
    for (int64_t i = 0; i < count; i++) {
        moved = fmax(moved, fabs(balanced[i] - plain[i]));
    }
    assert_true(moved > 1e-6);
    world_free(off);
    world_free(on);
    world_free(spread);
}

static void every_layout_starts_from_the_same_weights(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    struct world *whole = world_new(&model, DP_F64, 1, 1, SEQUENCE, SAMPLES);
    struct world *spread = world_new(&model, DP_F64, 3, 2, SEQUENCE, SAMPLES);
    const double *weights = dp_stage_weights(whole->stages[0][0]);
    int32_t count, found = 0;
    const struct dp_tensor *tensors = all_tensors(whole, &count);
    for (int32_t i = 0; i < count; i++) {
        for (int32_t j = 0; j < 6; j++) {
            struct dp_stage *stage = spread->stages[j / 2][j % 2];
            const struct dp_tensor *tensor = world_tensor(stage, tensors[i].name);
            if (tensor != NULL) {
                assert_memory_equal((double *)dp_stage_weights(stage) + tensor->offset,
                                    weights + tensors[i].offset,
                                    (size_t)tensor->count * sizeof(double));
                assert_int_equal(tensor->is_expert,
                                 tensor->offset >= dp_stage_expert_offset(stage));
                found += tensor->is_expert ? 2 : 1;
            }
        }
    }
    assert_int_equal(found, 2 * count);
    world_free(whole);
    world_free(spread);
}

static void parameters_are_as_many_as_the_spec_says(void **state)
{
    (void)state;
    const struct dp_model_spec model = world_model();
    struct world *world = world_new(&model, DP_F32, 1, 1, SEQUENCE, SAMPLES);
    int32_t count;
    int64_t end = 0;
    const struct dp_tensor *tensors = all_tensors(world, &count);
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(tensors[i].offset, end);
        assert_int_equal(tensors[i].count, tensors[i].rows * tensors[i].cols);
        end += tensors[i].count;
    }
    assert_int_equal(end, dp_stage_parameter_count(world->stages[0][0]));
    assert_int_equal(end, dp_model_parameters(&model));
    world_free(world);
}

// Deviations of the drawn weights: 0.02, and 0.02 / sqrt(2 layers) where the residual is joined.
static void drawn_weights_have_the_deviations_promised(void **state)
{
    (void)state;
    struct dp_model_spec model = world_model();
    model.hidden = 64;
    struct world *world = world_new(&model, DP_F64, 1, 1, SEQUENCE, SAMPLES);
    const struct {
        const char *name;
        double deviation;
    } cases[] = {{"embedding", 0.02},
                 {"layers.1.experts.2.up", 0.02},
                 {"layers.1.experts.2.down", 0.02 / sqrt(6)},
                 {"layers.0.attention.output", 0.02 / sqrt(6)}};
    for (int i = 0; i < 4; i++) {
        const struct dp_tensor *tensor = world_tensor(world->stages[0][0], cases[i].name);
        const double *w = (double *)dp_stage_weights(world->stages[0][0]) + tensor->offset;
        double squares = weighted_sum(w, w, tensor->count);
        assert_near(sqrt(squares / (double)tensor->count), cases[i].deviation,
                    0.15 * cases[i].deviation);
    }
    const struct dp_tensor *norm = world_tensor(world->stages[0][0], "layers.0.ffn.norm");
    assert_near(((double *)dp_stage_weights(world->stages[0][0]))[norm->offset + 5], 1, 0);
    world_free(world);
}

// Chunk `one` forward through stage 1 and chunk `two` backward through stage 0, one component of
// each in turn, against one after the other.
static void interleave(struct world *world, const int32_t *tokens, bool in_turn)
{
    struct dp_error err;
    struct dp_stage *a = world->stages[0][0], *b = world->stages[1][0];
    struct dp_chunk *early = dp_chunk_new(a, SAMPLES, 0.1), *late = dp_chunk_new(b, SAMPLES, 0.1);
    void *input, *grad;
    assert_ok(dp_chunk_set_tokens(early, tokens, &err), &err);
    assert_ok(dp_chunk_set_targets(late, tokens, &err), &err);
    assert_ok(dp_chunk_run_all(early, DP_PASS_FORWARD, &err), &err);
    assert_ok(dp_chunk_make_input(late, &input, &err), &err);
    memcpy(input, dp_chunk_output(early), dp_chunk_hidden_bytes(early));
    dp_chunk_drop_output(early);
    assert_ok(dp_chunk_make_output_grad(early, &grad, &err), &err);
    memcpy(grad, input, dp_chunk_hidden_bytes(early));
    const int32_t na = dp_stage_component_count(a), nb = dp_stage_component_count(b);
    for (int32_t i = 0; i < (na > nb ? na : nb); i++) {
        if (i < nb && in_turn) {
            assert_ok(dp_chunk_run(late, DP_PASS_FORWARD, i, &err), &err);
        }
        if (i < na) {
            assert_ok(dp_chunk_run(early, DP_PASS_INPUT, na - 1 - i, &err), &err);
            assert_ok(dp_chunk_run(early, DP_PASS_WEIGHT, na - 1 - i, &err), &err);
        }
    }
    if (!in_turn) {
        assert_ok(dp_chunk_run_all(late, DP_PASS_FORWARD, &err), &err);
    }
    assert_ok(dp_chunk_run_all(late, DP_PASS_INPUT, &err), &err);
    assert_ok(dp_chunk_run_all(late, DP_PASS_WEIGHT, &err), &err);
    dp_chunk_free(early);
    dp_chunk_free(late);
}

static void interleaved_chunks_give_the_same_bits(void **state)
{
    (void)state;
    struct world *worlds[] = {new_world(2, 1, DP_F32), new_world(2, 1, DP_F32)};
    const struct dp_model_spec model = world_model();
    DP_AUTO_FREE int32_t *tokens = world_tokens(&model, 3, TOKENS);
    interleave(worlds[0], tokens, false);
    interleave(worlds[1], tokens, true);
    for (int s = 0; s < 2; s++) {
        struct dp_stage *a = worlds[0]->stages[s][0], *b = worlds[1]->stages[s][0];
        assert_memory_equal(dp_stage_gradients(a), dp_stage_gradients(b),
                            (size_t)dp_stage_parameter_count(a) * sizeof(float));
    }
    world_free(worlds[0]);
    world_free(worlds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_model_gives_the_same_bits),
        cmocka_unit_test(weight_gradients_later_give_the_same_bits),
        cmocka_unit_test(expert_parallel_ranks_give_the_same_result),
        cmocka_unit_test(float_agrees_with_double),
        cmocka_unit_test(gradients_add_up_over_micro_batches),
        cmocka_unit_test(the_balance_loss_moves_routers_but_not_the_reported_loss),
        cmocka_unit_test(every_layout_starts_from_the_same_weights),
        cmocka_unit_test(parameters_are_as_many_as_the_spec_says),
        cmocka_unit_test(drawn_weights_have_the_deviations_promised),
        cmocka_unit_test(interleaved_chunks_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
