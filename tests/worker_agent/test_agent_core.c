// The agent's decisions: events in, effects out.
#include <signal.h>
#include <stdio.h>

#include "agent_fixture.h"
#include "dp/clock.h"
#include "dp/rand.h"
#include "dp_test.h"

static void a_prepare_starts_a_keeper_then_each_rank(void **state)
{
    struct fixture *fixture = *state;
    prepare(fixture, 1);
    const struct dp_agent_effect *effect = only(fixture, DP_AGENT_DO_START_KEEPER);
    assert_int_equal(effect->length, 7);
    assert_memory_equal(effect->bytes, "prepare", 7);
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_UNKNOWN);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_SPAWN), 2);
    assert_int_equal(fixture->effects.items[0].rank, 4);
    assert_int_equal(fixture->effects.items[1].rank, 5);
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_STARTING);
}

static void levels_follow_a_rank_through_its_life(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 2);
    assert_true(fixture->effects.items[0].start);
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_RUNNING);
    report(fixture, 4, DP_AGENT_REPORT_STEP, 3);
    assert_int_equal(held(fixture, 1)->ranks[0].step, 3);
    report(fixture, 4, DP_AGENT_REPORT_FINISHED, 3);
    // Its last word is told at once, but it ends only when its process has.
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_RUNNING);
    exited(fixture, 1, 4, 0);
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_FINISHED);
    exited(fixture, 1, 5, SIGSEGV);
    assert_int_equal(held(fixture, 1)->ranks[1].phase, DP_AGENT_DIED);
    assert_int_equal(held(fixture, 1)->ranks[1].signal, SIGSEGV);
    assert_true(dp_agent_assignment_ended(held(fixture, 1)));
    assert_false(held(fixture, 1)->keeper_lost);
}

static void a_start_that_comes_twice_is_passed_on_once(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    start(fixture, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_LEVEL), 1);
}

static void a_start_that_comes_before_the_keeper_waits_for_it(void **state)
{
    struct fixture *fixture = *state;
    step(fixture,
         (struct dp_agent_event){
             .type = DP_AGENT_FOUND, .fence = fence(1), .numbers = ranks, .numbers_count = 2});
    start(fixture, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 0);
    spawned(fixture, 1, 4, true);
    spawned(fixture, 1, 5, false);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    // Rank 4 had its start in the agent's life before.
    assert_int_equal(only(fixture, DP_AGENT_DO_ORDER)->rank, 5);
}

static void a_prepare_that_is_repeated_or_older_does_nothing(void **state)
{
    struct fixture *fixture = *state;
    prepare(fixture, 2);
    prepare(fixture, 2);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_START_KEEPER), 0);
    prepare(fixture, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_START_KEEPER), 0);
    assert_non_null(strstr(only(fixture, DP_AGENT_DO_LOG)->text, "refused"));
    assert_int_equal(dp_agent_core_count(fixture->core), 1);
}

static void what_was_released_cannot_come_back(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    exited(fixture, 1, 4, 0);
    exited(fixture, 1, 5, 0);
    simple(fixture, DP_AGENT_RELEASE, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_SHUTDOWN), 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_FORGET), 1);
    assert_int_equal(dp_agent_core_count(fixture->core), 0);
    prepare(fixture, 1);
    assert_int_equal(dp_agent_core_count(fixture->core), 0);
    // Also when only the disk remembers.
    step(fixture, (struct dp_agent_event){
                      .type = DP_AGENT_WAS_RELEASED,
                      .fence = {.job = "job-9", .attempt = 3, .epoch = 1},
                  });
    step(fixture, (struct dp_agent_event){
                      .type = DP_AGENT_PREPARE,
                      .fence = {.job = "job-9", .attempt = 2, .epoch = 8},
                      .numbers = ranks,
                      .numbers_count = 2,
                      .bytes = "p",
                      .length = 1,
                  });
    assert_int_equal(dp_agent_core_count(fixture->core), 0);
}

static void a_newer_epoch_waits_until_the_older_ranks_have_ended(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    prepare(fixture, 2);
    const struct dp_agent_effect *stop = only(fixture, DP_AGENT_DO_STOP);
    assert_int_equal(stop->fence.epoch, 1);
    assert_int_equal(stop->grace_ms, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_START_KEEPER), 0);
    exited(fixture, 1, 4, SIGKILL);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_START_KEEPER), 0);
    exited(fixture, 1, 5, SIGKILL);
    const struct dp_agent_effect *effect = only(fixture, DP_AGENT_DO_START_KEEPER);
    assert_int_equal(effect->fence.epoch, 2);
    assert_memory_equal(effect->bytes, "prepare", 7);
}

static void a_stop_with_a_checkpoint_asks_first_and_forces_later(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_STOP,
                                          .fence = fence(1),
                                          .grace_ms = 1000,
                                          .bytes = "stop",
                                          .length = 4});
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 2);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 0);
    fixture->now_ns += 999 * DP_NS_PER_MS;
    simple(fixture, DP_AGENT_TICK, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 0);
    fixture->now_ns += DP_NS_PER_MS;
    simple(fixture, DP_AGENT_TICK, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 1);
    simple(fixture, DP_AGENT_TICK, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 0);
}

static void a_release_of_what_runs_ends_it_first(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    simple(fixture, DP_AGENT_RELEASE, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_FORGET), 0);
    exited(fixture, 1, 4, SIGKILL);
    exited(fixture, 1, 5, SIGKILL);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_FORGET), 1);
}

static void a_keeper_that_dies_is_lost_only_while_ranks_run(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    exited(fixture, 1, 4, 0);
    step(fixture, (struct dp_agent_event){
                      .type = DP_AGENT_KEEPER_ENDED, .fence = fence(1), .signal = SIGKILL});
    assert_true(held(fixture, 1)->keeper_lost);
    assert_int_equal(held(fixture, 1)->keeper_signal, SIGKILL);
    assert_int_equal(held(fixture, 1)->ranks[0].signal, 0);
    assert_int_equal(held(fixture, 1)->ranks[1].signal, SIGKILL);
    assert_true(dp_agent_assignment_ended(held(fixture, 1)));
    simple(fixture, DP_AGENT_RELEASE, 1);
    prepare(fixture, 2);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 2);
    exited(fixture, 2, 4, 0);
    exited(fixture, 2, 5, 0);
    simple(fixture, DP_AGENT_KEEPER_ENDED, 2);
    assert_false(held(fixture, 2)->keeper_lost);
}

static void a_keeper_that_cannot_start_is_an_error_of_the_assignment(void **state)
{
    struct fixture *fixture = *state;
    simple(fixture, DP_AGENT_STREAM_UP, 0);
    prepare(fixture, 1);
    step(fixture, (struct dp_agent_event){
                      .type = DP_AGENT_KEEPER_FAILED, .fence = fence(1), .text = "no space"});
    assert_string_equal(held(fixture, 1)->error, "no space");
    assert_true(dp_agent_assignment_ended(held(fixture, 1)));
    assert_int_equal(count_of(fixture, DP_AGENT_DO_LEVEL), 1);
}

static void while_the_controller_is_away_steps_are_kept_and_sent_later(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    simple(fixture, DP_AGENT_STREAM_DOWN, 0);
    for (uint64_t i = 1; i <= 600; i++) {
        report(fixture, 4, DP_AGENT_REPORT_STEP, i);
        assert_int_equal(count_of(fixture, DP_AGENT_DO_REPORT), 0);
        report(fixture, 4, DP_AGENT_REPORT_SAMPLE, i);
    }
    report(fixture, 5, DP_AGENT_REPORT_CHECKPOINT, 1);
    simple(fixture, DP_AGENT_STREAM_UP, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_LEVEL), 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_REPORT), 512 + 1);
    assert_memory_equal(fixture->effects.items[1].bytes, "kept", 4);
    assert_int_equal(held(fixture, 1)->ranks[0].step, 600);
}

// Ticks until the core stops the ranks; when, by its clock.
static int64_t fenced_at(struct fixture *fixture, int64_t until_ns)
{
    for (; fixture->now_ns <= until_ns; fixture->now_ns += 100 * DP_NS_PER_MS) {
        simple(fixture, DP_AGENT_TICK, 0);
        if (count_of(fixture, DP_AGENT_DO_STOP) == 1) {
            return fixture->now_ns;
        }
    }
    return INT64_MAX;
}

static void a_node_left_alone_too_long_ends_its_ranks_itself(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    acknowledged(fixture, 5 * DP_NS_PER_S);
    fixture->now_ns = 9 * DP_NS_PER_S;
    // Neither a stream that breaks nor one that opens is an answer.
    simple(fixture, DP_AGENT_STREAM_DOWN, 0);
    simple(fixture, DP_AGENT_STREAM_UP, 0);
    int64_t limit_ns = 5 * DP_NS_PER_S + ORPHAN_MS * DP_NS_PER_MS;
    int64_t at_ns = fenced_at(fixture, 2 * limit_ns);
    assert_true(at_ns > limit_ns && at_ns <= limit_ns + 100 * DP_NS_PER_MS);
    assert_true(held(fixture, 1)->fenced && held(fixture, 1)->stopping);
    assert_int_equal(only(fixture, DP_AGENT_DO_STOP)->grace_ms, DP_AGENT_STOP_GRACE_MS);
    simple(fixture, DP_AGENT_TICK, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 0);
}

static void what_is_acknowledged_holds_the_end_off_from_when_it_was_sent(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    for (int64_t sent_s = 0; sent_s < 600; sent_s += 30) {
        acknowledged(fixture, sent_s * DP_NS_PER_S);
        // An answer that was overtaken takes nothing back.
        acknowledged(fixture, (sent_s - 20) * DP_NS_PER_S);
        assert_int_equal(fenced_at(fixture, (sent_s + 50) * DP_NS_PER_S), INT64_MAX);
    }
    int64_t limit_ns = (600 - 30) * DP_NS_PER_S + ORPHAN_MS * DP_NS_PER_MS;
    int64_t at_ns = fenced_at(fixture, 2 * limit_ns);
    assert_true(at_ns > limit_ns && at_ns <= limit_ns + 100 * DP_NS_PER_MS);
}

// Whatever is lost of the traffic, no rank lives when a controller that counts from the arrival of
// the newest word gives its work away.
static void no_rank_outlives_the_fence_that_the_controller_counts(void **state)
{
    struct fixture *fixture = *state;
    struct dp_rand rand;
    dp_rand_init(&rand, 7);
    run(fixture);
    int64_t arrived_ns = 0;
    int64_t stopped_ns = INT64_MAX;
    for (; fixture->now_ns < 900 * DP_NS_PER_S; fixture->now_ns += 100 * DP_NS_PER_MS) {
        bool cut_off = fixture->now_ns > 300 * DP_NS_PER_S;
        int64_t sent_ns = fixture->now_ns - (int64_t)dp_rand_below(&rand, 2000) * DP_NS_PER_MS;
        bool arrives = !cut_off && dp_rand_below(&rand, 3) > 0;
        arrived_ns = arrives ? fixture->now_ns : arrived_ns;
        if (arrives && dp_rand_below(&rand, 3) > 0) {
            acknowledged(fixture, sent_ns > 0 ? sent_ns : 0);
        }
        simple(fixture, DP_AGENT_TICK, 0);
        if (count_of(fixture, DP_AGENT_DO_STOP) > 0) {
            stopped_ns = fixture->now_ns;
            break;
        }
    }
    int64_t gone_ns = stopped_ns + DP_AGENT_STOP_GRACE_MS * DP_NS_PER_MS;
    assert_true(stopped_ns > 300 * DP_NS_PER_S);
    assert_true(gone_ns < arrived_ns + (ORPHAN_MS + DP_AGENT_STOP_MS) * DP_NS_PER_MS);
}

static void an_order_that_was_lost_with_the_connection_is_given_again(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    simple(fixture, DP_AGENT_KEEPER_LEFT, 1);
    // The keeper knows rank 4 without its start, and nothing of rank 5.
    spawned(fixture, 1, 4, false);
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_READY);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    assert_int_equal(only(fixture, DP_AGENT_DO_SPAWN)->rank, 5);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 2);
    for (size_t i = 0; i < fixture->effects.count; i++) {
        const struct dp_agent_effect *effect = &fixture->effects.items[i];
        if (effect->type == DP_AGENT_DO_ORDER) {
            assert_true(effect->start);
            assert_memory_equal(effect->bytes, "start", 5);
        }
    }
}

static void orders_that_come_while_the_keeper_is_away_wait_for_it(void **state)
{
    struct fixture *fixture = *state;
    simple(fixture, DP_AGENT_STREAM_UP, 0);
    prepare(fixture, 1);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    simple(fixture, DP_AGENT_KEEPER_LEFT, 1);
    start(fixture, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 0);
    step(fixture,
         (struct dp_agent_event){.type = DP_AGENT_STOP, .fence = fence(1), .grace_ms = 1000});
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 0);
    spawned(fixture, 1, 4, false);
    spawned(fixture, 1, 5, false);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 1);
}

// A later agent that found it would start them.
static void a_keeper_without_ranks_goes_when_these_are_to_end(void **state)
{
    struct fixture *fixture = *state;
    prepare(fixture, 1);
    simple(fixture, DP_AGENT_STOP, 1);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_SHUTDOWN), 1);
}

static void a_frame_from_before_a_start_does_not_undo_it(void **state)
{
    struct fixture *fixture = *state;
    simple(fixture, DP_AGENT_STREAM_UP, 0);
    prepare(fixture, 1);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    start(fixture, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 2);
    spawned(fixture, 1, 4, false);
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_RUNNING);
    start(fixture, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_ORDER), 0);
}

static void a_prepare_that_is_refused_is_answered_with_the_reason(void **state)
{
    struct fixture *fixture = *state;
    prepare(fixture, 3);
    prepare(fixture, 2);
    const struct dp_agent_effect *refusal = only(fixture, DP_AGENT_DO_REFUSE);
    assert_int_equal(refusal->fence.epoch, 2);
    assert_false(refusal->leftover);
    assert_non_null(strstr(refusal->text, "attempt 1 epoch 2 of job-1 is older than attempt 1 "
                                          "epoch 3"));
    step(fixture, (struct dp_agent_event){
                      .type = DP_AGENT_BAD_PREPARE, .fence = fence(4), .text = "no such ranks"});
    assert_string_equal(only(fixture, DP_AGENT_DO_REFUSE)->text, "no such ranks");
    assert_int_equal(only(fixture, DP_AGENT_DO_REFUSE)->fence.epoch, 4);
    assert_int_equal(dp_agent_core_count(fixture->core), 1);
    simple(fixture, DP_AGENT_RELEASE, 3);
    simple(fixture, DP_AGENT_KEEPER_FAILED, 3);
    prepare(fixture, 3);
    assert_true(only(fixture, DP_AGENT_DO_REFUSE)->leftover);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_START_KEEPER), 0);
}

static void a_node_that_is_full_says_so(void **state)
{
    struct fixture *fixture = *state;
    struct dp_agent_event event = {.type = DP_AGENT_PREPARE,
                                   .fence = {.attempt = 1, .epoch = 1},
                                   .numbers = ranks,
                                   .numbers_count = 2,
                                   .bytes = "p",
                                   .length = 1};
    for (int i = 0; i <= DP_AGENT_ASSIGNMENTS_MAX; i++) {
        snprintf(event.fence.job, sizeof event.fence.job, "job-%d", i + 1);
        assert_int_equal(count_of(fixture, DP_AGENT_DO_REFUSE), 0);
        step(fixture, event);
    }
    assert_non_null(strstr(only(fixture, DP_AGENT_DO_REFUSE)->text, "256 assignments"));
    assert_string_equal(only(fixture, DP_AGENT_DO_REFUSE)->fence.job, "job-257");
}

static void unreachable(struct fixture *fixture, uint32_t epoch)
{
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_KEEPER_UNREACHABLE,
                                          .fence = fence(epoch),
                                          .text = "it does not answer"});
}

static void ranks_of_a_keeper_that_does_not_answer_are_not_called_dead(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    simple(fixture, DP_AGENT_KEEPER_LEFT, 1);
    unreachable(fixture, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_LEVEL), 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_KILL_KEEPER), 0);
    assert_string_equal(held(fixture, 1)->trouble, "it does not answer");
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_RUNNING);
    assert_false(dp_agent_assignment_ended(held(fixture, 1)));
    spawned(fixture, 1, 4, true);
    spawned(fixture, 1, 5, true);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    assert_string_equal(held(fixture, 1)->trouble, "");
    assert_string_equal(held(fixture, 1)->error, "");
    assert_int_equal(count_of(fixture, DP_AGENT_DO_SPAWN) + count_of(fixture, DP_AGENT_DO_ORDER),
                     0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_LEVEL), 1);
}

static void a_keeper_that_does_not_answer_is_killed_when_its_ranks_must_end(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    simple(fixture, DP_AGENT_KEEPER_LEFT, 1);
    step(fixture,
         (struct dp_agent_event){.type = DP_AGENT_STOP, .fence = fence(1), .grace_ms = 1000});
    unreachable(fixture, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_KILL_KEEPER), 1);
    step(fixture, (struct dp_agent_event){
                      .type = DP_AGENT_KEEPER_ENDED, .fence = fence(1), .signal = SIGKILL});
    assert_false(held(fixture, 1)->keeper_lost);
    assert_true(held(fixture, 1)->ranks[0].stopped);
    assert_true(dp_agent_assignment_ended(held(fixture, 1)));
}

static void told_to_end(struct fixture *fixture, uint32_t rank, int32_t signal, bool by_keeper)
{
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_EXITED,
                                          .fence = fence(1),
                                          .rank = rank,
                                          .pid = 1000 + rank,
                                          .signal = signal,
                                          .stopped = true,
                                          .by_keeper = by_keeper});
}

static void a_rank_that_ended_as_it_was_told_is_marked(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    exited(fixture, 1, 4, SIGSEGV);
    step(fixture,
         (struct dp_agent_event){.type = DP_AGENT_STOP, .fence = fence(1), .grace_ms = 1000});
    assert_true(held(fixture, 1)->stopping);
    told_to_end(fixture, 5, SIGTERM, false);
    assert_false(held(fixture, 1)->ranks[0].stopped);
    assert_true(held(fixture, 1)->ranks[1].stopped);
    assert_string_equal(held(fixture, 1)->error, "");
}

static void an_agent_that_returns_learns_that_a_stop_was_ordered(void **state)
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
    assert_true(held(fixture, 1)->stopping);
    // They have the grace that they were given.
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 0);
}

static void ranks_that_their_keeper_ended_for_want_of_an_agent_say_so(void **state)
{
    struct fixture *fixture = *state;
    step(fixture,
         (struct dp_agent_event){
             .type = DP_AGENT_FOUND, .fence = fence(1), .numbers = ranks, .numbers_count = 2});
    for (size_t i = 0; i < 2; i++) {
        spawned(fixture, 1, ranks[i], true);
        told_to_end(fixture, ranks[i], SIGTERM, true);
    }
    assert_false(held(fixture, 1)->stopping);
    assert_non_null(strstr(held(fixture, 1)->error, "no agent renewed its lease"));
}

static void ranks_found_without_their_file_are_held_as_the_keeper_knows_them(void **state)
{
    struct fixture *fixture = *state;
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_FOUND, .fence = fence(1)});
    assert_false(dp_agent_assignment_ended(held(fixture, 1)));
    spawned(fixture, 1, 8, true);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_SPAWN), 0);
    assert_int_equal(held(fixture, 1)->ranks_count, 1);
    assert_int_equal(held(fixture, 1)->ranks[0].rank, 8);
    assert_int_equal(held(fixture, 1)->ranks[0].phase, DP_AGENT_RUNNING);
}

static void ranks_the_last_life_did_not_start_are_started_now(void **state)
{
    struct fixture *fixture = *state;
    step(fixture,
         (struct dp_agent_event){
             .type = DP_AGENT_FOUND, .fence = fence(1), .numbers = ranks, .numbers_count = 2});
    spawned(fixture, 1, 4, false);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    assert_int_equal(only(fixture, DP_AGENT_DO_SPAWN)->rank, 5);
}

static void ending_all_waits_for_every_rank(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    simple(fixture, DP_AGENT_END_ALL, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 1);
    exited(fixture, 1, 4, SIGTERM);
    assert_int_equal(dp_agent_core_count(fixture->core), 1);
    exited(fixture, 1, 5, SIGTERM);
    assert_int_equal(dp_agent_core_count(fixture->core), 0);
}

static void events_about_nothing_held_do_nothing_but_say_so(void **state)
{
    struct fixture *fixture = *state;
    for (int type = 0; type < DP_AGENT_EVENT_COUNT; type++) {
        if (type == DP_AGENT_PREPARE || type == DP_AGENT_BAD_PREPARE || type == DP_AGENT_FOUND) {
            continue;
        }
        simple(fixture, (dp_agent_event_type)type, 7);
        for (size_t i = 0; i < fixture->effects.count; i++) {
            assert_int_equal(fixture->effects.items[i].type, DP_AGENT_DO_LOG);
        }
        assert_int_equal(dp_agent_core_count(fixture->core), 0);
    }
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_prepare_starts_a_keeper_then_each_rank),
        CASE(levels_follow_a_rank_through_its_life),
        CASE(a_start_that_comes_twice_is_passed_on_once),
        CASE(a_start_that_comes_before_the_keeper_waits_for_it),
        CASE(a_prepare_that_is_repeated_or_older_does_nothing),
        CASE(what_was_released_cannot_come_back),
        CASE(a_newer_epoch_waits_until_the_older_ranks_have_ended),
        CASE(a_stop_with_a_checkpoint_asks_first_and_forces_later),
        CASE(a_release_of_what_runs_ends_it_first),
        CASE(a_keeper_that_dies_is_lost_only_while_ranks_run),
        CASE(a_keeper_that_cannot_start_is_an_error_of_the_assignment),
        CASE(while_the_controller_is_away_steps_are_kept_and_sent_later),
        CASE(a_node_left_alone_too_long_ends_its_ranks_itself),
        CASE(what_is_acknowledged_holds_the_end_off_from_when_it_was_sent),
        CASE(no_rank_outlives_the_fence_that_the_controller_counts),
        CASE(an_order_that_was_lost_with_the_connection_is_given_again),
        CASE(orders_that_come_while_the_keeper_is_away_wait_for_it),
        CASE(a_keeper_without_ranks_goes_when_these_are_to_end),
        CASE(a_frame_from_before_a_start_does_not_undo_it),
        CASE(a_prepare_that_is_refused_is_answered_with_the_reason),
        CASE(a_node_that_is_full_says_so),
        CASE(ranks_of_a_keeper_that_does_not_answer_are_not_called_dead),
        CASE(a_keeper_that_does_not_answer_is_killed_when_its_ranks_must_end),
        CASE(a_rank_that_ended_as_it_was_told_is_marked),
        CASE(an_agent_that_returns_learns_that_a_stop_was_ordered),
        CASE(ranks_that_their_keeper_ended_for_want_of_an_agent_say_so),
        CASE(ranks_found_without_their_file_are_held_as_the_keeper_knows_them),
        CASE(ranks_the_last_life_did_not_start_are_started_now),
        CASE(ending_all_waits_for_every_rank),
        CASE(events_about_nothing_held_do_nothing_but_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
