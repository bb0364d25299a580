#include "pipeline.h"

#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"

#define HEADER "dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc\n"

static dp_status read_trace(const char *text, size_t length, struct dp_replay_op **ret_ops,
                            size_t *ret_count, struct dp_error *err)
{
    // A copy of exactly this size, so that reading beyond it is seen.
    DP_AUTO_FREE char *exact = malloc(length > 0 ? length : 1);
    memcpy(exact, text, length);
    return dp_replay_read_csv("t.csv", exact, length, ret_ops, ret_count, err);
}

static void columns_may_stand_in_any_order_among_others(void **state)
{
    (void)state;
    static const char text[] = "\xef\xbb\xbf# recorded by hand\r\n"
                               "host,duration,optype,seq_id,step,rank,stage,dp_rank,start_ts\r\n"
                               "n1, 2.5e-1 ,gc,3,9,12,1,2,-1.5\r\n"
                               "\r\n"
                               "n2,0,optimizer,0,9,0,0,0,7\r\n";
    struct dp_error err = {0};
    DP_AUTO_FREE struct dp_replay_op *ops = NULL;
    size_t count = 0;
    assert_ok(read_trace(text, strlen(text), &ops, &count, &err), &err);
    assert_int_equal(count, 2);
    assert_int_equal(ops[0].dp_rank, 2);
    assert_int_equal(ops[0].stage, 1);
    assert_int_equal(ops[0].rank, 12);
    assert_int_equal(ops[0].step, 9);
    assert_int_equal(ops[0].seq, 3);
    assert_int_equal(ops[0].kind, DP_REPLAY_GC);
    assert_true(ops[0].start == -1.5 && ops[0].duration == 0.25);
    assert_int_equal(ops[0].mc, -1);
    assert_int_equal(ops[0].gmc, -1);
    assert_int_equal(ops[0].line, 3);
    assert_int_equal(ops[1].line, 5);
}

static void problems_are_named_with_line_and_column(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "t.csv: the file is empty"},
        {HEADER, "t.csv: no operations after the header"},
        {"dp_rank,stage,rank,step,optype,start_ts,seq_id\n0,0,0,0,gc,0,0\n",
         "t.csv:1:1: column duration is missing"},
        {"dp_rank,dp_rank,stage,rank,step,optype,start_ts,duration,seq_id\n",
         "t.csv:1:9: column dp_rank is there twice"},
        {"dp_rank,stage,rank,step,op_type,start_ts,duration,seq_id\n", "did you mean optype?"},
        {HEADER "0,0,0,0,gc,0,0,0,0,0\n", "t.csv:2:1: 10 cells; the header has 11"},
        {HEADER "0,0,0,0,gc,0,0,0,0,0,0,\n", "t.csv:2:1: 12 cells; the header has 11"},
        {HEADER "0,0,0,0,forward-compote,0,0,0,0,0,0\n",
         "t.csv:2:9: unknown optype \"forward-compote\""},
        {HEADER "0,0,0,0,forward-compote,0,0,0,0,0,0\n", "did you mean forward-compute?"},
        {HEADER "0,0,0,0,matmul,0,0,0,0,0,0\n", "types are forward-compute, backward-compute"},
        {HEADER "-1,0,0,0,gc,0,0,0,0,0,0\n", "dp_rank: \"-1\" is no whole number from 0 to 65535"},
        {HEADER "0,1024,0,0,gc,0,0,0,0,0,0\n", "stage: \"1024\" is no whole number from 0 to 1023"},
        {HEADER "0,0,x,0,gc,0,0,0,0,0,0\n", "t.csv:2:5: rank: \"x\""},
        {HEADER "0,0,0,0,gc,nan,0,0,0,0,0\n", "t.csv:2:12: start_ts: \"nan\" is no time"},
        {HEADER "0,0,0,0,gc,0,-1e-9,0,0,0,0\n", "t.csv:2:14: duration: \"-1e-9\" is no time"},
        {HEADER "0,0,0,0,gc,0,,0,0,0,0\n", "duration: \"\" is no time"},
        {HEADER "0,0,0,0,gc,0,0,1.5,0,0,0\n", "seq_id: \"1.5\" is no whole number"},
        {HEADER "0,0,0,0,gc,0,0,0,-2,0,0\n", "mc: \"-2\" is no whole number from -1 to 1023"},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        struct dp_error err = {0};
        struct dp_replay_op *ops = NULL;
        size_t count = 0;
        dp_status status = read_trace(cases[i].text, strlen(cases[i].text), &ops, &count, &err);
        assert_refused(status, DP_INVALID, &err, cases[i].part);
        assert_null(ops);
    }
}

static void all_problems_are_listed_up_to_a_limit(void **state)
{
    (void)state;
    struct dp_buf text = {0};
    dp_buf_puts(&text, HEADER);
    for (int i = 0; i < 100; i++) {
        dp_buf_puts(&text, "0,0,0,0,gc,x,y,0,0,0,0\n");
    }
    struct dp_error err = {0};
    struct dp_replay_op *ops = NULL;
    size_t count = 0;
    assert_refused(read_trace(text.bytes, text.length, &ops, &count, &err), DP_INVALID, &err,
                   "t.csv:2:12: start_ts");
    assert_non_null(strstr(err.message, "t.csv:2:14: duration"));
    assert_non_null(strstr(err.message, "t.csv:11:12: start_ts"));
    dp_buf_deinit(&text);
}

static void write_trace(const struct dp_replay_op *ops, size_t count, struct dp_buf *out)
{
    dp_buf_puts(out, HEADER);
    for (size_t i = 0; i < count; i++) {
        dp_buf_printf(out, "%d,%d,%d,%d,%s,%.17g,%.17g,%d,%d,%d,%d\n", ops[i].dp_rank, ops[i].stage,
                      ops[i].rank, ops[i].step, dp_replay_kind_text((dp_replay_kind)ops[i].kind),
                      ops[i].start, ops[i].duration, ops[i].seq, ops[i].mc, ops[i].microbatch,
                      ops[i].gmc);
    }
}

static struct plan small_plan(void)
{
    struct plan plan = plan_make(
        (struct pipeline){.replicas = 2, .stages = 2, .chunks = 1, .microbatches = 2, .steps = 1});
    for (size_t i = 0; i < plan.count; i++) {
        plan.ops[i].own = 0.1 + 0.01 * (double)(i % 7);
    }
    return plan;
}

static void a_written_trace_is_read_back_bit_for_bit(void **state)
{
    (void)state;
    struct plan plan = small_plan();
    DP_AUTO_FREE struct dp_replay_op *ops = plan_run(&plan, NULL);
    struct dp_buf text = {0};
    write_trace(ops, plan.count, &text);
    struct dp_error err = {0};
    DP_AUTO_FREE struct dp_replay_op *back = NULL;
    size_t count = 0;
    assert_ok(read_trace(text.bytes, text.length, &back, &count, &err), &err);
    assert_int_equal(count, plan.count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(back[i].line, i + 2);
        back[i].line = 0;
        assert_memory_equal(&back[i], &ops[i], sizeof(ops[i]));
    }
    dp_buf_deinit(&text);
    plan_deinit(&plan);
}

static void any_bytes_are_read_or_refused(void **state)
{
    (void)state;
    struct plan plan = small_plan();
    DP_AUTO_FREE struct dp_replay_op *ops = plan_run(&plan, NULL);
    struct dp_buf text = {0};
    write_trace(ops, plan.count, &text);
    struct dp_rand rand;
    dp_rand_init(&rand, 51);
    for (long run = 0; run < dp_fuzz_runs(1500); run++) {
        DP_AUTO_FREE char *copy = malloc(text.length);
        memcpy(copy, text.bytes, text.length);
        size_t length =
            dp_rand_below(&rand, 4) == 0 ? dp_rand_below(&rand, text.length) : text.length;
        for (size_t change = dp_rand_below(&rand, 4); change > 0; change--) {
            static const char bytes[] = "0123456789,,\n\n-.e\0#\xc3\xff";
            copy[dp_rand_below(&rand, text.length)] = bytes[dp_rand_below(&rand, sizeof(bytes))];
        }
        struct dp_error err = {0};
        DP_AUTO_FREE struct dp_replay_op *back = NULL;
        size_t count = 0;
        struct dp_replay_result result;
        dp_status status = read_trace(copy, length, &back, &count, &err);
        if (status == DP_OK) {
            status = dp_replay_analyze(back, count, &result, &err);
            if (status == DP_OK) {
                dp_replay_result_deinit(&result);
            }
        }
        assert_true(status == DP_OK || strlen(err.message) > 0);
    }
    dp_buf_deinit(&text);
    plan_deinit(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_may_stand_in_any_order_among_others),
        cmocka_unit_test(problems_are_named_with_line_and_column),
        cmocka_unit_test(all_problems_are_listed_up_to_a_limit),
        cmocka_unit_test(a_written_trace_is_read_back_bit_for_bit),
        cmocka_unit_test(any_bytes_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
