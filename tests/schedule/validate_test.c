// Each test breaks one rule in a schedule that was right and expects to be told where.
#include "support.h"

static int setup(void **state)
{
    struct dp_schedule *schedule = malloc(sizeof(*schedule));
    *schedule = make_schedule("dualpipe", 4, 8);
    *state = schedule;
    return 0;
}

static int teardown(void **state)
{
    dp_schedule_deinit(*state);
    free(*state);
    return 0;
}

// The n-th action of a kind on the rank.
static size_t find(const struct dp_schedule *schedule, int32_t rank, dp_action_kind kind, int n)
{
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        if (schedule->actions[i].kind == kind && n-- == 0) {
            return i;
        }
    }
    fail_msg("no such action");
    return 0;
}

static void drop(struct dp_schedule *schedule, int32_t rank, size_t index)
{
    size_t count = dp_schedule_action_count(schedule);
    memmove(&schedule->actions[index], &schedule->actions[index + 1],
            (count - index - 1) * sizeof(struct dp_action));
    for (int32_t r = rank + 1; r <= schedule->pipeline; r++) {
        schedule->rank_begin[r]--;
    }
}

static void swap(struct dp_schedule *schedule, size_t a, size_t b)
{
    struct dp_action action = schedule->actions[a];
    schedule->actions[a] = schedule->actions[b];
    schedule->actions[b] = action;
}

// The message names the rank, the position and `why`.
static void refused(const struct dp_schedule *schedule, int32_t rank, size_t index,
                    const char *why)
{
    struct dp_error err = {0};
    char place[64];
    snprintf(place, sizeof(place), "rank %d, position %zu", rank,
             index - schedule->rank_begin[rank]);
    assert_refused(dp_schedule_validate(schedule, &err), DP_INVALID, &err, place);
    assert_refused(dp_schedule_validate(schedule, &err), DP_INVALID, &err, why);
}

static void a_lost_w_is_refused(void **state)
{
    struct dp_schedule *schedule = *state;
    drop(schedule, 1, find(schedule, 1, DP_ACTION_W, 1));
    refused(schedule, 1, schedule->rank_begin[2], "has no W at stage");
}

static void a_lost_forward_is_missed_at_the_end_of_its_rank(void **state)
{
    struct dp_schedule *schedule = *state;
    struct dp_action lost = schedule->actions[0];
    drop(schedule, 0, 0);
    assert_int_equal(lost.microbatch, 0);
    refused(schedule, 0, schedule->rank_begin[1], "micro-batch 0 has no F at stage 0");
}

static void a_forward_behind_its_backward_is_refused_at_the_backward(void **state)
{
    struct dp_schedule *schedule = *state;
    size_t f = find(schedule, 0, DP_ACTION_F, 0);
    for (size_t i = f; i + 1 < schedule->rank_begin[1]; i++) {
        swap(schedule, i, i + 1);
    }
    struct dp_error err = {0};
    assert_refused(dp_schedule_validate(schedule, &err), DP_INVALID, &err,
                   "B0@0 comes before its F");
}

static void a_forward_that_runs_twice_is_refused(void **state)
{
    struct dp_schedule *schedule = *state;
    schedule->actions[1] = schedule->actions[0];
    refused(schedule, 0, 1, "F0@0 runs a second time");
}

static void a_second_backward_is_refused(void **state)
{
    struct dp_schedule *schedule = *state;
    size_t first = find(schedule, 2, DP_ACTION_B, 0);
    size_t second = find(schedule, 2, DP_ACTION_B, 1);
    schedule->actions[second] = schedule->actions[first];
    refused(schedule, 2, second, "is a second backward");
}

static void a_w_without_its_i_is_refused(void **state)
{
    struct dp_schedule *schedule = *state;
    size_t w = find(schedule, 0, DP_ACTION_W, 0);
    swap(schedule, w, w - 1);
    refused(schedule, 0, w - 1, "comes before its I");
}

static void a_w_after_a_full_backward_is_refused(void **state)
{
    struct dp_schedule *schedule = *state;
    size_t i = find(schedule, 0, DP_ACTION_I, 0);
    schedule->actions[i].kind = DP_ACTION_B;
    refused(schedule, 0, i + 1, "repeats weight gradients");
}

static void a_w_that_runs_twice_is_refused(void **state)
{
    struct dp_schedule *schedule = *state;
    size_t last = find(schedule, 0, DP_ACTION_W, 2);
    schedule->actions[last] = schedule->actions[find(schedule, 0, DP_ACTION_W, 1)];
    refused(schedule, 0, last, "repeats weight gradients");
}

static void an_action_on_the_wrong_rank_is_refused(void **state)
{
    struct dp_schedule *schedule = *state;
    schedule->actions[2].microbatch = 7;  // of the stream from the last rank
    refused(schedule, 0, 2, "rank 3 holds stage 0 for this micro-batch");
}

static void stages_microbatches_and_kinds_out_of_range_are_refused(void **state)
{
    struct dp_schedule *schedule = *state;
    struct dp_action action = schedule->actions[3];
    schedule->actions[3].stage = 4;
    refused(schedule, 0, 3, "no such stage");
    schedule->actions[3] = action;
    schedule->actions[3].microbatch = 8;
    refused(schedule, 0, 3, "no such micro-batch");
    schedule->actions[3] = action;
    schedule->actions[3].kind = 9;
    refused(schedule, 0, 3, "unknown kind");
    schedule->actions[3] = action;
    size_t pair = find(schedule, 3, DP_ACTION_FB, 0);
    schedule->actions[pair].b_kind = DP_ACTION_W;
    refused(schedule, 3, pair, "B or I");
}

static void a_pair_of_one_chunk_with_itself_is_refused(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 1, 1);
    schedule.actions[0].kind = DP_ACTION_FB;
    schedule.actions[0].b_kind = DP_ACTION_B;
    refused(&schedule, 0, 0, "B0@0 needs F0@0 of the same pair");
    dp_schedule_deinit(&schedule);
}

// Both ranks begin with what the other would have to do first.
static void ranks_that_wait_for_each_other_are_refused(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    // Rank 0: F0 B0 F1 B1; rank 1: F0 F1 B0 B1. B0@0 needs B0@1, which waits behind F1@1.
    swap(&schedule, 1, 2);
    assert_refused(dp_schedule_validate(&schedule, &err), DP_INVALID, &err, "cannot finish");
    assert_refused(dp_schedule_validate(&schedule, &err), DP_INVALID, &err,
                   "rank 0 at 1 (B0@0) waits for B0@1 of rank 1 at 1 (F1@1)");
    assert_refused(dp_schedule_validate(&schedule, &err), DP_INVALID, &err,
                   "which waits for F1@0 of rank 0");
    dp_schedule_deinit(&schedule);
}

static void a_rank_that_waits_for_itself_is_refused(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("dualpipev", 1, 2);
    // F0@0 F0@1 ...: the turn's second leg before its first.
    swap(&schedule, 0, 1);
    assert_refused(dp_schedule_validate(&schedule, &err), DP_INVALID, &err,
                   "rank 0 at 0 (F0@1) waits for F0@0 of rank 0");
    dp_schedule_deinit(&schedule);
}

static void impossible_shapes_are_refused(void **state)
{
    struct dp_schedule *schedule = *state;
    struct dp_error err = {0};
    int32_t *placement = schedule->placement;
    placement[0] = 4;
    assert_refused(dp_schedule_validate(schedule, &err), DP_INVALID, &err, "ranks are 0 to 3");
    placement[0] = 1;
    assert_refused(dp_schedule_validate(schedule, &err), DP_INVALID, &err, "direction");
    placement[0] = 0;
    schedule->microbatches = 4000;
    assert_refused(dp_schedule_validate(schedule, &err), DP_INVALID, &err, "cannot take");
    schedule->microbatches = 8;
    schedule->directions = 1;
    assert_refused(dp_schedule_validate(schedule, &err), DP_INVALID, &err, "two ranks");
    schedule->directions = 2;
    assert_ok(dp_schedule_validate(schedule, &err), &err);
}

int main(void)
{
#define BROKEN(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        BROKEN(a_lost_w_is_refused),
        BROKEN(a_lost_forward_is_missed_at_the_end_of_its_rank),
        BROKEN(a_forward_behind_its_backward_is_refused_at_the_backward),
        BROKEN(a_forward_that_runs_twice_is_refused),
        BROKEN(a_second_backward_is_refused),
        BROKEN(a_w_without_its_i_is_refused),
        BROKEN(a_w_after_a_full_backward_is_refused),
        BROKEN(a_w_that_runs_twice_is_refused),
        BROKEN(an_action_on_the_wrong_rank_is_refused),
        BROKEN(stages_microbatches_and_kinds_out_of_range_are_refused),
        BROKEN(impossible_shapes_are_refused),
        cmocka_unit_test(a_pair_of_one_chunk_with_itself_is_refused),
        cmocka_unit_test(ranks_that_wait_for_each_other_are_refused),
        cmocka_unit_test(a_rank_that_waits_for_itself_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
