// TOML documents with positions.

#include "dp_test.h"

#include "dp/cleanup.h"
#include "dp/rand.h"
#include "dp/toml.h"

DP_DEFINE_CLEANUP(cleanup_toml, struct dp_toml, dp_toml_free)

static dp_status parse(const char *text, size_t length, struct dp_toml **ret_toml,
                       struct dp_error *err)
{
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, "t.toml", text, length);
    return dp_toml_parse(text, length, &diags, ret_toml, err);
}

static void values_keep_type_and_position(void **state)
{
    (void)state;
    struct dp_error err = {0};
    const char text[] = "i = -3\n"
                        "f = 2.5e1\n"
                        "b = true\n"
                        "s = \"a\\nb\"\n"
                        "d = 2024-02-29\n"
                        "[t.u]\n"
                        "  a = [1, \"x\"]\n";
    DP_CLEANUP(cleanup_toml) struct dp_toml *toml = NULL;
    assert_ok(parse(text, strlen(text), &toml, &err), &err);
    const struct dp_toml_node *root = dp_toml_root(toml);
    assert_int_equal(root->type, DP_TOML_TABLE);
    const struct dp_toml_node *node = dp_toml_get(root, "i");
    assert_int_equal(node->type, DP_TOML_INTEGER);
    assert_int_equal(node->value.integer, -3);
    assert_int_equal(node->key_line, 1);
    assert_int_equal(node->key_column, 1);
    assert_int_equal(node->column, 5);
    node = dp_toml_get(root, "f");
    assert_int_equal(node->type, DP_TOML_FLOAT);
    assert_true(node->value.number > 24.999 && node->value.number < 25.001);
    assert_int_equal(node->line, 2);
    assert_true(dp_toml_get(root, "b")->value.boolean);
    node = dp_toml_get(root, "s");
    assert_string_equal(node->value.string, "a\nb");
    assert_int_equal(node->string_length, 3);
    node = dp_toml_get(root, "d");
    assert_int_equal(node->type, DP_TOML_DATETIME);
    assert_string_equal(node->value.string, "2024-02-29");
    node = dp_toml_get(dp_toml_get(dp_toml_get(root, "t"), "u"), "a");
    assert_int_equal(node->type, DP_TOML_ARRAY);
    assert_int_equal(node->children_count, 2);
    assert_int_equal(node->key_line, 7);
    assert_int_equal(node->key_column, 3);
    assert_string_equal(node->children[1].value.string, "x");
    assert_null(dp_toml_get(root, "absent"));
}

static void children_come_in_the_order_of_the_file(void **state)
{
    (void)state;
    struct dp_error err = {0};
    const char text[] = "zz = 1\naa = 2\nmm = 3\n";
    DP_CLEANUP(cleanup_toml) struct dp_toml *toml = NULL;
    assert_ok(parse(text, strlen(text), &toml, &err), &err);
    const struct dp_toml_node *root = dp_toml_root(toml);
    assert_string_equal(root->children[0].key, "zz");
    assert_string_equal(root->children[1].key, "aa");
    assert_string_equal(root->children[2].key, "mm");
}

static void a_syntax_error_has_its_position(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_toml *toml = NULL;
    const char *const texts[] = {"a = 1\nb = = 2\n",  "a = 1\nb = 99999999999999999999\n",
                                 "a = 1\na = 2\n",    "a = 1\n[b\n",
                                 "a = 1\nb = \"open", "a = 1\nb = 1_\n",
                                 "a = 1\nb = \xff\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_refused(parse(texts[i], strlen(texts[i]), &toml, &err), DP_INVALID, &err,
                       "t.toml:2:");
        assert_null(toml);
    }
}

static void too_large_and_too_deep_inputs_never_reach_the_parser(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_toml *toml = NULL;
    static char text[DP_SPEC_BYTES_MAX + 1];
    memset(text, '#', sizeof(text));
    assert_refused(parse(text, sizeof(text), &toml, &err), DP_TOO_LARGE, &err, "limit");
    memset(text, '[', 100000);
    assert_refused(parse(text, 100000, &toml, &err), DP_INVALID, &err, "nested deeper");
    memcpy(text, "a = ", 4);
    assert_refused(parse(text, 100000, &toml, &err), DP_INVALID, &err, "nested deeper");
    for (size_t i = 0; i < 100000; i += 2) {
        memcpy(text + i, "a.", 2);
    }
    assert_refused(parse(text, 100000, &toml, &err), DP_INVALID, &err, "nested deeper");
}

// Whatever the bytes, the parser answers with a document or one refusal.
// Each opening would hide what follows from a scan that mistakes where a string or comment ends.
static void a_bomb_is_found_behind_any_string(void **state)
{
    (void)state;
    static const char *const openings[] = {
        "x = [\"\"\"\n# \"\"\", ",   "x = ['''\n# ''', ",       "x = [\"\"\"a\"\"\"\"\", ",
        "x = ['''a''''', ",          "x = [\"\\\"\", ",         "x = ['\\', ",
        "x = [\"\"\"\\\"\"\"\"\", ", "x = [\"#\", # \"\"\"\n ", "x = [\"\", ",
    };
    for (size_t i = 0; i < sizeof openings / sizeof openings[0]; i++) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dp_buf_printf(&text, "%s{a", openings[i]);
        for (int dots = 0; dots < 200000; dots++) {
            dp_buf_puts(&text, ".a");
        }
        dp_buf_puts(&text, " = 1}]\n");
        struct dp_error err = {0};
        DP_CLEANUP(cleanup_toml) struct dp_toml *toml = NULL;
        assert_refused(parse(text.bytes, text.length, &toml, &err), DP_INVALID, &err, "deeper");
        // The same with a shallow key is a document.
        dp_buf_clear(&text);
        dp_buf_printf(&text, "%s{a.b = 1}]\n", openings[i]);
        assert_ok(parse(text.bytes, text.length, &toml, &err), &err);
    }
}

static void flat_values_are_not_deep(void **state)
{
    (void)state;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_puts(&text, "s = \"\"\"................................................\"\"\"\nf = [");
    for (int i = 0; i < 100; i++) {
        dp_buf_puts(&text, "1.5, ");
    }
    dp_buf_puts(&text, "2.5]\n");
    struct dp_error err = {0};
    DP_CLEANUP(cleanup_toml) struct dp_toml *toml = NULL;
    assert_ok(parse(text.bytes, text.length, &toml, &err), &err);
    assert_int_equal(dp_toml_get(dp_toml_root(toml), "f")->children_count, 101);
}

static void damaged_documents_are_answered(void **state)
{
    (void)state;
    const char good[] = "name = \"x\"\n[a]\nb = [1, 2.5, {c = true}]\n[[d]]\ne = '''z'''\n";
    struct dp_rand rand;
    dp_rand_init(&rand, 5);
    for (long round = 0; round < dp_fuzz_runs(3000); round++) {
        char text[sizeof(good)];
        memcpy(text, good, sizeof(good));
        size_t length = sizeof(good) - 1;
        for (uint64_t hits = 1 + dp_rand_below(&rand, 4); hits > 0; hits--) {
            text[dp_rand_below(&rand, length)] = (char)dp_rand_below(&rand, 256);
        }
        length -= dp_rand_below(&rand, 10);
        struct dp_error err = {0};
        DP_CLEANUP(cleanup_toml) struct dp_toml *toml = NULL;
        dp_status status = parse(text, length, &toml, &err);
        assert_true(status == DP_OK || status == DP_INVALID);
        assert_int_equal(toml != NULL, status == DP_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_keep_type_and_position),
        cmocka_unit_test(children_come_in_the_order_of_the_file),
        cmocka_unit_test(a_syntax_error_has_its_position),
        cmocka_unit_test(too_large_and_too_deep_inputs_never_reach_the_parser),
        cmocka_unit_test(a_bomb_is_found_behind_any_string),
        cmocka_unit_test(flat_values_are_not_deep),
        cmocka_unit_test(damaged_documents_are_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
