#include "support.h"

#include <stdlib.h>

#include "dp/json.h"
#include "dp/render.h"

static struct dp_sim_result run(const struct dp_schedule *schedule)
{
    return simulate_uniform(schedule,
                            (struct dp_sim_uniform){.f = 1, .b = 2, .i = 1, .w = 1, .fb = 3});
}

// Two ranks, two micro-batches: 9 units, each 4 columns wide.
static void a_gantt_chart_has_a_row_per_rank_and_true_lengths(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    struct dp_sim_result result = run(&schedule);
    struct dp_buf text = {0};
    dp_render_gantt(&schedule, &result, &(struct dp_render_options){.width = 43}, &text);
    assert_string_equal(text.bytes, "0 FFFFFFFF............BBBBBBBBBBBBBBBB  67%\n"
                                    "1 ....FFFFFFFFBBBBBBBBBBBBBBBB........  67%\n"
                                    "  0                   5            9 s\n"
                                    "  F forward  B backward  . idle\n");
    dp_buf_deinit(&text);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

static void streams_and_kinds_differ_with_and_without_colour(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("dualpipe", 4, 8);
    struct dp_sim_result result = run(&schedule);
    struct dp_buf plain = {0};
    struct dp_buf colour = {0};
    dp_render_gantt(&schedule, &result, &(struct dp_render_options){.width = 111}, &plain);
    // 26 units of 4 columns: three forwards of the own stream, one of the other.
    assert_int_equal(strncmp(plain.bytes, "0 FFFFFFFFFFFFffff", 18), 0);
    assert_null(strchr(plain.bytes, '\033'));
    for (const char *letter = "FfBbIiWwXx"; *letter != '\0'; letter++) {
        assert_non_null(strchr(plain.bytes, *letter));
    }
    dp_render_gantt(&schedule, &result,
                    &(struct dp_render_options){.width = 111, .color = true}, &colour);
    assert_non_null(strstr(colour.bytes, "\033[30;48;5;75m"));
    // Without its escapes the coloured chart is the plain one.
    size_t length = 0;
    for (size_t i = 0; i < colour.length; i++) {
        if (colour.bytes[i] == '\033') {
            i += strcspn(&colour.bytes[i], "m");
        } else {
            colour.bytes[length++] = colour.bytes[i];
        }
    }
    colour.bytes[length] = '\0';
    assert_string_equal(colour.bytes, plain.bytes);
    dp_buf_deinit(&plain);
    dp_buf_deinit(&colour);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

static void a_schedule_that_takes_no_time_has_no_chart(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    struct dp_sim_result result = simulate_uniform(&schedule, (struct dp_sim_uniform){0});
    struct dp_buf text = {0};
    dp_render_gantt(&schedule, &result, &(struct dp_render_options){0}, &text);
    assert_string_equal(text.bytes, "nothing takes time\n");
    assert_true(dp_render_table_unit(&result, 8) == 0);
    dp_buf_deinit(&text);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

static void a_table_shows_microbatches_in_cells(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("1f1b", 2, 2);
    struct dp_sim_result result = run(&schedule);
    struct dp_buf text = {0};
    double unit = dp_render_table_unit(&result, dp_schedule_action_count(&schedule));
    assert_true(unit == 1);
    struct dp_render_options options = {0};
    assert_ok(dp_render_table(&schedule, &result, unit, &options, &text, &err), &err);
    assert_string_equal(text.bytes,
                        "slot 0  1* 2  3  4  5  6  7  8\n"
                        "   0 F0 F1 .  .  B0--- .  B1---\n"
                        "   1 .  F0 B0--- F1 B1--- .  .\n"
                        "slot: 1 s  F forward  B backward  . idle  F3: micro-batch 3\n"
                        "* slot 1 is the first bubble-free one: no rank idles from there until the "
                        "cool-down in slot 2, when the first rank has made its last forward\n");
    assert_refused(dp_render_table(&schedule, &result, 1e-6, &options, &text, &err), DP_INVALID,
                   &err, "longer unit");
    assert_refused(dp_render_table(&schedule, &result, 0, &options, &text, &err), DP_INVALID, &err,
                   "positive unit");
    dp_buf_deinit(&text);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

// The smallest DualPipeV file of torch.distributed.pipelining's documented format.
static void torch_files_have_its_notation(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("dualpipev", 2, 4);
    struct dp_buf text = {0};
    assert_ok(dp_render_torch_csv(&schedule, &text, &err), &err);
    assert_string_equal(
        text.bytes,
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,"
        "(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3\n"
        "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,"
        "(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3\n");
    dp_schedule_deinit(&schedule);
    schedule = make_schedule("dualpipe", 4, 8);
    assert_refused(dp_render_torch_csv(&schedule, &text, &err), DP_UNSUPPORTED, &err,
                   "keeps each stage on one");
    dp_buf_deinit(&text);
    dp_schedule_deinit(&schedule);
}

static json_t *trace_events(const struct dp_trace_track *tracks, size_t count, json_t **ret_root)
{
    struct dp_error err = {0};
    struct dp_buf text = {0};
    dp_render_trace(tracks, count, &text);
    assert_ok(dp_json_parse(text.bytes, text.length, 1 << 24, "trace", ret_root, &err), &err);
    dp_buf_deinit(&text);
    json_t *events = json_object_get(*ret_root, "traceEvents");
    assert_true(json_is_array(events));
    return events;
}

static const char *text_of(const json_t *event, const char *key)
{
    return json_string_value(json_object_get(event, key));
}

static double number_of(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static void a_trace_shows_measured_and_predicted_side_by_side(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("dualpipev", 2, 4);
    struct dp_sim_result result = run(&schedule);
    struct dp_action_span *predicted;
    size_t count;
    dp_render_spans(&schedule, &result, 42, &predicted, &count);
    assert_int_equal(count, dp_schedule_action_count(&schedule));
    const struct dp_action_span measured[] = {
        {.rank = 1, .replica = 1, .kind = DP_SPAN_OPTIMIZER, .step = 42, .start_ns = 7003000,
         .end_ns = 7009000},
        {.rank = 0, .kind = DP_ACTION_FB, .b_kind = DP_ACTION_B, .stage = 1, .microbatch = 5,
         .b_stage = 6, .b_microbatch = 0, .step = 42, .start_ns = 7000000, .end_ns = 7001500},
        {.rank = -1, .kind = DP_ACTION_F, .start_ns = 0, .end_ns = 1},
    };
    const struct dp_trace_track tracks[] = {
        {.name = "measured", .pipeline = 2, .spans = measured, .count = 3},
        {.name = "pre\"dicted", .pipeline = 2, .spans = predicted, .count = count}};
    json_t *root;
    json_t *events = trace_events(tracks, 2, &root);
    assert_string_equal(text_of(json_object_get(root, "otherData"), "schema"), "dp.trace/1");
    // Names: 2 processes and 2 threads measured, 1 and 2 predicted. Threads have global ranks.
    assert_string_equal(text_of(json_object_get(json_array_get(events, 1), "args"), "name"),
                        "rank 0");
    assert_string_equal(text_of(json_object_get(json_array_get(events, 3), "args"), "name"),
                        "rank 3");
    assert_int_equal(json_array_size(events), 4 + 2 + 3 + count);
    const json_t *pair = json_array_get(events, 5);
    assert_string_equal(text_of(pair, "name"), "FB(5@1;B0@6)");
    assert_true(number_of(pair, "ts") == 0);
    assert_true(number_of(pair, "dur") == 1.5);
    assert_int_equal(number_of(json_object_get(pair, "args"), "b_stage"), 6);
    const json_t *optimizer = json_array_get(events, 4);
    assert_string_equal(text_of(optimizer, "name"), "optimizer");
    assert_int_equal(number_of(optimizer, "pid"), 2);
    assert_int_equal(number_of(optimizer, "tid"), 1);
    assert_true(number_of(optimizer, "ts") == 3);
    const json_t *process = json_array_get(events, 6);
    assert_string_equal(text_of(process, "ph"), "M");
    assert_string_equal(text_of(json_object_get(process, "args"), "name"), "pre\"dicted");
    const json_t *first = json_array_get(events, 9);
    assert_string_equal(text_of(first, "name"), "F0@0");
    assert_string_equal(text_of(first, "ph"), "X");
    assert_int_equal(number_of(first, "pid"), 3);
    assert_true(number_of(first, "dur") == 1e6);
    assert_int_equal(number_of(json_object_get(first, "args"), "step"), 42);
    json_decref(root);
    free(predicted);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gantt_chart_has_a_row_per_rank_and_true_lengths),
        cmocka_unit_test(streams_and_kinds_differ_with_and_without_colour),
        cmocka_unit_test(a_schedule_that_takes_no_time_has_no_chart),
        cmocka_unit_test(a_table_shows_microbatches_in_cells),
        cmocka_unit_test(torch_files_have_its_notation),
        cmocka_unit_test(a_trace_shows_measured_and_predicted_side_by_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
