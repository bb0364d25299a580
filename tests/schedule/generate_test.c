#include "support.h"

// Makes, validates and lowers; 0 when the family refuses the sizes.
static int make_valid(const struct dp_schedule_family *family, struct dp_schedule_params params)
{
    struct dp_error err = {0};
    struct dp_schedule schedule;
    struct dp_lowered lowered;
    if (dp_schedule_check(family->name, &params, NULL) != DP_OK) {
        return 0;
    }
    assert_ok(dp_schedule_generate(family->name, &params, &schedule, &err), &err);
    assert_ok(dp_schedule_validate(&schedule, &err), &err);
    assert_ok(dp_schedule_lower_all(&schedule, &lowered, &err), &err);
    assert_int_equal(schedule.stages, dp_schedule_family_stages(family, &params));
    dp_lowered_deinit(&lowered);
    dp_schedule_deinit(&schedule);
    return 1;
}

static void every_legal_size_makes_a_valid_schedule(void **state)
{
    (void)state;
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    for (size_t i = 0; i < count; i++) {
        int made = 0;
        for (int32_t pipeline = 1; pipeline <= 12; pipeline++) {
            for (int32_t microbatches = 1; microbatches <= 40; microbatches++) {
                int32_t most = pipeline <= 6 && microbatches <= 14 ? families[i].virtual_max : 0;
                for (int32_t chunks = 0; chunks <= most; chunks++) {
                    struct dp_schedule_params params = {pipeline, microbatches, chunks};
                    made += make_valid(&families[i], params);
                }
            }
        }
        assert_true(made > 50);
    }
}

static void the_smallest_legal_sizes_are_the_structural_ones(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        int32_t pipeline, microbatches;
        bool legal;
    } cases[] = {
        {"dualpipe", 8, 14, true},  {"dualpipe", 8, 12, false}, {"dualpipe", 2, 2, true},
        {"dualpipe", 8, 15, false}, {"dualpipe", 7, 20, false}, {"dualpipe", 1, 2, false},
        {"dualpipev", 8, 15, true}, {"dualpipev", 8, 14, false}, {"dualpipev", 1, 1, true},
        {"1f1b", 1, 1, true},       {"1f1b", 8, 3, true},       {"gpipe", 8, 1, true},
        {"gpipe", 0, 1, false},     {"gpipe", 1, 0, false},     {"gpipe", 257, 1, false},
        {"gpipe", 1, 65537, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_schedule_params params = {cases[i].pipeline, cases[i].microbatches, 0};
        dp_status status = dp_schedule_check(cases[i].family, &params, NULL);
        assert_int_equal(status == DP_OK, cases[i].legal);
    }
}

static void a_refusal_names_the_rule_and_the_nearest_legal_values(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule;
    struct dp_schedule_params odd_pipeline = {7, 28, 0};
    assert_refused(dp_schedule_generate("dualpipe", &odd_pipeline, &schedule, &err), DP_INVALID,
                   &err, "Nearest legal: 6, 8");
    struct dp_schedule_params odd_microbatches = {4, 9, 0};
    assert_refused(dp_schedule_check("dualpipe", &odd_microbatches, &err), DP_INVALID, &err,
                   "Nearest legal: 8, 10");
    struct dp_schedule_params few = {8, 5, 0};
    assert_refused(dp_schedule_check("dualpipev", &few, &err), DP_INVALID, &err,
                   "Nearest legal: 15");
    struct dp_schedule_params chunks = {8, 16, 3};
    assert_refused(dp_schedule_check("1f1b", &chunks, &err), DP_INVALID, &err, "virtual");
    assert_refused(dp_schedule_check("zb2p", &few, &err), DP_NOT_FOUND, &err,
                   "gpipe, 1f1b, interleaved, interleaved-zb, zb-h1");
}

// Published beside a run of 16 pipeline ranks with 120 micro-batches; h = distance from the ends.
static void dualpipe_has_the_published_op_counts_for_sixteen_ranks(void **state)
{
    (void)state;
    static const struct {
        int32_t rank;
        int pairs, f, b, i, w;
    } cases[] = {{0, 97, 23, 8, 15, 15},  {3, 100, 20, 8, 12, 12},  {7, 103, 17, 9, 8, 8},
                 {15, 97, 23, 8, 15, 15}, {12, 100, 20, 8, 12, 12}, {8, 103, 17, 9, 8, 8}};
    struct dp_schedule schedule = make_schedule("dualpipe", 16, 120);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(count_kind(&schedule, cases[i].rank, DP_ACTION_FB), cases[i].pairs);
        assert_int_equal(count_kind(&schedule, cases[i].rank, DP_ACTION_F), cases[i].f);
        assert_int_equal(count_kind(&schedule, cases[i].rank, DP_ACTION_B), cases[i].b);
        assert_int_equal(count_kind(&schedule, cases[i].rank, DP_ACTION_I), cases[i].i);
        assert_int_equal(count_kind(&schedule, cases[i].rank, DP_ACTION_W), cases[i].w);
    }
    dp_schedule_deinit(&schedule);
}

static void pairs_per_rank_are_the_published_ones(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        int32_t pipeline, microbatches;
        int first, second, innermost;
    } cases[] = {{"dualpipe", 4, 8, 3, 3, 3},    {"dualpipe", 4, 10, 5, 5, 5},
                 {"dualpipe", 6, 12, 4, 5, 5},   {"dualpipe", 8, 16, 5, 6, 7},
                 {"dualpipe", 8, 20, 9, 10, 11}, {"dualpipe", 8, 40, 29, 30, 31},
                 {"dualpipev", 2, 4, 3, 3, 3},   {"dualpipev", 4, 8, 5, 6, 7},
                 {"dualpipev", 4, 20, 29, 30, 31}, {"dualpipev", 8, 40, 57, 58, 63}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_schedule schedule =
            make_schedule(cases[i].family, cases[i].pipeline, cases[i].microbatches);
        int32_t innermost =
            schedule.directions == 2 ? cases[i].pipeline / 2 - 1 : cases[i].pipeline - 1;
        assert_int_equal(count_kind(&schedule, 0, DP_ACTION_FB), cases[i].first);
        assert_int_equal(count_kind(&schedule, 1, DP_ACTION_FB), cases[i].second);
        assert_int_equal(count_kind(&schedule, innermost, DP_ACTION_FB), cases[i].innermost);
        dp_schedule_deinit(&schedule);
    }
}

// The first half of DualPipe's ranks does what DualPipeV does on half the ranks and micro-batches.
static void dualpipev_is_dualpipe_cut_in_half(void **state)
{
    (void)state;
    struct dp_schedule whole = make_schedule("dualpipe", 8, 24);
    struct dp_schedule half = make_schedule("dualpipev", 4, 12);
    for (int32_t rank = 0; rank <= 4; rank++) {
        assert_int_equal(whole.rank_begin[rank], half.rank_begin[rank]);
    }
    for (size_t i = 0; i < half.rank_begin[4]; i++) {
        struct dp_action a = whole.actions[i];
        struct dp_action b = half.actions[i];
        assert_int_equal(a.kind, b.kind);
        assert_int_equal(a.microbatch % 12, b.microbatch);
        assert_int_equal(a.b_microbatch % 12, b.b_microbatch);
    }
    dp_schedule_deinit(&whole);
    dp_schedule_deinit(&half);
}

static void stages_of_a_rank_are_listed_by_direction(void **state)
{
    (void)state;
    int32_t stages[DP_RANK_STAGES_MAX];
    struct dp_schedule schedule = make_schedule("dualpipe", 4, 8);
    for (int32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(dp_schedule_rank_stages(&schedule, rank, stages), 2);
        assert_int_equal(stages[0], rank);
        assert_int_equal(stages[1], 3 - rank);
    }
    assert_int_equal(dp_schedule_rank_of(&schedule, 1, 3), 1);
    assert_int_equal(dp_schedule_rank_of(&schedule, 1, 4), 2);
    dp_schedule_deinit(&schedule);
    schedule = make_schedule("dualpipev", 2, 4);
    assert_int_equal(dp_schedule_rank_stages(&schedule, 1, stages), 2);
    assert_int_equal(stages[0], 1);
    assert_int_equal(stages[1], 2);
    dp_schedule_deinit(&schedule);
}

static void the_fingerprint_follows_every_action(void **state)
{
    (void)state;
    struct dp_schedule a = make_schedule("dualpipe", 4, 8);
    struct dp_schedule b = make_schedule("dualpipe", 4, 8);
    assert_int_equal(dp_schedule_hash(&a), dp_schedule_hash(&b));
    for (size_t i = 0; i < dp_schedule_action_count(&b); i++) {
        b.actions[i].microbatch ^= 1;
        assert_int_not_equal(dp_schedule_hash(&a), dp_schedule_hash(&b));
        b.actions[i].microbatch ^= 1;
    }
    b.rank_begin[1]++;
    assert_int_not_equal(dp_schedule_hash(&a), dp_schedule_hash(&b));
    dp_schedule_deinit(&a);
    dp_schedule_deinit(&b);
}

static void actions_print_as_microbatch_at_stage(void **state)
{
    (void)state;
    struct dp_buf text = {0};
    struct dp_action pair = {.kind = DP_ACTION_FB,
                             .stage = 1,
                             .microbatch = 5,
                             .b_kind = DP_ACTION_B,
                             .b_stage = 6,
                             .b_microbatch = 0};
    struct dp_action forward = {.kind = DP_ACTION_F, .stage = 2, .microbatch = 3};
    dp_action_format(&forward, &text);
    assert_string_equal(text.bytes, "F3@2");
    dp_buf_clear(&text);
    dp_action_format(&pair, &text);
    assert_string_equal(text.bytes, "FB(5@1;B0@6)");
    dp_buf_deinit(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_legal_size_makes_a_valid_schedule),
        cmocka_unit_test(the_smallest_legal_sizes_are_the_structural_ones),
        cmocka_unit_test(a_refusal_names_the_rule_and_the_nearest_legal_values),
        cmocka_unit_test(dualpipe_has_the_published_op_counts_for_sixteen_ranks),
        cmocka_unit_test(pairs_per_rank_are_the_published_ones),
        cmocka_unit_test(dualpipev_is_dualpipe_cut_in_half),
        cmocka_unit_test(stages_of_a_rank_are_listed_by_direction),
        cmocka_unit_test(the_fingerprint_follows_every_action),
        cmocka_unit_test(actions_print_as_microbatch_at_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
