// Where a step's time went: sums by kind of action and by peer.
#include "dp_test.h"
#include "exec_internal.h"

static void act(struct times *times, int kind, uint16_t stage, uint16_t b_stage, int64_t own_ns)
{
    struct dp_action action = {.kind = (uint8_t)kind, .stage = stage, .b_stage = b_stage};
    action.b_kind = kind == DP_ACTION_FB ? DP_ACTION_I : 0;
    struct action_time took = {.own_ns = own_ns,
                               .waited_ns = 5,
                               .gap_ns = 2,
                               .off_core_ns = 1,
                               .tokens = 10,
                               .planned_ns = 7};
    dp_exec_times_action(times, &action, &took);
}

static void times_are_summed_by_kind_and_stages(void **state)
{
    (void)state;
    struct times *times = dp_exec_times_new();
    dp_exec_times_begin(times, 1000);
    act(times, DP_ACTION_F, 2, 0, 30);
    act(times, DP_ACTION_F, 2, 0, 10);
    act(times, DP_ACTION_F, 2, 0, 20);
    act(times, DP_ACTION_F, 5, 0, 40);
    act(times, DP_ACTION_FB, 2, 5, 50);
    act(times, DP_ACTION_FB, 5, 2, 60);
    struct dp_exec_times told;
    // 210 ns of work and 30 of waits: of 300 ns, 60 are nobody's.
    dp_exec_times_end(times, false, 1300, &told);
    assert_int_equal(told.kinds_count, 4);
    assert_int_equal(told.kinds[0].kind, DP_ACTION_F);
    assert_int_equal(told.kinds[0].stage, 2);
    assert_int_equal(told.kinds[0].b_stage, 2);
    assert_int_equal(told.kinds[0].count, 3);
    assert_int_equal(told.kinds[0].total_ns, 60);
    assert_int_equal(told.kinds[0].median_ns, 20);
    assert_int_equal(told.kinds[0].tokens, 30);
    assert_int_equal(told.kinds[0].planned_ns, 7);
    assert_int_equal(told.kinds[1].stage, 5);
    assert_int_equal(told.kinds[2].b_stage, 5);
    assert_int_equal(told.kinds[2].b_kind, DP_ACTION_I);
    assert_int_equal(told.kinds[3].total_ns, 60);
    assert_int_equal(told.launch_gap_ns, 60);
    assert_int_equal(told.off_core_ns, 6);
    dp_exec_times_end(times, true, 1300, &told); // sim: as planned
    assert_int_equal(told.launch_gap_ns, 12);
    dp_exec_times_free(times);
}

static void the_next_step_begins_with_nothing(void **state)
{
    (void)state;
    struct times *times = dp_exec_times_new();
    struct dp_exec_link_time message = {.bytes = 100, .transfer_ns = 9, .waiting_ns = 4};
    struct dp_exec_times told;
    dp_exec_times_begin(times, 0);
    act(times, DP_ACTION_F, 0, 0, 10);
    act(times, DP_ACTION_W, 0, 0, 10);
    dp_exec_times_message(times, 3, &message);
    dp_exec_times_message(times, 1, &message);
    dp_exec_times_message(times, 3, &message);
    dp_exec_times_end(times, false, 30, &told);
    assert_int_equal(told.links_count, 2);
    assert_int_equal(told.links[0].peer, 3);
    assert_int_equal(told.links[0].count, 2);
    assert_int_equal(told.links[0].bytes, 200);
    assert_int_equal(told.links[0].transfer_ns, 18);
    assert_int_equal(told.links[0].waiting_ns, 8);
    assert_int_equal(told.launch_gap_ns, 0);
    dp_exec_times_begin(times, 100);
    act(times, DP_ACTION_W, 0, 0, 11);
    dp_exec_times_message(times, 1, &message);
    dp_exec_times_end(times, false, 116, &told);
    assert_int_equal(told.kinds_count, 1); // what did not run is not told
    assert_int_equal(told.kinds[0].kind, DP_ACTION_W);
    assert_int_equal(told.kinds[0].total_ns, 11);
    assert_int_equal(told.links_count, 1);
    assert_int_equal(told.links[0].peer, 1);
    dp_exec_times_free(times);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_summed_by_kind_and_stages),
        cmocka_unit_test(the_next_step_begins_with_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
