// One job's way through its states.
#include <stdlib.h>

#include "core_world.h"
#include "dp/alloc.h"
#include "dp_test.h"

static void the_moves_are_those_of_the_design_and_no_other(void **state)
{
    (void)state;
    // From the design's picture of a job's states; PLANNED may fall back when its nodes are gone.
    static const struct {
        dp_job_state from;
        const char *to;
    } rows[] = {
        {DP_STATE_UNKNOWN, "SUBMITTED"},
        {DP_STATE_SUBMITTED, "QUEUED FAILED CANCELLED"},
        {DP_STATE_QUEUED, "PLANNED FAILED CANCELLED"},
        {DP_STATE_PLANNED, "QUEUED ASSIGNING FAILED CANCELLED"},
        {DP_STATE_ASSIGNING, "RUNNING STOPPING"},
        {DP_STATE_RUNNING, "REASSIGNING STOPPING COMPLETED LOST"},
        {DP_STATE_REASSIGNING, "RUNNING STOPPING"},
        {DP_STATE_STOPPING, "QUEUED COMPLETED FAILED CANCELLED"},
        {DP_STATE_COMPLETED, ""},
        {DP_STATE_FAILED, ""},
        {DP_STATE_CANCELLED, ""},
        {DP_STATE_LOST, "RUNNING REASSIGNING STOPPING"},
    };
    assert_int_equal(sizeof(rows) / sizeof(rows[0]), DP_STATE_COUNT);
    for (size_t i = 0; i < DP_STATE_COUNT; i++) {
        char allowed[256];
        snprintf(allowed, sizeof(allowed), " %s ", rows[i].to);
        for (unsigned to = 1; to < DP_STATE_COUNT; to++) {
            char word[64];
            snprintf(word, sizeof(word), " %s ", dp_job_state_text((dp_job_state)to));
            assert_int_equal(dp_job_state_may_move(rows[i].from, (dp_job_state)to),
                             strstr(allowed, word) != NULL);
        }
    }
}

static void a_submission_is_answered_only_after_it_is_stored(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world.hold_store = true;
    world_submit(&world, 5, 4, "");
    assert_null(world_reply(&world, 5));
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_SUBMITTED);
    world_store(&world, DP_OK);
    assert_non_null(world_reply(&world, 5));
    assert_int_equal(world_reply(&world, 5)->status, DP_OK);
    assert_int_equal(world_reply(&world, 5)->job, 1);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_QUEUED);
}

static void a_submission_that_cannot_be_stored_is_refused_and_forgotten(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world.hold_store = true;
    world_submit(&world, 5, 4, "");
    world_store(&world, DP_IO);
    assert_int_equal(world_reply(&world, 5)->status, DP_IO);
    assert_non_null(strstr(world_reply(&world, 5)->text, "disk is full"));
    assert_int_equal(dp_core_jobs_count(world.core), 0);
}

static void the_same_request_id_gives_the_same_job(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world_submit(&world, 1, 4, "abc");
    world_submit(&world, 2, 4, "abc");
    world_submit(&world, 3, 4, "abd");
    struct dp_core_event other = {
        .kind = DP_EVENT_SUBMIT,
        .submit = {.reply = 4,
                   .request_id = "abc",
                   .name = "a job",
                   .device = "cpu",
                   .job_toml = "x = 2",
                   .job_toml_length = 5,
                   .ranks_wanted = 4},
    };
    world_step(&world, &other);
    assert_int_equal(world_reply(&world, 4)->status, DP_CONFLICT);
    assert_non_null(strstr(world_reply(&world, 4)->text, "job-1"));
    assert_int_equal(world_reply(&world, 1)->job, 1);
    assert_int_equal(world_reply(&world, 2)->job, 1);
    assert_int_equal(world_reply(&world, 3)->job, 2);
}

static void orders_wait_until_the_assignment_is_stored(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world_hello(&world, "a", 4, NULL, 0);
    world.hold_store = true;
    world_submit(&world, 1, 4, "");
    world_store(&world, DP_OK); // SUBMITTED
    while (world_job(&world, 1)->state != DP_STATE_ASSIGNING) {
        world_store(&world, DP_OK);
    }
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, ""), 0);
    world_store_all(&world);
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, "a"), 1);
}

static void a_change_that_cannot_be_stored_is_tried_again_and_told_then(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world_hello(&world, "a", 4, NULL, 0);
    world.hold_store = true;
    world_submit(&world, 1, 4, "");
    world_store(&world, DP_OK);
    while (world.tokens_count > 0) {
        world_store(&world, DP_IO);
    }
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_ASSIGNING);
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, ""), 0);
    world_pass(&world, world.config.store_retry_ms - 1);
    assert_int_equal(world.tokens_count, 0);
    world_pass(&world, 1);
    assert_int_equal(world.tokens_count, 1);
    world_store(&world, DP_OK);
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, "a"), 1);
}

static void the_start_comes_when_every_rank_is_ready(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_ASSIGNING, sessions);
    world_level(&world, sessions[0], 0, 1, DP_RANK_READY);
    world_level(&world, sessions[1], 2, 2, DP_RANK_READY);
    assert_int_equal(world_sent(&world, DP_ORDER_START, ""), 0);
    world_level(&world, sessions[1], 3, 3, DP_RANK_READY);
    assert_int_equal(world_sent(&world, DP_ORDER_START, "a"), 1);
    assert_int_equal(world_sent(&world, DP_ORDER_START, "b"), 1);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_ASSIGNING);
    world_level(&world, sessions[0], 0, 1, DP_RANK_RUNNING);
    world_level(&world, sessions[1], 2, 3, DP_RANK_RUNNING);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
}

static void a_job_whose_ranks_all_finish_completes_and_is_released(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    world_level(&world, sessions[0], 0, 1, DP_RANK_FINISHED);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
    world.hold_store = true;
    world_level(&world, sessions[1], 2, 3, DP_RANK_FINISHED);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_COMPLETED);
    assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, ""), 0);
    world_store_all(&world);
    assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, "a"), 1);
    assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, "b"), 1);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, ""), 0);
    world_pass(&world, 1);
    assert_null(world_job(&world, 1)); // only in the store from here on
}

static void completion_waits_for_the_reports_of_the_last_step(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    struct dp_rank_level ranks[4];
    for (uint32_t r = 0; r < 4; r++) {
        ranks[r] = world_rank_level(r, DP_RANK_FINISHED);
        ranks[r].finished.step = 1;
    }
    for (uint32_t n = 0; n < 2; n++) {
        struct dp_assignment_level level = {.ranks = ranks + 2 * n, .ranks_count = 2};
        world_send_level(&world, sessions[n], &level);
    }
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
    for (uint32_t r = 0; r < 4; r++) {
        assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
        world_report_step(&world, sessions[r / 2], r, 1, r == 3 ? 2.5 : 0);
    }
    assert_int_equal(world.steps_count, 1);
    assert_true(world.steps[0].loss == 2.5);
    assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, ""), 2);
}

// All ranks have finished after one step; the reports of it have not come.
static void finish_without_reports(struct world *world, const uint64_t *sessions)
{
    for (uint32_t r = 0; r < 4; r += 2) {
        struct dp_rank_level ranks[] = {world_rank_level(r, DP_RANK_FINISHED),
                                        world_rank_level(r + 1, DP_RANK_FINISHED)};
        ranks[0].finished.step = ranks[1].finished.step = 1;
        ranks[1].finished.holdout_loss = 2.25;
        ranks[1].finished.holdout_known = r == 2;
        struct dp_assignment_level level = {.ranks = ranks, .ranks_count = 2};
        world_send_level(world, sessions[r / 2], &level);
    }
}

static void completion_does_not_wait_for_ever_for_a_lost_report(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    finish_without_reports(&world, sessions);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
    // Reports of an evaluation may be lost, too: it is told again with the end.
    assert_true(world_job(&world, 1)->holdout_known && world_job(&world, 1)->holdout_loss == 2.25);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, ""), 0);
        finish_without_reports(&world, sessions);
        world_pass(&world, world.config.settle_ms);
    }
    assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, ""), 2);
}

// It was stopped, or its cable was out, when its ranks ended: what they said last is still to come.
static void completion_waits_for_the_reports_of_a_node_that_is_silent(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    finish_without_reports(&world, sessions);
    for (int at = 0; at < 2; at++) {
        world_pass(&world, world.config.settle_ms);
        struct dp_rank_level ranks[] = {world_rank_level(0, DP_RANK_FINISHED),
                                        world_rank_level(1, DP_RANK_FINISHED)};
        ranks[0].finished.step = ranks[1].finished.step = 1;
        struct dp_assignment_level level = {.ranks = ranks, .ranks_count = 2};
        world_send_level(&world, sessions[0], &level);
    }
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
    for (uint32_t r = 0; r < 4; r++) {
        world_report_step(&world, sessions[r / 2], r, 1, r == 3 ? 2.5 : 0);
    }
    assert_int_equal(world.steps_count, 1);
    assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, ""), 2);
}

static void ranks_that_are_not_ready_in_time_fail_the_job_by_name(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_ASSIGNING, sessions);
    world_level(&world, sessions[0], 0, 1, DP_RANK_READY);
    world_level(&world, sessions[1], 2, 2, DP_RANK_READY);
    for (int64_t at = 0; at < world.config.prepare_timeout_ms; at += 1000) {
        world_pass(&world, 1000);
        world_heartbeat(&world, sessions[0],
                        &(struct dp_assignment_level){.fence = world_fence("job-1"), .error = ""},
                        1);
        world_heartbeat(&world, sessions[1],
                        &(struct dp_assignment_level){.fence = world_fence("job-1"), .error = ""},
                        1);
    }
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_STOPPING);
    assert_string_equal(world_job(&world, 1)->reason, "PrepareTimeout");
    assert_non_null(strstr(world_job(&world, 1)->message, "rank 3 on b (starting)"));
}

static void ranks_that_do_not_end_keep_the_job_from_ending_and_are_told_again(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    world_cancel(&world, 2, "job-1");
    world_level(&world, sessions[0], 0, 1, DP_RANK_DIED);
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, 2, DP_RANK_RUNNING);
    level.stopping = true;
    for (int64_t at = 0; at < world.config.stop_timeout_ms - 1000; at += 1000) {
        world_pass(&world, 1000);
        world_heartbeat(&world, sessions[1], &level, 1);
        assert_int_equal(world_job(&world, 1)->state, DP_STATE_STOPPING);
    }
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "b"), 1);
    world_pass(&world, 1000);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_STOPPING);
    assert_non_null(strstr(world_job(&world, 1)->message, "rank 2 on b (running)"));
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "b"), 2);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 1);
    struct dp_node_view view;
    dp_core_node_at(world.core, 1, &view);
    assert_int_equal(view.slots_used, 2);
    world.hold_store = true;
    world_level(&world, sessions[1], 2, 3, DP_RANK_DIED);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_CANCELLED);
    assert_string_equal(world_job(&world, 1)->message, "cancelled");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_moves_are_those_of_the_design_and_no_other),
    cmocka_unit_test(a_submission_is_answered_only_after_it_is_stored),
    cmocka_unit_test(a_submission_that_cannot_be_stored_is_refused_and_forgotten),
    cmocka_unit_test(the_same_request_id_gives_the_same_job),
    cmocka_unit_test(orders_wait_until_the_assignment_is_stored),
    cmocka_unit_test(a_change_that_cannot_be_stored_is_tried_again_and_told_then),
    cmocka_unit_test(the_start_comes_when_every_rank_is_ready),
    cmocka_unit_test(a_job_whose_ranks_all_finish_completes_and_is_released),
    cmocka_unit_test(completion_waits_for_the_reports_of_the_last_step),
    cmocka_unit_test(completion_does_not_wait_for_ever_for_a_lost_report),
    cmocka_unit_test(completion_waits_for_the_reports_of_a_node_that_is_silent),
    cmocka_unit_test(ranks_that_are_not_ready_in_time_fail_the_job_by_name),
    cmocka_unit_test(ranks_that_do_not_end_keep_the_job_from_ending_and_are_told_again),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
