// The life of nodes: what people decide about them, silence, suspicion, return.
#include <stdlib.h>
#include <string.h>

#include "crew.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp_test.h"

static struct dp_node_view view_of(const struct crew *crew, const char *name)
{
    struct dp_node_view view = {0};
    for (size_t i = 0; i < dp_core_nodes_count(crew->world.core); i++) {
        dp_core_node_at(crew->world.core, i, &view);
        if (strcmp(view.node->name, name) == 0) {
            return view;
        }
    }
    fail_msg("there is no node %s", name);
    return view;
}

static void a_drained_node_gets_no_work_and_is_empty_when_its_jobs_are_gone(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 4);
    uint64_t job = crew_submit_ranks(&crew, 2);
    crew_ask(&crew, "n0", DP_NODE_DRAIN, 0, false);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_DRAINING);
    assert_string_equal(view_of(&crew, "n0").reason, "operator: fan");
    struct dp_core_event again = {.kind = DP_EVENT_NODE_ASK,
                                  .node_ask = {.node = "n0",
                                               .reason = "",
                                               .by = "somebody",
                                               .word = "drained",
                                               .action = DP_NODE_DRAIN}};
    world_step(&crew.world, &again);
    assert_string_equal(view_of(&crew, "n0").reason, "operator: fan");
    uint64_t waits = crew_submit_ranks(&crew, 1);
    crew_pass(&crew, 100000);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING); // it may end there
    assert_int_equal(crew_row(&crew, waits)->state, DP_STATE_QUEUED);
    crew_finish(&crew, job);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_DRAINED);
    crew_ask(&crew, "n0", DP_NODE_UNDRAIN, 0, false);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_READY);
    assert_int_equal(crew_row(&crew, waits)->state, DP_STATE_RUNNING);
}

static void at_the_deadline_of_a_drain_jobs_leave_with_a_checkpoint(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    uint64_t job = crew_submit_ranks(&crew, 2); // on n0
    crew.step = 10;
    crew_ask(&crew, "n0", DP_NODE_DRAIN, 600000, false);
    assert_non_null(strstr(view_of(&crew, "n0").reason, "operator: fan; empty by "));
    crew_pass(&crew, 599000);
    assert_int_equal(crew_row(&crew, job)->attempt, 1);
    crew_pass(&crew, 2000);
    assert_int_equal(crew_row(&crew, job)->attempt, 2);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, job)->resumed_step, 11);
    assert_int_equal(crew_row(&crew, job)->faults, 0);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_DRAINED);
    assert_int_equal(view_of(&crew, "n1").slots_used, 2);
}

static void force_has_jobs_leave_at_once_and_so_has_down(void **state)
{
    (void)state;
    for (int down = 0; down < 2; down++) {
        AUTO_CREW crew;
        crew_start(&crew, 2, 2);
        uint64_t job = crew_submit_ranks(&crew, 2);
        crew_ask(&crew, "n0", down ? DP_NODE_SET_DOWN : DP_NODE_DRAIN, 600000, true);
        assert_int_equal(crew_row(&crew, job)->attempt, 2);
        assert_int_equal(view_of(&crew, "n1").slots_used, 2);
        assert_int_equal(view_of(&crew, "n0").state, down ? DP_NODE_DOWN : DP_NODE_DRAINED);
    }
}

// The controller is started again with what it had stored of the node.
static void restart(struct crew *crew, const struct dp_node_record *node)
{
    struct dp_node_record kept;
    dp_node_record_copy(&kept, node);
    world_configure(&crew->world);
    crew->world.tokens_count = 0;
    struct dp_core_event event = {.kind = DP_EVENT_LOAD_NODE, .load_node = &kept};
    world_step(&crew->world, &event);
    dp_node_record_deinit(&kept);
}

static void hello(struct crew *crew, const char *name, const char *boot, uint32_t slots)
{
    struct dp_node_record node = {.slots = slots, .lease_ms = 10000, .fence_ms = 60000};
    DP_COPY_TEXT(node.name, name);
    DP_COPY_TEXT(node.instance, boot);
    DP_COPY_TEXT(node.boot_id, boot);
    node.profile = (struct dp_buf){.bytes = (char *)"{}", .length = 2};
    uint64_t session = ++crew->world.sessions;
    struct dp_core_event event = {.kind = DP_EVENT_HELLO,
                                  .hello = {.levels.session = session, .node = &node}};
    world_step(&crew->world, &event);
    crew->nodes[0].session = session;
    crew_settle(crew);
}

static void what_was_decided_stays_over_restarts_reboots_and_silence(void **state)
{
    (void)state;
    static const struct {
        dp_node_action action;
        dp_node_state state;
    } all[] = {{DP_NODE_DRAIN, DP_NODE_DRAINED},
               {DP_NODE_SET_DOWN, DP_NODE_DOWN},
               {DP_NODE_QUARANTINE, DP_NODE_QUARANTINED}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(all); i++) {
        AUTO_CREW crew;
        crew_start(&crew, 1, 2);
        crew_ask(&crew, "n0", all[i].action, 0, false);
        assert_int_equal(view_of(&crew, "n0").state, all[i].state);
        restart(&crew, view_of(&crew, "n0").node);
        hello(&crew, "n0", "a boot", 2);
        assert_int_equal(view_of(&crew, "n0").state, all[i].state);
        // Silent past its lease, and back after a reboot.
        crew_lose(&crew, 0);
        crew_pass(&crew, 20000);
        assert_int_equal(view_of(&crew, "n0").state, DP_NODE_LOST);
        hello(&crew, "n0", "another boot", 2);
        assert_int_equal(view_of(&crew, "n0").state, all[i].state);
        uint64_t job = crew_submit_ranks(&crew, 1);
        crew_pass(&crew, 5000);
        assert_int_equal(crew_row(&crew, job)->state, DP_STATE_QUEUED);
        crew_ask(&crew, "n0", DP_NODE_UNDRAIN, 0, false);
        assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
    }
}

static void start_agent(struct crew *crew, const char *instance)
{
    static char *const notes[] = {"order.bin of job-7 is damaged: it lies in damaged/",
                                  "the keeper of job-8 does not answer"};
    struct dp_node_record node = {.slots = 2, .lease_ms = 10000, .fence_ms = 60000};
    DP_COPY_TEXT(node.name, "n0");
    DP_COPY_TEXT(node.instance, instance);
    struct dp_core_event event = {.kind = DP_EVENT_HELLO,
                                  .hello = {.levels.session = ++crew->world.sessions,
                                            .node = &node,
                                            .notes = notes,
                                            .notes_count = 2}};
    world_step(&crew->world, &event);
}

static void what_an_agent_found_amiss_is_an_event_of_its_node_once(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_init(&crew, NULL);
    start_agent(&crew, "first");
    assert_int_equal(world_noted(&crew.world, "node.amiss", "order.bin of job-7 is damaged"), 1);
    assert_int_equal(world_noted(&crew.world, "node.amiss", "job-8 does not answer"), 1);
    world_close(&crew.world, crew.world.sessions);
    start_agent(&crew, "first"); // connects again
    assert_int_equal(world_noted(&crew.world, "node.amiss", ""), 2);
    world_close(&crew.world, crew.world.sessions);
    start_agent(&crew, "second");
    assert_int_equal(world_noted(&crew.world, "node.amiss", ""), 4);
}

static void a_deadline_goes_on_under_the_next_controller(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    crew_ask(&crew, "n0", DP_NODE_DRAIN, 60000, false);
    crew_pass(&crew, 30000);
    int64_t deadline_ns = view_of(&crew, "n0").node->drain_deadline_ns;
    restart(&crew, view_of(&crew, "n0").node);
    assert_int_equal(view_of(&crew, "n0").node->drain_deadline_ns, deadline_ns);
    hello(&crew, "n0", "a boot", 2);
    assert_non_null(strstr(view_of(&crew, "n0").reason, "operator: fan"));
}

// Its node is to be empty since some time, and is met by another controller, as is the job.
static void jobs_leave_a_node_whose_time_came_while_no_controller_ran(void **state)
{
    (void)state;
    for (int down = 0; down < 2; down++) {
        AUTO_CREW crew;
        crew_start(&crew, 1, 2);
        uint64_t number = crew_submit_ranks(&crew, 2);
        crew.stays = true; // its ranks are told to stop, and take their time
        crew_ask(&crew, "n0", DP_NODE_DRAIN, 60000, false);
        const struct dp_rank_record *ranks = NULL;
        size_t count = 0;
        struct dp_job_record job = *dp_core_job(crew.world.core, number, &ranks, &count);
        struct dp_rank_record kept[2];
        assert_int_equal(count, 2);
        memcpy(kept, ranks, sizeof(kept));
        struct dp_node_record node = *view_of(&crew, "n0").node;
        node.admin = down == 1 ? DP_ADMIN_DOWN : DP_ADMIN_DRAIN;
        struct dp_core *before = crew.world.core;
        crew.world.core = dp_core_new(&crew.world.config);
        crew.world.now_ns += 120000 * DP_NS_PER_MS;
        struct dp_core_event event = {.kind = DP_EVENT_LOAD_NODE, .load_node = &node};
        world_step(&crew.world, &event);
        event = (struct dp_core_event){.kind = DP_EVENT_LOAD_JOB, .load_job = {&job, kept, 2}};
        world_step(&crew.world, &event);
        dp_core_free(before);
        // Whether the node speaks or not, once it had the time to say what has ended.
        world_pass(&crew.world, crew.world.config.settle_ms - 1);
        assert_string_equal(dp_job_state_text(crew_row(&crew, number)->state), "RUNNING");
        world_pass(&crew.world, 1);
        assert_string_equal(dp_job_state_text(crew_row(&crew, number)->state), "STOPPING");
        assert_string_equal(crew_row(&crew, number)->reason, down == 1 ? "NodeDown" : "Drained");
        struct dp_rank_level levels[2];
        struct dp_assignment_level level = world_pair(levels, 0, DP_RANK_RUNNING);
        crew.world.sent_count = 0;
        world_hello(&crew.world, "n0", 2, &level, 1);
        assert_int_equal(world_sent(&crew.world, DP_ORDER_STOP, "n0"), 1);
    }
}

static void only_silence_ends_by_itself(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    crew_lose(&crew, 0);
    static const struct {
        int64_t ms;
        dp_node_state state;
    } steps[] = {{3000, DP_NODE_READY}, {2000, DP_NODE_LATE}, {12000, DP_NODE_LOST}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(steps); i++) {
        crew_pass(&crew, steps[i].ms);
        assert_int_equal(view_of(&crew, "n0").state, steps[i].state);
    }
    hello(&crew, "n0", "n0", 2);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_READY);
}

// It fails while the job runs there.
static void lose_keeper(struct crew *crew, size_t node, uint64_t job)
{
    struct dp_assignment_level level = {.keeper_lost = true, .keeper_signal = 9, .error = ""};
    snprintf(level.fence.job, sizeof(level.fence.job), "%s", crew_row(crew, job)->id);
    level.fence.attempt = crew_row(crew, job)->attempt;
    level.fence.epoch = crew_row(crew, job)->epoch;
    world_send_level(&crew->world, crew->nodes[node].session, &level);
    crew_settle(crew);
}

static void a_node_with_a_rank_that_cannot_be_killed_is_quarantined_at_once(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    (void)crew_submit_ranks(&crew, 1);
    size_t at = view_of(&crew, "n0").slots_used > 0 ? 0 : 1;
    const char *name = at == 0 ? "n0" : "n1";
    struct dp_rank_level rank = world_rank_level(0, DP_RANK_RUNNING);
    rank.unkillable = true;
    rank.pid = 1234;
    struct dp_assignment_level level = {
        .fence = world_fence("job-1"), .ranks = &rank, .ranks_count = 1, .error = ""};
    world_send_level(&crew.world, crew.nodes[at].session, &level);
    crew_settle(&crew);
    assert_int_equal(view_of(&crew, name).state, DP_NODE_QUARANTINED);
    assert_non_null(strstr(view_of(&crew, name).reason, "UNKILLABLE: rank 0 of job-1"));
    assert_non_null(strstr(view_of(&crew, name).reason, "1234"));
}

static void three_suspicions_quarantine_a_node(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 3, 2);
    struct dp_submit job = crew_job(2);
    job.no_progress_max = 0;
    crew_ask(&crew, "n1", DP_NODE_DRAIN, 0, false);
    crew_ask(&crew, "n2", DP_NODE_DRAIN, 0, false);
    uint64_t number = crew_submit(&crew, &job);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(view_of(&crew, "n0").state, DP_NODE_READY);
        assert_int_equal(view_of(&crew, "n0").slots_used, 2);
        if (i == 2) {
            crew_ask(&crew, "n1", DP_NODE_UNDRAIN, 0, false);
        }
        lose_keeper(&crew, 0, number);
        if (i < 2) {
            crew_pass(&crew, 100000);
        }
    }
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_QUARANTINED);
    assert_string_equal(view_of(&crew, "n0").node->admin_by, "controller");
    assert_non_null(strstr(view_of(&crew, "n0").reason, "suspected 3 times within 3600 s"));
    crew_pass(&crew, 200000);
    assert_int_equal(view_of(&crew, "n1").slots_used, 2); // the job runs elsewhere
}

// Whatever lies between two of them.
static void suspicions_further_apart_than_their_time_are_not_added_up(void **state)
{
    (void)state;
    AUTO_CREW crew;
    struct dp_core_config config;
    dp_core_config_init(&config);
    config.start_grace_ms = 0;
    config.suspect_ms = 600000;
    config.backoff_max_ms = 10000;
    crew_init(&crew, &config);
    crew_nodes(&crew, 2, 2);
    struct dp_submit job = crew_job(2);
    job.no_progress_max = 0;
    crew_ask(&crew, "n1", DP_NODE_DRAIN, 0, false);
    uint64_t number = crew_submit(&crew, &job);
    // One in 400 s is never more than two in 600 s. The cluster could spare the node each time.
    for (int i = 0; i < 5; i++) {
        crew_ask(&crew, "n1", DP_NODE_UNDRAIN, 0, false);
        lose_keeper(&crew, 0, number);
        crew_ask(&crew, "n1", DP_NODE_DRAIN, 0, false);
        crew_pass(&crew, 400000);
        assert_int_equal(view_of(&crew, "n0").state, DP_NODE_READY);
        assert_int_equal(view_of(&crew, "n0").slots_used, 2);
    }
    // With another one a moment later it is three.
    lose_keeper(&crew, 0, number);
    crew_pass(&crew, 100000);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_READY);
    crew_ask(&crew, "n1", DP_NODE_UNDRAIN, 0, false);
    lose_keeper(&crew, 0, number);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_QUARANTINED);
}

static void a_quarantine_leaves_what_running_jobs_need_and_takes_few(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    struct dp_submit job = crew_job(4); // on both
    job.no_progress_max = 0;
    uint64_t number = crew_submit(&crew, &job);
    for (int i = 0; i < 4; i++) {
        lose_keeper(&crew, 0, number);
        crew_pass(&crew, 100000);
        assert_int_equal(crew_row(&crew, number)->state, DP_STATE_RUNNING);
    }
    // Without n0 the job would have no place.
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_READY);
    // Of 21 nodes one is 5 %: a second one is not taken.
    AUTO_CREW many;
    crew_start(&many, 21, 1);
    for (size_t node = 0; node < 2; node++) {
        for (int i = 0; i < 3; i++) {
            struct dp_submit one = crew_job(1);
            uint64_t there = crew_submit(&many, &one);
            char name[16];
            snprintf(name, sizeof(name), "n%zu", node);
            assert_int_equal(view_of(&many, name).slots_used, 1);
            lose_keeper(&many, node, there);
            world_cancel(&many.world, 0, crew_row(&many, there)->id);
            crew_settle(&many);
            crew_pass(&many, 2000);
        }
    }
    assert_int_equal(view_of(&many, "n0").state, DP_NODE_QUARANTINED);
    assert_int_equal(view_of(&many, "n1").state, DP_NODE_READY);
}

static uint32_t heartbeat_asked(const struct crew *crew)
{
    uint32_t asked_ms = 0;
    for (size_t i = 0; i < crew->world.sent_count; i++) {
        const struct world_order *order = &crew->world.sent[i];
        bool tells = order->order == DP_ORDER_WELCOME || order->order == DP_ORDER_ACK;
        asked_ms = tells ? order->heartbeat_ms : asked_ms;
    }
    return asked_ms;
}

static void many_nodes_are_asked_less_often_and_leases_follow(void **state)
{
    (void)state;
    AUTO_CREW crew;
    struct dp_core_config config;
    dp_core_config_init(&config);
    config.start_grace_ms = 0;
    config.heartbeats_per_s = 10;
    crew_init(&crew, &config);
    world_hello(&crew.world, "first", 1, NULL, 0);
    assert_int_equal(heartbeat_asked(&crew), 1000);
    crew.world.sent_count = 0;
    for (int i = 0; i < 99; i++) {
        char name[16];
        snprintf(name, sizeof(name), "other%d", i);
        world_hello(&crew.world, name, 1, NULL, 0);
        crew.world.sent_count = 0;
    }
    // 100 nodes at 10 a second together: each every 10 s.
    world_heartbeat(&crew.world, 1, NULL, 0);
    assert_int_equal(heartbeat_asked(&crew), 10000);
    crew.world.sent_count = 0;
    // Late after three and a half of them, and lost no earlier, though its own lease is 10 s.
    world_pass(&crew.world, 34000);
    assert_int_equal(world_node_state(&crew.world, "first"), DP_NODE_READY);
    world_pass(&crew.world, 2000);
    assert_int_equal(world_node_state(&crew.world, "first"), DP_NODE_LATE);
    world_pass(&crew.world, 5000);
    assert_int_equal(world_node_state(&crew.world, "first"), DP_NODE_LOST);
}

static void nodes_have_time_to_come_back_after_a_start(void **state)
{
    (void)state;
    AUTO_CREW crew;
    struct dp_core_config config;
    dp_core_config_init(&config);
    config.start_grace_ms = 30000;
    crew_init(&crew, &config);
    crew_nodes(&crew, 1, 2);
    restart(&crew, view_of(&crew, "n0").node);
    crew_lose(&crew, 0);
    crew_pass(&crew, 40000);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_LATE);
    hello(&crew, "n0", "n0", 2);
    // Once it was heard of, its lease is what it was.
    crew_lose(&crew, 0);
    crew_pass(&crew, 15000);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_LOST);
}

static void a_node_that_returns_with_fewer_slots_keeps_its_ranks_and_gets_no_work(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 4);
    uint64_t job = crew_submit_ranks(&crew, 3);
    struct dp_node_record node = {
        .name = "n0", .instance = "again", .slots = 2, .lease_ms = 10000, .fence_ms = 60000};
    node.profile = (struct dp_buf){.bytes = (char *)"{}", .length = 2};
    struct dp_rank_level ranks[3];
    for (uint32_t i = 0; i < 3; i++) {
        ranks[i] = world_rank_level(i, DP_RANK_RUNNING);
    }
    struct dp_assignment_level level = {
        .fence = world_fence("job-1"), .ranks = ranks, .ranks_count = 3, .error = ""};
    world_close(&crew.world, crew.nodes[0].session);
    crew.nodes[0].session = ++crew.world.sessions;
    struct dp_core_event event = {
        .kind = DP_EVENT_HELLO,
        .hello = {.levels = {.session = crew.nodes[0].session, .assignments = &level, .count = 1},
                  .node = &node}};
    world_step(&crew.world, &event);
    crew_settle(&crew);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
    assert_int_equal(view_of(&crew, "n0").slots_used, 3);
    uint64_t waits = crew_submit_ranks(&crew, 1);
    assert_int_equal(crew_row(&crew, waits)->state, DP_STATE_QUEUED);
    crew_finish(&crew, job);
    assert_int_equal(crew_row(&crew, waits)->state, DP_STATE_RUNNING);
}

static void a_node_may_return_with_another_address_and_other_hardware(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    uint64_t job = crew_submit_ranks(&crew, 2);
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 0, DP_RANK_RUNNING);
    static const char *const addresses[] = {"10.0.0.9:1234", "[fe80::1]:99", "10.0.0.10:1"};
    static const char *const hardware[] = {"one GPU", "two GPUs, another driver", ""};
    for (uint32_t i = 0; i < 3; i++) {
        struct dp_node_record node = {
            .name = "n0", .slots = 4 + i, .cores = 8 * i, .lease_ms = 10000, .fence_ms = 60000};
        snprintf(node.instance, sizeof(node.instance), "life %u", i);
        DP_COPY_TEXT(node.address, addresses[i]);
        DP_COPY_TEXT(node.data_host, addresses[i]);
        node.profile = (struct dp_buf){.bytes = (char *)"{}", .length = 2};
        node.hardware =
            (struct dp_buf){.bytes = (char *)hardware[i], .length = strlen(hardware[i])};
        world_close(&crew.world, crew.nodes[0].session);
        crew.nodes[0].session = ++crew.world.sessions;
        struct dp_core_event event = {
            .kind = DP_EVENT_HELLO,
            .hello = {
                .levels = {.session = crew.nodes[0].session, .assignments = &level, .count = 1},
                .node = &node,
                .protocol = 2}};
        world_step(&crew.world, &event);
        crew_settle(&crew);
        struct dp_node_view view = view_of(&crew, "n0");
        assert_int_equal(dp_core_nodes_count(crew.world.core), 1);
        assert_int_equal(view.state, DP_NODE_READY);
        assert_string_equal(view.node->address, addresses[i]);
        assert_int_equal(view.node->slots, 4 + i);
        assert_int_equal(view.node->cores, 8 * i);
        assert_int_equal(view.node->hardware.length, strlen(hardware[i]));
        assert_memory_equal(view.node->hardware.bytes, hardware[i], strlen(hardware[i]));
        assert_int_equal(view.slots_used, 2);
        assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
    }
    crew_finish(&crew, job);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_COMPLETED);
}

static void forget_node(struct crew *crew, const char *name, dp_status status)
{
    struct dp_core_event forget = {.kind = DP_EVENT_NODE_ASK,
                                   .node_ask = {.reply = ++crew->replies,
                                                .node = name,
                                                .reason = "",
                                                .by = "",
                                                .word = "forgotten",
                                                .action = DP_NODE_FORGET}};
    crew->world.hold_store = true;
    world_step(&crew->world, &forget);
    if (crew->world.tokens_count > 0) { // it was not refused
        world_store(&crew->world, status);
    }
}

static void a_full_disk_does_not_bring_a_forgotten_node_back(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    for (size_t i = 0; i < 2; i++) {
        world_close(&crew.world, crew.nodes[i].session);
        crew_lose(&crew, i);
    }
    world_pass(&crew.world, 100000);
    uint64_t index = dp_core_index(crew.world.core);
    forget_node(&crew, "n0", DP_IO);
    assert_int_equal(world_reply(&crew.world, crew.replies)->status, DP_IO);
    assert_int_equal(crew.world.node_deletions, 1);
    assert_int_equal(dp_core_nodes_count(crew.world.core), 1);
    // Tried again until it is on disk, and then no more.
    world_pass(&crew.world, crew.world.config.store_retry_ms);
    assert_int_equal(crew.world.node_deletions, 2);
    world_store(&crew.world, DP_IO);
    world_pass(&crew.world, crew.world.config.store_retry_ms);
    assert_int_equal(crew.world.node_deletions, 3);
    world_store_all(&crew.world);
    assert_true(dp_core_index(crew.world.core) > index);
    world_pass(&crew.world, 60000);
    assert_int_equal(crew.world.node_deletions, 3);
    // One that is back before that is not deleted after all.
    forget_node(&crew, "n1", DP_IO);
    hello(&crew, "n1", "n1", 2);
    world_store_all(&crew.world);
    world_pass(&crew.world, 60000);
    assert_int_equal(crew.world.node_deletions, 4);
    assert_int_equal(dp_core_nodes_count(crew.world.core), 1);
}

static void a_forgotten_node_is_gone_and_one_that_may_run_something_is_not(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    uint64_t job = crew_submit_ranks(&crew, 4);
    struct dp_core_event forget = {.kind = DP_EVENT_NODE_ASK,
                                   .node_ask = {.reply = 900,
                                                .node = "n0",
                                                .reason = "",
                                                .by = "",
                                                .word = "forgotten",
                                                .action = DP_NODE_FORGET}};
    world_step(&crew.world, &forget);
    assert_int_equal(world_reply(&crew.world, 900)->status, DP_CONFLICT);
    crew_lose(&crew, 0);
    crew_pass(&crew, 20000);
    forget.node_ask.reply = 901;
    world_step(&crew.world, &forget);
    assert_int_equal(world_reply(&crew.world, 901)->status, DP_CONFLICT);
    crew_pass(&crew, 100000); // its fence has passed
    forget.node_ask.reply = 902;
    world_step(&crew.world, &forget);
    assert_int_equal(world_reply(&crew.world, 902)->status, DP_OK);
    assert_int_equal(dp_core_nodes_count(crew.world.core), 1);
    // Its timers are gone with it, and it is new when it says hello.
    crew_pass(&crew, 200000);
    hello(&crew, "n0", "n0", 2);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_READY);
    crew_pass(&crew, 5000);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
}

static void what_ran_on_a_node_before_a_start_only_the_node_can_say(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_init(&crew, NULL);
    crew_nodes(&crew, 1, 2);
    restart(&crew, view_of(&crew, "n0").node);
    crew_lose(&crew, 0);
    forget_node(&crew, "n0", DP_OK);
    assert_int_equal(world_reply(&crew.world, crew.replies)->status, DP_CONFLICT);
    crew_pass(&crew, 70000); // its fence has passed
    forget_node(&crew, "n0", DP_OK);
    assert_int_equal(dp_core_nodes_count(crew.world.core), 0);
}

static void what_was_decided_is_stored_when_the_disk_is_back(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    crew.world.hold_store = true;
    struct dp_core_event event = {.kind = DP_EVENT_NODE_ASK,
                                  .node_ask = {.reply = 900,
                                               .node = "n0",
                                               .reason = "fan",
                                               .by = "operator",
                                               .word = "drained",
                                               .action = DP_NODE_DRAIN}};
    world_step(&crew.world, &event);
    assert_null(world_reply(&crew.world, 900)); // not told before it is stored
    world_store(&crew.world, DP_IO);
    assert_int_equal(world_reply(&crew.world, 900)->status, DP_IO);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_DRAINED); // it holds all the same
    assert_int_equal(crew.world.tokens_count, 0);
    world_pass(&crew.world, 1500);
    assert_int_equal(crew.world.tokens_count, 1); // and is tried again
}

static void a_node_that_starts_anew_inherits_no_old_heartbeat(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    crew_lose(&crew, 0);
    crew_pass(&crew, 11000); // a moment before it is lost
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_LATE);
    hello(&crew, "n0", "another agent", 2);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_READY);
    crew_lose(&crew, 0);
    crew_pass(&crew, 3000);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_READY);
    crew_pass(&crew, 8000);
    assert_int_equal(view_of(&crew, "n0").state, DP_NODE_LATE);
}

static void a_heartbeat_that_was_missed_and_came_costs_nothing(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    uint64_t job = crew_submit_ranks(&crew, 4);
    uint64_t session = crew.nodes[1].session;
    for (int i = 0; i < 3; i++) {
        crew_lose(&crew, 1);
        crew_pass(&crew, 8000);
        assert_int_equal(view_of(&crew, "n1").state, DP_NODE_LATE);
        crew.nodes[1].session = session;
        crew_pass(&crew, 2000);
        assert_int_equal(view_of(&crew, "n1").state, DP_NODE_READY);
    }
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
    assert_int_equal(crew_row(&crew, job)->attempt, 1);
    assert_int_equal(view_of(&crew, "n1").slots_used, 2);
}

static void the_clocks_of_agents_count_for_nothing(void **state)
{
    (void)state;
    static const int64_t skews_ns[] = {-3600 * DP_NS_PER_S, 3600 * DP_NS_PER_S, INT64_MIN / 2,
                                       INT64_MAX / 2};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(skews_ns); i++) {
        AUTO_CREW crew;
        crew_init(&crew, NULL);
        struct dp_node_record node = {.name = "n0",
                                      .instance = "a",
                                      .slots = 2,
                                      .lease_ms = 10000,
                                      .fence_ms = 60000,
                                      .last_seen_ns = skews_ns[i]};
        node.profile = (struct dp_buf){.bytes = (char *)"{}", .length = 2};
        struct dp_core_event event = {.kind = DP_EVENT_HELLO,
                                      .hello = {.levels.session = ++crew.world.sessions,
                                                .node = &node,
                                                .sent_ns = skews_ns[i]}};
        world_step(&crew.world, &event);
        assert_int_equal(view_of(&crew, "n0").state, DP_NODE_READY);
        assert_int_equal(view_of(&crew, "n0").node->last_seen_ns,
                         crew.world.now_ns + 1000 * DP_NS_PER_S);
        world_pass(&crew.world, 3000);
        assert_int_equal(view_of(&crew, "n0").state, DP_NODE_READY);
        world_pass(&crew.world, 12000);
        assert_int_equal(view_of(&crew, "n0").state, DP_NODE_LOST);
    }
}

static void two_hundred_nodes_lost_at_once_are_one_step(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_init(&crew, NULL);
    for (int i = 0; i < 200; i++) {
        char name[16];
        snprintf(name, sizeof(name), "x%d", i);
        world_hello(&crew.world, name, 1, NULL, 0);
        crew.world.sent_count = 0;
    }
    struct dp_submit job = crew_job(1);
    world_pass(&crew.world, 14000); // one event, after their leases
    size_t lost = 0;
    for (size_t i = 0; i < dp_core_nodes_count(crew.world.core); i++) {
        struct dp_node_view view;
        dp_core_node_at(crew.world.core, i, &view);
        lost += view.state == DP_NODE_LOST;
    }
    assert_int_equal(lost, 200);
    crew.world.sent_count = crew.taken = 0;
    uint64_t number = crew_submit(&crew, &job);
    assert_int_equal(crew_row(&crew, number)->state, DP_STATE_QUEUED);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_drained_node_gets_no_work_and_is_empty_when_its_jobs_are_gone),
    cmocka_unit_test(at_the_deadline_of_a_drain_jobs_leave_with_a_checkpoint),
    cmocka_unit_test(force_has_jobs_leave_at_once_and_so_has_down),
    cmocka_unit_test(what_was_decided_stays_over_restarts_reboots_and_silence),
    cmocka_unit_test(what_an_agent_found_amiss_is_an_event_of_its_node_once),
    cmocka_unit_test(a_deadline_goes_on_under_the_next_controller),
    cmocka_unit_test(jobs_leave_a_node_whose_time_came_while_no_controller_ran),
    cmocka_unit_test(only_silence_ends_by_itself),
    cmocka_unit_test(a_node_with_a_rank_that_cannot_be_killed_is_quarantined_at_once),
    cmocka_unit_test(three_suspicions_quarantine_a_node),
    cmocka_unit_test(suspicions_further_apart_than_their_time_are_not_added_up),
    cmocka_unit_test(a_quarantine_leaves_what_running_jobs_need_and_takes_few),
    cmocka_unit_test(many_nodes_are_asked_less_often_and_leases_follow),
    cmocka_unit_test(nodes_have_time_to_come_back_after_a_start),
    cmocka_unit_test(a_node_may_return_with_another_address_and_other_hardware),
    cmocka_unit_test(a_node_that_returns_with_fewer_slots_keeps_its_ranks_and_gets_no_work),
    cmocka_unit_test(a_forgotten_node_is_gone_and_one_that_may_run_something_is_not),
    cmocka_unit_test(a_full_disk_does_not_bring_a_forgotten_node_back),
    cmocka_unit_test(what_ran_on_a_node_before_a_start_only_the_node_can_say),
    cmocka_unit_test(what_was_decided_is_stored_when_the_disk_is_back),
    cmocka_unit_test(a_node_that_starts_anew_inherits_no_old_heartbeat),
    cmocka_unit_test(a_heartbeat_that_was_missed_and_came_costs_nothing),
    cmocka_unit_test(the_clocks_of_agents_count_for_nothing),
    cmocka_unit_test(two_hundred_nodes_lost_at_once_are_one_step),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
