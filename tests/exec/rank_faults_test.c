// dp-rank processes whose peers and links fail: killed at any moment, standing still, slow, or
// reached over a link that carries nothing any more. Nobody hangs, and no number is wrong.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp_test.h"
#include "rank_fleet.h"

#define STEP DP__V1__RANK_REPORT__REPORT_STEP
#define FINISHED DP__V1__RANK_REPORT__REPORT_FINISHED
#define UTILISATION DP__V1__RANK_REPORT__REPORT_UTILISATION
#define RANKS 4
#ifdef __SANITIZE_THREAD__
#define UNDER_TSAN 1
#else
#define UNDER_TSAN 0
#endif
#define STEPS 30

// Two positions with two expert ranks each: every rank sends rows, activations and sums.
static void prepare_fleet(struct fleet *fleet, const char *transport, int64_t steps)
{
    fleet_init(fleet);
    fleet->spec.parallel.data = 2;
    fleet->spec.parallel.expert = 2;
    fleet->spec.parallel.micro_batch_size = 1;
    fleet->spec.train.steps = steps;
    DP_COPY_TEXT(fleet->spec.parallel.schedule, "dualpipe");
    DP_COPY_TEXT(fleet->spec.parallel.transport, transport);
}

static void begin(struct fleet *fleet)
{
    fleet_spawn(fleet);
    assert_int_equal(fleet->count, RANKS);
    fleet_prepare(fleet);
    fleet_start(fleet);
}

// Random times, the same for a seed.
static int64_t drawn_ns(unsigned *seed, int64_t below_ns)
{
    return (int64_t)(rand_r(seed) % 1000) * below_ns / 1000;
}

static void pass(int64_t time_ns)
{
    dp_clock_sleep_until_ns(dp_clock_monotonic_ns() + time_ns);
}

static void losses_of(const struct fleet *fleet, double losses[STEPS])
{
    for (size_t step = 1; step <= STEPS; step++) {
        const Dp__V1__RankReport *report = fleet_report(fleet, 0, STEP, step);
        assert_non_null(report);
        assert_int_equal(report->step->step, step);
        losses[step - 1] = report->step->loss;
    }
}

static void finish(struct fleet *fleet)
{
    for (int32_t rank = 0; rank < RANKS; rank++) {
        const Dp__V1__RankFinished *last = fleet_await(fleet, rank, FINISHED, 1)->finished;
        if (!last->ok) {
            fail_msg("rank %d: %s", rank, last->error);
        }
        assert_int_equal(fleet_await_end(fleet, rank), 0);
    }
}

// The rank says twice a second how it fares, also while it waits.
static void pass_a_second(struct fleet *fleet, int32_t rank)
{
    size_t taken = 0;
    while (fleet_report(fleet, rank, UTILISATION, taken + 1) != NULL) {
        taken++;
    }
    fleet_await(fleet, rank, UTILISATION, taken + 3);
}

// The losses of a run that nothing happened to.
static void undisturbed(const char *transport, double losses[STEPS])
{
    struct fleet fleet;
    prepare_fleet(&fleet, transport, STEPS);
    begin(&fleet);
    finish(&fleet);
    losses_of(&fleet, losses);
    fleet_deinit(&fleet);
}

static void expect_losses(struct fleet *fleet, const double wanted[STEPS])
{
    double losses[STEPS];
    losses_of(fleet, losses);
    for (int step = 0; step < STEPS; step++) {
        if (losses[step] != wanted[step]) {
            fail_msg("step %d: loss %.17g, undisturbed %.17g", step + 1, losses[step],
                     wanted[step]);
        }
    }
}

// Everybody but `lost` has ended with words about a peer and what was under way; at least one of
// them, who did not only see others end, names the lost one.
static void expect_named(struct fleet *fleet, int32_t lost)
{
    char name[32];
    bool is_named = false;
    snprintf(name, sizeof(name), "rank %d", lost);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        if (rank == lost) {
            continue;
        }
        const Dp__V1__RankFinished *last = fleet_await(fleet, rank, FINISHED, 1)->finished;
        assert_false(last->ok);
        // "rank 1, step 3, FB(1@1;B2@0): ...", or what stands between the actions of two steps.
        const char *doing = strstr(last->error, ", step ");
        if (!last->peer_lost || last->not_finite || doing == NULL || strstr(doing, ": ") == NULL ||
            strstr(doing, last->action) == NULL) {
            fail_msg("rank %d, when %d was lost: peer_lost %d, action \"%s\": %s", rank, lost,
                     last->peer_lost, last->action, last->error);
        }
        // Its own name stands first.
        const char *others = strstr(last->error + strlen("rank N"), name);
        is_named = is_named || others != NULL;
        assert_int_equal(WEXITSTATUS(fleet_await_end(fleet, rank)), 1);
    }
    assert_true(is_named);
}

static void a_peer_killed_at_any_moment_is_named_with_what_was_under_way(void **state)
{
    (void)state;
    static const char *const transports[] = {"shm", "tcp"};
    unsigned seed = 5;
    for (long run = 0; run < dp_fuzz_runs(6); run++) {
        struct fleet fleet;
        prepare_fleet(&fleet, transports[run % 2], 1000000);
        begin(&fleet);
        int32_t victim = (int32_t)(rand_r(&seed) % RANKS);
        fleet_await(&fleet, (victim + 1) % RANKS, STEP, 1 + (size_t)(rand_r(&seed) % 3));
        pass(drawn_ns(&seed, 60 * DP_NS_PER_MS));
        kill(fleet.ranks[victim].pid, SIGKILL);
        expect_named(&fleet, victim);
        assert_int_equal(WTERMSIG(fleet_await_end(&fleet, victim)), SIGKILL);
        fleet_deinit(&fleet);
    }
}

static void a_peer_that_stands_still_for_a_while_changes_no_number(void **state)
{
    (void)state;
    static const char *const transports[] = {"shm", "tcp"};
    for (int i = 0; i < 2; i++) {
        double wanted[STEPS];
        struct fleet fleet;
        undisturbed(transports[i], wanted);
        prepare_fleet(&fleet, transports[i], STEPS);
        begin(&fleet);
        fleet_await(&fleet, 0, STEP, 2);
        kill(fleet.ranks[1 + i].pid, SIGSTOP);
        pass_a_second(&fleet, 0);
        kill(fleet.ranks[1 + i].pid, SIGCONT);
        finish(&fleet);
        expect_losses(&fleet, wanted);
        fleet_deinit(&fleet);
    }
}

static void a_peer_that_is_stopped_again_and_again_changes_no_number(void **state)
{
    (void)state;
    double wanted[STEPS];
    struct fleet fleet;
    unsigned seed = 8;
    undisturbed("shm", wanted);
    prepare_fleet(&fleet, "shm", STEPS);
    begin(&fleet);
    fleet_await(&fleet, 0, STEP, 1);
    for (int i = 0; i < 40; i++) {
        pid_t pid = fleet.ranks[rand_r(&seed) % RANKS].pid;
        kill(pid, SIGSTOP);
        pass(drawn_ns(&seed, 30 * DP_NS_PER_MS));
        kill(pid, SIGCONT);
        pass(drawn_ns(&seed, 10 * DP_NS_PER_MS));
    }
    finish(&fleet);
    expect_losses(&fleet, wanted);
    fleet_deinit(&fleet);
}

static void a_peer_that_stands_still_for_too_long_is_named(void **state)
{
    (void)state;
    static const char *const transports[] = {"shm", "tcp"};
    for (int i = 0; i < 2; i++) {
        struct fleet fleet;
        prepare_fleet(&fleet, transports[i], 1000000);
        fleet.spec.parallel.peer_timeout_s = 3;
        begin(&fleet);
        fleet_await(&fleet, 0, STEP, 2);
        kill(fleet.ranks[2 - i].pid, SIGSTOP);
        expect_named(&fleet, 2 - i);
        fleet_deinit(&fleet);
    }
}

static void a_link_that_carries_nothing_any_more_is_found_out_on_both_sides(void **state)
{
    (void)state;
    struct fleet fleet;
    prepare_fleet(&fleet, "tcp", 1000000);
    fleet.spec.parallel.peer_timeout_s = 3;
    fleet.has_detour = true;
    begin(&fleet);
    fleet_await(&fleet, 0, STEP, 2);
    kill(fleet.detour, SIGSTOP);
    expect_named(&fleet, RANKS - 1);
    const Dp__V1__RankFinished *last = fleet_await(&fleet, RANKS - 1, FINISHED, 1)->finished;
    assert_true(!last->ok && last->peer_lost);
    assert_non_null(strstr(last->error + strlen("rank N"), "rank "));
    assert_int_equal(WEXITSTATUS(fleet_await_end(&fleet, RANKS - 1)), 1);
    fleet_deinit(&fleet);
}

static void a_link_that_carries_nothing_for_a_while_changes_no_number(void **state)
{
    (void)state;
    double wanted[STEPS];
    struct fleet fleet;
    undisturbed("tcp", wanted);
    prepare_fleet(&fleet, "tcp", STEPS);
    fleet.has_detour = true;
    begin(&fleet);
    fleet_await(&fleet, 0, STEP, 2);
    kill(fleet.detour, SIGSTOP);
    pass_a_second(&fleet, 0);
    kill(fleet.detour, SIGCONT);
    finish(&fleet);
    expect_losses(&fleet, wanted);
    fleet_deinit(&fleet);
}

// Kills a peer of ranks in which a call never returns; true once rank 0 is in that call.
static void hang_in(struct fleet *fleet, const char *call, char *at, size_t at_size)
{
    if (UNDER_TSAN) {
        skip(); // its runtime has to be the first library
    }
    prepare_fleet(fleet, "tcp", 1000000);
    snprintf(at, at_size, "%s/hangs", fleet->directory);
    setenv("DP_TEST_HANGS", call, 1);
    setenv("DP_TEST_HANGS_AT", at, 1);
    fleet->preload = DP_HANGING_LIBRARY;
    begin(fleet);
    unsetenv("DP_TEST_HANGS");
    fleet_await(fleet, 0, STEP, 2);
    kill(fleet->ranks[3].pid, SIGKILL);
    for (int64_t until_ns = dp_clock_monotonic_ns() + 240 * DP_NS_PER_S; access(at, F_OK) != 0;) {
        assert_true(dp_clock_monotonic_ns() < until_ns);
        pass(20 * DP_NS_PER_MS);
    }
}

static void a_rank_that_hangs_while_it_cuts_its_links_ends_when_it_is_told_to(void **state)
{
    (void)state;
    struct fleet fleet;
    char at[TEMPORARY_MAX + 8];
    hang_in(&fleet, "shutdown", at, sizeof at);
    for (int32_t rank = 0; rank < 3; rank++) {
        kill(fleet.ranks[rank].pid, SIGTERM);
        assert_int_equal(WEXITSTATUS(fleet_await_end(&fleet, rank)), 128 + SIGTERM);
    }
    fleet_deinit(&fleet);
}

static void a_rank_that_hangs_after_its_last_word_ends_all_the_same(void **state)
{
    (void)state;
    struct fleet fleet;
    char at[TEMPORARY_MAX + 8];
    hang_in(&fleet, "join", at, sizeof at);
    for (int32_t rank = 0; rank < 3; rank++) {
        assert_false(fleet_await(&fleet, rank, FINISHED, 1)->finished->ok);
        assert_int_equal(WEXITSTATUS(fleet_await_end(&fleet, rank)), 1);
    }
    fleet_deinit(&fleet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_peer_killed_at_any_moment_is_named_with_what_was_under_way),
        cmocka_unit_test(a_peer_that_stands_still_for_a_while_changes_no_number),
        cmocka_unit_test(a_peer_that_is_stopped_again_and_again_changes_no_number),
        cmocka_unit_test(a_peer_that_stands_still_for_too_long_is_named),
        cmocka_unit_test(a_link_that_carries_nothing_any_more_is_found_out_on_both_sides),
        cmocka_unit_test(a_link_that_carries_nothing_for_a_while_changes_no_number),
        cmocka_unit_test(a_rank_that_hangs_while_it_cuts_its_links_ends_when_it_is_told_to),
        cmocka_unit_test(a_rank_that_hangs_after_its_last_word_ends_all_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
