// Plans as data: copies, the file form, what is refused, the text.

#include "planner_support.h"

static struct dp_plan some_plan(void)
{
    struct dp_error err = {0};
    static const struct dp_planner_node nodes[] = {{.name = "a", .slots = 2},
                                                   {.name = "b", .slots = 2}};
    struct dp_planner_resources resources = {nodes, 2, NULL};
    struct dp_job_spec spec = JOB("tiny-moe", 16, 128, "schedule=dualpipe", "pipeline=4");
    struct dp_plan plan;
    assert_ok(dp_planner_plan(&spec, &resources, NULL, &plan, &err), &err);
    return plan;
}

static char *json_text(const struct dp_plan *plan)
{
    DP_AUTO_JSON json_t *json = dp_plan_to_json(plan);
    struct dp_buf text = {0};
    dp_json_write(json, 0, &text);
    return dp_buf_take(&text);
}

static void a_plan_reads_back_as_written(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = some_plan(), again = {0}, copy = {0};
    DP_AUTO_JSON json_t *json = dp_plan_to_json(&plan);
    assert_ok(dp_plan_from_json(json, &again, &err), &err);
    dp_plan_copy(&copy, &again);
    DP_AUTO_FREE char *first = json_text(&plan);
    DP_AUTO_FREE char *second = json_text(&again);
    DP_AUTO_FREE char *third = json_text(&copy);
    assert_string_equal(first, second);
    assert_string_equal(first, third);
    assert_true(again.schedule_hash == plan.schedule_hash);
    char hash[32]; // as every other document writes hashes
    snprintf(hash, sizeof hash, "0x%016llx", (unsigned long long)plan.schedule_hash);
    assert_string_equal(json_string_value(json_object_get(json, "schedule_hash")), hash);
    assert_string_equal(again.ranks[3].node, "b");
}

static void a_plan_expands_to_its_schedule(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = some_plan();
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0}, listed = {0};
    assert_ok(dp_plan_schedule(&plan, &schedule, &err), &err);
    assert_int_equal(schedule.pipeline, 4);
    assert_int_equal(schedule.microbatches, plan.microbatches);
    assert_ok(dp_schedule_validate(&schedule, &err), &err);
    // The same order as a list instead of a name.
    struct dp_buf text = {0};
    dp_schedule_write_json(&schedule, &text);
    plan.schedule_json = dp_buf_take(&text);
    assert_ok(dp_plan_schedule(&plan, &listed, &err), &err);
    assert_true(dp_schedule_hash(&listed) == plan.schedule_hash);
}

static void an_order_that_differs_from_the_planned_one_is_refused(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = some_plan();
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    plan.schedule_hash++;
    assert_refused(dp_plan_schedule(&plan, &schedule, &err), DP_CONFLICT, &err, "dualpipe");
    plan.schedule_hash--;
    plan.microbatches = 1;
    assert_int_equal(dp_plan_schedule(&plan, &schedule, &err), DP_INVALID);
}

static void a_plan_that_contradicts_itself_is_refused(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = some_plan();
    const struct {
        const char *key;
        json_t *value;
        const char *message;
    } table[] = {
        {"schema", json_string("dp.plan/2"), "dp.plan/1"},
        {"pipeline", json_integer(0), "\"ranks\" needs"},
        {"pipeline", json_integer(2147483648), "\"pipeline\""},
        {"pipeline", json_string("4"), "\"pipeline\""},
        {"expert", json_integer(3), "does not divide data"},
        {"data", json_integer(2), "\"ranks\" needs"},
        {"microbatches", json_integer(0), "microbatches is 0"},
        {"stages", json_integer(5), "\"layer_begin\" needs"},
        {"layer_begin", json_pack("[i,i,i,i,i]", 0, 2, 2, 6, 8), "stage 1 runs layers"},
        {"layer_begin", json_pack("[i,i,i,i,i]", 1, 2, 4, 6, 8), "not 0"},
        {"layer_begin", json_pack("[i,i,i,i,i]", 0, 2, 4, 6, 99999), "no layer"},
        {"layer_begin", json_pack("[i,i,i,i,s]", 0, 2, 4, 6, "8"), "no layer"},
        {"ranks", json_array(), "\"ranks\" needs"},
        {"ranks", json_pack("[{},{},{},{}]"), "\"node\""},
        {"step_s", json_real(-1), "finite and not negative"},
        {"schedule_hash", json_string("0x12"), "16 hexadecimal"},
        {"schedule_hash", json_string("0123456789abcdef"), "0x"},
        {"schedule_hash", json_null(), "16 hexadecimal"},
        {"schedule_json", json_integer(1), "\"schedule_json\""},
        {"explanation", json_null(), "\"explanation\""},
        {"candidates", json_pack("[i]", 1), "\"pipeline\""},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_error err = {0};
        struct dp_plan again = {0};
        DP_AUTO_JSON json_t *json = dp_plan_to_json(&plan);
        json_object_set_new(json, table[i].key, table[i].value);
        assert_refused(dp_plan_from_json(json, &again, &err), DP_INVALID, &err, table[i].message);
    }
}

static void the_text_names_the_choice_its_parts_and_the_losers(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = some_plan();
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0}, cut = {0};
    dp_plan_render(&plan, 0, &text);
    const char *const parts[] = {"schedule dualpipe: pipeline 4, expert 1, data 1 (4 ranks)",
                                 "layers per stage 2 2 2 2",
                                 "tokens/s",
                                 "bubble",
                                 "gradient sums",
                                 "chosen",
                                 "set by the job: pipeline = 4, schedule = dualpipe",
                                 "built-in figures"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (strstr(text.bytes, parts[i]) == NULL) {
            fail_msg("\"%s\" is missing in\n%s", parts[i], text.bytes);
        }
    }
    dp_plan_render(&plan, 1, &cut);
    assert_true(cut.length < text.length);
    // Bytes in the units that every other command uses.
    assert_non_null(strstr(text.bytes, "iB"));
    assert_null(strstr(text.bytes, " MB"));
    assert_null(strstr(text.bytes, " GB"));
    assert_non_null(strstr(cut.bytes, " more\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_reads_back_as_written),
        cmocka_unit_test(a_plan_expands_to_its_schedule),
        cmocka_unit_test(an_order_that_differs_from_the_planned_one_is_refused),
        cmocka_unit_test(a_plan_that_contradicts_itself_is_refused),
        cmocka_unit_test(the_text_names_the_choice_its_parts_and_the_losers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
