#include "support.h"

#include <stdlib.h>

#include "dp/rand.h"
#include "dp/schedule_audit.h"

static const struct {
    const char *family;
    int32_t p, m;
    int32_t v; // 0 = the family's own
} fixtures[] = {{"gpipe", 2, 4, 0},
                {"1f1b", 4, 8, 0},
                {"dualpipe", 4, 8, 0},
                {"dualpipev", 2, 4, 0},
                {"zb-v", 3, 7, 0},
                {"v-half", 4, 8, 0},
                {"v-half-late-w", 4, 8, 0},
                {"v-min", 3, 7, 0},
                {"interleaved", 2, 4, 0},
                {"interleaved", 3, 7, 3},
                {"interleaved-zb", 2, 4, 0},
                {"interleaved-zb", 3, 7, 3},
                {"zb-h1", 3, 5, 0},
                {"zb-h2", 3, 6, 0},
                {"chimera", 4, 4, 0},
                {"chimera", 4, 7, 0},
                {"hanayo", 3, 3, 0},
                {"hanayo", 2, 5, 4},
                {"dualpipe-full-b", 4, 8, 0},
                {"dualpipev-full-b", 2, 4, 0}};

static void assert_same(const struct dp_schedule *a, const struct dp_schedule *b)
{
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->pipeline, b->pipeline);
    assert_int_equal(a->microbatches, b->microbatches);
    assert_int_equal(a->stages, b->stages);
    assert_int_equal(a->directions, b->directions);
    assert_memory_equal(a->placement, b->placement, 2 * (size_t)a->stages * sizeof(int32_t));
    assert_memory_equal(a->rank_begin, b->rank_begin, ((size_t)a->pipeline + 1) * sizeof(size_t));
    assert_memory_equal(a->actions, b->actions,
                        dp_schedule_action_count(a) * sizeof(struct dp_action));
    assert_int_equal(dp_schedule_hash(a), dp_schedule_hash(b));
}

// What is written, read by jansson.
static json_t *tree_of(const struct dp_schedule *schedule)
{
    struct dp_error err = {0};
    json_t *json = NULL;
    struct dp_buf text = {0};
    dp_schedule_write_json(schedule, &text);
    assert_int_equal(text.length, dp_schedule_json_bytes(schedule));
    assert_ok(dp_json_parse(text.bytes, text.length, text.length, "written", &json, &err), &err);
    dp_buf_deinit(&text);
    return json;
}

static void every_family_survives_the_round_trip(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        int32_t p, m;
    } cases[] = {{"gpipe", 1, 1},      {"gpipe", 5, 3},       {"1f1b", 6, 13},
                 {"dualpipe", 2, 2},   {"dualpipe", 12, 30},  {"dualpipev", 1, 2},
                 {"dualpipev", 7, 15}, {"interleaved", 5, 9}, {"zb-h2", 4, 11},
                 {"chimera", 6, 11},   {"chimera", 2, 2},     {"hanayo", 4, 9}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_error err = {0};
        struct dp_schedule schedule = make_schedule(cases[i].family, cases[i].p, cases[i].m);
        struct dp_schedule back;
        json_t *json = tree_of(&schedule);
        assert_ok(dp_schedule_from_json(json, &back, &err), &err);
        assert_same(&schedule, &back);
        json_decref(json);
        dp_schedule_deinit(&schedule);
        dp_schedule_deinit(&back);
    }
}

// {"kind":"FB","forward":{...},"backward":{...}} and placement by rank, as documented.
static void the_form_is_the_documented_one(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("dualpipe", 2, 2);
    struct dp_buf text = {0};
    dp_schedule_write_json(&schedule, &text);
    assert_string_equal(
        text.bytes,
        "{\"schema\":\"dp.schedule/1\",\"name\":\"dualpipe\",\"pipeline\":2,\"microbatches\":2,"
        "\"stages\":2,\"placement\":[[0,1],[1,0]],\"ranks\":["
        "[{\"kind\":\"F\",\"stage\":0,\"microbatch\":0},{\"kind\":\"F\",\"stage\":1,"
        "\"microbatch\":1},{\"kind\":\"B\",\"stage\":1,\"microbatch\":1},{\"kind\":\"I\","
        "\"stage\":0,\"microbatch\":0},{\"kind\":\"W\",\"stage\":0,\"microbatch\":0}],"
        "[{\"kind\":\"F\",\"stage\":0,\"microbatch\":1},{\"kind\":\"F\",\"stage\":1,"
        "\"microbatch\":0},{\"kind\":\"B\",\"stage\":1,\"microbatch\":0},{\"kind\":\"I\","
        "\"stage\":0,\"microbatch\":1},{\"kind\":\"W\",\"stage\":0,\"microbatch\":1}]]}");
    dp_buf_deinit(&text);
    dp_schedule_deinit(&schedule);
}

static void read_fixture(size_t index, struct dp_buf *ret_text)
{
    struct dp_error err = {0};
    char path[512];
    char chunks[16] = "";
    if (fixtures[index].v > 0) {
        snprintf(chunks, sizeof(chunks), "-v%d", fixtures[index].v);
    }
    snprintf(path, sizeof(path), DP_SOURCE_DIR "/tests/fixtures/schedules/%s-%d-%d%s.json",
             fixtures[index].family, fixtures[index].p, fixtures[index].m, chunks);
    assert_ok(dp_read_file(path, 1 << 20, ret_text, &err), &err);
}

static void the_generators_still_make_the_fixtures(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(fixtures) / sizeof(fixtures[0]); i++) {
        struct dp_error err = {0};
        struct dp_buf text = {0};
        json_t *json;
        struct dp_schedule kept;
        struct dp_schedule made;
        struct dp_schedule_params params = {fixtures[i].p, fixtures[i].m, fixtures[i].v};
        assert_ok(dp_schedule_generate(fixtures[i].family, &params, &made, &err), &err);
        read_fixture(i, &text);
        assert_ok(dp_json_parse(text.bytes, text.length, 1 << 20, "fixture", &json, &err), &err);
        assert_ok(dp_schedule_from_json(json, &kept, &err), &err);
        assert_same(&made, &kept);
        struct dp_buf written = {0};
        dp_schedule_write_json(&made, &written);
        dp_buf_puts(&written, "\n");
        assert_string_equal(written.bytes, text.bytes);
        dp_buf_deinit(&written);
        json_decref(json);
        dp_buf_deinit(&text);
        dp_schedule_deinit(&made);
        dp_schedule_deinit(&kept);
    }
}

// One micro-batch through one stage, with parts that the cases below replace.
#define FORM(schema, name, sizes, placement, ranks)                                                \
    "{\"schema\":" schema ",\"name\":" name "," sizes ",\"placement\":" placement                  \
    ",\"ranks\":" ranks "}"
#define SCHEMA "\"dp.schedule/1\""
#define SIZES "\"pipeline\":1,\"microbatches\":1,\"stages\":1"
#define F00 "{\"kind\":\"F\",\"stage\":0,\"microbatch\":0}"
#define B00 "{\"kind\":\"B\",\"stage\":0,\"microbatch\":0}"
#define RANKS(list) FORM(SCHEMA, "\"x\"", SIZES, "[[0]]", "[[" list "]]")

static const struct {
    const char *text, *why;
} hostile[] = {
    {"7", "\"schema\""},
    {"[]", "\"schema\""},
    {"{}", "\"schema\""},
    {FORM("\"dp.schedule/2\"", "\"x\"", SIZES, "[[0]]", "[[]]"), "\"schema\""},
    {FORM(SCHEMA, "7", SIZES, "[[0]]", "[[]]"), "\"name\""},
    {FORM(SCHEMA, "\"\"", SIZES, "[[0]]", "[[]]"), "\"name\""},
    {FORM(SCHEMA,
          "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"",
          SIZES, "[[0]]", "[[]]"),
     "\"name\""},
    {FORM(SCHEMA, "\"x\"", "\"pipeline\":0,\"microbatches\":1,\"stages\":1", "[[0]]", "[[]]"),
     "\"pipeline\" must be 1 to"},
    {FORM(SCHEMA, "\"x\"", "\"pipeline\":1e3,\"microbatches\":1,\"stages\":1", "[[0]]", "[[]]"),
     "\"pipeline\" must be an integer"},
    {FORM(SCHEMA, "\"x\"", "\"pipeline\":1,\"microbatches\":4294967297,\"stages\":1", "[[0]]",
          "[[]]"),
     "\"microbatches\" must be 1 to"},
    {FORM(SCHEMA, "\"x\"", "\"pipeline\":1,\"microbatches\":1,\"stages\":-1", "[[0]]", "[[]]"),
     "\"stages\" must be 1 to"},
    {FORM(SCHEMA, "\"x\"", SIZES, "[0]", "[[]]"), "not a list"},
    {FORM(SCHEMA, "\"x\"", SIZES, "[[0],[0]]", "[[]]"), "one per rank"},
    {FORM(SCHEMA, "\"x\"", SIZES, "{}", "[[]]"), "one per rank"},
    {FORM(SCHEMA, "\"x\"", SIZES, "[[1]]", "[[]]"), "a stage that is not 0 to 0"},
    {FORM(SCHEMA, "\"x\"", SIZES, "[[\"0\"]]", "[[]]"), "a stage that is not 0 to 0"},
    {FORM(SCHEMA, "\"x\"", SIZES, "[[]]", "[[]]"), "no rank holds stage 0"},
    {FORM(SCHEMA, "\"x\"", SIZES, "[[0,0,0]]", "[[]]"), "both hold stage 0"},
    {FORM(SCHEMA, "\"x\"", "\"pipeline\":1,\"microbatches\":65536,\"stages\":1024", "[[0]]",
          "[[]]"),
     "no rank holds stage 1"},
    {FORM(SCHEMA, "\"x\"", "\"pipeline\":1,\"microbatches\":65536,\"stages\":1", "[[0]]", "[[]]"),
     "0 actions cannot take"},
    {FORM(SCHEMA, "\"x\"", SIZES, "[[0]]", "[]"), "one per rank"},
    {RANKS("7"), "rank 0, position 0: \"kind\""},
    {RANKS(F00 ",{\"kind\":\"G\",\"stage\":0,\"microbatch\":0}"), "rank 0, position 1: \"kind\""},
    {RANKS("{\"kind\":\"F\",\"stage\":65536,\"microbatch\":0}"), "\"stage\" must be 0 to 1023"},
    {RANKS("{\"kind\":\"F\",\"stage\":0,\"microbatch\":-1}"), "\"microbatch\" must be 0 to"},
    {RANKS("{\"kind\":\"FB\",\"stage\":0,\"microbatch\":0}"), "\"kind\""},
    {RANKS("{\"kind\":\"FB\",\"forward\":" B00 ",\"backward\":" B00 "}"), "is F"},
    {RANKS("{\"kind\":\"FB\",\"forward\":" F00 ",\"backward\":" F00 "}"), "is B or I"},
    {RANKS("{\"kind\":\"FB\",\"forward\":" F00 ",\"backward\":{\"kind\":\"FB\"}}"), "\"stage\""},
    {RANKS(F00), "has no B or I"},
    {RANKS(B00 "," F00), "B0@0 comes before its F"},
};

static void hostile_documents_are_refused_with_the_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        struct dp_error err = {0};
        json_t *json = json_loads(hostile[i].text, JSON_DECODE_ANY, NULL);
        assert_non_null(json);
        struct dp_schedule schedule;
        dp_status status = dp_schedule_from_json(json, &schedule, &err);
        assert_refused(status, DP_INVALID, &err, hostile[i].why);
        json_decref(json);
    }
}

// Whatever a flipped byte makes of a good document, it is read or refused and never trusted.
static void documents_with_flipped_bytes_do_no_harm(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 11);
    long read = 0, runs = dp_fuzz_runs(2000);
    for (long round = 0; round < runs; round++) {
        size_t index = (size_t)round % (sizeof(fixtures) / sizeof(fixtures[0]));
        struct dp_buf text = {0};
        read_fixture(index, &text);
        size_t at = dp_rand_below(&rand, text.length);
        text.bytes[at] = "0123456789FBIW[]{},\":-"[dp_rand_below(&rand, 22)];
        json_t *json;
        struct dp_schedule schedule;
        if (dp_json_parse(text.bytes, text.length, 1 << 20, "x", &json, NULL) == DP_OK) {
            if (dp_schedule_from_json(json, &schedule, NULL) == DP_OK) {
                assert_ok(dp_schedule_validate(&schedule, NULL), &(struct dp_error){0});
                dp_schedule_deinit(&schedule);
                read++;
            }
            json_decref(json);
        }
        dp_buf_deinit(&text);
    }
    assert_true(read < runs / 4);
}

static dp_status read_text(const char *text, size_t length, struct dp_schedule *ret_schedule,
                           struct dp_diags *diags, struct dp_error *err)
{
    dp_diags_init(diags, "x.json", text, length);
    return dp_schedule_read_json(text, length, ret_schedule, diags, err);
}

static void the_text_of_a_good_document_is_read_as_the_document_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(fixtures) / sizeof(fixtures[0]); i++) {
        struct dp_error err = {0};
        struct dp_buf text = {0};
        struct dp_schedule schedule;
        struct dp_diags diags;
        json_t *json;
        struct dp_schedule wanted;
        read_fixture(i, &text);
        assert_ok(read_text(text.bytes, text.length, &schedule, &diags, &err), &err);
        assert_int_equal(diags.count, 0);
        assert_ok(dp_json_parse(text.bytes, text.length, 1 << 20, "fixture", &json, &err), &err);
        assert_ok(dp_schedule_from_json(json, &wanted, &err), &err);
        assert_same(&schedule, &wanted);
        json_decref(json);
        dp_diags_deinit(&diags);
        dp_schedule_deinit(&schedule);
        dp_schedule_deinit(&wanted);
        dp_buf_deinit(&text);
    }
}

#define HEAD                                                                                       \
    "{\"schema\": \"dp.schedule/1\", \"name\": \"x\",\n"                                           \
    " \"pipeline\": 2, \"microbatches\": 1,\n"                                                     \
    " \"stages\": 2,\n"
#define PLACED HEAD " \"placement\": [[0], [1]],\n"
#define F01 "{\"kind\": \"F\", \"stage\": 1, \"microbatch\": 0}"
#define B01 "{\"kind\": \"B\", \"stage\": 1, \"microbatch\": 0}"

// All problems of a text: "LINE:COLUMN part of the message", one after the other.
static const struct {
    const char *text;
    const char *problems[4];
} wrong[] = {
    {"{\"schema\": \"dp.schedule/1\",\n \"name\": }\n", {"2:10 unexpected token"}},
    {"{\"name\": 1,\n\"name\": 2}", {"2:6 duplicate object key"}},
    {"\n  7", {"2:3 '[' or '{' expected"}},
    {"\n [\"ranks\"]", {"2:2 \"schema\" must be"}},
    {"{\"schema\": \"dp.schedule/1\",\n\t\"name\":\n  7}", {"3:3 \"name\" must be a text"}},
    {"{\"schema\": \"dp.schedule/1\"}", {"1:1 \"name\" must be a text"}},
    {HEAD "\"placement\": [[0],\n 1], \"ranks\": []}", {"5:2 the entry of rank 1 is not a list"}},
    {HEAD "\"placement\": [[0], [0]], \"ranks\": []}", {"4:20 ranks 0 and 1 both hold stage 0"}},
    {HEAD "\"placement\": [[0], []], \"ranks\": [[], []]}", {"4:14 no rank holds stage 1"}},
    {HEAD "\"placement\": [[0, 1], []], \"ranks\": [[], []]}", {"4:14 rank 1 holds 0 stages"}},
    {HEAD "\"note\": \"\\\"\xc3\xa4]\", \"placement\": 5}", {"4:30 must be a list of 2 lists"}},
    {PLACED "\"ranks\": [[]]}", {"5:10 must be a list of 2 lists"}},
    {PLACED "\"ranks\": [[" F00
            ",\n {\"kind\": \"B\", \"stage\": 9999, \"microbatch\": 0}],\n[7, " F01
            ",\n{\"kind\": \"\\\"]}\"}]]}",
     {"6:2 rank 0, position 1: \"stage\" must be 0 to", "7:2 rank 1, position 0: \"kind\"",
      "8:1 rank 1, position 2: \"kind\""}},
    {PLACED "\"ranks\": [[" F00 ",\n" F00 "],\n[" F01 "]]}",
     {"6:1 rank 0, position 1: F0@0 runs a second time",
      "6:1 rank 0, position 2 (its end): micro-batch 0 has no B or I at stage 0",
      "7:2 rank 1, position 1 (its end): micro-batch 0 has no B or I at stage 1"}},
    // Keys in another order, with others among them; characters of more than one byte.
    {"{\"note\": {\"ranks\": [\"\xc3\xa4]\"]}, \"ranks\": [[" F00 ", " B00 "], [\n\t" B01 ", " F01
     "]],\n\"stages\": 2, "
     "\"schema\": \"dp.schedule/1\", \"name\": \"x\", \"pipeline\": 2, \"microbatches\": 1, "
     "\"placement\": [[0], [1]]"
     "}",
     {"2:2 rank 1, position 0: B0@1 comes before its F"}},
};

static void all_problems_of_a_text_have_line_and_column(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct dp_error err = {0};
        struct dp_schedule schedule;
        struct dp_diags diags;
        const char *text = wrong[i].text;
        assert_int_equal(read_text(text, strlen(text), &schedule, &diags, &err), DP_INVALID);
        size_t count = 0;
        while (count < 4 && wrong[i].problems[count] != NULL) {
            const char *problem = wrong[i].problems[count];
            const char *part = strchr(problem, ' ') + 1;
            char place[32] = "";
            if (count < diags.count) {
                snprintf(place, sizeof(place), "%d:%d ", diags.items[count].line,
                         diags.items[count].column);
            }
            if (strncmp(place, problem, (size_t)(part - problem)) != 0 ||
                strstr(diags.items[count].message, part) == NULL) {
                fail_msg("%s: not \"%s\", but %s", text, problem, err.message);
            }
            count++;
        }
        assert_int_equal(diags.count, count);
        dp_diags_deinit(&diags);
    }
}

// The bytes from a line and column on.
static const char *text_at(const char *text, int line, int column)
{
    for (; line > 1; line--) {
        text = strchr(text, '\n') + 1;
    }
    return text + column - 1;
}

// Whatever is wrong with an action, its place is where its object begins.
static void places_are_those_of_the_actions(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 23);
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        struct dp_schedule schedule = make_schedule("dualpipev", 2, 5);
        size_t count = dp_schedule_action_count(&schedule);
        size_t at = dp_rand_below(&rand, count);
        size_t from = dp_rand_below(&rand, count);
        schedule.actions[at] = schedule.actions[from];
        json_t *json = tree_of(&schedule);
        struct dp_buf text = {0};
        dp_json_write(json, run % 2 == 0 ? 0 : 3, &text);
        struct dp_schedule read;
        struct dp_diags diags;
        if (read_text(text.bytes, text.length, &read, &diags, NULL) == DP_OK) {
            assert_int_equal(at, from);
            dp_schedule_deinit(&read);
        }
        for (size_t i = 0; i < diags.count; i++) {
            int rank, position;
            const struct dp_diag *diag = &diags.items[i];
            assert_int_equal(sscanf(diag->message, "rank %d, position %d", &rank, &position), 2);
            json_t *list = json_array_get(json_object_get(json, "ranks"), (size_t)rank);
            position -= (size_t)position == json_array_size(list);
            json_t *there = json_loads(text_at(text.bytes, diag->line, diag->column),
                                       JSON_DISABLE_EOF_CHECK, NULL);
            assert_true(json_equal(there, json_array_get(list, (size_t)position)));
            json_decref(there);
        }
        dp_diags_deinit(&diags);
        dp_buf_deinit(&text);
        json_decref(json);
        dp_schedule_deinit(&schedule);
    }
}

static void texts_with_other_bytes_do_no_harm(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 29);
    struct dp_buf text = {0};
    read_fixture(3, &text);
    for (long round = 0; round < dp_fuzz_runs(2000); round++) {
        struct dp_buf changed = {0};
        dp_buf_append(&changed, text.bytes, text.length);
        for (uint64_t n = 1 + dp_rand_below(&rand, 2); n > 0; n--) {
            changed.bytes[dp_rand_below(&rand, changed.length)] =
                "0123456789FBIW[]{},\":-\n\\\xc3"[dp_rand_below(&rand, 25)];
        }
        struct dp_schedule schedule;
        struct dp_diags diags;
        if (read_text(changed.bytes, changed.length, &schedule, &diags, NULL) == DP_OK) {
            assert_int_equal(dp_schedule_validate(&schedule, NULL), DP_OK);
            dp_schedule_deinit(&schedule);
        } else {
            assert_true(diags.count > 0);
            for (size_t i = 0; i < diags.count; i++) {
                assert_true(diags.items[i].line >= 1 && diags.items[i].column >= 1);
            }
        }
        dp_diags_deinit(&diags);
        dp_buf_deinit(&changed);
    }
    dp_buf_deinit(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_survives_the_round_trip),
        cmocka_unit_test(the_form_is_the_documented_one),
        cmocka_unit_test(the_generators_still_make_the_fixtures),
        cmocka_unit_test(hostile_documents_are_refused_with_the_reason),
        cmocka_unit_test(documents_with_flipped_bytes_do_no_harm),
        cmocka_unit_test(the_text_of_a_good_document_is_read_as_the_document_is),
        cmocka_unit_test(all_problems_of_a_text_have_line_and_column),
        cmocka_unit_test(places_are_those_of_the_actions),
        cmocka_unit_test(texts_with_other_bytes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
