// A job that has lost ranks takes more when there is room for them again.
#include <string.h>

#include "dp/check.h"
#include "dp_test.h"
#include "reassign_world.h"

enum { SMALL = 2, FULL = 4 };

// Time passes in which all nodes say what they have.
static void pass(struct change *change, const char *places, uint64_t step, uint32_t seconds)
{
    for (uint32_t i = 0; i < seconds; i++) {
        change->world.sent_count = 0;
        world_pass(&change->world, 1000);
        change_level(change, 2, places, DP_RANK_RUNNING, step);
        world_heartbeat(&change->world, change->b, NULL, 0);
        world_heartbeat(&change->world, change->c, NULL, 0);
    }
}

// The job of four ranks goes on with two, on node a alone.
static void make_small(struct change *change, const char *away)
{
    change_ask(change, 0, away, false);
    change_answer(change, "aa");
    change_level(change, 2, "aa", DP_RANK_READY, 0);
    change_hold(change, 1, "aabb", 15, 5, "");
    change_level(change, 2, "aa", DP_RANK_RUNNING, 5);
    change_stop(change, 1, "aabb");
    change_assert_state(change, DP_STATE_RUNNING);
    assert_int_equal(change_job(change)->ranks_count, SMALL);
}

static void it_asks_once_there_was_room_for_a_while_and_is_as_large_again(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    make_small(&change, "");
    size_t asks = change.world.asks;
    pass(&change, "aa", 5, 50);
    assert_int_equal(change.world.asks, asks); // it was asked less than a minute ago
    pass(&change, "aa", 5, 15);
    assert_int_equal(change.world.asks, asks + 1);
    assert_true(change.world.asked.grows && !change.world.asked.recovers);
    assert_string_equal(change.world.asked.cause,
                        "it has 2 ranks of the 4 that it once had, and there is room again");
    assert_int_equal(change.world.asked.nodes_count, 3);
    change_answer(&change, "aabb");
    change_assert_state(&change, DP_STATE_REASSIGNING);
    change_level(&change, 3, "aabb", DP_RANK_READY, 0);
    change_hold(&change, 2, "aa", 3, 5, "");
    change_level(&change, 3, "aabb", DP_RANK_RUNNING, 5);
    change_assert_state(&change, DP_STATE_RUNNING);
    assert_int_equal(change_job(&change)->ranks_count, FULL);
    assert_int_equal(change_job(&change)->epoch, 3);
}

static void who_waits_for_the_room_goes_first(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    make_small(&change, "");
    world_submit(&change.world, 0, 5, ""); // of six there are four free
    size_t asks = change.world.asks;
    pass(&change, "aa", 5, 120);
    assert_int_equal(change.world.asks, asks);
    world_cancel(&change.world, 0, "job-2");
    pass(&change, "aa", 5, 9);
    assert_int_equal(change.world.asks, asks);
    pass(&change, "aa", 5, 2);
    assert_int_equal(change.world.asks, asks + 1);
}

static void a_node_that_people_took_from_it_is_not_taken_back(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    make_small(&change, "b");
    size_t asks = change.world.asks;
    pass(&change, "aa", 5, 120);
    assert_int_equal(change.world.asks, asks);
}

// Nothing pays; what slows it down may be asked about again after so many steps.
static void answer_nothing(struct change *change, uint32_t again_steps)
{
    struct dp_core_event event = {.kind = DP_EVENT_ADAPT_DONE,
                                  .adapt_done = {.job = 1,
                                                 .request = change->world.asked.request,
                                                 .kind = "ignore",
                                                 .action = "go on as it is",
                                                 .again_steps = again_steps,
                                                 .document = "{}",
                                                 .document_length = 2}};
    world_step(&change->world, &event);
}

static void what_does_not_pay_is_no_decision_and_not_asked_again_at_once(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    make_small(&change, "");
    pass(&change, "aa", 5, 80);
    size_t asks = change.world.asks;
    uint64_t number = change.world.decision.number;
    assert_true(change.world.asked.grows);
    answer_nothing(&change, 0);
    assert_int_equal(change.world.decision.number, number);
    assert_int_equal(world_noted(&change.world, "job.not_grown", "go on as it is"), 1);
    pass(&change, "aa", 5, 30);
    assert_int_equal(change.world.asks, asks);
}

// It is asked about more ranks; [straggler] policy says what may be done about slow ones.
static void asked_of(struct change *change, dp_adapt_policy policy)
{
    change_init_of(change, DP_JOB_RECOVERY_AUTO, policy, 5);
    make_small(change, "");
    pass(change, "aa", 5, 80);
    assert_true(change->world.asked.grows);
}

static void what_pays_beside_more_ranks_is_left_to_the_policy_of_the_job(void **state)
{
    (void)state;
    static const dp_adapt_policy policies[] = {DP_JOB_ADAPT_OFF, DP_JOB_ADAPT_ADVISE};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(policies); i++) {
        AUTO_CHANGE change;
        asked_of(&change, policies[i]);
        uint64_t number = change.world.decision.number;
        change_answer_of(&change, "spare", "ac");
        change_assert_state(&change, DP_STATE_RUNNING);
        assert_int_equal(change_job(&change)->epoch, 2);
        bool advised = policies[i] == DP_JOB_ADAPT_ADVISE;
        assert_int_equal(change.world.decision.number, number + advised);
        assert_int_equal(world_noted(&change.world, "job.not_grown", "layer 3 to rank 1"),
                         advised ? 0 : 1);
    }
    AUTO_CHANGE change;
    asked_of(&change, DP_JOB_ADAPT_OFF);
    change_answer_of(&change, "grow", "aabb");
    assert_int_equal(change_job(&change)->epoch_used, 3);
}

// When it is to be asked about slow ranks again says nothing of more ranks.
static void a_minute_passes_between_two_such_questions_whatever_else_is_to_be_asked(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    asked_of(&change, DP_JOB_ADAPT_OFF);
    answer_nothing(&change, 3);
    size_t asks = change.world.asks;
    world_submit(&change.world, 0, 20, ""); // the queue is looked at, and so is who may grow
    pass(&change, "aa", 5, 50);
    assert_int_equal(change.world.asks, asks);
    pass(&change, "aa", 5, 15);
    assert_int_equal(change.world.asks, asks + 1);
    // And two before the third.
    answer_nothing(&change, 3);
    world_submit(&change.world, 0, 20, "");
    pass(&change, "aa", 5, 110);
    assert_int_equal(change.world.asks, asks + 1);
    pass(&change, "aa", 5, 15);
    assert_int_equal(change.world.asks, asks + 2);
}

static void set_quota(struct change *change, uint32_t ranks)
{
    struct dp_core_event event = {
        .kind = DP_EVENT_QUOTA_ASK,
        .quota_ask = {.reply = 77, .user = change_job(change)->user, .by = "", .ranks = ranks}};
    world_step(&change->world, &event);
}

static void more_ranks_are_looked_for_within_the_quota_of_the_user(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    set_quota(&change, FULL);
    make_small(&change, "");
    pass(&change, "aa", 5, 80);
    const struct world_asked *asked = &change.world.asked;
    assert_true(asked->grows);
    uint32_t slots = 0;
    for (size_t i = 0; i < asked->nodes_count; i++) {
        slots += asked->slots[i];
    }
    assert_int_equal(slots, FULL); // of six
}

static void a_job_with_all_ranks_that_its_user_may_have_does_not_grow(void **state)
{
    (void)state;
    AUTO_CHANGE change;
    change_init(&change, DP_JOB_RECOVERY_AUTO, 5);
    make_small(&change, "");
    set_quota(&change, 2);
    size_t asks = change.world.asks;
    pass(&change, "aa", 5, 80);
    assert_int_equal(change.world.asks, asks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_asks_once_there_was_room_for_a_while_and_is_as_large_again),
        cmocka_unit_test(who_waits_for_the_room_goes_first),
        cmocka_unit_test(a_node_that_people_took_from_it_is_not_taken_back),
        cmocka_unit_test(what_does_not_pay_is_no_decision_and_not_asked_again_at_once),
        cmocka_unit_test(what_pays_beside_more_ranks_is_left_to_the_policy_of_the_job),
        cmocka_unit_test(a_minute_passes_between_two_such_questions_whatever_else_is_to_be_asked),
        cmocka_unit_test(more_ranks_are_looked_for_within_the_quota_of_the_user),
        cmocka_unit_test(a_job_with_all_ranks_that_its_user_may_have_does_not_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
