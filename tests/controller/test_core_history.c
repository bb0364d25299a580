// What is kept of what happened, when the disk fails meanwhile: who asked for what, how attempts
// ended, what became of decisions.
#include "core_world.h"
#include "dp_test.h"

// An operator's word about a node, with its row of the audit.
static void ask_down(struct world *world, uint64_t reply)
{
    struct dp_audit_record audit = {.user = "mo", .verb = "SetNode", .object = "a"};
    struct dp_core_event event = {
        .kind = DP_EVENT_NODE_ASK,
        .audit = &audit,
        .audit_reply = reply,
        .node_ask = {.reply = reply,
                     .node = "a",
                     .reason = "fan",
                     .by = "mo",
                     .word = "down",
                     .action = DP_NODE_SET_DOWN},
    };
    world_step(world, &event);
}

static void cancel(struct world *world, uint64_t reply)
{
    struct dp_audit_record audit = {.user = "mo", .verb = "CancelJob", .object = "job-1"};
    struct dp_core_event event = {.kind = DP_EVENT_CANCEL,
                                  .audit = &audit,
                                  .audit_reply = reply,
                                  .ask = {.reply = reply, .job = "job-1", .reason = ""}};
    world_step(world, &event);
}

// The same job each time.
static void submit(struct world *world, uint64_t reply)
{
    struct dp_audit_record audit = {.user = "mo", .verb = "SubmitJob"};
    struct dp_core_event event = {
        .kind = DP_EVENT_SUBMIT,
        .audit = &audit,
        .audit_reply = reply,
        .submit = {.reply = reply,
                   .request_id = "once",
                   .name = "x",
                   .device = "cpu",
                   .job_toml = "",
                   .ranks_wanted = 1,
                   .ranks_fixed = true,
                   .steps_total = 1},
    };
    world_step(world, &event);
}

static void what_holds_though_it_was_not_stored_is_in_the_audit_when_the_disk_works(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    (void)world_hello(&world, "a", 2, NULL, 0);
    world.hold_store = true;
    ask_down(&world, 7);
    assert_int_equal(world.audit_rows, 1);
    world_store(&world, DP_IO);
    assert_int_equal(world_reply(&world, 7)->status, DP_IO);
    assert_int_equal(world_node_state(&world, "a"), DP_NODE_DOWN);
    world_pass(&world, world.config.store_retry_ms);
    assert_int_equal(world.audit_rows, 2);
    world_store_all(&world);
    world_pass(&world, 10 * world.config.store_retry_ms);
    assert_int_equal(world.audit_rows, 2);
    assert_string_equal(world.audit.user, "mo");
    assert_string_equal(world.audit.outcome, "ok");
}

static void an_answer_waits_for_its_row_of_the_audit(void **state)
{
    (void)state;
    AUTO_WORLD world;
    uint64_t sessions[2];
    world_start(&world, DP_STATE_RUNNING, sessions);
    world.hold_store = true;
    cancel(&world, 7);
    world_store(&world, DP_IO);
    assert_null(world_reply(&world, 7));
    world_pass(&world, world.config.store_retry_ms);
    assert_int_equal(world.audit_rows, 2);
    assert_null(world_reply(&world, 7));
    world_store_all(&world);
    assert_int_equal(world_reply(&world, 7)->status, DP_OK);
}

// Asked for once more before the first transaction is answered: that one stands, and so does the
// job, whatever becomes of the later one.
static void a_job_that_is_on_disk_outlives_a_later_transaction_that_fails(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world.hold_store = true;
    for (uint64_t reply = 1; reply <= 2; reply++) {
        submit(&world, reply);
    }
    world_store(&world, DP_OK);
    assert_int_equal(world_reply(&world, 1)->job, 1);
    world_store(&world, DP_IO);
    assert_non_null(world_job(&world, 1));
    assert_null(world_reply(&world, 2));
    world_pass(&world, world.config.store_retry_ms);
    world_store_all(&world);
    assert_int_equal(world_reply(&world, 2)->job, 1);
    assert_int_equal(world_job(&world, 1)->state, DP_STATE_QUEUED);
}

static void a_submission_that_could_not_be_stored_is_refused_in_the_audit_too(void **state)
{
    (void)state;
    AUTO_WORLD world;
    world_init(&world);
    world.hold_store = true;
    submit(&world, 1);
    assert_string_equal(world.audit.outcome, "ok");
    world_store(&world, DP_IO);
    assert_int_equal(world_reply(&world, 1)->status, DP_IO);
    assert_null(world_job(&world, 1));
    world_pass(&world, world.config.store_retry_ms);
    assert_int_equal(world.audit_rows, 2);
    assert_string_equal(world.audit.outcome, dp_status_name(DP_IO));
    world_store_all(&world);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_holds_though_it_was_not_stored_is_in_the_audit_when_the_disk_works),
    cmocka_unit_test(an_answer_waits_for_its_row_of_the_audit),
    cmocka_unit_test(a_job_that_is_on_disk_outlives_a_later_transaction_that_fails),
    cmocka_unit_test(a_submission_that_could_not_be_stored_is_refused_in_the_audit_too),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
