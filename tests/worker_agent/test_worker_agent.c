// The agent and its keepers as they run, against a controller in this process.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster.h"
#include "dp/alloc.h"
#include "dp_test.h"

static void a_job_is_prepared_started_finished_and_released(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start steps=5 sample finish exit=0", NULL);
    struct fake_controller *controller = &cluster.controller;
    assert_string_equal(controller->node, "node-a");
    fake_controller_prepare(controller, "job-1", 1, two_ranks, 2);
    fake_controller_until(controller, both_ready, "both ranks are ready");
    assert_true(controller->ranks[0].ready && controller->ranks[0].pid > 0);
    fake_controller_start(controller, "job-1", 1);
    fake_controller_until(controller, both_finished, "both ranks finish");
    for (int rank = 0; rank < 2; rank++) {
        assert_true(controller->ranks[rank].finished_ok);
        assert_int_equal(controller->ranks[rank].step, 5);
        assert_int_equal(controller->ranks[rank].steps_heard, 5);
        assert_int_equal(controller->ranks[rank].spans_heard, 5);
        assert_int_equal(controller->ranks[rank].exit_status, 0);
        assert_int_equal(controller->ranks[rank].signal, 0);
    }
    assert_false(controller->keeper_lost);
    cluster_release(&cluster);
    cluster_close(&cluster);
}

static void the_profile_is_made_once_and_told(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "sleep", NULL);
    fake_controller_until(&cluster.controller, is_calibrated, "the agent calibrates");
    cluster_end_worker(&cluster);
    cluster.controller.has_profile = false;
    cluster.controller.heartbeats = 0;
    cluster.worker = cluster_start_worker(&cluster);
    fake_controller_until(&cluster.controller, is_connected, "the agent connects again");
    // The hello of its second life has it at once.
    assert_true(cluster.controller.has_profile);
    cluster_close(&cluster);
}

static bool calibration_failed(struct fake_controller *controller)
{
    return controller->calibration_error[0] != '\0';
}

static void a_calibration_that_fails_is_told_and_tried_again(void **state)
{
    (void)state;
    struct cluster cluster;
    struct dp_error err = {0};
    cluster_open(&cluster, "sleep", NULL);
    cluster_end_worker(&cluster);
    DP_AUTO_FREE char *profile = dp_asprintf("%s/profile.json", cluster.state_dir);
    (void)unlink(profile);
    DP_AUTO_FREE char *awaited = dp_asprintf("%s/awaited", cluster.directory);
    cluster.calibration = dp_asprintf("DP_FAKE_CALIBRATION=%s", awaited);
    cluster.worker = cluster_start_worker(&cluster);
    fake_controller_until(&cluster.controller, calibration_failed, "the failure is told");
    assert_false(cluster.controller.has_profile);
    assert_non_null(strstr(cluster.controller.calibration_error, "ended with status 5"));
    assert_ok(dp_write_file(awaited, "", 0, &err), &err);
    fake_controller_until(&cluster.controller, is_calibrated, "it is tried again");
    assert_string_equal(cluster.controller.calibration_error, "");
    assert_int_equal(access(profile, F_OK), 0);
    cluster_close(&cluster);
}

static void a_profile_of_an_older_form_is_made_again(void **state)
{
    (void)state;
    struct cluster cluster;
    struct dp_error err = {0};
    static const char *const old[] = {"", "[]", "{\"schema\": \"dp.profile/0\"}",
                                      "{\"schema\": \"dp.profile/1\", \"name\": \"cpu\"}"};
    cluster_open(&cluster, "sleep", NULL);
    DP_AUTO_FREE char *profile = dp_asprintf("%s/profile.json", cluster.state_dir);
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++) {
        cluster_end_worker(&cluster);
        assert_ok(dp_write_file(profile, old[i], strlen(old[i]), &err), &err);
        cluster.controller.hellos = 0;
        cluster.worker = cluster_start_worker(&cluster);
        fake_controller_until(&cluster.controller, has_hello, "the agent returns");
        fake_controller_until(&cluster.controller, is_calibrated, "the profile is made again");
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        assert_ok(dp_read_file(profile, 1 << 20, &text, &err), &err);
        assert_non_null(strstr(text.bytes, "gemm_flops_per_s"));
    }
    cluster_close(&cluster);
}

static bool both_told_again(struct fake_controller *controller)
{
    return controller->hellos > 0 && both_died(controller);
}

static bool rank_1_died(struct fake_controller *controller)
{
    return controller->ranks[1].phase == DP__V1__RANK_PHASE__RANK_DIED;
}

static void a_rank_that_is_killed_is_named_with_its_signal(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", NULL);
    cluster_run_two(&cluster);
    assert_int_equal(kill((pid_t)cluster.controller.ranks[1].pid, SIGKILL), 0);
    fake_controller_until(&cluster.controller, rank_1_died, "the death is told");
    assert_int_equal(cluster.controller.ranks[1].signal, SIGKILL);
    assert_int_equal(cluster.controller.ranks[0].phase, DP__V1__RANK_PHASE__RANK_RUNNING);
    fake_controller_stop(&cluster.controller, "job-1", 1, 20000);
    fake_controller_until(&cluster.controller, both_died, "the other rank is stopped");
    assert_int_equal(cluster.controller.ranks[0].signal, SIGTERM);
    // Which of the two is the cause is told, also by an agent that was not there.
    cluster_restart_after_kill(&cluster, NULL);
    fake_controller_until(&cluster.controller, both_told_again, "an agent that returns tells it");
    assert_true(cluster.controller.stopping && cluster.controller.ranks[0].stopped);
    assert_false(cluster.controller.ranks[1].stopped);
    cluster_release(&cluster);
    cluster_close(&cluster);
}

static void a_rank_that_ignores_the_polite_end_is_killed(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ignore-term ready start sleep", NULL);
    cluster_run_two(&cluster);
    fake_controller_stop(&cluster.controller, "job-1", 1, 50);
    fake_controller_until(&cluster.controller, both_died, "both ranks end");
    assert_int_equal(cluster.controller.ranks[0].signal, SIGKILL);
    cluster_release(&cluster);
    cluster_close(&cluster);
}

static bool watched_is_gone(struct fake_controller *controller)
{
    return !harness_exists(controller->watched);
}

static bool both_replaced(struct fake_controller *controller)
{
    return both_ready(controller) && controller->ranks[0].pid != controller->watched &&
           controller->ranks[1].pid != 0;
}

static bool is_refused(struct fake_controller *controller)
{
    return controller->refusal[0] != '\0';
}

static void a_prepare_that_cannot_be_obeyed_is_answered_with_the_reason(void **state)
{
    (void)state;
    struct cluster cluster;
    static const uint32_t twice[] = {1, 1};
    cluster_open(&cluster, "ready start finish exit=0", NULL);
    struct fake_controller *controller = &cluster.controller;
    fake_controller_prepare(controller, "job-1", 1, twice, 2);
    fake_controller_until(controller, is_refused, "the order that makes no sense is refused");
    assert_string_equal(controller->refusal, "rank 1 is named twice");
    controller->refusal[0] = '\0';
    controller->bad_plans = true;
    fake_controller_prepare(controller, "job-1", 1, two_ranks, 2);
    fake_controller_until(controller, is_refused, "the plan that makes no sense is refused");
    assert_non_null(strstr(controller->refusal, "Plan.layer_begin has 2 entries for 2 stages"));
    controller->bad_plans = false;
    // What was released may be meant by a controller that has lost its memory.
    cluster_run_two(&cluster);
    fake_controller_until(controller, both_finished, "both ranks finish");
    cluster_release(&cluster);
    DP_AUTO_FREE char *directory = dp_asprintf("%s/jobs/job-1.1.1", cluster.state_dir);
    for (int life = 0; life < 2; life++) {
        controller->refusal[0] = '\0';
        fake_controller_prepare(controller, "job-1", 1, two_ranks, 2);
        fake_controller_until(controller, is_refused, "a fence that was here is refused");
        assert_non_null(strstr(controller->refusal, "released"));
        assert_non_null(strstr(controller->refusal, directory));
        cluster_restart_after_kill(&cluster, NULL);
        controller->heartbeats = 0;
        fake_controller_until(controller, is_connected, "the agent returns");
    }
    cluster_close(&cluster);
}

static void an_older_epoch_is_refused_and_a_newer_one_replaces(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", NULL);
    struct fake_controller *controller = &cluster.controller;
    fake_controller_prepare(controller, "job-1", 2, two_ranks, 2);
    fake_controller_until(controller, both_ready, "epoch 2 is ready");
    pid_t pid = (pid_t)controller->ranks[0].pid;
    fake_controller_prepare(controller, "job-1", 1, two_ranks, 2);
    controller->heartbeats = 0;
    fake_controller_until(controller, is_connected, "the agent goes on");
    fake_controller_until(controller, is_refused, "the reason is told");
    assert_int_equal(controller->refused_epoch, 1);
    assert_non_null(strstr(controller->refusal, "older than attempt 1 epoch 2"));
    assert_int_equal(controller->assignments, 1);
    assert_true(harness_exists(pid));
    DP_AUTO_FREE char *refused = dp_asprintf("%s/jobs/job-1.1.1", cluster.state_dir);
    assert_int_equal(access(refused, F_OK), -1);
    fake_controller_prepare(controller, "job-1", 3, two_ranks, 2);
    controller->watched = pid;
    fake_controller_until(controller, watched_is_gone, "the older rank ends");
    fake_controller_release(controller, "job-1", 2);
    fake_controller_until(controller, both_replaced, "epoch 3 is ready");
    fake_controller_release(controller, "job-1", 3);
    fake_controller_until(controller, holds_nothing, "nothing is left");
    cluster_close(&cluster);
}

static bool log_has_ended(struct fake_controller *controller)
{
    return controller->log_end || controller->log_error[0] != '\0';
}

static bool log_answered(struct fake_controller *controller)
{
    return controller->log_answers > 0;
}

static void a_rank_s_output_is_read_while_it_runs_and_after_its_release(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready print=hello start print=bye finish exit=0", NULL);
    struct fake_controller *controller = &cluster.controller;
    fake_controller_prepare(controller, "job-1", 1, two_ranks, 2);
    fake_controller_until(controller, both_ready, "both ranks are ready");
    fake_controller_start(controller, "job-1", 1);
    fake_controller_until(controller, both_finished, "both ranks finish");
    cluster_release(&cluster);
    while (!log_has_ended(controller)) {
        controller->log_answers = 0;
        fake_controller_read_log(controller, "job-1", 1, 1);
        fake_controller_until(controller, log_answered, "output is read");
    }
    assert_string_equal(controller->log.bytes, "hello\nbye\n");
    controller->log_answers = 0;
    fake_controller_read_log(controller, "job-7", 1, 1);
    fake_controller_until(controller, log_answered, "a job that never was is answered");
    assert_non_null(strstr(controller->log_error, "job-7"));
    cluster_close(&cluster);
}

// The agent starts again, with other programs; what it then says of a job's ranks.
static void prepare_with_programs(struct cluster *cluster, const char *rank, const char *keeper)
{
    cluster_open(cluster, "sleep", NULL);
    cluster_end_worker(cluster);
    DP_AUTO_FREE char *controller = dp_asprintf("@%s", cluster->address_file);
    char *arguments[] = {
        (char *)DP_WORKER, (char *)"--state-dir",      cluster->state_dir, (char *)"--name",
        (char *)"node-a",  (char *)"--controller",     controller,         (char *)"--rank-program",
        (char *)rank,      (char *)"--keeper-program", (char *)keeper,     NULL,
    };
    cluster->controller.heartbeats = 0;
    cluster->worker = harness_start(arguments, NULL);
    fake_controller_until(&cluster->controller, is_connected, "the agent connects again");
    fake_controller_prepare(&cluster->controller, "job-1", 1, two_ranks, 2);
    fake_controller_until(&cluster->controller, both_died, "the failure is told");
}

static void a_program_that_cannot_start_is_named(void **state)
{
    (void)state;
    struct cluster cluster;
    prepare_with_programs(&cluster, "/nonexistent/dp-rank", DP_KEEPER);
    assert_non_null(strstr(cluster.controller.error, "/nonexistent/dp-rank"));
    cluster_release(&cluster);
    cluster_close(&cluster);
}

// It has ended well, and no rank with it: nothing was lost.
static void a_keeper_that_was_never_reached_is_a_node_that_cannot_start_ranks(void **state)
{
    (void)state;
    struct cluster cluster;
    prepare_with_programs(&cluster, DP_FAKE_RANK, "/bin/true");
    assert_non_null(strstr(cluster.controller.error, "before it was reached"));
    assert_false(cluster.controller.keeper_lost);
    fake_controller_release(&cluster.controller, "job-1", 1);
    cluster.controller.heartbeats = 0;
    fake_controller_until(&cluster.controller, holds_nothing, "the assignment is forgotten");
    cluster_close(&cluster);
}

static void a_second_agent_on_the_same_directory_says_so_and_exits(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "sleep", NULL);
    int status = harness_wait(cluster_start_worker(&cluster));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 6);
    cluster_close(&cluster);
}

static void told_to_take_its_ranks_along_an_agent_leaves_nothing(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", "--kill-ranks-on-exit");
    cluster_run_two(&cluster);
    pid_t keeper = cluster_keeper_pid(&cluster, "job-1.1.1");
    pid_t rank = (pid_t)cluster.controller.ranks[0].pid;
    cluster_end_worker(&cluster);
    assert_false(harness_exists(keeper));
    assert_false(harness_exists(rank));
    cluster_close(&cluster);
}

static void a_controller_of_another_protocol_is_not_obeyed(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready sleep", NULL);
    struct fake_controller *controller = &cluster.controller;
    controller->protocol = 99;
    controller->hellos = 0;
    controller->heartbeats = 0;
    assert_int_equal(kill(cluster.worker, SIGKILL), 0);
    (void)harness_wait(cluster.worker);
    cluster.worker = cluster_start_worker(&cluster);
    fake_controller_until(controller, has_hello, "the agent says hello");
    fake_controller_prepare(controller, "job-1", 1, two_ranks, 2);
    // It leaves and tries again, in case the controller is replaced.
    controller->protocol = DP_PROTOCOL_VERSION;
    fake_controller_until(controller, is_connected, "the agent connects to the right one");
    assert_int_equal(controller->assignments, 0);
    DP_AUTO_FREE char *directory = dp_asprintf("%s/jobs/job-1.1.1", cluster.state_dir);
    assert_int_equal(access(directory, F_OK), -1);
    cluster_close(&cluster);
}

static size_t count_descriptors(pid_t pid)
{
    DP_AUTO_FREE char *path = dp_asprintf("/proc/%d/fd", (int)pid);
    size_t count = 0;
    DIR *listing = opendir(path);
    assert_non_null(listing);
    while (readdir(listing) != NULL) {
        count++;
    }
    closedir(listing);
    return count;
}

static bool same_descriptors(struct fake_controller *controller)
{
    return count_descriptors(controller->watched) == controller->watched_count;
}

static void jobs_that_come_and_go_leave_no_descriptor_behind(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start finish exit=0", NULL);
    struct fake_controller *controller = &cluster.controller;
    fake_controller_until(controller, is_calibrated, "the agent calibrates");
    controller->watched = cluster.worker;
    controller->watched_count = count_descriptors(cluster.worker);
    for (uint32_t epoch = 1; epoch <= 5; epoch++) {
        memset(controller->ranks, 0, sizeof controller->ranks);
        fake_controller_prepare(controller, "job-1", epoch, two_ranks, 2);
        fake_controller_until(controller, both_ready, "both ranks are ready");
        fake_controller_start(controller, "job-1", epoch);
        fake_controller_until(controller, both_finished, "both ranks finish");
        fake_controller_release(controller, "job-1", epoch);
        controller->heartbeats = 0;
        fake_controller_until(controller, holds_nothing, "the assignment is forgotten");
        fake_controller_until(controller, same_descriptors, "all descriptors are closed");
    }
    cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_is_prepared_started_finished_and_released),
        cmocka_unit_test(the_profile_is_made_once_and_told),
        cmocka_unit_test(a_calibration_that_fails_is_told_and_tried_again),
        cmocka_unit_test(a_profile_of_an_older_form_is_made_again),
        cmocka_unit_test(a_rank_that_is_killed_is_named_with_its_signal),
        cmocka_unit_test(a_rank_that_ignores_the_polite_end_is_killed),
        cmocka_unit_test(an_older_epoch_is_refused_and_a_newer_one_replaces),
        cmocka_unit_test(a_prepare_that_cannot_be_obeyed_is_answered_with_the_reason),
        cmocka_unit_test(a_rank_s_output_is_read_while_it_runs_and_after_its_release),
        cmocka_unit_test(a_program_that_cannot_start_is_named),
        cmocka_unit_test(a_keeper_that_was_never_reached_is_a_node_that_cannot_start_ranks),
        cmocka_unit_test(a_second_agent_on_the_same_directory_says_so_and_exits),
        cmocka_unit_test(told_to_take_its_ranks_along_an_agent_leaves_nothing),
        cmocka_unit_test(a_controller_of_another_protocol_is_not_obeyed),
        cmocka_unit_test(jobs_that_come_and_go_leave_no_descriptor_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
