// Agents that come and go, and processes that do not go when they should.
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster.h"
#include "dp/alloc.h"
#include "dp_test.h"

#define RESTARTS 50

static bool both_train(struct fake_controller *controller)
{
    return controller->hellos > 0 && both_running(controller) &&
           controller->ranks[0].step > controller->watched_count &&
           controller->ranks[1].step > controller->watched_count;
}

static void fifty_restarts_of_an_agent_leave_the_same_processes(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start train", NULL);
    struct fake_controller *controller = &cluster.controller;
    cluster_run_two(&cluster);
    int64_t pids[] = {controller->ranks[0].pid, controller->ranks[1].pid};
    for (int life = 0; life < RESTARTS; life++) {
        cluster_restart_after_kill(&cluster, NULL);
        fake_controller_until(controller, both_train, "the ranks are adopted, and have trained on");
        assert_int_equal(controller->ranks[0].pid, pids[0]);
        assert_int_equal(controller->ranks[1].pid, pids[1]);
        controller->watched_count = (size_t)controller->ranks[0].step;
    }
    assert_false(controller->keeper_lost || controller->stopping);
    cluster_release(&cluster);
    cluster_close(&cluster);
}

static void kill_rank_1(struct cluster *cluster)
{
    assert_int_equal(kill((pid_t)cluster->controller.ranks[1].pid, SIGKILL), 0);
    harness_wait_gone((pid_t)cluster->controller.ranks[1].pid);
}

static void a_rank_that_dies_while_the_agent_is_away_is_told(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start train", NULL);
    struct fake_controller *controller = &cluster.controller;
    cluster_run_two(&cluster);
    int64_t pid = controller->ranks[0].pid;
    cluster_restart_after_kill(&cluster, kill_rank_1);
    fake_controller_until(controller, has_hello, "the agent returns");
    // Its first word has it: nobody has to wait for more.
    assert_int_equal(controller->ranks[1].phase, DP__V1__RANK_PHASE__RANK_DIED);
    assert_int_equal(controller->ranks[1].signal, SIGKILL);
    assert_false(controller->ranks[1].stopped || controller->keeper_lost);
    assert_int_equal(controller->ranks[0].phase, DP__V1__RANK_PHASE__RANK_RUNNING);
    assert_int_equal(controller->ranks[0].pid, pid);
    cluster_release(&cluster);
    cluster_close(&cluster);
}

static bool rank_0_is_unkillable(struct fake_controller *controller)
{
    return controller->ranks[0].unkillable;
}

static bool holds_one(struct fake_controller *controller)
{
    return controller->heartbeats > 0 && controller->assignments == 1;
}

static bool others_are_ready(struct fake_controller *controller)
{
    return controller->ranks[2].ready && controller->ranks[3].ready;
}

static void a_rank_that_cannot_be_killed_is_told_and_hangs_nobody(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", "--unkillable-ms=300");
    struct fake_controller *controller = &cluster.controller;
    cluster_run_two(&cluster);
    pid_t pid = (pid_t)controller->ranks[0].pid;
    // Whoever traces a process keeps its end from everybody else until it has looked.
    if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) != 0) {
        assert_int_equal(errno, EPERM);
        cluster_release(&cluster);
        cluster_close(&cluster);
        skip();
    }
    fake_controller_stop(controller, "job-1", 1, 0);
    fake_controller_until(controller, rank_0_is_unkillable, "it is told");
    assert_non_null(strstr(controller->error, "UNKILLABLE: rank 0 (process"));
    assert_false(controller->ranks[1].unkillable);
    assert_int_equal(controller->ranks[0].phase, DP__V1__RANK_PHASE__RANK_RUNNING);
    // The agent goes on working, also after a restart.
    const uint32_t others[2] = {2, 3};
    fake_controller_prepare(controller, "job-2", 1, others, 2);
    fake_controller_until(controller, others_are_ready, "another job gets ready");
    fake_controller_release(controller, "job-2", 1);
    controller->heartbeats = 0;
    fake_controller_until(controller, holds_one, "it is let go");
    cluster_restart_after_kill(&cluster, NULL);
    fake_controller_until(controller, has_hello, "the agent returns");
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    fake_controller_until(controller, both_died, "what held it has let go");
    assert_int_equal(controller->ranks[0].signal, SIGKILL);
    cluster_release(&cluster);
    cluster_close(&cluster);
}

static bool both_are_stopping(struct fake_controller *controller)
{
    return controller->stopping;
}

static void an_agent_that_stood_still_hears_of_ends_before_it_misses_them(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ignore-term ready start sleep", "--unkillable-ms=1");
    struct fake_controller *controller = &cluster.controller;
    cluster_run_two(&cluster);
    const pid_t pids[] = {(pid_t)controller->ranks[0].pid, (pid_t)controller->ranks[1].pid};
    fake_controller_stop(controller, "job-1", 1, 4000);
    fake_controller_until(controller, both_are_stopping, "the ranks are told to end");
    assert_int_equal(kill(cluster.worker, SIGSTOP), 0);
    // Their keeper kills them after the grace; a moment later they would count as unkillable.
    harness_wait_gone(pids[0]);
    harness_wait_gone(pids[1]);
    assert_int_equal(kill(cluster.worker, SIGCONT), 0);
    fake_controller_until(controller, both_died, "the agent tells their end");
    assert_false(controller->ranks[0].was_unkillable || controller->ranks[1].was_unkillable);
    cluster_release(&cluster);
    cluster_close(&cluster);
}

static void only_its_own_keeper_is_killed_whatever_number_a_file_holds(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", NULL);
    struct fake_controller *controller = &cluster.controller;
    cluster_run_two(&cluster);
    pid_t keeper = cluster_keeper_pid(&cluster, "job-1.1.1");
    char *arguments[] = {(char *)"/bin/sleep", (char *)"600", NULL};
    pid_t stranger = harness_start(arguments, NULL);
    DP_AUTO_FREE char *path = dp_asprintf("%s/jobs/job-1.1.1/keeper.pid", cluster.state_dir);
    DP_AUTO_FREE char *number = dp_asprintf("%d\n", (int)stranger);
    // In place: the keeper holds its lock on this very file.
    FILE *file = fopen(path, "r+e");
    assert_non_null(file);
    assert_true(fputs(number, file) >= 0);
    assert_int_equal(fclose(file), 0);
    // One that was started by the agent's life before is known by what lies in its directory.
    cluster_restart_after_kill(&cluster, NULL);
    fake_controller_until(controller, has_hello, "the agent returns");
    assert_int_equal(kill(keeper, SIGSTOP), 0);
    fake_controller_stop(controller, "job-1", 1, 100);
    fake_controller_until(controller, both_died, "the keeper is killed at last");
    harness_wait_gone(keeper);
    assert_true(harness_exists(stranger));
    assert_int_equal(kill(stranger, SIGKILL), 0);
    assert_int_equal(WTERMSIG(harness_wait(stranger)), SIGKILL);
    fake_controller_release(controller, "job-1", 1);
    controller->heartbeats = 0;
    fake_controller_until(controller, holds_nothing, "the assignment is forgotten");
    cluster_close(&cluster);
}

static bool sixty_heartbeats(struct fake_controller *controller)
{
    return controller->heartbeats >= 60;
}

static void heartbeats_come_as_often_as_an_answer_asks(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "sleep", NULL);
    struct fake_controller *controller = &cluster.controller;
    cluster_end_worker(&cluster);
    // At the first period alone, sixty would take longer than anything may here.
    controller->welcome_ms = 3000;
    controller->ack_ms = 100;
    controller->hellos = controller->heartbeats = 0;
    cluster.worker = cluster_start_worker(&cluster);
    fake_controller_until(controller, has_hello, "the agent returns");
    fake_controller_until(controller, sixty_heartbeats, "heartbeats come more often");
    cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fifty_restarts_of_an_agent_leave_the_same_processes),
        cmocka_unit_test(a_rank_that_dies_while_the_agent_is_away_is_told),
        cmocka_unit_test(a_rank_that_cannot_be_killed_is_told_and_hangs_nobody),
        cmocka_unit_test(an_agent_that_stood_still_hears_of_ends_before_it_misses_them),
        cmocka_unit_test(only_its_own_keeper_is_killed_whatever_number_a_file_holds),
        cmocka_unit_test(heartbeats_come_as_often_as_an_answer_asks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
