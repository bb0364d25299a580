// What ranks report, and what a controller that was started again makes of it.
#include <stdlib.h>

#include "core_world.h"
#include "dp/alloc.h"
#include "dp_test.h"

static void a_step_is_complete_when_the_slowest_rank_has_done_it(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    for (uint32_t r = 0; r < 3; r++) {
        world_report_step(&world, sessions[r / 2], r, 1, r == 0 ? 5.5 : 0);
        world_report_step(&world, sessions[r / 2], r, 2, r == 0 ? 5.25 : 0);
    }
    assert_int_equal(world.steps_count, 0);
    assert_int_equal(world_job(&world, 1)->step, 0);
    world_report_step(&world, sessions[1], 3, 1, 0);
    assert_int_equal(world.steps_count, 1);
    assert_int_equal(world.steps[0].step, 1);
    assert_int_equal(world.steps[0].step_ns, 1003); // of rank 3, the slowest
    assert_true(world.steps[0].loss_known && world.steps[0].loss == 5.5);
    assert_int_equal(world_job(&world, 1)->first_step_ns, 50);
    world_report_step(&world, sessions[1], 3, 2, 0);
    assert_int_equal(world_job(&world, 1)->step, 2);
    assert_true(world_job(&world, 1)->loss == 5.25);
}

static void steps_that_are_told_again_count_once(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    for (int round = 0; round < 3; round++) {
        for (uint32_t r = 0; r < 4; r++) {
            for (uint64_t step = 1; step <= 3; step++) {
                world_report_step(&world, sessions[r / 2], r, step, 2.0);
            }
        }
    }
    assert_int_equal(world.steps_count, 3);
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    dp_core_job(world.core, 1, &ranks, &count);
    assert_int_equal(count, 4);
    // The first step warms up and is not measured.
    assert_int_equal(ranks[2].steps_measured, 2);
    assert_int_equal(ranks[2].busy_ns, 20);
    assert_int_equal(ranks[2].exchange_ns, 4);
    assert_int_equal(ranks[2].grad_sync_ns, 6);
    assert_int_equal(ranks[2].optimizer_ns, 8);
    assert_int_equal(ranks[2].measured_ns, 2 * 1002);
    // The newest step's load stays, also when older ones are told again.
    assert_true(ranks[2].load.skew == 1.375 && ranks[2].load.rank == 1.25);
    assert_true(ranks[2].load.layer == 3 && ranks[2].load.expert == 2);
}

static void steps_that_were_lost_are_skipped(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    for (uint32_t r = 0; r < 4; r++) {
        world_report_step(&world, sessions[r / 2], r, 100000, 1.5);
    }
    assert_int_equal(world.steps_count, 1);
    assert_int_equal(world_job(&world, 1)->step, 100000);
}

static void traces_are_stored_with_their_steps(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    struct dp_report report = {.kind = DP_REPORT_STEP};
    report.step.row.step = 1;
    report.step.trace = "spans";
    report.step.trace_length = 5;
    world_report(&world, sessions[0], 0, &report);
    assert_int_equal(world.traces, 1);
}

static void usage_adds_up_and_keeps_its_peaks(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    for (int i = 0; i < 3; i++) {
        struct dp_report report = {.kind = DP_REPORT_USAGE};
        report.usage.forward_ns = 100 + i;
        report.usage.idle_ns = 7;
        report.usage.peak_chunks = i == 1 ? 5 : 2;
        world_report(&world, sessions[0], 1, &report);
    }
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    dp_core_job(world.core, 1, &ranks, &count);
    assert_int_equal(ranks[1].usage.forward_ns, 102);
    assert_int_equal(ranks[1].total.forward_ns, 303);
    assert_int_equal(ranks[1].total.idle_ns, 21);
    assert_int_equal(ranks[1].total.peak_chunks, 5);
}

static void ask_for_checkpoint(struct world *world, uint64_t reply)
{
    struct dp_core_event event = {.kind = DP_EVENT_CHECKPOINT,
                                  .ask = {.reply = reply, .job = "job-1", .reason = ""}};
    world_step(world, &event);
}

static void a_checkpoint_is_answered_with_its_path(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    ask_for_checkpoint(&world, 9);
    ask_for_checkpoint(&world, 10);
    assert_int_equal(world_sent(&world, DP_ORDER_CHECKPOINT, ""), 4);
    struct dp_report report = {.kind = DP_REPORT_CHECKPOINT};
    report.checkpoint.step = 6;
    report.checkpoint.path = "/c/step-6";
    report.checkpoint.request = world.sent[world.sent_count - 3].request;
    world.hold_store = true;
    world_report(&world, sessions[0], 0, &report);
    assert_null(world_reply(&world, 9)); // a crash may take it back until it is stored
    world_store_all(&world);
    world.hold_store = false;
    assert_string_equal(world_reply(&world, 9)->text, "/c/step-6");
    assert_int_equal(world_reply(&world, 9)->request, 6);
    assert_null(world_reply(&world, 10));
    assert_string_equal(world_job(&world, 1)->checkpoint, "/c/step-6");
    world.now_ns += world.config.checkpoint_timeout_ms * 1000000ll;
    world_level(&world, sessions[0], 0, 1, DP_RANK_RUNNING);
    assert_int_equal(world_reply(&world, 10)->status, DP_TIMEOUT);
}

static void one_checkpoint_answers_everybody_who_asked_before(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    for (uint64_t reply = 9; reply < 12; reply++) {
        ask_for_checkpoint(&world, reply);
    }
    struct dp_report report = {.kind = DP_REPORT_CHECKPOINT};
    report.checkpoint.path = "/c/step-6";
    world_report(&world, sessions[0], 0, &report); // by the plan: asked for by nobody
    assert_null(world_reply(&world, 9));
    report.checkpoint.request = world.sent[world.sent_count - 1].request;
    world_report(&world, sessions[0], 0, &report);
    for (uint64_t reply = 9; reply < 12; reply++) {
        assert_string_equal(world_reply(&world, reply)->text, "/c/step-6");
    }
}

static void numbers_that_are_none_stay_out_of_the_rows(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    double nan = strtod("nan", NULL), infinite = strtod("inf", NULL);
    struct dp_report report = {.kind = DP_REPORT_EVAL};
    report.eval.loss = nan;
    world_report(&world, sessions[0], 0, &report);
    assert_false(world_job(&world, 1)->holdout_known);
    report = (struct dp_report){.kind = DP_REPORT_READY};
    report.ready = (struct dp_rank_ready){.corpus_bytes = 5, .unigram_entropy = nan};
    world_report(&world, sessions[0], 0, &report);
    assert_true(world_job(&world, 1)->unigram_entropy == 0);
    for (uint32_t r = 0; r < 4; r++) {
        report = (struct dp_report){.kind = DP_REPORT_STEP};
        report.step.row = (struct dp_step_record){
            .step = 1, .loss = infinite, .loss_known = true, .lr = nan, .grad_norm = infinite};
        report.step.load = (struct dp_rank_load){.skew = infinite, .rank = nan};
        world_report(&world, sessions[r / 2], r, &report);
    }
    assert_int_equal(world.steps_count, 1);
    assert_false(world.steps[0].loss_known);
    assert_true(world.steps[0].lr == 0 && world.steps[0].grad_norm == 0);
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    dp_core_job(world.core, 1, &ranks, &count);
    assert_true(count > 0 && ranks[0].load.skew == 0 && ranks[0].load.rank == 0);
}

static void a_checkpoint_of_a_job_that_ends_first_is_a_conflict(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_ASSIGNING, sessions);
    ask_for_checkpoint(&world, 8);
    assert_int_equal(world_reply(&world, 8)->status, DP_CONFLICT);
    for (int phase = DP_RANK_READY; phase <= DP_RANK_RUNNING; phase++) {
        world_level(&world, sessions[0], 0, 1, (dp_rank_phase)phase);
        world_level(&world, sessions[1], 2, 3, (dp_rank_phase)phase);
    }
    ask_for_checkpoint(&world, 9);
    world_level(&world, sessions[0], 0, 1, DP_RANK_FINISHED);
    world_level(&world, sessions[1], 2, 3, DP_RANK_FINISHED);
    assert_int_equal(world_reply(&world, 9)->status, DP_CONFLICT);
}

// A controller that starts with job-1 in `state` on nodes a and b, step 5 done by all four ranks.
static void load(struct world *world, dp_job_state state)
{
    struct dp_job_record job = {.number = 1,
                                .id = "job-1",
                                .state = state,
                                .attempt = 1,
                                .epoch = 1,
                                .step = 5,
                                .ranks_wanted = 4,
                                .steps_total = 10};
    job.outcome = state == DP_STATE_STOPPING ? DP_STATE_CANCELLED : DP_STATE_UNKNOWN;
    struct dp_rank_record ranks[4] = {0};
    for (uint32_t r = 0; r < 4; r++) {
        ranks[r] = (struct dp_rank_record){.job = 1, .rank = r, .slot = r % 2};
        ranks[r].phase = state == DP_STATE_RUNNING ? DP_RANK_RUNNING : DP_RANK_UNKNOWN;
        DP_COPY_TEXT(ranks[r].node, r < 2 ? "a" : "b");
    }
    struct dp_node_record nodes[2] = {
        {.name = "a", .slots = 2, .lease_ms = 10000, .fence_ms = 60000},
        {.name = "b", .slots = 2, .lease_ms = 10000, .fence_ms = 60000}};
    struct dp_core_event event = {.kind = DP_EVENT_LOAD_NODE};
    for (size_t n = 0; n < 2; n++) {
        event.load_node = &nodes[n];
        world_step(world, &event);
    }
    struct dp_core_event load_job = {
        .kind = DP_EVENT_LOAD_JOB, .load_job = {&job, ranks, state >= DP_STATE_ASSIGNING ? 4 : 0}};
    world_step(world, &load_job);
}

static uint64_t return_with(struct world *world, const char *node, uint32_t first,
                            dp_rank_phase phase)
{
    struct dp_rank_level ranks[2];
    struct dp_assignment_level level = world_pair(ranks, first, phase);
    return world_hello(world, node, 2, &level, 1);
}

static void a_running_job_goes_on_under_a_controller_that_was_started_again(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    load(&world, DP_STATE_RUNNING);
    uint64_t a = return_with(&world, "a", 0, DP_RANK_RUNNING);
    uint64_t b = return_with(&world, "b", 2, DP_RANK_RUNNING);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
    for (uint64_t step = 3; step <= 6; step++) {
        for (uint32_t r = 0; r < 4; r++) {
            world_report_step(&world, r < 2 ? a : b, r, step, 2.0);
        }
    }
    assert_int_equal(world.steps_count, 1); // 6: the others were known
    assert_int_equal(world.steps[0].step, 6);
    world_level(&world, a, 0, 1, DP_RANK_FINISHED);
    world_level(&world, b, 2, 3, DP_RANK_FINISHED);
    assert_int_equal(world_sent(&world, DP_ORDER_RELEASE, ""), 2);
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, ""), 0);
    assert_int_equal(world_sent(&world, DP_ORDER_START, ""), 0);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, ""), 0);
}

static void a_rank_that_ended_while_the_controller_was_away_ends_the_job(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    load(&world, DP_STATE_RUNNING);
    return_with(&world, "a", 0, DP_RANK_RUNNING);
    return_with(&world, "b", 2, DP_RANK_DIED);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_STOPPING);
    assert_string_equal(world_job(&world, 1)->reason, "RankDied");
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 1);
}

static void a_node_that_does_not_return_is_lost_after_its_whole_lease(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    load(&world, DP_STATE_RUNNING);
    world_pass(&world, 10000 + world.config.lease_margin_ms - 1);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_RUNNING);
    world_pass(&world, 1);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_LOST);
    assert_string_equal(world_job(&world, 1)->reason, "NodeLost");
    world_pass(&world, 50000 - 1);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_LOST);
    world.hold_store = true;
    world_pass(&world, 1);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_FAILED);
    assert_string_equal(world_job(&world, 1)->reason, "NodeLost");
}

// The row of its node could not be stored.
static void a_node_that_only_a_job_names_is_waited_for_too(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    struct dp_job_record job = {.number = 1,
                                .id = "job-1",
                                .state = DP_STATE_RUNNING,
                                .attempt = 1,
                                .epoch = 1,
                                .ranks_wanted = 1,
                                .steps_total = 10};
    struct dp_rank_record rank = {.job = 1, .node = "a", .phase = DP_RANK_RUNNING};
    struct dp_core_event event = {.kind = DP_EVENT_LOAD_JOB, .load_job = {&job, &rank, 1}};
    world_step(&world, &event);
    world_pass(&world, world.config.lease_default_ms + world.config.lease_margin_ms);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_LOST);
}

static void an_assignment_that_was_never_told_is_told_now(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    load(&world, DP_STATE_ASSIGNING);
    world_hello(&world, "a", 2, NULL, 0);
    return_with(&world, "b", 2, DP_RANK_READY);
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, "a"), 1);
    assert_int_equal(world_sent(&world, DP_ORDER_PREPARE, "b"), 0);
}

static void a_cancel_that_was_stored_is_carried_out_after_a_restart(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    load(&world, DP_STATE_STOPPING);
    return_with(&world, "a", 0, DP_RANK_RUNNING);
    assert_int_equal(world_sent(&world, DP_ORDER_STOP, "a"), 1);
    world_hello(&world, "b", 2, NULL, 0); // has none of it
    world.hold_store = true;
    uint64_t a = return_with(&world, "a", 0, DP_RANK_DIED);
    (void)a;
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_CANCELLED);
}

static void what_was_submitted_waits_again_after_a_restart(void **state)
{
    (void)state;
    static const dp_job_state states[] = {DP_STATE_SUBMITTED, DP_STATE_QUEUED, DP_STATE_PLANNED};
    for (size_t i = 0; i < 3; i++) {
        AUTO_WORLD world;
        world_init(&world);
        load(&world, states[i]);
        assert_int_equal(world_job(&world, 1)->state, DP_STATE_QUEUED);
        world_submit(&world, 1, 4, "");
        assert_int_equal(world_reply(&world, 1)->job, 2);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_step_is_complete_when_the_slowest_rank_has_done_it),
    cmocka_unit_test(steps_that_are_told_again_count_once),
    cmocka_unit_test(steps_that_were_lost_are_skipped),
    cmocka_unit_test(traces_are_stored_with_their_steps),
    cmocka_unit_test(usage_adds_up_and_keeps_its_peaks),
    cmocka_unit_test(a_checkpoint_is_answered_with_its_path),
    cmocka_unit_test(one_checkpoint_answers_everybody_who_asked_before),
    cmocka_unit_test(numbers_that_are_none_stay_out_of_the_rows),
    cmocka_unit_test(a_checkpoint_of_a_job_that_ends_first_is_a_conflict),
    cmocka_unit_test(a_running_job_goes_on_under_a_controller_that_was_started_again),
    cmocka_unit_test(a_rank_that_ended_while_the_controller_was_away_ends_the_job),
    cmocka_unit_test(a_node_that_does_not_return_is_lost_after_its_whole_lease),
    cmocka_unit_test(a_node_that_only_a_job_names_is_waited_for_too),
    cmocka_unit_test(an_assignment_that_was_never_told_is_told_now),
    cmocka_unit_test(a_cancel_that_was_stored_is_carried_out_after_a_restart),
    cmocka_unit_test(what_was_submitted_waits_again_after_a_restart),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
