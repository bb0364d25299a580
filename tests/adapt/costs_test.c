// Costs by layer: from the planner's figures, and corrected by what ranks measured.

#include "adapt_support.h"

static void sim_job(struct dp_job_spec *ret_spec, const char *schedule, int32_t pipeline)
{
    struct dp_error err = {0};
    dp_job_spec_init(ret_spec);
    assert_ok(dp_model_preset("tiny-moe", &ret_spec->model, &err), &err);
    DP_COPY_TEXT(ret_spec->name, "timed");
    DP_COPY_TEXT(ret_spec->data.path, "corpus");
    ret_spec->train.global_batch = 32;
    ret_spec->train.sequence = 128;
    ret_spec->train.steps = 10;
    ret_spec->parallel.pipeline = pipeline;
    ret_spec->parallel.data = 2;
    ret_spec->parallel.microbatches = 16;
    DP_COPY_TEXT(ret_spec->parallel.schedule, schedule);
    ret_spec->resources.device = DP_DEVICE_SIM;
    ret_spec->sim = (struct dp_sim_spec){.forward_s = 1e-3,
                                         .input_grad_s = 1.5e-3,
                                         .weight_grad_s = 0.5e-3,
                                         .pair_s = 2.5e-3,
                                         .embedding_s = 0.25e-3,
                                         .head_s = 0.75e-3,
                                         .hop_s = 1e-5,
                                         .scale = 2};
}

static const struct dp_planner_node nodes[] = {{.name = "a", .slots = 4},
                                               {.name = "b", .slots = 4}};
static const struct dp_planner_resources resources = {nodes, 2, NULL};

static void plan_sim(const char *schedule, int32_t pipeline, struct dp_job_spec *ret_spec,
                     struct dp_plan *ret_plan, struct dp_adapt_costs *ret_costs)
{
    struct dp_error err = {0};
    sim_job(ret_spec, schedule, pipeline);
    assert_ok(dp_planner_plan(ret_spec, &resources, NULL, ret_plan, &err), &err);
    assert_ok(dp_adapt_costs_predict(ret_spec, ret_plan, &resources, ret_costs, &err), &err);
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)) + 1e-15;
}

static void layers_take_what_the_job_file_says(void **state)
{
    (void)state;
    static const char *const schedules[] = {"1f1b", "dualpipe"};
    for (int i = 0; i < 2; i++) {
        DP_AUTO_FREE struct dp_job_spec *spec = dp_new(struct dp_job_spec);
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
        DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = {0};
        plan_sim(schedules[i], 4, spec, &plan, &costs);
        for (int32_t l = 0; l < costs.layers; l++) {
            assert_true(is_near(costs.layer[l][DP_ACTION_F], 2e-3));
            assert_true(is_near(costs.layer[l][DP_ACTION_I], 3e-3));
            assert_true(is_near(costs.layer[l][DP_ACTION_W], 1e-3));
            assert_true(is_near(costs.layer[l][DP_ACTION_B], 4e-3));
        }
        assert_true(is_near(costs.first[DP_ACTION_F], 0.5e-3));
        assert_true(is_near(costs.last[DP_ACTION_F], 1.5e-3));
    }
}

// The planner's own simulation of its plan, whatever the cut and the order are.
static void the_step_is_the_planners_own(void **state)
{
    (void)state;
    static const char *const schedules[] = {"1f1b", "gpipe", "dualpipe", "dualpipev", "zb-h1"};
    for (size_t i = 0; i < sizeof(schedules) / sizeof(schedules[0]); i++) {
        struct dp_error err = {0};
        DP_AUTO_FREE struct dp_job_spec *spec = dp_new(struct dp_job_spec);
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
        DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = {0};
        plan_sim(schedules[i], 4, spec, &plan, &costs);
        struct dp_adapt_input input = input_of(&plan, &costs, NULL);
        double step;
        assert_ok(dp_adapt_step(&input, &plan, &step, &err), &err);
        if (fabs(step / plan.step_s - 1) > 0.02) {
            fail_msg("%s: %g, the planner %g", schedules[i], step, plan.step_s);
        }
    }
}

// A truth that the planner does not know, and what ranks measure of it.
struct truth {
    double stage[4][DP_ADAPT_KINDS];
    double slow[8];
};

static void measured_times_come_out_as_they_went_in(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_AUTO_FREE struct dp_job_spec *spec = dp_new(struct dp_job_spec);
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = {0};
    plan_sim("1f1b", 4, spec, &plan, &costs);
    struct truth truth;
    struct dp_rand rand;
    dp_rand_init(&rand, 3);
    for (int r = 0; r < 8; r++) {
        truth.slow[r] = r == 5 ? 1.8 : 1;
    }
    struct dp_adapt_measured rows[64];
    size_t count = 0;
    for (int32_t s = 0; s < 4; s++) {
        for (int k = 0; k < DP_ADAPT_KINDS; k++) {
            truth.stage[s][k] = 1e-3 + 9e-3 * dp_rand_double(&rand);
        }
        for (int32_t d = 0; d < 2; d++) {
            for (int k = 0; k < 2; k++) { // F and B, as 1F1B has them
                int32_t rank = d * 4 + s;
                rows[count++] =
                    (struct dp_adapt_measured){.rank = rank,
                                               .kind = (dp_action_kind)k,
                                               .stage = s,
                                               .seconds = truth.stage[s][k] * truth.slow[rank]};
            }
        }
    }
    rows[count++] = (struct dp_adapt_measured){.rank = 99, .seconds = 7}; // passed over
    double part[64]; // that I has of B, which no row tells anything about
    assert_in_range(costs.layers, 1, 64);
    for (int32_t l = 0; l < costs.layers; l++) {
        part[l] = costs.layer[l][DP_ACTION_I] / costs.layer[l][DP_ACTION_B];
    }
    assert_ok(dp_adapt_costs_measure(&costs, &plan, truth.slow, rows, count, &err), &err);
    for (int32_t s = 0; s < 4; s++) {
        for (int k = 0; k < 2; k++) {
            double seconds =
                costs.action[k] + (s == 0 ? costs.first[k] : 0) + (s == 3 ? costs.last[k] : 0);
            for (int32_t l = plan.layer_begin[s]; l < plan.layer_begin[s + 1]; l++) {
                seconds += costs.layer[l][k];
            }
            assert_true(is_near(seconds, truth.stage[s][k]));
        }
    }
    for (int32_t l = 0; l < costs.layers; l++) {
        assert_true(is_near(costs.layer[l][DP_ACTION_I], part[l] * costs.layer[l][DP_ACTION_B]));
    }
    truth.slow[2] = -1;
    assert_refused(dp_adapt_costs_measure(&costs, &plan, truth.slow, rows, count, &err), DP_INVALID,
                   &err, "rank 2");
}

static void pairs_take_the_share_that_was_measured(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_AUTO_FREE struct dp_job_spec *spec = dp_new(struct dp_job_spec);
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = {0};
    plan_sim("dualpipe", 4, spec, &plan, &costs);
    // Two layers a stage between the ends: F 4 ms, B 8 ms; 9 ms together hide a quarter.
    const struct dp_adapt_measured rows[] = {
        {.rank = 1, .kind = DP_ACTION_F, .stage = 1, .seconds = 4e-3},
        {.rank = 1, .kind = DP_ACTION_B, .stage = 2, .seconds = 8e-3},
        {.rank = 1, .kind = DP_ACTION_FB, .stage = 1, .b_stage = 2, .seconds = 9e-3},
    };
    assert_int_equal(plan.layer_begin[2] - plan.layer_begin[1], 2);
    assert_ok(dp_adapt_costs_measure(&costs, &plan, NULL, rows, 3, &err), &err);
    assert_true(is_near(costs.pair_share, 0.75));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_take_what_the_job_file_says),
        cmocka_unit_test(the_step_is_the_planners_own),
        cmocka_unit_test(measured_times_come_out_as_they_went_in),
        cmocka_unit_test(pairs_take_the_share_that_was_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
