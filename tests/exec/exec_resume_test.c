// A run goes on from what another one saved, whatever changes between them: the layout, how moments
// lie, the precision. Losses follow those of one that was never stopped.
#include "dp_test.h"

#include <math.h>
#include <string.h>

#include "dp/check.h"
#include "exec_harness.h"
#include "temporary.h"

#define LAYERS TRIAL_LAYERS
#define SAVED 3
#define STEPS 6
#define SAME_CURVE 1e-4
#define NEAR_CURVE 0.01 // of another precision

static const struct {
    const char *schedule;
    int32_t pipeline, expert, data;
    dp_shard shard;
    bool alltoall;
} layouts[] = {
    {"gpipe", 1, 1, 1, DP_SHARD_NONE, false},    {"dualpipev", 2, 1, 2, DP_SHARD_ZERO1, false},
    {"1f1b", 4, 1, 1, DP_SHARD_NONE, false},     {"1f1b", 2, 2, 4, DP_SHARD_ZERO1, true},
    {"dualpipe", 2, 2, 2, DP_SHARD_NONE, false}, {"gpipe", 1, 4, 4, DP_SHARD_ZERO1, true},
};

static void take_layout(struct trial *trial, size_t i)
{
    trial->schedule = layouts[i].schedule;
    trial->pipeline = layouts[i].pipeline;
    trial->expert = layouts[i].expert;
    trial->data = layouts[i].data;
    trial->shard = layouts[i].shard;
    trial->alltoall = layouts[i].alltoall;
    trial->microbatches = 16 / trial->data;
}

static struct trial trial_of(const struct dp_model_spec *model, dp_element element)
{
    struct trial trial = trial_default();
    trial.model = model;
    trial.layers = LAYERS;
    trial.element = element;
    trial.steps = STEPS;
    return trial;
}

static void losses_of(const struct trial *trial, int64_t first, double ret_losses[STEPS + 1])
{
    struct trial_result result;
    trial_run(trial, &result);
    trial_expect_ok(&result);
    assert_int_equal(result.ranks[0].step_first, first);
    int64_t last = trial->stop_after > 0 ? trial->stop_after : trial->steps;
    for (int64_t step = first; step <= last; step++) {
        ret_losses[step] = result.ranks[0].reports[step].loss;
    }
    trial_result_deinit(&result);
}

static void save_under(struct trial trial, size_t layout, const char *directory)
{
    double losses[STEPS + 1];
    take_layout(&trial, layout);
    trial.stop_after = SAVED;
    trial.save = directory;
    losses_of(&trial, 1, losses);
}

static void resume_under(struct trial trial, size_t layout, const char *directory,
                         double ret_losses[STEPS + 1])
{
    take_layout(&trial, layout);
    trial.resume = directory;
    losses_of(&trial, SAVED + 1, ret_losses);
}

static void expect_curve(const double got[STEPS + 1], const double wanted[STEPS + 1],
                         double tolerance, const char *what, size_t from, size_t to)
{
    for (int step = SAVED + 1; step <= STEPS; step++) {
        if (!(fabs(got[step] - wanted[step]) <= tolerance * wanted[step])) {
            fail_msg("%s, layout %zu to %zu, step %d: a loss of %.9f, not %.9f", what, from, to,
                     step, got[step], wanted[step]);
        }
    }
}

static void follow_curve(const struct dp_model_spec *model, dp_element element)
{
    struct trial trial = trial_of(model, element);
    double whole[STEPS + 1], losses[STEPS + 1];
    losses_of(&trial, 1, whole);
    const size_t count = TRIAL_UNDER_TSAN ? 2 : DP_ARRAY_LENGTH(layouts);
    for (size_t from = 0; from < count; from++) {
        char directory[TEMPORARY_MAX];
        temporary_make(directory);
        const size_t to = (from + 1) % count;
        save_under(trial, from, directory);
        resume_under(trial, to, directory, losses);
        expect_curve(losses, whole, SAME_CURVE, model->name, from, to);
        temporary_remove(directory);
    }
}

static void any_layout_goes_on_from_another_s_with_the_same_losses(void **state)
{
    (void)state;
    follow_curve(&trial_latent, DP_F32);
    follow_curve(&trial_tied, DP_F32);
}

static void so_it_does_in_bf16(void **state)
{
    (void)state;
    follow_curve(&trial_latent, DP_BF16);
}

// What one precision has saved the other goes on from: near its own curve, and alike wherever it
// runs.
static void change_precision(const struct dp_model_spec *model, dp_element from, dp_element to,
                             bool bf16_moments)
{
    struct trial before = trial_of(model, from), after = trial_of(model, to);
    before.bf16_moments = bf16_moments;
    double whole[STEPS + 1], one[STEPS + 1], other[STEPS + 1];
    losses_of(&before, 1, whole);
    char directory[TEMPORARY_MAX];
    temporary_make(directory);
    save_under(before, 3, directory);
    resume_under(after, 0, directory, one);
    resume_under(after, 4, directory, other);
    expect_curve(other, one, SAME_CURVE, "one precision", 3, 4);
    expect_curve(one, whole, NEAR_CURVE, "another precision", 3, 0);
    assert_true(fabs(one[STEPS] - whole[STEPS]) > 0); // it was another one
    temporary_remove(directory);
}

static void bf16_goes_on_from_fp32_and_back(void **state)
{
    (void)state;
    if (TRIAL_UNDER_TSAN) {
        skip();
    }
    change_precision(&trial_latent, DP_F32, DP_BF16, false);
    change_precision(&trial_latent, DP_BF16, DP_F32, false);
    change_precision(&trial_tied, DP_BF16, DP_F32, true);
}

// A job without biases of routers cannot go on from one with them: tokens would go elsewhere. One
// that keeps them as they are can.
static void biases_of_routers_are_not_lost(void **state)
{
    (void)state;
    struct dp_model_spec frozen = trial_latent, none = trial_latent;
    frozen.bias_update = none.bias_update = 0;
    frozen.biases = DP_BIAS_ROUTER;
    struct trial trial = trial_of(&trial_latent, DP_F32);
    double whole[STEPS + 1], losses[STEPS + 1];
    losses_of(&trial, 1, whole);
    char directory[TEMPORARY_MAX];
    temporary_make(directory);
    save_under(trial, 1, directory);
    trial.model = &frozen;
    resume_under(trial, 2, directory, losses);
    // Its first step is that of one that goes on to move them.
    assert_true(fabs(losses[SAVED + 1] - whole[SAVED + 1]) <= SAME_CURVE * whole[SAVED + 1]);
    trial.model = &none;
    trial.resume = directory;
    struct trial_result result;
    trial_run(&trial, &result);
    assert_int_equal(result.ranks[0].status, DP_INVALID);
    assert_non_null(strstr(result.ranks[0].err.message, "bias_update"));
    trial_result_deinit(&result);
    temporary_remove(directory);
}

// The numbers of samples would stand for others.
static void other_samples_are_refused_with_both_values(void **state)
{
    (void)state;
    struct trial trial = trial_of(&trial_latent, DP_F32);
    trial.holdout = 4;
    char directory[TEMPORARY_MAX];
    temporary_make(directory);
    save_under(trial, 0, directory);
    trial.holdout = 6;
    trial.resume = directory;
    struct trial_result result;
    trial_run(&trial, &result);
    assert_int_equal(result.ranks[0].status, DP_INVALID);
    assert_non_null(strstr(result.ranks[0].err.message, "held-out samples: 4, this job has 6"));
    assert_non_null(strstr(result.ranks[0].err.message, "[data] holdout"));
    trial_result_deinit(&result);
    temporary_remove(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_goes_on_from_another_s_with_the_same_losses),
        cmocka_unit_test(so_it_does_in_bf16),
        cmocka_unit_test(bf16_goes_on_from_fp32_and_back),
        cmocka_unit_test(biases_of_routers_are_not_lost),
        cmocka_unit_test(other_samples_are_refused_with_both_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
