// Waiting, its reasons, and cancelling at every moment.
#include <stdlib.h>

#include "core_world.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp_test.h"

static void assert_waits(const struct world *world, uint64_t job, const char *reason,
                         const char *part)
{
    const struct dp_job_record *row = world_job(world, job);
    assert_int_equal(row->state, DP_STATE_QUEUED);
    assert_string_equal(row->reason, reason);
    assert_part(row->message, part);
}

static void a_job_without_nodes_says_so(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world_submit(&world, 1, 4, "");
    assert_waits(&world, 1, "WaitingForNodes", "needs 4 ranks, no node is connected");
}

static void a_job_that_is_too_large_for_what_is_free_says_the_numbers(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world_hello(&world, "a", 4, NULL, 0);
    world_submit(&world, 1, 2, "");
    world_submit(&world, 2, 4, "");
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_ASSIGNING);
    assert_waits(&world, 2, "WaitingForRanks", "needs 4 ranks, 2 free of 4 on 1 node");
    world_hello(&world, "b", 1, NULL, 0);
    assert_waits(&world, 2, "WaitingForRanks", "needs 4 ranks, 3 free of 5 on 2 nodes");
    world_hello(&world, "c", 1, NULL, 0);
    assert_int_equal(world_job(&world, 2)->state, DP_STATE_ASSIGNING);
}

static void a_node_that_is_held_gets_no_work_until_it_is_let_go(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world_hello(&world, "a", 4, NULL, 0);
    struct dp_core_event hold = {.kind = DP_EVENT_HOLD, .hold = {.node = "a", .on = true}};
    world_step(&world, &hold);
    assert_int_equal(world_node_state(&world, "a"), DP_NODE_REGISTERING);
    world_submit(&world, 1, 4, "");
    assert_waits(&world, 1, "WaitingForCalibration", "a with 4 slots is being calibrated");
    hold.hold = (struct dp_hold){.node = "nobody", .on = false};
    world_step(&world, &hold);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_QUEUED);
    hold.hold = (struct dp_hold){.node = "a", .on = false};
    world_step(&world, &hold);
    assert_int_equal(world_node_state(&world, "a"), DP_NODE_READY);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_ASSIGNING);
}

static void a_node_that_is_being_calibrated_is_waited_for(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    struct dp_node_record node = {.name = "a", .instance = "i", .slots = 4, .lease_ms = 10000};
    struct dp_core_event hello = {.kind = DP_EVENT_HELLO,
                                  .hello = {.levels.session = 7, .node = &node}};
    world_step(&world, &hello);
    world_submit(&world, 1, 4, "");
    assert_int_equal(world_node_state(&world, "a"), DP_NODE_REGISTERING);
    assert_waits(&world, 1, "WaitingForCalibration", "a with 4 slots is being calibrated");
    node.profile.bytes = (char *)"{}";
    node.profile.length = 2;
    struct dp_core_event done = {.kind = DP_EVENT_INVENTORY,
                                 .inventory = {.session = 7, .node = &node}};
    world_step(&world, &done);
    assert_int_equal(world_node_state(&world, "a"), DP_NODE_READY);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_ASSIGNING);
}

static void later_jobs_wait_behind_the_first_that_fits_when_slots_are_free(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world.config.queue = DP_QUEUE_STRICT;
    world_configure(&world);
    world_hello(&world, "a", 4, NULL, 0);
    world_submit(&world, 1, 2, "");
    world_submit(&world, 2, 4, "");
    world_submit(&world, 3, 1, "");
    assert_waits(&world, 2, "WaitingForRanks", "needs 4 ranks, 2 free of 4 on 1 node");
    assert_waits(&world, 3, "WaitingForEarlierJobs", "earlier jobs go first");
    world_cancel(&world, 4, "job-2");
    assert_int_equal(world_job(&world, 3)->state, DP_STATE_ASSIGNING);
}

static void a_job_that_never_fits_is_not_waited_for(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world.config.queue = DP_QUEUE_STRICT;
    world_configure(&world);
    world_hello(&world, "a", 2, NULL, 0);
    uint64_t session = world_hello(&world, "b", 2, NULL, 0);
    world_submit(&world, 1, 8, "");
    world_submit(&world, 2, 1, "");
    assert_waits(&world, 1, "WaitingForNodes", "needs 8 ranks, the cluster has 4 in all");
    assert_int_equal(world_job(&world, 2)->state, DP_STATE_ASSIGNING);
    // A node that is only late still counts.
    world_submit(&world, 3, 4, "");
    world_close(&world, session);
    world_submit(&world, 4, 1, "");
    assert_waits(&world, 3, "WaitingForRanks", "needs 4 ranks");
    assert_waits(&world, 4, "WaitingForEarlierJobs", "earlier jobs go first");
    // With more nodes it is the first again.
    world_hello(&world, "b", 2, NULL, 0);
    world_hello(&world, "c", 4, NULL, 0);
    assert_waits(&world, 1, "WaitingForRanks", "needs 8 ranks, 7 free of 8");
}

static void a_node_that_cannot_be_calibrated_is_named(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    struct dp_node_record node = {.name = "a", .instance = "i", .slots = 4, .lease_ms = 10000};
    struct dp_core_event hello = {
        .kind = DP_EVENT_HELLO,
        .hello = {.levels.session = 7, .node = &node, .calibration_error = "dp-rank is not there"}};
    world_step(&world, &hello);
    world_submit(&world, 1, 4, "");
    assert_waits(&world, 1, "WaitingForCalibration",
                 "a with 4 slots is not calibrated: dp-rank is not there");
    struct dp_node_view view;
    dp_core_node_at(world.core, 0, &view);
    assert_int_equal(view.state, DP_NODE_REGISTERING);
    assert_non_null(strstr(view.reason, "dp-rank is not there"));
    node.profile.bytes = (char *)"{}";
    node.profile.length = 2;
    struct dp_core_event done = {.kind = DP_EVENT_INVENTORY,
                                 .inventory = {.session = 7, .node = &node}};
    world_step(&world, &done);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_ASSIGNING);
}

static void the_lowest_free_slots_are_offered(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world_hello(&world, "a", 5, NULL, 0);
    world_submit(&world, 1, 2, "");
    world_submit(&world, 2, 1, "");
    world_cancel(&world, 3, "job-1");
    world_level(&world, 1, 0, 1, DP_RANK_DIED);
    world.hold_plan = true;
    world_submit(&world, 4, 3, "");
    assert_int_equal(world.planned_job, 3);
    static const uint32_t slots[] = {0, 1, 3, 4};
    assert_int_equal(world.offers_count, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(world.offers[i].slot, slots[i]);
    }
}

static void one_job_is_planned_at_a_time(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world_submit(&world, 1, 4, "");
    world_submit(&world, 2, 1, "");
    world.hold_plan = true;
    world_hello(&world, "a", 2, NULL, 0);
    assert_int_equal(world.planned_job, 2);
    world_hello(&world, "b", 4, NULL, 0); // now the first fits
    assert_waits(&world, 1, "WaitingForPlanning", "another job is being planned");
    world_plan(&world);
    assert_int_equal(world.planned_job, 1);
}

static void a_plan_that_no_longer_fits_is_made_again(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    uint64_t session = world_hello(&world, "a", 4, NULL, 0);
    world.hold_plan = true;
    world_submit(&world, 1, 4, "");
    assert_int_equal(world.planned_job, 1);
    world_close(&world, session);
    world_plan(&world);
    assert_waits(&world, 1, "WaitingForNodes", "no node is connected");
    assert_int_equal(world.planned_job, 0);
    world_hello(&world, "a", 4, NULL, 0);
    assert_int_equal(world.planned_job, 1);
    world_plan(&world);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_ASSIGNING);
}

static void a_job_that_cannot_be_planned_fails_with_the_planners_words(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world_hello(&world, "a", 4, NULL, 0);
    world.hold_plan = world.hold_store = true;
    world_submit(&world, 1, 4, "");
    world_store_all(&world);
    struct dp_core_event event = {.kind = DP_EVENT_PLAN_FAILED, .plan_failed.job = 1};
    dp_fail(&event.plan_failed.error, DP_UNSCHEDULABLE, "rank 0 needs 9 GiB and has 2");
    world_step(&world, &event);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_FAILED);
    assert_string_equal(world_job(&world, 1)->reason, "Unschedulable");
    assert_string_equal(world_job(&world, 1)->message, "rank 0 needs 9 GiB and has 2");
}

static void a_lost_job_number_is_never_given_again(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    uint64_t numbers[] = {3, 8};
    struct dp_core_event event = {.kind = DP_EVENT_LOAD_ENDED, .ended = {numbers, 2, 9}};
    world_step(&world, &event);
    assert_int_equal(world_noted(&world, "controller.started", "2 jobs have ended"), 1);
    world_submit(&world, 1, 4, "");
    assert_int_equal(world_reply(&world, 1)->job, 10);
}

// Where a job may be when it is cancelled, and what then stands between it and CANCELLED.
enum moment {
    NOT_STORED,
    WAITING,
    PLANNING,
    ASSIGNED_NOT_STORED,
    PREPARING,
    HALF_READY,
    ALL_READY,
    RUNNING,
    HALF_FINISHED,
    MOMENTS
};

static void bring_to(struct world *world, enum moment moment, uint64_t sessions[2])
{
    if (moment == NOT_STORED) {
        world->hold_store = true;
    }
    if (moment > WAITING) {
        sessions[0] = world_hello(world, "a", 2, NULL, 0);
        sessions[1] = world_hello(world, "b", 2, NULL, 0);
    }
    world->hold_plan = moment == PLANNING;
    if (moment == ASSIGNED_NOT_STORED) {
        world->hold_store = true;
    }
    world_submit(world, 1, 4, "");
    while (moment == ASSIGNED_NOT_STORED && world_job(world, 1)->state != DP_STATE_ASSIGNING) {
        world_store(world, DP_OK);
    }
    static const struct {
        enum moment moment;
        uint32_t ranks; // of four that get there
        dp_rank_phase phase;
    } steps[] = {{PREPARING, 4, DP_RANK_STARTING},
                 {HALF_READY, 2, DP_RANK_READY},
                 {ALL_READY, 4, DP_RANK_READY},
                 {RUNNING, 4, DP_RANK_RUNNING},
                 {HALF_FINISHED, 2, DP_RANK_FINISHED}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(steps) && moment >= steps[i].moment; i++) {
        world_level(world, sessions[0], 0, 1, steps[i].phase);
        if (steps[i].ranks == 4) {
            world_level(world, sessions[1], 2, 3, steps[i].phase);
        }
    }
}

static void cancel_at(enum moment moment)
{
    AUTO_WORLD world;
    world_init(&world);
    uint64_t sessions[2] = {0};
    bring_to(&world, moment, sessions);
    world.hold_store = true;
    world_cancel(&world, 2, "job-1");
    assert_null(world_reply(&world, 2)); // not before it is stored
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, ""), 0);
    world_store_all(&world);
    world.hold_store = false;
    assert_int_equal(world_reply(&world, 2)->status, DP_OK);
    if (moment >= PREPARING) {
        assert_int_equal(world_job(&world, 1)->state, DP_STATE_STOPPING);
        assert_int_equal(world_sent(&world, DP_ORDER_STOP, ""), 2);
        world.hold_store = true;
        world_level(&world, sessions[1], 2, 3, DP_RANK_DIED);
        bool others_run = moment != HALF_FINISHED;
        assert_int_equal(world_job(&world, 1)->state,
                         others_run ? DP_STATE_STOPPING : DP_STATE_CANCELLED);
        world_level(&world, sessions[0], 0, 1, DP_RANK_FINISHED);
    } else {
        assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, ""), 0);
    }
    const struct dp_job_record *job = world_job(&world, 1);
    assert_true(job == NULL || job->state == DP_STATE_CANCELLED);
    world_store_all(&world);
    world.hold_store = world.hold_plan = false;
    world_pass(&world, 10);
    assert_null(world_job(&world, 1));
    assert_int_equal(dp_core_jobs_count(world.core), 0);
}

static void a_job_can_be_cancelled_at_every_moment(void **state)
{
    (void)state;
    for (int moment = 0; moment < MOMENTS; moment++) {
        cancel_at((enum moment)moment);
    }
}

static void cancelling_twice_is_one_cancel_and_of_what_ended_a_conflict(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    world_cancel(&world, 2, "job-1");
    world_cancel(&world, 3, "job-1");
    assert_int_equal(world_reply(&world, 3)->status, DP_OK);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 1);
    static const char *const strange[] = {
        "job-77", "job-01", "job-+1", "job-1x", "job- 1", "job-18446744073709551617", "job-"};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(strange); i++) {
        world_cancel(&world, 10 + i, strange[i]);
        assert_int_equal(world_reply(&world, 10 + i)->status, DP_NOT_FOUND);
    }
    // Its end is not told before it is stored.
    world.hold_store = true;
    world_level(&world, sessions[0], 0, 1, DP_RANK_DIED);
    world_level(&world, sessions[1], 2, 3, DP_RANK_DIED);
    world_cancel(&world, 5, "job-1");
    assert_null(world_reply(&world, 5));
    world_store_all(&world);
    world.hold_store = false;
    world_cancel(&world, 6, "job-1");
    for (uint64_t reply = 5; reply <= 6; reply++) {
        assert_int_equal(world_reply(&world, reply)->status, DP_CONFLICT);
        assert_non_null(strstr(world_reply(&world, reply)->text, "has ended already"));
    }
}

static void a_planner_that_answers_after_the_cancel_changes_nothing(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world_hello(&world, "a", 4, NULL, 0);
    world.hold_plan = world.hold_store = true;
    world_submit(&world, 1, 4, "");
    world_store_all(&world);
    world_cancel(&world, 2, "job-1");
    struct dp_slot slots[4] = {{"a", 0}, {"a", 1}, {"a", 2}, {"a", 3}};
    struct dp_core_event event = {.kind = DP_EVENT_PLAN_DONE, .plan_done = {1, "p", 1, slots, 4}};
    world_step(&world, &event);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_CANCELLED);
    world_store_all(&world);
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, ""), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_job_without_nodes_says_so),
    cmocka_unit_test(a_job_that_is_too_large_for_what_is_free_says_the_numbers),
    cmocka_unit_test(a_node_that_is_held_gets_no_work_until_it_is_let_go),
    cmocka_unit_test(a_node_that_is_being_calibrated_is_waited_for),
    cmocka_unit_test(later_jobs_wait_behind_the_first_that_fits_when_slots_are_free),
    cmocka_unit_test(a_job_that_never_fits_is_not_waited_for),
    cmocka_unit_test(a_node_that_cannot_be_calibrated_is_named),
    cmocka_unit_test(the_lowest_free_slots_are_offered),
    cmocka_unit_test(one_job_is_planned_at_a_time),
    cmocka_unit_test(a_plan_that_no_longer_fits_is_made_again),
    cmocka_unit_test(a_job_that_cannot_be_planned_fails_with_the_planners_words),
    cmocka_unit_test(a_lost_job_number_is_never_given_again),
    cmocka_unit_test(a_job_can_be_cancelled_at_every_moment),
    cmocka_unit_test(cancelling_twice_is_one_cancel_and_of_what_ended_a_conflict),
    cmocka_unit_test(a_planner_that_answers_after_the_cancel_changes_nothing),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
