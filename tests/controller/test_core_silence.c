// Silence: of a node, past its lease and up to its fence, and of the controller itself.
#include <signal.h>
#include <stdlib.h>

#include "core_world.h"
#include "dp/alloc.h"
#include "dp_test.h"

#define LEASE_MS 10000
#define FENCE_MS 60000

// Time passes and only node a is heard of.
static void pass(struct world *world, uint64_t session, int64_t ms)
{
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 0, DP_RANK_RUNNING);
    for (int64_t at = 0; at < ms; at += 1000) {
        world_pass(world, ms - at < 1000 ? ms - at : 1000);
        const struct dp_job_record *job = world_job(world, 1);
        bool live = job != NULL && (job->state == DP_STATE_RUNNING || job->state == DP_STATE_LOST);
        world_heartbeat(world, session, &level, live ? 1 : 0);
    }
}

// A running job of four ranks, whose node b falls silent until it is LOST.
static void lose_b(struct world *world, uint64_t sessions[2])
{
    world_start(world, DP_STATE_RUNNING, sessions);
    world_close(world, sessions[1]);
    pass(world, sessions[0], LEASE_MS + world->config.lease_margin_ms);
    assert_int_equal(world_node_state(world, "b"), DP_NODE_LOST);
}

static uint64_t bring_back(struct world *world, const struct dp_assignment_level *level)
{
    return world_hello(world, "b", 2, level, level == NULL ? 0 : 1);
}

static const struct dp_rank_record *rank_of(const struct world *world, uint32_t rank)
{
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    assert_non_null(dp_core_job(world->core, 1, &ranks, &count));
    return &ranks[rank];
}

static uint32_t slots_used(const struct world *world, const char *name)
{
    for (size_t i = 0; i < dp_core_nodes_count(world->core); i++) {
        struct dp_node_view view;
        dp_core_node_at(world->core, i, &view);
        if (strcmp(view.node->name, name) == 0) {
            return view.slots_used;
        }
    }
    return UINT32_MAX;
}

static void say_peer_lost(struct world *world, uint64_t session, uint32_t first)
{
    struct dp_rank_level ranks[2];
    for (uint32_t i = 0; i < 2; i++) {
        ranks[i] = world_rank_level(first + i, DP_RANK_FINISHED);
        ranks[i].finished = (struct dp_rank_finished){.peer_lost = true, .error = "peer is gone"};
    }
    struct dp_assignment_level level = {.ranks = ranks, .ranks_count = 2};
    world_send_level(world, session, &level);
}

static void a_job_with_a_silent_node_is_lost_and_says_until_when(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    lose_b(&world, sessions);
    const struct dp_job_record *job = world_job(&world, 1);
    assert_int_equal(job->state, DP_STATE_LOST);
    assert_string_equal(job->reason, "NodeLost");
    assert_part(job->message, "node b ");
    assert_part(job->message, "its ranks 2, 3 may still run; they end by themselves by ");
    // The world's wall clock read 2000 s when b closed; its fence and the margin follow.
    char until[32];
    int64_t closed_ns = 2000 * INT64_C(1000000000);
    int64_t fence_ns = (FENCE_MS + world.config.lease_margin_ms) * INT64_C(1000000);
    assert_int_equal((closed_ns + fence_ns) / INT64_C(1000000), 2062000);
    snprintf(until, sizeof(until), "1970-01-01T00:34:22");
    assert_part(job->message, until);
    assert_string_equal(dp_rank_record_text(rank_of(&world, 2)), "unknown");
    assert_string_equal(dp_rank_record_text(rank_of(&world, 0)), "running");
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, ""), 0);
    // No new work, and its slots stay used.
    assert_int_equal(slots_used(&world, "b"), 2);
    world_submit(&world, 2, 1, "");
    assert_int_equal(world_job(&world, 2)->state, DP_STATE_QUEUED);
}

static void a_lost_job_runs_again_when_its_node_returns_with_its_ranks(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    lose_b(&world, sessions);
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 2, DP_RANK_RUNNING);
    sessions[1] = bring_back(&world, &level);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
    assert_string_equal(world_job(&world, 1)->message, "");
    assert_string_equal(dp_rank_record_text(rank_of(&world, 2)), "running");
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, ""), 0);
    world_level(&world, sessions[0], 0, 1, DP_RANK_FINISHED);
    world.hold_store = true;
    world_level(&world, sessions[1], 2, 3, DP_RANK_FINISHED);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_COMPLETED);
}

static void a_lost_job_completes_when_its_ranks_finished_in_the_silence(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    lose_b(&world, sessions);
    world_level(&world, sessions[0], 0, 1, DP_RANK_FINISHED);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_LOST);
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 2, DP_RANK_FINISHED);
    world.hold_store = true;
    bring_back(&world, &level);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_COMPLETED);
}

static void a_peer_that_misses_the_silent_ranks_fails_the_job_and_the_node_is_named(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    lose_b(&world, sessions);
    world.hold_store = true;
    say_peer_lost(&world, sessions[0], 0);
    const struct dp_job_record *job = world_job(&world, 1);
    assert_int_equal(job->state, DP_STATE_FAILED);
    assert_string_equal(job->reason, "NodeLost");
    assert_part(job->message, "node b ");
    assert_part(job->message, "2, 3");
    assert_string_equal(dp_rank_record_text(rank_of(&world, 2)), "unknown");
    assert_string_equal(dp_rank_record_text(rank_of(&world, 0)), "failed");
    world_store_all(&world);
    world.hold_store = false;
    // Ended, and the slots of what may still run are taken: up to the fence.
    int64_t left_ms = FENCE_MS - LEASE_MS;
    pass(&world, sessions[0], left_ms - 1);
    assert_int_equal(slots_used(&world, "b"), 2);
    pass(&world, sessions[0], 1);
    world_pass(&world, 1);
    assert_int_equal(slots_used(&world, "b"), 0);
    assert_int_equal(dp_core_jobs_count(world.core), 0);
}

static void a_peer_is_missed_before_the_lease_is_over_and_the_node_is_named_then(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    world_close(&world, sessions[1]);
    pass(&world, sessions[0], LEASE_MS);
    say_peer_lost(&world, sessions[0], 0);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_STOPPING);
    world.hold_store = true;
    world_pass(&world, world.config.lease_margin_ms);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_FAILED);
    assert_string_equal(world_job(&world, 1)->reason, "NodeLost");
    assert_part(world_job(&world, 1)->message, "node b ");
}

static void a_signal_of_a_rank_elsewhere_explains_more_than_the_silence(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    lose_b(&world, sessions);
    struct dp_rank_level rank = world_rank_level(0, DP_RANK_DIED);
    rank.signal = SIGSEGV;
    struct dp_assignment_level level = {.ranks = &rank, .ranks_count = 1};
    world_send_level(&world, sessions[0], &level);
    assert_string_equal(world_job(&world, 1)->reason, "RankDied");
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_STOPPING); // rank 1 has to end
}

static void a_node_that_returns_without_its_ranks_fails_the_job_as_lost(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        AUTO_WORLD world;
        uint64_t sessions[2];
        lose_b(&world, sessions);
        struct dp_rank_level ranks[2] = {world_rank_level(2, DP_RANK_DIED),
                                         world_rank_level(3, DP_RANK_DIED)};
        ranks[0].signal = ranks[1].signal = SIGKILL;
        ranks[0].stopped = ranks[1].stopped = way == 1;
        struct dp_assignment_level level = {
            .fence = world_fence("job-1"),
            .ranks = ranks,
            .ranks_count = 2,
            .error = way == 1 ? "the keeper ended the ranks: no agent renewed its lease" : ""};
        bring_back(&world, way == 2 ? NULL : &level);
        const struct dp_job_record *job = world_job(&world, 1);
        assert_int_equal(job->state, DP_STATE_STOPPING);
        assert_int_equal(job->outcome, DP_STATE_FAILED);
        assert_string_equal(job->reason, "NodeLost");
        assert_part(job->message, "node b ");
        assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 1);
        static const char *const phases[] = {"killed", "stopped", "unknown"};
        assert_string_equal(dp_rank_record_text(rank_of(&world, 2)), phases[way]);
        world.hold_store = true;
        world_level(&world, sessions[0], 0, 1, DP_RANK_DIED);
        assert_int_equal(world_job(&world, 1)->state, DP_STATE_FAILED);
    }
}

static void the_fence_fails_a_lost_job(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    lose_b(&world, sessions);
    pass(&world, sessions[0], FENCE_MS - LEASE_MS - 1000);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_LOST);
    world_pass(&world, 1000);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_STOPPING);
    assert_string_equal(world_job(&world, 1)->reason, "NodeLost");
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 1);
    world.hold_store = true;
    world_level(&world, sessions[0], 0, 1, DP_RANK_DIED);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_FAILED);
    assert_int_equal(slots_used(&world, "b"), 0);
}

static void a_cancelled_lost_job_ends_when_nothing_of_it_can_be_left(void **state)
{
    (void)state;
    for (int returns = 0; returns < 2; returns++) {
        AUTO_WORLD world;
        uint64_t sessions[2];
        lose_b(&world, sessions);
        world_cancel(&world, 7, "job-1");
        assert_int_equal(world_reply(&world, 7)->status, DP_OK);
        assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 1);
        world_level(&world, sessions[0], 0, 1, DP_RANK_DIED);
        assert_int_equal(world_job(&world, 1)->state, DP_STATE_STOPPING);
        assert_part(world_job(&world, 1)->message, "cancelled; node b ");
        if (returns) {
            struct dp_rank_level ranks[2];
            struct dp_assignment_level level = world_pair(ranks, 2, DP_RANK_RUNNING);
            sessions[1] = bring_back(&world, &level);
            assert_int_equal(world_sent(&world, DP_ORDER_STOP, "b"), 1);
            world.hold_store = true;
            world_level(&world, sessions[1], 2, 3, DP_RANK_DIED);
        } else {
            pass(&world, sessions[0], FENCE_MS - LEASE_MS - 1000);
            assert_int_equal(world_job(&world, 1)->state, DP_STATE_STOPPING);
            world.hold_store = true;
            world_pass(&world, 1000);
        }
        assert_int_equal(world_job(&world, 1)->state, DP_STATE_CANCELLED);
        assert_string_equal(world_job(&world, 1)->message, "cancelled");
    }
}

static void what_a_returned_node_still_runs_of_an_ended_job_is_stopped_first(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    lose_b(&world, sessions);
    say_peer_lost(&world, sessions[0], 0);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_FAILED);
    world_submit(&world, 2, 3, ""); // wants a slot of b
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 2, DP_RANK_RUNNING);
    sessions[1] = bring_back(&world, &level);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "b"), 1);
    assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, "b"), 0);
    assert_int_equal(slots_used(&world, "b"), 2);
    assert_int_equal(world_job(&world, 2)->state, DP_STATE_QUEUED);
    world_level(&world, sessions[1], 2, 3, DP_RANK_DIED);
    assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, "b"), 1);
    assert_int_equal(world_job(&world, 2)->state, DP_STATE_ASSIGNING);
}

static void a_job_that_has_not_begun_fails_with_its_silent_node(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_ASSIGNING, sessions);
    world_close(&world, sessions[1]);
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 0, DP_RANK_RUNNING);
    ranks[0].phase = ranks[1].phase = DP_RANK_READY;
    for (int64_t at = 0; at < LEASE_MS + world.config.lease_margin_ms; at += 1000) {
        world_pass(&world, 1000);
        world_heartbeat(&world, sessions[0], &level, 1);
    }
    assert_int_equal(world_job(&world, 1)->outcome, DP_STATE_FAILED);
    assert_string_equal(world_job(&world, 1)->reason, "NodeLost");
}

// What the owner could not hear while it stood still is no silence.
static void a_controller_that_was_stopped_loses_no_node(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    world_close(&world, sessions[1]);
    pass(&world, sessions[0], 9000);
    world.now_ns += 40000 * INT64_C(1000000);
    // The first thing read afterwards is of the other node.
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 0, DP_RANK_RUNNING);
    struct dp_core_event event = {.kind = DP_EVENT_HEARTBEAT,
                                  .levels = {.session = sessions[0], &level, 1},
                                  .stalled_ns = 40000 * INT64_C(1000000)};
    world_step(&world, &event);
    assert_int_equal(world_node_state(&world, "b"), DP_NODE_LATE);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
    // The rest of the lease counts.
    pass(&world, sessions[0], LEASE_MS + world.config.lease_margin_ms - 9000);
    assert_int_equal(world_node_state(&world, "b"), DP_NODE_LOST);
}

static void beat(struct world *world, uint64_t session, uint64_t sequence, uint64_t acked)
{
    world_pass(world, 1000);
    struct dp_core_event event = {
        .kind = DP_EVENT_HEARTBEAT,
        .levels = {.session = session, .sequence = sequence, .acked = acked}};
    world_step(world, &event);
}

// A slow network: what the node says was said before the order came.
static void an_order_that_nothing_was_acknowledged_after_has_not_arrived(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    uint64_t session = world_hello(&world, "a", 2, NULL, 0);
    world_submit(&world, 1, 2, "");
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, "a"), 1);
    for (uint64_t sequence = 1; sequence <= 8; sequence++) {
        beat(&world, session, sequence, 0);
    }
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, "a"), 1);
    beat(&world, session, 9, 1);
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, "a"), 2);
}

// Nothing in what the node says shows that somebody was told to end.
static void a_stop_that_was_lost_is_sent_again(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    world_cancel(&world, 7, "job-1");
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 0, DP_RANK_RUNNING);
    // It may be on its way for three heartbeats.
    for (int beats = 0; beats < 4; beats++) {
        assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 1);
        world_pass(&world, 1000);
        world_heartbeat(&world, sessions[0], &level, 1);
    }
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 2);
    level.stopping = true;
    for (int beats = 0; beats < 5; beats++) {
        world_pass(&world, 1000);
        world_heartbeat(&world, sessions[0], &level, 1);
    }
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 2);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_job_with_a_silent_node_is_lost_and_says_until_when),
    cmocka_unit_test(a_lost_job_runs_again_when_its_node_returns_with_its_ranks),
    cmocka_unit_test(a_lost_job_completes_when_its_ranks_finished_in_the_silence),
    cmocka_unit_test(a_peer_that_misses_the_silent_ranks_fails_the_job_and_the_node_is_named),
    cmocka_unit_test(a_peer_is_missed_before_the_lease_is_over_and_the_node_is_named_then),
    cmocka_unit_test(a_signal_of_a_rank_elsewhere_explains_more_than_the_silence),
    cmocka_unit_test(a_node_that_returns_without_its_ranks_fails_the_job_as_lost),
    cmocka_unit_test(the_fence_fails_a_lost_job),
    cmocka_unit_test(a_cancelled_lost_job_ends_when_nothing_of_it_can_be_left),
    cmocka_unit_test(what_a_returned_node_still_runs_of_an_ended_job_is_stopped_first),
    cmocka_unit_test(a_job_that_has_not_begun_fails_with_its_silent_node),
    cmocka_unit_test(a_controller_that_was_stopped_loses_no_node),
    cmocka_unit_test(an_order_that_nothing_was_acknowledged_after_has_not_arrived),
    cmocka_unit_test(a_stop_that_was_lost_is_sent_again),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
