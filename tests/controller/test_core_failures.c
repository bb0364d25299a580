// Things that break: ranks, keepers, nodes, the controller itself.
#include <signal.h>
#include <stdlib.h>

#include "core_world.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp_test.h"

static void assert_fails(const struct world *world, const char *reason, const char *part)
{
    const struct dp_job_record *job = world_job(world, 1);
    assert_int_equal(job->outcome, DP_STATE_FAILED);
    assert_string_equal(job->reason, reason);
    assert_part(job->message, part);
}

static void die(struct world *world, uint64_t session, uint32_t rank, int signal_number)
{
    struct dp_rank_level level = world_rank_level(rank, DP_RANK_DIED);
    level.signal = signal_number;
    struct dp_assignment_level assignment = {.ranks = &level, .ranks_count = 1};
    world_send_level(world, session, &assignment);
}

static void finish(struct world *world, uint64_t session, uint32_t rank,
                   struct dp_rank_finished finished)
{
    struct dp_rank_level level = world_rank_level(rank, DP_RANK_FINISHED);
    level.finished = finished;
    struct dp_assignment_level assignment = {.ranks = &level, .ranks_count = 1};
    world_send_level(world, session, &assignment);
}

static const struct dp_rank_finished peer_lost = {.peer_lost = true, .error = "rank 2 is gone"};

static void a_signal_explains_more_than_what_the_other_ranks_say(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    finish(&world, sessions[0], 1, peer_lost);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_STOPPING);
    assert_fails(&world, "PeerLost", "rank 2 is gone");
    // The others are left to say what they know, for a moment.
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, ""), 0);
    die(&world, sessions[1], 2, SIGSEGV);
    assert_fails(&world, "RankDied", "rank 2 on b (pid 102) was ended by signal 11 (SIGSEGV)");
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, ""), 2);
    finish(&world, sessions[0], 0, peer_lost);
    world.hold_store = true;
    die(&world, sessions[1], 3, SIGTERM);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_FAILED);
    assert_fails(&world, "RankDied", "rank 2 on b");
}

static void consequences_alone_stop_the_job_after_a_moment(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    finish(&world, sessions[0], 1, peer_lost);
    world_pass(&world, world.config.collect_ms - 1);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, ""), 0);
    world_pass(&world, 1);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, ""), 2);
}

static void a_signal_seen_after_the_stop_still_explains_but_the_forced_end_does_not(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    finish(&world, sessions[0], 1, peer_lost);
    world_pass(&world, world.config.collect_ms);
    die(&world, sessions[1], 3, SIGTERM);
    assert_fails(&world, "PeerLost", "rank 2 is gone");
    die(&world, sessions[1], 2, SIGKILL);
    assert_fails(&world, "RankDied", "rank 2 on b");
    world_pass(&world, world.config.stop_grace_ms);
    world.hold_store = true;
    die(&world, sessions[0], 0, SIGKILL);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_FAILED);
    assert_fails(&world, "RankDied", "rank 2 on b");
}

static void a_loss_that_is_not_finite_names_rank_and_action(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    finish(&world, sessions[0], 0, peer_lost);
    struct dp_rank_finished own = {
        .not_finite = true, .error = "the loss is nan", .action = "F3@2"};
    finish(&world, sessions[1], 3, own);
    assert_fails(&world, "NotFinite", "rank 3 on b, action F3@2: the loss is nan");
}

static void the_first_of_equal_causes_stays(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    struct dp_rank_level levels[2] = {world_rank_level(0, DP_RANK_DIED),
                                      world_rank_level(1, DP_RANK_DIED)};
    levels[0].signal = SIGBUS;
    levels[1].exit_status = 3;
    struct dp_assignment_level assignment = {.ranks = levels, .ranks_count = 2};
    world_send_level(&world, sessions[0], &assignment);
    assert_fails(&world, "RankDied", "rank 0 on a (pid 100) was ended by signal 7");
}

static void a_keeper_that_died_explains_the_end_of_its_ranks(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    finish(&world, sessions[1], 2, peer_lost);
    // The node cannot know what became of the ranks; without their parent they are gone.
    struct dp_rank_level ranks[2] = {world_rank_level(0, DP_RANK_RUNNING),
                                     world_rank_level(1, DP_RANK_RUNNING)};
    struct dp_assignment_level assignment = {
        .ranks = ranks, .ranks_count = 2, .keeper_lost = true, .keeper_signal = SIGKILL};
    world_send_level(&world, sessions[0], &assignment);
    assert_fails(&world, "KeeperLost", "on a was ended by signal 9");
    world.hold_store = true;
    finish(&world, sessions[1], 3, peer_lost);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_FAILED);
}

// The level of an agent that ran out of descriptors: a rank that never had a process, and why.
static void a_rank_that_never_was_has_not_died(void **state)
{
    (void)state;
    for (int said = 0; said < 2; said++) {
        AUTO_WORLD world;
        world_init(&world);
        uint64_t session = world_hello(&world, "a", 2, NULL, 0);
        world_submit(&world, 1, 2, "");
        struct dp_rank_level rank = {.rank = 0, .phase = DP_RANK_DIED, .exit_status = 127};
        struct dp_assignment_level assignment = {
            .ranks = &rank,
            .ranks_count = 1,
            .error = said ? "cannot duplicate a descriptor: Too many open files" : ""};
        world_send_level(&world, session, &assignment);
        assert_fails(&world, "PrepareFailed",
                     said ? "node a: cannot duplicate a descriptor" : "node a: it started no");
        assert_int_equal(world_noted(&world, "job.cause", "RankDied"), 0);
        assert_int_equal(world_noted(&world, "job.cause", "PrepareFailed"), 1);
    }
}

static void a_node_that_cannot_prepare_fails_the_job_with_its_words(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_ASSIGNING, sessions);
    struct dp_assignment_level assignment = {.error = "cannot open /data/x: no such file"};
    world_send_level(&world, sessions[1], &assignment);
    assert_fails(&world, "PrepareFailed", "node b: cannot open /data/x");
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 1);
    world.hold_store = true;
    world_level(&world, sessions[0], 0, 1, DP_RANK_DIED);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_FAILED);
}

static void a_node_is_late_when_its_stream_closes_and_lost_after_its_lease(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    world_close(&world, sessions[1]);
    assert_int_equal(world_node_state(&world, "b"), DP_NODE_LATE);
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 0, DP_RANK_RUNNING);
    int64_t until_ms = 10000 + world.config.lease_margin_ms;
    for (int64_t at = 500; at < until_ms; at += 500) {
        world_pass(&world, 500);
        world_heartbeat(&world, sessions[0], &level, 1);
        assert_int_equal(world_node_state(&world, "b"), DP_NODE_LATE);
        assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
    }
    world_pass(&world, 500);
    assert_int_equal(world_node_state(&world, "b"), DP_NODE_LOST);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_LOST);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 0);
}

static void a_node_that_comes_back_within_its_lease_goes_on(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    world_close(&world, sessions[1]);
    world_pass(&world, 2000);
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 2, DP_RANK_RUNNING);
    sessions[1] = world_hello(&world, "b", 2, &level, 1);
    assert_int_equal(world_node_state(&world, "b"), DP_NODE_READY);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, "b"), 1);
    assert_int_equal(world_sent(&world, DP_ORDER_START, "b"), 1);
    world_level(&world, sessions[0], 0, 1, DP_RANK_FINISHED);
    world_level(&world, sessions[1], 2, 3, DP_RANK_FINISHED);
    assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, ""), 2);
}

static void ranks_that_their_node_was_told_to_stop_are_no_cause(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    finish(&world, sessions[0], 1, peer_lost);
    world_pass(&world, world.config.collect_ms);
    // The stream breaks after the order came through; a new session knows of it by the level.
    world_close(&world, sessions[1]);
    struct dp_rank_level ranks[2] = {world_rank_level(2, DP_RANK_DIED),
                                     world_rank_level(3, DP_RANK_RUNNING)};
    ranks[0].signal = SIGKILL;
    ranks[0].stopped = true;
    struct dp_assignment_level level = {.fence = world_fence("job-1"),
                                        .ranks = ranks,
                                        .ranks_count = 2,
                                        .stopping = true,
                                        .error = ""};
    sessions[1] = world_hello(&world, "b", 2, &level, 1);
    assert_fails(&world, "PeerLost", "rank 2 is gone");
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "b"), 1); // it was told already
    die(&world, sessions[1], 3, SIGTERM);
    assert_fails(&world, "PeerLost", "rank 2 is gone");
}

static void ranks_that_their_node_ended_by_itself_fail_the_job_with_its_words(void **state)
{
    (void)state;
    for (int ok = 0; ok < 2; ok++) {
        AUTO_WORLD world;
        uint64_t sessions[2];
        world_start(&world, DP_STATE_RUNNING, sessions);
        struct dp_rank_level ranks[2] = {world_rank_level(2, DP_RANK_FINISHED),
                                         world_rank_level(3, DP_RANK_FINISHED)};
        ranks[0].stopped = ranks[1].stopped = true;
        ranks[0].finished.ok = ranks[1].finished.ok = ok == 1;
        struct dp_assignment_level level = {.ranks = ranks,
                                            .ranks_count = 2,
                                            .stopping = true,
                                            .error = "no controller for longer than --orphan-ms"};
        world_send_level(&world, sessions[1], &level);
        assert_fails(&world, "NodeFailed", "node b: no controller for longer");
    }
}

static void a_keeper_out_of_reach_is_no_end(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    // An agent that has just started does not know yet what it finds.
    static const dp_rank_phase phases[] = {DP_RANK_RUNNING, DP_RANK_UNKNOWN};
    for (size_t i = 0; i < 2; i++) {
        struct dp_rank_level ranks[2] = {world_rank_level(2, phases[i]),
                                         world_rank_level(3, phases[i])};
        struct dp_assignment_level level = {
            .ranks = ranks, .ranks_count = 2, .error = "the keeper does not answer"};
        world_send_level(&world, sessions[1], &level);
        assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
    }
}

static void a_session_has_one_name(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    uint64_t session = world_hello(&world, "a", 2, NULL, 0);
    struct dp_node_record node = {.name = "b", .instance = "b", .slots = 2};
    struct dp_core_event event = {.kind = DP_EVENT_HELLO,
                                  .hello = {.levels.session = session, .node = &node}};
    world_step(&world, &event);
    const struct world_order *last = &world.sent[world.sent_count - 1];
    assert_int_equal(last->order, DP_ORDER_REFUSE);
    assert_int_equal(last->status, DP_CONFLICT);
    assert_int_equal(dp_core_nodes_count(world.core), 1);
}

static void a_heartbeat_is_acknowledged_by_its_number(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    uint64_t session = world_hello(&world, "a", 2, NULL, 0);
    struct dp_core_event event = {.kind = DP_EVENT_HEARTBEAT,
                                  .levels = {.session = session, .sequence = 77}};
    world_step(&world, &event);
    assert_int_equal(world.sent[world.sent_count - 1].order, DP_ORDER_ACK);
    assert_int_equal(world.sent[world.sent_count - 1].request, 77);
}

static void a_node_that_forgot_a_running_assignment_fails_the_job(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    world_close(&world, sessions[1]);
    world_hello(&world, "b", 2, NULL, 0);
    assert_fails(&world, "AssignmentLost", "node b no longer knows of job-1");
}

static void a_prepare_that_was_lost_with_its_stream_is_sent_again(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    uint64_t session = world_hello(&world, "a", 4, NULL, 0);
    world_submit(&world, 1, 4, "");
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, "a"), 1);
    world_close(&world, session);
    world_hello(&world, "a", 4, NULL, 0);
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, "a"), 2);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_ASSIGNING);
}

static void reports_of_another_epoch_or_node_change_nothing(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    struct dp_report report = {.kind = DP_REPORT_FINISHED, .fence = world_fence("job-1")};
    report.finished = (struct dp_rank_finished){.error = "boom"};
    report.fence.epoch = 0;
    world_report(&world, sessions[0], 0, &report);
    report.fence = world_fence("job-2");
    world_report(&world, sessions[0], 0, &report);
    report.fence = world_fence("job-1");
    world_report(&world, sessions[1], 0, &report); // rank 0 is not there
    world_report(&world, sessions[0], 99, &report);
    world_report(&world, 12345, 0, &report);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
    world_report(&world, sessions[0], 0, &report);
    assert_fails(&world, "RankFailed", "rank 0 on a: boom");
}

static void an_unknown_assignment_is_left_alone_and_its_number_not_used(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    struct dp_rank_level ranks[2] = {world_rank_level(0, DP_RANK_RUNNING),
                                     world_rank_level(1, DP_RANK_RUNNING)};
    struct dp_assignment_level level = {
        .fence = world_fence("job-6"), .ranks = ranks, .ranks_count = 2, .error = ""};
    uint64_t session = world_hello(&world, "a", 4, &level, 1);
    world_heartbeat(&world, session, &level, 1);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, ""), 0);
    assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, ""), 0);
    world_submit(&world, 1, 4, "");
    assert_int_equal(world_reply(&world, 1)->job, 7);
    assert_string_equal(world_job(&world, 7)->message, "needs 4 ranks, 2 free of 4 on 1 node");
    // Whoever takes the node down wants nothing to run there.
    struct dp_core_event down = {
        .kind = DP_EVENT_NODE_ASK,
        .node_ask = {.node = "a", .action = DP_NODE_SET_DOWN, .by = "", .reason = ""}};
    world_step(&world, &down);
    world_heartbeat(&world, session, &level, 1);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 1);
}

static void what_still_runs_of_an_ended_job_is_stopped_then_released(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    uint64_t number = 3;
    struct dp_core_event event = {.kind = DP_EVENT_LOAD_ENDED, .ended = {&number, 1, 3}};
    world_step(&world, &event);
    struct dp_rank_level rank = world_rank_level(0, DP_RANK_RUNNING);
    struct dp_assignment_level level = {
        .fence = world_fence("job-3"), .ranks = &rank, .ranks_count = 1, .error = ""};
    uint64_t session = world_hello(&world, "a", 4, &level, 1);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 1);
    world_heartbeat(&world, session, &level, 1);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 1);
    rank.phase = DP_RANK_DIED;
    world_heartbeat(&world, session, &level, 1);
    assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, "a"), 1);
}

static void a_second_agent_under_one_name_is_refused(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    uint64_t first = world_hello(&world, "a", 2, NULL, 0);
    struct dp_node_record node = {.name = "a", .instance = "another", .slots = 2};
    struct dp_core_event event = {.kind = DP_EVENT_HELLO,
                                  .hello = {.levels.session = 77, .node = &node}};
    world_step(&world, &event);
    const struct world_order *last = &world.sent[world.sent_count - 1];
    assert_int_equal(last->order, DP_ORDER_REFUSE);
    assert_int_equal(last->session, 77);
    assert_int_equal(last->status, DP_CONFLICT);
    // Once the first is gone its successor is welcome.
    world_close(&world, first);
    event.hello.levels.session = 78;
    world_step(&world, &event);
    assert_int_equal(world.sent[world.sent_count - 1].order, DP_ORDER_WELCOME);
}

static void a_hello_that_a_later_one_overtook_is_refused(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    struct dp_node_record node = {.name = "a", .instance = "one", .boot_id = "b", .slots = 2};
    struct dp_core_event event = {.kind = DP_EVENT_HELLO, .hello = {.node = &node}};
    for (uint64_t session = 1; session <= 2; session++) {
        event.hello.levels.session = session;
        event.hello.sent_ns = 3 - (int64_t)session;
        world_step(&world, &event);
    }
    const struct world_order *last = &world.sent[world.sent_count - 1];
    assert_int_equal(last->order, DP_ORDER_REFUSE);
    assert_int_equal(last->session, 2);
    assert_int_equal(world_sent(&world, DP_ORDER_WELCOME, "a"), 1);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_signal_explains_more_than_what_the_other_ranks_say),
    cmocka_unit_test(consequences_alone_stop_the_job_after_a_moment),
    cmocka_unit_test(a_signal_seen_after_the_stop_still_explains_but_the_forced_end_does_not),
    cmocka_unit_test(a_loss_that_is_not_finite_names_rank_and_action),
    cmocka_unit_test(the_first_of_equal_causes_stays),
    cmocka_unit_test(a_keeper_that_died_explains_the_end_of_its_ranks),
    cmocka_unit_test(a_rank_that_never_was_has_not_died),
    cmocka_unit_test(a_node_that_cannot_prepare_fails_the_job_with_its_words),
    cmocka_unit_test(a_node_is_late_when_its_stream_closes_and_lost_after_its_lease),
    cmocka_unit_test(a_node_that_comes_back_within_its_lease_goes_on),
    cmocka_unit_test(ranks_that_their_node_was_told_to_stop_are_no_cause),
    cmocka_unit_test(ranks_that_their_node_ended_by_itself_fail_the_job_with_its_words),
    cmocka_unit_test(a_keeper_out_of_reach_is_no_end),
    cmocka_unit_test(a_session_has_one_name),
    cmocka_unit_test(a_heartbeat_is_acknowledged_by_its_number),
    cmocka_unit_test(a_node_that_forgot_a_running_assignment_fails_the_job),
    cmocka_unit_test(a_prepare_that_was_lost_with_its_stream_is_sent_again),
    cmocka_unit_test(reports_of_another_epoch_or_node_change_nothing),
    cmocka_unit_test(an_unknown_assignment_is_left_alone_and_its_number_not_used),
    cmocka_unit_test(what_still_runs_of_an_ended_job_is_stopped_then_released),
    cmocka_unit_test(a_second_agent_under_one_name_is_refused),
    cmocka_unit_test(a_hello_that_a_later_one_overtook_is_refused),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
