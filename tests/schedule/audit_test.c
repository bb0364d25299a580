// Schedules with one or more mistakes: all are told, each once and where it is.
#include "support.h"

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "dp/schedule_audit.h"
#include "naive_order.h"
#include "random_schedule.h"

static struct dp_rand random_state;

static size_t below(size_t limit)
{
    return (size_t)dp_rand_below(&random_state, limit);
}

// A random schedule of a random family, or one without any regularity.
static struct dp_schedule make_any(void)
{
    size_t families;
    const struct dp_schedule_family *family = dp_schedule_families(&families);
    size_t choice = below(families + 3);
    if (choice >= families) {
        return make_random_schedule(&random_state);
    }
    struct dp_schedule schedule;
    struct dp_schedule_params params;
    do {
        params.pipeline = 1 + (int32_t)below(5);
        params.microbatches = 1 + (int32_t)below(12);
        params.virtual_stages = 0;
    } while (dp_schedule_generate(family[choice].name, &params, &schedule, NULL) != DP_OK);
    return schedule;
}

static int32_t rank_at(const struct dp_schedule *schedule, size_t index)
{
    int32_t rank = 0;
    while (index >= schedule->rank_begin[rank + 1]) {
        rank++;
    }
    return rank;
}

static struct dp_action take_out(struct dp_schedule *schedule, size_t index)
{
    struct dp_action action = schedule->actions[index];
    int32_t rank = rank_at(schedule, index);
    memmove(&schedule->actions[index], &schedule->actions[index + 1],
            (dp_schedule_action_count(schedule) - index - 1) * sizeof(action));
    for (int32_t r = rank + 1; r <= schedule->pipeline; r++) {
        schedule->rank_begin[r]--;
    }
    return action;
}

static void put_in(struct dp_schedule *schedule, int32_t rank, size_t index,
                   struct dp_action action)
{
    size_t count = dp_schedule_action_count(schedule);
    schedule->actions = dp_realloc(schedule->actions, count + 1, sizeof(action));
    memmove(&schedule->actions[index + 1], &schedule->actions[index],
            (count - index) * sizeof(action));
    schedule->actions[index] = action;
    for (int32_t r = rank + 1; r <= schedule->pipeline; r++) {
        schedule->rank_begin[r]++;
    }
}

static int halves(struct dp_action action)
{
    return action.kind == DP_ACTION_FB ? 2 : 1;
}

// Every action has a line of its own, from 1.
static struct dp_diags audited(const struct dp_schedule *schedule, bool *ret_good)
{
    size_t count = dp_schedule_action_count(schedule);
    DP_AUTO_FREE struct dp_schedule_place *places = dp_new_array(struct dp_schedule_place, count);
    for (size_t i = 0; i < count; i++) {
        places[i] = (struct dp_schedule_place){(int32_t)i + 1, 1};
    }
    struct dp_diags diags;
    dp_diags_init(&diags, "x", NULL, 0);
    *ret_good = dp_schedule_audit(schedule, places, &diags);
    assert_true(*ret_good == (diags.count == 0));
    return diags;
}

static void show(const struct dp_schedule *schedule, const struct dp_diags *diags)
{
    struct dp_buf text = {0};
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            dp_action_format(&schedule->actions[i], &text);
            dp_buf_puts(&text, " ");
        }
        dp_buf_puts(&text, "\n");
    }
    dp_diags_render(diags, &text);
    print_error("%s\n%s", schedule->name, text.bytes);
    dp_buf_deinit(&text);
}

// audit and validate agree with each other and with `good`; returns how many problems there are.
static size_t judged(const struct dp_schedule *schedule, bool good)
{
    bool found_good;
    struct dp_error err = {0};
    struct dp_diags diags = audited(schedule, &found_good);
    dp_status status = dp_schedule_validate(schedule, &err);
    if (found_good != good || (status == DP_OK) != good) {
        show(schedule, &diags);
        fail_msg("it is %s", good ? "good" : "wrong");
    }
    if (!good) {
        assert_string_equal(err.message, diags.items[0].message);
    }
    size_t count = diags.count + diags.dropped;
    dp_diags_deinit(&diags);
    return count;
}

// That many problems, all of them at the action (its line) and with `why`.
static void told_at(const struct dp_schedule *schedule, size_t index, int count, const char *why)
{
    bool good;
    struct dp_diags diags = audited(schedule, &good);
    bool right = diags.count == (size_t)count;
    for (size_t i = 0; i < diags.count; i++) {
        right = right && (size_t)diags.items[i].line == index + 1 &&
                strstr(diags.items[i].message, why) != NULL;
    }
    if (!right) {
        show(schedule, &diags);
        fail_msg("not %d times \"%s\" at %zu", count, why, index);
    }
    dp_diags_deinit(&diags);
}

static void whatever_is_generated_has_no_problems(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(500); run++) {
        struct dp_schedule schedule = make_any();
        assert_true(naive_can_run(&schedule));
        assert_int_equal(judged(&schedule, true), 0);
        dp_schedule_deinit(&schedule);
    }
}

static void a_dropped_action_is_told_at_the_end_of_its_rank(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(1500); run++) {
        struct dp_schedule schedule = make_any();
        size_t index = below(dp_schedule_action_count(&schedule));
        int32_t rank = rank_at(&schedule, index);
        struct dp_action lost = take_out(&schedule, index);
        assert_int_equal(judged(&schedule, false), halves(lost));
        size_t end = schedule.rank_begin[rank + 1];
        if (end > schedule.rank_begin[rank]) {
            told_at(&schedule, end - 1, halves(lost), "(its end): micro-batch");
        }
        dp_schedule_deinit(&schedule);
    }
}

static void an_action_that_is_there_twice_is_told_once(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(1500); run++) {
        struct dp_schedule schedule = make_any();
        size_t index = below(dp_schedule_action_count(&schedule));
        int32_t rank = rank_at(&schedule, index);
        struct dp_action again = schedule.actions[index];
        size_t behind = index + 1 + below(schedule.rank_begin[rank + 1] - index);
        put_in(&schedule, rank, behind, again);
        assert_int_equal(judged(&schedule, false), halves(again));
        told_at(&schedule, behind, halves(again), "");
        // Anywhere else it is at least found.
        take_out(&schedule, behind);
        put_in(&schedule, rank, schedule.rank_begin[rank], again);
        judged(&schedule, false);
        dp_schedule_deinit(&schedule);
    }
}

static void an_action_on_another_rank_is_told_there(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(1500); run++) {
        struct dp_schedule schedule = make_any();
        size_t index = below(dp_schedule_action_count(&schedule));
        int32_t from = rank_at(&schedule, index);
        if (schedule.pipeline == 1) {
            dp_schedule_deinit(&schedule);
            continue;
        }
        int32_t to = (from + 1 + (int32_t)below((size_t)schedule.pipeline - 1)) % schedule.pipeline;
        struct dp_action moved = take_out(&schedule, index);
        size_t size = schedule.rank_begin[to + 1] - schedule.rank_begin[to];
        size_t place = schedule.rank_begin[to] + below(size + 1);
        put_in(&schedule, to, place, moved);
        assert_int_equal(judged(&schedule, false), halves(moved));
        told_at(&schedule, place, halves(moved), "is on the wrong rank");
        dp_schedule_deinit(&schedule);
    }
}

static void a_w_before_its_i_is_told(void **state)
{
    (void)state;
    long done = 0;
    for (long run = 0; run < dp_fuzz_runs(4000); run++) {
        struct dp_schedule schedule = make_any();
        size_t index = below(dp_schedule_action_count(&schedule));
        int32_t rank = rank_at(&schedule, index);
        struct dp_action w = schedule.actions[index];
        if (w.kind == DP_ACTION_W) {
            size_t i = index;
            const struct dp_action *a;
            do {
                a = &schedule.actions[--i];
            } while (
                !(a->kind == DP_ACTION_I && a->stage == w.stage && a->microbatch == w.microbatch) &&
                !(a->kind == DP_ACTION_FB && a->b_kind == DP_ACTION_I && a->b_stage == w.stage &&
                  a->b_microbatch == w.microbatch));
            size_t begin = schedule.rank_begin[rank];
            size_t place = begin + below(i - begin + 1);
            take_out(&schedule, index);
            put_in(&schedule, rank, place, w);
            assert_int_equal(judged(&schedule, false), 1);
            told_at(&schedule, place, 1, "comes before its I");
            done++;
        }
        dp_schedule_deinit(&schedule);
    }
    assert_true(done > 0);
}

// Two actions of a rank change places: what they need and give decides whether that matters.
static void swaps_are_told_exactly_when_they_do_harm(void **state)
{
    (void)state;
    long harmful = 0, harmless = 0;
    for (long run = 0; run < dp_fuzz_runs(4000); run++) {
        struct dp_schedule schedule = make_any();
        size_t a = below(dp_schedule_action_count(&schedule));
        int32_t rank = rank_at(&schedule, a);
        size_t begin = schedule.rank_begin[rank];
        size_t last = schedule.rank_begin[rank + 1] - 1;
        size_t b = a + 1 + below(4);
        b = b > last ? begin + below(last - begin + 1) : b;
        struct dp_action action = schedule.actions[a];
        schedule.actions[a] = schedule.actions[b];
        schedule.actions[b] = action;
        bool good = naive_can_run(&schedule);
        judged(&schedule, good);
        harmful += !good;
        harmless += good;
        dp_schedule_deinit(&schedule);
    }
    assert_true(harmful > 0 && harmless > 0);
}

// Several mistakes at once, of every sort: numbers and kinds too.
static void any_wreck_is_told_and_nothing_else(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(4000); run++) {
        struct dp_schedule schedule = make_any();
        for (size_t changes = 1 + below(3); changes > 0; changes--) {
            size_t count = dp_schedule_action_count(&schedule);
            struct dp_action *action = &schedule.actions[below(count)];
            const struct dp_action *other = &schedule.actions[below(count)];
            switch (below(4)) {
            case 0:
                action->kind = other->kind;
                action->b_kind = other->b_kind;
                action->b_stage = other->b_stage;
                action->b_microbatch = other->b_microbatch;
                break;
            case 1:
                action->stage = other->stage;
                break;
            case 2:
                action->microbatch = other->microbatch;
                break;
            default:
                *action = *other;
            }
        }
        judged(&schedule, naive_can_run(&schedule));
        dp_schedule_deinit(&schedule);
    }
}

static void all_mistakes_are_told_and_the_twenty_first_is_counted(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 2, 30);
    for (size_t i = schedule.rank_begin[1]; i < schedule.rank_begin[2]; i++) {
        schedule.actions[i] = schedule.actions[schedule.rank_begin[1]];
    }
    bool good;
    struct dp_diags diags = audited(&schedule, &good);
    // F0 59 times more than needed; 29 forwards and all 30 backwards missing, of which 29 micro-
    // batches have neither.
    assert_int_equal(diags.count, 20);
    assert_int_equal(diags.count + diags.dropped, 59 + 30);
    assert_string_equal(diags.items[0].message, "rank 1, position 1: F0@1 runs a second time");
    dp_diags_deinit(&diags);
    dp_schedule_deinit(&schedule);
}

// Rank r begins with what rank r-1 would have to do first: its second chunk before its first.
static struct dp_schedule make_ring(int32_t ranks)
{
    struct dp_schedule schedule = make_schedule("interleaved", ranks, ranks);
    for (int32_t rank = 0; rank < ranks; rank++) {
        size_t index = schedule.rank_begin[rank];
        while (schedule.actions[index].stage != rank + ranks) {
            index++;
        }
        struct dp_action action = take_out(&schedule, index);
        put_in(&schedule, rank, schedule.rank_begin[rank], action);
    }
    return schedule;
}

static void a_ring_names_all_its_ranks_with_places_and_actions(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_ring(5);
    bool good;
    struct dp_diags diags = audited(&schedule, &good);
    assert_int_equal(diags.count, 1);
    assert_string_equal(
        diags.items[0].message,
        "the schedule cannot finish: rank 0 at 0 (F0@5) waits for F0@4 of rank 4 at 0 (F0@9), "
        "which waits for F0@8 of rank 3 at 0 (F0@8), which waits for F0@7 of rank 2 at 0 (F0@7), "
        "which waits for F0@6 of rank 1 at 0 (F0@6), which waits for F0@5 of rank 0");
    dp_diags_deinit(&diags);
    dp_schedule_deinit(&schedule);
}

static void a_long_ring_is_cut_and_says_how_long_it_is(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_ring(40);
    bool good;
    struct dp_diags diags = audited(&schedule, &good);
    assert_int_equal(diags.count, 1);
    assert_non_null(strstr(diags.items[0].message, "rank 9 at 0 (F0@49), which waits"));
    assert_null(strstr(diags.items[0].message, "rank 8 at"));
    assert_non_null(strstr(diags.items[0].message, "over 40 ranks back to rank 0"));
    dp_diags_deinit(&diags);
    dp_schedule_deinit(&schedule);
}

static void rings_apart_from_each_other_are_all_told(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 4, 2);
    // Ranks 0 and 2 take their first backward before their second forward, which the next needs.
    for (int32_t rank = 0; rank < 4; rank += 2) {
        struct dp_action *list = &schedule.actions[schedule.rank_begin[rank]];
        struct dp_action backward = list[2];
        list[2] = list[1];
        list[1] = backward;
    }
    bool good;
    struct dp_diags diags = audited(&schedule, &good);
    assert_int_equal(diags.count, 2);
    assert_non_null(strstr(diags.items[0].message, "rank 0 at 1 (B0@0) waits for B0@1 of rank 1"));
    assert_non_null(strstr(diags.items[1].message, "rank 2 at 1 (B0@2) waits for B0@3 of rank 3"));
    assert_int_equal(diags.items[1].line, schedule.rank_begin[2] + 2);
    dp_diags_deinit(&diags);
    dp_schedule_deinit(&schedule);
}

static void halves_of_a_pair_that_need_each_other_are_told(void **state)
{
    (void)state;
    // F0@0 with B0@1 on one rank: B0@1 needs F0@1, which needs F0@0.
    struct dp_schedule schedule = make_schedule("dualpipev", 1, 2);
    bool good;
    size_t index = 0;
    take_out(&schedule, 0);
    for (size_t i = 0; i < dp_schedule_action_count(&schedule); i++) {
        const struct dp_action *action = &schedule.actions[i];
        index = action->kind == DP_ACTION_B && action->stage == 1 && action->microbatch == 0
                    ? i
                    : index;
    }
    assert_true(index > 0);
    schedule.actions[index] = (struct dp_action){
        .kind = DP_ACTION_FB, .b_kind = DP_ACTION_B, .stage = 0, .microbatch = 0, .b_stage = 1};
    struct dp_diags diags = audited(&schedule, &good);
    assert_int_equal(diags.count, 1);
    assert_int_equal(diags.items[0].line, index + 1);
    assert_non_null(strstr(diags.items[0].message, "B0@1 needs F0@0 of the same pair"));
    dp_diags_deinit(&diags);
    dp_schedule_deinit(&schedule);
}

int main(void)
{
    dp_rand_init(&random_state, 5);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_is_generated_has_no_problems),
        cmocka_unit_test(a_dropped_action_is_told_at_the_end_of_its_rank),
        cmocka_unit_test(an_action_that_is_there_twice_is_told_once),
        cmocka_unit_test(an_action_on_another_rank_is_told_there),
        cmocka_unit_test(a_w_before_its_i_is_told),
        cmocka_unit_test(swaps_are_told_exactly_when_they_do_harm),
        cmocka_unit_test(any_wreck_is_told_and_nothing_else),
        cmocka_unit_test(all_mistakes_are_told_and_the_twenty_first_is_counted),
        cmocka_unit_test(a_ring_names_all_its_ranks_with_places_and_actions),
        cmocka_unit_test(a_long_ring_is_cut_and_says_how_long_it_is),
        cmocka_unit_test(rings_apart_from_each_other_are_all_told),
        cmocka_unit_test(halves_of_a_pair_that_need_each_other_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
