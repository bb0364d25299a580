#include "dp_test.h"

#include "dp/check.h"
#include "dp/csv.h"
#include "dp/rand.h"

static struct dp_csv_cell cell_of(const char *text)
{
    return (struct dp_csv_cell){.text = text, .length = strlen(text), .column = 1};
}

static void assert_cell(const struct dp_csv_cell *cell, const char *text, int column)
{
    char got[64];
    snprintf(got, sizeof(got), "%.*s", (int)cell->length, cell->text);
    assert_string_equal(got, text);
    assert_int_equal(cell->column, column);
}

static void cells_are_trimmed_and_know_their_column_in_characters(void **state)
{
    (void)state;
    const char text[] = "\xef\xbb\xbf# a comment\n\n  \r\na, \xc3\xa4\xc3\xb6 ,c\r\n,\nlast";
    struct dp_csv csv;
    struct dp_csv_cell cells[4];
    size_t count;
    dp_csv_init(&csv, text, strlen(text));
    assert_true(dp_csv_next(&csv, cells, 4, &count));
    assert_int_equal(count, 3);
    assert_int_equal(csv.line, 4);
    assert_cell(&cells[0], "a", 1);
    assert_cell(&cells[1], "\xc3\xa4\xc3\xb6", 4);
    assert_cell(&cells[2], "c", 8);
    assert_true(dp_csv_next(&csv, cells, 4, &count));
    assert_int_equal(count, 2);
    assert_cell(&cells[0], "", 1);
    assert_cell(&cells[1], "", 2);
    assert_true(dp_csv_next(&csv, cells, 4, &count));
    assert_int_equal(csv.line, 6);
    assert_cell(&cells[0], "last", 1);
    assert_false(dp_csv_next(&csv, cells, 4, &count));
}

static void cells_beyond_those_asked_for_are_counted_and_not_stored(void **state)
{
    (void)state;
    struct dp_csv csv;
    struct dp_csv_cell cells[2];
    size_t count;
    dp_csv_init(&csv, "1,2,3,4", 7);
    assert_true(dp_csv_next(&csv, cells, 2, &count));
    assert_int_equal(count, 4);
    assert_cell(&cells[1], "2", 3);
}

static void only_plain_decimals_are_numbers(void **state)
{
    (void)state;
    static const char *const bad[] = {"",     "-",   ".",     "1e",  "0x10",  "inf", "nan",
                                      "1.5s", "1 2", "1e999", "--1", "1.2.3", "e5",  "+"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(bad); i++) {
        double value;
        struct dp_csv_cell cell = cell_of(bad[i]);
        if (dp_csv_number(&cell, &value)) {
            fail_msg("%s was read as %g", bad[i], value);
        }
    }
    struct dp_csv_cell with_zero = {.text = "1\0002", .length = 3, .column = 1};
    double value;
    assert_false(dp_csv_number(&with_zero, &value));
    struct dp_csv_cell cell = cell_of("-1.25e-3");
    assert_true(dp_csv_number(&cell, &value));
    assert_true(value == -0.00125);
    cell = cell_of("0.8486716747283936");
    assert_true(dp_csv_number(&cell, &value));
    assert_true(value == 0.8486716747283936);
}

static void integers_have_at_most_eighteen_digits(void **state)
{
    (void)state;
    int64_t value;
    struct dp_csv_cell cell = cell_of("999999999999999999");
    assert_true(dp_csv_integer(&cell, &value));
    assert_true(value == 999999999999999999);
    cell = cell_of("-7");
    assert_true(dp_csv_integer(&cell, &value));
    assert_true(value == -7);
    static const char *const bad[] = {"", "-", "1.0", "+1", "1000000000000000000", "1e3", " 1"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(bad); i++) {
        cell = cell_of(bad[i]);
        assert_false(dp_csv_integer(&cell, &value));
    }
}

// The diagnostics of reading `text`'s header for the columns alpha (needed) and beta.
static void check_header(const char *text, bool strict, const char *wanted)
{
    static const struct dp_csv_column columns[] = {{"alpha", true}, {"beta", false}};
    struct dp_diags diags;
    dp_diags_init(&diags, "t.csv", text, strlen(text));
    struct dp_csv csv;
    dp_csv_init(&csv, text, strlen(text));
    int positions[2];
    size_t cells;
    bool good = dp_csv_header(&csv, columns, 2, strict, positions, &cells, &diags);
    struct dp_error err = {0};
    dp_status status = dp_diags_status(&diags, &err);
    if (wanted == NULL) {
        assert_ok(status, &err);
        assert_true(good);
    } else {
        assert_false(good);
        assert_refused(status, DP_INVALID, &err, wanted);
    }
    dp_diags_deinit(&diags);
}

static void a_header_names_missing_repeated_and_unknown_columns(void **state)
{
    (void)state;
    check_header("beta,alpha\n", true, NULL);
    check_header("gamma,alpha\n", false, NULL);
    check_header("gamma,alpha\n", true, "t.csv:1:1: unknown column \"gamma\"");
    check_header("gamma,alpha\n", true, "columns are alpha, beta");
    check_header("alpha,betta\n", false, "did you mean beta?");
    check_header("\nbeta,beta\n", true, "t.csv:2:6: column beta is there twice");
    check_header("beta\n", true, "t.csv:1:1: column alpha is missing");
    check_header("# nothing\n", true, "the file is empty");
}

static void any_bytes_are_split_without_reading_beyond_them(void **state)
{
    (void)state;
    static const char alphabet[] = ",\n\r #a1.\xef\xbb\xbf\xc3";
    struct dp_rand rand;
    dp_rand_init(&rand, 5);
    for (long run = 0; run < dp_fuzz_runs(3000); run++) {
        size_t length = dp_rand_u64(&rand) % 40;
        char *text = malloc(length + 1);
        size_t commas = 0;
        for (size_t i = 0; i < length; i++) {
            text[i] = alphabet[dp_rand_u64(&rand) % (sizeof(alphabet) - 1)];
        }
        struct dp_csv csv;
        struct dp_csv_cell cells[3];
        size_t count;
        dp_csv_init(&csv, text, length);
        while (dp_csv_next(&csv, cells, 3, &count)) {
            commas += count - 1;
            for (size_t i = 0; i < count && i < 3; i++) {
                assert_true(cells[i].text >= text);
                assert_true(cells[i].text + cells[i].length <= text + length);
            }
        }
        assert_true(commas <= length);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_are_trimmed_and_know_their_column_in_characters),
        cmocka_unit_test(cells_beyond_those_asked_for_are_counted_and_not_stored),
        cmocka_unit_test(only_plain_decimals_are_numbers),
        cmocka_unit_test(integers_have_at_most_eighteen_digits),
        cmocka_unit_test(a_header_names_missing_repeated_and_unknown_columns),
        cmocka_unit_test(any_bytes_are_split_without_reading_beyond_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
