#include "cluster.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp_test.h"

void cluster_write_address(const struct cluster *cluster)
{
    struct dp_error err = {0};
    DP_AUTO_FREE char *line = dp_asprintf("%s\n", fake_controller_address(&cluster->controller));
    assert_ok(dp_write_file(cluster->address_file, line, strlen(line), &err), &err);
}

pid_t cluster_start_worker(const struct cluster *cluster)
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
    char *environment[] = {cluster->script, (char *)"DP_LOG=warn", cluster->calibration, NULL};
    return harness_start(arguments, environment);
}

bool is_connected(struct fake_controller *controller)
{
    return controller->call != 0 && controller->heartbeats > 0;
}

void cluster_open(struct cluster *cluster, const char *script, const char *mode)
{
    *cluster = (struct cluster){.directory = harness_directory(), .mode = mode};
    cluster->state_dir = dp_asprintf("%s/state", cluster->directory);
    cluster->address_file = dp_asprintf("%s/address", cluster->directory);
    cluster->script = dp_asprintf("DP_FAKE_RANK=%s", script);
    fake_controller_open(&cluster->controller, "127.0.0.1:0");
    cluster_write_address(cluster);
    cluster->worker = cluster_start_worker(cluster);
    fake_controller_until(&cluster->controller, is_connected, "the agent connects");
}

void cluster_end_worker(struct cluster *cluster)
{
    assert_int_equal(kill(cluster->worker, SIGTERM), 0);
    int status = harness_wait(cluster->worker);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    cluster->worker = 0;
}

pid_t cluster_keeper_pid(const struct cluster *cluster, const char *name)
{
    struct dp_error err = {0};
    DP_AUTO_FREE char *path = dp_asprintf("%s/jobs/%s/keeper.pid", cluster->state_dir, name);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    assert_ok(dp_read_file(path, 100, &text, &err), &err);
    return (pid_t)atoi(text.bytes);
}

void cluster_close(struct cluster *cluster)
{
    if (cluster->worker > 0) {
        cluster_end_worker(cluster);
    }
    fake_controller_close(&cluster->controller);
    harness_remove(cluster->directory);
    free(cluster->directory);
    free(cluster->state_dir);
    free(cluster->address_file);
    free(cluster->script);
    free(cluster->calibration);
}

const uint32_t two_ranks[2] = {0, 1};

static bool both_in(struct fake_controller *controller, Dp__V1__RankPhase phase)
{
    return controller->ranks[0].phase == phase && controller->ranks[1].phase == phase;
}

bool both_ready(struct fake_controller *controller)
{
    return both_in(controller, DP__V1__RANK_PHASE__RANK_READY);
}

bool both_running(struct fake_controller *controller)
{
    return both_in(controller, DP__V1__RANK_PHASE__RANK_RUNNING);
}

bool both_finished(struct fake_controller *controller)
{
    return both_in(controller, DP__V1__RANK_PHASE__RANK_FINISHED);
}

bool both_died(struct fake_controller *controller)
{
    return both_in(controller, DP__V1__RANK_PHASE__RANK_DIED);
}

bool holds_nothing(struct fake_controller *controller)
{
    return controller->assignments == 0 && controller->heartbeats > 0;
}

void cluster_run_two(struct cluster *cluster)
{
    fake_controller_prepare(&cluster->controller, "job-1", 1, two_ranks, 2);
    fake_controller_until(&cluster->controller, both_ready, "both ranks are ready");
    fake_controller_start(&cluster->controller, "job-1", 1);
    fake_controller_until(&cluster->controller, both_running, "both ranks run");
}

void cluster_release(struct cluster *cluster)
{
    pid_t keeper = cluster_keeper_pid(cluster, "job-1.1.1");
    fake_controller_release(&cluster->controller, "job-1", 1);
    cluster->controller.heartbeats = 0;
    fake_controller_until(&cluster->controller, holds_nothing, "the assignment is forgotten");
    harness_wait_gone(keeper);
}

bool is_calibrated(struct fake_controller *controller)
{
    return controller->has_profile;
}

void cluster_restart_after_kill(struct cluster *cluster, void (*meanwhile)(struct cluster *cluster))
{
    assert_int_equal(kill(cluster->worker, SIGKILL), 0);
    (void)harness_wait(cluster->worker);
    if (meanwhile != NULL) {
        meanwhile(cluster);
    }
    cluster->controller.hellos = 0;
    cluster->worker = cluster_start_worker(cluster);
}

bool has_hello(struct fake_controller *controller)
{
    return controller->hellos > 0;
}
