// Experts that move to other ranks, and copies of them, train as experts that stay.
#include <math.h>
#include <string.h>

#include "dp/check.h"
#include "dp_test.h"
#include "exec_harness.h"
#include "temporary.h"

static const struct {
    const char *schedule;
    int32_t pipeline, expert, data;
    dp_shard shard;
    bool alltoall;
    int32_t nodes;
} layouts[] = {
    {"gpipe", 1, 2, 2, DP_SHARD_NONE, false, 0},
    {"1f1b", 2, 2, 4, DP_SHARD_ZERO1, true, 0},
    {"dualpipe", 2, 2, 2, DP_SHARD_ZERO1, false, 0},
    {"gpipe", 1, 4, 4, DP_SHARD_ZERO1, true, 2},
};

// The first expert of each layer is preferred, the others by what the router has learned.
static struct trial trial_of(size_t layout)
{
    struct trial trial = trial_default();
    trial.schedule = layouts[layout].schedule;
    trial.pipeline = layouts[layout].pipeline;
    trial.expert = layouts[layout].expert;
    trial.data = layouts[layout].data;
    trial.shard = layouts[layout].shard;
    trial.alltoall = layouts[layout].alltoall;
    trial.nodes = layouts[layout].nodes;
    trial.microbatches = 16 / trial.data;
    trial.steps = TRIAL_UNDER_TSAN ? 3 : 8;
    trial.bias_update = 1e-9;
    trial.tilt = 0.1;
    trial.element = DP_F64;
    return trial;
}

static const struct trial_tensor *find_anywhere(const struct trial_result *result, const char *name)
{
    for (int32_t rank = 0; rank < result->world; rank++) {
        const struct trial_rank *at = &result->ranks[rank];
        for (size_t i = 0; i < at->weights_count; i++) {
            if (strcmp(at->weights[i].name, name) == 0) {
                return &at->weights[i];
            }
        }
    }
    fail_msg("no rank has %s", name);
    return NULL;
}

// Losses and weights by their names are alike, wherever experts lie.
static void expect_alike(const struct trial_result *moved, const struct trial_result *still,
                         double most)
{
    for (int32_t rank = 0; rank < moved->world; rank++) {
        const struct trial_rank *a = &moved->ranks[rank], *b = &still->ranks[rank];
        for (int64_t step = a->step_first; step <= a->step_done; step++) {
            assert_float_equal(a->reports[step].loss, b->reports[step].loss, most);
            assert_float_equal(a->reports[step].grad_norm, b->reports[step].grad_norm, most * 100);
        }
        for (size_t i = 0; i < a->weights_count; i++) {
            const struct trial_tensor *other = find_anywhere(still, a->weights[i].name);
            const double distance = trial_distance(&a->weights[i], other);
            if (!(distance <= most * 100)) {
                fail_msg("rank %d: %s is off by %g", rank, a->weights[i].name, distance);
            }
        }
    }
}

// Of the ranks, the one with the most to do in a step over the mean.
static double fullest_rank(const struct trial_result *result, int64_t step)
{
    double most = 0;
    for (int32_t rank = 0; rank < result->world; rank++) {
        const double load = result->ranks[rank].rank_loads[step];
        most = load > most ? load : most;
    }
    return most;
}

static int64_t moved_by(const struct trial_result *result, int64_t step)
{
    const struct dp_trainer_report *report = &result->ranks[0].reports[step];
    assert_true(report->has_rebalanced);
    return report->rebalance.moved;
}

static void experts_that_move_train_as_those_that_stay(void **state)
{
    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(layouts); i++) {
        struct trial still = trial_of(i), moved = still;
        moved.rebalance_every = 2;
        struct trial_result a, b;
        trial_run(&still, &b);
        trial_expect_ok(&b);
        trial_run(&moved, &a);
        trial_expect_ok(&a);
        expect_alike(&a, &b, 1e-10);
        const struct dp_rebalance_report *report = &a.ranks[0].reports[2].rebalance;
        print_message("%s EP %d: %lld slots moved, %lld bytes; predicted x%.3f -> x%.3f, measured "
                      "x%.3f -> x%.3f\n",
                      still.schedule, still.expert, (long long)report->moved,
                      (long long)report->bytes, report->skew_before, report->skew_after,
                      fullest_rank(&a, 2), fullest_rank(&a, 3));
        if (still.expert < 4) { // four experts on four ranks have no better place
            assert_true(moved_by(&a, 2) > 0);
            assert_true(report->bytes > 0);
            assert_true(report->skew_after < report->skew_before);
            assert_true(fullest_rank(&a, 3) < fullest_rank(&b, 3));
        }
        trial_result_deinit(&a);
        trial_result_deinit(&b);
    }
}

static void copies_are_equal(const struct trial_result *result)
{
    for (int32_t rank = 0; rank < result->world; rank++) {
        const struct trial_rank *at = &result->ranks[rank];
        for (size_t i = 0; i < at->weights_count; i++) {
            const struct trial_tensor *first = find_anywhere(result, at->weights[i].name);
            if (memcmp(first->values, at->weights[i].values,
                       (size_t)first->count * sizeof(double)) != 0) {
                fail_msg("rank %d: %s is not what other ranks have", rank, first->name);
            }
        }
    }
}

static void copies_of_busy_experts_train_as_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(layouts); i++) {
        struct trial still = trial_of(i), copied = still;
        copied.expert_copies = 1;
        copied.rebalance_every = 2;
        struct trial_result a, b;
        trial_run(&still, &b);
        trial_expect_ok(&b);
        trial_run(&copied, &a);
        trial_expect_ok(&a);
        copies_are_equal(&a);
        expect_alike(&a, &b, 1e-10);
        const int64_t last = a.ranks[0].step_done;
        print_message("%s EP %d with copies: fullest rank x%.3f, without x%.3f\n", still.schedule,
                      still.expert, fullest_rank(&a, last), fullest_rank(&b, last));
        assert_true(fullest_rank(&a, last) < fullest_rank(&b, last));
        trial_result_deinit(&a);
        trial_result_deinit(&b);
    }
}

// Each token goes to one expert and nothing is clipped: then no sum has another order.
static void with_one_expert_a_token_moving_changes_no_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(layouts) - 1; i++) {
        struct trial still = trial_of(i);
        struct dp_model_spec model = trial_model(&still);
        model.top_k = 1;
        still.model = &model;
        still.element = DP_F32;
        still.clip = 1e9;
        still.tilt = 0.01; // or the preferred one gets all
        struct trial moved = still;
        moved.rebalance_every = 2;
        struct trial_result a, b;
        trial_run(&still, &b);
        trial_expect_ok(&b);
        trial_run(&moved, &a);
        trial_expect_ok(&a);
        assert_true(moved_by(&a, 2) > 0);
        for (int64_t step = 1; step <= a.ranks[0].step_done; step++) {
            assert_true(a.ranks[0].reports[step].loss == b.ranks[0].reports[step].loss);
        }
        expect_alike(&a, &b, 0);
        trial_result_deinit(&a);
        trial_result_deinit(&b);
    }
}

static void moments_in_bf16_move_too(void **state)
{
    (void)state;
    struct trial still = trial_of(1);
    still.bf16_moments = true;
    struct trial moved = still;
    moved.rebalance_every = 2;
    struct trial_result a, b;
    trial_run(&still, &b);
    trial_expect_ok(&b);
    trial_run(&moved, &a);
    trial_expect_ok(&a);
    assert_true(moved_by(&a, 2) > 0);
    // Rounded moments differ where a sum in another order crosses the middle of two of them.
    expect_alike(&a, &b, 1e-6);
    trial_result_deinit(&a);
    trial_result_deinit(&b);
}

static void advice_moves_nothing(void **state)
{
    (void)state;
    struct trial trial = trial_of(0);
    trial.rebalance_every = 2;
    trial.advise = true;
    trial.steps = 3;
    struct trial_result result;
    trial_run(&trial, &result);
    trial_expect_ok(&result);
    const struct dp_rebalance_report *report = &result.ranks[0].reports[2].rebalance;
    assert_true(report->moved > 0 && report->skew_after < report->skew_before);
    assert_int_equal(report->bytes, 0);
    assert_false(result.ranks[0].reports[3].has_rebalanced);
    assert_float_equal(fullest_rank(&result, 3), fullest_rank(&result, 2), 0.2);
    trial_result_deinit(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_that_move_train_as_those_that_stay),
        cmocka_unit_test(copies_of_busy_experts_train_as_one),
        cmocka_unit_test(with_one_expert_a_token_moving_changes_no_bit),
        cmocka_unit_test(moments_in_bf16_move_too),
        cmocka_unit_test(advice_moves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
