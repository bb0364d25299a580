// Who goes first: priorities, room that is kept, quotas, jobs that make way.
#include <stdlib.h>
#include <string.h>

#include "crew.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/rand.h"
#include "dp_test.h"

static dp_job_state state_of(const struct crew *crew, uint64_t job)
{
    const struct dp_job_record *found = world_job(&crew->world, job);
    return found == NULL ? DP_STATE_COMPLETED : found->state;
}

static void assert_waits(const struct crew *crew, uint64_t job, const char *reason,
                         const char *part)
{
    const struct dp_job_record *found = crew_row(crew, job);
    assert_int_equal(found->state, DP_STATE_QUEUED);
    assert_string_equal(found->reason, reason);
    assert_part(found->message, part);
}

static uint64_t submit(struct crew *crew, int32_t ranks, int32_t priority, const char *user)
{
    struct dp_submit job = crew_job(ranks);
    job.priority = priority;
    job.user = user;
    return crew_submit(crew, &job);
}

static void a_higher_priority_goes_first_then_the_order_of_submission(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_init(&crew, NULL);
    uint64_t jobs[5];
    static const int32_t priorities[5] = {0, 5, -1, 5, 0};
    for (int i = 0; i < 5; i++) {
        struct dp_submit job = crew_job(2);
        job.priority = priorities[i];
        job.preemptible = false;
        jobs[i] = crew_submit(&crew, &job);
    }
    crew_nodes(&crew, 1, 2);
    static const int order[5] = {1, 3, 0, 4, 2};
    for (int i = 0; i < 5; i++) {
        for (int k = i; k < 5; k++) {
            assert_int_equal(state_of(&crew, jobs[order[k]]),
                             k == i ? DP_STATE_RUNNING : DP_STATE_QUEUED);
        }
        crew_finish(&crew, jobs[order[i]]);
    }
}

static void smaller_jobs_pass_one_that_lacks_room_for_a_while_and_no_longer(void **state)
{
    (void)state;
    AUTO_CREW crew;
    struct dp_core_config config;
    dp_core_config_init(&config);
    config.pass_ms = 60000;
    crew_init(&crew, &config);
    crew_nodes(&crew, 1, 4);
    uint64_t small[64] = {submit(&crew, 1, 0, "")};
    int rounds[64] = {0};
    size_t count = 1;
    uint64_t large = submit(&crew, 4, 0, "");
    assert_waits(&crew, large, "WaitingForRanks", "needs 4 ranks, 3 free of 4 on 1 node");
    // Small ones keep coming, one each 5 s, and take 10 s: without a bound one would always run.
    int seconds = 0;
    for (; seconds < 300 && crew_row(&crew, large)->state == DP_STATE_QUEUED; seconds += 5) {
        small[count++] = submit(&crew, 1, 0, "");
        crew_pass(&crew, 5000);
        for (size_t i = 0; i < count; i++) {
            rounds[i] += state_of(&crew, small[i]) == DP_STATE_RUNNING;
            if (rounds[i] == 2 && state_of(&crew, small[i]) == DP_STATE_RUNNING) {
                crew_finish(&crew, small[i]);
            }
        }
    }
    size_t passed = 0;
    for (size_t i = 0; i < count; i++) {
        passed += rounds[i] > 0;
    }
    // A minute of passing, and what then still ran.
    assert_int_equal(crew_row(&crew, large)->state, DP_STATE_RUNNING);
    assert_true(seconds >= 60 && seconds <= 75);
    assert_true(passed >= 12 && passed <= 14);
}

static void with_strict_order_nobody_passes(void **state)
{
    (void)state;
    AUTO_CREW crew;
    struct dp_core_config config;
    dp_core_config_init(&config);
    config.queue = DP_QUEUE_STRICT;
    crew_init(&crew, &config);
    crew_nodes(&crew, 1, 4);
    submit(&crew, 2, 0, "");
    uint64_t large = submit(&crew, 4, 0, ""), small = submit(&crew, 1, 0, "");
    assert_waits(&crew, small, "WaitingForEarlierJobs", "earlier jobs go first");
    crew_finish(&crew, 1);
    assert_int_equal(crew_row(&crew, large)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, small)->state, DP_STATE_QUEUED);
}

static void nodes_that_get_no_work_are_named_with_why(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 8, 1);
    crew_ask(&crew, "n7", DP_NODE_DRAIN, 0, false);
    uint64_t job = submit(&crew, 8, 0, "");
    assert_waits(&crew, job, "WaitingForNodes",
                 "needs 8 ranks, the cluster has 7 in all on 7 of 8 nodes: n7 drained (operator: "
                 "fan)");
    crew_lose(&crew, 2);
    crew_pass(&crew, 5000);
    assert_waits(&crew, job, "WaitingForNodes", "on 6 of 8 nodes: n2 late, n7 drained");
    crew_ask(&crew, "n7", DP_NODE_UNDRAIN, 0, false);
    assert_waits(&crew, job, "WaitingForRanks", "7 free of 7 on 7 of 8 nodes: n2 late");
}

static void a_job_over_its_quota_waits_with_the_figures_and_others_go_on(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 4, 4);
    crew_quota(&crew, "alice", 8);
    uint64_t first = submit(&crew, 6, 0, "alice");
    uint64_t second = submit(&crew, 4, 9, "alice");
    uint64_t other = submit(&crew, 4, 0, "bob");
    assert_int_equal(crew_row(&crew, first)->state, DP_STATE_RUNNING);
    assert_waits(&crew, second, "OverQuota",
                 "over quota: alice uses 6 of 8 ranks, and this job needs 4");
    // Not even a higher priority takes ranks from others for it.
    assert_int_equal(crew_row(&crew, other)->state, DP_STATE_RUNNING);
    uint64_t third = submit(&crew, 2, 0, "alice");
    assert_int_equal(crew_row(&crew, third)->state, DP_STATE_RUNNING);
    crew_finish(&crew, first);
    assert_int_equal(crew_row(&crew, second)->state, DP_STATE_RUNNING);
    crew_quota(&crew, "alice", 1);
    crew_pass(&crew, 2000);
    assert_int_equal(crew_row(&crew, second)->state, DP_STATE_RUNNING); // what runs is left alone
}

static void ask_quota(struct crew *crew, const char *user, bool none, dp_status stored)
{
    struct dp_core_event event = {
        .kind = DP_EVENT_QUOTA_ASK,
        .quota_ask = {.reply = ++crew->replies, .user = user, .by = "", .ranks = 1, .none = none}};
    crew->world.hold_store = true;
    world_step(&crew->world, &event);
    world_store(&crew->world, stored);
}

static size_t list_quotas(struct crew *crew, const struct dp_quota_record *rows[8])
{
    uint32_t used[8];
    return dp_core_quotas(crew->world.core, rows, used, 8);
}

static void quotas_that_are_taken_back_leave_nothing(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_init(&crew, NULL);
    const struct dp_quota_record *rows[8];
    static const char *const users[] = {"mia", "alice", "zoe"};
    for (size_t i = 0; i < 3; i++) {
        ask_quota(&crew, users[i], false, DP_OK);
    }
    assert_int_equal(list_quotas(&crew, rows), 3);
    assert_string_equal(rows[0]->user, "alice");
    assert_string_equal(rows[2]->user, "zoe");
    // Nothing is written for who has none.
    size_t written = crew.world.quota_rows;
    ask_quota(&crew, "nobody", true, DP_OK);
    assert_int_equal(world_reply(&crew.world, crew.replies)->status, DP_OK);
    assert_int_equal(crew.world.quota_rows, written);
    // What a full disk kept is deleted later, once.
    ask_quota(&crew, "mia", true, DP_IO);
    assert_int_equal(list_quotas(&crew, rows), 2);
    world_pass(&crew.world, crew.world.config.store_retry_ms);
    world_store_all(&crew.world);
    assert_int_equal(crew.world.quota_rows, written + 2);
    ask_quota(&crew, "mia", true, DP_OK);
    assert_int_equal(crew.world.quota_rows, written + 2);
    // And who gets one again has it.
    ask_quota(&crew, "mia", false, DP_OK);
    assert_int_equal(list_quotas(&crew, rows), 3);
}

static void ranks_of_a_job_that_is_being_planned_count_at_once(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_init(&crew, NULL);
    crew_quota(&crew, "alice", 2);
    uint64_t first = submit(&crew, 2, 0, "alice"), second = submit(&crew, 2, 0, "alice");
    crew.world.hold_plan = true;
    crew_nodes(&crew, 1, 4);
    assert_int_equal(crew.world.planned_job, first);
    assert_waits(&crew, second, "OverQuota", "alice uses 2 of 2 ranks");
}

static void a_job_of_higher_priority_has_the_cheapest_make_way(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 8);
    uint64_t two = submit(&crew, 2, 0, ""), three = submit(&crew, 3, 0, "");
    uint64_t one = submit(&crew, 1, 0, ""), higher = submit(&crew, 2, 1, "");
    // Of 2, 3 and 1 ranks of the lowest priority, the 3 alone are the fewest that are enough.
    uint64_t wants = submit(&crew, 3, 2, "");
    assert_int_equal(crew_row(&crew, wants)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, three)->state, DP_STATE_QUEUED);
    assert_int_equal(crew_row(&crew, three)->preemptions, 1);
    assert_int_equal(crew_row(&crew, two)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, one)->state, DP_STATE_RUNNING);
    // The next one takes what is left of the lowest before it touches the higher.
    uint64_t more = submit(&crew, 3, 2, "");
    assert_int_equal(crew_row(&crew, more)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, two)->preemptions, 1);
    assert_int_equal(crew_row(&crew, one)->preemptions, 1);
    assert_int_equal(crew_row(&crew, higher)->preemptions, 0);
}

static void who_makes_way_writes_a_checkpoint_and_goes_on_from_it(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    uint64_t low = submit(&crew, 4, 0, "");
    crew.step = 41;
    uint64_t high = submit(&crew, 2, 1, "");
    assert_int_equal(crew.saved, 1);
    assert_int_equal(crew_row(&crew, high)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, low)->checkpoint_step, 42);
    assert_int_equal(crew_row(&crew, low)->step, 42);
    assert_int_equal(crew_row(&crew, low)->faults, 0);
    crew_finish(&crew, high);
    assert_int_equal(crew_row(&crew, low)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, low)->attempt, 2);
}

static void who_writes_no_checkpoint_in_time_goes_all_the_same(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_init(&crew, NULL);
    crew.saves = false;
    crew_nodes(&crew, 1, 2);
    uint64_t low = submit(&crew, 2, 0, "");
    uint64_t high = submit(&crew, 2, 1, "");
    // Its ranks are gone; what they may have written last could still be on its way.
    assert_int_equal(crew_row(&crew, low)->state, DP_STATE_STOPPING);
    crew_pass(&crew, 3000);
    assert_int_equal(crew_row(&crew, low)->state, DP_STATE_QUEUED);
    assert_int_equal(crew_row(&crew, high)->state, DP_STATE_RUNNING);
    // The nodes were told how long that may take, before force.
    bool told = false;
    AUTO_CREW second;
    crew_start(&second, 1, 2);
    submit(&second, 2, 0, "");
    second.stays = true;
    struct dp_submit urgent = crew_job(2);
    urgent.priority = 1;
    struct dp_core_event event = {.kind = DP_EVENT_SUBMIT, .submit = urgent};
    world_step(&second.world, &event);
    for (size_t i = 0; i < second.world.sent_count; i++) {
        const struct world_order *order = &second.world.sent[i];
        told = told || (order->order == DP_ORDER_STOP && order->checkpoint &&
                        order->grace_ms ==
                            second.world.config.preempt_ms + second.world.config.stop_grace_ms);
    }
    assert_true(told);
}

static struct dp_node_view view_of(const struct crew *crew, size_t node)
{
    struct dp_node_view view;
    dp_core_node_at(crew->world.core, node, &view);
    return view;
}

// A job on both nodes that has to end, whose second node is silent before it has said that it did.
static uint64_t stop_half(struct crew *crew)
{
    crew_start(crew, 2, 2);
    crew->stays = true;
    return submit(crew, 4, 0, "");
}

static void lose_second(struct crew *crew)
{
    crew_lose(crew, 1);
    crew_pass(crew, 13000);
    assert_int_equal(view_of(crew, 1).state, DP_NODE_LOST);
}

// Ranks on the first node end as they were told, well before the last step.
static void end_first(struct crew *crew, uint64_t job)
{
    struct dp_rank_level ranks[2];
    for (uint32_t i = 0; i < 2; i++) {
        ranks[i] = world_rank_level(i, DP_RANK_FINISHED);
        ranks[i].stopped = true;
        ranks[i].finished.step = 4;
    }
    struct dp_assignment_level level = {.ranks = ranks, .ranks_count = 2, .stopping = true};
    DP_COPY_TEXT(level.fence.job, crew_row(crew, job)->id);
    level.fence.attempt = level.fence.epoch = 1;
    crew->stays = false;
    crew->work_count = 0;
    world_send_level(&crew->world, crew->nodes[0].session, &level);
    crew_settle(crew);
}

static void who_makes_way_does_not_wait_for_a_silent_node_when_all_others_ended_well(void **state)
{
    (void)state;
    for (int drained = 0; drained < 2; drained++) {
        AUTO_CREW crew;
        uint64_t low = stop_half(&crew), high = 0;
        if (drained == 1) {
            crew_ask(&crew, "n0", DP_NODE_DRAIN, 0, true);
        } else {
            high = submit(&crew, 2, 1, "");
        }
        assert_int_equal(crew_row(&crew, low)->state, DP_STATE_STOPPING);
        lose_second(&crew);
        end_first(&crew, low);
        crew_pass(&crew, 3000);
        assert_int_equal(crew_row(&crew, low)->state, DP_STATE_QUEUED);
        assert_int_equal(crew_row(&crew, low)->attempt, 2);
        if (drained == 1) {
            assert_int_equal(view_of(&crew, 0).state, DP_NODE_DRAINED);
        } else {
            assert_int_equal(crew_row(&crew, high)->state, DP_STATE_RUNNING);
        }
        // What may still run there keeps its slots.
        assert_int_equal(view_of(&crew, 1).state, DP_NODE_LOST);
        assert_int_equal(view_of(&crew, 1).slots_used, 2);
    }
}

static void a_cancelled_job_gives_its_slots_back_one_by_one(void **state)
{
    (void)state;
    AUTO_CREW crew;
    uint64_t job = stop_half(&crew);
    uint64_t waits = submit(&crew, 2, 0, "");
    world_cancel(&crew.world, 0, crew_row(&crew, job)->id);
    crew_settle(&crew);
    lose_second(&crew);
    assert_int_equal(crew_row(&crew, waits)->state, DP_STATE_QUEUED);
    end_first(&crew, job);
    assert_int_equal(crew_row(&crew, waits)->state, DP_STATE_RUNNING);
    // Nothing of it is left when it is said to be over.
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_STOPPING);
    assert_int_equal(view_of(&crew, 1).slots_used, 2);
    crew_pass(&crew, 60000);
    assert_int_equal(view_of(&crew, 1).slots_used, 0);
    const struct dp_job_record *over = world_job(&crew.world, job);
    assert_true(over == NULL || over->state == DP_STATE_CANCELLED);
}

static void nobody_makes_way_for_its_like_or_in_vain(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 4);
    uint64_t low = submit(&crew, 2, 0, "");
    struct dp_submit pinned = crew_job(2);
    pinned.preemptible = false;
    uint64_t stays = crew_submit(&crew, &pinned);
    uint64_t same = submit(&crew, 2, 0, "");
    assert_waits(&crew, same, "WaitingForRanks", "needs 2 ranks, 0 free of 4");
    // 4 ranks are more than can be had: nobody goes.
    uint64_t high = submit(&crew, 4, 7, "");
    assert_waits(&crew, high, "WaitingForRanks", "needs 4 ranks");
    assert_int_equal(crew_row(&crew, low)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, stays)->state, DP_STATE_RUNNING);
}

static void room_that_was_made_is_kept_for_whom_it_was_made(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    uint64_t low = submit(&crew, 2, 0, ""), free_soon = submit(&crew, 1, 0, "");
    crew.stays = true; // the ranks that make way take their time
    uint64_t high = submit(&crew, 3, 5, "");
    assert_waits(&crew, high, "WaitingForPreemption", "make way");
    uint64_t filler = submit(&crew, 1, 3, "");
    crew_finish(&crew, free_soon);
    assert_int_equal(crew_row(&crew, filler)->state, DP_STATE_QUEUED);
    crew.stays = false;
    crew_pass(&crew, 130000); // they are told again, and end
    assert_int_equal(crew_row(&crew, high)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, low)->preemptions, 1);
}

// Those far behind are not looked at while nothing can come free for them, and come all the same.
// One rank's job ends, though its ranks stay otherwise.
static void end_only(struct crew *crew, uint64_t job)
{
    struct dp_rank_level rank = world_rank_level(0, DP_RANK_DIED);
    rank.stopped = true;
    struct dp_assignment_level level = {.ranks = &rank, .ranks_count = 1, .stopping = true};
    DP_COPY_TEXT(level.fence.job, crew_row(crew, job)->id);
    level.fence.attempt = level.fence.epoch = 1;
    world_send_level(&crew->world, crew->nodes[0].session, &level);
    crew_pass(crew, 3000);
}

// Whoever is first by then, because his quota allows it again.
static void who_has_made_way_does_not_take_the_room_again(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 3);
    crew_quota(&crew, "a", 3);
    uint64_t ends = submit(&crew, 1, 0, "a"), stays = submit(&crew, 1, 0, "b");
    struct dp_submit pinned = crew_job(1);
    pinned.preemptible = false;
    (void)crew_submit(&crew, &pinned);
    uint64_t large = submit(&crew, 3, 3, "a");
    assert_waits(&crew, large, "OverQuota", "a uses 1 of 3");
    crew.stays = true;
    uint64_t wants = submit(&crew, 2, 3, "b");
    assert_int_equal(crew_row(&crew, ends)->state, DP_STATE_STOPPING);
    assert_int_equal(crew_row(&crew, stays)->state, DP_STATE_STOPPING);
    crew.work_count = 0;
    end_only(&crew, ends);
    assert_waits(&crew, large, "WaitingForRanks", "1 free of 3");
    assert_waits(&crew, wants, "WaitingForPreemption", "make way for it");
    assert_int_equal(crew_row(&crew, ends)->state, DP_STATE_QUEUED);
    assert_int_equal(crew_row(&crew, ends)->preemptions, 1);
}

static void a_long_queue_is_gone_through_to_its_end(void **state)
{
    (void)state;
    enum { JOBS = 400 };
    static uint64_t jobs[JOBS];
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    for (int i = 0; i < JOBS; i++) {
        jobs[i] = submit(&crew, 2, 0, "");
    }
    for (int i = 1; i < JOBS; i++) {
        const struct dp_job_record *found = crew_row(&crew, jobs[i]);
        assert_int_equal(found->state, DP_STATE_QUEUED);
        assert_true(strcmp(found->reason, "WaitingForRanks") == 0 ||
                    strcmp(found->reason, "WaitingForEarlierJobs") == 0);
    }
    for (int i = 0; i < JOBS; i++) {
        assert_int_equal(crew_row(&crew, jobs[i])->state, DP_STATE_RUNNING);
        crew_finish(&crew, jobs[i]);
        crew_tidy(&crew);
    }
    // One of a higher priority that comes in at the end of such a queue is its first.
    for (int i = 0; i < 40; i++) {
        jobs[i] = submit(&crew, 2, 3, "");
    }
    uint64_t urgent = submit(&crew, 2, 4, "");
    assert_int_equal(crew_row(&crew, urgent)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, jobs[0])->preemptions, 1);
}

static void an_index_that_has_moved_refuses_a_submission(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 4);
    struct dp_submit job = crew_job(1);
    job.check_index = dp_core_index(crew.world.core);
    assert_true(job.check_index > 0);
    crew_submit(&crew, &job);
    // That job has changed it.
    struct dp_core_event event = {.kind = DP_EVENT_SUBMIT, .submit = job};
    event.submit.reply = 77;
    world_step(&crew.world, &event);
    assert_int_equal(world_reply(&crew.world, 77)->status, DP_CONFLICT);
    crew_settle(&crew);
    // Heartbeats do not change it, a drain does.
    uint64_t before = dp_core_index(crew.world.core);
    crew_pass(&crew, 10000);
    assert_int_equal(dp_core_index(crew.world.core), before);
    crew_ask(&crew, "n0", DP_NODE_DRAIN, 0, false);
    assert_true(dp_core_index(crew.world.core) > before);
}

static void close_nodes_are_offered_first(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_init(&crew, NULL);
    static const char *const places[7] = {"s1/r1", "s1/r2", "s2/r3", "s1/r2",
                                          "s2/r3", "s1/r1", "s1/r2"};
    for (size_t i = 0; i < 7; i++) {
        struct dp_node_record node = {.slots = 2, .lease_ms = 10000, .fence_ms = 60000};
        snprintf(node.name, sizeof(node.name), "n%zu", i);
        DP_COPY_TEXT(node.instance, node.name);
        DP_COPY_TEXT(node.place, places[i]);
        node.profile = (struct dp_buf){.bytes = (char *)"{}", .length = 2};
        struct dp_core_event hello = {
            .kind = DP_EVENT_HELLO,
            .hello = {.levels.session = ++crew.world.sessions, .node = &node}};
        world_step(&crew.world, &hello);
    }
    static const struct {
        int32_t ranks;
        const char *nodes; // that are offered
    } want[] = {{2, "n0 "},
                {4, "n0 n5 "}, // not the rack of three, which would be left with a rest
                {6, "n1 n3 n6 "},
                {10, "n0 n1 n3 n5 n6 "},
                {14, "n0 n1 n2 n3 n4 n5 n6 "}};
    crew.world.hold_plan = true;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(want); i++) {
        struct dp_submit job = crew_job(want[i].ranks);
        struct dp_core_event event = {.kind = DP_EVENT_SUBMIT, .submit = job};
        world_step(&crew.world, &event);
        char nodes[128] = "";
        for (size_t n = 0; n < 7; n++) {
            char name[16];
            snprintf(name, sizeof(name), "n%zu", n);
            bool offered = false;
            for (size_t k = 0; k < crew.world.offers_count; k++) {
                offered = offered || strcmp(crew.world.offers[k].node, name) == 0;
            }
            size_t length = strlen(nodes);
            snprintf(nodes + length, sizeof(nodes) - length, "%s%s", offered ? name : "",
                     offered ? " " : "");
        }
        assert_string_equal(nodes, want[i].nodes);
        world_cancel(&crew.world, 0, crew_row(&crew, crew.world.planned_job)->id);
        crew.world.planned_job = 0;
    }
}

// Guards of the whole: what may never be true, after every event of random histories.
struct history {
    struct crew crew;
    struct dp_rand rand;
    uint64_t jobs[128];
    int32_t priorities[128];
    uint32_t preempted[128], attempts[128]; // as last seen
    size_t jobs_count;
};

static void look(struct history *history)
{
    static const char *const users[] = {"a", "b", "c"};
    static const uint32_t quotas[] = {6, 4};
    uint32_t used[3] = {0};
    for (size_t i = 0; i < history->jobs_count; i++) {
        const struct dp_rank_record *ranks = NULL;
        size_t count = 0;
        const struct dp_job_record *job =
            dp_core_job(history->crew.world.core, history->jobs[i], &ranks, &count);
        if (job == NULL) {
            continue;
        }
        history->preempted[i] = job->preemptions;
        history->attempts[i] = job->attempt;
        bool holds = job->state >= DP_STATE_ASSIGNING && !dp_job_state_ended(job->state);
        // All ranks or none.
        assert_int_equal(count, holds ? (size_t)job->ranks_wanted : count);
        for (size_t u = 0; u < 3 && holds; u++) {
            used[u] += strcmp(job->user, users[u]) == 0 ? (uint32_t)count : 0;
        }
    }
    for (size_t u = 0; u < 2; u++) {
        assert_true(used[u] <= quotas[u]);
    }
}

static void act(struct history *history)
{
    static const char *const users[] = {"a", "b", "c"};
    struct crew *crew = &history->crew;
    uint64_t chosen = history->jobs_count == 0
                          ? 0
                          : history->jobs[dp_rand_below(&history->rand, history->jobs_count)];
    switch (dp_rand_below(&history->rand, 6)) {
    case 0:
    case 1:
        if (history->jobs_count < DP_ARRAY_LENGTH(history->jobs)) {
            size_t at = history->jobs_count++;
            history->priorities[at] = (int32_t)dp_rand_below(&history->rand, 4);
            history->jobs[at] =
                submit(crew, 1 + (int32_t)dp_rand_below(&history->rand, 6), history->priorities[at],
                       users[dp_rand_below(&history->rand, 3)]);
        }
        break;
    case 2:
        if (chosen != 0 && state_of(crew, chosen) == DP_STATE_RUNNING) {
            crew_finish(crew, chosen);
        }
        break;
    case 3:
        if (chosen != 0 && state_of(crew, chosen) == DP_STATE_RUNNING) {
            crew_kill_rank(crew, chosen, 9);
        }
        break;
    case 4:
        crew->stays = dp_rand_below(&history->rand, 3) == 0;
        break;
    default:
        crew_pass(crew, 1 + (int64_t)dp_rand_below(&history->rand, 20000));
        break;
    }
}

// A job makes way at most once for each attempt of each job above it.
static void check_preemptions(const struct history *history)
{
    for (size_t i = 0; i < history->jobs_count; i++) {
        uint32_t most = 0;
        for (size_t k = 0; k < history->jobs_count; k++) {
            most += history->priorities[k] > history->priorities[i] ? history->attempts[k] + 1 : 0;
        }
        assert_true(history->preempted[i] <= most);
    }
}

static void preemptions_are_bounded_gangs_are_whole_and_quotas_are_kept(void **state)
{
    (void)state;
    uint32_t preemptions = 0;
    for (uint64_t seed = 1; seed <= (uint64_t)dp_fuzz_runs(60); seed++) {
        struct history *history = dp_new(struct history);
        dp_rand_init(&history->rand, seed);
        crew_start(&history->crew, 3, 3);
        crew_quota(&history->crew, "a", 6);
        crew_quota(&history->crew, "b", 4);
        for (int i = 0; i < 150; i++) {
            act(history);
            look(history);
        }
        check_preemptions(history);
        for (size_t i = 0; i < history->jobs_count; i++) {
            preemptions += history->preempted[i];
        }
        crew_deinit(&history->crew);
        free(history);
    }
    assert_true(preemptions > 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_higher_priority_goes_first_then_the_order_of_submission),
    cmocka_unit_test(smaller_jobs_pass_one_that_lacks_room_for_a_while_and_no_longer),
    cmocka_unit_test(with_strict_order_nobody_passes),
    cmocka_unit_test(nodes_that_get_no_work_are_named_with_why),
    cmocka_unit_test(a_job_over_its_quota_waits_with_the_figures_and_others_go_on),
    cmocka_unit_test(quotas_that_are_taken_back_leave_nothing),
    cmocka_unit_test(ranks_of_a_job_that_is_being_planned_count_at_once),
    cmocka_unit_test(a_job_of_higher_priority_has_the_cheapest_make_way),
    cmocka_unit_test(who_makes_way_writes_a_checkpoint_and_goes_on_from_it),
    cmocka_unit_test(who_makes_way_does_not_wait_for_a_silent_node_when_all_others_ended_well),
    cmocka_unit_test(a_cancelled_job_gives_its_slots_back_one_by_one),
    cmocka_unit_test(who_writes_no_checkpoint_in_time_goes_all_the_same),
    cmocka_unit_test(nobody_makes_way_for_its_like_or_in_vain),
    cmocka_unit_test(room_that_was_made_is_kept_for_whom_it_was_made),
    cmocka_unit_test(who_has_made_way_does_not_take_the_room_again),
    cmocka_unit_test(a_long_queue_is_gone_through_to_its_end),
    cmocka_unit_test(an_index_that_has_moved_refuses_a_submission),
    cmocka_unit_test(close_nodes_are_offered_first),
    cmocka_unit_test(preemptions_are_bounded_gangs_are_whole_and_quotas_are_kept),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
