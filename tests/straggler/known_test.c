// What stands about a rank when its detector begins.
#include <string.h>

#include "dp/cleanup.h"
#include "dp/straggler.h"
#include "dp_test.h"

DP_DEFINE_CLEANUP(cleanup_straggler, struct dp_straggler, dp_straggler_free)

#define MS INT64_C(1000000)

enum { RANKS = 4, KNOWN = 1 };

static struct dp_straggler *new_detector(void)
{
    struct dp_straggler_config config;
    dp_straggler_config_init(&config);
    config.ranks = RANKS;
    return dp_straggler_new(&config);
}

// Rank 1 is known to take twice as long.
static struct dp_straggler *new_known(dp_straggler_state state)
{
    struct dp_straggler *detector = new_detector();
    const struct dp_straggler_verdict known = {.state = state,
                                               .cause = DP_STRAGGLER_DEVICE,
                                               .rank = KNOWN,
                                               .peer = DP_STRAGGLER_NONE,
                                               .stage = DP_STRAGGLER_NONE,
                                               .slowdown = 2};
    dp_straggler_know(detector, KNOWN, &known);
    return detector;
}

// Steps from `first` to `last`; `alone`: each rank has a stage of its own.
static void train(struct dp_straggler *detector, int64_t first, int64_t last, bool alone,
                  double slow)
{
    for (int64_t step = first; step <= last; step++) {
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            int64_t one_ns = (int64_t)(30e6 * (rank == KNOWN ? slow : 1));
            uint16_t stage = alone ? (uint16_t)rank : 0;
            const struct dp_straggler_kind kind = {.kind = DP_ACTION_F,
                                                   .stage = stage,
                                                   .b_stage = stage,
                                                   .count = 8,
                                                   .total_ns = 8 * one_ns,
                                                   .median_ns = one_ns};
            const struct dp_straggler_sample sample = {
                .rank = rank, .step = step, .step_ns = 600 * MS, .kinds = &kind, .kinds_count = 1};
            dp_straggler_take(detector, &sample);
        }
    }
}

static void it_takes_as_many_steps_to_recover_as_any_other(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_known(DP_STRAGGLER_CONFIRMED);
    struct dp_straggler_verdict verdict;
    train(detector, 1, 6, false, 1); // the first that counts, by chance
    train(detector, 7, 40, false, 2);
    assert_false(dp_straggler_next(detector, &verdict));
    assert_int_equal(dp_straggler_standing(detector, &verdict, 1), 1);
    train(detector, 41, 60, false, 1);
    assert_true(dp_straggler_next(detector, &verdict));
    assert_int_equal(verdict.state, DP_STRAGGLER_HEALTHY);
}

static void who_has_recovered_is_known_no_more_when_experts_change_places(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_known(DP_STRAGGLER_CONFIRMED);
    struct dp_straggler_verdict verdict;
    train(detector, 1, 40, true, 2);
    train(detector, 41, 60, true, 1);
    assert_true(dp_straggler_next(detector, &verdict));
    assert_int_equal(verdict.state, DP_STRAGGLER_HEALTHY);
    dp_straggler_freeze(detector, 60, "experts changed places");
    train(detector, 61, 140, true, 1);
    assert_false(dp_straggler_next(detector, &verdict));
}

// A new layout has many of its first probes before a step counts.
static void what_is_known_of_ranks_on_cores_takes_two_probes_too(void **state)
{
    (void)state;
    for (int on_cores = 0; on_cores < 3; on_cores++) { // known by nothing, a step, the probe
        DP_CLEANUP(cleanup_straggler)
        struct dp_straggler *detector = new_known(DP_STRAGGLER_SUSPECTED);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            const struct dp_straggler_kind kind = {
                .kind = DP_ACTION_F, .count = 8, .total_ns = 240 * MS, .median_ns = 30 * MS};
            const struct dp_straggler_sample sample = {.rank = rank,
                                                       .step = 1,
                                                       .step_ns = 600 * MS,
                                                       .off_core_ns = on_cores == 1 ? 1000 : 0,
                                                       .kinds = &kind,
                                                       .kinds_count = 1};
            dp_straggler_take(detector, &sample);
        }
        uint64_t request = 0;
        assert_true(dp_straggler_wants_probe(detector, &request));
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            const struct dp_straggler_probe probe = {.request = request,
                                                     .rank = rank,
                                                     .gemm_ns = rank == KNOWN ? 2 * MS : MS,
                                                     .gemm_off_core_ns = on_cores == 2 ? 1000 : 0,
                                                     .gemm_flops = 1e6};
            dp_straggler_take_probe(detector, &probe);
        }
        struct dp_straggler_verdict verdict;
        assert_int_equal(dp_straggler_standing(detector, &verdict, 1), 1);
        assert_int_equal(verdict.state,
                         on_cores > 0 ? DP_STRAGGLER_SUSPECTED : DP_STRAGGLER_CONFIRMED);
    }
}

// Between its actions, which take what those of others do; each rank has a stage of its own.
static void lose(struct dp_straggler *detector, int64_t first, int64_t last, int64_t gap_ns)
{
    for (int64_t step = first; step <= last; step++) {
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            const struct dp_straggler_kind kind = {.kind = DP_ACTION_F,
                                                   .stage = (uint16_t)rank,
                                                   .b_stage = (uint16_t)rank,
                                                   .count = 8,
                                                   .total_ns = 240 * MS,
                                                   .median_ns = 30 * MS};
            const struct dp_straggler_sample sample = {.rank = rank,
                                                       .step = step,
                                                       .step_ns = 600 * MS,
                                                       .launch_gap_ns = rank == KNOWN ? gap_ns : 0,
                                                       .kinds = &kind,
                                                       .kinds_count = 1};
            dp_straggler_take(detector, &sample);
        }
    }
}

static void a_host_that_is_known_stands_until_it_takes_no_more_time_away(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *before = new_detector();
    struct dp_straggler_verdict verdict;
    lose(before, 1, 40, 0);
    lose(before, 41, 60, 144 * MS);
    assert_int_equal(dp_straggler_standing(before, &verdict, 1), 1);
    assert_int_equal(verdict.cause, DP_STRAGGLER_HOST);
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = new_detector();
    dp_straggler_know(detector, KNOWN, &verdict);
    lose(detector, 1, 60, 144 * MS);
    assert_false(dp_straggler_next(detector, &verdict));
    assert_int_equal(dp_straggler_standing(detector, &verdict, 1), 1);
    lose(detector, 61, 80, 0);
    assert_true(dp_straggler_next(detector, &verdict));
    assert_int_equal(verdict.state, DP_STRAGGLER_HEALTHY);
    lose(detector, 81, 160, 0);
    assert_false(dp_straggler_next(detector, &verdict));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_takes_as_many_steps_to_recover_as_any_other),
        cmocka_unit_test(what_is_known_of_ranks_on_cores_takes_two_probes_too),
        cmocka_unit_test(a_host_that_is_known_stands_until_it_takes_no_more_time_away),
        cmocka_unit_test(who_has_recovered_is_known_no_more_when_experts_change_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
