// The lowered form is run here by a second machine that knows messages alone.
#include "support.h"

#include <stdlib.h>

struct lowered {
    struct dp_p2p *list;
    size_t count;
};

static struct lowered lower(const struct dp_schedule *schedule, int32_t rank)
{
    struct dp_error err = {0};
    struct lowered lowered;
    assert_ok(dp_schedule_lower(schedule, rank, &lowered.list, &lowered.count, &err), &err);
    return lowered;
}

static bool is_send(const struct dp_p2p *message)
{
    return message->kind == DP_SEND_F || message->kind == DP_SEND_B;
}

// The k-th message that a sends to b must be the k-th that b receives from a.
static void assert_link_agrees(const struct lowered *a, const struct lowered *b, int32_t from,
                               int32_t to)
{
    size_t receive = 0;
    for (size_t i = 0; i < a->count; i++) {
        const struct dp_p2p *sent = &a->list[i];
        if (!is_send(sent) || sent->peer != to) {
            continue;
        }
        while (receive < b->count &&
               (is_send(&b->list[receive]) || b->list[receive].peer != from)) {
            receive++;
        }
        assert_true(receive < b->count);
        const struct dp_p2p *got = &b->list[receive++];
        bool forward = sent->kind == DP_SEND_F;
        assert_int_equal(got->kind, forward ? DP_RECV_F : DP_RECV_B);
        assert_int_equal(got->microbatch, sent->microbatch);
        assert_int_equal(got->direction, sent->direction);
        assert_int_equal(got->stage, sent->stage + (forward ? 1 : -1));
    }
    for (; receive < b->count; receive++) {
        assert_true(is_send(&b->list[receive]) || b->list[receive].peer != from);
    }
}

// Runs every rank's messages with sends that do not wait and receives that do.
static void assert_progress(const struct lowered *ranks, int32_t count)
{
    size_t at[16] = {0};
    int in_flight[16][16] = {{0}};
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t rank = 0; rank < count; rank++) {
            while (at[rank] < ranks[rank].count) {
                const struct dp_p2p *message = &ranks[rank].list[at[rank]];
                if (is_send(message)) {
                    in_flight[rank][message->peer]++;
                } else if (in_flight[message->peer][rank] > 0) {
                    in_flight[message->peer][rank]--;
                } else {
                    break;
                }
                at[rank]++;
                moved = true;
            }
        }
    }
    for (int32_t rank = 0; rank < count; rank++) {
        assert_int_equal(at[rank], ranks[rank].count);
        for (int32_t peer = 0; peer < count; peer++) {
            assert_int_equal(in_flight[rank][peer], 0);
        }
    }
}

static void assert_lowers_well(const struct dp_schedule *schedule)
{
    struct lowered ranks[16];
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        ranks[rank] = lower(schedule, rank);
    }
    for (int32_t a = 0; a < schedule->pipeline; a++) {
        for (int32_t b = 0; b < schedule->pipeline; b++) {
            if (a != b) {
                assert_link_agrees(&ranks[a], &ranks[b], a, b);
            }
        }
    }
    assert_progress(ranks, schedule->pipeline);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        free(ranks[rank].list);
    }
}

static void both_ends_agree_on_the_order_and_all_ranks_finish(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        int32_t pipeline, microbatches;
    } cases[] = {{"gpipe", 4, 6},      {"1f1b", 4, 8},       {"1f1b", 8, 3},
                 {"1f1b", 1, 4},       {"dualpipe", 2, 2},   {"dualpipe", 8, 14},
                 {"dualpipe", 8, 20},  {"dualpipe", 16, 40}, {"dualpipev", 1, 3},
                 {"dualpipev", 4, 10}, {"dualpipev", 5, 9},  {"dualpipev", 8, 21}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_schedule schedule =
            make_schedule(cases[i].family, cases[i].pipeline, cases[i].microbatches);
        assert_lowers_well(&schedule);
        dp_schedule_deinit(&schedule);
    }
}

// S stages of which every border between ranks is crossed once forward and once backward.
static void as_many_messages_cross_as_there_are_borders(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("dualpipev", 4, 10);
    size_t total = 0;
    for (int32_t rank = 0; rank < 4; rank++) {
        struct lowered lowered = lower(&schedule, rank);
        total += lowered.count;
        free(lowered.list);
    }
    // 7 borders, of which the turn is local; 10 micro-batches, both ways, both ends.
    assert_int_equal(total, 6 * 10 * 2 * 2);
    dp_schedule_deinit(&schedule);
}

static void receives_stand_before_and_sends_after_their_action(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("1f1b", 2, 2);
    struct lowered first = lower(&schedule, 0);
    static const struct dp_p2p wanted[] = {
        {DP_SEND_F, 0, 0, 0, 1, 0, 0}, {DP_SEND_F, 0, 0, 1, 1, 1, 1},
        {DP_RECV_B, 0, 0, 0, 1, 2, 2}, {DP_RECV_B, 0, 0, 1, 1, 3, 3}};
    assert_int_equal(first.count, 4);
    assert_memory_equal(first.list, wanted, sizeof(wanted));
    free(first.list);
    dp_schedule_deinit(&schedule);
}

// The receiver wants micro-batch 1 first; it must take 0, which the sender made earlier, before.
static void a_receiver_with_another_order_takes_what_was_sent_earlier(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    schedule.actions[4].microbatch = 1;
    schedule.actions[5].microbatch = 0;
    assert_ok(dp_schedule_validate(&schedule, &err), &err);
    assert_lowers_well(&schedule);
    struct lowered second = lower(&schedule, 1);
    assert_int_equal(second.list[0].microbatch, 0);
    assert_int_equal(second.list[0].action, 0);
    assert_int_equal(second.list[1].microbatch, 1);
    assert_int_equal(second.list[1].action, 0);
    free(second.list);
    dp_schedule_deinit(&schedule);
}

static void a_rank_out_of_range_is_refused(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    struct dp_p2p *list;
    size_t count;
    assert_refused(dp_schedule_lower(&schedule, 2, &list, &count, &err), DP_INVALID, &err,
                   "ranks are 0 to 1");
    dp_schedule_deinit(&schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ends_agree_on_the_order_and_all_ranks_finish),
        cmocka_unit_test(as_many_messages_cross_as_there_are_borders),
        cmocka_unit_test(receives_stand_before_and_sends_after_their_action),
        cmocka_unit_test(a_receiver_with_another_order_takes_what_was_sent_earlier),
        cmocka_unit_test(a_rank_out_of_range_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
