// dp-controller as a process: jobs that wait, and who may ask how much of it.
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon_support.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

static void submit(struct dp_client *client, const char *request_id)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Job *job = NULL;
    struct dp_error err = {0};
    assert_ok(daemon_submit(client, daemon_sim_job, request_id, &arena, &job, &err), &err);
}

// NULL, with err, when it is refused.
static Dp__V1__Job *update(struct dp_client *client, const Dp__V1__UpdateJobRequest *request,
                           struct dp_arena *arena, struct dp_error *err)
{
    Dp__V1__Job *job = NULL;
    return dp_client_update_job(client, request, arena, &job, err) == DP_OK ? job : NULL;
}

static Dp__V1__UpdateJobRequest hold(const char *id, bool held, const char *request_id)
{
    Dp__V1__UpdateJobRequest request = DP__V1__UPDATE_JOB_REQUEST__INIT;
    request.id = (char *)id;
    request.user = (char *)"mo";
    request.request_id = (char *)request_id;
    request.hold_case = DP__V1__UPDATE_JOB_REQUEST__HOLD_HELD;
    request.held = held;
    request.reason = (char *)(held ? "data is copied" : "");
    return request;
}

static Dp__V1__UpdateJobRequest order(const char *id, int32_t priority)
{
    Dp__V1__UpdateJobRequest request = DP__V1__UPDATE_JOB_REQUEST__INIT;
    request.id = (char *)id;
    request.order_case = DP__V1__UPDATE_JOB_REQUEST__ORDER_PRIORITY;
    request.priority = priority;
    return request;
}

static Dp__V1__ListJobsResponse *queued(struct dp_client *client, struct dp_arena *arena)
{
    Dp__V1__ListJobsRequest request = DP__V1__LIST_JOBS_REQUEST__INIT;
    request.queued = true;
    Dp__V1__ListJobsResponse *jobs = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_list_jobs(client, &request, arena, &jobs, &err), &err);
    return jobs;
}

static void jobs_that_wait_are_listed_in_the_order_in_which_they_go(void **state)
{
    struct daemon_process *process = *state;
    daemon_start(process);
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err = {0};
    for (int i = 0; i < 4; i++) {
        submit(client, "");
    }
    Dp__V1__UpdateJobRequest held = hold("job-1", true, ""), first = order("job-3", 7);
    assert_non_null(update(client, &held, &arena, &err));
    assert_non_null(update(client, &first, &arena, &err));
    static const char *const ids[4] = {"job-3", "job-1", "job-2", "job-4"};
    static const uint32_t positions[4] = {1, 0, 2, 3};
    // What was asked for lasts when the controller is killed.
    for (int life = 0; life < 2; life++) {
        const Dp__V1__ListJobsResponse *jobs = queued(client, &arena);
        assert_int_equal(jobs->n_jobs, 4);
        for (size_t i = 0; i < 4; i++) {
            assert_string_equal(jobs->jobs[i]->id, ids[i]);
            assert_int_equal(jobs->jobs[i]->queue->position, positions[i]);
            assert_int_equal(jobs->jobs[i]->queue->start_ns, 0); // there is no node
            assert_int_equal(jobs->jobs[i]->ranks_wanted, 2);
        }
        assert_int_equal(jobs->jobs[3]->queue->jobs_ahead, 2); // the held one is not ahead
        assert_int_equal(jobs->jobs[3]->queue->ranks_ahead, 4);
        assert_string_equal(jobs->jobs[1]->reason, "Held");
        assert_string_equal(jobs->jobs[1]->message, "held by mo (data is copied)");
        assert_string_equal(jobs->jobs[1]->held_by, "mo");
        Dp__V1__Job *one = NULL;
        assert_ok(dp_client_get_job(client, "job-2", &arena, &one, &err), &err);
        assert_int_equal(one->queue->position, 2);
        if (life == 0) {
            daemon_close_client(&client);
            daemon_end(process, SIGKILL);
            daemon_start(process);
            client = daemon_client(process);
        }
    }
}

static void a_request_id_stands_for_one_change_also_after_a_restart(void **state)
{
    struct daemon_process *process = *state;
    daemon_start(process);
    struct dp_client *client = daemon_client(process);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err = {0};
    submit(client, "");
    submit(client, "");
    Dp__V1__UpdateJobRequest held = hold("job-1", true, "r-1"), freed = hold("job-1", false, "r-2");
    assert_true(update(client, &held, &arena, &err)->held_ns != 0);
    assert_true(update(client, &freed, &arena, &err)->held_ns == 0);
    daemon_close_client(&client);
    daemon_end(process, SIGKILL);
    daemon_start(process);
    AUTO_CLIENT struct dp_client *again = daemon_client(process);
    assert_true(update(again, &held, &arena, &err)->held_ns == 0); // it was, once
    held.id = (char *)"job-2";
    assert_null(update(again, &held, &arena, &err));
    assert_refused(err.status, DP_CONFLICT, &err, "was used to change job-1");
}

static void a_change_that_changes_nothing_or_is_out_of_bounds_is_refused(void **state)
{
    struct daemon_process *process = *state;
    daemon_start(process);
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err = {0};
    submit(client, "");
    Dp__V1__UpdateJobRequest none = DP__V1__UPDATE_JOB_REQUEST__INIT;
    none.id = (char *)"job-1";
    assert_null(update(client, &none, &arena, &err));
    assert_refused(err.status, DP_INVALID, &err, "nothing is to be changed");
    Dp__V1__UpdateJobRequest far = order("job-1", DP_PRIORITY_MAX + 1), absent = order("job-9", 1);
    assert_null(update(client, &far, &arena, &err));
    assert_refused(err.status, DP_INVALID, &err, "priority");
    assert_null(update(client, &absent, &arena, &err));
    assert_int_equal(err.status, DP_NOT_FOUND);
    Dp__V1__UpdateJobRequest freed = hold("job-1", false, "");
    freed.reason = (char *)"why";
    assert_null(update(client, &freed, &arena, &err));
    assert_refused(err.status, DP_INVALID, &err, "of holding a job alone");
    Dp__V1__Job *job = NULL;
    assert_ok(dp_client_cancel_job(client, "job-1", "", &arena, &job, &err), &err);
    Dp__V1__UpdateJobRequest late = hold("job-1", true, "");
    assert_null(update(client, &late, &arena, &err));
    assert_refused(err.status, DP_CONFLICT, &err, "has ended already");
}

static void a_quota_without_a_number_is_refused_and_nothing_is_set(void **state)
{
    struct daemon_process *process = *state;
    daemon_start(process);
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err = {0};
    Dp__V1__SetQuotaRequest request = DP__V1__SET_QUOTA_REQUEST__INIT;
    request.of_user = (char *)"bob";
    Dp__V1__Quota *quota = NULL;
    assert_refused(dp_client_set_quota(client, &request, &arena, &quota, &err), DP_INVALID, &err,
                   "say how many");
    request.bound_case = DP__V1__SET_QUOTA_REQUEST__BOUND_NONE; // "none": false
    assert_refused(dp_client_set_quota(client, &request, &arena, &quota, &err), DP_INVALID, &err,
                   "say how many");
    Dp__V1__ListQuotasResponse *quotas = NULL;
    assert_ok(dp_client_list_quotas(client, &arena, &quotas, &err), &err);
    assert_int_equal(quotas->n_quotas, 0);
    request.bound_case = DP__V1__SET_QUOTA_REQUEST__BOUND_RANKS; // 0, and meant
    assert_ok(dp_client_set_quota(client, &request, &arena, &quota, &err), &err);
    assert_ok(dp_client_list_quotas(client, &arena, &quotas, &err), &err);
    assert_int_equal(quotas->n_quotas, 1);
}

static dp_status first_word(struct dp_client_watch *watch, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__JobEvent *event = NULL;
    bool end = false;
    dp_status status = dp_client_watch_next(watch, DEADLINE_MS, &arena, &event, &end, err);
    assert_true(status != DP_OK || event != NULL);
    return status;
}

static void one_caller_watches_so_much_and_not_more_and_is_told_what_to_do(void **state)
{
    struct daemon_process *process = *state;
    daemon_start(process);
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    struct dp_error err = {0};
    submit(client, "");
    Dp__V1__WatchJobRequest request = DP__V1__WATCH_JOB_REQUEST__INIT;
    request.id = (char *)"job-1";
    enum { COUNT = DP_STREAMS_OF_CALLER_MAX + 3 };
    assert_true(DP_STREAMS_OF_CALLER_MAX >= 200); // as many as a team has
    static struct dp_client_watch *watches[COUNT];
    size_t refused = 0;
    for (size_t i = 0; i < COUNT; i++) {
        assert_ok(dp_client_watch_job(client, &request, &watches[i], &err), &err);
    }
    for (size_t i = 0; i < COUNT; i++) {
        if (first_word(watches[i], &err) != DP_OK) {
            assert_refused(err.status, DP_BUSY, &err, "end some");
            refused++;
            dp_client_watch_close(watches[i]);
            watches[i] = NULL;
        }
    }
    assert_int_equal(refused, 3);
    submit(client, "other"); // all else is answered
    for (size_t i = 0; i < COUNT; i++) {
        dp_client_watch_close(watches[i]);
    }
    // They are gone when the controller has heard of it.
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    for (bool admitted = false; !admitted;) {
        struct dp_client_watch *watch = NULL;
        assert_true(dp_clock_monotonic_ns() < end_ns);
        assert_ok(dp_client_watch_job(client, &request, &watch, &err), &err);
        admitted = first_word(watch, &err) == DP_OK;
        dp_client_watch_close(watch);
    }
}

static const struct CMUnitTest tests[] = {
    DAEMON_TEST(jobs_that_wait_are_listed_in_the_order_in_which_they_go),
    DAEMON_TEST(a_request_id_stands_for_one_change_also_after_a_restart),
    DAEMON_TEST(a_change_that_changes_nothing_or_is_out_of_bounds_is_refused),
    DAEMON_TEST(a_quota_without_a_number_is_refused_and_nothing_is_set),
    DAEMON_TEST(one_caller_watches_so_much_and_not_more_and_is_told_what_to_do),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
