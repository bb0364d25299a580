// The agent and its keepers as they run, against a controller in this process.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp_test.h"
#include "fake_controller.h"
#include "harness.h"

struct cluster {
    struct fake_controller controller;
    char *directory; // of everything
    char *state_dir;
    char *address_file;
    char *script;     // DP_FAKE_RANK=...
    const char *mode; // an extra option, or NULL
    size_t damage;    // where, in eighths of the file
    pid_t worker;
};

static void write_address(const struct cluster *cluster)
{
    struct dp_error err = {0};
    DP_AUTO_FREE char *line = dp_asprintf("%s\n", fake_controller_address(&cluster->controller));
    assert_ok(dp_write_file(cluster->address_file, line, strlen(line), &err), &err);
}

static pid_t start_worker(const struct cluster *cluster)
{
    DP_AUTO_FREE char *controller = dp_asprintf("@%s", cluster->address_file);
    char *arguments[] = {
        (char *)DP_WORKER,
        (char *)"--state-dir",
        cluster->state_dir,
        (char *)"--name",
        (char *)"node-a",
        (char *)"--controller",
        controller,
        (char *)"--rank-program",
        (char *)DP_FAKE_RANK,
        (char *)"--keeper-program",
        (char *)DP_KEEPER,
        (char *)"--slots",
        (char *)"4",
        (char *)cluster->mode,
        NULL,
    };
    char *environment[] = {cluster->script, (char *)"DP_LOG=warn", NULL};
    return harness_start(arguments, environment);
}

static bool is_connected(struct fake_controller *controller)
{
    return controller->call != 0 && controller->heartbeats > 0;
}

static void cluster_open(struct cluster *cluster, const char *script, const char *mode)
{
    *cluster = (struct cluster){.directory = harness_directory(), .mode = mode};
    cluster->state_dir = dp_asprintf("%s/state", cluster->directory);
    cluster->address_file = dp_asprintf("%s/address", cluster->directory);
    cluster->script = dp_asprintf("DP_FAKE_RANK=%s", script);
    fake_controller_open(&cluster->controller, "127.0.0.1:0");
    write_address(cluster);
    cluster->worker = start_worker(cluster);
    fake_controller_until(&cluster->controller, is_connected, "the agent connects");
}

static void end_worker(struct cluster *cluster)
{
    assert_int_equal(kill(cluster->worker, SIGTERM), 0);
    int status = harness_wait(cluster->worker);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    cluster->worker = 0;
}

static pid_t keeper_pid(const struct cluster *cluster, const char *name)
{
    struct dp_error err = {0};
    DP_AUTO_FREE char *path = dp_asprintf("%s/jobs/%s/keeper.pid", cluster->state_dir, name);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    assert_ok(dp_read_file(path, 100, &text, &err), &err);
    return (pid_t)atoi(text.bytes);
}

static void cluster_close(struct cluster *cluster)
{
    if (cluster->worker > 0) {
        end_worker(cluster);
    }
    fake_controller_close(&cluster->controller);
    harness_remove(cluster->directory);
    free(cluster->directory);
    free(cluster->state_dir);
    free(cluster->address_file);
    free(cluster->script);
}

static const uint32_t two_ranks[] = {0, 1};

static bool both_in(struct fake_controller *controller, Dp__V1__RankPhase phase)
{
    return controller->ranks[0].phase == phase && controller->ranks[1].phase == phase;
}

static bool both_ready(struct fake_controller *controller)
{
    return both_in(controller, DP__V1__RANK_PHASE__RANK_READY);
}

static bool both_running(struct fake_controller *controller)
{
    return both_in(controller, DP__V1__RANK_PHASE__RANK_RUNNING);
}

static bool both_finished(struct fake_controller *controller)
{
    return both_in(controller, DP__V1__RANK_PHASE__RANK_FINISHED);
}

static bool both_died(struct fake_controller *controller)
{
    return both_in(controller, DP__V1__RANK_PHASE__RANK_DIED);
}

static bool holds_nothing(struct fake_controller *controller)
{
    return controller->assignments == 0 && controller->heartbeats > 0;
}

// Prepares and starts ranks 0 and 1 of job-1 and waits until both run.
static void run_two(struct cluster *cluster)
{
    fake_controller_prepare(&cluster->controller, "job-1", 1, two_ranks, 2);
    fake_controller_until(&cluster->controller, both_ready, "both ranks are ready");
    fake_controller_start(&cluster->controller, "job-1", 1);
    fake_controller_until(&cluster->controller, both_running, "both ranks run");
}

static void release(struct cluster *cluster)
{
    pid_t keeper = keeper_pid(cluster, "job-1.1.1");
    fake_controller_release(&cluster->controller, "job-1", 1);
    cluster->controller.heartbeats = 0;
    fake_controller_until(&cluster->controller, holds_nothing, "the assignment is forgotten");
    harness_wait_gone(keeper);
}

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
    release(&cluster);
    cluster_close(&cluster);
}

static bool is_calibrated(struct fake_controller *controller)
{
    return controller->has_profile;
}

static void the_profile_is_made_once_and_told(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "sleep", NULL);
    fake_controller_until(&cluster.controller, is_calibrated, "the agent calibrates");
    end_worker(&cluster);
    cluster.controller.has_profile = false;
    cluster.controller.heartbeats = 0;
    cluster.worker = start_worker(&cluster);
    fake_controller_until(&cluster.controller, is_connected, "the agent connects again");
    // The hello of its second life has it at once.
    assert_true(cluster.controller.has_profile);
    cluster_close(&cluster);
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
    run_two(&cluster);
    assert_int_equal(kill((pid_t)cluster.controller.ranks[1].pid, SIGKILL), 0);
    fake_controller_until(&cluster.controller, rank_1_died, "the death is told");
    assert_int_equal(cluster.controller.ranks[1].signal, SIGKILL);
    assert_int_equal(cluster.controller.ranks[0].phase, DP__V1__RANK_PHASE__RANK_RUNNING);
    fake_controller_stop(&cluster.controller, "job-1", 1, 20000);
    fake_controller_until(&cluster.controller, both_died, "the other rank is stopped");
    assert_int_equal(cluster.controller.ranks[0].signal, SIGTERM);
    release(&cluster);
    cluster_close(&cluster);
}

static void a_rank_that_ignores_the_polite_end_is_killed(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ignore-term ready start sleep", NULL);
    run_two(&cluster);
    fake_controller_stop(&cluster.controller, "job-1", 1, 50);
    fake_controller_until(&cluster.controller, both_died, "both ranks end");
    assert_int_equal(cluster.controller.ranks[0].signal, SIGKILL);
    release(&cluster);
    cluster_close(&cluster);
}

static bool keeper_is_lost(struct fake_controller *controller)
{
    return controller->keeper_lost && both_died(controller);
}

static void a_keeper_that_is_killed_takes_its_ranks_and_is_told(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", NULL);
    run_two(&cluster);
    assert_int_equal(kill(keeper_pid(&cluster, "job-1.1.1"), SIGKILL), 0);
    fake_controller_until(&cluster.controller, keeper_is_lost, "the loss is told");
    assert_int_equal(cluster.controller.keeper_signal, SIGKILL);
    for (int rank = 0; rank < 2; rank++) {
        harness_wait_gone((pid_t)cluster.controller.ranks[rank].pid);
    }
    release(&cluster);
    cluster_close(&cluster);
}

static bool both_adopted(struct fake_controller *controller)
{
    return controller->hellos > 0 && both_running(controller) && controller->ranks[0].step == 3 &&
           controller->ranks[1].step == 3;
}

// Kills the agent and starts it again; meanwhile() looks after its files, when given.
static void restart_after_kill(struct cluster *cluster, void (*meanwhile)(struct cluster *cluster))
{
    assert_int_equal(kill(cluster->worker, SIGKILL), 0);
    (void)harness_wait(cluster->worker);
    if (meanwhile != NULL) {
        meanwhile(cluster);
    }
    cluster->controller.hellos = 0;
    cluster->worker = start_worker(cluster);
}

static void an_agent_that_is_killed_adopts_its_ranks_when_it_returns(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start steps=3 sleep", NULL);
    struct fake_controller *controller = &cluster.controller;
    run_two(&cluster);
    pid_t pids[] = {(pid_t)controller->ranks[0].pid, (pid_t)controller->ranks[1].pid};
    for (int life = 0; life < 5; life++) {
        restart_after_kill(&cluster, NULL);
        fake_controller_until(controller, both_adopted, "the ranks are adopted");
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(controller->ranks[rank].pid, pids[rank]);
            assert_true(controller->ranks[rank].ready);
        }
    }
    fake_controller_stop(controller, "job-1", 1, 20000);
    fake_controller_until(controller, both_died, "the ranks are stopped");
    release(&cluster);
    cluster_close(&cluster);
}

static bool has_hello(struct fake_controller *controller)
{
    return controller->hellos > 0;
}

static bool both_resent(struct fake_controller *controller)
{
    return both_running(controller) && controller->ranks[0].steps_heard == 7 &&
           controller->ranks[1].steps_heard == 7;
}

static void a_controller_that_returns_elsewhere_finds_the_job_running(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start steps=7 sleep", NULL);
    run_two(&cluster);
    pid_t pid = (pid_t)cluster.controller.ranks[0].pid;
    fake_controller_close(&cluster.controller);
    fake_controller_open(&cluster.controller, "127.0.0.1:0");
    write_address(&cluster);
    fake_controller_until(&cluster.controller, has_hello, "the agent finds the new address");
    fake_controller_until(&cluster.controller, both_resent, "levels and steps are sent again");
    assert_int_equal(cluster.controller.ranks[0].pid, pid);
    assert_int_equal(cluster.controller.ranks[0].spans_heard, 0);
    fake_controller_stop(&cluster.controller, "job-1", 1, 20000);
    fake_controller_until(&cluster.controller, both_died, "the ranks are stopped");
    release(&cluster);
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
    release(&cluster);
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

static void a_program_that_cannot_start_is_named(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "sleep", NULL);
    end_worker(&cluster);
    DP_AUTO_FREE char *controller = dp_asprintf("@%s", cluster.address_file);
    char *arguments[] = {
        (char *)DP_WORKER,
        (char *)"--state-dir",
        cluster.state_dir,
        (char *)"--name",
        (char *)"node-a",
        (char *)"--controller",
        controller,
        (char *)"--rank-program",
        (char *)"/nonexistent/dp-rank",
        (char *)"--keeper-program",
        (char *)DP_KEEPER,
        NULL,
    };
    cluster.controller.heartbeats = 0;
    cluster.worker = harness_start(arguments, NULL);
    fake_controller_until(&cluster.controller, is_connected, "the agent connects again");
    fake_controller_prepare(&cluster.controller, "job-1", 1, two_ranks, 2);
    fake_controller_until(&cluster.controller, both_died, "the failure is told");
    assert_non_null(strstr(cluster.controller.error, "/nonexistent/dp-rank"));
    release(&cluster);
    cluster_close(&cluster);
}

static void a_second_agent_on_the_same_directory_says_so_and_exits(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "sleep", NULL);
    int status = harness_wait(start_worker(&cluster));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 6);
    cluster_close(&cluster);
}

static void told_to_take_its_ranks_along_an_agent_leaves_nothing(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", "--kill-ranks-on-exit");
    run_two(&cluster);
    pid_t keeper = keeper_pid(&cluster, "job-1.1.1");
    pid_t rank = (pid_t)cluster.controller.ranks[0].pid;
    end_worker(&cluster);
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
    cluster.worker = start_worker(&cluster);
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

static void the_ranks_of_an_agent_that_stays_away_end_and_it_says_so_later(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start steps=3 sleep", "--lease-ms=500");
    struct fake_controller *controller = &cluster.controller;
    run_two(&cluster);
    pid_t keeper = keeper_pid(&cluster, "job-1.1.1");
    assert_int_equal(kill(cluster.worker, SIGKILL), 0);
    (void)harness_wait(cluster.worker);
    harness_wait_gone(keeper);
    harness_wait_gone((pid_t)controller->ranks[0].pid);
    controller->hellos = 0;
    cluster.worker = start_worker(&cluster);
    fake_controller_until(controller, has_hello, "the agent returns");
    fake_controller_until(controller, both_died, "the ends are told");
    assert_int_equal(controller->ranks[0].signal, SIGTERM);
    assert_int_equal(controller->ranks[0].step, 3);
    // Nobody was lost: the keeper did what it is for.
    assert_false(controller->keeper_lost);
    fake_controller_release(controller, "job-1", 1);
    controller->heartbeats = 0;
    fake_controller_until(controller, holds_nothing, "the assignment is forgotten");
    cluster_close(&cluster);
}

static void alone_too_long_an_agent_ends_its_ranks(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", "--orphan-ms=200");
    run_two(&cluster);
    pid_t pids[] = {(pid_t)cluster.controller.ranks[0].pid, (pid_t)cluster.controller.ranks[1].pid};
    fake_controller_close(&cluster.controller);
    harness_wait_gone(pids[0]);
    harness_wait_gone(pids[1]);
    fake_controller_open(&cluster.controller, "127.0.0.1:0");
    write_address(&cluster);
    fake_controller_until(&cluster.controller, both_died, "the agent tells why");
    assert_non_null(strstr(cluster.controller.error, "out of reach"));
    release(&cluster);
    cluster_close(&cluster);
}

static void spoil_levels(struct cluster *cluster)
{
    struct dp_error err = {0};
    pid_t keeper = keeper_pid(cluster, "job-1.1.1");
    assert_int_equal(kill(keeper, SIGKILL), 0);
    harness_wait_gone(keeper);
    DP_AUTO_FREE char *path = dp_asprintf("%s/jobs/job-1.1.1/keeper.levels", cluster->state_dir);
    assert_ok(dp_write_file(path, "\xff\xff\xff\xff not frames", 15, &err), &err);
    DP_AUTO_FREE char *profile = dp_asprintf("%s/profile.json", cluster->state_dir);
    assert_ok(dp_write_file(profile, "{", 1, &err), &err);
}

static void files_that_are_damaged_while_it_is_away_stop_no_agent(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", NULL);
    run_two(&cluster);
    restart_after_kill(&cluster, spoil_levels);
    fake_controller_until(&cluster.controller, has_hello, "the agent returns");
    fake_controller_until(&cluster.controller, keeper_is_lost, "the loss is told");
    fake_controller_until(&cluster.controller, is_calibrated, "the profile is made again");
    release(&cluster);
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

// Flips one byte of the assignment's file, or cuts the file there.
static void damage(struct cluster *cluster)
{
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf file = {0};
    DP_AUTO_FREE char *path = dp_asprintf("%s/jobs/job-1.1.1/assignment", cluster->state_dir);
    assert_ok(dp_read_file(path, 1 << 20, &file, &err), &err);
    size_t at = cluster->damage * file.length / 8;
    bool cut = cluster->damage % 2 == 1;
    file.bytes[at] = (char)(file.bytes[at] ^ 0x40);
    assert_ok(dp_write_file(path, file.bytes, cut ? at : file.length, &err), &err);
}

static void a_damaged_assignment_file_is_put_aside_and_the_ranks_are_kept(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start steps=3 sleep", NULL);
    run_two(&cluster);
    pid_t pid = (pid_t)cluster.controller.ranks[0].pid;
    DP_AUTO_FREE char *aside =
        dp_asprintf("%s/jobs/job-1.1.1/assignment.corrupt", cluster.state_dir);
    DP_AUTO_FREE char *file = dp_asprintf("%s/jobs/job-1.1.1/assignment", cluster.state_dir);
    for (cluster.damage = 0; cluster.damage < 8; cluster.damage++) {
        restart_after_kill(&cluster, damage);
        fake_controller_until(&cluster.controller, both_adopted, "the ranks are adopted");
        assert_int_equal(cluster.controller.ranks[0].pid, pid);
        // Damaged as it is, the next round damages it further.
        assert_int_equal(rename(aside, file), 0);
    }
    release(&cluster);
    cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_is_prepared_started_finished_and_released),
        cmocka_unit_test(the_profile_is_made_once_and_told),
        cmocka_unit_test(a_rank_that_is_killed_is_named_with_its_signal),
        cmocka_unit_test(a_rank_that_ignores_the_polite_end_is_killed),
        cmocka_unit_test(a_keeper_that_is_killed_takes_its_ranks_and_is_told),
        cmocka_unit_test(an_agent_that_is_killed_adopts_its_ranks_when_it_returns),
        cmocka_unit_test(a_controller_that_returns_elsewhere_finds_the_job_running),
        cmocka_unit_test(an_older_epoch_is_refused_and_a_newer_one_replaces),
        cmocka_unit_test(a_rank_s_output_is_read_while_it_runs_and_after_its_release),
        cmocka_unit_test(a_program_that_cannot_start_is_named),
        cmocka_unit_test(a_second_agent_on_the_same_directory_says_so_and_exits),
        cmocka_unit_test(told_to_take_its_ranks_along_an_agent_leaves_nothing),
        cmocka_unit_test(a_controller_of_another_protocol_is_not_obeyed),
        cmocka_unit_test(the_ranks_of_an_agent_that_stays_away_end_and_it_says_so_later),
        cmocka_unit_test(alone_too_long_an_agent_ends_its_ranks),
        cmocka_unit_test(files_that_are_damaged_while_it_is_away_stop_no_agent),
        cmocka_unit_test(jobs_that_come_and_go_leave_no_descriptor_behind),
        cmocka_unit_test(a_damaged_assignment_file_is_put_aside_and_the_ranks_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
