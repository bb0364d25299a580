// The same numbers whatever the layout: every schedule and every (EP, D) against one rank.
#include <math.h>

#include "auto_costs.h"
#include "dp/auto.h"
#include "dp/check.h"
#include "dp_test.h"
#include "exec_harness.h"

struct layout {
    const char *schedule;
    int32_t pipeline, expert, data, samples;
    int32_t virtual_stages;
    int32_t microbatches;    // 0 = 16 samples a step in all
    int32_t layers;          // 0 = 8
    const struct made *made; // `schedule` is then just what to call it
    const struct dp_schedule *given;
};

static const struct made loop = {MADE_LOOP, .chunks = 2, .splits = 50, .live = 6, .seed = 1};
static const struct made there_and_back = {MADE_WAVES,  .chunks = 2, .splits = 100,
                                           .pairs = 30, .live = 5,   .seed = 2};
static const struct made waves = {MADE_WAVES,  .chunks = 4, .splits = 50,
                                  .pairs = 50, .live = 9,   .seed = 3};
static const struct made anywhere = {MADE_ANYWHERE, .chunks = 2, .splits = 30,
                                     .pairs = 50,   .live = 8,   .seed = 4};
static const struct made both_ways = {MADE_BOTH,   .chunks = 1, .splits = 50,
                                      .pairs = 50, .live = 5,   .seed = 5};
static const struct made both_ways_twice = {MADE_BOTH,   .chunks = 2, .splits = 50,
                                            .pairs = 50, .live = 9,   .seed = 7};
static const struct made many = {MADE_ANYWHERE, .chunks = 16, .splits = 50,
                                 .pairs = 30,   .live = 40,   .seed = 6};

static const struct layout layouts[] = {
    // Every family of the table is also tried on four ranks.
    {.schedule = "1f1b", 4, 1, 1, 2},
    {.schedule = "gpipe", 2, 1, 2, 2},
    {.schedule = "1f1b", 4, 2, 2, 1},
    {.schedule = "dualpipe", 4, 1, 2, 1},
    {.schedule = "dualpipe", 4, 2, 2, 1},
    {.schedule = "dualpipev", 4, 1, 2, 1},
    {.schedule = "dualpipev", 4, 2, 2, 1},
    {.schedule = "gpipe", 2, 2, 2, 1},
    {.schedule = "1f1b", 2, 1, 2, 1},
    {.schedule = "gpipe", 1, 2, 2, 1},
    {.schedule = "dualpipe", 2, 2, 4, 1},
    {.schedule = "interleaved", 2, 2, 2, 1, .virtual_stages = 4},
    {.schedule = "interleaved", 3, 1, 1, 1, .microbatches = 7},
    {.schedule = "interleaved-zb", 3, 1, 1, 1, .microbatches = 7},
    {.schedule = "interleaved", 1, 1, 1, 1, .virtual_stages = 16, .microbatches = 4, .layers = 16},
    {.schedule = "hanayo", 2, 2, 2, 1, .virtual_stages = 4},
    {.schedule = "zb-v", 4, 2, 2, 1},
    {.schedule = "zb-h1", 4, 2, 2, 1},
    {.schedule = "v-half", 3, 1, 1, 1, .microbatches = 7},
    {.schedule = "chimera", 4, 2, 2, 1},
    {.schedule = "chimera", 4, 1, 1, 1, .microbatches = 7},
    // Any valid schedule is one that auto may find.
    {"a loop", 4, 2, 2, 1, .made = &loop},
    {"a V", 4, 1, 1, 1, .made = &there_and_back},
    {"two waves", 2, 2, 2, 1, .made = &waves},
    {"no pattern", 4, 1, 1, 1, .made = &anywhere},
    {"both ways", 4, 2, 2, 1, .made = &both_ways},
    {"both ways", 3, 1, 1, 1, .made = &both_ways},
    {"both ways", 3, 2, 2, 1, .made = &both_ways_twice},
    {"both ways", 3, 1, 1, 1, .microbatches = 7, .made = &both_ways},
    {"16 stages on a rank", 1, 1, 1, 1, .microbatches = 4, .layers = 16, .made = &many},
};

static struct trial trial_of(const struct layout *layout)
{
    struct trial trial = trial_default();
    trial.schedule = layout->schedule;
    trial.made = layout->made;
    trial.given = layout->given;
    trial.virtual_stages = layout->virtual_stages;
    trial.pipeline = layout->pipeline;
    trial.expert = layout->expert;
    trial.data = layout->data;
    trial.micro_batch_size = layout->samples;
    trial.microbatches =
        layout->microbatches > 0 ? layout->microbatches : 16 / (layout->data * layout->samples);
    trial.layers = layout->layers > 0 ? layout->layers : trial.layers;
    return trial;
}

// What one rank makes of the same model and the same samples.
struct reference {
    int32_t layers;
    int64_t batch;
    struct trial_result result;
};

#define REFERENCES_MAX 8

struct references {
    struct reference items[REFERENCES_MAX];
    size_t count;
};

static const struct trial_result *reference_of(struct references *references,
                                               const struct trial *trial)
{
    int64_t batch = trial_global_batch(trial);
    for (size_t i = 0; i < references->count; i++) {
        if (references->items[i].layers == trial->layers && references->items[i].batch == batch) {
            return &references->items[i].result;
        }
    }
    DP_CHECK(references->count < REFERENCES_MAX);
    struct reference *reference = &references->items[references->count++];
    *reference = (struct reference){.layers = trial->layers, .batch = batch};
    struct trial one = trial_default();
    one.layers = trial->layers;
    one.microbatches = (int32_t)batch;
    one.element = trial->element;
    one.steps = trial->steps;
    trial_run(&one, &reference->result);
    trial_expect_ok(&reference->result);
    const struct dp_trainer_report *reports = reference->result.ranks[0].reports;
    assert_true(reports[trial->steps].loss < reports[1].loss);
    return &reference->result;
}

static void references_deinit(struct references *references)
{
    for (size_t i = 0; i < references->count; i++) {
        trial_result_deinit(&references->items[i].result);
    }
}

static void compare_losses(const struct trial_result *reference, const struct trial_result *result,
                           const struct layout *layout, int64_t steps, double tolerance)
{
    for (int32_t rank = 0; rank < result->world; rank++) {
        for (int64_t step = 1; step <= steps; step++) {
            double wanted = reference->ranks[0].reports[step].loss;
            double got = result->ranks[rank].reports[step].loss;
            if (!(fabs(got - wanted) <= tolerance * fabs(wanted))) {
                fail_msg("%s P%d EP%d D%d rank %d step %d: loss %.9g, one rank has %.9g",
                         layout->schedule, layout->pipeline, layout->expert, layout->data, rank,
                         (int)step, got, wanted);
            }
        }
    }
}

static void compare_gradients(const struct trial_result *reference,
                              const struct trial_result *result, const struct layout *layout,
                              double tolerance)
{
    const struct trial_rank *one = &reference->ranks[0];
    size_t seen = 0;
    for (int32_t rank = 0; rank < result->world; rank++) {
        for (size_t i = 0; i < result->ranks[rank].gradients_count; i++) {
            const struct trial_tensor *got = &result->ranks[rank].gradients[i];
            double distance =
                trial_distance(got, trial_find(one->gradients, one->gradients_count, got->name));
            if (!(distance <= tolerance)) {
                fail_msg("%s P%d EP%d D%d rank %d: gradient of %s is off by %.3g", layout->schedule,
                         layout->pipeline, layout->expert, layout->data, rank, got->name, distance);
            }
            seen++;
        }
    }
    assert_true(seen >= one->gradients_count);
}

struct measure {
    dp_element element;
    int64_t steps;
    double loss_tolerance, gradient_tolerance;
};

static void compare_layout(const struct layout *layout, const struct measure *measure,
                           struct references *references)
{
    struct trial trial = trial_of(layout);
    trial.element = measure->element;
    trial.steps = measure->steps;
    const struct trial_result *reference = reference_of(references, &trial);
    struct trial_result result;
    trial_run(&trial, &result);
    trial_expect_ok(&result);
    compare_losses(reference, &result, layout, measure->steps, measure->loss_tolerance);
    compare_gradients(reference, &result, layout, measure->gradient_tolerance);
    trial_result_deinit(&result);
}

static void compare_all(const struct measure *measure)
{
    struct references references = {0};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(layouts); i++) {
        compare_layout(&layouts[i], measure, &references);
    }
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    for (size_t i = 0; i < count; i++) {
        struct layout layout = {.schedule = families[i].name, 4, 1, 1, 1};
        compare_layout(&layout, measure, &references);
    }
    references_deinit(&references);
}

static void losses_and_gradients_are_those_of_one_rank(void **state)
{
    (void)state;
    compare_all(&(struct measure){DP_F32, TRIAL_UNDER_TSAN ? 2 : 20, 1e-5, 1e-4});
}

// One rank is slow, pairs gain, and no more stages than the model has layers.
static dp_status uneven_costs(void *context, const struct dp_schedule *shape,
                              struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                              struct dp_error *err)
{
    if (shape->stages > 8) {
        return dp_fail(err, DP_INVALID, "%d stages of 8 layers", shape->stages);
    }
    struct uniform_model uniform = {
        .stage = {.f = 1, .b = 2, .i = 1.1, .w = 0.9, .fb = 2.6, .fi = 1.8},
        .activation_bytes = 8 << 10,
        .released_at_i_bytes = 4 << 10};
    uniform.stage.hop.latency = 0.05;
    (void)context;
    dp_status status = uniform_costs(&uniform, shape, ret_costs, ret_static_bytes, err);
    for (int32_t slot = 0; status == DP_OK && slot < ret_costs->slots; slot++) {
        for (int kind = 0; kind < DP_ACTION_FB; kind++) {
            dp_sim_chunk_at(ret_costs, shape->pipeline - 1, slot)->seconds[kind] *= 1.5;
        }
    }
    return status;
}

static void what_auto_finds_trains_as_one_rank_does(void **state)
{
    (void)state;
    static const struct {
        struct layout layout;
        unsigned placements;
    } cases[] = {
        {{.schedule = "auto", 4, 1, 1, 1}, 0},
        {{.schedule = "auto, V", 4, 2, 2, 1}, DP_AUTO_VEE},
        {{.schedule = "auto, waves", 2, 1, 1, 1}, DP_AUTO_WAVES},
        {{.schedule = "auto, both ways", 3, 1, 1, 1, .microbatches = 7}, DP_AUTO_BIDIRECTIONAL},
    };
    const struct measure measure = {DP_F32, TRIAL_UNDER_TSAN ? 2 : 20, 1e-5, 1e-4};
    struct references references = {0};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        struct layout layout = cases[i].layout;
        struct trial trial = trial_of(&layout);
        struct dp_auto_problem problem = {.pipeline = trial.pipeline,
                                          .microbatches = trial.microbatches,
                                          .costs = uneven_costs,
                                          .placements = cases[i].placements};
        struct dp_auto_options options = {.seed = 1, .moves_max = 200};
        struct dp_auto_result found;
        struct dp_error err;
        assert_ok(dp_auto_search(&problem, &options, &found, &err), &err);
        layout.given = &found.schedule;
        compare_layout(&layout, &measure, &references);
        dp_auto_result_deinit(&found);
    }
    references_deinit(&references);
}

static void in_double_they_agree_to_the_last_digits(void **state)
{
    (void)state;
    if (TRIAL_UNDER_TSAN) {
        skip();
    }
    compare_all(&(struct measure){DP_F64, 4, 1e-12, 1e-10});
}

// Bit for bit the same weights after some steps.
static void expect_same_weights(const struct trial_result *a, const struct trial_result *b)
{
    for (int32_t rank = 0; rank < a->world; rank++) {
        assert_int_equal(a->ranks[rank].weights_count, b->ranks[rank].weights_count);
        for (size_t i = 0; i < a->ranks[rank].weights_count; i++) {
            const struct trial_tensor *left = &a->ranks[rank].weights[i];
            const struct trial_tensor *right = &b->ranks[rank].weights[i];
            assert_string_equal(left->name, right->name);
            assert_memory_equal(left->values, right->values, (size_t)left->count * sizeof(double));
        }
    }
}

static void an_interleaved_pair_is_forward_then_backward_bit_for_bit(void **state)
{
    (void)state;
    static const struct layout pairs[] = {{.schedule = "dualpipe", 4, 1, 1, 1},
                                          {.schedule = "dualpipe", 2, 2, 2, 1},
                                          {.schedule = "dualpipev", 4, 1, 1, 1}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(pairs); i++) {
        struct trial trial = trial_of(&pairs[i]);
        trial.steps = 3;
        struct trial_result overlapped, sequential;
        trial_run(&trial, &overlapped);
        trial.no_overlap = true;
        trial_run(&trial, &sequential);
        trial_expect_ok(&overlapped);
        trial_expect_ok(&sequential);
        expect_same_weights(&overlapped, &sequential);
        trial_result_deinit(&overlapped);
        trial_result_deinit(&sequential);
    }
}

static void tcp_and_late_messages_change_no_bit(void **state)
{
    (void)state;
    struct trial trial = trial_of(&(struct layout){.schedule = "dualpipe", 2, 2, 2, 1});
    trial.steps = 2;
    struct trial_result loopback, tcp;
    trial_run(&trial, &loopback);
    trial.tcp = true;
    trial.delay_us = 200;
    trial_run(&trial, &tcp);
    trial_expect_ok(&loopback);
    trial_expect_ok(&tcp);
    expect_same_weights(&loopback, &tcp);
    trial_result_deinit(&loopback);
    trial_result_deinit(&tcp);
}

// Messages that overtake each other, slow links and links that stall.
static void slow_links_change_no_bit(void **state)
{
    (void)state;
    static const struct layout some[] = {
        {.schedule = "1f1b", 4, 1, 1, 1},
        {.schedule = "dualpipe", 4, 2, 2, 1},
        {.schedule = "dualpipev", 2, 1, 2, 1},
        {"two waves", 2, 2, 2, 1, .made = &waves},
        {"both ways", 3, 2, 2, 1, .made = &both_ways_twice},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(some); i++) {
        struct slow_link link = {.seed = i,
                                 .delay_us_max = 1000,
                                 .bytes_per_second = 50e6,
                                 .stall_one_in = 100,
                                 .stall_us = 5000};
        struct trial trial = trial_of(&some[i]);
        trial.steps = 2;
        struct trial_result loopback, slow;
        trial_run(&trial, &loopback);
        trial.slow = &link;
        trial_run(&trial, &slow);
        trial_expect_ok(&loopback);
        trial_expect_ok(&slow);
        expect_same_weights(&loopback, &slow);
        trial_result_deinit(&loopback);
        trial_result_deinit(&slow);
    }
}

static void copies_of_a_stage_stay_alike(void **state)
{
    (void)state;
    struct trial trial = trial_of(&(struct layout){.schedule = "dualpipe", 4, 2, 2, 1});
    trial.steps = 3;
    struct trial_result result;
    trial_run(&trial, &result);
    trial_expect_ok(&result);
    for (int32_t rank = 1; rank < result.world; rank++) {
        for (size_t i = 0; i < result.ranks[rank].weights_count; i++) {
            const struct trial_tensor *mine = &result.ranks[rank].weights[i];
            for (int32_t other = 0; other < rank; other++) {
                for (size_t k = 0; k < result.ranks[other].weights_count; k++) {
                    const struct trial_tensor *theirs = &result.ranks[other].weights[k];
                    if (strcmp(mine->name, theirs->name) == 0) {
                        assert_memory_equal(mine->values, theirs->values,
                                            (size_t)mine->count * sizeof(double));
                    }
                }
            }
        }
    }
    trial_result_deinit(&result);
}

static void evaluation_does_not_depend_on_the_layout(void **state)
{
    (void)state;
    struct trial trial = trial_default();
    trial.steps = 2;
    trial.evaluate = true;
    struct trial_result reference;
    trial_run(&trial, &reference);
    trial_expect_ok(&reference);
    assert_int_equal(reference.ranks[0].evaluated_tokens, 7 * TRIAL_SEQUENCE);
    static const struct layout some[] = {{.schedule = "1f1b", 4, 1, 1, 2},
                                         {.schedule = "dualpipe", 4, 1, 1, 1},
                                         {.schedule = "dualpipev", 4, 1, 1, 2},
                                         {.schedule = "interleaved", 4, 1, 1, 1},
                                         {.schedule = "hanayo", 2, 1, 1, 2, .virtual_stages = 4},
                                         {"no pattern", 4, 1, 1, 1, .made = &anywhere},
                                         {"both ways", 3, 1, 1, 1, .made = &both_ways}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(some); i++) {
        trial = trial_of(&some[i]);
        trial.steps = 2;
        trial.evaluate = true;
        struct trial_result result;
        trial_run(&trial, &result);
        trial_expect_ok(&result);
        for (int32_t rank = 0; rank < result.world; rank++) {
            assert_int_equal(result.ranks[rank].evaluated_tokens, 7 * TRIAL_SEQUENCE);
            assert_true(
                fabs(result.ranks[rank].evaluated_loss - reference.ranks[0].evaluated_loss) < 1e-5);
        }
        trial_result_deinit(&result);
    }
    trial_result_deinit(&reference);
}

// Samples left over, and replicas that have none of their own, change nothing.
static void replicas_evaluate_all_that_is_held_out(void **state)
{
    (void)state;
    static const struct {
        struct layout layout;
        int64_t holdout;
        bool alltoall;
    } cases[] = {
        {{.schedule = "dualpipe", 2, 2, 2, 1}, 7, false},
        {{.schedule = "gpipe", 1, 4, 4, 2}, 9, true},
        {{.schedule = "gpipe", 1, 4, 4, 1}, 3, false},
        {{.schedule = "1f1b", 2, 2, 4, 1}, 1, true},
        {{.schedule = "1f1b", 2, 1, 4, 2}, 5, false},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        struct trial one = trial_default();
        struct trial trial = trial_of(&cases[i].layout);
        one.steps = trial.steps = 1;
        one.evaluate = trial.evaluate = true;
        one.holdout = trial.holdout = cases[i].holdout;
        trial.alltoall = cases[i].alltoall;
        struct trial_result wanted, result;
        trial_run(&one, &wanted);
        trial_run(&trial, &result);
        trial_expect_ok(&wanted);
        trial_expect_ok(&result);
        for (int32_t rank = 0; rank < result.world; rank++) {
            assert_int_equal(result.ranks[rank].evaluated_tokens,
                             cases[i].holdout * TRIAL_SEQUENCE);
            assert_true(fabs(result.ranks[rank].evaluated_loss - wanted.ranks[0].evaluated_loss) <
                        1e-5);
        }
        trial_result_deinit(&wanted);
        trial_result_deinit(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_gradients_are_those_of_one_rank),
        cmocka_unit_test(what_auto_finds_trains_as_one_rank_does),
        cmocka_unit_test(in_double_they_agree_to_the_last_digits),
        cmocka_unit_test(an_interleaved_pair_is_forward_then_backward_bit_for_bit),
        cmocka_unit_test(tcp_and_late_messages_change_no_bit),
        cmocka_unit_test(slow_links_change_no_bit),
        cmocka_unit_test(copies_of_a_stage_stay_alike),
        cmocka_unit_test(evaluation_does_not_depend_on_the_layout),
        cmocka_unit_test(replicas_evaluate_all_that_is_held_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
