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
                                                DP_AGENT_CHECKPOINT};
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
