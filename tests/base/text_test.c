// Buffers, errors, statuses, diagnostics, logging and UTF-8.

#include "dp_test.h"

#include <errno.h>
#include <stdlib.h>

#include "dp/buf.h"
#include "dp/cleanup.h"
#include "dp/diag.h"
#include "dp/log.h"
#include "dp/status.h"
#include "dp/utf8.h"

static void a_buffer_grows_and_stays_terminated(void **state)
{
    (void)state;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf buf = {0};
    size_t expected = 0;
    for (int i = 0; i < 1000; i++) {
        dp_buf_printf(&buf, "%d,", i);
        expected += (size_t)snprintf(NULL, 0, "%d,", i);
        assert_int_equal(buf.length, expected);
        assert_int_equal(buf.bytes[buf.length], 0);
    }
    assert_memory_equal(buf.bytes, "0,1,2,3,", 8);
    dp_buf_consume(&buf, 4);
    assert_memory_equal(buf.bytes, "2,3,", 4);
    assert_int_equal(buf.length, expected - 4);
    dp_buf_clear(&buf);
    assert_string_equal(buf.bytes, "");
}

static void what_is_taken_from_a_buffer_is_never_null(void **state)
{
    (void)state;
    struct dp_buf buf = {0};
    DP_AUTO_FREE char *nothing = dp_buf_take(&buf);
    assert_string_equal(nothing, "");
    dp_buf_puts(&buf, "abc");
    DP_AUTO_FREE char *text = dp_buf_take(&buf);
    assert_string_equal(text, "abc");
    assert_null(buf.bytes);
}

static void an_error_collects_what_was_being_done(void **state)
{
    (void)state;
    struct dp_error err = {0};
    assert_int_equal(dp_fail(&err, DP_NOT_FOUND, "no file %s", "a"), DP_NOT_FOUND);
    assert_int_equal(dp_fail_in(&err, "reading job %d", 7), DP_NOT_FOUND);
    assert_string_equal(err.message, "reading job 7: no file a");
    assert_int_equal(err.status, DP_NOT_FOUND);
}

static void an_error_may_be_ignored(void **state)
{
    (void)state;
    assert_int_equal(dp_fail(NULL, DP_IO, "x"), DP_IO);
}

static void an_over_long_error_is_cut_not_overrun(void **state)
{
    (void)state;
    struct dp_error err = {0};
    char long_text[3 * DP_ERROR_MESSAGE_MAX];
    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    dp_fail(&err, DP_INVALID, "%s", long_text);
    assert_true(strlen(err.message) < DP_ERROR_MESSAGE_MAX);
    dp_fail_in(&err, "%s", long_text);
    assert_true(strlen(err.message) < DP_ERROR_MESSAGE_MAX);
}

static void errno_chooses_the_nearest_status(void **state)
{
    (void)state;
    struct dp_error err = {0};
    assert_int_equal(dp_fail_errno(&err, ENOENT, "open"), DP_NOT_FOUND);
    assert_non_null(strstr(err.message, "No such file"));
    assert_int_equal(dp_fail_errno(&err, EACCES, "open"), DP_DENIED);
    assert_int_equal(dp_fail_errno(&err, EIO, "open"), DP_IO);
}

static void statuses_answer_with_the_documented_exit_codes(void **state)
{
    (void)state;
    const struct {
        dp_status status;
        int exit;
    } table[] = {{DP_OK, 0},
                 {DP_INTERNAL, 1},
                 {DP_USAGE, 2},
                 {DP_INVALID, 3},
                 {DP_NOT_FOUND, 4},
                 {DP_DENIED, 5},
                 {DP_CONFLICT, 6},
                 {DP_UNSCHEDULABLE, 7},
                 {DP_UNAVAILABLE, 8},
                 {DP_TIMEOUT, 8},
                 {DP_JOB_FAILED, 9},
                 {DP_JOB_CANCELLED, 10},
                 {DP_PLAN_DIFFERS, 20},
                 {DP_INTERRUPTED, 130}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_int_equal(dp_status_exit_code(table[i].status), table[i].exit);
    }
}

static void every_status_has_a_name_and_a_text(void **state)
{
    (void)state;
    for (int i = 0; i < DP_STATUS_COUNT; i++) {
        assert_string_not_equal(dp_status_name((dp_status)i), "UNKNOWN");
        assert_string_not_equal(dp_status_text((dp_status)i), "unknown status");
        assert_in_range(dp_status_grpc_code((dp_status)i), 0, 16);
    }
    assert_string_equal(dp_status_name((dp_status)1000), "UNKNOWN");
}

static void a_grpc_code_from_a_peer_finds_its_status(void **state)
{
    (void)state;
    assert_int_equal(dp_status_from_grpc(0), DP_OK);
    assert_int_equal(dp_status_from_grpc(5), DP_NOT_FOUND);
    assert_int_equal(dp_status_from_grpc(14), DP_UNAVAILABLE);
    assert_int_equal(dp_status_from_grpc(12345), DP_INTERNAL);
}

static void problems_show_file_line_column_source_and_caret(void **state)
{
    (void)state;
    const char text[] = "a = 1\nbb = \"\xc3\xa4\" # x\nccc = 3";
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, "job.toml", text, strlen(text));
    dp_diags_add(&diags, 2, 8, "write x", "bad %s", "thing");
    dp_diags_add(&diags, 3, 1, NULL, "last line");
    dp_diags_add(&diags, 0, 0, NULL, "whole file");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    dp_diags_render(&diags, &out);
    assert_string_equal(out.bytes, "error: job.toml:2:8: bad thing\n"
                                   "    bb = \"\xc3\xa4\" # x\n"
                                   "           ^\n"
                                   "help: write x\n"
                                   "error: job.toml:3:1: last line\n"
                                   "    ccc = 3\n"
                                   "    ^\n"
                                   "error: job.toml: whole file\n");
}

// Where columns count characters, whatever these are made of.
static void a_long_line_is_shown_around_its_column(void **state)
{
    (void)state;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    for (int i = 0; i < 500; i++) {
        dp_buf_puts(&text, i == 299 ? "X" : i % 3 == 0 ? "\xc3\xa4" : "b");
    }
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, "f", text.bytes, text.length);
    dp_diags_add(&diags, 1, 300, NULL, "here");
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    dp_diags_render(&diags, &out);
    const char *line = strstr(out.bytes, "\n... ");
    assert_non_null(line);
    const char *caret = strchr(line + 1, '\n') + 1;
    int before = 0;
    for (const char *c = line + 1; *c != 'X'; c++) {
        before += ((unsigned char)*c & 0xc0) != 0x80;
    }
    assert_int_equal(strspn(caret, " "), before);
    assert_string_equal(caret + before, "^\n");
}

static void problems_beyond_the_limit_are_counted(void **state)
{
    (void)state;
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, "f", NULL, 0);
    for (int i = 0; i < DP_DIAGS_MAX + 3; i++) {
        dp_diags_add(&diags, i + 1, 1, NULL, "problem %d", i);
    }
    struct dp_error err = {0};
    assert_int_equal(dp_diags_status(&diags, &err), DP_INVALID);
    assert_non_null(strstr(err.message, "and 3 more problems"));
}

static void an_error_has_whole_problems_and_says_how_many_are_left(void **state)
{
    (void)state;
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, "f", NULL, 0);
    for (int i = 0; i < 10; i++) {
        dp_diags_add(&diags, i + 1, 1, NULL, "%0900d.", i);
    }
    struct dp_error err = {0};
    assert_int_equal(dp_diags_status(&diags, &err), DP_INVALID);
    assert_non_null(strstr(err.message, "3.\nand 6 more problems"));
    assert_true(strlen(err.message) < DP_ERROR_MESSAGE_MAX);
}

static void a_near_word_is_suggested_and_a_far_one_is_not(void **state)
{
    (void)state;
    const char *const words[] = {"micro_batch_size", "microbatches", "data", "expert", NULL};
    assert_string_equal(dp_suggest("microbatchs", words), "microbatches");
    assert_string_equal(dp_suggest("dat", words), "data");
    assert_string_equal(dp_suggest("experts", words), "expert");
    assert_null(dp_suggest("zebra", words));
    assert_null(dp_suggest("", words));
    assert_null(dp_suggest("xx", words));
}

static void log_values_are_quoted_when_they_must_be(void **state)
{
    (void)state;
    char buffer[64];
    assert_string_equal(dp_log_quote(buffer, sizeof(buffer), "plain"), "plain");
    assert_string_equal(dp_log_quote(buffer, sizeof(buffer), ""), "\"\"");
    assert_string_equal(dp_log_quote(buffer, sizeof(buffer), "a b"), "\"a b\"");
    assert_string_equal(dp_log_quote(buffer, sizeof(buffer), "q\"\\"), "\"q\\\"\\\\\"");
    assert_string_equal(dp_log_quote(buffer, sizeof(buffer), "two\nlines"), "\"two lines\"");
    char small[8];
    assert_true(strlen(dp_log_quote(small, sizeof(small), "far too long a value")) < sizeof(small));
}

static void utf8_refuses_what_rfc_3629_refuses(void **state)
{
    (void)state;
    const struct {
        const char *bytes;
        bool valid;
    } table[] = {
        {"plain", true},         {"\xc3\xa4", true},
        {"\xe2\x82\xac", true},  {"\xf0\x9f\x98\x80", true},
        {"\xc0\xaf", false},     {"\xe0\x80\xaf", false},
        {"\xed\xa0\x80", false}, {"\xf4\x90\x80\x80", false},
        {"\xff", false},         {"\xc3", false},
        {"a\x80", false},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_int_equal(dp_utf8_valid(table[i].bytes, strlen(table[i].bytes)), table[i].valid);
    }
    assert_int_equal(dp_utf8_cut("ab\xc3\xa4", 4, 3), 2);
}

static void what_a_terminal_would_obey_is_overwritten(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *kept, *clean;
    } table[] = {
        {"plain \xc3\xa4 \xe2\x82\xac", "", "plain \xc3\xa4 \xe2\x82\xac"},
        {"a\033[2Jb\x7f", "", "a?[2Jb?"},
        {"a\tb\nc\r", "\t\n", "a\tb\nc?"},
        {"\xc2\x9b 31m \xc2\xa0", "", "?? 31m \xc2\xa0"},
        {"\xff\x9b\xc3", "", "???"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char text[32];
        snprintf(text, sizeof(text), "%s", table[i].bytes);
        bool same = strcmp(text, table[i].clean) == 0;
        assert_int_equal(dp_utf8_is_clean(text, strlen(text), table[i].kept), same);
        dp_utf8_clean(text, strlen(text), table[i].kept);
        assert_string_equal(text, table[i].clean);
    }
    assert_false(dp_utf8_is_clean("a\0b", 3, "\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_grows_and_stays_terminated),
        cmocka_unit_test(what_is_taken_from_a_buffer_is_never_null),
        cmocka_unit_test(an_error_collects_what_was_being_done),
        cmocka_unit_test(an_error_may_be_ignored),
        cmocka_unit_test(an_over_long_error_is_cut_not_overrun),
        cmocka_unit_test(errno_chooses_the_nearest_status),
        cmocka_unit_test(statuses_answer_with_the_documented_exit_codes),
        cmocka_unit_test(every_status_has_a_name_and_a_text),
        cmocka_unit_test(a_grpc_code_from_a_peer_finds_its_status),
        cmocka_unit_test(problems_show_file_line_column_source_and_caret),
        cmocka_unit_test(a_long_line_is_shown_around_its_column),
        cmocka_unit_test(problems_beyond_the_limit_are_counted),
        cmocka_unit_test(an_error_has_whole_problems_and_says_how_many_are_left),
        cmocka_unit_test(a_near_word_is_suggested_and_a_far_one_is_not),
        cmocka_unit_test(log_values_are_quoted_when_they_must_be),
        cmocka_unit_test(utf8_refuses_what_rfc_3629_refuses),
        cmocka_unit_test(what_a_terminal_would_obey_is_overwritten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
