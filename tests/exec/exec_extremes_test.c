// Steps in which one expert rank gets every token and its peers none, and a rank that is sent more
// than its memory holds. Buffers are poisoned: what nobody wrote is NaN.
#include <math.h>

#include "dp/check.h"
#include "dp_test.h"
#include "exec_harness.h"

static const struct {
    const char *schedule;
    int32_t pipeline, expert, data, nodes;
    uint32_t recompute;
    bool alltoall;
} layouts[] = {
    {"dualpipe", 2, 2, 2, 1, 0, true},
    {"dualpipe", 2, 2, 4, 1, DP_RECOMPUTE_FULL, true},
    {"1f1b", 1, 4, 4, 2, 0, true},
    {"gpipe", 2, 2, 2, 1, DP_RECOMPUTE_EXPERTS, false},
};

// Top-1, and the first expert is ahead of all others by `tilt` in every layer.
static struct trial trial_of(struct dp_model_spec *model, double tilt)
{
    struct trial trial = trial_default();
    trial.layers = 4;
    trial.bias_update = 1e-9;
    trial.tilt = tilt;
    trial.steps = TRIAL_UNDER_TSAN ? 2 : 4;
    *model = trial_model(&trial);
    model->top_k = 1;
    trial.model = model;
    return trial;
}

static struct trial spread(struct trial trial, size_t layout)
{
    trial.schedule = layouts[layout].schedule;
    trial.pipeline = layouts[layout].pipeline;
    trial.expert = layouts[layout].expert;
    trial.data = layouts[layout].data;
    trial.nodes = layouts[layout].nodes;
    trial.recompute = layouts[layout].recompute;
    trial.alltoall = layouts[layout].alltoall;
    trial.microbatches /= trial.data;
    return trial;
}

static bool is_all_zero(const struct trial_tensor *tensor)
{
    bool all = true;
    for (int64_t i = 0; i < tensor->count; i++) {
        all = all && tensor->values[i] == 0;
    }
    return all;
}

// The gradients of the first step of a rank; how many are of experts that nobody chose.
static int32_t compare_gradients(const struct trial_rank *got, const struct trial_rank *one)
{
    int32_t idle = 0;
    for (size_t i = 0; i < got->gradients_count; i++) {
        const struct trial_tensor *mine = &got->gradients[i];
        const struct trial_tensor *wanted =
            trial_find(one->gradients, one->gradients_count, mine->name);
        bool is_idle = is_all_zero(wanted);
        if (is_idle ? !is_all_zero(mine) : !(trial_distance(mine, wanted) <= 1e-4)) {
            fail_msg("the gradient of %s is off%s", mine->name,
                     is_idle ? ": it should be zero" : "");
        }
        idle += is_idle && strstr(mine->name, ".experts.") != NULL;
    }
    return idle;
}

static void whole_steps_without_a_token_train_as_one_rank_does(void **state)
{
    (void)state;
    struct dp_model_spec model;
    struct trial alone = trial_of(&model, 10);
    struct trial_result one, many;
    trial_run(&alone, &one);
    trial_expect_ok(&one);
    for (size_t layout = 0; layout < DP_ARRAY_LENGTH(layouts); layout++) {
        struct trial trial = spread(alone, layout);
        int32_t idle = 0;
        trial_run(&trial, &many);
        trial_expect_ok(&many);
        for (int32_t rank = 0; rank < many.world; rank++) {
            const struct trial_rank *got = &many.ranks[rank];
            for (int64_t step = 1; step <= trial.steps; step++) {
                double wanted = one.ranks[0].reports[step].loss;
                assert_true(fabs(got->reports[step].loss - wanted) <= 1e-5 * wanted);
                // All of a layer's tokens are with one of its experts.
                assert_true(got->skews[step] == model.experts);
            }
            idle += compare_gradients(got, &one.ranks[0]);
        }
        assert_true(idle > 0);
        trial_result_deinit(&many);
    }
    trial_result_deinit(&one);
}

static uint64_t limit;

static dp_status open_limited(dp_element element, struct dp_device **ret_device,
                              struct dp_error *err)
{
    dp_status status = dp_device_open_cpu(element, ret_device, err);
    if (status == DP_OK) {
        dp_device_set_limit(*ret_device, limit);
    }
    return status;
}

static void a_rank_that_is_sent_more_than_its_memory_holds_says_so(void **state)
{
    (void)state;
    struct dp_model_spec model;
    struct trial trial = spread(trial_of(&model, 1e-9), 0);
    trial.open_device = open_limited;
    // What the tokens need as long as they are dealt out about evenly.
    bool fits = false;
    for (limit = 1 << 20; !fits; limit += fits ? 0 : limit / 16) {
        struct trial_result result;
        trial_run(&trial, &result);
        fits = true;
        for (int32_t rank = 0; rank < result.world; rank++) {
            fits = fits && result.ranks[rank].status == DP_OK;
        }
        trial_result_deinit(&result);
    }
    trial.tilt = 10;
    struct trial_result result;
    int32_t full = 0;
    trial_run(&trial, &result);
    for (int32_t rank = 0; rank < result.world; rank++) {
        const struct trial_rank *got = &result.ranks[rank];
        bool is_full = got->status == DP_TOO_LARGE;
        if (got->step_done == trial.steps || (!is_full && got->status != DP_UNAVAILABLE) ||
            got->failure.action[0] == '\0' ||
            (is_full && strstr(got->err.message, "bytes") == NULL)) {
            fail_msg("rank %d, after step %d, action \"%s\": %s %s", rank, (int)got->step_done,
                     got->failure.action, dp_status_name(got->status), got->err.message);
        }
        full += is_full;
    }
    assert_true(full > 0);
    trial_result_deinit(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_steps_without_a_token_train_as_one_rank_does),
        cmocka_unit_test(a_rank_that_is_sent_more_than_its_memory_holds_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
