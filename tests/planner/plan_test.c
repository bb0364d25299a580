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

// Every member set to something of its own, so that one that is not written shows.
static struct dp_plan full_plan(void)
{
    struct dp_plan plan = some_plan();
    free(plan.positions);
    plan.positions = dp_new_array(struct dp_plan_position, (size_t)plan.pipeline);
    double *figures = (double *)plan.positions;
    for (size_t i = 0; i < (size_t)plan.pipeline * sizeof(plan.positions[0]) / 8; i++) {
        figures[i] = 0.1 + (double)i;
    }
    for (int32_t p = 0; p < plan.pipeline; p++) { // of these, what plans carry
        struct dp_unit_parameters *held = &plan.positions[p].held;
        *held = (struct dp_unit_parameters){.dense = held->dense, .experts = held->experts};
    }
    free(plan.warnings);
    plan.warnings = dp_strdup("one: with a colon\ntwo\n");
    plan.gains[0] = (struct dp_plan_gain){"compute", 0.1, 0.03};
    plan.gains[1] = (struct dp_plan_gain){"scale-out", 0.2, 0.04};
    plan.gains_count = 2;
    DP_COPY_TEXT(plan.model, "tiny-moe");
    DP_COPY_TEXT(plan.device, "cpu");
    plan.tensor = plan.context = plan.expert_tensor = 1;
    plan.sequence_parallel = true;
    plan.format = DP_FORMAT_FP8_BLOCK;
    plan.shard = DP_SHARD_ZERO1;
    plan.recompute = DP_RECOMPUTE_NORM | DP_RECOMPUTE_UP;
    plan.comm_units = 20;
    plan.imbalance = 1.25;
    plan.mfu_causal = 0.39;
    plan.mfu_noncausal = 0.44;
    plan.flops_causal = 250e9;
    plan.flops_noncausal = 281e9;
    plan.baseline_step_s = 1.5 * plan.step_s;
    plan.baseline_memory_bytes = 7e10;
    plan.ranking_share = 0.04;
    plan.searched = 12345678901;
    plan.search_s = 1.5;
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
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = full_plan(), again = {0}, copy = {0};
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
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(json, "chosen"), "schedule_hash")), hash);
    assert_string_equal(again.ranks[3].node, "b");
    assert_memory_equal(again.positions, plan.positions, 4 * sizeof(plan.positions[0]));
    assert_memory_equal(again.gains, plan.gains, sizeof(plan.gains));
    assert_string_equal(again.warnings, plan.warnings);
    assert_string_equal(again.provenance, plan.provenance);
    assert_string_equal(again.explanation, plan.explanation);
    assert_true(again.format == plan.format && again.shard == plan.shard &&
                again.recompute == plan.recompute && again.sequence_parallel);
    assert_true(again.searched == plan.searched && again.search_s == plan.search_s &&
                again.baseline_memory_bytes == plan.baseline_memory_bytes &&
                again.imbalance == plan.imbalance && again.comm_units == plan.comm_units);
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

// "chosen.pipeline": a member of a document, or of an object in it; "#0" is the first of a list.
static void set_member(json_t *json, const char *path, json_t *value)
{
    char part[64];
    const char *dot;
    while ((dot = strchr(path, '.')) != NULL) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - path), path);
        json = part[0] == '#' ? json_array_get(json, (size_t)atoi(part + 1))
                              : json_object_get(json, part);
        assert_non_null(json);
        path = dot + 1;
    }
    assert_int_equal(json_object_set_new(json, path, value), 0);
}

static void a_plan_that_contradicts_itself_is_refused(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = full_plan();
    const struct {
        const char *path;
        json_t *value;
        const char *message;
    } table[] = {
        {"schema", json_string("dp.plan/2"), "dp.plan/1"},
        {"chosen.pipeline", json_integer(0), "\"ranks\" needs"},
        {"chosen.pipeline", json_integer(2147483648), "\"pipeline\""},
        {"chosen.pipeline", json_string("4"), "\"pipeline\""},
        {"chosen.expert", json_integer(3), "does not divide data"},
        {"chosen.expert_tensor", json_integer(2), "does not divide data"},
        {"chosen.data", json_integer(2), "\"ranks\" needs"},
        {"chosen.tensor", json_integer(2), "\"ranks\" needs"},
        {"chosen.tensor", json_integer(2147483647), "\"ranks\" needs"},
        {"chosen.context", json_integer(-1), "context + 1 is 0"},
        {"chosen.microbatches", json_integer(0), "microbatches is 0"},
        {"chosen.stages", json_integer(5), "\"layers_per_stage\" needs"},
        {"chosen.layers_per_stage", json_pack("[i,i,i,i]", 2, 0, 4, 2), "stage 1 runs layers"},
        {"chosen.layers_per_stage", json_pack("[i,i,i,i]", 2, 2, 2, 99999), "no layer"},
        {"chosen.layers_per_stage", json_pack("[i,i,i,s]", 2, 2, 2, "2"), "no layer"},
        {"chosen.precision", json_string("fp7"), "\"precision\""},
        {"chosen.shard", json_string("zero9"), "\"shard\""},
        {"chosen.recompute", json_string("everything"), "\"recompute\""},
        {"ranks", json_array(), "\"ranks\" needs"},
        {"ranks", json_pack("[{},{},{},{}]"), "\"node\""},
        {"chosen.step_time_s", json_real(-1), "finite and not negative"},
        {"chosen.step_parts", json_object(), "\"compute_s\""},
        {"chosen.schedule_hash", json_string("0x12"), "16 hexadecimal"},
        {"chosen.schedule_hash", json_string("0123456789abcdef"), "0x"},
        {"chosen.schedule_hash", json_null(), "16 hexadecimal"},
        {"chosen.schedule_json", json_integer(1), "\"schedule_json\""},
        {"chosen.per_rank", json_array(), "\"per_rank\""},
        {"chosen.per_rank.#0.memory", json_null(), "\"weights_bytes\""},
        {"chosen.per_rank.#0.forward_s", json_real(-1), "finite and not negative"},
        {"explanation", json_null(), "\"explanation\""},
        {"provenance", json_pack("[{s:s}]", "figure", "bytes"), "\"provenance\""},
        {"searched", json_integer(-1), "\"searched\""},
        {"gains", json_pack("[n,n,n,n,n,n,n,n,n]"), "\"gains\""},
        {"runners_up", json_pack("[i]", 1), "\"schedule\""},
        {"runners_up", json_null(), "a list"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_error err = {0};
        struct dp_plan again = {0};
        DP_AUTO_JSON json_t *json = dp_plan_to_json(&plan);
        set_member(json, table[i].path, table[i].value);
        assert_refused(dp_plan_from_json(json, &again, &err), DP_INVALID, &err, table[i].message);
    }
}

// As version 0.1 wrote it.
static const char flat_document[] =
    "{\"schema\":\"dp.plan/1\",\"pipeline\":2,\"expert\":1,\"data\":1,\"microbatches\":4,"
    "\"micro_batch_size\":2,\"schedule\":\"1f1b\",\"virtual_stages\":0,\"stages\":2,"
    "\"step_s\":0.0131488079335,\"compute_s\":0.0108219789044,\"bubble_s\":0.00228177150069,"
    "\"comm_s\":0.0,\"grad_sync_s\":0.0,\"optimizer_s\":4.50575283582e-05,"
    "\"tokens_per_s\":2492089.02934,\"error_share\":0.25,\"cores_exceeded\":false,"
    "\"provenance\":\"seconds: profile\\nbytes: shapes of the model\\n\","
    "\"explanation\":\"most of the step is compute: 82 %\\n\","
    "\"schedule_hash\":\"0xe2c996807aba4800\",\"layer_begin\":[0,4,8],\"ranks\":["
    "{\"rank\":0,\"node\":\"node-0\",\"slot\":0,\"busy_s\":0.00905902077808,"
    "\"bubble_s\":0.00404472962706,\"peak_chunks\":2,\"peak_activation_bytes\":96888422,"
    "\"memory_bytes\":152405606},{\"rank\":1,\"node\":\"node-0\",\"slot\":1,"
    "\"busy_s\":0.0108219789044,\"bubble_s\":0.00228177150069,\"peak_chunks\":1,"
    "\"peak_activation_bytes\":53540291,\"memory_bytes\":121464515}],\"candidates\":["
    "{\"pipeline\":2,\"expert\":1,\"data\":1,\"microbatches\":4,\"micro_batch_size\":2,"
    "\"schedule\":\"1f1b\",\"virtual_stages\":0,\"legal\":true,\"chosen\":true,"
    "\"step_s\":0.0131488079335,\"memory_max_bytes\":152405606,\"reason\":\"chosen\"}]}";

static void a_plan_of_an_older_version_is_read(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    DP_AUTO_JSON json_t *json = NULL;
    assert_ok(dp_json_parse(flat_document, strlen(flat_document), 1 << 16, "x", &json, &err), &err);
    assert_ok(dp_plan_from_json(json, &plan, &err), &err);
    assert_int_equal(dp_plan_world(&plan), 2);
    assert_int_equal(plan.layer_begin[2], 8);
    assert_string_equal(plan.ranks[1].node, "node-0");
    assert_float_equal(plan.error_share, 0.25, 0);
    assert_int_equal(dp_plan_critical_position(&plan), 1);
    assert_int_equal(dp_plan_fullest_position(&plan), 0);
    assert_true(plan.candidates[0].chosen);
    assert_ok(dp_plan_schedule(&plan, &schedule, &err), &err);
    // What is missing there is missing in its new form as well.
    DP_AUTO_FREE char *first = json_text(&plan);
    assert_null(strstr(first, "\"per_rank\""));
    assert_non_null(strstr(first, "\"memory_bytes_per_rank\":[152405606,121464515]"));
    json_object_del(json, "candidates");
    DP_CLEANUP(dp_plan_deinit) struct dp_plan none = {0};
    assert_refused(dp_plan_from_json(json, &none, &err), DP_INVALID, &err, "a list");
}

static void the_text_names_the_choice_its_parts_and_the_losers(void **state)
{
    (void)state;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = some_plan();
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0}, cut = {0};
    dp_plan_render(&plan, true, &text);
    const char *const parts[] = {"tiny-moe: dualpipe, pipeline 4, data 1, expert 1 on 4 x cpu",
                                 "layers 2 x 4",
                                 "tokens/s",
                                 "bubble",
                                 "why it lost",
                                 "set by the job: pipeline = 4, schedule = dualpipe",
                                 "built-in figures"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (strstr(text.bytes, parts[i]) == NULL) {
            fail_msg("\"%s\" is missing in\n%s", parts[i], text.bytes);
        }
    }
    dp_plan_render(&plan, false, &cut);
    size_t lines = 0, width = 0;
    for (const char *line = cut.bytes; *line != '\0'; lines++) {
        size_t length = strcspn(line, "\n");
        width = length > width ? length : width;
        line += length + 1;
    }
    assert_true(lines <= 40 && width <= 100);
    // Bytes in the units that every other command uses.
    assert_non_null(strstr(text.bytes, "iB"));
    assert_null(strstr(text.bytes, " MB"));
    assert_null(strstr(text.bytes, " GB"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_reads_back_as_written),
        cmocka_unit_test(a_plan_expands_to_its_schedule),
        cmocka_unit_test(an_order_that_differs_from_the_planned_one_is_refused),
        cmocka_unit_test(a_plan_that_contradicts_itself_is_refused),
        cmocka_unit_test(a_plan_of_an_older_version_is_read),
        cmocka_unit_test(the_text_names_the_choice_its_parts_and_the_losers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
