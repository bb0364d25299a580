// dp-rank processes that hold their state, told to or since a peer was killed, and others that go
// on from it with the same losses.
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp_test.h"
#include "rank_fleet.h"

#define STEP DP__V1__RANK_REPORT__REPORT_STEP
#define FINISHED DP__V1__RANK_REPORT__REPORT_FINISHED
#define HELD DP__V1__RANK_REPORT__REPORT_HELD
#define CHECKPOINT DP__V1__RANK_REPORT__REPORT_CHECKPOINT
#define UTILISATION DP__V1__RANK_REPORT__REPORT_UTILISATION
#define STEPS 40
#define SAME_CURVE 1e-4

struct layout {
    const char *schedule;
    int32_t pipeline, expert, data;
    const char *shard;
};

static void make(struct fleet *fleet, const struct layout *layout)
{
    fleet_init(fleet);
    struct dp_parallel_spec *parallel = &fleet->spec.parallel;
    fleet->spec.train.steps = STEPS;
    DP_COPY_TEXT(fleet->spec.recovery.policy, "auto");
    DP_COPY_TEXT(parallel->schedule, layout->schedule);
    DP_COPY_TEXT(parallel->shard, layout->shard);
    parallel->pipeline = layout->pipeline;
    parallel->expert = layout->expert;
    parallel->data = layout->data;
    parallel->micro_batch_size = 1;
    parallel->microbatches = 8 / layout->data;
}

static void begin(struct fleet *fleet)
{
    fleet_spawn(fleet);
    fleet_prepare(fleet);
    fleet_start(fleet);
}

// Of the same job under another layout, from what `from` will hold; its ranks are prepared beside.
static void make_next(struct fleet *fleet, const struct layout *layout, const struct fleet *from)
{
    make(fleet, layout);
    fleet->spec.data = from->spec.data;
    fleet->spec.resources = from->spec.resources;
    fleet->spec.sim = from->spec.sim;
    fleet->from = from;
    fleet->fence.epoch = from->fence.epoch + 1;
    fleet_spawn(fleet);
    fleet_prepare(fleet);
    for (int32_t i = 0; i < fleet->count; i++) {
        fleet_await(fleet, i, DP__V1__RANK_REPORT__REPORT_READY, 1);
    }
}

static void finish(struct fleet *fleet)
{
    for (int32_t rank = 0; rank < fleet->count; rank++) {
        if (fleet->ranks[rank].ended) {
            continue;
        }
        const Dp__V1__RankFinished *last = fleet_await(fleet, rank, FINISHED, 1)->finished;
        if (!last->ok) {
            fail_msg("rank %d: %s", rank, last->error);
        }
        assert_int_equal(fleet_await_end(fleet, rank), 0);
    }
}

static void losses_of(struct fleet *fleet, double losses[STEPS + 1])
{
    const Dp__V1__RankReport *report;
    for (size_t n = 1; (report = fleet_report(fleet, 0, STEP, n)) != NULL; n++) {
        losses[report->step->step] = report->step->loss;
    }
}

static void undisturbed(double losses[STEPS + 1])
{
    static const struct layout one = {"gpipe", 1, 1, 1, "none"};
    struct fleet fleet;
    make(&fleet, &one);
    begin(&fleet);
    finish(&fleet);
    losses_of(&fleet, losses);
    fleet_deinit(&fleet);
}

static void expect_losses(struct fleet *fleet, uint64_t after, const double wanted[STEPS + 1])
{
    double losses[STEPS + 1] = {0};
    losses_of(fleet, losses);
    for (uint64_t step = after + 1; step <= STEPS; step++) {
        if (!(fabs(losses[step] - wanted[step]) <= SAME_CURVE * wanted[step])) {
            fail_msg("step %d: loss %.9f, undisturbed %.9f", (int)step, losses[step], wanted[step]);
        }
    }
}

static void expect_steps(const struct fleet *fleet, uint64_t after)
{
    const Dp__V1__RankReport *first = fleet_report(fleet, 0, STEP, 1);
    assert_non_null(first);
    assert_int_equal(first->step->step, after + 1);
}

// Where all hold that were told to.
static uint64_t await_pause(struct fleet *fleet)
{
    const Dp__V1__RankHeld *first = fleet_await(fleet, 0, HELD, 1)->held;
    for (int32_t i = 0; i < fleet->count; i++) {
        const Dp__V1__RankHeld *held = fleet_await(fleet, i, HELD, 1)->held;
        assert_int_equal(held->step, first->step);
        assert_string_equal(held->why, "");
        assert_true(held->address[0] != '\0');
        assert_true(held->norm_known);
    }
    return first->step;
}

static void ranks_that_are_told_to_hold_give_their_state_to_others(void **state)
{
    (void)state;
    static const struct layout layouts[][2] = {
        {{"gpipe", 2, 1, 1, "none"}, {"dualpipev", 2, 1, 2, "zero1"}},
        {{"1f1b", 2, 2, 2, "zero1"}, {"gpipe", 1, 1, 1, "none"}},
    };
    double wanted[STEPS + 1];
    undisturbed(wanted);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(layouts); i++) {
        struct fleet old, new;
        make(&old, &layouts[i][0]);
        begin(&old);
        make_next(&new, &layouts[i][1], &old);
        fleet_await(&old, 0, STEP, 2);
        fleet_pause(&old);
        new.state_step = await_pause(&old);
        assert_in_range(new.state_step, 2, STEPS - 1);
        fleet_start(&new);
        // It says that it stands where the others stood before it has done a step of its own.
        fleet_await(&new, 0, STEP, 1);
        fleet_stop(&old, false);
        finish(&old);
        finish(&new);
        expect_steps(&new, new.state_step);
        expect_losses(&new, new.state_step, wanted);
        fleet_deinit(&new);
        fleet_deinit(&old);
    }
}

// What the controller makes of the words of those that are left.
static uint64_t settle(struct fleet *fleet)
{
    const Dp__V1__RankHeld *ahead = NULL;
    for (int32_t i = 0; i < fleet->count; i++) {
        if (fleet->ranks[i].ended) {
            continue;
        }
        const Dp__V1__RankHeld *held = fleet_await(fleet, i, HELD, 1)->held;
        assert_true(held->why[0] != '\0');
        ahead = ahead == NULL || held->step > ahead->step ? held : ahead;
    }
    for (int32_t i = 0; i < fleet->count; i++) {
        const Dp__V1__RankHeld *held =
            fleet->ranks[i].ended ? ahead : fleet_await(fleet, i, HELD, 1)->held;
        if (held->step < ahead->step) {
            assert_int_equal(held->step + 1, ahead->step);
            assert_true(held->gradients_whole && ahead->norm_known);
            fleet_settle(fleet, i, ahead->step, ahead->grad_norm);
            assert_int_equal(fleet_await(fleet, i, HELD, 2)->held->step, ahead->step);
        }
    }
    return ahead->step;
}

static void when_a_rank_is_killed_the_others_hold_what_it_had_too(void **state)
{
    (void)state;
    // Experts that are shared out over replicas lie on both positions of the pipeline.
    static const struct layout both[] = {{"dualpipe", 2, 1, 2, "none"},
                                         {"dualpipe", 2, 2, 2, "none"}};
    static const struct layout next[] = {{"dualpipe", 2, 1, 2, "none"}, {"1f1b", 2, 1, 1, "none"}};
    double wanted[STEPS + 1];
    undisturbed(wanted);
    unsigned seed = 5;
    for (long i = 0; i < dp_fuzz_runs(4); i++) {
        struct fleet old, new;
        const int32_t victim = (int32_t)(i % 4);
        make(&old, &both[i % 2]);
        begin(&old);
        fleet_await(&old, victim, STEP, 3);
        dp_clock_sleep_until_ns(dp_clock_monotonic_ns() + rand_r(&seed) % 20 * DP_NS_PER_MS);
        kill(old.ranks[victim].pid, SIGKILL);
        assert_int_equal(WTERMSIG(fleet_await_end(&old, victim)), SIGKILL);
        make_next(&new, &next[i / 2 % 2], &old);
        new.state_step = settle(&old);
        fleet_start(&new);
        finish(&new);
        fleet_stop(&old, false);
        finish(&old);
        expect_steps(&new, new.state_step);
        expect_losses(&new, new.state_step, wanted);
        fleet_deinit(&new);
        fleet_deinit(&old);
    }
}

// A slow replica gets less of each step, in the midst of the run.
static void replicas_with_other_shares_go_on_with_the_same_losses(void **state)
{
    (void)state;
    static const struct layout layout = {"1f1b", 2, 1, 2, "none"};
    static const int32_t shares[] = {6, 2};
    double wanted[STEPS + 1];
    undisturbed(wanted);
    struct fleet old, new;
    make(&old, &layout);
    begin(&old);
    make(&new, &layout);
    new.spec.data = old.spec.data;
    new.from = &old;
    new.fence.epoch++;
    fleet_spawn(&new);
    struct dp_error err;
    assert_ok(dp_plan_share_microbatches(&new.plan, shares, &err), &err);
    fleet_prepare(&new);
    fleet_await(&old, 0, STEP, 2);
    fleet_pause(&old);
    new.state_step = await_pause(&old);
    fleet_start(&new);
    finish(&new);
    fleet_stop(&old, false);
    finish(&old);
    expect_steps(&new, new.state_step);
    expect_losses(&new, new.state_step, wanted);
    assert_int_equal(fleet_report(&new, 0, STEP, 1)->step->tokens, 8 * 32);
    fleet_deinit(&new);
    fleet_deinit(&old);
}

static void a_checkpoint_under_way_is_finished_before_ranks_hold(void **state)
{
    (void)state;
    static const struct layout two = {"gpipe", 2, 1, 1, "none"};
    struct fleet fleet;
    make(&fleet, &two);
    fleet.spec.checkpoint.every_steps = 1;
    begin(&fleet);
    fleet_await(&fleet, 0, STEP, 2);
    fleet_pause(&fleet);
    const uint64_t step = await_pause(&fleet);
    const Dp__V1__RankReport *report = NULL, *last = NULL;
    for (size_t n = 1; (report = fleet_report(&fleet, 0, CHECKPOINT, n)) != NULL; n++) {
        assert_string_equal(report->checkpoint->error, "");
        last = report;
    }
    assert_non_null(last);
    assert_int_equal(last->checkpoint->step, step);
    // The directory is free for those that go on.
    struct fleet next;
    make(&next, &two);
    next.spec.data = fleet.spec.data;
    next.spec.checkpoint = fleet.spec.checkpoint;
    next.from = &fleet;
    next.state_step = step;
    next.fence.epoch++;
    begin(&next);
    report = fleet_await(&next, 0, CHECKPOINT, 1);
    assert_string_equal(report->checkpoint->error, "");
    fleet_stop(&fleet, false);
    finish(&fleet);
    finish(&next);
    fleet_deinit(&next);
    fleet_deinit(&fleet);
}

static void sim_ranks_go_on_from_where_others_stood(void **state)
{
    (void)state;
    static const struct layout two = {"1f1b", 2, 1, 1, "none"}, four = {"1f1b", 4, 1, 1, "none"};
    struct fleet old, new;
    make(&old, &two);
    old.spec.resources.device = DP_DEVICE_SIM;
    old.spec.sim = (struct dp_sim_spec){.forward_s = 0.001, .hop_s = 0.0005, .scale = 1};
    begin(&old);
    make_next(&new, &four, &old);
    fleet_await(&old, 0, STEP, 2);
    fleet_pause(&old);
    new.state_step = await_pause(&old);
    fleet_start(&new);
    finish(&new);
    fleet_stop(&old, false);
    finish(&old);
    expect_steps(&new, new.state_step);
    fleet_deinit(&new);
    fleet_deinit(&old);
}

static void a_start_without_sources_is_refused_where_state_is_to_come(void **state)
{
    (void)state;
    static const struct layout one = {"gpipe", 1, 1, 1, "none"};
    struct fleet nobody = {0}, fleet;
    make(&fleet, &one);
    fleet.from = &nobody;
    begin(&fleet);
    const Dp__V1__RankFinished *last = fleet_await(&fleet, 0, FINISHED, 1)->finished;
    assert_false(last->ok);
    assert_non_null(strstr(last->error, "names 0 ranks that hold the state"));
    fleet_deinit(&fleet);
}

static void where_recovery_is_off_a_lost_peer_ends_the_others(void **state)
{
    (void)state;
    static const struct layout two = {"gpipe", 2, 1, 1, "none"};
    struct fleet fleet;
    make(&fleet, &two);
    DP_COPY_TEXT(fleet.spec.recovery.policy, "off");
    begin(&fleet);
    fleet_await(&fleet, 0, STEP, 2);
    kill(fleet.ranks[1].pid, SIGKILL);
    const Dp__V1__RankFinished *last = fleet_await(&fleet, 0, FINISHED, 1)->finished;
    assert_true(!last->ok && last->peer_lost);
    assert_null(fleet_report(&fleet, 0, HELD, 1));
    fleet_deinit(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_are_told_to_hold_give_their_state_to_others),
        cmocka_unit_test(when_a_rank_is_killed_the_others_hold_what_it_had_too),
        cmocka_unit_test(replicas_with_other_shares_go_on_with_the_same_losses),
        cmocka_unit_test(a_checkpoint_under_way_is_finished_before_ranks_hold),
        cmocka_unit_test(sim_ranks_go_on_from_where_others_stood),
        cmocka_unit_test(a_start_without_sources_is_refused_where_state_is_to_come),
        cmocka_unit_test(where_recovery_is_off_a_lost_peer_ends_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
