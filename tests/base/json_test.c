#include "dp_test.h"

#include "dp/json.h"

static dp_status parse(const char *text, size_t max, json_t **ret_json, struct dp_error *err)
{
    return dp_json_parse(text, strlen(text), max, "input", ret_json, err);
}

static void a_document_is_written_as_it_was_read(void **state)
{
    (void)state;
    struct dp_error err = {0};
    const char text[] = "{\"z\":1,\"a\":[true,null,\"\\u00e4\",0.1],\"m\":{}}";
    DP_AUTO_JSON json_t *json = NULL;
    assert_ok(parse(text, 1000, &json, &err), &err);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf out = {0};
    dp_json_write(json, 0, &out);
    assert_string_equal(out.bytes, "{\"z\":1,\"a\":[true,null,\"\xc3\xa4\",0.1],\"m\":{}}");
}

static void bad_json_is_refused_with_its_position(void **state)
{
    (void)state;
    struct dp_error err = {0};
    json_t *json = NULL;
    assert_refused(parse("{\"a\":\n 1,}", 1000, &json, &err), DP_INVALID, &err, "input:2:");
    assert_refused(parse("{\"a\":1,\"a\":2}", 1000, &json, &err), DP_INVALID, &err, "input:");
    assert_refused(parse("", 1000, &json, &err), DP_INVALID, &err, "input:");
    assert_refused(parse("{\"a\":1} x", 1000, &json, &err), DP_INVALID, &err, "input:");
    assert_refused(parse("[1,2,3]", 3, &json, &err), DP_TOO_LARGE, &err, "input");
}

static void a_mark_at_the_start_is_no_part_of_the_text(void **state)
{
    (void)state;
    struct dp_error err = {0};
    DP_AUTO_JSON json_t *json = NULL;
    assert_ok(parse("\xef\xbb\xbf[7]", 100, &json, &err), &err);
    assert_int_equal(json_integer_value(json_array_get(json, 0)), 7);
    assert_refused(parse("\xef\xbb\xbf", 100, &json, &err), DP_INVALID, &err, "input:");
}

static void a_zero_in_a_text_is_refused_in_plain_words(void **state)
{
    (void)state;
    struct dp_error err = {0};
    json_t *json = NULL;
    assert_refused(parse("[\"a\\u0000b\"]", 100, &json, &err), DP_INVALID, &err,
                   "input:1:11: a text must not hold \\u0000");
    assert_refused(parse("{\"a\\u0000b\":1}", 100, &json, &err), DP_INVALID, &err,
                   "must not hold \\u0000");
    assert_null(strstr(err.message, "JSON_ALLOW"));
}

static void nesting_without_end_is_refused_not_followed(void **state)
{
    (void)state;
    struct dp_error err = {0};
    json_t *json = NULL;
    char text[100001];
    memset(text, '[', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(parse(text, sizeof(text), &json, &err), DP_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_document_is_written_as_it_was_read),
        cmocka_unit_test(bad_json_is_refused_with_its_position),
        cmocka_unit_test(a_mark_at_the_start_is_no_part_of_the_text),
        cmocka_unit_test(a_zero_in_a_text_is_refused_in_plain_words),
        cmocka_unit_test(nesting_without_end_is_refused_not_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
