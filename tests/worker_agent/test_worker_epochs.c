// Two epochs of a job beside each other, with real agents and keepers.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "cluster.h"
#include "dp/alloc.h"
#include "dp_test.h"

#define NEWER 4 // rank r of epoch 2 is seen at NEWER + r

static bool newer_are(const struct fake_controller *controller, Dp__V1__RankPhase phase)
{
    return controller->ranks[NEWER].phase == phase && controller->ranks[NEWER + 1].phase == phase;
}

static bool newer_ready(struct fake_controller *controller)
{
    return newer_are(controller, DP__V1__RANK_PHASE__RANK_READY);
}

static bool newer_running(struct fake_controller *controller)
{
    return newer_are(controller, DP__V1__RANK_PHASE__RANK_RUNNING);
}

static bool older_hold(struct fake_controller *controller, uint64_t step)
{
    const struct fake_rank_view *ranks = controller->ranks;
    return ranks[0].held && ranks[1].held && ranks[0].held_step == step &&
           ranks[1].held_step == step;
}

static bool older_hold_3(struct fake_controller *controller)
{
    return older_hold(controller, 3);
}

static bool older_hold_4(struct fake_controller *controller)
{
    return older_hold(controller, 4);
}

static bool both_probed(struct fake_controller *controller)
{
    return controller->ranks[0].probe_request == 9 && controller->ranks[1].probe_request == 9;
}

static bool holds_one(struct fake_controller *controller)
{
    return controller->heartbeats > 0 && controller->assignments == 1;
}

// Epoch 1 runs as `script` says, epoch 2 is prepared beside it and ready.
static void open_both(struct cluster *cluster, const char *script)
{
    cluster_open(cluster, script, NULL);
    struct fake_controller *controller = &cluster->controller;
    controller->views_per_epoch = NEWER;
    cluster_run_two(cluster);
    controller->beside = true;
    fake_controller_prepare(controller, "job-1", 2, two_ranks, 2);
    fake_controller_until(controller, newer_ready, "the newer ranks are ready beside the older");
    assert_true(both_running(controller));
}

static void close_both(struct cluster *cluster)
{
    pid_t keeper = cluster_keeper_pid(cluster, "job-1.1.2");
    fake_controller_release(&cluster->controller, "job-1", 2);
    cluster->controller.heartbeats = 0;
    fake_controller_until(&cluster->controller, holds_nothing, "the newer epoch is forgotten");
    harness_wait_gone(keeper);
    cluster_close(cluster);
}

static void release_older(struct cluster *cluster)
{
    pid_t keeper = cluster_keeper_pid(cluster, "job-1.1.1");
    fake_controller_stop(&cluster->controller, "job-1", 1, 0);
    fake_controller_release(&cluster->controller, "job-1", 1);
    cluster->controller.heartbeats = 0;
    fake_controller_until(&cluster->controller, holds_one, "the older epoch is forgotten");
    harness_wait_gone(keeper);
}

static void a_newer_epoch_takes_over_from_ranks_that_hold(void **state)
{
    (void)state;
    struct cluster cluster;
    open_both(&cluster, "ready start probe steps=3 pause hold settle hold sleep");
    struct fake_controller *controller = &cluster.controller;
    fake_controller_probe(controller, "job-1", 1, 9);
    fake_controller_until(controller, both_probed, "both ranks answer the probe");
    fake_controller_pause(controller, "job-1", 1);
    fake_controller_until(controller, older_hold_3, "the older ranks hold step 3");
    assert_true(newer_ready(controller));
    fake_controller_settle(controller, "job-1", 1, 4);
    fake_controller_until(controller, older_hold_4, "they have settled");
    assert_string_equal(controller->ranks[1].held_address, "127.0.0.1:5001");
    fake_controller_start_from(controller, "job-1", 2, 4);
    fake_controller_until(controller, newer_running, "the newer ranks run");
    release_older(&cluster);
    assert_true(newer_running(controller));
    DP_AUTO_FREE char *directory = dp_asprintf("%s/jobs/job-1.1.2", cluster.state_dir);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    harness_rank_log(directory, 1, &text);
    assert_string_equal(text.bytes, "sources 2 of step 4 with feed, the first 127.0.0.1:5000\n");
    close_both(&cluster);
}

static void an_agent_killed_between_two_epochs_finds_both_and_what_is_held(void **state)
{
    (void)state;
    struct cluster cluster;
    open_both(&cluster, "ready start steps=3 pause hold sleep");
    struct fake_controller *controller = &cluster.controller;
    fake_controller_pause(controller, "job-1", 1);
    fake_controller_until(controller, older_hold_3, "the older ranks hold step 3");
    int64_t pids[] = {controller->ranks[0].pid, controller->ranks[NEWER].pid};
    for (int i = 0; i < 3; i++) {
        cluster_restart_after_kill(&cluster, NULL);
        fake_controller_until(controller, has_hello, "the agent returns");
        // Its hello has all of it.
        assert_int_equal(controller->assignments, 2);
        assert_true(older_hold_3(controller) && newer_ready(controller));
        assert_int_equal(controller->ranks[0].pid, pids[0]);
        assert_int_equal(controller->ranks[NEWER].pid, pids[1]);
    }
    release_older(&cluster);
    fake_controller_start(controller, "job-1", 2);
    fake_controller_until(controller, newer_running, "the newer ranks run");
    close_both(&cluster);
}

static void an_abandoned_epoch_goes_without_the_older_ranks(void **state)
{
    (void)state;
    struct cluster cluster;
    open_both(&cluster, "ready start sleep");
    struct fake_controller *controller = &cluster.controller;
    pid_t keeper = cluster_keeper_pid(&cluster, "job-1.1.2");
    fake_controller_release(controller, "job-1", 2);
    harness_wait_gone(keeper);
    controller->heartbeats = 0;
    fake_controller_until(controller, holds_one, "the newer epoch is forgotten");
    assert_true(both_running(controller));
    assert_true(harness_exists((pid_t)controller->ranks[0].pid));
    cluster_release(&cluster);
    cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_newer_epoch_takes_over_from_ranks_that_hold),
        cmocka_unit_test(an_agent_killed_between_two_epochs_finds_both_and_what_is_held),
        cmocka_unit_test(an_abandoned_epoch_goes_without_the_older_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
