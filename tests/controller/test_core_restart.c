// A job that begins anew from a checkpoint without the node that slowed it down.
#include <signal.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp/straggler.h"
#include "dp_test.h"
#include "reassign_world.h"

// What was asked is answered with a restart without node b.
static void answer_restart(struct change *change, bool advise)
{
    struct world *world = &change->world;
    struct dp_core_event ask = {.kind = DP_EVENT_REASSIGN,
                                .reassign = {.job = "job-1", .away = "", .advise = advise}};
    world_step(world, &ask);
    struct dp_core_event event = {.kind = DP_EVENT_ADAPT_DONE,
                                  .adapt_done = {.job = 1,
                                                 .request = world->asked.request,
                                                 .kind = "restart",
                                                 .action = "start again without b",
                                                 .predicted_step_ns = DP_NS_PER_MS / 2,
                                                 .predicted_pause_ns = DP_NS_PER_S,
                                                 .without = "b",
                                                 .document = "{}",
                                                 .document_length = 2}};
    world_step(world, &event);
}

static void save(struct change *change, uint64_t step)
{
    struct dp_report report = {.kind = DP_REPORT_CHECKPOINT,
                               .checkpoint = {.step = step, .path = "/c/step", .error = ""}};
    world_report(&change->world, change->a, 0, &report);
}

static void second_step(struct change *change, const char *places, uint64_t step, int64_t step_ns)
{
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct dp_report report = {.kind = DP_REPORT_STEP, .fence = {"job-1", 2, 1}};
        report.step.row = (struct dp_step_record){
            .step = step, .loss = 2, .loss_known = true, .step_ns = step_ns, .tokens = 100};
        world_report(&change->world, change_session(change, places[rank]), rank, &report);
    }
    change->world.steps_count = 0;
}

static void it_saves_leaves_the_node_and_is_measured(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    answer_restart(&change, false);
    change_assert_state(&change, DP_STATE_STOPPING);
    const struct dp_decision_record *decision = &change.world.decision;
    assert_int_equal(decision->state, DP_DECISION_SWITCHING);
    assert_int_equal(decision->attempt, 2);
    assert_int_equal(world_sent(&change.world, DP_ORDER_STOP, ""), 2);
    assert_true(change.world.sent[change.world.sent_count - 1].checkpoint);
    save(&change, 5);
    change.world.now_ns += 3 * DP_NS_PER_S;
    change_stop(&change, 1, "aabb");
    change_assert_state(&change, DP_STATE_ASSIGNING);
    for (size_t i = 0; i < change.world.offers_count; i++) {
        assert_string_not_equal(change.world.offers[i].node, "b");
    }
    assert_int_equal(decision->state, DP_DECISION_SWITCHING);
    change_second_level(&change, "aacc", DP_RANK_READY);
    change_second_level(&change, "aacc", DP_RANK_RUNNING);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change_job(&change)->step, 5);
    assert_int_equal(decision->state, DP_DECISION_RUNNING);
    assert_int_equal(decision->measured_pause_ns, 3 * DP_NS_PER_S);
    second_step(&change, "aacc", 6, 9 * DP_NS_PER_MS); // warms up
    for (uint64_t step = 7; step < 26; step++) {
        second_step(&change, "aacc", step, DP_NS_PER_MS * 3 / 4);
        assert_int_equal(decision->state, DP_DECISION_RUNNING);
    }
    second_step(&change, "aacc", 26, DP_NS_PER_MS * 3 / 4);
    assert_int_equal(decision->state, DP_DECISION_MEASURED);
    assert_int_equal(decision->measured_step_ns, DP_NS_PER_MS * 3 / 4);
    assert_float_equal(decision->trust_after, 0.75, 1e-12); // half of what was promised
    // Other layouts stay off the node, too, until somebody says that it is well.
    struct dp_core_event ask = {.kind = DP_EVENT_REASSIGN,
                                .reassign = {.job = "job-1", .away = "", .advise = true}};
    change.world.now_ns += 600 * DP_NS_PER_S;
    world_step(&change.world, &ask);
    assert_int_equal(change.world.asked.restart_ns, 3 * DP_NS_PER_S); // what it costs is known now
    for (size_t i = 0; i < change.world.asked.nodes_count; i++) {
        assert_string_not_equal(change.world.asked.nodes[i], "b");
    }
    change_decide(&change, "b", DP_NODE_UNDRAIN);
    assert_string_equal(change_job(&change)->avoid, "");
}

static void a_checkpoint_that_nobody_heard_of_is_done_without_and_said(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    save(&change, 3);
    answer_restart(&change, false);
    change.world.hold_plan = true;
    change_stop(&change, 1, "aabb");
    world_pass(&change.world, 3000); // what ranks had to say may be behind their ends
    change_assert_state(&change, DP_STATE_QUEUED);
    assert_int_equal(change_job(&change)->step, 3);
    assert_non_null(strstr(change.world.requeued,
                           "the checkpoint that it was to write is not known to stand: it goes on "
                           "from step 3"));
    struct dp_core_event cancel = {.kind = DP_EVENT_CANCEL, .ask = {.job = "job-1", .reason = ""}};
    world_step(&change.world, &cancel);
    assert_int_equal(change.world.decision.state, DP_DECISION_ABANDONED);
}

static void without_room_elsewhere_it_waits_and_says_which_node_is_left_out(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    // Somebody else has taken the slots of c meanwhile.
    world_submit(&change.world, 0, 2, "");
    answer_restart(&change, false);
    save(&change, 5);
    change_stop(&change, 1, "aabb");
    change_assert_state(&change, DP_STATE_QUEUED);
    change_assert_says(&change, "b left out (asked for");
    change_assert_says(&change, "undrain b");
    assert_int_equal(change.world.decision.state, DP_DECISION_SWITCHING);
    change_decide(&change, "b", DP_NODE_UNDRAIN);
    change_assert_state(&change, DP_STATE_ASSIGNING);
}

static void what_shows_that_a_node_is_well_lets_it_in(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        AUTO_CHANGE change;
        change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
        answer_restart(&change, false);
        assert_string_equal(change_job(&change)->avoid, "b");
        struct dp_node_record node = {.slots = 2, .profile = {.bytes = "{}", .length = 2}};
        DP_COPY_TEXT(node.name, "b");
        DP_COPY_TEXT(node.instance, "b");
        DP_COPY_TEXT(node.boot_id, "first");
        struct dp_core_event event = {
            .kind = DP_EVENT_HELLO,
            .hello = {.levels = {.session = 98}, .node = &node, .protocol = 2}};
        world_step(&change.world, &event);
        // It says the same once more, was measured anew, has booted anew.
        node.profile.bytes = how == 1 ? "{ }" : "{}";
        node.profile.length = how == 1 ? 3 : 2;
        DP_COPY_TEXT(node.boot_id, how == 2 ? "second" : "first");
        event.hello.levels.session = 99;
        world_step(&change.world, &event);
        assert_string_equal(change_job(&change)->avoid, how == 0 ? "b" : "");
    }
}

// Both ranks of job-2, on node b, are in this phase.
static void other_level(struct change *change, dp_rank_phase phase)
{
    struct dp_rank_level ranks[2] = {world_rank_level(0, phase), world_rank_level(1, phase)};
    struct dp_assignment_level level = {
        .fence = {"job-2", 1, 1}, .ranks = ranks, .ranks_count = 2, .error = ""};
    world_send_level(&change->world, change->b, &level);
}

// Rank 1 tells no times while it is silent.
static void other_step(struct change *change, uint64_t step, bool silent)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct dp_straggler_kind kind = {
            .kind = DP_ACTION_F, .count = 1, .total_ns = DP_NS_PER_MS, .median_ns = DP_NS_PER_MS};
        struct dp_straggler_sample times = {.kinds = &kind, .kinds_count = 1};
        struct dp_report report = {.kind = DP_REPORT_STEP, .fence = {"job-2", 1, 1}};
        report.step.row = (struct dp_step_record){.step = step, .step_ns = 10 * DP_NS_PER_MS};
        report.step.times = silent && rank == 1 ? NULL : &times;
        world_report(&change->world, change->b, rank, &report);
    }
    change->world.steps_count = 0;
}

static void that_a_rank_reports_again_lets_no_node_in(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    answer_restart(&change, false);
    save(&change, 5);
    change_stop(&change, 1, "aabb");
    change_second_level(&change, "aacc", DP_RANK_READY);
    change_second_level(&change, "aacc", DP_RANK_RUNNING);
    world_submit(&change.world, 0, 2, "");
    other_level(&change, DP_RANK_READY);
    other_level(&change, DP_RANK_RUNNING);
    assert_int_equal(world_job(&change.world, 2)->state, DP_STATE_RUNNING);
    for (uint64_t step = 1; step <= 40; step++) {
        other_step(&change, step, step > 10 && step <= 30);
    }
    assert_int_equal(world_noted(&change.world, "straggler.blind", ""), 1);
    assert_int_equal(world_noted(&change.world, "straggler.recovered", "it reports again"), 1);
    assert_string_equal(change_job(&change)->avoid, "b");
}

static void advice_stops_nobody(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    answer_restart(&change, true);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change.world.decision.state, DP_DECISION_ADVISED);
    assert_string_equal(change_job(&change)->avoid, "");
}

static void an_attempt_that_ends_before_it_trains_is_no_success(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    answer_restart(&change, false);
    save(&change, 5);
    change_stop(&change, 1, "aabb");
    change_second_level(&change, "aacc", DP_RANK_STARTING);
    for (int node = 0; node < 2; node++) {
        struct dp_assignment_level level = {
            .fence = {"job-1", 2, 1}, .keeper_lost = true, .keeper_signal = SIGKILL, .error = ""};
        world_send_level(&change.world, node == 0 ? change.a : change.c, &level);
    }
    assert_int_equal(change_job(&change)->attempt, 3);
    assert_int_equal(change.world.decision.state, DP_DECISION_FELL_BACK);
    assert_string_equal(change_job(&change)->avoid, "b");
}

static void the_next_controller_goes_on_with_it(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    answer_restart(&change, false);
    struct dp_decision_record decision = change.world.decision;
    change_restart(&change);
    struct dp_core_event event = {.kind = DP_EVENT_LOAD_DECISION, .load_decision = &decision};
    world_step(&change.world, &event);
    change.a = world_hello(&change.world, "a", 2, NULL, 0);
    change.b = world_hello(&change.world, "b", 2, NULL, 0);
    change.c = world_hello(&change.world, "c", 2, NULL, 0);
    change_stop(&change, 1, "aabb");
    assert_int_equal(change_job(&change)->attempt, 2);
    assert_string_equal(change_job(&change)->avoid, "b");
    change_second_level(&change, "aacc", DP_RANK_READY);
    change_second_level(&change, "aacc", DP_RANK_RUNNING);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change.world.decision.state, DP_DECISION_RUNNING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_saves_leaves_the_node_and_is_measured),
        cmocka_unit_test(a_checkpoint_that_nobody_heard_of_is_done_without_and_said),
        cmocka_unit_test(without_room_elsewhere_it_waits_and_says_which_node_is_left_out),
        cmocka_unit_test(what_shows_that_a_node_is_well_lets_it_in),
        cmocka_unit_test(that_a_rank_reports_again_lets_no_node_in),
        cmocka_unit_test(advice_stops_nobody),
        cmocka_unit_test(an_attempt_that_ends_before_it_trains_is_no_success),
        cmocka_unit_test(the_next_controller_goes_on_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
