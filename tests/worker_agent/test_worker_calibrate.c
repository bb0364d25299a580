// Calibrations that a controller orders, against the agent as it runs.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cluster.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp_test.h"

static bool is_told(struct fake_controller *controller)
{
    return controller->calibrated_request != 0;
}

// The next word on a calibration.
static void await_word(struct fake_controller *controller, uint64_t request,
                       Dp__V1__CalibrateOutcome outcome, const char *part)
{
    fake_controller_until(controller, is_told, "the agent says something of its calibration");
    assert_int_equal(controller->calibrated_request, request);
    assert_int_equal(controller->calibrated, outcome);
    assert_part(controller->calibrated_message, part);
    controller->calibrated_request = 0;
}

// An agent that has a profile, whose further calibrations do what `how` says of a file.
static void open_calibrated(struct cluster *cluster, const char *script, const char *how,
                            char **ret_file)
{
    cluster_open(cluster, script, NULL);
    fake_controller_until(&cluster->controller, is_calibrated, "the agent calibrates");
    cluster_end_worker(cluster);
    *ret_file = dp_asprintf("%s/awaited", cluster->directory);
    cluster->calibration = dp_asprintf("DP_FAKE_CALIBRATION=%s%s", how, *ret_file);
    cluster->controller.heartbeats = 0;
    cluster->worker = cluster_start_worker(cluster);
    fake_controller_until(&cluster->controller, is_connected, "the agent connects again");
}

static void make(const char *file)
{
    struct dp_error err = {0};
    assert_ok(dp_write_file(file, "", 0, &err), &err);
}

static void a_node_is_measured_again_when_it_is_ordered(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "sleep", NULL);
    fake_controller_until(&cluster.controller, is_calibrated, "the agent calibrates");
    cluster.controller.has_profile = false;
    fake_controller_calibrate(&cluster.controller, 7, false);
    await_word(&cluster.controller, 7, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_MEASURED, "measured");
    assert_true(cluster.controller.calibrated_bytes > 100);
    fake_controller_until(&cluster.controller, is_calibrated, "the inventory has it, too");
    cluster_close(&cluster);
}

static void ranks_that_run_there_are_named_in_the_refusal(void **state)
{
    (void)state;
    struct cluster cluster;
    cluster_open(&cluster, "ready start sleep", NULL);
    fake_controller_until(&cluster.controller, is_calibrated, "the agent calibrates");
    cluster_run_two(&cluster);
    fake_controller_calibrate(&cluster.controller, 8, false);
    await_word(&cluster.controller, 8, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_REFUSED,
               "ranks of job-1 run there");
    fake_controller_stop(&cluster.controller, "job-1", 1, 0);
    fake_controller_until(&cluster.controller, both_died, "both ranks end");
    cluster_release(&cluster);
    cluster_close(&cluster);
}

static void two_at_once_are_one_and_a_cancelled_one_is_dropped(void **state)
{
    (void)state;
    struct cluster cluster;
    DP_AUTO_FREE char *file = NULL;
    open_calibrated(&cluster, "sleep", "wait:", &file);
    struct fake_controller *controller = &cluster.controller;
    DP_AUTO_FREE char *profile = dp_asprintf("%s/profile.json", cluster.state_dir);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf before = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf after = {0};
    struct dp_error err = {0};
    assert_ok(dp_read_file(profile, 1 << 20, &before, &err), &err);
    fake_controller_calibrate(controller, 1, false);
    await_word(controller, 1, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_GOES_ON,
               "measuring what there is");
    fake_controller_calibrate(controller, 2, false);
    await_word(controller, 2, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_REFUSED, "for somebody else");
    // Of another number it cancels nothing.
    fake_controller_calibrate(controller, 2, true);
    fake_controller_calibrate(controller, 1, true);
    fake_controller_calibrate(controller, 3, false);
    await_word(controller, 3, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_GOES_ON,
               "measuring what there is");
    assert_ok(dp_read_file(profile, 1 << 20, &after, &err), &err);
    assert_string_equal(after.bytes, before.bytes);
    make(file);
    await_word(controller, 3, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_MEASURED, "measured");
    cluster_close(&cluster);
}

static void one_that_fails_leaves_the_figures_as_they_were(void **state)
{
    (void)state;
    struct cluster cluster;
    DP_AUTO_FREE char *file = NULL;
    open_calibrated(&cluster, "sleep", "", &file);
    struct fake_controller *controller = &cluster.controller;
    DP_AUTO_FREE char *profile = dp_asprintf("%s/profile.json", cluster.state_dir);
    fake_controller_calibrate(controller, 4, false);
    await_word(controller, 4, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_FAILED, "ended with status 5");
    assert_int_equal(access(profile, F_OK), 0);
    assert_true(controller->has_profile);
    assert_string_equal(controller->calibration_error, "");
    make(file);
    fake_controller_calibrate(controller, 5, false);
    await_word(controller, 5, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_MEASURED, "measured");
    cluster_close(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_is_measured_again_when_it_is_ordered),
        cmocka_unit_test(ranks_that_run_there_are_named_in_the_refusal),
        cmocka_unit_test(two_at_once_are_one_and_a_cancelled_one_is_dropped),
        cmocka_unit_test(one_that_fails_leaves_the_figures_as_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
