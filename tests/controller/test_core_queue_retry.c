// Attempts that end and begin again: what burns them, how long they wait, and when it is enough.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "crew.h"
#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp_test.h"

static void assert_said(const struct crew *crew, uint64_t job, const char *reason, const char *part)
{
    const struct dp_job_record *found = crew_row(crew, job);
    assert_string_equal(found->reason, reason);
    assert_part(found->message, part);
}

// Seconds from now until the next attempt may begin.
static double wait_s(const struct crew *crew, uint64_t job)
{
    int64_t wall_ns = crew->world.now_ns + 1000 * DP_NS_PER_S;
    return (double)(crew_row(crew, job)->retry_at_ns - wall_ns) / 1e9;
}

static void a_killed_rank_begins_again_from_the_newest_checkpoint_until_max_is_used_up(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    uint64_t job = crew_submit_ranks(&crew, 4);
    for (uint32_t fault = 1; fault <= 2; fault++) {
        assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
        assert_int_equal(crew_row(&crew, job)->attempt, fault);
        crew_checkpoint(&crew, job, 20 * fault);
        crew_kill_rank(&crew, job, 9);
        assert_int_equal(crew_row(&crew, job)->state, DP_STATE_QUEUED);
        assert_int_equal(crew_row(&crew, job)->attempt, fault + 1);
        assert_int_equal(crew_row(&crew, job)->faults, fault);
        assert_int_equal(crew_row(&crew, job)->step, 20 * fault);
        assert_int_equal(crew_running(&crew, job), 0);
        crew_pass(&crew, 15000);
    }
    assert_int_equal(crew_row(&crew, job)->epoch, 1);
    crew_checkpoint(&crew, job, 60);
    crew_kill_rank(&crew, job, 9);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_FAILED);
    assert_said(&crew, job, "RankDied", "it was fault 3, and [retry] max = 2");
}

static void infrastructure_faults_burn_no_retry(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    struct dp_submit submit = crew_job(4);
    submit.retry_max = 0;
    uint64_t job = crew_submit(&crew, &submit);
    for (uint32_t i = 1; i <= 5; i++) {
        crew_checkpoint(&crew, job, 10 * i);
        struct dp_assignment_level level = {
            .fence = world_fence("job-1"), .keeper_lost = true, .keeper_signal = 9, .error = ""};
        level.fence.attempt = i;
        world_send_level(&crew.world, crew.nodes[1].session, &level);
        crew_settle(&crew);
        assert_int_equal(crew_row(&crew, job)->state, DP_STATE_QUEUED);
        crew_pass(&crew, 15000);
        assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
    }
    assert_int_equal(crew_row(&crew, job)->faults, 0);
    assert_int_equal(crew_row(&crew, job)->attempt, 6);
    // Its own fault is one too many.
    crew_kill_rank(&crew, job, 11);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_FAILED);
}

// A database that was put back knows nothing of attempts that began since.
static void no_fence_is_given_out_twice_after_an_older_database_was_put_back(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 3, 2);
    uint64_t job = crew_submit_ranks(&crew, 4);
    struct dp_rank_level rank = world_rank_level(0, DP_RANK_RUNNING);
    struct dp_assignment_level level = {
        .fence = world_fence("job-1"), .ranks = &rank, .ranks_count = 1, .error = ""};
    level.fence.attempt = 3;
    world_heartbeat(&crew.world, crew.nodes[2].session, &level, 1);
    assert_int_equal(crew_row(&crew, job)->attempt, 1);
    assert_int_equal(world_sent(&crew.world, DP_ORDER_STOP, crew.nodes[2].name), 0);
    crew_kill_rank(&crew, job, 9);
    assert_int_equal(crew_row(&crew, job)->attempt, 4);
    // What runs there is over before that one begins.
    world_heartbeat(&crew.world, crew.nodes[2].session, &level, 1);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_QUEUED);
    assert_int_equal(world_sent(&crew.world, DP_ORDER_STOP, crew.nodes[2].name), 1);
    // Nor does a node that lies use up all numbers.
    level.fence.attempt = UINT32_MAX;
    world_heartbeat(&crew.world, crew.nodes[2].session, &level, 1);
    crew_pass(&crew, 15000);
    crew_kill_rank(&crew, job, 9);
    assert_int_equal(crew_row(&crew, job)->attempt, 5);
}

// The job is prepared, and its nodes have not said anything yet.
static uint64_t submit_held(struct crew *crew, const struct dp_submit *submit)
{
    crew->world.hold_plan = true;
    uint64_t job = crew_submit(crew, submit);
    crew->world.hold_plan = false;
    world_plan(&crew->world);
    assert_int_equal(crew_row(crew, job)->state, DP_STATE_ASSIGNING);
    return job;
}

// What the first node says of a rank of job-1's first attempt.
static void say(struct crew *crew, struct dp_rank_level *rank)
{
    struct dp_assignment_level level = {
        .fence = world_fence("job-1"), .ranks = rank, .ranks_count = 1};
    world_send_level(&crew->world, crew->nodes[0].session, &level);
}

static void fail_first_rank(struct crew *crew, bool not_finite, bool running)
{
    struct dp_rank_level rank = world_rank_level(0, DP_RANK_FINISHED);
    rank.finished.ok = false;
    rank.finished.not_finite = not_finite;
    DP_COPY_TEXT(rank.finished.error, not_finite ? "the loss is NaN" : "no such file");
    rank.ready_known = running;
    say(crew, &rank);
}

static void assert_ends_for_good(struct crew *crew)
{
    assert_int_equal(crew_row(crew, 1)->attempt, 1);
    crew_pass(crew, 100000);
    const struct dp_job_record *found = world_job(&crew->world, 1);
    assert_true(found == NULL || (found->attempt == 1 && found->state == DP_STATE_FAILED));
}

static void what_would_end_the_same_way_is_not_tried_again(void **state)
{
    (void)state;
    for (int trained = 0; trained < 2; trained++) {
        AUTO_CREW crew;
        crew_start(&crew, 1, 2);
        struct dp_submit submit = crew_job(2);
        if (trained) {
            crew_submit(&crew, &submit);
            fail_first_rank(&crew, true, true);
            assert_said(&crew, 1, "NotFinite", "the loss is NaN");
        } else {
            // Before it has trained, what a rank says is about its input.
            submit_held(&crew, &submit);
            fail_first_rank(&crew, false, false);
        }
        assert_ends_for_good(&crew);
    }
}

// Said by the node on which this rank lies, of the attempt in force.
static void say_for(struct crew *crew, uint64_t job, uint32_t rank,
                    struct dp_assignment_level *level)
{
    const struct dp_rank_record *placed = NULL;
    size_t count = 0;
    const struct dp_job_record *found = dp_core_job(crew->world.core, job, &placed, &count);
    DP_COPY_TEXT(level->fence.job, found->id);
    level->fence.attempt = found->attempt;
    level->fence.epoch = found->epoch;
    for (size_t i = 0; i < crew->nodes_count && rank < count; i++) {
        if (strcmp(crew->nodes[i].name, placed[rank].node) == 0) {
            world_send_level(&crew->world, crew->nodes[i].session, level);
            return;
        }
    }
}

// Its node says that it could not start its ranks: none of them, or one of two.
static void refuse_prepare(struct crew *crew, uint64_t job, bool one)
{
    struct dp_rank_level ranks[2] = {world_rank_level(0, DP_RANK_DIED),
                                     world_rank_level(1, DP_RANK_STARTING)};
    ranks[0].pid = 0;
    ranks[0].exit_status = 127;
    struct dp_assignment_level level = {.ranks = ranks,
                                        .ranks_count = one ? 2 : 0,
                                        .error = "cannot write order.bin: No space left on device"};
    say_for(crew, job, 0, &level);
}

// A rank that has just been prepared, or has trained for a while, fails by its node's fault.
static void fail_by_node(struct crew *crew, uint64_t job, uint32_t number)
{
    struct dp_rank_level rank = world_rank_level(number, DP_RANK_FINISHED);
    rank.finished = (struct dp_rank_finished){.node_fault = true};
    DP_COPY_TEXT(rank.finished.error, "no memory on GPU 0 for 4096 bytes of weights");
    struct dp_assignment_level level = {.ranks = &rank, .ranks_count = 1};
    say_for(crew, job, number, &level);
}

// Its two ranks run on the other node, and no retry was burnt for that.
static void assert_goes_around(const struct crew *crew, uint64_t job)
{
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    dp_core_job(crew->world.core, job, &ranks, &count);
    assert_string_equal(ranks[0].node, "n1");
    assert_string_equal(ranks[1].node, "n1");
    assert_int_equal(crew_row(crew, job)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(crew, job)->attempt, 2);
    assert_int_equal(crew_row(crew, job)->faults, 0);
}

static void a_node_that_cannot_start_ranks_burns_no_retry_and_is_gone_around(void **state)
{
    (void)state;
    for (int one = 0; one < 2; one++) {
        AUTO_CREW crew;
        crew_start(&crew, 2, 2);
        struct dp_submit submit = crew_job(2);
        submit.retry_max = 0;
        uint64_t job = submit_held(&crew, &submit);
        refuse_prepare(&crew, job, one == 1);
        refuse_prepare(&crew, job, one == 1); // levels are repeated
        assert_said(&crew, job, one == 1 ? "PrepareFailed" : "Backoff",
                    "node n0: cannot write order.bin: No space left");
        crew_pass(&crew, 20000);
        assert_goes_around(&crew, job);
    }
}

static void what_a_rank_says_of_its_machine_burns_no_retry_and_is_gone_around(void **state)
{
    (void)state;
    for (int running = 0; running < 2; running++) {
        AUTO_CREW crew;
        crew_start(&crew, 2, 2);
        struct dp_submit submit = crew_job(2);
        submit.retry_max = 0;
        uint64_t job = running ? crew_submit(&crew, &submit) : submit_held(&crew, &submit);
        assert_int_equal(crew_row(&crew, job)->state,
                         running ? DP_STATE_RUNNING : DP_STATE_ASSIGNING);
        fail_by_node(&crew, job, 0);
        crew_pass(&crew, 30000);
        assert_goes_around(&crew, job);
    }
}

static void a_cluster_that_can_start_nothing_is_tried_until_there_is_no_progress(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    struct dp_submit submit = crew_job(2);
    uint64_t job = submit_held(&crew, &submit);
    refuse_prepare(&crew, job, false);
    for (uint32_t attempt = 2; attempt <= 3; attempt++) {
        assert_int_equal(crew_row(&crew, job)->state, DP_STATE_QUEUED);
        assert_int_equal(crew_row(&crew, job)->attempt, attempt);
        crew.world.hold_plan = true;
        crew_pass(&crew, 30000);
        crew.world.hold_plan = false;
        world_plan(&crew.world);
        refuse_prepare(&crew, job, false);
    }
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_FAILED);
    assert_said(&crew, job, "NoProgress", "attempts 1 to 3 ended without a checkpoint");
    assert_said(&crew, job, "NoProgress", "PrepareFailed: node n0: cannot write order.bin");
    // Suspected three times, but the cluster has no other node.
    assert_int_equal(world_node_state(&crew.world, "n0"), DP_NODE_READY);
}

static void the_wait_doubles_up_to_its_cap_and_jobs_do_not_rise_together(void **state)
{
    (void)state;
    AUTO_CREW crew;
    struct dp_core_config config;
    dp_core_config_init(&config);
    config.start_grace_ms = 0;
    config.backoff_max_ms = 60000;
    crew_init(&crew, &config);
    crew_nodes(&crew, 2, 2);
    struct dp_submit submit = crew_job(2);
    submit.retry_max = 100;
    submit.no_progress_max = 0;
    uint64_t jobs[2] = {crew_submit(&crew, &submit), crew_submit(&crew, &submit)};
    double want_s = 10;
    for (int fault = 0; fault < 6; fault++) {
        crew_kill_rank(&crew, jobs[0], 9);
        crew_kill_rank(&crew, jobs[1], 9);
        for (int i = 0; i < 2; i++) {
            assert_string_equal(crew_row(&crew, jobs[i])->reason, "Backoff");
            assert_true(wait_s(&crew, jobs[i]) >= 0.75 * want_s &&
                        wait_s(&crew, jobs[i]) <= 1.25 * want_s);
        }
        assert_true(fabs(wait_s(&crew, jobs[0]) - wait_s(&crew, jobs[1])) > 1e-3);
        // Not a moment earlier.
        int64_t left_ms = (int64_t)(1e3 * wait_s(&crew, jobs[0])) - 10;
        crew_pass(&crew, left_ms);
        assert_int_equal(crew_row(&crew, jobs[0])->state, DP_STATE_QUEUED);
        crew_pass(&crew, (int64_t)(0.5 * 1e3 * want_s) + 1000);
        assert_int_equal(crew_row(&crew, jobs[0])->state, DP_STATE_RUNNING);
        assert_int_equal(crew_row(&crew, jobs[1])->state, DP_STATE_RUNNING);
        want_s = want_s * 2 < 60 ? want_s * 2 : 60;
    }
}

static void attempts_in_a_row_without_a_newer_checkpoint_end_the_job_and_are_named(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    struct dp_submit submit = crew_job(2);
    submit.retry_max = 100;
    uint64_t job = crew_submit(&crew, &submit);
    crew_kill_rank(&crew, job, 9); // one without progress
    crew_pass(&crew, 15000);
    crew_checkpoint(&crew, job, 20); // and one with: counted from here
    crew_kill_rank(&crew, job, 9);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(crew_row(&crew, job)->state, DP_STATE_QUEUED);
        crew_pass(&crew, 60000);
        assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
        crew_kill_rank(&crew, job, 9);
    }
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_FAILED);
    assert_said(&crew, job, "NoProgress",
                "attempts 3 to 5 ended without a checkpoint newer than that of step 20");
    assert_said(&crew, job, "NoProgress", "the last one by RankDied: rank 0 on n0");
}

static void a_job_that_wants_no_recovery_fails_at_its_first_fault(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    struct dp_submit submit = crew_job(2);
    submit.recovery = DP_JOB_RECOVERY_OFF;
    uint64_t job = crew_submit(&crew, &submit);
    crew_kill_rank(&crew, job, 9);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_FAILED);
    assert_int_equal(crew_row(&crew, job)->attempt, 1);
}

static void cancel(struct crew *crew, const char *job)
{
    struct dp_core_event event = {.kind = DP_EVENT_CANCEL, .ask = {.reason = "enough"}};
    DP_COPY_TEXT(event.ask.job, job);
    world_step(&crew->world, &event);
    crew_settle(crew);
}

// At every edge that an attempt and the next one have.
static void a_cancel_holds_at_every_edge_of_an_attempt(void **state)
{
    (void)state;
    enum { QUEUED, PLANNING, ASSIGNING, RUNNING, STOPPING, WAITING, AGAIN, PREEMPTED, EDGES };
    for (int edge = 0; edge < EDGES; edge++) {
        AUTO_CREW crew;
        crew_init(&crew, NULL);
        struct dp_submit submit = crew_job(2);
        crew.world.hold_plan = edge == PLANNING || edge == ASSIGNING;
        if (edge == QUEUED) {
            crew_submit(&crew, &submit);
            crew_nodes(&crew, 1, 2);
            cancel(&crew, "job-1");
            continue;
        }
        crew_nodes(&crew, 1, 2);
        crew_submit(&crew, &submit);
        if (edge == ASSIGNING) {
            world_plan(&crew.world);
        }
        crew.stays = edge == STOPPING || edge == PREEMPTED;
        if (edge == STOPPING || edge == WAITING || edge == AGAIN) {
            crew_kill_rank(&crew, 1, 9);
        }
        if (edge == AGAIN) {
            crew_pass(&crew, 15000);
            assert_int_equal(crew_row(&crew, 1)->attempt, 2);
        }
        if (edge == PREEMPTED) {
            crew_ask(&crew, "n0", DP_NODE_DRAIN, 0, true);
            assert_int_equal(crew_row(&crew, 1)->state, DP_STATE_STOPPING);
        }
        cancel(&crew, "job-1");
        crew.stays = false;
        crew.world.hold_plan = false;
        if (edge == PLANNING) {
            world_plan(&crew.world);
        }
        crew_pass(&crew, 200000);
        const struct dp_job_record *found = world_job(&crew.world, 1);
        assert_true(found == NULL || found->state == DP_STATE_CANCELLED);
        assert_int_equal(crew_running(&crew, 1), 0);
        // Its slots are free, and a second job gets them.
        crew_ask(&crew, "n0", DP_NODE_UNDRAIN, 0, false);
        uint64_t next = crew_submit(&crew, &submit);
        assert_int_equal(crew_row(&crew, next)->state, DP_STATE_RUNNING);
    }
}

// For that reason alone it would begin again.
static void a_cancel_holds_when_a_better_reason_for_the_end_is_found(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    struct dp_submit submit = crew_job(4);
    submit.retry_max = 0;
    uint64_t job = crew_submit(&crew, &submit);
    crew.stays = true;
    crew_kill_rank(&crew, job, 9);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_STOPPING);
    cancel(&crew, "job-1");
    for (uint32_t n = 2; n-- > 0;) {
        struct dp_rank_level ranks[2] = {world_rank_level(2 * n, DP_RANK_DIED),
                                         world_rank_level(2 * n + 1, DP_RANK_DIED)};
        struct dp_assignment_level level = {.fence = world_fence("job-1"),
                                            .ranks = ranks,
                                            .ranks_count = 2,
                                            .error = n == 1 ? "the disk is full" : ""};
        world_send_level(&crew.world, crew.nodes[n].session, &level);
    }
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_FAILED);
    assert_said(&crew, job, "NodeFailed", "the disk is full");
}

static void what_an_old_attempt_still_says_changes_nothing(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    uint64_t job = crew_submit_ranks(&crew, 2);
    crew_checkpoint(&crew, job, 20);
    crew_kill_rank(&crew, job, 9);
    crew_pass(&crew, 15000);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
    struct dp_rank_level late = world_rank_level(1, DP_RANK_DIED);
    late.signal = 11;
    say(&crew, &late);
    struct dp_report report = {.kind = DP_REPORT_CHECKPOINT,
                               .fence = world_fence("job-1"),
                               .checkpoint = {.step = 90, .path = "/old", .error = ""}};
    world_report(&crew.world, crew.nodes[0].session, 0, &report);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, job)->checkpoint_step, 20);
}

static void ranks_of_a_silent_node_are_waited_for_unless_they_can_do_nothing(void **state)
{
    (void)state;
    for (int alone = 0; alone < 2; alone++) {
        AUTO_CREW crew;
        crew_start(&crew, 3, 2);
        uint64_t job = crew_submit_ranks(&crew, alone ? 2 : 4);
        crew_checkpoint(&crew, job, 20);
        // n0 is silent from now on; its lease is 10 s and its fence 60 s.
        crew_lose(&crew, 0);
        crew_pass(&crew, 20000);
        assert_int_equal(crew_row(&crew, job)->state, DP_STATE_LOST);
        if (!alone) {
            // Its rank on n1 has ended: the two on n0 can take no step without it.
            crew_kill_rank(&crew, job, 9);
            crew_pass(&crew, 15000);
        } else {
            crew_pass(&crew, 30000);
            assert_int_equal(crew_row(&crew, job)->state, DP_STATE_LOST);
            crew_pass(&crew, 40000); // the fence has passed
        }
        assert_int_equal(crew_row(&crew, job)->attempt, 2);
        assert_int_equal(crew_row(&crew, job)->faults, alone ? 0 : crew_row(&crew, job)->faults);
        assert_true(crew_row(&crew, job)->state == DP_STATE_RUNNING);
    }
}

static void ranks_that_nobody_can_ask_are_waited_for_before_the_next_attempt(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    uint64_t job = crew_submit_ranks(&crew, 2);
    crew.stays = true;
    crew_ask(&crew, "n0", DP_NODE_DRAIN, 0, true);
    crew_lose(&crew, 0); // before it has ended its ranks, which are the whole job
    crew_pass(&crew, 50000);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_STOPPING);
    crew_pass(&crew, 30000); // its fence of 60 s has passed
    assert_int_equal(crew_row(&crew, job)->attempt, 2);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
}

static void a_job_of_the_same_name_inherits_nothing(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    struct dp_submit submit = crew_job(2);
    uint64_t first = crew_submit(&crew, &submit);
    crew_checkpoint(&crew, first, 20);
    crew.stays = true;
    cancel(&crew, "job-1");
    // The same again, while the first still ends.
    uint64_t second = crew_submit(&crew, &submit);
    assert_true(second != first);
    assert_string_equal(crew_row(&crew, second)->name, crew_row(&crew, first)->name);
    assert_int_equal(crew_row(&crew, second)->state, DP_STATE_QUEUED);
    crew.stays = false;
    crew_pass(&crew, 130000);
    assert_int_equal(crew_row(&crew, second)->state, DP_STATE_RUNNING);
    assert_string_equal(crew_row(&crew, second)->checkpoint, "");
    // What the first had is said once more: it is not the second's.
    struct dp_rank_level dead = world_rank_level(0, DP_RANK_DIED);
    say(&crew, &dead);
    assert_int_equal(crew_row(&crew, second)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_running(&crew, second), 2);
}

static void more_nodes_than_are_wanted_do_a_new_attempt_no_harm(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 1);
    uint64_t job = crew_submit_ranks(&crew, 2);
    crew_checkpoint(&crew, job, 20);
    crew_kill_rank(&crew, job, 9);
    crew_nodes(&crew, 3, 1); // while it waits to begin again
    crew_pass(&crew, 15000);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_running(&crew, job), 2);
    // One of the others breaks: nothing happens to the job.
    crew_lose(&crew, 4);
    crew_pass(&crew, 30000);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, job)->attempt, 2);
}

static void a_node_that_takes_its_time_restarts_nobody(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    struct dp_submit submit = crew_job(4);
    submit_held(&crew, &submit);
    // Only n0 prepares.
    struct world_order orders[2];
    size_t count = 0;
    for (size_t i = 0; i < crew.world.sent_count && count < 2; i++) {
        if (crew.world.sent[i].order == DP_ORDER_PREPARE) {
            orders[count++] = crew.world.sent[i];
        }
    }
    assert_int_equal(count, 2);
    crew.world.sent_count = 0;
    world_level(&crew.world, crew.nodes[0].session, 0, 1, DP_RANK_READY);
    struct dp_rank_level ready[2] = {world_rank_level(0, DP_RANK_READY),
                                     world_rank_level(1, DP_RANK_READY)};
    struct dp_rank_level starting[2] = {world_rank_level(2, DP_RANK_STARTING),
                                        world_rank_level(3, DP_RANK_STARTING)};
    struct dp_assignment_level levels[2] = {
        {.fence = orders[0].fence, .ranks = ready, .ranks_count = 2, .error = ""},
        {.fence = orders[1].fence, .ranks = starting, .ranks_count = 2, .error = ""}};
    for (int second = 0; second < 100; second++) {
        world_pass(&crew.world, 1000);
        for (size_t n = 0; n < 2; n++) {
            world_heartbeat(&crew.world, crew.nodes[n].session, &levels[n], 1);
        }
    }
    // Nobody was told to stop, or to prepare once more, meanwhile.
    assert_int_equal(crew_row(&crew, 1)->state, DP_STATE_ASSIGNING);
    assert_int_equal(crew_row(&crew, 1)->attempt, 1);
    assert_int_equal(world_sent(&crew.world, DP_ORDER_STOP, ""), 0);
    assert_int_equal(world_sent(&crew.world, DP_ORDER_PREPARE, ""), 0);
    world_level(&crew.world, crew.nodes[1].session, 2, 3, DP_RANK_READY);
    assert_int_equal(world_sent(&crew.world, DP_ORDER_START, ""), 2);
}

// Two ranks on n0 have taken five steps, and have told of a checkpoint of step `checkpoint`, if
// any.
static void assert_fate(const char *device, uint64_t checkpoint, dp_node_action action, bool force,
                        const char *fate)
{
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    struct dp_submit submit = crew_job(2);
    submit.device = device;
    uint64_t job = crew_submit(&crew, &submit);
    for (uint64_t step = 1; step <= 5; step++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            world_report_step(&crew.world, crew.nodes[0].session, rank, step, 4);
        }
    }
    if (checkpoint > 0) {
        crew_checkpoint(&crew, job, checkpoint);
    }
    crew.stays = true;
    crew_ask(&crew, "n0", action, 0, force);
    char text[DP_TEXT_MAX];
    dp_core_node_job_fate(crew.world.core, "n0", "job-1", text, sizeof(text));
    assert_part(text, fate);
}

static void what_becomes_of_the_jobs_of_a_node_that_is_left_is_told(void **state)
{
    (void)state;
    assert_fate("cpu", 0, DP_NODE_SET_DOWN, false, "writes a checkpoint now and begins again");
    assert_fate("sim", 0, DP_NODE_SET_DOWN, false, "begins anew elsewhere: its 5 steps are lost");
    assert_fate("sim", 3, DP_NODE_SET_DOWN, false, "of step 3: 2 steps are taken again");
    assert_fate("sim", 0, DP_NODE_DRAIN, true, "begins anew elsewhere: its 5 steps are lost");
    assert_fate("cpu", 0, DP_NODE_DRAIN, false, "if there is room; else it ends there");
    assert_fate("cpu", 0, DP_NODE_QUARANTINE, false, "goes on there");
}

// What the store has is what the next controller begins with.
static void reload(struct crew *crew, uint64_t job)
{
    struct dp_job_record kept = *crew_row(crew, job);
    kept.job_toml = kept.plan = kept.sources = (struct dp_buf){0};
    world_configure(&crew->world);
    crew->world.tokens_count = 0;
    struct dp_core_event ended = {.kind = DP_EVENT_LOAD_ENDED, .ended.highest = job};
    world_step(&crew->world, &ended);
    struct dp_core_event event = {.kind = DP_EVENT_LOAD_JOB, .load_job.job = &kept};
    world_step(&crew->world, &event);
    for (size_t i = 0; i < crew->nodes_count; i++) {
        crew->nodes[i].session = world_hello(&crew->world, crew->nodes[i].name, 2, NULL, 0);
    }
    crew_settle(crew);
}

static void a_wait_goes_on_under_the_next_controller(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    uint64_t job = crew_submit_ranks(&crew, 2);
    crew_checkpoint(&crew, job, 20);
    crew_kill_rank(&crew, job, 9);
    double left_s = wait_s(&crew, job);
    crew_pass(&crew, 3000);
    reload(&crew, job);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_QUEUED);
    assert_int_equal(crew_row(&crew, job)->attempt, 2);
    crew_pass(&crew, (int64_t)(1e3 * left_s) - 3500);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_QUEUED);
    crew_pass(&crew, 1000);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, job)->faults, 1);
    assert_string_equal(crew_row(&crew, job)->checkpoint, "/c/job-1/step-20");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_killed_rank_begins_again_from_the_newest_checkpoint_until_max_is_used_up),
    cmocka_unit_test(infrastructure_faults_burn_no_retry),
    cmocka_unit_test(no_fence_is_given_out_twice_after_an_older_database_was_put_back),
    cmocka_unit_test(what_would_end_the_same_way_is_not_tried_again),
    cmocka_unit_test(a_node_that_cannot_start_ranks_burns_no_retry_and_is_gone_around),
    cmocka_unit_test(what_a_rank_says_of_its_machine_burns_no_retry_and_is_gone_around),
    cmocka_unit_test(a_cluster_that_can_start_nothing_is_tried_until_there_is_no_progress),
    cmocka_unit_test(the_wait_doubles_up_to_its_cap_and_jobs_do_not_rise_together),
    cmocka_unit_test(attempts_in_a_row_without_a_newer_checkpoint_end_the_job_and_are_named),
    cmocka_unit_test(a_job_that_wants_no_recovery_fails_at_its_first_fault),
    cmocka_unit_test(a_cancel_holds_at_every_edge_of_an_attempt),
    cmocka_unit_test(a_cancel_holds_when_a_better_reason_for_the_end_is_found),
    cmocka_unit_test(what_an_old_attempt_still_says_changes_nothing),
    cmocka_unit_test(ranks_of_a_silent_node_are_waited_for_unless_they_can_do_nothing),
    cmocka_unit_test(ranks_that_nobody_can_ask_are_waited_for_before_the_next_attempt),
    cmocka_unit_test(a_job_of_the_same_name_inherits_nothing),
    cmocka_unit_test(more_nodes_than_are_wanted_do_a_new_attempt_no_harm),
    cmocka_unit_test(a_node_that_takes_its_time_restarts_nobody),
    cmocka_unit_test(what_becomes_of_the_jobs_of_a_node_that_is_left_is_told),
    cmocka_unit_test(a_wait_goes_on_under_the_next_controller),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
