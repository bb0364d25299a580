// The model family through the trainer: every layout trains it alike, and precision costs little.
#include "dp_test.h"

#include <math.h>
#include <string.h>

#include "dp/check.h"
#include "exec_harness.h"
#include "temporary.h"

#define LAYERS TRIAL_LAYERS
#define CURVE_STEPS 50

static struct dp_model_spec tied_model(void)
{
    return (struct dp_model_spec){.name = "tied",
                                  .layers = LAYERS,
                                  .dense_layers = LAYERS,
                                  .hidden = 32,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 8,
                                  .ffn = 64,
                                  .vocabulary = 256,
                                  .rope_theta = 10000,
                                  .norm_eps = 1e-6,
                                  .tied_embedding = 1,
                                  .qk_norm = 1,
                                  .window = 12,
                                  .window_layers = 2,
                                  .biases = DP_BIAS_QKV};
}

static struct dp_model_spec gated_model(void)
{
    struct dp_model_spec model = trial_latent_groups();
    model.mla_q_rank = model.mla_kv_rank = 0;
    model.head_dim = 8;
    model.kv_heads = 2;
    model.expert_groups = model.top_groups = 0;
    model.router = DP_MODEL_SOFTMAX;
    model.raw_weights = 1;
    model.shared_gate = 1;
    model.tied_embedding = 1;
    return model;
}

static struct trial trial_of(const struct dp_model_spec *model)
{
    struct trial trial = trial_default();
    trial.model = model;
    trial.layers = LAYERS;
    trial.element = DP_F64;
    trial.steps = TRIAL_UNDER_TSAN ? 2 : 6;
    return trial;
}

static void expect_same_curve(const struct trial *trial, const struct trial_result *wanted)
{
    struct trial_result got;
    trial_run(trial, &got);
    trial_expect_ok(&got);
    for (int64_t step = 1; step <= trial->steps; step++) {
        const double a = got.ranks[0].reports[step].loss, b = wanted->ranks[0].reports[step].loss;
        if (!(fabs(a - b) <= 1e-9 * b)) {
            fail_msg("%s of %s, pipeline %d, expert %d: step %d has a loss of %.12f, not %.12f",
                     trial->schedule, trial->model->name, trial->pipeline, trial->expert, (int)step,
                     a, b);
        }
    }
    trial_result_deinit(&got);
}

static void check_layouts(const struct dp_model_spec *model)
{
    static const struct {
        const char *schedule;
        int32_t pipeline, expert, data;
        bool alltoall;
        dp_shard shard;
    } layouts[] = {
        {"1f1b", 2, 1, 1, false, DP_SHARD_NONE},      {"dualpipev", 2, 1, 2, false, DP_SHARD_ZERO1},
        {"dualpipe", 2, 1, 1, false, DP_SHARD_NONE},  {"1f1b", 2, 2, 2, true, DP_SHARD_ZERO1},
        {"dualpipev", 2, 2, 2, true, DP_SHARD_ZERO1},
    };
    struct trial trial = trial_of(model);
    struct trial_result whole;
    trial_run(&trial, &whole);
    trial_expect_ok(&whole);
    assert_true(whole.ranks[0].reports[trial.steps].loss < whole.ranks[0].reports[1].loss);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(layouts); i++) {
        if (layouts[i].expert > 1 && model->experts == 0) {
            continue;
        }
        trial.schedule = layouts[i].schedule;
        trial.pipeline = layouts[i].pipeline;
        trial.expert = layouts[i].expert;
        trial.data = layouts[i].data;
        trial.alltoall = layouts[i].alltoall;
        trial.shard = layouts[i].shard;
        trial.microbatches = 16 / trial.data;
        expect_same_curve(&trial, &whole);
    }
    trial_result_deinit(&whole);
}

static void latent_models_train_alike_under_every_layout(void **state)
{
    (void)state;
    const struct dp_model_spec model = trial_latent_groups();
    check_layouts(&model);
}

// The matrix that both ends have stays one: its gradient is summed over both.
static void tied_models_train_alike_under_every_layout(void **state)
{
    (void)state;
    const struct dp_model_spec tied = tied_model(), gated = gated_model();
    check_layouts(&tied);
    check_layouts(&gated);
}

// Whatever is computed again, or left on the device by no choice, the bits are the same.
static void what_is_computed_again_changes_no_bit(void **state)
{
    (void)state;
    const struct dp_model_spec models[] = {trial_latent_groups(), gated_model()};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(models); i++) {
        struct trial trial = trial_of(&models[i]);
        struct trial_result kept, again;
        trial.element = DP_F32;
        trial.steps = 2;
        trial_run(&trial, &kept);
        trial_expect_ok(&kept);
        static const uint32_t choices[] = {DP_RECOMPUTE_UP,
                                           DP_RECOMPUTE_UP | DP_RECOMPUTE_NORM |
                                               DP_RECOMPUTE_EXPERTS | DP_RECOMPUTE_ATTENTION,
                                           DP_RECOMPUTE_FULL};
        for (size_t c = 0; c < DP_ARRAY_LENGTH(choices); c++) {
            trial.recompute = choices[c];
            trial.offload = c == 1 ? DP_OFFLOAD_ATTENTION | DP_OFFLOAD_INPUTS : 0;
            trial_run(&trial, &again);
            trial_expect_ok(&again);
            assert_true(again.ranks[0].reports[2].loss == kept.ranks[0].reports[2].loss);
            assert_true(again.ranks[0].reports[2].grad_norm == kept.ranks[0].reports[2].grad_norm);
            trial_result_deinit(&again);
        }
        trial_result_deinit(&kept);
    }
}

// The worst step's loss against that of fp32, as a share of it.
static double curve_distance(struct trial trial, const struct trial_result *wanted,
                             dp_element element, bool fp8)
{
    struct trial_result got;
    double worst = 0;
    trial.element = element;
    trial.fp8 = fp8;
    trial_run(&trial, &got);
    trial_expect_ok(&got);
    for (int64_t step = 1; step <= trial.steps; step++) {
        const double b = wanted->ranks[0].reports[step].loss;
        const double off = fabs(got.ranks[0].reports[step].loss - b) / b;
        worst = off <= worst ? worst : off; // NaN as well
    }
    trial_result_deinit(&got);
    return worst;
}

static void curves_of_bf16_and_fp8_stay_near_that_of_fp32(void **state)
{
    (void)state;
    if (TRIAL_UNDER_TSAN) {
        skip();
    }
    const struct dp_model_spec models[] = {trial_latent_groups(), tied_model()};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(models); i++) {
        struct trial trial = trial_of(&models[i]);
        struct trial_result wanted;
        trial.element = DP_F32;
        trial.steps = CURVE_STEPS;
        trial_run(&trial, &wanted);
        trial_expect_ok(&wanted);
        assert_true(wanted.ranks[0].reports[CURVE_STEPS].loss <
                    0.9 * wanted.ranks[0].reports[1].loss);
        const double bf16 = curve_distance(trial, &wanted, DP_BF16, false);
        const double fp8 = curve_distance(trial, &wanted, DP_BF16, true);
        print_message("%s, 50 steps, loss %.3f to %.3f: bf16 within %.3f %%, fp8 %.3f %%\n",
                      models[i].name, wanted.ranks[0].reports[1].loss,
                      wanted.ranks[0].reports[CURVE_STEPS].loss, 100 * bf16, 100 * fp8);
        assert_true(bf16 <= 0.01 && fp8 <= 0.02);
        assert_true(bf16 > 0 && fp8 > bf16); // they were in use
        trial_result_deinit(&wanted);
    }
}

// Shared matrices are written once, and both ends read them again; so are their moments, whole or
// in parts. Routers' biases, that of multi-token prediction too, decide: of two groups, each step
// takes the other one, so that after an odd number of steps there is a bias to lose.
static void a_run_goes_on_from_its_checkpoint_bit_for_bit(void **state)
{
    (void)state;
    struct dp_model_spec models[] = {trial_latent_groups(), tied_model()};
    models[0].bias_update = 0.1;
    for (size_t i = 0; i < 2 * DP_ARRAY_LENGTH(models); i++) {
        struct trial trial = trial_of(&models[i / 2]);
        struct trial_result whole, part;
        char directory[TEMPORARY_MAX];
        temporary_make(directory);
        trial.schedule = "1f1b";
        trial.pipeline = 2;
        trial.steps = 5;
        trial.shard = i % 2 == 0 ? DP_SHARD_NONE : DP_SHARD_ZERO1;
        trial_run(&trial, &whole);
        trial_expect_ok(&whole);
        trial.stop_after = 3;
        trial.save = directory;
        trial_run(&trial, &part);
        trial_expect_ok(&part);
        trial_result_deinit(&part);
        trial.stop_after = 0;
        trial.save = NULL;
        trial.resume = directory;
        trial_run(&trial, &part);
        trial_expect_ok(&part);
        assert_int_equal(part.ranks[0].step_first, 4);
        assert_true(part.ranks[0].reports[5].loss == whole.ranks[0].reports[5].loss);
        assert_true(part.ranks[0].reports[5].grad_norm == whole.ranks[0].reports[5].grad_norm);
        trial_result_deinit(&part);
        trial_result_deinit(&whole);
        temporary_remove(directory);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latent_models_train_alike_under_every_layout),
        cmocka_unit_test(tied_models_train_alike_under_every_layout),
        cmocka_unit_test(what_is_computed_again_changes_no_bit),
        cmocka_unit_test(a_run_goes_on_from_its_checkpoint_bit_for_bit),
        cmocka_unit_test(curves_of_bf16_and_fp8_stay_near_that_of_fp32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
