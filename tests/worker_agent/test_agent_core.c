// The agent's decisions: events in, effects out.
#include <signal.h>
#include <stdlib.h>

#include "dp/agent_core.h"
#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp_test.h"

#define ORPHAN_MS 60000

struct fixture {
    struct dp_agent_core *core;
    struct dp_agent_effects effects; // of the last event
    int64_t now_ns;
};

static int set_up(void **state)
{
    struct fixture *fixture = dp_new(struct fixture);
    fixture->core = dp_agent_core_new(ORPHAN_MS, 0);
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    dp_agent_core_free(fixture->core);
    dp_agent_effects_deinit(&fixture->effects);
    free(fixture);
    return 0;
}

static struct dp_agent_fence fence(uint32_t epoch)
{
    return (struct dp_agent_fence){.job = "job-1", .attempt = 1, .epoch = epoch};
}

static void step(struct fixture *fixture, struct dp_agent_event event)
{
    event.now_ns = fixture->now_ns;
    fixture->effects.count = 0;
    dp_agent_core_step(fixture->core, &event, &fixture->effects);
}

static size_t count_of(const struct fixture *fixture, dp_agent_effect_type type)
{
    size_t count = 0;
    for (size_t i = 0; i < fixture->effects.count; i++) {
        count += fixture->effects.items[i].type == type;
    }
    return count;
}

static const struct dp_agent_effect *only(const struct fixture *fixture, dp_agent_effect_type type)
{
    assert_int_equal(count_of(fixture, type), 1);
    for (size_t i = 0; i < fixture->effects.count; i++) {
        if (fixture->effects.items[i].type == type) {
            return &fixture->effects.items[i];
        }
    }
    fail();
    return NULL;
}

static const uint32_t ranks[] = {4, 5};

static void simple(struct fixture *fixture, dp_agent_event_type type, uint32_t epoch)
{
    step(fixture, (struct dp_agent_event){.type = type, .fence = fence(epoch)});
}

static void prepare(struct fixture *fixture, uint32_t epoch)
{
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_PREPARE,
                                          .fence = fence(epoch),
                                          .numbers = ranks,
                                          .numbers_count = 2,
                                          .bytes = "prepare",
                                          .length = 7});
}

static void spawned(struct fixture *fixture, uint32_t epoch, uint32_t rank, bool started)
{
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_SPAWNED,
                                          .fence = fence(epoch),
                                          .rank = rank,
                                          .pid = 1000 + rank,
                                          .started = started});
}

static void exited(struct fixture *fixture, uint32_t epoch, uint32_t rank, int32_t signal)
{
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_EXITED,
                                          .fence = fence(epoch),
                                          .rank = rank,
                                          .pid = 1000 + rank,
                                          .signal = signal});
}

static void report(struct fixture *fixture, uint32_t rank, dp_agent_report kind, uint64_t number)
{
    step(fixture, (struct dp_agent_event){.type = DP_AGENT_REPORT,
                                          .fence = fence(1),
                                          .rank = rank,
                                          .kind = kind,
                                          .step = number,
                                          .bytes = "whole",
                                          .length = 5,
                                          .inner = "inner",
                                          .inner_length = 5,
                                          .kept = "kept",
                                          .kept_length = 4});
}

static void start(struct fixture *fixture, uint32_t epoch)
{
    step(fixture,
         (struct dp_agent_event){
             .type = DP_AGENT_START, .fence = fence(epoch), .bytes = "start", .length = 5});
}

static const struct dp_agent_assignment *held(const struct fixture *fixture, uint32_t epoch)
{
    struct dp_agent_fence wanted = fence(epoch);
    const struct dp_agent_assignment *assignment = dp_agent_core_find(fixture->core, &wanted);
    assert_non_null(assignment);
    return assignment;
}

// Epoch 1 with ranks 4 and 5 running.
static void run(struct fixture *fixture)
{
    simple(fixture, DP_AGENT_STREAM_UP, 0);
    prepare(fixture, 1);
    simple(fixture, DP_AGENT_KEEPER_SYNCED, 1);
    for (size_t i = 0; i < 2; i++) {
        spawned(fixture, 1, ranks[i], false);
        report(fixture, ranks[i], DP_AGENT_REPORT_READY, 0);
    }
    start(fixture, 1);
}

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
    report(fixture, 5, DP_AGENT_REPORT_LASTING, 1);
    simple(fixture, DP_AGENT_STREAM_UP, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_LEVEL), 1);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_REPORT), 512 + 1);
    assert_memory_equal(fixture->effects.items[1].bytes, "kept", 4);
    assert_int_equal(held(fixture, 1)->ranks[0].step, 600);
}

static void a_node_left_alone_too_long_ends_its_ranks_itself(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    fixture->now_ns = 5 * DP_NS_PER_S;
    simple(fixture, DP_AGENT_STREAM_DOWN, 0);
    fixture->now_ns += ORPHAN_MS * DP_NS_PER_MS;
    simple(fixture, DP_AGENT_TICK, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 0);
    // To hear the same again does not start anew.
    simple(fixture, DP_AGENT_STREAM_DOWN, 0);
    fixture->now_ns += 1;
    simple(fixture, DP_AGENT_TICK, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 1);
    assert_true(held(fixture, 1)->fenced);
    simple(fixture, DP_AGENT_TICK, 0);
    assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 0);
}

static void a_controller_that_returns_in_time_stops_that_clock(void **state)
{
    struct fixture *fixture = *state;
    run(fixture);
    for (int i = 0; i < 10; i++) {
        simple(fixture, DP_AGENT_STREAM_DOWN, 0);
        fixture->now_ns += ORPHAN_MS * DP_NS_PER_MS / 2;
        simple(fixture, DP_AGENT_TICK, 0);
        assert_int_equal(count_of(fixture, DP_AGENT_DO_STOP), 0);
        simple(fixture, DP_AGENT_STREAM_UP, 0);
    }
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
        if (type == DP_AGENT_PREPARE || type == DP_AGENT_FOUND) {
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
        CASE(a_controller_that_returns_in_time_stops_that_clock),
        CASE(ranks_found_without_their_file_are_held_as_the_keeper_knows_them),
        CASE(ranks_the_last_life_did_not_start_are_started_now),
        CASE(ending_all_waits_for_every_rank),
        CASE(events_about_nothing_held_do_nothing_but_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
