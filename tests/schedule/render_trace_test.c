// The trace that Perfetto opens.
#include "support.h"

#include <stdlib.h>

#include "dp/check.h"
#include "dp/json.h"
#include "dp/render.h"

static struct dp_sim_result run(const struct dp_schedule *schedule)
{
    return simulate_uniform(schedule,
                            (struct dp_sim_uniform){.f = 1, .b = 2, .i = 1, .w = 1, .fb = 3});
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
        {.rank = 1,
         .replica = 1,
         .kind = DP_SPAN_OPTIMIZER,
         .step = 42,
         .start_ns = 7003000,
         .end_ns = 7009000},
        {.rank = 0,
         .kind = DP_ACTION_FB,
         .b_kind = DP_ACTION_B,
         .stage = 1,
         .microbatch = 5,
         .b_stage = 6,
         .b_microbatch = 0,
         .step = 42,
         .start_ns = 7000000,
         .end_ns = 7001500},
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

static const json_t *event_named(json_t *events, const char *name)
{
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
    {
        if (strcmp(text_of(event, "name"), name) == 0) {
            return event;
        }
    }
    fail_msg("no event is called %s", name);
    return NULL;
}

// Rows of communication are the ranks' own, under global numbers, in their replica's process: rank
// 0 in the first, on thread first_thread, rank 3 in the second. Returns how many names there are.
static int32_t expect_rows(json_t *events, double first_thread)
{
    int32_t first_rows = 0, other_rows = 0;
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
    {
        if (strcmp(text_of(event, "name"), "thread_name") == 0 &&
            number_of(event, "tid") >= DP_PIPELINE_MAX) {
            const bool is_first = number_of(event, "tid") == first_thread;
            assert_string_equal(text_of(json_object_get(event, "args"), "name"),
                                is_first ? "rank 0, communication" : "rank 3, communication");
            assert_int_equal(number_of(event, "pid"), is_first ? 1 : 2);
            first_rows += is_first;
            other_rows += !is_first;
        }
    }
    assert_true(first_rows > 0 && other_rows == 1);
    return first_rows + other_rows;
}

// As long as what the rank did in the step, on a row of its own below it.
static void a_trace_shows_what_ranks_sent_each_other_next_to_their_actions(void **state)
{
    (void)state;
    const struct dp_action_span spans[] = {
        {.kind = DP_ACTION_F, .step = 1, .start_ns = 0, .end_ns = 9000},
        {.kind = DP_ACTION_F, .step = 2, .start_ns = 10000, .end_ns = 12000, .own_ns = 1500},
        {.kind = DP_ACTION_B, .step = 2, .start_ns = 13000, .end_ns = 17000},
        {.rank = 1, .kind = DP_ACTION_B, .step = 2, .start_ns = 11000, .end_ns = 30000},
        {.rank = 1,
         .replica = 1,
         .kind = DP_ACTION_B,
         .step = 2,
         .start_ns = 20000,
         .end_ns = 21000},
    };
    const struct dp_trace_comm comms[] = {
        {.step = 2, .kind = "dispatch(F)", .moves = 12, .total_ns = 3000000, .exposed_ns = 250000},
        {.step = 2, .kind = "hop(B)", .moves = 1, .total_ns = 4, .exposed_ns = 4},
        {.rank = 1, .replica = 1, .step = 2, .kind = "combine(B)", .moves = 2, .total_ns = 7000},
        {.step = 3, .kind = "of a step without spans", .moves = 1},
        {.rank = -1, .step = 2, .kind = "of no rank", .moves = 1},
        {.replica = DP_RANKS_MAX, .step = 2, .kind = "of no replica", .moves = 1},
    };
    const struct dp_trace_track track = {.name = "measured",
                                         .pipeline = 2,
                                         .spans = spans,
                                         .count = 5,
                                         .comms = comms,
                                         .comm_count = DP_ARRAY_LENGTH(comms)};
    json_t *root;
    json_t *events = trace_events(&track, 1, &root);
    const json_t *dispatch =
        event_named(events, "dispatch(F): 12 moves, 2.750 ms hidden, 0.250 ms exposed");
    assert_string_equal(text_of(dispatch, "cat"), "communication");
    assert_true(number_of(dispatch, "ts") == 10 && number_of(dispatch, "dur") == 7);
    const json_t *arguments = json_object_get(dispatch, "args");
    assert_string_equal(text_of(arguments, "kind"), "dispatch(F)");
    assert_true(number_of(arguments, "moves") == 12 && number_of(arguments, "step") == 2);
    assert_true(number_of(arguments, "total_us") == 3000);
    assert_true(number_of(arguments, "hidden_us") == 2750);
    assert_true(number_of(arguments, "exposed_us") == 250);
    const int32_t rows = expect_rows(events, number_of(dispatch, "tid"));
    const json_t *combine =
        event_named(events, "combine(B): 2 moves, 0.007 ms hidden, 0.000 ms exposed");
    assert_int_equal(number_of(combine, "pid"), 2);
    assert_true(number_of(combine, "ts") == 20 && number_of(combine, "dur") == 1);
    assert_int_equal(
        number_of(event_named(events, "hop(B): 1 moves, 0.000 ms hidden, 0.000 ms exposed"), "tid"),
        number_of(dispatch, "tid"));
    // 2 processes, 3 threads of actions, 5 spans, 3 kinds; what is of nobody is left out.
    assert_int_equal(json_array_size(events), 2 + 3 + rows + 5 + 3);
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event)
    {
        const json_t *own = json_object_get(json_object_get(event, "args"), "own_us");
        assert_int_equal(own != NULL, number_of(event, "dur") == 2);
        assert_true(own == NULL || json_number_value(own) == 1.5);
    }
    json_decref(root);
}

// int64_t counts 292 years of nanoseconds; a forward may take 31, and a clock may say anything.
static void a_trace_holds_times_that_nanoseconds_cannot(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 2, 8);
    struct dp_sim_result result = simulate_uniform(
        &schedule, (struct dp_sim_uniform){.f = 1e9, .b = 1e9, .fb = 1e9, .fi = 1e9});
    struct dp_action_span *spans;
    size_t count;
    dp_render_spans(&schedule, &result, 0, &spans, &count);
    struct dp_trace_track track = {.name = "long", .pipeline = 2, .spans = spans, .count = count};
    json_t *root;
    json_t *events = trace_events(&track, 1, &root);
    double latest = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        if (strcmp(text_of(event, "ph"), "X") == 0) {
            assert_true(number_of(event, "ts") >= 0 && number_of(event, "dur") >= 0);
            latest = number_of(event, "ts") > latest ? number_of(event, "ts") : latest;
        }
    }
    assert_true(latest == (double)INT64_MAX / 1e3);
    json_decref(root);
    const struct dp_action_span measured[] = {
        {.kind = DP_SPAN_WAIT, .start_ns = INT64_MIN, .end_ns = INT64_MIN + 1000},
        {.kind = DP_SPAN_WAIT, .start_ns = INT64_MAX - 1000, .end_ns = INT64_MAX}};
    track.spans = measured;
    track.count = 2;
    events = trace_events(&track, 1, &root);
    const json_t *last = json_array_get(events, json_array_size(events) - 1);
    assert_true(number_of(last, "ts") == 0x1p64 / 1e3 && number_of(last, "dur") == 1);
    json_decref(root);
    free(spans);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_shows_measured_and_predicted_side_by_side),
        cmocka_unit_test(a_trace_shows_what_ranks_sent_each_other_next_to_their_actions),
        cmocka_unit_test(a_trace_holds_times_that_nanoseconds_cannot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
