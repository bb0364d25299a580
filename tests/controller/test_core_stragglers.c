// Who slows a job down, as the core tells it from what ranks report: events, rows, probes.
#include <string.h>

#include "core_world.h"
#include "dp/check.h"
#include "dp/straggler.h"
#include "dp_test.h"

#define MS INT64_C(1000000)

// A job that runs, under the policy "advise".
static void bring(struct world *world, uint64_t ret_sessions[2])
{
    world_init(world);
    world->adapt = DP_JOB_ADAPT_ADVISE;
    world_bring(world, DP_STATE_RUNNING, ret_sessions);
}

// Four ranks that do the same; one takes `factor` times as long.
static void all_report(struct world *world, const uint64_t sessions[2], uint64_t step,
                       uint32_t slow, double factor)
{
    world->steps_count = 0;
    for (uint32_t rank = 0; rank < 4; rank++) {
        int64_t one = rank == slow ? (int64_t)(10e6 * factor) : 10 * MS;
        struct dp_straggler_kind kind = {
            .kind = DP_ACTION_F, .count = 8, .total_ns = 8 * one, .median_ns = one};
        struct dp_straggler_sample times = {.kinds = &kind, .kinds_count = 1};
        struct dp_report report = {.kind = DP_REPORT_STEP};
        report.step.row = (struct dp_step_record){.step = step, .step_ns = 8 * 10 * MS};
        report.step.times = &times;
        world_report(world, sessions[rank / 2], rank, &report);
    }
}

// Steps in which one rank takes so many times as long; returns the next step.
static uint64_t train(struct world *world, const uint64_t sessions[2], uint64_t step,
                      uint32_t steps, uint32_t rank, double factor)
{
    for (uint64_t end = step + steps; step < end; step++) {
        all_report(world, sessions, step, rank, factor);
    }
    return step;
}

static void all_probe(struct world *world, const uint64_t sessions[2], uint64_t request,
                      uint32_t slow)
{
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct dp_straggler_probe probe = {
            .request = request, .gemm_ns = rank == slow ? 2000 : 1000, .gemm_flops = 1e6};
        struct dp_report report = {.kind = DP_REPORT_PROBE, .probe = &probe};
        world_report(world, sessions[rank / 2], rank, &report);
    }
}

static uint64_t probe_request(const struct world *world)
{
    for (size_t i = 0; i < world->sent_count; i++) {
        if (world->sent[i].order == DP_ORDER_PROBE) {
            return world->sent[i].request;
        }
    }
    return 0;
}

static void a_slow_rank_is_suspected_then_probed_then_confirmed(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    bring(&world, sessions);
    const struct dp_verdict_record *verdicts[4];
    uint64_t step = train(&world, sessions, 1, 30, 2, 1);
    assert_int_equal(dp_core_verdicts(world.core, 1, verdicts, 4), 0);
    step = train(&world, sessions, step, 12, 2, 1.5);
    assert_int_equal(dp_core_verdicts(world.core, 1, verdicts, 4), 1);
    assert_string_equal(verdicts[0]->state, "suspected");
    assert_string_equal(verdicts[0]->cause, "device");
    assert_int_equal(verdicts[0]->rank, 2);
    assert_int_equal(verdicts[0]->onset_step, 31);
    assert_string_equal(verdicts[0]->node, "b");
    assert_int_equal(world_sent(&world, DP_ORDER_PROBE, "a"), 1);
    assert_int_equal(world_sent(&world, DP_ORDER_PROBE, "b"), 1);
    all_probe(&world, sessions, probe_request(&world), 2);
    assert_int_equal(dp_core_verdicts(world.core, 1, verdicts, 4), 2);
    assert_string_equal(verdicts[0]->state, "confirmed"); // the newest first
    train(&world, sessions, step, 18, 2, 1);
    assert_int_equal(dp_core_verdicts(world.core, 1, verdicts, 4), 3);
    assert_string_equal(verdicts[0]->state, "healthy");
    assert_int_equal(world_sent(&world, DP_ORDER_PROBE, ""), 2); // and no more
}

// From a step on one rank takes twice as long, and the probe agrees; returns the next step.
static uint64_t slow_down(struct world *world, const uint64_t sessions[2], uint64_t step,
                          uint32_t rank)
{
    world->sent_count = 0;
    step = train(world, sessions, step, 12, rank, 2);
    all_probe(world, sessions, probe_request(world), rank);
    assert_true(world_noted(world, "straggler.confirmed", "device") > 0);
    return step;
}

static void pass(struct world *world, const uint64_t sessions[2], int seconds)
{
    for (int second = 0; second < seconds; second++) {
        world->sent_count = 0;
        world_pass(world, 1000);
        world_level(world, sessions[0], 0, 1, DP_RANK_RUNNING);
        world_level(world, sessions[1], 2, 3, DP_RANK_RUNNING);
    }
}

// Rank 2 is found after 30 healthy steps, and what to do about it is asked.
static uint64_t train_until_asked(struct world *world, const uint64_t sessions[2])
{
    uint64_t step = train(world, sessions, 1, 30, 2, 1);
    step = slow_down(world, sessions, step, 2);
    return train(world, sessions, step, 2, 2, 2);
}

static void who_becomes_slow_right_after_an_answer_has_his_own_when_that_is_old(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    bring(&world, sessions);
    uint64_t step = train_until_asked(&world, sessions);
    assert_int_equal(world.asks, 1);
    struct dp_core_event event = {.kind = DP_EVENT_ADAPT_DONE,
                                  .adapt_done = {.job = 1,
                                                 .request = world.asked.request,
                                                 .kind = "ignore",
                                                 .action = "go on as it is",
                                                 .document = "{}",
                                                 .document_length = 2}};
    world_step(&world, &event);
    step = train(&world, sessions, step, 40, 2, 1);
    assert_int_equal(world_noted(&world, "straggler.recovered", ""), 1);
    step = slow_down(&world, sessions, step, 1);
    step = train(&world, sessions, step, 2, 1, 2);
    assert_int_equal(world.asks, 1);
    pass(&world, sessions, 61);
    train(&world, sessions, step, 1, 1, 2);
    assert_int_equal(world.asks, 2);
    assert_non_null(strstr(world.asked.cause, "rank 1"));
}

static void who_becomes_slow_while_an_answer_is_looked_for_does_not_wait_for_its_time(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    bring(&world, sessions);
    uint64_t step = train_until_asked(&world, sessions);
    assert_int_equal(world.asks, 1);
    step = slow_down(&world, sessions, step, 1);
    struct dp_core_event event = {.kind = DP_EVENT_ADAPT_DONE,
                                  .adapt_done = {.job = 1,
                                                 .request = world.asked.request,
                                                 .kind = "ignore",
                                                 .action = "go on as it is",
                                                 .again_steps = 5000,
                                                 .document = "{}",
                                                 .document_length = 2}};
    world_step(&world, &event);
    train(&world, sessions, step, 2, 1, 2);
    assert_int_equal(world.asks, 2);
}

static void what_had_no_answer_in_time_is_asked_again_later(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    bring(&world, sessions);
    uint64_t step = train_until_asked(&world, sessions);
    assert_int_equal(world.asks, 1);
    pass(&world, sessions, 122);
    assert_int_equal(world_noted(&world, "job.no_answer", "no answer within"), 1);
    step = train(&world, sessions, step, 2, 2, 2);
    assert_int_equal(world.asks, 1);
    pass(&world, sessions, 61);
    train(&world, sessions, step, 2, 2, 2);
    assert_int_equal(world.asks, 2);
}

static void answer_move(struct world *world)
{
    static const struct dp_slot slots[] = {{"a", 1}, {"a", 0}, {"b", 0}, {"b", 1}};
    struct dp_core_event event = {.kind = DP_EVENT_ADAPT_DONE,
                                  .adapt_done = {.job = 1,
                                                 .request = world->asked.request,
                                                 .kind = "swap-ranks",
                                                 .action = "ranks 0 and 1 change places",
                                                 .document = "{}",
                                                 .document_length = 2,
                                                 .plan = "other",
                                                 .plan_length = 5,
                                                 .ranks = slots,
                                                 .ranks_count = 4}};
    world_step(world, &event);
}

static void a_change_that_was_abandoned_is_asked_about_again_each_time_twice_as_late(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_init(&world);
    world.adapt = DP_JOB_ADAPT_AUTO;
    world_bring(&world, DP_STATE_RUNNING, sessions);
    uint64_t step = train_until_asked(&world, sessions);
    for (uint32_t turn = 1; turn <= 2; turn++) {
        assert_int_equal(world.asks, turn);
        answer_move(&world);
        assert_int_equal(world_job(&world, 1)->state, DP_STATE_REASSIGNING);
        struct dp_rank_level rank = world_rank_level(0, DP_RANK_DIED);
        rank.signal = 9;
        struct dp_assignment_level level = {
            .fence = {"job-1", 1, 1 + turn}, .ranks = &rank, .ranks_count = 1, .error = ""};
        world_send_level(&world, sessions[0], &level);
        assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
        for (uint32_t minute = 0; minute < turn; minute++) {
            step = train(&world, sessions, step, 2, 2, 2);
            assert_int_equal(world.asks, turn);
            pass(&world, sessions, 61);
        }
        step = train(&world, sessions, step, 2, 2, 2);
    }
    assert_int_equal(world.asks, 3);
    // Who is found now does not wait for four minutes.
    struct dp_core_event failed = {.kind = DP_EVENT_ADAPT_FAILED,
                                   .adapt_failed = {.job = 1, .request = world.asked.request}};
    world_step(&world, &failed);
    step = slow_down(&world, sessions, step, 1);
    step = train(&world, sessions, step, 2, 1, 2);
    assert_int_equal(world.asks, 3);
    pass(&world, sessions, 61);
    train(&world, sessions, step, 2, 1, 2);
    assert_int_equal(world.asks, 4);
}

// With its answer may be done what makes nobody faster who is slow: placing experts.
static void what_was_not_answered_by_an_answer_is_asked_again_each_time_twice_as_late(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    bring(&world, sessions);
    uint64_t step = train_until_asked(&world, sessions);
    for (uint32_t turn = 1; turn <= 2; turn++) {
        assert_int_equal(world.asks, turn);
        struct dp_core_event event = {.kind = DP_EVENT_ADAPT_DONE,
                                      .adapt_done = {.job = 1,
                                                     .request = world.asked.request,
                                                     .kind = "experts",
                                                     .action = "experts placed anew",
                                                     .again_steps = 1,
                                                     .document = "{}",
                                                     .document_length = 2}};
        world_step(&world, &event);
        for (uint32_t minute = 0; minute < turn; minute++) {
            step = train(&world, sessions, step, 2, 2, 2);
            assert_int_equal(world.asks, turn);
            pass(&world, sessions, 61);
        }
        step = train(&world, sessions, step, 2, 2, 2);
    }
    assert_int_equal(world.asks, 3);
}

static void figures_of_another_probe_confirm_nothing(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    bring(&world, sessions);
    for (uint64_t step = 1; step <= 45; step++) {
        all_report(&world, sessions, step, 0, step > 30 ? 3 : 1);
    }
    all_probe(&world, sessions, probe_request(&world) + 1, 0);
    const struct dp_verdict_record *verdicts[4];
    assert_int_equal(dp_core_verdicts(world.core, 1, verdicts, 4), 1);
    assert_string_equal(verdicts[0]->state, "suspected");
}

static void with_policy_off_nobody_is_probed(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world.adapt = DP_JOB_ADAPT_OFF;
    uint64_t sessions[2];
    world_bring(&world, DP_STATE_RUNNING, sessions);
    for (uint64_t step = 1; step <= 60; step++) {
        all_report(&world, sessions, step, 1, step > 30 ? 2 : 1);
    }
    const struct dp_verdict_record *verdicts[4];
    assert_int_equal(dp_core_verdicts(world.core, 1, verdicts, 4), 1);
    assert_int_equal(world_sent(&world, DP_ORDER_PROBE, ""), 0);
}

static void steps_that_are_told_again_are_no_more_evidence(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    bring(&world, sessions);
    for (uint64_t step = 1; step <= 33; step++) {
        for (int again = 0; again < 6; again++) {
            all_report(&world, sessions, step, 3, step > 30 ? 2 : 1);
        }
    }
    const struct dp_verdict_record *verdicts[4];
    assert_int_equal(dp_core_verdicts(world.core, 1, verdicts, 4), 0);
}

static void ranks_that_tell_no_times_are_not_called_healthy(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    bring(&world, sessions);
    for (uint64_t step = 1; step <= 60; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct dp_straggler_kind kind = {.kind = DP_ACTION_F, .count = 1, .total_ns = MS};
            struct dp_straggler_sample times = {.kinds = &kind, .kinds_count = 1};
            struct dp_report report = {.kind = DP_REPORT_STEP};
            report.step.row = (struct dp_step_record){.step = step, .step_ns = 10 * MS};
            report.step.times = rank == 3 ? NULL : &times;
            world_report(&world, sessions[rank / 2], rank, &report);
        }
    }
    const struct dp_verdict_record *verdicts[4];
    assert_int_equal(dp_core_verdicts(world.core, 1, verdicts, 4), 1);
    assert_string_equal(verdicts[0]->state, "no data");
    assert_int_equal(verdicts[0]->rank, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_rank_is_suspected_then_probed_then_confirmed),
        cmocka_unit_test(who_becomes_slow_right_after_an_answer_has_his_own_when_that_is_old),
        cmocka_unit_test(who_becomes_slow_while_an_answer_is_looked_for_does_not_wait_for_its_time),
        cmocka_unit_test(what_had_no_answer_in_time_is_asked_again_later),
        cmocka_unit_test(a_change_that_was_abandoned_is_asked_about_again_each_time_twice_as_late),
        cmocka_unit_test(what_was_not_answered_by_an_answer_is_asked_again_each_time_twice_as_late),
        cmocka_unit_test(figures_of_another_probe_confirm_nothing),
        cmocka_unit_test(with_policy_off_nobody_is_probed),
        cmocka_unit_test(steps_that_are_told_again_are_no_more_evidence),
        cmocka_unit_test(ranks_that_tell_no_times_are_not_called_healthy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
