// State moves from ranks that hold it to ranks of another layout, without a file, and the training
// goes on as if it had never stopped; whatever moment of a step a rank was lost in.
#include "dp_test.h"

#include <math.h>
#include <string.h>

#include "dp/check.h"
#include "dp/rand.h"
#include "exec_hold.h"

#define LAYERS 4
#define HELD 3
#define STEPS 6
#define SAME_CURVE 1e-4

// Latent attention, sigmoid scores with a bias that moves far, multi-token prediction.
static const struct dp_model_spec latent = {.name = "latent",
                                            .layers = LAYERS,
                                            .dense_layers = 1,
                                            .hidden = 32,
                                            .heads = 4,
                                            .kv_heads = 4,
                                            .head_dim = 12,
                                            .mla_q_rank = 16,
                                            .mla_kv_rank = 16,
                                            .mla_nope_dim = 8,
                                            .mla_rope_dim = 4,
                                            .mla_v_dim = 8,
                                            .ffn = 64,
                                            .experts = 4,
                                            .top_k = 2,
                                            .shared_experts = 1,
                                            .expert_ffn = 24,
                                            .router = DP_MODEL_SIGMOID,
                                            .route_scale = 2.5,
                                            .vocabulary = 256,
                                            .mtp_layers = 1,
                                            .rope_theta = 10000,
                                            .norm_eps = 1e-6,
                                            .bias_update = 0.05};
// One matrix at both ends of the model.
static const struct dp_model_spec tied = {.name = "tied",
                                          .layers = LAYERS,
                                          .dense_layers = 1,
                                          .hidden = 32,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = 8,
                                          .ffn = 64,
                                          .experts = 4,
                                          .top_k = 2,
                                          .shared_experts = 1,
                                          .expert_ffn = 24,
                                          .vocabulary = 256,
                                          .rope_theta = 10000,
                                          .norm_eps = 1e-6,
                                          .tied_embedding = 1};

struct layout {
    const char *schedule;
    int32_t pipeline, expert, data;
    dp_shard shard;
    bool alltoall;
};

static const struct layout layouts[] = {
    {"gpipe", 1, 1, 1, DP_SHARD_NONE, false},       {"dualpipev", 2, 1, 2, DP_SHARD_ZERO1, false},
    {"1f1b", 4, 1, 1, DP_SHARD_NONE, false},        {"1f1b", 2, 2, 4, DP_SHARD_ZERO1, true},
    {"dualpipe", 2, 2, 2, DP_SHARD_NONE, false},    {"gpipe", 1, 4, 4, DP_SHARD_ZERO1, true},
    {"interleaved", 2, 1, 2, DP_SHARD_NONE, false},
};

static void take_layout(struct trial *trial, const struct layout *layout)
{
    trial->schedule = layout->schedule;
    trial->pipeline = layout->pipeline;
    trial->expert = layout->expert;
    trial->data = layout->data;
    trial->shard = layout->shard;
    trial->alltoall = layout->alltoall;
    trial->microbatches = 16 / trial->data;
}

static struct trial trial_of(const struct dp_model_spec *model, const struct layout *layout,
                             dp_element element)
{
    struct trial trial = trial_default();
    trial.model = model;
    trial.layers = LAYERS;
    trial.element = element;
    trial.steps = STEPS;
    take_layout(&trial, layout);
    return trial;
}

// Runs it from what the sources hold; the losses of the steps it ran.
static void go_on(struct trial trial, const struct dp_state_address *sources, int32_t count,
                  int64_t step, struct trial_result *ret_result)
{
    struct takers takers = {.sources = sources, .count = count, .step = step};
    takers_set(&takers, &trial);
    trial_run(&trial, ret_result);
}

static void expect_curve(const struct trial_result *got, const struct trial_result *whole,
                         int64_t after, double tolerance, const char *what)
{
    trial_expect_ok(got);
    assert_int_equal(got->ranks[0].step_first, after + 1);
    for (int64_t step = after + 1; step <= STEPS; step++) {
        const double wanted = whole->ranks[0].reports[step].loss;
        const double loss = got->ranks[0].reports[step].loss;
        if (!(fabs(loss - wanted) <= tolerance * wanted)) {
            fail_msg("%s, step %lld: a loss of %.9f, not %.9f", what, (long long)step, loss,
                     wanted);
        }
    }
}

// All ranks hold after a step; another layout goes on.
static void move(struct trial before, struct trial after, const struct trial_result *whole,
                 double tolerance, const char *what)
{
    struct holders holders;
    struct dp_state_address sources[TRIAL_RANKS_MAX];
    struct trial_result result;
    before.stop_after = HELD;
    holders_begin(&holders, &before);
    assert_int_equal(holders_settle(&holders), HELD);
    const int32_t count = holders_sources(&holders, sources);
    go_on(after, sources, count, HELD, &result);
    expect_curve(&result, whole, HELD, tolerance, what);
    trial_result_deinit(&result);
    holders_end(&holders);
}

static void expect_same_weights(const struct trial_result *got, const struct trial_result *wanted)
{
    for (int32_t r = 0; r < got->world; r++) {
        const struct trial_rank *a = &got->ranks[r], *b = &wanted->ranks[r];
        assert_int_equal(a->weights_count, b->weights_count);
        for (size_t t = 0; t < a->weights_count; t++) {
            assert_string_equal(a->weights[t].name, b->weights[t].name);
            assert_memory_equal(a->weights[t].values, b->weights[t].values,
                                (size_t)a->weights[t].count * sizeof(double));
        }
    }
}

static void follow_curve(const struct dp_model_spec *model, dp_element element, bool bf16_moments)
{
    struct trial one = trial_of(model, &layouts[0], element);
    struct trial_result whole;
    one.bf16_moments = bf16_moments;
    trial_run(&one, &whole);
    trial_expect_ok(&whole);
    const size_t count = TRIAL_UNDER_TSAN ? 2 : DP_ARRAY_LENGTH(layouts);
    for (size_t from = 0; from < count; from++) {
        struct trial before = trial_of(model, &layouts[from], element);
        struct trial after = trial_of(model, &layouts[(from + 1) % count], element);
        char what[64];
        before.bf16_moments = after.bf16_moments = bf16_moments;
        snprintf(what, sizeof what, "%s from layout %zu", model->name, from);
        move(before, after, &whole, SAME_CURVE, what);
    }
    trial_result_deinit(&whole);
}

static void any_layout_goes_on_with_what_another_holds(void **state)
{
    (void)state;
    follow_curve(&latent, DP_F32, false);
    follow_curve(&tied, DP_F32, false);
}

static void so_it_does_in_bf16_and_with_moments_in_bf16(void **state)
{
    (void)state;
    follow_curve(&latent, DP_BF16, false);
    follow_curve(&tied, DP_BF16, true);
}

// Of a model whose stages do not all have as many layers.
static void the_same_layout_goes_on_with_the_same_bits(void **state)
{
    (void)state;
    static const size_t same[] = {1, 2, 4, 6};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(same); i++) {
        struct trial trial = trial_of(i % 2 == 0 ? &latent : &tied, &layouts[same[i]], DP_F32);
        struct trial_result whole, result;
        struct holders holders;
        struct dp_state_address sources[TRIAL_RANKS_MAX];
        trial_run(&trial, &whole);
        trial_expect_ok(&whole);
        struct trial before = trial;
        before.stop_after = HELD;
        holders_begin(&holders, &before);
        const int32_t count = holders_sources(&holders, sources);
        go_on(trial, sources, count, HELD, &result);
        expect_curve(&result, &whole, HELD, 0, "the same layout");
        expect_same_weights(&result, &whole);
        trial_result_deinit(&result);
        trial_result_deinit(&whole);
        holders_end(&holders);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_goes_on_with_what_another_holds),
        cmocka_unit_test(so_it_does_in_bf16_and_with_moments_in_bf16),
        cmocka_unit_test(the_same_layout_goes_on_with_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
