// Ranks of a job change while it trains: every phase, and what breaks in it.
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "dp/adapt.h"
#include "dp/clock.h"
#include "dp_test.h"
#include "reassign_world.h"

static void the_old_ranks_train_until_the_new_ones_are_ready(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_ask(&change, 7, "", false);
    assert_int_equal(world_reply(&change.world, 7)->status, DP_OK);
    assert_int_equal(change.world.asked.step_ns, DP_NS_PER_MS);
    assert_int_equal(change.world.asked.steps_left, 5);
    assert_false(change.world.asked.recovers);
    // Its own slots may be used again, and those of the free node.
    assert_int_equal(change.world.asked.nodes_count, 3);
    assert_int_equal(change.world.asked.slots[0], 2);
    change_answer(&change, "aacc");
    change_assert_state(&change, DP_STATE_REASSIGNING);
    assert_int_equal(change_job(&change)->epoch, 1);
    assert_int_equal(change_job(&change)->epoch_used, 2);
    assert_int_equal(change_sent(&change, DP_ORDER_PREPARE, 2, "a"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_PREPARE, 2, "c"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_PREPARE, 2, "b"), 0);
    assert_int_equal(change_slots_used(&change, "a"), 2);
    assert_int_equal(change_slots_used(&change, "c"), 2);
    change_step(&change, 6, DP_NS_PER_MS);
    assert_int_equal(change_job(&change)->step, 6);
    assert_int_equal(world_sent(&change.world, DP_ORDER_PAUSE, ""), 0);
    change_level(&change, 2, "aac", DP_RANK_READY, 0);
    assert_int_equal(world_sent(&change.world, DP_ORDER_PAUSE, ""), 0);
    change_level(&change, 2, "aacc", DP_RANK_READY, 0);
    assert_int_equal(change_sent(&change, DP_ORDER_PAUSE, 1, "a"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_PAUSE, 1, "b"), 1);
}

static void the_new_ranks_start_with_what_the_old_ones_hold(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_begin(&change, "aacc", DP_RANK_READY);
    change_hold(&change, 1, "aabb", 7, 5, "");
    assert_int_equal(world_sent(&change.world, DP_ORDER_START, ""), 0);
    // The new epoch is in force before anybody is told to start.
    change.world.hold_store = true;
    change_hold(&change, 1, "aabb", 8, 5, "");
    assert_int_equal(change_job(&change)->epoch, 2);
    assert_int_equal(world_sent(&change.world, DP_ORDER_START, ""), 0);
    change.world.hold_store = false;
    world_store_all(&change.world);
    assert_int_equal(change_sent(&change, DP_ORDER_START, 2, "a"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_START, 2, "c"), 1);
    struct dp_assignment_view view = change_view(&change, 2);
    assert_int_equal(view.sources_count, 4);
    assert_int_equal(view.sources[2].rank, 2);
    assert_string_equal(view.sources[2].address, "127.0.0.1:6002");
    assert_int_equal(view.state_step, 5);
    assert_true(view.token != view.state_token);
    assert_true(change_view(&change, 1).token == view.state_token);
    // Ranks that were started take their state first.
    change_level(&change, 2, "aacc", DP_RANK_RUNNING, 0);
    change_assert_state(&change, DP_STATE_REASSIGNING);
    assert_int_equal(world_sent(&change.world, DP_ORDER_STOP, ""), 0);
    change_level(&change, 2, "aacc", DP_RANK_RUNNING, 5);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, "a"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, "b"), 1);
}

static void slots_of_both_epochs_are_used_until_the_old_ranks_are_over(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_to(&change, "aacc", 5);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change_slots_used(&change, "b"), 2);
    change_die(&change, 1, 'b', 2, SIGTERM);
    assert_int_equal(change_slots_used(&change, "b"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_RELEASE, 1, "b"), 0);
    change_die(&change, 1, 'b', 3, SIGTERM);
    assert_int_equal(change_slots_used(&change, "b"), 0);
    assert_int_equal(change_sent(&change, DP_ORDER_RELEASE, 1, "b"), 1);
    assert_int_equal(change_slots_used(&change, "a"), 2);
    change_assert_state(&change, DP_STATE_RUNNING);
    // The steps go on where the old ranks left off, and none is told twice.
    change_step_of(&change, 2, "aacc", 6, DP_NS_PER_MS);
    assert_int_equal(change_job(&change)->step, 6);
}

// Its rank has ended; a controller that starts now would have it there, and begin it there again.
static void slots_of_the_old_ranks_are_used_until_the_change_is_on_disk(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_ask(&change, 0, "", false);
    change_answer(&change, "aacc");
    change_level(&change, 2, "aacc", DP_RANK_READY, 0);
    change.world.hold_store = true;
    change_hold(&change, 1, "aabb", 15, 5, "");
    assert_int_equal(change_job(&change)->epoch, 2);
    change_die(&change, 1, 'b', 2, SIGKILL);
    world_store(&change.world, DP_IO);
    assert_int_equal(change_slots_used(&change, "b"), 2);
    world_pass(&change.world, change.world.config.store_retry_ms);
    world_store_all(&change.world);
    assert_int_equal(change_slots_used(&change, "b"), 1);
}

static void an_answer_is_measured_over_twenty_steps_and_believed_in_accordingly(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    assert_true(change.world.asked.request == 0);
    change_to(&change, "aacc", 5);
    assert_int_equal(change.world.decision.state, DP_DECISION_RUNNING);
    assert_int_equal(change.world.decision.before_step_ns, DP_NS_PER_MS);
    assert_string_equal(change.world.decision.kind, "move-layers");
    // The first step warms up; half of what was promised came true.
    change_step_of(&change, 2, "aacc", 6, 9 * DP_NS_PER_MS);
    for (uint64_t step = 7; step < 26; step++) {
        change_step_of(&change, 2, "aacc", step, DP_NS_PER_MS * 3 / 4);
        assert_int_equal(change.world.decision.state, DP_DECISION_RUNNING);
    }
    change_step_of(&change, 2, "aacc", 26, DP_NS_PER_MS * 3 / 4);
    assert_int_equal(change.world.decision.state, DP_DECISION_MEASURED);
    assert_int_equal(change.world.decision.measured_step_ns, DP_NS_PER_MS * 3 / 4);
    assert_float_equal(change.world.decision.trust_before, 1, 0);
    assert_float_equal(change.world.decision.trust_after, 0.75, 1e-12);
    // Who makes predictions sees it the same way.
    assert_float_equal(dp_adapt_trust_after(1, 1e-3, 0.5e-3, 0.75e-3), 0.75, 1e-12);
    change_ask(&change, 0, "", true);
    assert_float_equal(change.world.asked.trust, 0.75, 1e-12);
}

static void a_job_that_ends_before_its_steps_are_measured_says_so(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_to(&change, "aacc", 5);
    change_stop(&change, 1, "aabb");
    change_step_of(&change, 2, "aacc", 6, DP_NS_PER_MS);
    change_level(&change, 2, "aacc", DP_RANK_FINISHED, 6);
    change_assert_state(&change, DP_STATE_COMPLETED);
    assert_int_equal(change.world.decision.state, DP_DECISION_RUNNING);
    assert_non_null(strstr(change.world.decision.outcome, "ended before"));
}

static void what_is_only_advised_changes_nothing(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_ask(&change, 0, "", true);
    change_answer(&change, "aacc");
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(world_sent(&change.world, DP_ORDER_PREPARE, ""), 0);
    assert_int_equal(change.world.decision.state, DP_DECISION_ADVISED);
    assert_int_equal(change_job(&change)->epoch_used, 1);
}

static void a_new_rank_that_does_not_get_ready_is_given_up(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) {
        AUTO_CHANGE change;
        change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
        change_begin(&change, "aacc", DP_RANK_STARTING);
        if (how == 0) {
            change_die(&change, 2, 'c', 3, SIGKILL);
        } else if (how == 1) {
            world_pass(&change.world, 0);
            for (int beat = 0; beat < 40; beat++) {
                world_pass(&change.world, change.world.config.prepare_timeout_ms / 40);
                for (const char *node = "abc"; *node != '\0'; node++) {
                    struct dp_rank_level none = {.rank = 99};
                    change_rank(&change, 7, *node, &none); // it is there
                }
            }
        } else if (how == 2) {
            world_close(&change.world, change.c);
            change_pass(&change, 1, "aabb", 5, 30);
        } else {
            struct dp_assignment_level level = {.fence = {"job-1", 1, 2},
                                                .error = "the corpus is not there"};
            world_send_level(&change.world, change.c, &level);
        }
        change_assert_state(&change, DP_STATE_RUNNING);
        assert_int_equal(change_job(&change)->epoch, 1);
        assert_int_equal(world_sent(&change.world, DP_ORDER_PAUSE, ""), 0);
        assert_int_equal(change_sent(&change, DP_ORDER_STOP, 2, "a"), 1);
        assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, ""), 0);
        assert_int_equal(change.world.decision.state, DP_DECISION_ABANDONED);
        change_step(&change, 6, DP_NS_PER_MS);
        assert_int_equal(change_job(&change)->step, 6);
    }
}

static void a_job_that_ends_while_others_are_prepared_has_completed(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_begin(&change, "aacc", DP_RANK_STARTING);
    change_level(&change, 1, "aabb", DP_RANK_FINISHED, 5);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 2, "c"), 1);
    // As soon as those have ended.
    world_pass(&change.world, 1000);
    change_assert_state(&change, DP_STATE_RUNNING);
    change_stop(&change, 2, "aacc");
    change_assert_state(&change, DP_STATE_COMPLETED);
    world_pass(&change.world, 1000);
    assert_null(change_job(&change));
    assert_int_equal(change_slots_used(&change, "c"), 0);
}

static void ranks_that_do_not_hold_in_time_send_the_job_back_to_its_checkpoint(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_OFF, 5);
    change_begin(&change, "aacc", DP_RANK_READY);
    change_hold(&change, 1, "aabb", 7, 5, "");
    for (uint32_t ms = 0; ms < change.world.config.pause_timeout_ms + 10000; ms += 1000) {
        world_pass(&change.world, 1000);
        change_level(&change, 1, "aabb", DP_RANK_RUNNING, 5);
        change_level(&change, 2, "aacc", DP_RANK_READY, 0);
    }
    change_assert_state(&change, DP_STATE_STOPPING);
    assert_string_equal(change_job(&change)->reason, "ReassignFailed");
    change_assert_says(&change, "rank 3 on b");
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, ""), 2);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 2, ""), 2);
    assert_int_equal(change.world.decision.state, DP_DECISION_FELL_BACK);
}

static void what_breaks_while_ranks_take_over_sends_the_job_back_to_its_checkpoint(void **state)
{
    (void)state;
    for (int how = 0; how < 2; how++) {
        AUTO_CHANGE change;
        change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
        change_begin(&change, "aacc", DP_RANK_READY);
        change_hold(&change, 1, "aabb", 15, 5, "");
        assert_int_equal(change_job(&change)->epoch, 2);
        if (how == 0) {
            change_die(&change, 2, 'c', 3, SIGKILL);
        } else {
            for (int beat = 0; beat < 130; beat++) {
                world_pass(&change.world, 1000);
                change_level(&change, 2, "aacc", DP_RANK_RUNNING, 0);
                change_level(&change, 1, "aabb", DP_RANK_RUNNING, 5);
            }
        }
        change_assert_state(&change, DP_STATE_STOPPING);
        assert_string_equal(change_job(&change)->reason, "ReassignFailed");
        assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, "b"), 1);
        assert_int_equal(change_sent(&change, DP_ORDER_STOP, 2, "c"), 1);
        assert_int_equal(change_job(&change)->source_epoch, 0);
    }
}

static void a_job_can_be_cancelled_in_every_phase(void **state)
{
    (void)state;
    for (int phase = 0; phase < 4; phase++) {
        AUTO_CHANGE change;
        change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
        change_ask(&change, 0, "", false);
        change_answer(&change, "aacc");
        if (phase >= 1) {
            change_level(&change, 2, "aacc", DP_RANK_READY, 0);
        }
        if (phase >= 2) {
            change_hold(&change, 1, "aabb", phase == 2 ? 3 : 15, 5, "");
        }
        world_cancel(&change.world, 9, "job-1");
        change_assert_state(&change, DP_STATE_STOPPING);
        change_stop(&change, 1, "aabb");
        change_assert_state(&change, DP_STATE_STOPPING);
        change.world.hold_store = true;
        change_stop(&change, 2, "aacc");
        change_assert_state(&change, DP_STATE_CANCELLED);
        assert_int_equal(change_slots_used(&change, "c"), 0);
    }
}

static void slots_that_were_given_away_meanwhile_are_not_taken(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_ask(&change, 0, "", false);
    world_submit(&change.world, 2, 2, "");
    assert_int_equal(change_slots_used(&change, "c"), 2);
    change_answer(&change, "aacc");
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change.world.decision.state, DP_DECISION_ADVISED);
}

// What it has ranks on, and could do instead, is not known.
static void nothing_is_asked_while_a_node_of_the_job_is_silent(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    world_close(&change.world, change_session(&change, 'b'));
    change_ask(&change, 7, "", false);
    assert_int_equal(world_reply(&change.world, 7)->status, DP_CONFLICT);
    change_assert_state(&change, DP_STATE_RUNNING);
    change_ask(&change, 8, "b", false); // it is to be left
    assert_int_equal(world_reply(&change.world, 8)->status, DP_OK);
}

static void two_changes_at_once_are_one(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_ask(&change, 7, "", false);
    change_ask(&change, 8, "", false);
    assert_int_equal(world_reply(&change.world, 8)->status, DP_CONFLICT);
    change_answer(&change, "aacc");
    assert_int_equal(change_job(&change)->epoch_used, 2);
    // The same answer again is an answer to nothing, and so is one to an older question.
    change_answer(&change, "ccaa");
    assert_int_equal(change_job(&change)->epoch_used, 2);
    assert_int_equal(change_sent(&change, DP_ORDER_PREPARE, 2, ""), 2);
    change_ask(&change, 9, "", false);
    assert_int_equal(world_reply(&change.world, 9)->status, DP_CONFLICT);
    // What was given up is never given out again.
    change_die(&change, 2, 'c', 3, SIGKILL);
    change_ask(&change, 0, "", false);
    change_answer(&change, "aacc");
    assert_int_equal(change_job(&change)->epoch_used, 3);
    assert_int_equal(change_sent(&change, DP_ORDER_PREPARE, 3, ""), 2);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(nothing_is_asked_while_a_node_of_the_job_is_silent),
    cmocka_unit_test(two_changes_at_once_are_one),
    cmocka_unit_test(the_old_ranks_train_until_the_new_ones_are_ready),
    cmocka_unit_test(the_new_ranks_start_with_what_the_old_ones_hold),
    cmocka_unit_test(slots_of_both_epochs_are_used_until_the_old_ranks_are_over),
    cmocka_unit_test(slots_of_the_old_ranks_are_used_until_the_change_is_on_disk),
    cmocka_unit_test(an_answer_is_measured_over_twenty_steps_and_believed_in_accordingly),
    cmocka_unit_test(a_job_that_ends_before_its_steps_are_measured_says_so),
    cmocka_unit_test(what_is_only_advised_changes_nothing),
    cmocka_unit_test(a_new_rank_that_does_not_get_ready_is_given_up),
    cmocka_unit_test(a_job_that_ends_while_others_are_prepared_has_completed),
    cmocka_unit_test(ranks_that_do_not_hold_in_time_send_the_job_back_to_its_checkpoint),
    cmocka_unit_test(what_breaks_while_ranks_take_over_sends_the_job_back_to_its_checkpoint),
    cmocka_unit_test(a_job_can_be_cancelled_in_every_phase),
    cmocka_unit_test(slots_that_were_given_away_meanwhile_are_not_taken),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
