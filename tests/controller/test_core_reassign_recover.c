// Ranks of a job are lost, and the others hold what is needed to go on.
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "dp/clock.h"
#include "dp_test.h"
#include "reassign_world.h"

// Rank 2 is gone, and the others hold `step`.
static void lose_rank_2(struct change *change, uint64_t step)
{
    change_die(change, 1, 'b', 2, SIGKILL);
    change_hold(change, 1, "aabb", 11, step, "rank 2 is gone");
}

static void survivors_hand_over_what_they_hold_and_no_checkpoint_is_needed(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_die(&change, 1, 'b', 2, SIGKILL);
    change_assert_state(&change, DP_STATE_REASSIGNING);
    assert_string_equal(change_job(&change)->reason, "Recovering");
    change_hold(&change, 1, "aabb", 3, 5, "rank 2 is gone");
    assert_int_equal(change.world.asks, 0);
    change_hold(&change, 1, "aabb", 8, 5, "rank 2 is gone");
    assert_int_equal(change.world.asks, 1);
    assert_true(change.world.asked.recovers);
    assert_int_equal(change.world.asked.lost_count, 1);
    assert_int_equal(change.world.asked.lost[0], 2);
    assert_int_equal(change.world.asked.step, 5);
    assert_non_null(strstr(change.world.asked.cause, "SIGKILL"));
    change_answer(&change, "aabc");
    assert_int_equal(change_sent(&change, DP_ORDER_PREPARE, 2, ""), 3);
    change_level(&change, 2, "aabc", DP_RANK_READY, 0);
    assert_int_equal(change_sent(&change, DP_ORDER_START, 2, ""), 3);
    struct dp_assignment_view view = change_view(&change, 2);
    assert_int_equal(view.sources_count, 3);
    assert_int_equal(view.sources[2].rank, 3);
    change_level(&change, 2, "aabc", DP_RANK_RUNNING, 5);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change_job(&change)->attempt, 1);
    assert_int_equal(change_job(&change)->epoch, 2);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, "a"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, "b"), 1);
}

static void survivors_that_are_a_step_behind_finish_it(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_die(&change, 1, 'b', 2, SIGKILL);
    change_assert_says(&change, "waits for rank 0 on a, rank 1 on a, rank 3 on b to hold, until ");
    change_hold(&change, 1, "aabb", 1, 6, "rank 2 is gone");
    change_assert_says(&change, "waits for rank 1 on a, rank 3 on b");
    change_hold(&change, 1, "aabb", 10, 5, "rank 2 is gone");
    assert_int_equal(change.world.asks, 0);
    assert_int_equal(change_sent(&change, DP_ORDER_SETTLE, 1, "a"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_SETTLE, 1, "b"), 1);
    for (size_t i = 0; i < change.world.sent_count; i++) {
        if (change.world.sent[i].order == DP_ORDER_SETTLE) {
            assert_int_equal(change.world.sent[i].request, 6);
            assert_float_equal(change.world.sent[i].grad_norm, 6, 0);
        }
    }
    change_hold(&change, 1, "aabb", 10, 6, "rank 2 is gone");
    world_pass(&change.world, change.world.config.settle_ms);
    assert_int_equal(change.world.asks, 1);
    assert_int_equal(change.world.asked.step, 6);
    assert_int_equal(change.world.asked.lost_count, 1);
    change_answer(&change, "aabc");
    assert_int_equal(change.world.decision.step, 6);
}

// Node a is heard for 4 s, with its ranks of epoch 1: an order that does not show by then was lost.
static void beat(struct change *change)
{
    struct dp_rank_level ranks[2] = {world_rank_level(0, DP_RANK_RUNNING),
                                     world_rank_level(1, DP_RANK_RUNNING)};
    struct dp_assignment_level level = {
        .fence = world_fence("job-1"), .ranks = ranks, .ranks_count = 2, .error = ""};
    for (int beats = 0; beats < 8; beats++) {
        world_pass(&change->world, 500);
        world_heartbeat(&change->world, change->a, &level, 1);
    }
}

static void orders_to_hold_and_to_settle_that_were_lost_are_sent_again(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_ask(&change, 0, "", false);
    change_answer(&change, "bbcc");
    change_level(&change, 2, "bbcc", DP_RANK_READY, 0);
    assert_int_equal(change_sent(&change, DP_ORDER_PAUSE, 1, "a"), 1);
    beat(&change);
    assert_int_equal(change_sent(&change, DP_ORDER_PAUSE, 1, "a"), 2);
    change_hold(&change, 1, "aabb", 14, 6, "");
    change_hold(&change, 1, "aabb", 1, 5, "");
    assert_int_equal(change_sent(&change, DP_ORDER_SETTLE, 1, "a"), 1);
    beat(&change);
    assert_int_equal(change_sent(&change, DP_ORDER_PAUSE, 1, "a"), 2);
    assert_int_equal(change_sent(&change, DP_ORDER_SETTLE, 1, "a"), 2);
}

static void a_survivor_that_cannot_come_to_the_step_is_lost_too(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_die(&change, 1, 'b', 2, SIGKILL);
    change_hold(&change, 1, "aabb", 3, 6, "rank 2 is gone");
    struct dp_rank_level level = world_rank_level(3, DP_RANK_RUNNING);
    level.held_known = true;
    level.held = (struct dp_rank_held){.step = 5, .address = "127.0.0.1:1", .why = "rank 2"};
    change_rank(&change, 1, 'b', &level);
    world_pass(&change.world, change.world.config.settle_ms);
    assert_int_equal(change.world.asked.lost_count, 2);
    assert_int_equal(change.world.asked.lost[1], 3);
    assert_int_equal(world_sent(&change.world, DP_ORDER_SETTLE, ""), 0);
}

static void a_rank_that_does_not_hold_in_time_is_lost_too(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_die(&change, 1, 'b', 2, SIGKILL);
    change_hold(&change, 1, "aabb", 3, 5, "rank 2 is gone");
    uint32_t most_ms = change.world.config.pause_timeout_ms + 2000;
    for (uint32_t ms = 0; ms < most_ms && change.world.asks == 0; ms += 1000) {
        world_pass(&change.world, 1000);
        change_level(&change, 1, "aabb", DP_RANK_RUNNING, 5);
    }
    assert_int_equal(change.world.asks, 1);
    assert_int_equal(change.world.asked.lost_count, 2);
}

// Ranks were to change places; now that is the smaller trouble.
static void a_rank_that_does_not_hold_for_a_change_is_done_without(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_begin(&change, "aacc", DP_RANK_READY);
    change_hold(&change, 1, "aabb", 11, 5, "");
    size_t asks = change.world.asks;
    uint32_t most_ms = change.world.config.pause_timeout_ms + 4000;
    for (uint32_t ms = 0; ms < most_ms && change.world.asks == asks; ms += 1000) {
        world_pass(&change.world, 1000);
        change_level(&change, 1, "aabb", DP_RANK_RUNNING, 5);
        change_level(&change, 2, "aacc", DP_RANK_READY, 0);
    }
    change_assert_state(&change, DP_STATE_REASSIGNING);
    assert_true(change.world.asked.recovers);
    assert_int_equal(change.world.asked.lost_count, 1);
    assert_int_equal(change.world.asked.lost[0], 2);
    assert_non_null(strstr(change.world.asked.cause, "still at it: rank 2 on b"));
    assert_true(change_sent(&change, DP_ORDER_STOP, 2, "c") > 0); // the change is given up
    change_answer(&change, "aab");
    assert_int_equal(change_job(&change)->attempt, 1);
    assert_int_equal(change_job(&change)->epoch_used, 3);
}

static void the_failure_is_named_when_what_is_left_is_not_enough(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    lose_rank_2(&change, 5);
    change_refuse(&change, "layers 3-4 were on rank 2 alone");
    change_assert_state(&change, DP_STATE_STOPPING);
    assert_string_equal(change_job(&change)->reason, "RankDied");
    change_assert_says(&change, "SIGKILL");
    change_assert_says(&change, "layers 3-4 were on rank 2 alone");
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, ""), 2);
}

static void nothing_is_recovered_where_the_policy_says_so(void **state)
{
    (void)state;
    for (int policy = DP_JOB_RECOVERY_OFF; policy <= DP_JOB_RECOVERY_CHECKPOINT; policy++) {
        AUTO_CHANGE change;
        change_init(&change, (dp_recovery_policy)policy, 5);
        change_die(&change, 1, 'b', 2, SIGKILL);
        change_assert_state(&change, DP_STATE_STOPPING);
        assert_string_equal(change_job(&change)->reason, "RankDied");
    }
}

static void a_failure_of_the_jobs_own_is_not_recovered_from(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    // First the consequence, then the cause.
    change_hold(&change, 1, "aabb", 1, 5, "rank 2 is gone");
    change_assert_state(&change, DP_STATE_REASSIGNING);
    struct dp_rank_level level = world_rank_level(2, DP_RANK_FINISHED);
    level.finished =
        (struct dp_rank_finished){.not_finite = true, .error = "the loss is nan", .action = "F3@2"};
    change_rank(&change, 1, 'b', &level);
    change_assert_state(&change, DP_STATE_STOPPING);
    assert_string_equal(change_job(&change)->reason, "NotFinite");
}

static void a_lost_node_is_done_without_and_its_slots_stay_taken_until_its_fence(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    world_close(&change.world, change.b);
    change_hold(&change, 1, "aabb", 3, 5, "rank 2 does not answer");
    assert_int_equal(change.world.asks, 0); // its ranks may be heard of yet
    change_hear(&change, "ac", 14);
    assert_int_equal(world_node_state(&change.world, "b"), DP_NODE_LOST);
    assert_int_equal(change.world.asks, 1);
    assert_int_equal(change.world.asked.lost_count, 2);
    assert_int_equal(change.world.asked.nodes_count, 2);
    change_answer(&change, "aacc");
    change_take_over(&change, 2, "aacc", 5);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change_slots_used(&change, "b"), 2);
    change_pass(&change, 2, "aacc", 5, 60);
    assert_int_equal(change_slots_used(&change, "b"), 0);
    change_assert_state(&change, DP_STATE_RUNNING);
}

// It says hello with its two ranks of the first epoch.
static void return_of_b(struct change *change)
{
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 2, DP_RANK_RUNNING);
    change_hello(change, 'b', &level, 1);
}

static void what_a_node_still_runs_when_it_returns_is_stopped(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    world_close(&change.world, change.b);
    change_hold(&change, 1, "aabb", 3, 5, "rank 2 does not answer");
    change_hear(&change, "ac", 14);
    change_answer(&change, "aacc");
    change_take_over(&change, 2, "aacc", 5);
    return_of_b(&change);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, "b"), 1);
    assert_int_equal(change_slots_used(&change, "b"), 2);
    change_assert_state(&change, DP_STATE_RUNNING);
}

static void a_partition_that_heals_while_ranks_train_on_recovers_nothing(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    world_close(&change.world, change.b);
    change_pass(&change, 1, "aa", 5, 14);
    change_assert_state(&change, DP_STATE_LOST);
    return_of_b(&change);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change.world.asks, 0);
}

static void a_partition_while_others_are_prepared_gives_up_these_alone(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_begin(&change, "aacc", DP_RANK_STARTING);
    world_close(&change.world, change.b);
    for (int beat = 0; beat < 14; beat++) {
        world_pass(&change.world, 1000);
        change_level(&change, 1, "aa", DP_RANK_RUNNING, 5);
        struct dp_rank_level none = {.rank = 99};
        change_rank(&change, 7, 'c', &none);
    }
    // Its ranks may train on with the others.
    change_assert_state(&change, DP_STATE_LOST);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 2, ""), 2);
    assert_int_equal(change_sent(&change, DP_ORDER_PAUSE, 1, ""), 0);
    assert_int_equal(change.world.decision.state, DP_DECISION_ABANDONED);
}

static void another_rank_that_dies_meanwhile_is_planned_around_too(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    lose_rank_2(&change, 5);
    change_answer(&change, "aabc");
    change_level(&change, 2, "aabc", DP_RANK_STARTING, 0);
    change_die(&change, 1, 'a', 1, SIGKILL);
    assert_int_equal(change.world.asks, 2);
    assert_int_equal(change.world.asked.lost_count, 2);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 2, ""), 3);
    change_answer(&change, "abcc");
    assert_int_equal(change_sent(&change, DP_ORDER_PREPARE, 3, ""), 3);
    change_take_over(&change, 3, "abcc", 5);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change_job(&change)->epoch, 3);
}

static void new_ranks_that_fail_while_the_old_ones_hold_are_tried_again(void **state)
{
    (void)state;
    for (int lost = 0; lost < 2; lost++) {
        AUTO_CHANGE change;
        change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
        if (lost == 1) {
            lose_rank_2(&change, 5);
            change_answer(&change, "aabc");
        } else {
            change_begin(&change, "aabc", DP_RANK_READY);
            change_hold(&change, 1, "aabb", 3, 5, "");
        }
        change_die(&change, 2, 'c', 3, SIGKILL);
        if (lost == 0) {
            change_hold(&change, 1, "aabb", 12, 5, "");
        }
        assert_int_equal(change_sent(&change, DP_ORDER_STOP, 2, "a"), 1);
        assert_true(change.world.asked.recovers);
        assert_int_equal(change.world.asked.lost_count, lost);
        change_answer(&change, "aacc");
        change_take_over(&change, 3, "aacc", 5);
        change_assert_state(&change, DP_STATE_RUNNING);
        assert_int_equal(change_job(&change)->epoch, 3);
        assert_int_equal(change_job(&change)->attempt, 1);
    }
}

static void ranks_stay_on_nodes_that_get_no_new_work(void **state)
{
    (void)state;
    static const dp_node_action actions[] = {DP_NODE_QUARANTINE, DP_NODE_DRAIN};
    for (size_t i = 0; i < 2; i++) {
        AUTO_CHANGE change;
        change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
        change_decide(&change, "a", actions[i]);
        if (actions[i] == DP_NODE_DRAIN) {
            change_refuse(&change, "there is no other place");
        }
        lose_rank_2(&change, 5);
        assert_string_equal(change.world.asked.away, "");
        change_answer(&change, "aabc");
        assert_int_equal(change_sent(&change, DP_ORDER_PREPARE, 2, "a"), 1);
        assert_int_equal(change_sent(&change, DP_ORDER_PREPARE, 2, "c"), 1);
    }
    // Others do not come there.
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_decide(&change, "c", DP_NODE_QUARANTINE);
    lose_rank_2(&change, 5);
    change_answer(&change, "aabc");
    assert_int_equal(change_sent(&change, DP_ORDER_PREPARE, 2, ""), 0);
}

static void what_was_advised_once_keeps_no_rank_from_its_node(void **state)
{
    (void)state;
    for (int refused = 0; refused < 2; refused++) {
        AUTO_CHANGE change;
        change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
        change_ask(&change, 0, "a", true);
        assert_string_equal(change.world.asked.away, "a");
        if (refused == 1) {
            change_refuse(&change, "there is no other place");
        } else {
            change_answer(&change, "bbcc");
        }
        lose_rank_2(&change, 5);
        assert_string_equal(change.world.asked.away, "");
        change_answer(&change, "aabc");
        assert_int_equal(change_sent(&change, DP_ORDER_PREPARE, 2, "a"), 1);
    }
}

static void ranks_that_all_hold_go_on_where_they_were_to_leave(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_ask(&change, 0, "a", false);
    change_answer(&change, "ccbb");
    change_level(&change, 2, "ccbb", DP_RANK_READY, 0);
    change_hold(&change, 1, "aabb", 3, 5, "");
    change_die(&change, 2, 'c', 0, SIGKILL);
    change_hold(&change, 1, "aabb", 12, 5, "");
    assert_true(change.world.asked.recovers);
    assert_int_equal(change.world.asked.lost_count, 0);
    assert_string_equal(change.world.asked.away, "");
    change_answer(&change, "aabb");
    assert_int_equal(change_sent(&change, DP_ORDER_PREPARE, 3, "a"), 1);
}

static void a_question_that_is_given_up_rings_no_timer(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_ask(&change, 0, "", false);
    int64_t left_ms = change.world.config.answer_timeout_ms - 10000;
    for (; left_ms > 0; left_ms -= 1000) {
        world_pass(&change.world, 1000);
        change_level(&change, 1, "aabb", DP_RANK_RUNNING, 5);
    }
    change_die(&change, 1, 'b', 2, SIGKILL);
    change_pass(&change, 1, "aabb", 5, 11);
    change_assert_state(&change, DP_STATE_REASSIGNING);
    assert_true(change.world.effects.timer_ns > change.world.now_ns);
}

static void new_ranks_that_fail_again_and_again_end_the_attempt(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    lose_rank_2(&change, 5);
    for (uint32_t epoch = 2; change_job(&change)->state == DP_STATE_REASSIGNING; epoch++) {
        assert_true(epoch < 10);
        change_answer(&change, "aabc");
        change_die(&change, epoch, 'c', 3, SIGKILL);
    }
    change_assert_state(&change, DP_STATE_STOPPING);
    assert_string_equal(change_job(&change)->reason, "RankDied");
    change_assert_says(&change, "rank 2 on b");
    change_assert_says(&change, "rank 3 on c");
}

static void the_same_step_is_recovered_a_few_times_only(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    uint32_t epoch = 1;
    const char *places = "aabb";
    while (epoch <= change.world.config.recoveries_max) {
        change_die(&change, epoch, places[2], 2, SIGSEGV);
        change_hold(&change, epoch, places, 11, 5, "rank 2 is gone");
        epoch++;
        places = "aabc";
        change_answer(&change, places);
        change_take_over(&change, epoch, places, 5);
        change_assert_state(&change, DP_STATE_RUNNING);
    }
    change_die(&change, epoch, places[2], 2, SIGSEGV);
    change_assert_state(&change, DP_STATE_STOPPING);
    assert_string_equal(change_job(&change)->reason, "RankDied");
}

static void lose_keeper(struct change *change, uint32_t epoch)
{
    struct dp_assignment_level level = {
        .fence = {"job-1", 1, epoch}, .keeper_lost = true, .keeper_signal = SIGKILL, .error = ""};
    world_send_level(&change->world, change->a, &level);
}

static void a_new_attempt_is_recovered_again_whatever_the_one_before_had(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    uint32_t epoch = 1;
    const char *places = "aabb";
    while (epoch <= change.world.config.recoveries_max) {
        change_die(&change, epoch, places[2], 2, SIGSEGV);
        change_hold(&change, epoch, places, 11, 5, "rank 2 is gone");
        change_answer(&change, "aabc");
        change_take_over(&change, epoch + 1, "aabc", 5);
        change_stop(&change, epoch, places);
        epoch++;
        places = "aabc";
    }
    lose_keeper(&change, epoch);
    change_assert_state(&change, DP_STATE_STOPPING);
    change_die(&change, epoch, 'b', 2, SIGTERM);
    change_die(&change, epoch, 'c', 3, SIGTERM);
    assert_int_equal(change_job(&change)->attempt, 2);
    // Not where the keeper was lost.
    change_second_level(&change, "bbcc", DP_RANK_READY);
    change_second_level(&change, "bbcc", DP_RANK_RUNNING);
    change_assert_state(&change, DP_STATE_RUNNING);
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct dp_report report = {.kind = DP_REPORT_STEP, .fence = {"job-1", 2, 1}};
        report.step.row = (struct dp_step_record){.step = 1, .step_ns = DP_NS_PER_MS};
        world_report(&change.world, rank < 2 ? change.b : change.c, rank, &report);
    }
    struct dp_rank_level dead = world_rank_level(2, DP_RANK_DIED);
    dead.signal = SIGKILL;
    struct dp_assignment_level level = {
        .fence = {"job-1", 2, 1}, .ranks = &dead, .ranks_count = 1, .error = ""};
    world_send_level(&change.world, change.c, &level);
    change_assert_state(&change, DP_STATE_REASSIGNING);
}

static void a_new_attempt_measures_nothing_of_the_one_before(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_CHECKPOINT, 5);
    change_to(&change, "aacc", 5);
    assert_int_equal(change.world.decision.state, DP_DECISION_RUNNING);
    lose_keeper(&change, 2);
    change_stop(&change, 1, "aabb");
    change_stop(&change, 2, "aacc");
    assert_int_equal(change_job(&change)->attempt, 2);
    assert_int_equal(change.world.decision.state, DP_DECISION_FELL_BACK);
    assert_non_null(strstr(change.world.decision.outcome, "attempt 1 ended before"));
}

static void hello_all(struct change *change, uint32_t old_epoch, const char *old, bool held,
                      uint32_t new_epoch, const char *new_places, dp_rank_phase phase)
{
    for (int n = 0; n < 3; n++) {
        struct dp_rank_level ranks[2][4];
        struct dp_assignment_level levels[2] = {
            {.fence = {"job-1", 1, old_epoch}, .ranks = ranks[0], .error = ""},
            {.fence = {"job-1", 1, new_epoch}, .ranks = ranks[1], .error = ""}};
        for (uint32_t rank = 0; rank < 4; rank++) {
            if (old[rank] == 'a' + n) {
                struct dp_rank_level *level = &ranks[0][levels[0].ranks_count++];
                *level = world_rank_level(rank, DP_RANK_RUNNING);
                level->step = 5;
                level->held_known = held;
                level->held = (struct dp_rank_held){.step = 5, .address = "127.0.0.1:1"};
            }
            if (new_places[rank] == 'a' + n) {
                ranks[1][levels[1].ranks_count++] = world_rank_level(rank, phase);
            }
        }
        struct dp_assignment_level given[2];
        size_t count = 0;
        for (int i = 0; i < 2; i++) {
            if (levels[i].ranks_count > 0) {
                given[count++] = levels[i];
            }
        }
        change_hello(change, (char)('a' + n), given, count);
    }
}

static void a_controller_that_dies_while_ranks_are_prepared_leaves_none(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_begin(&change, "aacc", DP_RANK_STARTING);
    change_restart(&change);
    hello_all(&change, 1, "aabb", false, 2, "aacc", DP_RANK_READY);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 2, "a"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 2, "c"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, ""), 0);
}

static void a_controller_that_dies_while_ranks_hold_goes_on_with_them(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_begin(&change, "aacc", DP_RANK_READY);
    change_hold(&change, 1, "aabb", 3, 5, "");
    change_restart(&change);
    hello_all(&change, 1, "aabb", true, 2, "aacc", DP_RANK_READY);
    change_assert_state(&change, DP_STATE_REASSIGNING);
    // As soon as it is on disk that they have no part in it.
    hello_all(&change, 1, "aabb", true, 2, "aacc", DP_RANK_READY);
    assert_true(change_sent(&change, DP_ORDER_STOP, 2, "a") > 0);
    assert_true(change_sent(&change, DP_ORDER_STOP, 2, "c") > 0);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, ""), 0);
    world_pass(&change.world, change.world.config.settle_ms);
    assert_true(change.world.asked.recovers);
    assert_int_equal(change.world.asked.lost_count, 0);
    change_answer(&change, "aacc");
    change_take_over(&change, 3, "aacc", 5);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change_job(&change)->epoch, 3);
}

static void a_controller_that_dies_while_ranks_take_over_lets_them(void **state)
{
    (void)state;
    for (int started = 0; started < 2; started++) {
        AUTO_CHANGE change;
        change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
        change_begin(&change, "aacc", DP_RANK_READY);
        change_hold(&change, 1, "aabb", 15, 5, "");
        change_restart(&change);
        hello_all(&change, 1, "aabb", true, 2, "aacc",
                  started == 1 ? DP_RANK_RUNNING : DP_RANK_READY);
        change_assert_state(&change, DP_STATE_REASSIGNING);
        assert_int_equal(change_sent(&change, DP_ORDER_START, 2, ""), started == 1 ? 0 : 2);
        assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, ""), 0);
        struct dp_assignment_view view = change_view(&change, 2);
        assert_int_equal(view.sources_count, 4);
        assert_string_equal(view.sources[3].address, "127.0.0.1:6003");
        assert_int_equal(view.state_step, 5);
        change_level(&change, 2, "aacc", DP_RANK_RUNNING, 5);
        change_assert_state(&change, DP_STATE_RUNNING);
        // What served until now is met in the next heartbeat, and ends.
        struct dp_rank_level ranks[2];
        struct dp_assignment_level level = world_pair(ranks, 2, DP_RANK_RUNNING);
        world_heartbeat(&change.world, change.b, &level, 1);
        assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, "b"), 1);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(survivors_hand_over_what_they_hold_and_no_checkpoint_is_needed),
    cmocka_unit_test(survivors_that_are_a_step_behind_finish_it),
    cmocka_unit_test(orders_to_hold_and_to_settle_that_were_lost_are_sent_again),
    cmocka_unit_test(a_survivor_that_cannot_come_to_the_step_is_lost_too),
    cmocka_unit_test(a_rank_that_does_not_hold_in_time_is_lost_too),
    cmocka_unit_test(a_rank_that_does_not_hold_for_a_change_is_done_without),
    cmocka_unit_test(the_failure_is_named_when_what_is_left_is_not_enough),
    cmocka_unit_test(nothing_is_recovered_where_the_policy_says_so),
    cmocka_unit_test(a_failure_of_the_jobs_own_is_not_recovered_from),
    cmocka_unit_test(a_lost_node_is_done_without_and_its_slots_stay_taken_until_its_fence),
    cmocka_unit_test(what_a_node_still_runs_when_it_returns_is_stopped),
    cmocka_unit_test(a_partition_that_heals_while_ranks_train_on_recovers_nothing),
    cmocka_unit_test(a_partition_while_others_are_prepared_gives_up_these_alone),
    cmocka_unit_test(another_rank_that_dies_meanwhile_is_planned_around_too),
    cmocka_unit_test(new_ranks_that_fail_while_the_old_ones_hold_are_tried_again),
    cmocka_unit_test(ranks_stay_on_nodes_that_get_no_new_work),
    cmocka_unit_test(what_was_advised_once_keeps_no_rank_from_its_node),
    cmocka_unit_test(ranks_that_all_hold_go_on_where_they_were_to_leave),
    cmocka_unit_test(a_question_that_is_given_up_rings_no_timer),
    cmocka_unit_test(new_ranks_that_fail_again_and_again_end_the_attempt),
    cmocka_unit_test(a_new_attempt_is_recovered_again_whatever_the_one_before_had),
    cmocka_unit_test(a_new_attempt_measures_nothing_of_the_one_before),
    cmocka_unit_test(the_same_step_is_recovered_a_few_times_only),
    cmocka_unit_test(a_controller_that_dies_while_ranks_are_prepared_leaves_none),
    cmocka_unit_test(a_controller_that_dies_while_ranks_hold_goes_on_with_them),
    cmocka_unit_test(a_controller_that_dies_while_ranks_take_over_lets_them),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
