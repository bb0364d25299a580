// What a real controller keeps of what was asked and what happened: the audit, events that go on
// after a break, copies of its database while it runs, and a database that stands still.
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon_support.h"
#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/method.h"
#include "dp/store.h"

static void cleanup_events(struct dp_client_events **events)
{
    dp_client_events_close(*events);
}
#define AUTO_EVENTS DP_CLEANUP(cleanup_events)

static const char sim_job[] =
    "name = \"little\"\n[model]\npreset = \"tiny-moe\"\n"
    "[train]\nsteps = 10\nglobal_batch = 16\nsequence = 128\n[parallel]\npipeline = 4\n"
    "expert = 1\ndata = 1\nmicrobatches = 8\nmicro_batch_size = 2\nschedule = \"dualpipe\"\n"
    "[resources]\ndevice = \"sim\"\n[sim]\nforward_s = 0.001\ninput_grad_s = 0.001\n"
    "weight_grad_s = 0.001\n";

static Dp__V1__ListAuditResponse *read_audit(struct dp_client *client, const char *object,
                                             struct dp_arena *arena)
{
    Dp__V1__ListAuditRequest request = DP__V1__LIST_AUDIT_REQUEST__INIT;
    request.object = (char *)object;
    Dp__V1__ListAuditResponse *answer = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_list_audit(client, &request, arena, &answer, &err), &err);
    return answer;
}

struct expected {
    const char *verb, *object, *before, *after, *outcome;
};

static void assert_entries(const Dp__V1__ListAuditResponse *audit, const struct expected *expected,
                           size_t count)
{
    assert_int_equal(audit->n_entries, count);
    for (size_t i = 0; i < count; i++) {
        const Dp__V1__AuditEntry *entry = audit->entries[i];
        assert_string_equal(entry->verb, expected[i].verb);
        assert_string_equal(entry->object, expected[i].object);
        assert_string_equal(entry->before, expected[i].before);
        assert_string_equal(entry->after, expected[i].after);
        assert_string_equal(entry->outcome, expected[i].outcome);
        assert_string_equal(entry->user, "alice");
        assert_string_equal(entry->door, "grpc");
        assert_true(strncmp(entry->peer, "127.0.0.1:", 10) == 0);
        assert_int_equal(entry->index, i + 1);
    }
}

static void wait_queued(struct dp_client *client, const char *id)
{
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    for (;;) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__Job *job = NULL;
        struct dp_error err = {0};
        assert_ok(dp_client_get_job(client, id, &arena, &job, &err), &err);
        if (job->state == DP__V1__JOB_STATE__JOB_QUEUED) {
            return;
        }
        assert_true(dp_clock_monotonic_ns() < end_ns);
    }
}

static void every_request_for_a_change_has_one_entry_and_reads_have_none(void **state)
{
    struct daemon_process *process = *state;
    daemon_start(process);
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    dp_client_set_user(client, "alice");
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err = {0};
    Dp__V1__Job *job = NULL;
    assert_ok(daemon_submit(client, sim_job, "abc", &arena, &job, &err), &err);
    wait_queued(client, "job-1");
    assert_ok(daemon_submit(client, sim_job, "abc", &arena, &job, &err), &err); // the same one
    assert_int_equal(daemon_submit(client, "steps = x", "", &arena, &job, &err), DP_INVALID);
    assert_ok(dp_client_cancel_job(client, "little", "why not", &arena, &job, &err), &err);
    assert_int_equal(dp_client_cancel_job(client, "job-1", "", &arena, &job, &err), DP_CONFLICT);
    Dp__V1__CheckpointJobResponse *checkpoint = NULL;
    assert_int_equal(dp_client_checkpoint_job(client, "job-9", &arena, &checkpoint, &err),
                     DP_NOT_FOUND);
    Dp__V1__Cluster *cluster = NULL;
    assert_int_equal(dp_client_delete_cluster(client, "none", &arena, &cluster, &err),
                     DP_NOT_FOUND);
    Dp__V1__DrainNodeRequest drain = DP__V1__DRAIN_NODE_REQUEST__INIT;
    Dp__V1__Node *node = NULL;
    drain.node = (char *)"n1";
    assert_int_equal(dp_client_drain_node(client, &drain, &arena, &node, &err), DP_NOT_FOUND);
    Dp__V1__SetQuotaRequest quota = DP__V1__SET_QUOTA_REQUEST__INIT;
    Dp__V1__Quota *given = NULL;
    quota.of_user = (char *)"bob";
    quota.bound_case = DP__V1__SET_QUOTA_REQUEST__BOUND_RANKS;
    quota.ranks = 4;
    assert_ok(dp_client_set_quota(client, &quota, &arena, &given, &err), &err);
    quota.bound_case = DP__V1__SET_QUOTA_REQUEST__BOUND_NONE;
    quota.none = true;
    assert_ok(dp_client_set_quota(client, &quota, &arena, &given, &err), &err);
    Dp__V1__ListNodesResponse *nodes = NULL;
    assert_ok(dp_client_list_nodes(client, &arena, &nodes, &err), &err);
    static const struct expected expected[] = {
        {"SubmitJob", "job-1", "", "SUBMITTED 0.0", "ok"},
        {"SubmitJob", "job-1", "", "", "ok"},
        {"SubmitJob", "", "", "", "INVALID"},
        {"CancelJob", "job-1", "QUEUED 0.0", "CANCELLED 0.0", "ok"},
        {"CancelJob", "job-1", "CANCELLED 0.0", "CANCELLED 0.0", "CONFLICT"},
        {"CheckpointJob", "job-9", "", "", "NOT_FOUND"},
        {"DeleteCluster", "none", "", "", "NOT_FOUND"},
        {"DrainNode", "n1", "", "", "NOT_FOUND"},
        {"SetQuota", "bob", "any number", "4 ranks", "ok"},
        {"SetQuota", "bob", "4 ranks", "any number", "ok"},
    };
    // A change is told when its entry is on disk; a refusal, which changes nothing, at once.
    const Dp__V1__ListAuditResponse *audit = read_audit(client, "", &arena);
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (audit->n_entries < DP_ARRAY_LENGTH(expected)) {
        assert_true(dp_clock_monotonic_ns() < end_ns);
        audit = read_audit(client, "", &arena);
    }
    assert_string_equal(audit->entries[0]->request_id, "abc");
    // The core may have let go of a job that has ended: then it was nothing to it any more.
    audit->entries[4]->before = audit->entries[4]->after = (char *)"CANCELLED 0.0";
    assert_entries(audit, expected, DP_ARRAY_LENGTH(expected));
    assert_int_equal(read_audit(client, "job-1", &arena)->n_entries, 4);
}

static void an_entry_is_on_disk_when_its_answer_is_given(void **state)
{
    enum { KILLS = 4 };
    struct daemon_process *process = *state;
    struct dp_error err = {0};
    for (size_t i = 0; i < KILLS; i++) {
        daemon_start(process);
        AUTO_CLIENT struct dp_client *client = daemon_client(process);
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__Job *job = NULL;
        assert_int_equal(read_audit(client, "", &arena)->n_entries, i);
        assert_ok(daemon_submit(client, sim_job, "", &arena, &job, &err), &err);
        assert_int_equal(daemon_end(process, SIGKILL), 128 + SIGKILL);
    }
}

// The events that come next, until there are `wanted`; their ids rise by one from *index on.
static void take_events(struct dp_client_events *events, size_t wanted, uint64_t *index)
{
    struct dp_error err = {0};
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    size_t count = 0;
    while (count < wanted) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__EventBatch *batch = NULL;
        bool end = false;
        assert_ok(dp_client_events_next(events, 200, &arena, &batch, &end, &err), &err);
        assert_false(end);
        assert_true(dp_clock_monotonic_ns() < end_ns);
        for (size_t i = 0; batch != NULL && i < batch->n_events; i++) {
            assert_int_equal(batch->events[i]->id, *index + 1);
            *index = batch->events[i]->id;
            count++;
        }
        if (batch != NULL) {
            assert_int_equal(batch->index, *index);
        }
    }
}

static struct dp_client_events *watch(struct dp_client *client, uint64_t after, bool from_now)
{
    Dp__V1__WatchEventsRequest request = DP__V1__WATCH_EVENTS_REQUEST__INIT;
    request.after = after;
    request.from_now = from_now;
    struct dp_client_events *events = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_watch_events(client, &request, &events, &err), &err);
    return events;
}

static void events_go_on_where_they_broke_off_also_after_kill_9(void **state)
{
    struct daemon_process *process = *state;
    struct dp_error err = {0};
    uint64_t index = 0;
    for (int i = 0; i < 3; i++) {
        daemon_start(process);
        AUTO_CLIENT struct dp_client *client = daemon_client(process);
        AUTO_EVENTS struct dp_client_events *events = watch(client, index, false);
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__Job *job = NULL;
        assert_ok(daemon_submit(client, sim_job, "", &arena, &job, &err), &err);
        take_events(events, 2, &index); // SUBMITTED, QUEUED; and nothing twice
        assert_int_equal(daemon_end(process, SIGKILL), 128 + SIGKILL);
    }
    assert_true(index >= 6);
}

static void events_from_now_leave_out_what_was(void **state)
{
    struct daemon_process *process = *state;
    struct dp_error err = {0};
    daemon_start(process);
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Job *job = NULL;
    uint64_t index = 0;
    {
        AUTO_EVENTS struct dp_client_events *all = watch(client, 0, false);
        assert_ok(daemon_submit(client, sim_job, "", &arena, &job, &err), &err);
        take_events(all, 3, &index); // that it has started; SUBMITTED, QUEUED
    }
    AUTO_EVENTS struct dp_client_events *events = watch(client, 0, true);
    assert_ok(daemon_submit(client, sim_job, "", &arena, &job, &err), &err);
    take_events(events, 2, &index);
}

// Into a file; its size.
static size_t take_backup(struct dp_client *client, const char *path)
{
    struct dp_client_backup *backup = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_backup(client, &backup, &err), &err);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf all = {0};
    bool end = false, whole = false;
    while (!end) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__BackupChunk *chunk = NULL;
        assert_ok(dp_client_backup_next(backup, 200, &arena, &chunk, &end, &err), &err);
        if (chunk != NULL) {
            assert_false(whole);
            dp_buf_append(&all, chunk->data.data, chunk->data.len);
            whole = chunk->schema != 0;
            assert_true(!whole || chunk->bytes == all.length);
        }
    }
    assert_true(whole);
    dp_client_backup_close(backup);
    assert_ok(dp_write_file(path, all.bytes, all.length, &err), &err);
    return all.length;
}

static void a_backup_of_a_running_controller_serves_in_another_place(void **state)
{
    struct daemon_process *process = *state;
    struct dp_error err = {0};
    daemon_start(process);
    // What a controller that was killed in the middle of one left.
    DP_AUTO_FREE char *left = dp_asprintf("%s/state/backup-7.tmp", process->directory);
    DP_AUTO_FREE char *copy = dp_asprintf("%s/copy.db", process->directory);
    DP_AUTO_FREE char *place = dp_asprintf("%s/state", process->directory);
    {
        AUTO_CLIENT struct dp_client *client = daemon_client(process);
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__Job *job = NULL;
        assert_ok(daemon_submit(client, sim_job, "before", &arena, &job, &err), &err);
        assert_true(take_backup(client, copy) > 4096);
        assert_ok(daemon_submit(client, sim_job, "after", &arena, &job, &err), &err);
        assert_string_equal(job->id, "job-2");
    }
    assert_int_equal(daemon_end(process, SIGTERM), 0);
    char kept[DP_PATH_MAX];
    assert_ok(dp_store_restore(place, copy, kept, sizeof(kept), &err), &err);
    assert_ok(dp_write_file(left, "x", 1, &err), &err);
    daemon_start(process);
    assert_int_not_equal(access(left, F_OK), 0);
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Job *job = NULL;
    assert_ok(daemon_submit(client, sim_job, "before", &arena, &job, &err), &err);
    assert_string_equal(job->id, "job-1");
    assert_int_equal(dp_client_get_job(client, "job-2", &arena, &job, &err), DP_NOT_FOUND);
}

static void heartbeats_are_answered_while_the_database_stands_still(void **state)
{
    struct daemon_process *process = *state;
    daemon_start(process);
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    struct fake_agent agent;
    agent_connect(&agent, process, DP_PROTOCOL_VERSION, NULL);
    agent_expect(&agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_WELCOME);
    DP_AUTO_FREE char *path = dp_asprintf("%s/state/%s", process->directory, DP_STORE_FILE);
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, DEADLINE_MS);
    // Nobody else can write from here on.
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    uint64_t before = agent.acked;
    for (uint64_t i = 1; i <= 3; i++) {
        agent_heartbeat(&agent);
        int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
        while (agent.acked < before + i) {
            assert_true(dp_clock_monotonic_ns() < end_ns);
            agent_pump(&agent, 100);
        }
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListNodesResponse *nodes = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_list_nodes(client, &arena, &nodes, &err), &err);
    assert_int_equal(nodes->n_nodes, 1);
    assert_int_equal(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    // And what waited is stored.
    Dp__V1__Job *job = NULL;
    assert_ok(daemon_submit(client, sim_job, "", &arena, &job, &err), &err);
    agent_close(&agent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DAEMON_TEST(every_request_for_a_change_has_one_entry_and_reads_have_none),
        DAEMON_TEST(an_entry_is_on_disk_when_its_answer_is_given),
        DAEMON_TEST(events_go_on_where_they_broke_off_also_after_kill_9),
        DAEMON_TEST(events_from_now_leave_out_what_was),
        DAEMON_TEST(a_backup_of_a_running_controller_serves_in_another_place),
        DAEMON_TEST(heartbeats_are_answered_while_the_database_stands_still),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
