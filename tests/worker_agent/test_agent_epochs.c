// Two epochs of one job beside each other: each lives by its own orders.
#include <signal.h>

#include "agent_fixture.h"
#include "dp/clock.h"
#include "dp_test.h"

// Epoch 1 runs, epoch 2 is prepared beside it and ready.
static void run_both(struct fixture *fixture)
{
    run(fixture);
    prepare_of(fixture, fence(2), true);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 2);
    for (size_t i = 0; i < 2; i++) {
        spawned(fixture, 2, ranks[i], false);
        report_of(fixture, 2, ranks[i], DP_AGENT_REPORT_READY, 0);
    }
}

static void order(struct fixture *fixture, dp_agent_event_type type, uint32_t epoch,
                  const char *bytes)
{
    step(fixture,
         (struct dp_agent_event){
             .type = type, .fence = fence(epoch), .bytes = bytes, .length = strlen(bytes)});
}

static void ended_of(struct fixture *fixture, uint32_t epoch)
{
    exited(fixture, epoch, 4, SIGKILL);
    exited(fixture, epoch, 5, SIGKILL);
}

static void a_newer_epoch_that_is_prepared_beside_leaves_the_older_ranks_alone(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    prepare_of(fixture, fence(2), true);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 0);
    assert_int_equal(only(fixture, DP_AGENT_DO_START_KEEPER)->fence.epoch, 2);
    assert_false(held(fixture, 1)->stopping);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 2);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_SPAWN), 2);
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_RUNNING);
    assert_int_equal(held(fixture, 2)->ranks[0].phase, DP_AGENT_STARTING);
}

static void ranks_of_an_older_attempt_end_although_the_newer_is_prepared_beside(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    struct dp_agent_fence next = fence(2);
    next.attempt = 2;
    prepare_of(fixture, next, true);
    assert_int_equal(only(fixture, DP_AGENT_DO_STOP)->fence.attempt, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_START_KEEPER), 0);
    ended_of(fixture, 1);
    assert_int_equal(only(fixture, DP_AGENT_DO_START_KEEPER)->fence.attempt, 2);
}

static void an_attempt_that_is_not_prepared_beside_ends_both_epochs(void **state)
{
    struct fixture *fixture = *state;
    run_both(fixture);
    struct dp_agent_fence next = fence(3);
    next.attempt = 2;
    prepare_of(fixture, next, false);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 2);
    ended_of(fixture, 2);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_START_KEEPER), 0);
    ended_of(fixture, 1);
    assert_int_equal(only(fixture, DP_AGENT_DO_START_KEEPER)->fence.attempt, 2);
}

static void the_end_of_the_older_epoch_does_not_touch_the_newer(void **state)
{
    struct fixture *fixture = *state;
    run_both(fixture);
    start(fixture, 2);
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_STOP, .fence = fence(1)});
    assert_int_equal(only(fixture, DP_AGENT_DO_STOP)->fence.epoch, 1);
    ended_of(fixture, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_START_KEEPER), 0);
    simple(fixture, DP_AGENT_RELEASE, 1);
    assert_int_equal(only(fixture, DP_AGENT_DO_FORGET)->fence.epoch, 1);
    assert_int_equal(dp_agent_core_count(fixture->core), 1);
    assert_false(held(fixture, 2)->stopping || held(fixture, 2)->releasing);
    assert_int_equal(held(fixture, 2)->ranks[1].phase, DP_AGENT_RUNNING);
}

static void an_abandoned_epoch_ends_while_the_older_trains_on(void **state)
{
    struct fixture *fixture = *state;
    run_both(fixture);
    simple(fixture, DP_AGENT_RELEASE, 2);
    assert_int_equal(only(fixture, DP_AGENT_DO_STOP)->fence.epoch, 2);
    ended_of(fixture, 2);
    assert_int_equal(only(fixture, DP_AGENT_DO_FORGET)->fence.epoch, 2);
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_RUNNING);
    // It is used up: the next try has a newer one.
    prepare_of(fixture, fence(2), true);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_REFUSE), 1);
    prepare_of(fixture, fence(3), true);
    assert_int_equal(only(fixture, DP_AGENT_DO_START_KEEPER)->fence.epoch, 3);
}

static void an_agent_that_returns_adopts_both_epochs(void **state)
{
    struct fixture *fixture = *state;
    // The disk names the newer first, as it may.
    for (uint32_t epoch = 2; epoch >= 1; epoch--) {
        step(fixture, (struct dp_agent_event){.type = DP_AGENT_FOUND,
                                              .fence = fence(epoch),
                                              .numbers = ranks,
                                              .numbers_count = 2});
    }
    for (uint32_t epoch = 1; epoch <= 2; epoch++) {
        spawned(fixture, epoch, 4, epoch == 1);
        spawned(fixture, epoch, 5, epoch == 1);
        simple(fixture, DP_AGENT_KEEPER_SYNCED, epoch);
        assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 0);
        assert_int_equal(count_of(fixture, DP_AGENT_DO_SPAWN), 0);
    }
    simple(fixture, DP_AGENT_STREAM_UP, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_LEVEL), 2);
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_RUNNING);
    assert_int_equal(held(fixture, 2)->ranks[0].phase, DP_AGENT_STARTING);
}

static void orders_for_ranks_that_run_reach_only_those(void **state)
{
    struct fixture *fixture = *state;
    static const dp_agent_event_type types[] = {DP_AGENT_PAUSE, DP_AGENT_SETTLE, DP_AGENT_PROBE,
                                                DP_AGENT_REBALANCE, DP_AGENT_CHECKPOINT};
    run_both(fixture);
    exited(fixture, 1, 4, SIGSEGV);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        order(fixture, types[i], 2, "words");
        assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 0);
        order(fixture, types[i], 1, "words");
        const struct dp_agent_effect *effect = only(fixture, DP_AGENT_DO_ORDER);
        assert_int_equal(effect->rank, 5);
        assert_int_equal(effect->fence.epoch, 1);
        assert_false(effect->start);
        assert_int_equal(effect->length, 5);
        assert_memory_equal(effect->bytes, "words", 5);
    }
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_STOP, .fence = fence(1)});
    order(fixture, DP_AGENT_PAUSE, 1, "words");
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 0);
}

static void a_pause_that_was_lost_with_the_connection_is_given_again(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    simple(fixture, DP_AGENT_KEEPER_LEFT, 1);
    order(fixture, DP_AGENT_PAUSE, 1, "pause");
    order(fixture, DP_AGENT_PROBE, 1, "probe");
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 0);
    spawned(fixture, 1, 4, true);
    spawned(fixture, 1, 5, true);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 2);
    for (size_t i = 0; i < fixture->effects.count; i++) {
        if (fixture->effects.items[i].type == DP_AGENT_DO_ORDER) {
            assert_memory_equal(fixture->effects.items[i].bytes, "pause", 5);
        }
    }
    // What the newer one says counts, not what came before.
    order(fixture, DP_AGENT_SETTLE, 1, "old");
    order(fixture, DP_AGENT_SETTLE, 1, "settle");
    simple(fixture, DP_AGENT_KEEPER_LEFT, 1);
    spawned(fixture, 1, 4, true);
    spawned(fixture, 1, 5, true);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 4);
    size_t settles = 0;
    for (size_t i = 0; i < fixture->effects.count; i++) {
        const struct dp_agent_effect *effect = &fixture->effects.items[i];
        settles += effect->type == DP_AGENT_DO_ORDER && effect->length == 6 &&
                   memcmp(effect->bytes, "settle", 6) == 0;
    }
    assert_int_equal(settles, 2);
}

static void hold(struct fixture *fixture, uint32_t rank, uint64_t at_step, const char *words)
{
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_REPORT,
                                          .fence = fence(1),
                                          .rank = rank,
                                          .kind = DP_AGENT_REPORT_HELD,
                                          .step = at_step,
                                          .bytes = "whole",
                                          .length = 5,
                                          .inner = words,
                                          .inner_length = strlen(words)});
}

static void the_newest_word_of_a_rank_that_holds_is_its_level(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    assert_null(held(fixture, 1)->ranks[0].held.bytes);
    hold(fixture, 4, 7, "seven");
    assert_int_equal(count_of(fixture, DP_AGENT_DO_LEVEL), 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_REPORT), 1);
    assert_int_equal(held(fixture, 1)->ranks[0].step, 7);
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_RUNNING);
    // It has settled meanwhile.
    hold(fixture, 4, 8, "eight!");
    assert_int_equal(held(fixture, 1)->ranks[0].held.length, 6);
    assert_memory_equal(held(fixture, 1)->ranks[0].held.bytes, "eight!", 6);
    assert_int_equal(held(fixture, 1)->ranks[0].step, 8);
    assert_null(held(fixture, 1)->ranks[1].held.bytes);
    // It is told while there is a controller, and part of what one that returns is told.
    simple(fixture, DP_AGENT_STREAM_DOWN, 0);
    hold(fixture, 5, 8, "eight!");
    assert_int_equal(count_of(fixture, DP_AGENT_DO_LEVEL), 0);
    simple(fixture, DP_AGENT_STREAM_UP, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_LEVEL), 1);
    assert_memory_equal(held(fixture, 1)->ranks[1].held.bytes, "eight!", 6);
}

static void an_evaluation_does_not_hide_the_checkpoint_before_it(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    simple(fixture, DP_AGENT_STREAM_DOWN, 0);
    report(fixture, 4, DP_AGENT_REPORT_CHECKPOINT, 20);
    report(fixture, 4, DP_AGENT_REPORT_EVALUATION, 20);
    // Whoever asked for this asks again.
    report(fixture, 4, DP_AGENT_REPORT_ONCE, 20);
    simple(fixture, DP_AGENT_STREAM_UP, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_REPORT), 2);
}

static void a_node_left_alone_ends_both_epochs(void **state)
{
    struct fixture *fixture = *state;
    run_both(fixture);
    fixture->now_ns = (ORPHAN_MS + 1) * DP_NS_PER_MS;
    simple(fixture, DP_AGENT_TICK, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 2);
    assert_true(held(fixture, 1)->fenced && held(fixture, 2)->fenced);
}

static void a_node_that_stood_still_starts_nothing_that_was_ordered_before(void **state)
{
    struct fixture *fixture = *state;
    simple(fixture, DP_AGENT_STREAM_UP, 0);
    prepare(fixture, 1);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    spawned(fixture, 1, 4, false);
    // It wakes up past its fence, and reads what had come.
    fixture->now_ns = (ORPHAN_MS + 1) * DP_NS_PER_MS;
    start(fixture, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 0);
    prepare_of(fixture, fence(2), true);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_START_KEEPER), 0);
    // No answer: a refusal would fail a job that may be well.
    assert_int_equal(count_of(fixture, DP_AGENT_DO_REFUSE), 0);
    assert_int_equal(dp_agent_core_count(fixture->core), 1);
    simple(fixture, DP_AGENT_TICK, 0);
    assert_true(held(fixture, 1)->fenced);
    // An answer to what was sent before it stood still is none; one to its new hello is.
    acknowledged(fixture, 0);
    prepare_of(fixture, fence(2), true);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_START_KEEPER), 0);
    acknowledged(fixture, fixture->now_ns);
    prepare_of(fixture, fence(2), true);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_START_KEEPER), 1);
}

static void a_rank_that_was_killed_and_stays_is_told_once_and_no_other(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    step(fixture,
         (struct dp_agent_event){.type = DP_AGENT_STOP, .fence = fence(1), .grace_ms = 2000});
    exited(fixture, 1, 5, SIGKILL);
    fixture->now_ns = (2000 + DP_AGENT_UNKILLABLE_MS) * DP_NS_PER_MS - 1;
    simple(fixture, DP_AGENT_TICK, 0);
    assert_false(held(fixture, 1)->ranks[0].unkillable);
    fixture->now_ns++;
    simple(fixture, DP_AGENT_TICK, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_LEVEL), 1);
    assert_true(held(fixture, 1)->ranks[0].unkillable);
    assert_false(held(fixture, 1)->ranks[1].unkillable);
    assert_non_null(strstr(held(fixture, 1)->trouble, "UNKILLABLE: rank 4 (process 1004)"));
    simple(fixture, DP_AGENT_TICK, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_LEVEL), 0);
    // Its slot is not free, and it is not forgotten.
    simple(fixture, DP_AGENT_RELEASE, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_FORGET), 0);
    // What held it has let go.
    exited(fixture, 1, 4, SIGKILL);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_FORGET), 1);
}

static void an_agent_that_returns_to_ranks_that_were_killed_waits_for_their_end(void **state)
{
    struct fixture *fixture = *state;
    step(fixture,
         (struct dp_agent_event){
             .type = DP_AGENT_FOUND, .fence = fence(1), .numbers = ranks, .numbers_count = 2});
    for (size_t i = 0; i < 2; i++) {
        step(fixture, (struct dp_agent_event){.type = DP_AGENT_SPAWNED,
                                              .fence = fence(1),
                                              .rank = ranks[i],
                                              .pid = 1000 + ranks[i],
                                              .started = true,
                                              .stopped = true});
    }
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    fixture->now_ns = (DP_AGENT_STOP_GRACE_MS + DP_AGENT_UNKILLABLE_MS) * DP_NS_PER_MS;
    simple(fixture, DP_AGENT_TICK, 0);
    assert_true(held(fixture, 1)->ranks[0].unkillable && held(fixture, 1)->ranks[1].unkillable);
    exited(fixture, 1, 4, SIGKILL);
    assert_false(held(fixture, 1)->ranks[0].unkillable);
    assert_non_null(strstr(held(fixture, 1)->trouble, "UNKILLABLE"));
    exited(fixture, 1, 5, SIGKILL);
    assert_string_equal(held(fixture, 1)->trouble, "");
}

static void heartbeats_come_as_the_controller_asks_and_often_enough_for_the_node(void **state)
{
    (void)state;
    assert_int_equal(dp_agent_heartbeat_ms(5000, 600000), 5000);
    assert_int_equal(dp_agent_heartbeat_ms(0, 600000), 1000);
    // A node that would end its ranks after 8 s says four times in that time that it is there.
    assert_int_equal(dp_agent_heartbeat_ms(5000, 8000), 2000);
    assert_int_equal(dp_agent_heartbeat_ms(1, 600000), 100);
    // Never later than asked, and not all at once.
    assert_int_equal(dp_agent_heartbeat_wait_ns(5000, 0), 5 * DP_NS_PER_S);
    assert_int_equal(dp_agent_heartbeat_wait_ns(5000, 0.5), 45 * DP_NS_PER_S / 10);
    assert_true(dp_agent_heartbeat_wait_ns(5000, 0.999) >= 4 * DP_NS_PER_S);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_newer_epoch_that_is_prepared_beside_leaves_the_older_ranks_alone),
        CASE(ranks_of_an_older_attempt_end_although_the_newer_is_prepared_beside),
        CASE(an_attempt_that_is_not_prepared_beside_ends_both_epochs),
        CASE(the_end_of_the_older_epoch_does_not_touch_the_newer),
        CASE(an_abandoned_epoch_ends_while_the_older_trains_on),
        CASE(an_agent_that_returns_adopts_both_epochs),
        CASE(orders_for_ranks_that_run_reach_only_those),
        CASE(a_pause_that_was_lost_with_the_connection_is_given_again),
        CASE(the_newest_word_of_a_rank_that_holds_is_its_level),
        CASE(an_evaluation_does_not_hide_the_checkpoint_before_it),
        CASE(a_node_left_alone_ends_both_epochs),
        CASE(a_node_that_stood_still_starts_nothing_that_was_ordered_before),
        CASE(a_rank_that_was_killed_and_stays_is_told_once_and_no_other),
        CASE(an_agent_that_returns_to_ranks_that_were_killed_waits_for_their_end),
        CASE(heartbeats_come_as_the_controller_asks_and_often_enough_for_the_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
