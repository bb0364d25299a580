// What runs teach, and what must teach nothing.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dp/cleanup.h"
#include "dp/correction.h"
#include "dp_test.h"

enum { RANKS = 4 };

struct run {
    struct dp_run_facts facts;
    struct dp_part_times predicted[RANKS], measured[RANKS];
};

// Four ranks; compute took 1.2 times what was predicted, the optimizer half of it.
static void steady_run(struct run *run)
{
    memset(run, 0, sizeof *run);
    run->facts = (struct dp_run_facts){.job = "job-7",
                                       .completed = true,
                                       .steps = 40,
                                       .predicted_step_s = 1.0,
                                       .measured_step_s = 1.17,
                                       .steps_spread = 0.05,
                                       .predicted = run->predicted,
                                       .measured = run->measured,
                                       .ranks = RANKS};
    dp_correction_init(&run->facts.used);
    run->facts.used.base_measured_at_s = 1000;
    for (int i = 0; i < RANKS; i++) {
        run->predicted[i].s[DP_PART_COMPUTE] = 0.8 + 0.01 * i;
        run->measured[i].s[DP_PART_COMPUTE] = 1.2 * run->predicted[i].s[DP_PART_COMPUTE];
        run->predicted[i].s[DP_PART_OPTIMIZER] = 0.10;
        run->measured[i].s[DP_PART_OPTIMIZER] = 0.05;
    }
}

static void assert_near(double value, double wanted)
{
    if (!(fabs(value - wanted) < 1e-9)) {
        fail_msg("%.12g is not %.12g", value, wanted);
    }
}

static void a_steady_run_teaches_the_ratios_of_its_parts(void **state)
{
    (void)state;
    struct run run;
    struct dp_lesson lesson;
    steady_run(&run);
    dp_lesson_learn(&run.facts, &lesson);
    assert_true(lesson.learned);
    assert_near(lesson.correction.factor[DP_PART_COMPUTE], 1.2);
    // Half of it is farther than one run may move a factor: 1 / 1.5.
    assert_near(lesson.parts[DP_PART_OPTIMIZER].ratio, 0.5);
    assert_near(lesson.correction.factor[DP_PART_OPTIMIZER], 1 / 1.5);
    assert_near(lesson.correction.factor[DP_PART_EXCHANGE], 1);
    assert_string_equal(lesson.correction.source, "job-7");
    assert_int_equal(lesson.correction.runs, 1);
    assert_int_equal(lesson.correction.base_measured_at_s, 1000);
}

static void one_rank_that_was_disturbed_changes_nothing(void **state)
{
    (void)state;
    struct run run;
    struct dp_lesson lesson;
    steady_run(&run);
    run.measured[2].s[DP_PART_COMPUTE] *= 7;
    dp_lesson_learn(&run.facts, &lesson);
    assert_true(lesson.learned);
    assert_near(lesson.correction.factor[DP_PART_COMPUTE], 1.2);
}

static void later_runs_build_on_the_correction_that_was_used(void **state)
{
    (void)state;
    struct run run;
    struct dp_lesson lesson;
    steady_run(&run);
    run.facts.used.factor[DP_PART_COMPUTE] = 1.1;
    run.facts.used.runs = 3;
    dp_lesson_learn(&run.facts, &lesson);
    // One of several runs: half of the way, as a factor.
    assert_near(lesson.correction.factor[DP_PART_COMPUTE], 1.1 * sqrt(1.2));
    assert_int_equal(lesson.correction.runs, 4);
}

static void no_number_of_runs_moves_a_factor_beyond_its_limit(void **state)
{
    (void)state;
    struct run run;
    struct dp_lesson lesson;
    steady_run(&run);
    for (int i = 0; i < 30; i++) {
        for (int rank = 0; rank < RANKS; rank++) {
            run.measured[rank].s[DP_PART_COMPUTE] = 5 * run.predicted[rank].s[DP_PART_COMPUTE];
        }
        dp_lesson_learn(&run.facts, &lesson);
        assert_true(lesson.correction.factor[DP_PART_COMPUTE] <=
                    1.5 * run.facts.used.factor[DP_PART_COMPUTE] + 1e-12);
        run.facts.used = lesson.correction;
    }
    assert_near(lesson.correction.factor[DP_PART_COMPUTE], DP_LEARN_FACTOR_MAX);
}

static void assert_teaches_nothing(const struct run *run, const char *why)
{
    struct dp_lesson lesson;
    dp_lesson_learn(&run->facts, &lesson);
    assert_false(lesson.learned);
    if (strstr(lesson.reason, why) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", lesson.reason, why);
    }
    // What was known before stands, and the comparison is shown all the same.
    assert_memory_equal(&lesson.correction, &run->facts.used, sizeof lesson.correction);
}

static void a_wrong_run_teaches_nothing_and_says_why(void **state)
{
    (void)state;
    struct run run;
    steady_run(&run);
    run.facts.is_sim = true;
    assert_teaches_nothing(&run, "sim device");
    steady_run(&run);
    run.facts.completed = false;
    assert_teaches_nothing(&run, "did not complete");
    steady_run(&run);
    run.facts.recalibrated = true;
    assert_teaches_nothing(&run, "calibrated again");
    steady_run(&run);
    run.facts.cores_exceeded = true;
    assert_teaches_nothing(&run, "shared cores");
    steady_run(&run);
    run.facts.core_share = 0.5;
    assert_teaches_nothing(&run, "had a core for 50 %");
    steady_run(&run);
    run.facts.learning_off = true;
    assert_teaches_nothing(&run, "switched off");
    steady_run(&run);
    run.facts.steps = DP_LEARN_STEPS_MIN - 1;
    assert_teaches_nothing(&run, "7 steps were measured, it takes 8");
    steady_run(&run);
    run.facts.steps_spread = 0.8;
    assert_teaches_nothing(&run, "not steady");
    run.facts.steps_spread = NAN;
    assert_teaches_nothing(&run, "not steady");
    steady_run(&run);
    run.facts.predicted_step_s = 0;
    assert_teaches_nothing(&run, "no time");
    steady_run(&run);
    run.facts.ranks = 0;
    assert_teaches_nothing(&run, "none of its parts");
    steady_run(&run);
    for (int i = 0; i < RANKS; i++) {
        run.measured[i].s[DP_PART_COMPUTE] *= 10;
    }
    assert_teaches_nothing(&run, "compute took 12 times");
}

static void a_part_that_is_far_off_is_left_alone_unless_it_is_most_of_the_step(void **state)
{
    (void)state;
    struct run run;
    struct dp_lesson lesson;
    steady_run(&run);
    for (int i = 0; i < RANKS; i++) {
        run.measured[i].s[DP_PART_OPTIMIZER] = 0.012; // of 0.10
        run.predicted[i].s[DP_PART_OPTIMIZER] = 0.0013;
    }
    dp_lesson_learn(&run.facts, &lesson);
    assert_true(lesson.learned);
    assert_false(lesson.parts[DP_PART_OPTIMIZER].learned);
    assert_near(lesson.correction.factor[DP_PART_OPTIMIZER], 1);
    assert_near(lesson.correction.factor[DP_PART_COMPUTE], 1.2);
}

static void what_is_a_small_part_of_the_step_is_left_alone(void **state)
{
    (void)state;
    struct run run;
    struct dp_lesson lesson;
    steady_run(&run);
    for (int i = 0; i < RANKS; i++) {
        run.predicted[i].s[DP_PART_GRADIENT] = 0.002;
        run.measured[i].s[DP_PART_GRADIENT] = 0.008;
    }
    dp_lesson_learn(&run.facts, &lesson);
    assert_false(lesson.parts[DP_PART_GRADIENT].learned);
    assert_near(lesson.correction.factor[DP_PART_GRADIENT], 1);
}

static void a_correction_slows_what_it_is_about_and_says_so(void **state)
{
    (void)state;
    struct dp_profile before, profile;
    struct dp_correction correction;
    dp_profile_default_cpu(&before);
    before.measured_at_s = 1000;
    profile = before;
    dp_correction_init(&correction);
    correction.base_measured_at_s = 1000;
    correction.factor[DP_PART_COMPUTE] = 1.06;
    correction.factor[DP_PART_GRADIENT] = 0.5;
    (void)snprintf(correction.source, sizeof correction.source, "job-17");
    dp_correction_apply(&correction, &profile);
    assert_near(profile.gemm_flops_per_s * 1.06 / before.gemm_flops_per_s, 1);
    assert_near(profile.attention_flops_per_s * 1.06 / before.attention_flops_per_s, 1);
    assert_near(profile.op_overhead_s / 1.06 / before.op_overhead_s, 1);
    assert_near(profile.local.sum_bytes_per_s / 2 / before.local.sum_bytes_per_s, 1);
    assert_near(profile.local.bytes_per_s, before.local.bytes_per_s);
    assert_near(profile.optimizer_bytes_per_s, before.optimizer_bytes_per_s);
    assert_non_null(
        strstr(profile.provenance, "corrected by job-17: compute x1.06, gradient sums x0.50; "));
    // Another measurement of the node has nothing to do with it.
    profile = before;
    profile.measured_at_s = 2000;
    struct dp_profile kept = profile;
    dp_correction_apply(&correction, &profile);
    assert_memory_equal(&profile, &kept, sizeof profile);
}

static void corrections_survive_their_form_and_bad_ones_are_refused(void **state)
{
    (void)state;
    struct dp_correction correction, read;
    dp_correction_init(&correction);
    correction.factor[DP_PART_HOP] = 1.25;
    correction.runs = 2;
    correction.base_measured_at_s = 77;
    (void)snprintf(correction.source, sizeof correction.source, "job-3");
    DP_AUTO_JSON json_t *json = dp_correction_to_json(&correction);
    assert_int_equal(dp_correction_from_json(json, &read, NULL), DP_OK);
    assert_near(read.factor[DP_PART_HOP], 1.25);
    assert_int_equal(read.base_measured_at_s, 77);
    assert_string_equal(read.source, "job-3");
    static const char *const keys[] = {"compute", "hop", "runs", "source", "base_measured_at_s"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        DP_AUTO_JSON json_t *wrong = json_deep_copy(json);
        json_object_set_new(wrong, keys[i], json_real(1e9));
        assert_int_equal(dp_correction_from_json(wrong, &read, NULL), DP_INVALID);
        json_object_del(wrong, keys[i]);
        assert_int_equal(dp_correction_from_json(wrong, &read, NULL), DP_INVALID);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_steady_run_teaches_the_ratios_of_its_parts),
        cmocka_unit_test(one_rank_that_was_disturbed_changes_nothing),
        cmocka_unit_test(later_runs_build_on_the_correction_that_was_used),
        cmocka_unit_test(no_number_of_runs_moves_a_factor_beyond_its_limit),
        cmocka_unit_test(a_wrong_run_teaches_nothing_and_says_why),
        cmocka_unit_test(a_part_that_is_far_off_is_left_alone_unless_it_is_most_of_the_step),
        cmocka_unit_test(what_is_a_small_part_of_the_step_is_left_alone),
        cmocka_unit_test(a_correction_slows_what_it_is_about_and_says_so),
        cmocka_unit_test(corrections_survive_their_form_and_bad_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
