// What a run comes to: the same bits again, however moments are kept; balanced experts.
#include <string.h>

#include "dp/check.h"
#include "dp_test.h"
#include "exec_harness.h"
#include "temporary.h"

static const struct {
    const char *schedule;
    int32_t pipeline, expert, data;
    int32_t threads;
} layouts[] = {
    {"gpipe", 1, 1, 1, 2},
    {"1f1b", 2, 2, 4, 1},
    {"dualpipev", 2, 1, 2, 2},
    {"dualpipe", 2, 2, 2, 1},
};

static struct trial trial_of(size_t layout)
{
    struct trial trial = trial_default();
    trial.schedule = layouts[layout].schedule;
    trial.pipeline = layouts[layout].pipeline;
    trial.expert = layouts[layout].expert;
    trial.data = layouts[layout].data;
    trial.threads = layouts[layout].threads;
    trial.microbatches = 16 / trial.data;
    trial.steps = TRIAL_UNDER_TSAN ? 2 : 6;
    trial.bias_update = 0.01;
    return trial;
}

static void expect_same_bits(const struct trial_result *a, const struct trial_result *b)
{
    for (int32_t rank = 0; rank < a->world; rank++) {
        const struct trial_rank *x = &a->ranks[rank], *y = &b->ranks[rank];
        for (int64_t step = x->step_first; step <= x->step_done; step++) {
            assert_true(x->reports[step].loss == y->reports[step].loss);
            assert_true(x->reports[step].grad_norm == y->reports[step].grad_norm);
            assert_true(x->skews[step] == y->skews[step]);
        }
        assert_int_equal(x->weights_count, y->weights_count);
        for (size_t i = 0; i < x->weights_count; i++) {
            assert_string_equal(x->weights[i].name, y->weights[i].name);
            if (memcmp(x->weights[i].values, y->weights[i].values,
                       (size_t)x->weights[i].count * sizeof(double)) != 0) {
                fail_msg("rank %d: %s differs", rank, x->weights[i].name);
            }
        }
    }
}

static void compare(const struct trial *first, const struct trial *second)
{
    struct trial_result a, b;
    trial_run(first, &a);
    trial_expect_ok(&a);
    trial_run(second, &b);
    trial_expect_ok(&b);
    expect_same_bits(&a, &b);
    trial_result_deinit(&a);
    trial_result_deinit(&b);
}

static void a_run_is_repeated_bit_for_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(layouts); i++) {
        struct trial trial = trial_of(i);
        compare(&trial, &trial);
    }
}

static void sharded_moments_train_bit_for_bit_as_whole_ones(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * DP_ARRAY_LENGTH(layouts); i++) {
        struct trial trial = trial_of(i / 2);
        trial.bf16_moments = i % 2 == 1;
        struct trial sharded = trial;
        sharded.shard = DP_SHARD_ZERO1;
        compare(&trial, &sharded);
    }
}

// Moments that lie in pieces are written whole, and taken apart again.
static void a_sharded_run_goes_on_from_its_checkpoint_bit_for_bit(void **state)
{
    (void)state;
    char directory[TEMPORARY_MAX];
    temporary_make(directory);
    struct trial trial = trial_of(3);
    trial.bias_update = 0;
    trial.shard = DP_SHARD_ZERO1;
    struct trial_result whole, part;
    trial_run(&trial, &whole);
    trial_expect_ok(&whole);
    trial.stop_after = trial.steps / 2;
    trial.save = directory;
    trial_run(&trial, &part);
    trial_expect_ok(&part);
    trial_result_deinit(&part);
    trial.stop_after = 0;
    trial.save = NULL;
    trial.resume = directory;
    trial_run(&trial, &part);
    trial_expect_ok(&part);
    assert_int_equal(part.ranks[0].step_first, trial.steps / 2 + 1);
    expect_same_bits(&part, &whole);
    trial_result_deinit(&part);
    trial_result_deinit(&whole);
    temporary_remove(directory);
}

// The skew of a step after all tokens had chosen the first expert.
static double last_skew(const struct trial *trial)
{
    struct trial_result result;
    trial_run(trial, &result);
    trial_expect_ok(&result);
    assert_true(result.ranks[0].skews[1] == 2); // of 4 experts, each token takes 2
    double last = result.ranks[0].skews[trial->steps];
    trial_result_deinit(&result);
    return last;
}

static void a_moving_bias_evens_out_the_experts(void **state)
{
    (void)state;
    if (TRIAL_UNDER_TSAN) {
        skip();
    }
    struct trial trial = trial_of(1);
    trial.layers = 4;
    trial.steps = 30;
    trial.tilt = 0.3;
    trial.bias_update = 1e-9;
    double left_alone = last_skew(&trial);
    trial.bias_update = 0.008;
    double moved = last_skew(&trial);
    if (!(left_alone > 1.9 && moved < 1.3)) {
        fail_msg("the fullest expert is at %.3f of the mean with a bias that moves, %.3f with one "
                 "that does not",
                 moved, left_alone);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_is_repeated_bit_for_bit),
        cmocka_unit_test(sharded_moments_train_bit_for_bit_as_whole_ones),
        cmocka_unit_test(a_sharded_run_goes_on_from_its_checkpoint_bit_for_bit),
        cmocka_unit_test(a_moving_bias_evens_out_the_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
