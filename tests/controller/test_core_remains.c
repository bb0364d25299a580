// What is left of a job beside its ranks in force when it ends.
#include <signal.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp_test.h"
#include "reassign_world.h"

// The ranks of epoch 1 lie on a and b, those of epoch 2 on a and c.
static void switched(struct change *change)
{
    change_init(change, DP_JOB_RECOVERY_CHECKPOINT, 5);
    change_to(change, "aacc", 5);
    change_assert_state(change, DP_STATE_RUNNING);
}

static void end_old(struct change *change, uint32_t first, uint32_t last)
{
    for (uint32_t rank = first; rank <= last; rank++) {
        change_die(change, 1, "aabb"[rank], rank, SIGTERM);
    }
}

static void finish_new(struct change *change)
{
    change_level(change, 2, "aacc", DP_RANK_FINISHED, 10);
}

static void a_job_is_completed_when_its_older_ranks_have_ended_too(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    switched(&change);
    finish_new(&change);
    world_pass(&change.world, change.world.config.settle_ms);
    change_assert_state(&change, DP_STATE_RUNNING);
    change_assert_says(&change, "ranks of earlier epochs still end on a, b");
    end_old(&change, 0, 2);
    change_assert_state(&change, DP_STATE_RUNNING);
    end_old(&change, 3, 3);
    change_assert_state(&change, DP_STATE_COMPLETED);
    assert_string_equal(change_job(&change)->message, "all 4 ranks finished");
}

// One that cannot be killed takes nothing from the result.
static void
a_job_that_has_done_its_work_waits_for_older_ranks_for_a_while_and_names_them(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    switched(&change);
    finish_new(&change);
    end_old(&change, 0, 2);
    // Nodes are heard of meanwhile.
    for (uint32_t ms = 0; ms < change.world.config.stop_timeout_ms; ms += 1000) {
        change_assert_state(&change, DP_STATE_RUNNING);
        world_pass(&change.world, 1000);
        struct dp_rank_level left = world_rank_level(3, DP_RANK_RUNNING);
        struct dp_assignment_level level = {.fence = {"job-1", 1, 1},
                                            .ranks = &left,
                                            .ranks_count = 1,
                                            .stopping = true,
                                            .error = ""};
        world_send_level(&change.world, change.b, &level);
        change_level(&change, 2, "aacc", DP_RANK_FINISHED, 10);
    }
    world_pass(&change.world, 3000);
    change_assert_state(&change, DP_STATE_COMPLETED);
    change_assert_says(&change, "all 4 ranks finished; ranks of earlier epochs still end on "
                                "b");
    assert_int_equal(change_slots_used(&change, "b"), 1);
}

static void who_has_done_his_work_makes_way_by_ending(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    switched(&change);
    finish_new(&change);
    change_decide(&change, "c", DP_NODE_SET_DOWN);
    if (change_job(&change)->state == DP_STATE_RUNNING) {
        // Nothing of it runs there, so it need not.
        end_old(&change, 0, 3);
    }
    change_assert_state(&change, DP_STATE_COMPLETED);
    assert_int_equal(change_job(&change)->attempt, 1);
}

static void a_cancelled_job_is_over_when_its_older_ranks_are(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    switched(&change);
    world_cancel(&change.world, 7, "job-1");
    change_stop(&change, 2, "aacc");
    change_assert_state(&change, DP_STATE_STOPPING);
    end_old(&change, 0, 3);
    change_assert_state(&change, DP_STATE_CANCELLED);
}

// Says hello with what is there of both epochs.
static void an_attempt_begins_when_older_ranks_have_ended_too(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    switched(&change);
    struct dp_assignment_level lost = {
        .fence = {"job-1", 1, 2}, .keeper_lost = true, .keeper_signal = SIGKILL, .error = ""};
    world_send_level(&change.world, change.a, &lost);
    change_stop(&change, 2, "aacc");
    change_assert_state(&change, DP_STATE_STOPPING);
    end_old(&change, 0, 2);
    change_assert_state(&change, DP_STATE_STOPPING);
    end_old(&change, 3, 3);
    assert_int_equal(change_job(&change)->attempt, 2);
}

static void come_back(struct change *change, char node, bool old, bool new)
{
    struct dp_rank_level ranks[2][2];
    struct dp_assignment_level levels[2];
    size_t count = 0;
    uint32_t first = node == 'a' ? 0 : 2;
    for (int epoch = 1; epoch <= 2; epoch++) {
        if (epoch == 1 ? old : new) {
            ranks[count][0] = world_rank_level(first, DP_RANK_RUNNING);
            ranks[count][1] = world_rank_level(first + 1, DP_RANK_RUNNING);
            levels[count] = (struct dp_assignment_level){
                .fence = {"job-1", 1, (uint32_t)epoch}, .ranks = ranks[count], .ranks_count = 2};
            levels[count].error = "";
            count++;
        }
    }
    change_hello(change, node, levels, count);
}

static void beat_without(struct change *change, char node)
{
    world_pass(&change->world, 1000);
    world_heartbeat(&change->world, change_session(change, node), NULL, 0);
}

static void a_controller_that_is_new_waits_for_older_ranks_that_nodes_tell_of(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    switched(&change);
    change_restart(&change);
    come_back(&change, 'a', false, true);
    come_back(&change, 'c', false, true);
    change_assert_state(&change, DP_STATE_RUNNING);
    world_cancel(&change.world, 7, "job-1");
    change_stop(&change, 2, "aacc");
    // What b has is not known yet.
    change_assert_state(&change, DP_STATE_STOPPING);
    come_back(&change, 'b', true, false);
    change_assert_state(&change, DP_STATE_STOPPING);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, "b"), 1);
    beat_without(&change, 'b');
    change_assert_state(&change, DP_STATE_CANCELLED);
}

// Both in one hello, those in force first.
static void what_a_node_says_of_older_ranks_counts_whatever_it_says_first(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    switched(&change);
    change_level(&change, 2, "aacc", DP_RANK_RUNNING, 9);
    change_restart(&change);
    come_back(&change, 'b', false, false);
    struct dp_rank_level ranks[2][2];
    struct dp_assignment_level levels[2];
    for (uint32_t i = 0; i < 2; i++) {
        ranks[0][i] = world_rank_level(2 + i, DP_RANK_FINISHED);
        ranks[1][i] = world_rank_level(i, DP_RANK_RUNNING);
        levels[i] = (struct dp_assignment_level){
            .fence = {"job-1", 1, 2 - i}, .ranks = ranks[i], .ranks_count = 2, .error = ""};
    }
    change.c = world_hello(&change.world, "c", 2, levels, 1);
    ranks[0][0].rank = 0;
    ranks[0][1].rank = 1;
    change.a = world_hello(&change.world, "a", 2, levels, 2);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change_sent(&change, DP_ORDER_STOP, 1, "a"), 1);
    world_pass(&change.world, 2 * change.world.config.settle_ms + 1000);
    change_assert_state(&change, DP_STATE_RUNNING);
    world_heartbeat(&change.world, change.a, levels, 1);
    const struct dp_job_record *job = change_job(&change);
    assert_true(job == NULL || job->state == DP_STATE_COMPLETED);
}

static void nodes_that_do_not_come_back_are_waited_for_until_they_are_lost(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    switched(&change);
    change_restart(&change);
    come_back(&change, 'a', false, true);
    come_back(&change, 'c', false, true);
    change_die(&change, 2, 'c', 3, SIGSEGV);
    world_pass(&change.world, change.world.config.collect_ms);
    world_cancel(&change.world, 7, "job-1"); // it is to fail, and not to begin again
    for (int rank = 0; rank < 3; rank++) {
        change_die(&change, 2, "aac"[rank], (uint32_t)rank, SIGTERM);
    }
    change_assert_state(&change, DP_STATE_STOPPING);
    const struct dp_core_config *config = &change.world.config;
    int64_t lost_ms = 10000 + config->lease_margin_ms + config->start_grace_ms;
    for (int64_t ms = 0; ms < lost_ms; ms += 1000) {
        change_assert_state(&change, DP_STATE_STOPPING);
        beat_without(&change, 'a');
        beat_without(&change, 'c');
        if (world_node_state(&change.world, "b") == DP_NODE_LOST) {
            break;
        }
    }
    assert_int_equal(world_node_state(&change.world, "b"), DP_NODE_LOST);
    // It has ended, and is let go of.
    assert_null(change_job(&change));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_job_is_completed_when_its_older_ranks_have_ended_too),
    cmocka_unit_test(a_job_that_has_done_its_work_waits_for_older_ranks_for_a_while_and_names_them),
    cmocka_unit_test(who_has_done_his_work_makes_way_by_ending),
    cmocka_unit_test(a_cancelled_job_is_over_when_its_older_ranks_are),
    cmocka_unit_test(an_attempt_begins_when_older_ranks_have_ended_too),
    cmocka_unit_test(a_controller_that_is_new_waits_for_older_ranks_that_nodes_tell_of),
    cmocka_unit_test(what_a_node_says_of_older_ranks_counts_whatever_it_says_first),
    cmocka_unit_test(nodes_that_do_not_come_back_are_waited_for_until_they_are_lost),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
