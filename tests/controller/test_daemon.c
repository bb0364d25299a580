// dp-controller as a process: its doors, its exit codes, its restarts.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon_support.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

#define AUTO_WATCH __attribute__((cleanup(close_watch)))

static void close_watch(struct dp_client_watch **watch)
{
    dp_client_watch_close(*watch);
    *watch = NULL;
}

static const char *get_state(struct dp_client *client, const char *id, struct dp_arena *arena)
{
    Dp__V1__Job *job = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_get_job(client, id, arena, &job, &err), &err);
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&dp__v1__job_state__descriptor, (int)job->state);
    return value->name + strlen("JOB_");
}

static void wait_for_state(struct dp_client *client, struct fake_agent *agent, const char *wanted)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (strcmp(get_state(client, "job-1", &arena), wanted) != 0) {
        assert_true(dp_clock_monotonic_ns() < end_ns);
        if (agent != NULL) {
            agent_pump(agent, 10);
        }
    }
}

static void the_second_controller_says_so_and_exits_with_6(void **state)
{
    struct daemon_process *process = *state;
    daemon_start(process);
    char text[4096], pid[64], taken[64], other[300], used[300];
    snprintf(used, sizeof(used), "%s/state", process->directory);
    const char *same_directory[] = {"--state-dir", used, NULL};
    assert_int_equal(daemon_run_once(process, same_directory, text, sizeof(text)), 6);
    snprintf(pid, sizeof(pid), "in use by process %d", (int)process->pid);
    assert_non_null(strstr(text, pid));

    DP_CLEANUP(dp_buf_deinit) struct dp_buf address = {0};
    struct dp_error err = {0};
    assert_ok(dp_read_file(process->address_file, 1024, &address, &err), &err);
    dp_copy_text(taken, sizeof(taken), address.bytes);
    taken[strcspn(taken, "\n")] = '\0';
    snprintf(other, sizeof(other), "%s/other", process->directory);
    const char *same_port[] = {"--state-dir", other, "--listen", taken, NULL};
    assert_int_equal(daemon_run_once(process, same_port, text, sizeof(text)), 6);
    assert_non_null(strstr(text, taken));
    // The first does not mind.
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    assert_int_equal(daemon_end(process, SIGTERM), 0);
    assert_int_not_equal(access(process->address_file, F_OK), 0);
}

static void a_damaged_database_is_named_and_the_exit_status_is_3(void **state)
{
    struct daemon_process *process = *state;
    daemon_start(process);
    assert_int_equal(daemon_end(process, SIGTERM), 0);
    char path[300], directory[300], text[4096];
    snprintf(directory, sizeof(directory), "%s/state", process->directory);
    snprintf(path, sizeof(path), "%s/controller.db", directory);
    const char *check[] = {"--state-dir", directory, "--check", NULL};
    assert_int_equal(daemon_run_once(process, check, text, sizeof(text)), 0);
    assert_int_equal(truncate(path, 5000), 0);
    const char *start[] = {"--state-dir", directory, NULL};
    assert_int_equal(daemon_run_once(process, start, text, sizeof(text)), 3);
    assert_non_null(strstr(text, path));
    assert_non_null(strstr(text, "is damaged"));
    assert_int_equal(daemon_run_once(process, check, text, sizeof(text)), 3);
}

static void a_bad_job_file_is_refused_with_its_positions(void **state)
{
    struct daemon_process *process = *state;
    daemon_start(process);
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Job *job = NULL;
    struct dp_error err = {0};
    assert_refused(daemon_submit(client, "[train]\nstepz = 3\n", "", &arena, &job, &err),
                   DP_INVALID, &err, "my.toml:2:1");
    Dp__V1__ListJobsRequest list = DP__V1__LIST_JOBS_REQUEST__INIT;
    Dp__V1__ListJobsResponse *jobs = NULL;
    assert_ok(dp_client_list_jobs(client, &list, &arena, &jobs, &err), &err);
    assert_int_equal(jobs->n_jobs, 0);
}

static void a_job_that_waits_survives_kill_9_and_keeps_its_request_id(void **state)
{
    struct daemon_process *process = *state;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err = {0};
    for (int i = 0; i < 3; i++) {
        daemon_start(process);
        AUTO_CLIENT struct dp_client *client = daemon_client(process);
        Dp__V1__Job *job = NULL;
        assert_ok(daemon_submit(client, daemon_sim_job, "abc", &arena, &job, &err), &err);
        assert_string_equal(job->id, "job-1");
        wait_for_state(client, NULL, "QUEUED");
        assert_ok(dp_client_get_job(client, "little", &arena, &job, &err), &err);
        assert_string_equal(job->reason, "WaitingForNodes");
        assert_int_equal(daemon_end(process, SIGKILL), 128 + SIGKILL);
    }
    daemon_start(process);
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    Dp__V1__Job *job = NULL;
    assert_ok(dp_client_cancel_job(client, "job-1", "not needed", &arena, &job, &err), &err);
    assert_string_equal(get_state(client, "job-1", &arena), "CANCELLED");
    assert_refused(dp_client_cancel_job(client, "job-1", "", &arena, &job, &err), DP_CONFLICT, &err,
                   "job-1 has ended already");
    assert_refused(dp_client_get_job(client, "job-9", &arena, &job, &err), DP_NOT_FOUND, &err,
                   "no job \"job-9\"");
}

static void an_agent_of_another_protocol_is_refused_with_both_versions(void **state)
{
    struct daemon_process *process = *state;
    daemon_start(process);
    AUTO_AGENT struct fake_agent agent;
    agent_connect(&agent, process, DP_PROTOCOL_VERSION + 1, NULL);
    agent_expect_closed(&agent);
    assert_int_equal(agent.error.status, DP_UNSUPPORTED);
    assert_non_null(strstr(agent.error.message, "0.0.1"));
    assert_non_null(strstr(agent.error.message, DP_VERSION));
}

static void a_session_that_does_not_begin_with_hello_is_ended(void **state)
{
    struct daemon_process *process = *state;
    daemon_start(process);
    AUTO_AGENT struct fake_agent agent;
    agent_connect(&agent, process, DP_PROTOCOL_VERSION, NULL);
    agent_expect(&agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_WELCOME);
    agent_close(&agent);
    agent_connect(&agent, process, DP_PROTOCOL_VERSION + 7, NULL);
    agent_heartbeat(&agent);
    agent_expect_closed(&agent);
    assert_int_not_equal(agent.error.status, DP_OK);
}

static struct dp_client_watch *watch_job(struct dp_client *client)
{
    Dp__V1__WatchJobRequest request = DP__V1__WATCH_JOB_REQUEST__INIT;
    request.id = (char *)"job-1";
    struct dp_client_watch *watch = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_watch_job(client, &request, &watch, &err), &err);
    return watch;
}

// Follows until the stream ends; counts the steps and keeps the last state.
static uint64_t follow(struct dp_client_watch *watch, Dp__V1__JobState *ret_state)
{
    uint64_t steps = 0;
    bool end = false;
    while (!end) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__JobEvent *event = NULL;
        struct dp_error err = {0};
        assert_ok(dp_client_watch_next(watch, DEADLINE_MS, &arena, &event, &end, &err), &err);
        if (event != NULL && event->event_case == DP__V1__JOB_EVENT__EVENT_JOB) {
            *ret_state = event->job->state;
        } else if (event != NULL) {
            assert_int_equal(event->step->step, ++steps);
        }
        assert_true(event != NULL || end);
    }
    return steps;
}

static bool has_note(const Dp__V1__JobReport *report, const char *part)
{
    bool has = false;
    for (size_t i = 0; i < report->n_notes; i++) {
        has = has || strstr(report->notes[i], part) != NULL;
    }
    return has;
}

static void assert_reported(struct dp_client *client)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    struct dp_error err = {0};
    Dp__V1__JobReport *report = NULL;
    assert_ok(dp_client_get_report(client, "little", &arena, &report, &err), &err);
    assert_int_equal(report->n_ranks, 2);
    assert_int_equal(report->n_steps, 3);
    assert_false(has_note(report, "nothing is known"));
    assert_true(report->first_loss == 5.0);
    assert_true(report->measured_step_s > 0.000999 && report->measured_step_s < 0.001001);
    assert_true(report->ranks[1]->measured_busy_s == 0.0007);
    assert_true(report->ranks[1]->predicted_busy_s > 0);
    Dp__V1__Timeline *timeline = NULL;
    assert_ok(dp_client_get_timeline(client, "little", &arena, &timeline, &err), &err);
    assert_int_equal(timeline->n_measured, 3);
    assert_int_equal(timeline->measured[0]->n_spans, 2);
    // 4 micro-batches, forward and backward, on two ranks.
    assert_int_equal(timeline->n_predicted, 16);
}

static void a_job_runs_from_submission_to_report(void **state)
{
    AUTO_SCENE struct scene scene;
    scene_open_training(&scene, state);
    scene_steps(&scene, 1, 3);
    scene_finish(&scene);
    AUTO_WATCH struct dp_client_watch *watch = watch_job(scene.client);
    Dp__V1__JobState last = DP__V1__JOB_STATE__JOB_UNKNOWN;
    assert_int_equal(follow(watch, &last), 3);
    assert_int_equal(last, DP__V1__JOB_STATE__JOB_COMPLETED);
    assert_reported(scene.client);
}

static void steps_that_nobody_told_of_are_counted_in_the_report(void **state)
{
    AUTO_SCENE struct scene scene;
    scene_open_training(&scene, state);
    scene_steps(&scene, 1, 1);
    scene_steps(&scene, 3, 3);
    scene_finish(&scene);
    Dp__V1__JobReport *report = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_get_report(scene.client, "job-1", &scene.arena, &report, &err), &err);
    assert_int_equal(report->n_steps, 2);
    assert_true(has_note(report, "of 1 of 3 steps nothing is known"));
}

static void an_agent_of_the_protocol_before_runs_its_jobs(void **state)
{
    assert_true(DP_PROTOCOL_OLDEST < DP_PROTOCOL_VERSION);
    AUTO_SCENE struct scene scene;
    scene_open(&scene, state);
    agent_connect(&scene.agent, scene.process, DP_PROTOCOL_OLDEST, NULL);
    scene_start_job(&scene);
    // Met again in the middle of its job.
    agent_close(&scene.agent);
    agent_connect(&scene.agent, scene.process, DP_PROTOCOL_OLDEST,
                  agent_make_level(&scene.fence, 2, DP__V1__RANK_PHASE__RANK_RUNNING));
    // It goes on with a controller that says it speaks as it does, and with no other.
    const Dp__V1__Welcome *welcome =
        agent_expect(&scene.agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_WELCOME)->welcome;
    assert_int_equal(welcome->protocol, DP_PROTOCOL_OLDEST);
    scene_steps(&scene, 1, 3);
    scene_finish(&scene);
    assert_string_equal(get_state(scene.client, "job-1", &scene.arena), "COMPLETED");
}

static void a_job_goes_on_when_its_controller_is_killed_and_started_again(void **state)
{
    AUTO_SCENE struct scene scene;
    scene_open_training(&scene, state);
    scene_steps(&scene, 1, 1);
    wait_for_state(scene.client, &scene.agent, "RUNNING");
    assert_int_equal(daemon_end(scene.process, SIGKILL), 128 + SIGKILL);
    agent_expect_closed(&scene.agent);

    scene_reopen(&scene);
    assert_string_equal(get_state(scene.client, "job-1", &scene.arena), "RUNNING");
    agent_connect(&scene.agent, scene.process, DP_PROTOCOL_VERSION,
                  agent_make_level(&scene.fence, 2, DP__V1__RANK_PHASE__RANK_RUNNING));
    agent_expect(&scene.agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_WELCOME);
    scene_steps(&scene, 1, 3); // what was kept is told again
    scene_finish(&scene);
    assert_string_equal(get_state(scene.client, "job-1", &scene.arena), "COMPLETED");
    Dp__V1__JobReport *report = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_get_report(scene.client, "job-1", &scene.arena, &report, &err), &err);
    assert_int_equal(report->n_steps, 3);
}

static void limit_files(const struct daemon_process *process, rlim_t bytes)
{
    struct rlimit limit = {bytes, RLIM_INFINITY};
    assert_int_equal(prlimit(process->pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

static const char *listed_state(struct dp_client *client, struct dp_arena *arena)
{
    Dp__V1__ListJobsRequest request = DP__V1__LIST_JOBS_REQUEST__INIT;
    Dp__V1__ListJobsResponse *response = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_list_jobs(client, &request, arena, &response, &err), &err);
    assert_int_equal(response->n_jobs, 1);
    return protobuf_c_enum_descriptor_get_value(&dp__v1__job_state__descriptor,
                                                (int)response->jobs[0]->state)
        ->name;
}

// Until the log has this text.
static void wait_for_log(const struct daemon_process *process, struct fake_agent *agent,
                         const char *text)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/log", process->directory);
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    for (bool found = false; !found;) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf log = {0};
        assert_int_equal(dp_read_file(path, 1 << 24, &log, NULL), DP_OK);
        dp_buf_puts(&log, "");
        found = memmem(log.bytes, log.length, text, strlen(text)) != NULL;
        assert_true(dp_clock_monotonic_ns() < end_ns);
        agent_pump(agent, 10);
    }
}

static void an_end_that_the_full_disk_does_not_take_is_not_told(void **state)
{
    AUTO_SCENE struct scene scene;
    scene_open_training(&scene, state);
    wait_for_state(scene.client, &scene.agent, "RUNNING");
    AUTO_WATCH struct dp_client_watch *watch = watch_job(scene.client);
    limit_files(scene.process, 1);
    scene_steps(&scene, 1, 3);
    scene_level(&scene, DP__V1__RANK_PHASE__RANK_FINISHED);
    for (int i = 0; i < 50; i++) {
        agent_pump(&scene.agent, 10);
        assert_string_equal(get_state(scene.client, "job-1", &scene.arena), "RUNNING");
        assert_string_equal(listed_state(scene.client, &scene.arena), "JOB_RUNNING");
    }
    Dp__V1__JobEvent *event = NULL;
    struct dp_error err = {0};
    bool end = false;
    while (dp_client_watch_next(watch, 50, &scene.arena, &event, &end, &err) == DP_OK &&
           event != NULL) {
        assert_false(end);
        assert_true(event->job == NULL || event->job->state == DP__V1__JOB_STATE__JOB_RUNNING);
    }
    assert_int_equal(scene.agent.taken, scene.agent.got_count); // nor was it released
    limit_files(scene.process, RLIM_INFINITY);
    agent_expect(&scene.agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_RELEASE);
    wait_for_state(scene.client, &scene.agent, "COMPLETED");
    // The steps that found no room are there, as well.
    Dp__V1__JobState last = DP__V1__JOB_STATE__JOB_UNKNOWN;
    assert_int_equal(follow(watch, &last), 3);
    assert_int_equal(last, DP__V1__JOB_STATE__JOB_COMPLETED);
}

// Its node's lease is over when it goes on, but nobody could have told it anything.
static void a_controller_that_was_stopped_fails_no_job(void **state)
{
    AUTO_SCENE struct scene scene;
    scene_open(&scene, state);
    agent_connect_lease(&scene.agent, scene.process, 500);
    scene_start_job(&scene);
    wait_for_state(scene.client, &scene.agent, "RUNNING");
    assert_int_equal(kill(scene.process->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(scene.process->pid, NULL, WUNTRACED), scene.process->pid);
    // Past the lease of 0.5 s and the margin of 3 s.
    int64_t end_ns = dp_clock_monotonic_ns() + 5 * DP_NS_PER_S;
    while (dp_clock_monotonic_ns() < end_ns) {
        agent_pump(&scene.agent, 100);
    }
    assert_int_equal(kill(scene.process->pid, SIGCONT), 0);
    wait_for_log(scene.process, &scene.agent, "controller.stalled");
    assert_string_equal(get_state(scene.client, "job-1", &scene.arena), "RUNNING");
    scene_finish(&scene);
    wait_for_state(scene.client, &scene.agent, "COMPLETED");
}

static void a_second_cancel_is_the_same_one_or_a_conflict(void **state)
{
    AUTO_SCENE struct scene scene;
    scene_open_training(&scene, state);
    wait_for_state(scene.client, &scene.agent, "RUNNING");
    Dp__V1__Job *job = NULL;
    struct dp_error err = {0};
    for (int i = 0; i < 2; i++) {
        assert_ok(dp_client_cancel_job(scene.client, "job-1", "enough", &scene.arena, &job, &err),
                  &err);
        assert_int_equal(job->state, DP__V1__JOB_STATE__JOB_STOPPING);
    }
    agent_expect(&scene.agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_STOP);
    scene_level(&scene, DP__V1__RANK_PHASE__RANK_DIED);
    wait_for_state(scene.client, &scene.agent, "CANCELLED");
    for (int i = 0; i < 50; i++) {
        dp_status status =
            dp_client_cancel_job(scene.client, "job-1", "", &scene.arena, &job, &err);
        assert_refused(status, DP_CONFLICT, &err, "has ended already");
    }
    // One that never ran.
    assert_ok(daemon_submit(scene.client, daemon_sim_job, "twice", &scene.arena, &job, &err), &err);
    assert_ok(dp_client_cancel_job(scene.client, job->id, "", &scene.arena, &job, &err), &err);
    for (int i = 0; i < 50; i++) {
        dp_status status =
            dp_client_cancel_job(scene.client, "job-2", "", &scene.arena, &job, &err);
        assert_true(status == DP_CONFLICT || status == DP_OK);
        assert_true(status == DP_OK || strstr(err.message, "has ended already") != NULL);
    }
    // Its request id is taken, for the same file only.
    assert_ok(daemon_submit(scene.client, daemon_sim_job, "twice", &scene.arena, &job, &err), &err);
    assert_string_equal(job->id, "job-2");
    DP_AUTO_FREE char *other = dp_asprintf("# another\n%s", daemon_sim_job);
    assert_refused(daemon_submit(scene.client, other, "twice", &scene.arena, &job, &err),
                   DP_CONFLICT, &err, "job-2");
}

static void sigterm_ends_streams_and_leaves_jobs_alone(void **state)
{
    AUTO_SCENE struct scene scene;
    scene_open_training(&scene, state);
    AUTO_WATCH struct dp_client_watch *watch = watch_job(scene.client);
    Dp__V1__JobEvent *event = NULL;
    struct dp_error err = {0};
    bool end = false;
    assert_ok(dp_client_watch_next(watch, DEADLINE_MS, &scene.arena, &event, &end, &err), &err);
    assert_int_equal(daemon_end(scene.process, SIGTERM), 0);
    dp_status status = DP_OK;
    while (status == DP_OK && !end) {
        status = dp_client_watch_next(watch, DEADLINE_MS, &scene.arena, &event, &end, &err);
    }
    assert_int_equal(status, DP_UNAVAILABLE);
    agent_expect_closed(&scene.agent);
    assert_int_equal(scene.agent.taken, scene.agent.got_count); // no STOP was sent
    close_watch(&watch);
    scene_reopen(&scene);
    const char *now = get_state(scene.client, "job-1", &scene.arena);
    assert_true(strcmp(now, "RUNNING") == 0 || strcmp(now, "ASSIGNING") == 0);
}

static const struct CMUnitTest tests[] = {
    DAEMON_TEST(the_second_controller_says_so_and_exits_with_6),
    DAEMON_TEST(a_damaged_database_is_named_and_the_exit_status_is_3),
    DAEMON_TEST(a_bad_job_file_is_refused_with_its_positions),
    DAEMON_TEST(a_job_that_waits_survives_kill_9_and_keeps_its_request_id),
    DAEMON_TEST(an_agent_of_another_protocol_is_refused_with_both_versions),
    DAEMON_TEST(a_session_that_does_not_begin_with_hello_is_ended),
    DAEMON_TEST(a_job_runs_from_submission_to_report),
    DAEMON_TEST(steps_that_nobody_told_of_are_counted_in_the_report),
    DAEMON_TEST(an_agent_of_the_protocol_before_runs_its_jobs),
    DAEMON_TEST(a_job_goes_on_when_its_controller_is_killed_and_started_again),
    DAEMON_TEST(an_end_that_the_full_disk_does_not_take_is_not_told),
    DAEMON_TEST(a_controller_that_was_stopped_fails_no_job),
    DAEMON_TEST(a_second_cancel_is_the_same_one_or_a_conflict),
    DAEMON_TEST(sigterm_ends_streams_and_leaves_jobs_alone),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
