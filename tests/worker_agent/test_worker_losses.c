// What becomes of ranks when an agent, a keeper, a controller or a file is lost.
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster.h"
#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp/rand.h"
#include "dp_test.h"

static bool keeper_is_lost(struct fake_controller *controller)
{
    return controller->keeper_lost && both_died(controller);
}

static void a_keeper_that_is_killed_takes_its_ranks_and_is_told(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", NULL);
    cluster_run_two(&cluster);
    assert_int_equal(kill(cluster_keeper_pid(&cluster, "job-1.1.1"), SIGKILL), 0);
    fake_controller_until(&cluster.controller, keeper_is_lost, "the loss is told");
    assert_int_equal(cluster.controller.keeper_signal, SIGKILL);
    for (int rank = 0; rank < 2; rank++) {
        harness_wait_gone((pid_t)cluster.controller.ranks[rank].pid);
    }
    cluster_release(&cluster);
    cluster_close(&cluster);
}

static bool both_adopted(struct fake_controller *controller)
{
    return controller->hellos > 0 && both_running(controller) && controller->ranks[0].step == 3 &&
           controller->ranks[1].step == 3;
}

static void an_agent_that_is_killed_adopts_its_ranks_when_it_returns(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start steps=3 sleep", NULL);
    struct fake_controller *controller = &cluster.controller;
    cluster_run_two(&cluster);
    pid_t pids[] = {(pid_t)controller->ranks[0].pid, (pid_t)controller->ranks[1].pid};
    for (int life = 0; life < 5; life++) {
        cluster_restart_after_kill(&cluster, NULL);
        fake_controller_until(controller, both_adopted, "the ranks are adopted");
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(controller->ranks[rank].pid, pids[rank]);
            assert_true(controller->ranks[rank].ready);
        }
    }
    fake_controller_stop(controller, "job-1", 1, 20000);
    fake_controller_until(controller, both_died, "the ranks are stopped");
    cluster_release(&cluster);
    cluster_close(&cluster);
}

// What a keeper's directory may hold in the place of the file with its number.
static void replace_number(struct cluster *cluster)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/jobs/job-1.1.1/keeper.pid", cluster->state_dir);
    struct dp_error err = {0};
    (void)unlink(path);
    switch (cluster->damage) {
    case 0:
        break;
    case 1:
        assert_int_equal(symlink("nowhere", path), 0);
        break;
    case 2:
        assert_int_equal(mkfifo(path, 0600), 0);
        break;
    default:
        assert_ok(dp_write_file(path, "not a number", 12, &err), &err);
    }
}

static void a_keeper_lives_whatever_becomes_of_the_file_with_its_number(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start steps=3 sleep", NULL);
    struct fake_controller *controller = &cluster.controller;
    cluster_run_two(&cluster);
    pid_t keeper = cluster_keeper_pid(&cluster, "job-1.1.1");
    pid_t pids[] = {(pid_t)controller->ranks[0].pid, (pid_t)controller->ranks[1].pid};
    for (cluster.damage = 0; cluster.damage < 4; cluster.damage++) {
        cluster_restart_after_kill(&cluster, replace_number);
        fake_controller_until(controller, both_adopted, "the ranks are adopted");
        assert_false(controller->keeper_lost);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(controller->ranks[rank].pid, pids[rank]);
        }
    }
    fake_controller_release(controller, "job-1", 1);
    controller->heartbeats = 0;
    fake_controller_until(controller, holds_nothing, "the assignment is forgotten");
    harness_wait_gone(keeper);
    cluster_close(&cluster);
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
    cluster_run_two(&cluster);
    pid_t pid = (pid_t)cluster.controller.ranks[0].pid;
    fake_controller_close(&cluster.controller);
    fake_controller_open(&cluster.controller, "127.0.0.1:0");
    cluster_write_address(&cluster);
    fake_controller_until(&cluster.controller, has_hello, "the agent finds the new address");
    fake_controller_until(&cluster.controller, both_resent, "levels and steps are sent again");
    assert_int_equal(cluster.controller.ranks[0].pid, pid);
    assert_int_equal(cluster.controller.ranks[0].spans_heard, 0);
    fake_controller_stop(&cluster.controller, "job-1", 1, 20000);
    fake_controller_until(&cluster.controller, both_died, "the ranks are stopped");
    cluster_release(&cluster);
    cluster_close(&cluster);
}

static void the_ranks_of_an_agent_that_stays_away_end_and_it_says_so_later(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start steps=3 sleep", "--lease-ms=500");
    struct fake_controller *controller = &cluster.controller;
    cluster_run_two(&cluster);
    pid_t keeper = cluster_keeper_pid(&cluster, "job-1.1.1");
    assert_int_equal(kill(cluster.worker, SIGKILL), 0);
    (void)harness_wait(cluster.worker);
    harness_wait_gone(keeper);
    harness_wait_gone((pid_t)controller->ranks[0].pid);
    controller->hellos = 0;
    cluster.worker = cluster_start_worker(&cluster);
    fake_controller_until(controller, has_hello, "the agent returns");
    fake_controller_until(controller, both_died, "the ends are told");
    assert_int_equal(controller->ranks[0].signal, SIGTERM);
    assert_int_equal(controller->ranks[0].step, 3);
    // Nobody was lost: the keeper did what it is for, and nobody else had told it to.
    assert_false(controller->keeper_lost);
    assert_true(controller->ranks[0].stopped);
    assert_non_null(strstr(controller->error, "no agent renewed its lease"));
    fake_controller_release(controller, "job-1", 1);
    controller->heartbeats = 0;
    fake_controller_until(controller, holds_nothing, "the assignment is forgotten");
    cluster_close(&cluster);
}

static void alone_too_long_an_agent_ends_its_ranks(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", "--orphan-ms=1000");
    cluster_run_two(&cluster);
    pid_t pids[] = {(pid_t)cluster.controller.ranks[0].pid, (pid_t)cluster.controller.ranks[1].pid};
    fake_controller_close(&cluster.controller);
    harness_wait_gone(pids[0]);
    harness_wait_gone(pids[1]);
    fake_controller_open(&cluster.controller, "127.0.0.1:0");
    cluster_write_address(&cluster);
    fake_controller_until(&cluster.controller, both_died, "the agent tells why");
    assert_non_null(strstr(cluster.controller.error, "out of reach"));
    cluster_release(&cluster);
    cluster_close(&cluster);
}

static void a_controller_that_acknowledges_nothing_is_no_contact(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", "--orphan-ms=3000");
    // The time to end ranks, and what an agent that dies just then leaves to its keepers.
    assert_true(cluster.controller.fence_ms > 3000 + 5000 + 10000);
    cluster_run_two(&cluster);
    cluster.controller.silent = true;
    fake_controller_until(&cluster.controller, both_died, "the ranks are ended");
    assert_non_null(strstr(cluster.controller.error, "out of reach"));
    assert_true(cluster.controller.ranks[0].stopped);
    cluster.controller.silent = false;
    cluster_release(&cluster);
    cluster_close(&cluster);
}

// As if the agent's life before had been cut off for ten minutes already.
static void age_contact(struct cluster *cluster)
{
    struct dp_error err = {0};
    char boot_id[64];
    long long heard_ns;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    DP_AUTO_FREE char *path = dp_asprintf("%s/contact", cluster->state_dir);
    assert_ok(dp_read_file(path, 4096, &text, &err), &err);
    assert_int_equal(sscanf(text.bytes, "dp.contact/2 %63s %lld", boot_id, &heard_ns), 2);
    DP_AUTO_FREE char *words =
        dp_asprintf("dp.contact/2 %s %lld", boot_id, heard_ns - 600 * DP_NS_PER_S);
    int used = snprintf(text.bytes, text.length, "%s %016llx", words,
                        (unsigned long long)dp_hash64(words, strlen(words), 0));
    memset(text.bytes + used, ' ', text.length - 1 - (size_t)used);
    assert_ok(dp_write_file(path, text.bytes, text.length, &err), &err);
}

static void an_agent_that_is_started_again_counts_on(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", NULL);
    cluster_run_two(&cluster);
    pid_t pids[] = {(pid_t)cluster.controller.ranks[0].pid, (pid_t)cluster.controller.ranks[1].pid};
    fake_controller_close(&cluster.controller);
    cluster_restart_after_kill(&cluster, age_contact);
    harness_wait_gone(pids[0]);
    harness_wait_gone(pids[1]);
    fake_controller_open(&cluster.controller, "127.0.0.1:0");
    cluster_write_address(&cluster);
    fake_controller_until(&cluster.controller, both_died, "the agent tells why");
    assert_non_null(strstr(cluster.controller.error, "out of reach"));
    cluster_release(&cluster);
    cluster_close(&cluster);
}

static bool keeper_is_unreachable(struct fake_controller *controller)
{
    return strstr(controller->error, "has not answered") != NULL;
}

static bool keeper_answers(struct fake_controller *controller)
{
    return controller->error[0] == '\0' && both_running(controller);
}

static void a_keeper_that_does_not_answer_is_asked_again_and_killed_at_last(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", "--lease-ms=60000");
    struct fake_controller *controller = &cluster.controller;
    cluster_run_two(&cluster);
    pid_t keeper = cluster_keeper_pid(&cluster, "job-1.1.1");
    pid_t rank = (pid_t)controller->ranks[0].pid;
    assert_int_equal(kill(keeper, SIGSTOP), 0);
    fake_controller_until(controller, keeper_is_unreachable, "the silence is told");
    assert_true(both_running(controller));
    assert_int_equal(kill(keeper, SIGCONT), 0);
    fake_controller_until(controller, keeper_answers, "the keeper is back");
    assert_int_equal(controller->ranks[0].pid, rank);
    // Also when it was started by the agent's life before.
    cluster_restart_after_kill(&cluster, NULL);
    fake_controller_until(controller, has_hello, "the agent returns");
    fake_controller_until(controller, keeper_answers, "the keeper is adopted");
    assert_int_equal(kill(keeper, SIGSTOP), 0);
    fake_controller_stop(controller, "job-1", 1, 1000);
    fake_controller_until(controller, both_died, "the ranks end with their keeper");
    harness_wait_gone(rank);
    assert_true(controller->ranks[0].stopped);
    assert_false(controller->keeper_lost);
    fake_controller_release(controller, "job-1", 1);
    controller->heartbeats = 0;
    fake_controller_until(controller, holds_nothing, "the assignment is forgotten");
    cluster_close(&cluster);
}

static void spoil_levels(struct cluster *cluster)
{
    struct dp_error err = {0};
    pid_t keeper = cluster_keeper_pid(cluster, "job-1.1.1");
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
    cluster_run_two(&cluster);
    cluster_restart_after_kill(&cluster, spoil_levels);
    fake_controller_until(&cluster.controller, has_hello, "the agent returns");
    fake_controller_until(&cluster.controller, keeper_is_lost, "the loss is told");
    fake_controller_until(&cluster.controller, is_calibrated, "the profile is made again");
    cluster_release(&cluster);
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
    cluster_run_two(&cluster);
    pid_t pid = (pid_t)cluster.controller.ranks[0].pid;
    DP_AUTO_FREE char *aside =
        dp_asprintf("%s/jobs/job-1.1.1/assignment.corrupt", cluster.state_dir);
    DP_AUTO_FREE char *file = dp_asprintf("%s/jobs/job-1.1.1/assignment", cluster.state_dir);
    for (cluster.damage = 0; cluster.damage < 8; cluster.damage++) {
        cluster_restart_after_kill(&cluster, damage);
        fake_controller_until(&cluster.controller, both_adopted, "the ranks are adopted");
        assert_int_equal(cluster.controller.ranks[0].pid, pid);
        // Damaged as it is, the next round damages it further.
        assert_int_equal(rename(aside, file), 0);
    }
    cluster_release(&cluster);
    cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_keeper_that_is_killed_takes_its_ranks_and_is_told),
        cmocka_unit_test(an_agent_that_is_killed_adopts_its_ranks_when_it_returns),
        cmocka_unit_test(a_keeper_lives_whatever_becomes_of_the_file_with_its_number),
        cmocka_unit_test(a_controller_that_returns_elsewhere_finds_the_job_running),
        cmocka_unit_test(the_ranks_of_an_agent_that_stays_away_end_and_it_says_so_later),
        cmocka_unit_test(alone_too_long_an_agent_ends_its_ranks),
        cmocka_unit_test(a_controller_that_acknowledges_nothing_is_no_contact),
        cmocka_unit_test(an_agent_that_is_started_again_counts_on),
        cmocka_unit_test(a_keeper_that_does_not_answer_is_asked_again_and_killed_at_last),
        cmocka_unit_test(files_that_are_damaged_while_it_is_away_stop_no_agent),
        cmocka_unit_test(a_damaged_assignment_file_is_put_aside_and_the_ranks_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
