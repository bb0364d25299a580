// Experts of a job that trains are placed by their loads, by order.
#include <signal.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp_test.h"
#include "reassign_world.h"

// places NULL: the ranks stay.
static void answer_experts(struct change *change, const char *places)
{
    struct dp_slot slots[4];
    uint32_t used[3] = {0};
    static const char *const names[] = {"a", "b", "c"};
    for (size_t i = 0; places != NULL && i < 4; i++) {
        int node = places[i] - 'a';
        slots[i] = (struct dp_slot){names[node], used[node]++};
    }
    struct dp_core_event event = {.kind = DP_EVENT_ADAPT_DONE,
                                  .adapt_done = {.job = 1,
                                                 .request = change->world.asked.request,
                                                 .kind = places == NULL ? "experts" : "combined",
                                                 .action = "experts placed anew",
                                                 .predicted_step_ns = DP_NS_PER_MS / 2,
                                                 .rebalances = true,
                                                 .document = "{}",
                                                 .document_length = 2,
                                                 .plan = places == NULL ? NULL : "other",
                                                 .plan_length = places == NULL ? 0 : 5,
                                                 .ranks = slots,
                                                 .ranks_count = places == NULL ? 0 : 4}};
    world_step(&change->world, &event);
}

// The step of all ranks; the first says that experts were placed.
static void placed(struct change *change, uint64_t step, uint64_t moved)
{
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct dp_report report = {.kind = DP_REPORT_STEP};
        report.step.row = (struct dp_step_record){
            .step = step, .loss = 2, .loss_known = true, .step_ns = DP_NS_PER_MS, .tokens = 100};
        report.step.rebalance = (struct dp_placement_report){
            .looked = rank == 0, .applied = true, .layers = 3, .moved_layers = 1, .moved = moved};
        world_report(&change->world, rank < 2 ? change->a : change->b, rank, &report);
    }
    change->world.steps_count = 0;
}

static void they_are_placed_while_the_ranks_train_and_it_is_measured(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_ask(&change, 0, "", false);
    answer_experts(&change, NULL);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change_sent(&change, DP_ORDER_REBALANCE, 1, "a"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_REBALANCE, 1, "b"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_REBALANCE, 1, "c"), 0);
    assert_true(change.world.sent[change.world.sent_count - 1].request > 0);
    const struct dp_decision_record *decision = &change.world.decision;
    assert_int_equal(decision->state, DP_DECISION_SWITCHING);
    // One thing after the other.
    change_ask(&change, 7, "", false);
    assert_int_equal(world_reply(&change.world, 7)->status, DP_CONFLICT);
    change_step(&change, 6, DP_NS_PER_MS);
    assert_int_equal(decision->state, DP_DECISION_SWITCHING);
    placed(&change, 7, 2);
    assert_int_equal(decision->state, DP_DECISION_RUNNING);
    change_step(&change, 8, 9 * DP_NS_PER_MS); // warms up
    for (uint64_t step = 9; step < 28; step++) {
        change_step(&change, step, DP_NS_PER_MS * 3 / 4);
        assert_int_equal(decision->state, DP_DECISION_RUNNING);
    }
    change_step(&change, 28, DP_NS_PER_MS * 3 / 4);
    assert_int_equal(decision->state, DP_DECISION_MEASURED);
    assert_int_equal(decision->measured_step_ns, DP_NS_PER_MS * 3 / 4);
    assert_float_equal(decision->trust_after, 0.75, 1e-12);
    assert_int_equal(change_job(&change)->epoch, 1);
}

static void ranks_that_find_no_better_places_or_say_nothing_train_on(void **state)
{
    (void)state;
    for (int says = 0; says < 2; says++) {
        AUTO_CHANGE change;
        change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
        change_ask(&change, 0, "", false);
        answer_experts(&change, NULL);
        if (says) {
            placed(&change, 6, 0);
        }
        for (uint32_t ms = 0; !says && ms < change.world.config.pause_timeout_ms + 2000;
             ms += 1000) {
            assert_int_equal(change.world.decision.state, DP_DECISION_SWITCHING);
            world_pass(&change.world, 1000);
            change_level(&change, 1, "aabb", DP_RANK_RUNNING, 5);
            if (change.world.decision.state != DP_DECISION_SWITCHING) {
                break;
            }
        }
        assert_int_equal(change.world.decision.state, DP_DECISION_ABANDONED);
        change_assert_state(&change, DP_STATE_RUNNING);
        change_ask(&change, 7, "", false);
        assert_int_equal(world_reply(&change.world, 7)->status, DP_OK);
    }
}

static void agents_that_do_not_know_the_order_make_it_advice(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_ask(&change, 0, "", false);
    struct dp_node_record node = {.slots = 2, .lease_ms = 10000, .fence_ms = 60000};
    DP_COPY_TEXT(node.name, "b");
    DP_COPY_TEXT(node.instance, "b");
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 2, DP_RANK_RUNNING);
    struct dp_core_event hello = {
        .kind = DP_EVENT_HELLO,
        .hello = {.levels = {.session = 99, .assignments = &level, .count = 1},
                  .node = &node,
                  .protocol = 1}};
    world_step(&change.world, &hello);
    answer_experts(&change, NULL);
    assert_int_equal(change.world.decision.state, DP_DECISION_ADVISED);
    assert_int_equal(world_sent(&change.world, DP_ORDER_REBALANCE, ""), 0);
    change_assert_state(&change, DP_STATE_RUNNING);
}

static void a_rank_that_is_lost_meanwhile_is_what_is_seen_to(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_ask(&change, 0, "", false);
    answer_experts(&change, NULL);
    change_die(&change, 1, 'b', 2, SIGKILL);
    change_assert_state(&change, DP_STATE_REASSIGNING);
    assert_int_equal(change.world.decision.state, DP_DECISION_ABANDONED);
}

static void after_a_change_of_ranks_the_new_ones_are_told(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    change_ask(&change, 0, "", false);
    answer_experts(&change, "aacc");
    assert_int_equal(world_sent(&change.world, DP_ORDER_REBALANCE, ""), 0);
    change_level(&change, 2, "aacc", DP_RANK_READY, 0);
    change_hold(&change, 1, "aabb", 15, 5, "");
    change_level(&change, 2, "aacc", DP_RANK_RUNNING, 5);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change_sent(&change, DP_ORDER_REBALANCE, 2, "a"), 1);
    assert_int_equal(change_sent(&change, DP_ORDER_REBALANCE, 2, "c"), 1);
    assert_int_equal(change.world.decision.state, DP_DECISION_RUNNING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_are_placed_while_the_ranks_train_and_it_is_measured),
        cmocka_unit_test(ranks_that_find_no_better_places_or_say_nothing_train_on),
        cmocka_unit_test(agents_that_do_not_know_the_order_make_it_advice),
        cmocka_unit_test(a_rank_that_is_lost_meanwhile_is_what_is_seen_to),
        cmocka_unit_test(after_a_change_of_ranks_the_new_ones_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
