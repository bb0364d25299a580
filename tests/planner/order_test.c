// schedule = "auto": the plan carries an order of its own, no worse than any family's.

#include <limits.h>

#include "planner_support.h"

static const struct dp_planner_node two_nodes[] = {{.name = "node-0", .slots = 2, .cores = 64},
                                                   {.name = "node-1", .slots = 2, .cores = 64}};

static dp_status plan_on(const struct dp_planner_node *nodes, size_t count,
                         const struct dp_job_spec *spec, struct dp_plan *ret_plan,
                         struct dp_error *err)
{
    struct dp_planner_resources resources = {nodes, count, NULL};
    return dp_planner_plan(spec, &resources, NULL, ret_plan, err);
}

static void assert_carries_its_order(const struct dp_plan *plan)
{
    struct dp_error err = {0};
    assert_string_equal(plan->schedule, "auto");
    assert_non_null(plan->schedule_json);
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    assert_ok(dp_plan_schedule(plan, &schedule, &err), &err);
    assert_string_equal(schedule.name, "auto");
    assert_ok(dp_plan_check(plan, &err), &err);
    // The plan survives its own text.
    DP_AUTO_JSON json_t *json = dp_plan_to_json(plan);
    DP_CLEANUP(dp_plan_deinit) struct dp_plan again = {0};
    assert_ok(dp_plan_from_json(json, &again, &err), &err);
    assert_string_equal(again.schedule_json, plan->schedule_json);
    for (size_t i = 0; i < plan->candidates_count; i++) {
        const struct dp_plan_candidate *candidate = &plan->candidates[i];
        if (candidate->legal && strstr(candidate->reason, "does not fit") == NULL) {
            assert_true(candidate->step_s >= plan->step_s * (1 - 1e-9));
        }
    }
}

static void an_automatic_order_is_no_slower_than_any_family(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, "schedule=auto", "pipeline=4", "data=1",
                                  "micro_batch_size=1");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0}, again = {0};
    assert_ok(plan_on(two_nodes, 2, &spec, &plan, &err), &err);
    assert_carries_its_order(&plan);
    assert_int_equal(plan.microbatches, 16);
    assert_non_null(strstr(plan.explanation, "auto: stages placed"));
    assert_non_null(strstr(plan.explanation, "the best fixed family"));
    // Families are among the candidates, and one of them was simulated.
    size_t families = 0;
    for (size_t i = 0; i < plan.candidates_count; i++) {
        families += plan.candidates[i].legal && strcmp(plan.candidates[i].schedule, "auto") != 0;
    }
    assert_true(families > 0);
    assert_ok(plan_on(two_nodes, 2, &spec, &again, &err), &err);
    assert_true(plan.schedule_hash == again.schedule_hash);
}

static void sizes_are_chosen_where_families_do_best(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 8, 64, "schedule=auto");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(plan_on(two_nodes, 2, &spec, &plan, &err), &err);
    assert_carries_its_order(&plan);
}

static double fullest(const struct dp_plan *plan)
{
    double most = 0;
    for (int32_t i = 0; i < dp_plan_world(plan); i++) {
        most = fmax(most, plan->ranks[i].memory_bytes);
    }
    return most;
}

static void memory_of_the_nodes_is_kept_to(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec lean = JOB("tiny-moe", 16, 128, "schedule=1f1b", "pipeline=4", "data=1",
                                  "micro_batch_size=1");
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, "schedule=auto", "pipeline=4", "data=1",
                                  "micro_batch_size=1");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan family = {0};
    assert_ok(plan_on(two_nodes, 2, &lean, &family, &err), &err);
    struct dp_planner_node small[] = {two_nodes[0], two_nodes[1]};
    for (double share = 1.15; share < 1.6; share += 0.1) {
        DP_CLEANUP(dp_plan_deinit) struct dp_plan tight = {0};
        small[0].memory_bytes = small[1].memory_bytes = share * fullest(&family);
        assert_ok(plan_on(small, 2, &spec, &tight, &err), &err);
        assert_true(fullest(&tight) <= small[0].memory_bytes);
        assert_true(tight.step_s <= family.step_s * (1 + 1e-9));
        // The search knew of the limit, and found an order within it.
        assert_string_equal(tight.schedule, "auto");
    }
    small[0].memory_bytes = small[1].memory_bytes = fullest(&family) / 8;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan none = {0};
    assert_int_equal(plan_on(small, 2, &spec, &none, &err), DP_UNSCHEDULABLE);
}

// On one rank every order takes the same time.
static void an_order_that_is_only_as_fast_was_asked_for(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec =
        JOB("tiny-moe", 4, 64, "schedule=auto", "pipeline=1", "data=1", "micro_batch_size=1");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(plan_on(two_nodes, 2, &spec, &plan, &err), &err);
    assert_carries_its_order(&plan);
}

static void replicas_run_one_order(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 64, "schedule=auto", "pipeline=2", "data=2",
                                  "expert=2", "micro_batch_size=1");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(plan_on(two_nodes, 2, &spec, &plan, &err), &err);
    assert_carries_its_order(&plan);
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs = {0};
    assert_ok(dp_plan_schedule(&plan, &schedule, &err), &err);
    struct dp_planner_resources resources = {two_nodes, 2, NULL};
    assert_ok(dp_planner_costs(&spec, &plan, &resources, 1, &schedule, &costs, &err), &err);
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    assert_ok(dp_simulate(&schedule, &costs, false, &result, &err), &err);
    assert_true(result.step <= plan.step_s * (1 + 1e-9));
}

static void a_list_too_long_for_a_plan_leaves_a_family_and_says_so(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 32768, 64, "schedule=auto", "pipeline=2", "data=1",
                                  "micro_batch_size=1");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(plan_on(two_nodes, 2, &spec, &plan, &err), &err);
    assert_string_not_equal(plan.schedule, "auto");
    assert_null(plan.schedule_json);
    assert_non_null(strstr(plan.explanation, "a plan carries at most 3145728"));
}

struct patience {
    long asked, most;
};

static bool runs_out(void *context)
{
    struct patience *patience = context;
    return ++patience->asked > patience->most;
}

static void planning_stops_whenever_it_is_asked_to(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, "schedule=auto", "pipeline=4", "data=1",
                                  "micro_batch_size=1");
    struct dp_planner_resources resources = {two_nodes, 2, NULL};
    struct patience patience = {0, LONG_MAX};
    struct dp_planner_options options = {.stop = runs_out, .context = &patience};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    assert_ok(dp_planner_plan(&spec, &resources, &options, &plan, &err), &err);
    // The last time it is asked is in the midst of a search.
    const long asked = patience.asked;
    assert_true(asked > 100);
    const long most[] = {0, 5, asked / 10, asked / 2, asked - 1};
    for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
        struct dp_plan none = {0};
        patience = (struct patience){0, most[i]};
        assert_int_equal(dp_planner_plan(&spec, &resources, &options, &none, &err),
                         DP_INTERRUPTED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_automatic_order_is_no_slower_than_any_family),
        cmocka_unit_test(sizes_are_chosen_where_families_do_best),
        cmocka_unit_test(memory_of_the_nodes_is_kept_to),
        cmocka_unit_test(an_order_that_is_only_as_fast_was_asked_for),
        cmocka_unit_test(replicas_run_one_order),
        cmocka_unit_test(a_list_too_long_for_a_plan_leaves_a_family_and_says_so),
        cmocka_unit_test(planning_stops_whenever_it_is_asked_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
