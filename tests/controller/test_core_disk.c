// Slots of a job that ends, or begins again, while the disk fails: until that is stored they are
// its own. A controller that was started meanwhile would have its ranks begin there once more.
#include <signal.h>

#include "core_world.h"
#include "dp_test.h"

// Job 1 has both slots of the only node, job 2 waits for them; from now on tests answer for the
// disk. Returns the node's session.
static uint64_t bring(struct world *world, dp_recovery_policy recovery, dp_rank_phase phase)
{
    world_init(world);
    world->recovery = recovery;
    uint64_t session = world_hello(world, "a", 2, NULL, 0);
    for (uint64_t job = 1; job <= 2; job++) {
        world_submit(world, job, 2, "");
    }
    for (dp_rank_phase reached = DP_RANK_STARTING; reached <= phase; reached++) {
        world_level(world, session, 0, 1, reached);
    }
    assert_int_equal(world_job(world, 2)->state, DP_STATE_QUEUED);
    world->hold_store = world->hold_plan = true;
    return session;
}

static void lose_keeper(struct world *world, uint64_t session)
{
    struct dp_assignment_level level = {.keeper_lost = true, .keeper_signal = SIGKILL};
    world_send_level(world, session, &level);
}

static void assert_kept(const struct world *world, dp_job_state state)
{
    assert_string_equal(dp_job_state_text(world_job(world, 1)->state), dp_job_state_text(state));
    assert_int_equal(world->planned_job, 0);
}

// The disk takes what it did not before: now there is room.
static void recover_disk(struct world *world)
{
    world_store(world, DP_IO);
    assert_int_equal(world->planned_job, 0);
    world_pass(world, world->config.store_retry_ms);
    world_store_all(world);
    assert_int_not_equal(world->planned_job, 0);
}

static void a_job_begins_again_when_its_stop_is_on_disk(void **state)
{
    (void)state;
    static const dp_rank_phase phases[] = {DP_RANK_STARTING, DP_RANK_RUNNING};
    for (size_t i = 0; i < 2; i++) {
        AUTO_WORLD world;
        uint64_t session = bring(&world, DP_JOB_RECOVERY_CHECKPOINT, phases[i]);
        lose_keeper(&world, session);
        assert_kept(&world, DP_STATE_STOPPING);
        recover_disk(&world);
        assert_int_equal(world_job(&world, 1)->state, DP_STATE_QUEUED);
        assert_int_equal(world_job(&world, 1)->attempt, 2);
    }
}

// What is on disk may be from before: a checkpoint was made, then it ended.
static void slots_stay_a_jobs_while_its_end_is_not_on_disk(void **state)
{
    (void)state;
    static const struct {
        dp_recovery_policy recovery;
        dp_job_state state;
    } ends[] = {{DP_JOB_RECOVERY_OFF, DP_STATE_FAILED},
                {DP_JOB_RECOVERY_CHECKPOINT, DP_STATE_STOPPING}};
    for (size_t i = 0; i < 2; i++) {
        AUTO_WORLD world;
        uint64_t session = bring(&world, ends[i].recovery, DP_RANK_RUNNING);
        struct dp_report report = {.kind = DP_REPORT_CHECKPOINT,
                                   .checkpoint = {.step = 5, .path = "/c", .error = ""}};
        world_report(&world, session, 0, &report);
        lose_keeper(&world, session);
        assert_int_equal(world.tokens_count, 2);
        world_store(&world, DP_OK);
        assert_kept(&world, ends[i].state);
        recover_disk(&world);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_job_begins_again_when_its_stop_is_on_disk),
    cmocka_unit_test(slots_stay_a_jobs_while_its_end_is_not_on_disk),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
