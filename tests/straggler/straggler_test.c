// Each rule by itself, with times made by hand.
#include <math.h>

#include "virtual_job.h"

#include "dp/check.h"
#include "dp/cleanup.h"

DP_DEFINE_CLEANUP(cleanup_straggler, struct dp_straggler, dp_straggler_free)

#define MS INT64_C(1000000)

// A rank's forward and backward of one stage, 8 micro-batches, without any noise.
struct hand {
    struct dp_straggler_kind kinds[2];
    struct dp_straggler_link links[2];
    struct dp_straggler_sample sample;
};

static void by_hand(struct hand *hand, uint32_t rank, uint16_t stage, int64_t step, double factor)
{
    *hand = (struct hand){.sample = {.rank = rank, .step = step, .step_ns = 400 * MS}};
    for (int i = 0; i < 2; i++) {
        int64_t one = (int64_t)((i == 0 ? 10e6 : 20e6) * factor);
        hand->kinds[i] = (struct dp_straggler_kind){.kind = (uint8_t)i,
                                                    .stage = stage,
                                                    .b_stage = stage,
                                                    .count = 8,
                                                    .total_ns = 8 * one,
                                                    .median_ns = one};
    }
    hand->sample.kinds = hand->kinds;
    hand->sample.kinds_count = 2;
}

static struct dp_straggler *detector_of(uint32_t ranks)
{
    struct dp_straggler_config config;
    dp_straggler_config_init(&config);
    config.ranks = ranks;
    return dp_straggler_new(&config);
}

// Four replicas of one stage; rank 2 takes `factor` times as long.
static void four_replicas(struct dp_straggler *detector, int64_t step, double factor)
{
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct hand hand;
        by_hand(&hand, rank, 0, step, rank == 2 ? factor : 1);
        dp_straggler_take(detector, &hand.sample);
    }
}

static bool next_is(struct dp_straggler *detector, dp_straggler_state state,
                    dp_straggler_cause cause, uint32_t rank)
{
    struct dp_straggler_verdict verdict;
    return dp_straggler_next(detector, &verdict) && verdict.state == state &&
           verdict.cause == cause && verdict.rank == rank;
}

static bool is_quiet(struct dp_straggler *detector)
{
    struct dp_straggler_verdict verdict;
    return !dp_straggler_next(detector, &verdict);
}

static void scores_are_reference_over_own(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 24; step++) {
        four_replicas(detector, step, 1);
    }
    for (int64_t step = 25; step <= 40; step++) {
        four_replicas(detector, step, 1.6);
    }
    struct dp_straggler_score slow, other;
    dp_straggler_score(detector, 2, &slow);
    dp_straggler_score(detector, 0, &other);
    assert_true(fabs(slow.relative - 1 / 1.6) < 1e-6);
    assert_true(fabs(slow.individual - 1 / 1.6) < 1e-6);
    assert_true(fabs(other.relative - 1) < 1e-6);
    assert_true(fabs(other.busy - 240.0 / 400) < 1e-6);
    struct dp_straggler_kind_score kinds[4];
    assert_int_equal(dp_straggler_kind_scores(detector, 2, kinds, 4), 2);
    assert_true(fabs(kinds[1].relative - 1 / 1.6) < 1e-6);
    assert_int_equal(kinds[1].peers, 3);
}

static void scores_are_told_though_nobody_is_suspected(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 60; step++) {
        four_replicas(detector, step, step > 30 ? 1.15 : 1);
    }
    assert_true(is_quiet(detector));
    struct dp_straggler_score score;
    dp_straggler_score(detector, 2, &score);
    assert_true(fabs(score.relative - 1 / 1.15) < 1e-6);
}

static void a_few_slow_steps_are_no_straggler(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 120; step++) {
        four_replicas(detector, step, step % 20 < 6 && step > 20 ? 3 : 1);
    }
    assert_true(is_quiet(detector));
}

static void a_rank_recovers_and_is_found_again(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    int64_t step = 1;
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 30; i++) {
            four_replicas(detector, step++, 1);
        }
        assert_true(turn == 0 || next_is(detector, DP_STRAGGLER_HEALTHY, DP_STRAGGLER_DEVICE, 2));
        assert_true(is_quiet(detector));
        for (int i = 0; i < 12; i++) {
            four_replicas(detector, step++, 1.5);
        }
        assert_true(next_is(detector, DP_STRAGGLER_SUSPECTED, DP_STRAGGLER_DEVICE, 2));
        // Between leaving and entering nothing changes.
        for (int i = 0; i < 30; i++) {
            four_replicas(detector, step++, 1.15);
        }
        assert_true(is_quiet(detector));
        struct dp_straggler_verdict standing[2];
        assert_int_equal(dp_straggler_standing(detector, standing, 2), 1);
        assert_int_equal(standing[0].rank, 2);
    }
}

static void what_a_slow_rank_leaves_behind_is_not_taken_for_uneven_data(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 90; step++) {
        four_replicas(detector, step, step >= 30 && step < 48 ? 2 : 1);
    }
    assert_true(next_is(detector, DP_STRAGGLER_SUSPECTED, DP_STRAGGLER_DEVICE, 2));
    assert_true(next_is(detector, DP_STRAGGLER_HEALTHY, DP_STRAGGLER_DEVICE, 2));
    assert_true(is_quiet(detector));
}

// Alone with its stage in a new layout, on the device that was confirmed to be slow in the old one.
static void what_is_known_to_be_slow_stands_and_is_no_news_until_it_recovers(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    struct dp_straggler_verdict known = {.state = DP_STRAGGLER_CONFIRMED,
                                         .cause = DP_STRAGGLER_DEVICE,
                                         .rank = 3,
                                         .peer = DP_STRAGGLER_NONE,
                                         .stage = DP_STRAGGLER_NONE,
                                         .slowdown = 2};
    dp_straggler_know(detector, 1, &known);
    struct dp_straggler_verdict standing;
    for (int64_t step = 1; step <= 80; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            by_hand(&hand, rank, (uint16_t)rank, step, rank == 1 && step <= 60 ? 2 : 1);
            dp_straggler_take(detector, &hand.sample);
        }
        if (step == 60) {
            assert_true(is_quiet(detector));
            assert_int_equal(dp_straggler_standing(detector, &standing, 1), 1);
            assert_int_equal(standing.rank, 1);
            assert_true(fabs(standing.slowdown - 2) < 0.01);
        }
    }
    assert_true(next_is(detector, DP_STRAGGLER_HEALTHY, DP_STRAGGLER_DEVICE, 1));
    assert_true(is_quiet(detector));
}

static void what_is_known_may_be_probed_before_a_step_has_come(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    struct dp_straggler_verdict known = {.state = DP_STRAGGLER_SUSPECTED,
                                         .cause = DP_STRAGGLER_DEVICE,
                                         .rank = 1,
                                         .peer = DP_STRAGGLER_NONE,
                                         .stage = DP_STRAGGLER_NONE,
                                         .slowdown = 2};
    dp_straggler_know(detector, 1, &known);
    uint64_t request = 0;
    assert_true(dp_straggler_wants_probe(detector, &request));
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct dp_straggler_probe probe = {.request = request,
                                           .rank = rank,
                                           .gemm_ns = rank == 1 ? 2000 : 1000,
                                           .gemm_flops = 1e6};
        dp_straggler_take_probe(detector, &probe);
    }
    assert_true(next_is(detector, DP_STRAGGLER_CONFIRMED, DP_STRAGGLER_DEVICE, 1));
}

static void a_change_has_to_last_some_time_too(void **state)
{
    (void)state;
    struct dp_straggler_config config;
    dp_straggler_config_init(&config);
    config.ranks = 4;
    config.persist_s = 20; // at 0.4 s a step
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = dp_straggler_new(&config);
    for (int64_t step = 1; step <= 30 + 49; step++) {
        four_replicas(detector, step, step > 30 ? 2 : 1);
    }
    assert_true(is_quiet(detector));
    for (int64_t step = 80; step <= 81; step++) {
        four_replicas(detector, step, 2);
    }
    assert_true(next_is(detector, DP_STRAGGLER_SUSPECTED, DP_STRAGGLER_DEVICE, 2));
}

static void no_data_is_not_healthy(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 20; step++) {
        four_replicas(detector, step, 1);
    }
    for (int64_t step = 21; step <= 60; step++) {
        for (uint32_t rank = 0; rank < 3; rank++) {
            struct hand hand;
            by_hand(&hand, rank, 0, step, 1);
            dp_straggler_take(detector, &hand.sample);
        }
    }
    struct dp_straggler_verdict verdict;
    assert_true(dp_straggler_next(detector, &verdict));
    assert_int_equal(verdict.state, DP_STRAGGLER_BLIND);
    assert_int_equal(verdict.rank, 3);
    assert_int_equal(verdict.onset_step, 21);
    assert_int_equal(dp_straggler_step(detector), 60); // the others are still looked at
    struct dp_straggler_score score;
    dp_straggler_score(detector, 3, &score);
    assert_true(score.blind);
    for (int64_t step = 61; step <= 62; step++) {
        four_replicas(detector, step, 1);
    }
    assert_true(dp_straggler_next(detector, &verdict));
    assert_int_equal(verdict.state, DP_STRAGGLER_HEALTHY);
    assert_int_equal(verdict.rank, 3);
    struct hand hand;
    for (uint32_t rank = 0; rank < 3; rank++) {
        by_hand(&hand, rank, 0, 63, 1);
        dp_straggler_take(detector, &hand.sample);
    }
    assert_int_equal(dp_straggler_step(detector), 62); // it is waited for again
}

// Two pipelines of two stages: rank 1 holds stage 1 and is twice as slow on purpose.
static void a_stage_that_is_slow_everywhere_is_the_plans_fault(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 60; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            by_hand(&hand, rank, rank % 2, step, rank % 2 == 1 ? 1.5 : 1);
            dp_straggler_take(detector, &hand.sample);
        }
    }
    struct dp_straggler_verdict verdict;
    assert_true(dp_straggler_next(detector, &verdict));
    assert_int_equal(verdict.state, DP_STRAGGLER_NOTED);
    assert_int_equal(verdict.cause, DP_STRAGGLER_UNEVEN_STAGE);
    assert_int_equal(verdict.stage, 1);
    assert_int_equal(verdict.rank, DP_STRAGGLER_NONE);
    assert_true(is_quiet(detector));
}

// In every second fifty of a hundred steps stage 1 takes longer.
static void a_stage_that_comes_and_goes_is_noted_a_few_times(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    int noted = 0;
    for (int64_t step = 1; step <= 4000; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            by_hand(&hand, rank, rank % 2, step, rank % 2 == 1 && step / 50 % 2 == 1 ? 1.5 : 1);
            dp_straggler_take(detector, &hand.sample);
        }
        struct dp_straggler_verdict verdict;
        while (dp_straggler_next(detector, &verdict)) {
            assert_int_equal(verdict.cause, DP_STRAGGLER_UNEVEN_STAGE);
            noted += verdict.state == DP_STRAGGLER_NOTED;
        }
    }
    assert_in_range(noted, 1, 8); // and not in each of forty
}

// One pipeline: rank 1 alone has stage 1, and was slow from the beginning.
static void a_rank_that_was_always_slow_is_told_from_its_stage_by_a_probe(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    struct dp_straggler_verdict verdict;
    bool noted = false, confirmed = false;
    for (int64_t step = 1; step <= 100 && !confirmed; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            by_hand(&hand, rank, (uint16_t)rank, step, rank == 1 ? 1.5 : 1);
            dp_straggler_take(detector, &hand.sample);
        }
        uint64_t request;
        if (dp_straggler_wants_probe(detector, &request)) {
            for (uint32_t rank = 0; rank < 4; rank++) {
                struct dp_straggler_probe probe = {.request = request,
                                                   .rank = rank,
                                                   .gemm_ns = rank == 1 ? 1500 : 1000,
                                                   .gemm_flops = 1e6};
                dp_straggler_take_probe(detector, &probe);
            }
        }
        while (dp_straggler_next(detector, &verdict)) {
            noted = noted || verdict.cause == DP_STRAGGLER_UNEVEN_STAGE;
            confirmed = verdict.state == DP_STRAGGLER_CONFIRMED;
        }
    }
    assert_true(noted && confirmed);
    assert_int_equal(verdict.cause, DP_STRAGGLER_DEVICE);
    assert_int_equal(verdict.rank, 1);
    assert_true(fabs(verdict.slowdown - 1.5) < 0.01);
    assert_int_equal(dp_straggler_standing(detector, &verdict, 1), 1);
}

// Rank 1 alone has stage 1: while it is slow nothing is learned about the stage, suspected or not.
static void what_a_slow_rank_leaves_behind_is_not_taken_for_an_uneven_stage(void **state)
{
    (void)state;
    for (int is_found = 0; is_found < 2; is_found++) {
        DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
        struct dp_straggler_verdict verdict;
        int found = 0;
        for (int64_t step = 1; step <= 140; step++) {
            bool slow = step >= 40 && step < 80;
            for (uint32_t rank = 0; rank < 4; rank++) {
                struct hand hand;
                by_hand(&hand, rank, (uint16_t)rank, step, rank == 1 && slow ? 2 : 1);
                // 40 steps of these are less than half a second.
                hand.sample.step_ns = is_found == 1 ? 400 * MS : 10 * MS;
                dp_straggler_take(detector, &hand.sample);
            }
            while (dp_straggler_next(detector, &verdict)) {
                assert_int_equal(verdict.cause, DP_STRAGGLER_DEVICE);
                found += verdict.state == DP_STRAGGLER_SUSPECTED;
            }
        }
        assert_int_equal(found, is_found);
    }
}

// A plan that knew of it has nothing to mend.
static void a_stage_that_was_planned_to_be_slow_is_nobodys_fault(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 60; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            by_hand(&hand, rank, rank % 2, step, rank % 2 == 1 ? 1.5 : 1);
            hand.kinds[0].planned_ns = rank % 2 == 1 ? 15 * MS : 10 * MS;
            hand.kinds[1].planned_ns = rank % 2 == 1 ? 30 * MS : 20 * MS;
            dp_straggler_take(detector, &hand.sample);
        }
    }
    assert_true(is_quiet(detector));
}

// Slower than its peers by plan, as a smaller accelerator is.
static void a_rank_that_was_planned_to_be_slower_is_not_suspected(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 60; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            double factor = rank == 2 ? 1.5 : 1;
            by_hand(&hand, rank, 0, step, factor);
            hand.kinds[0].planned_ns = (int64_t)(10e6 * factor);
            hand.kinds[1].planned_ns = (int64_t)(20e6 * factor);
            dp_straggler_take(detector, &hand.sample);
        }
    }
    assert_true(is_quiet(detector));
    struct dp_straggler_score score;
    dp_straggler_score(detector, 2, &score);
    assert_true(fabs(score.relative - 1) < 1e-6);
}

static void what_costs_next_to_nothing_is_left_alone(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 80; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            by_hand(&hand, rank, 0, step, rank == 2 && step > 30 ? 1.5 : 1);
            hand.sample.step_ns = 10000 * MS; // of which it computes 2 or 4 %
            dp_straggler_take(detector, &hand.sample);
        }
    }
    assert_true(is_quiet(detector));
}

static void a_rank_is_not_blamed_while_an_action_of_ours_settles(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 80; step++) {
        if (step == 31) {
            dp_straggler_freeze(detector, 30, "experts changed places");
        }
        four_replicas(detector, step, step > 30 && step <= 40 ? 3 : 1);
    }
    assert_true(is_quiet(detector));
}

// Forwards and backwards of the same rank have nothing to do with each other: noise, not data.
static void wide_noise_is_not_uneven_data(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 5);
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 120; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            by_hand(&hand, rank, 0, step, 1);
            for (int i = 0; i < 2; i++) {
                double noise = exp(0.3 * dp_rand_normal(&rand));
                hand.kinds[i].total_ns = (int64_t)((double)hand.kinds[i].total_ns * noise);
            }
            dp_straggler_take(detector, &hand.sample);
        }
    }
    assert_true(is_quiet(detector));
}

static void sequences_of_uneven_length_are_no_ranks_fault(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 11);
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 80; step++) {
        uint32_t long_one = (uint32_t)dp_rand_below(&rand, 4);
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            by_hand(&hand, rank, 0, step, rank == long_one ? 1.6 : 1);
            dp_straggler_take(detector, &hand.sample);
        }
    }
    assert_true(next_is(detector, DP_STRAGGLER_NOTED, DP_STRAGGLER_UNEVEN_DATA, DP_STRAGGLER_NONE));
    assert_true(is_quiet(detector));
}

static void what_begins_with_our_own_action_is_our_own_doing(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 30; step++) {
        four_replicas(detector, step, 1);
    }
    dp_straggler_freeze(detector, 30, "experts changed places");
    for (int64_t step = 31; step <= 80; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            by_hand(&hand, rank, 0, step, 1.5);
            hand.sample.step_ns = 600 * MS;
            dp_straggler_take(detector, &hand.sample);
        }
    }
    struct dp_straggler_verdict verdict;
    assert_true(dp_straggler_next(detector, &verdict));
    assert_int_equal(verdict.state, DP_STRAGGLER_NOTED);
    assert_int_equal(verdict.cause, DP_STRAGGLER_OWN_DOING);
    assert_int_equal(verdict.onset_step, 31);
    assert_non_null(strstr(verdict.text, "experts changed places"));
    assert_true(is_quiet(detector));
}

static void time_without_a_core_is_the_hosts_fault(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 60; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            bool slow = rank == 1 && step > 30;
            by_hand(&hand, rank, 0, step, slow ? 2 : 1);
            hand.sample.off_core_ns = slow ? 230 * MS : 2 * MS;
            dp_straggler_take(detector, &hand.sample);
        }
    }
    assert_true(next_is(detector, DP_STRAGGLER_SUSPECTED, DP_STRAGGLER_HOST, 1));
    assert_true(is_quiet(detector));
}

static void a_probe_that_finds_nothing_confirms_nothing(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    uint64_t request = 0;
    int64_t step = 1;
    for (; step <= 45; step++) {
        four_replicas(detector, step, step > 30 ? 2 : 1);
    }
    assert_true(next_is(detector, DP_STRAGGLER_SUSPECTED, DP_STRAGGLER_DEVICE, 2));
    int asked = 0;
    for (; step <= 300; step++) {
        four_replicas(detector, step, 2);
        if (dp_straggler_wants_probe(detector, &request)) {
            asked++;
            for (uint32_t rank = 0; rank < 4; rank++) {
                struct dp_straggler_probe probe = {
                    .request = request, .rank = rank, .gemm_ns = 1000, .gemm_flops = 1e6};
                dp_straggler_take_probe(detector, &probe);
            }
        }
    }
    assert_int_equal(asked, 3); // and it is not asked for ever
    assert_true(is_quiet(detector));
}

static void a_slow_rank_without_a_mirror_is_told_by_its_change(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 50; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            // Everybody gets slower by half at step 20, rank 3 alone by as much again at 35.
            double factor = (step >= 20 ? 1.5 : 1) * (rank == 3 && step >= 35 ? 1.5 : 1);
            by_hand(&hand, rank, (uint16_t)rank, step, factor);
            dp_straggler_take(detector, &hand.sample);
        }
    }
    assert_true(next_is(detector, DP_STRAGGLER_SUSPECTED, DP_STRAGGLER_DEVICE, 3));
    assert_true(is_quiet(detector));
}

// Two messages a step from either neighbour; the link between 1 and 2 becomes slow.
static void waiting_for_a_slow_neighbour_is_no_slow_link(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 60; step++) {
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct hand hand;
            by_hand(&hand, rank, (uint16_t)rank, step, 1);
            for (uint32_t side = 0; side < 2; side++) {
                uint32_t peer = side == 0 ? rank - 1 : rank + 1;
                if (peer < 4) {
                    hand.links[hand.sample.links_count++] =
                        (struct dp_straggler_link){.peer = peer,
                                                   .count = 8,
                                                   .bytes = 8 << 20,
                                                   .transfer_ns = 8 * MS,
                                                   .waiting_ns = step > 30 ? 300 * MS : 0};
                }
            }
            hand.sample.links = hand.links;
            dp_straggler_take(detector, &hand.sample);
        }
    }
    assert_true(is_quiet(detector));
}

// A chain of four; messages of the pairs from `first` on take `factor` times as long.
static void chain(struct dp_straggler *detector, int64_t step, uint32_t first, uint32_t last,
                  double factor)
{
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct hand hand;
        by_hand(&hand, rank, (uint16_t)rank, step, 1);
        for (uint32_t side = 0; side < 2; side++) {
            uint32_t peer = side == 0 ? rank - 1 : rank + 1;
            uint32_t low = side == 0 ? rank - 1 : rank;
            if (peer < 4) {
                bool slow = low >= first && low <= last;
                hand.links[hand.sample.links_count++] = (struct dp_straggler_link){
                    .peer = peer,
                    .count = 8,
                    .bytes = 8 << 20,
                    .transfer_ns = (int64_t)(16e6 * (slow ? factor : 1))};
            }
        }
        hand.sample.links = hand.links;
        dp_straggler_take(detector, &hand.sample);
    }
}

static void links_that_all_become_slow_blame_none_of_them(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
    for (int64_t step = 1; step <= 60; step++) {
        chain(detector, step, 0, 3, step > 30 ? 3 : 1);
    }
    assert_true(is_quiet(detector));
}

static void a_link_is_confirmed_when_it_is_slow_alone_too(void **state)
{
    (void)state;
    for (int slow = 0; slow < 2; slow++) {
        DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(4);
        for (int64_t step = 1; step <= 45; step++) {
            chain(detector, step, 1, 1, step > 30 ? 3 : 1);
        }
        struct dp_straggler_verdict verdict;
        assert_true(dp_straggler_next(detector, &verdict));
        assert_int_equal(verdict.cause, DP_STRAGGLER_LINK);
        assert_int_equal(verdict.rank + verdict.peer, 1 + 2);
        uint64_t request = 0;
        assert_true(dp_straggler_wants_probe(detector, &request));
        for (uint32_t rank = 0; rank < 4; rank++) {
            struct dp_straggler_probe_link link = {.peer = rank + 1,
                                                   .latency_ns = 1000,
                                                   .bytes_per_s =
                                                       rank == 1 && slow == 1 ? 0.5e9 : 1e9};
            struct dp_straggler_probe probe = {.request = request,
                                               .rank = rank,
                                               .gemm_ns = 1000,
                                               .gemm_flops = 1e6,
                                               .links = &link,
                                               .links_count = rank < 3};
            dp_straggler_take_probe(detector, &probe);
        }
        assert_int_equal(dp_straggler_next(detector, &verdict), slow == 1);
        assert_true(slow == 0 || verdict.state == DP_STRAGGLER_CONFIRMED);
    }
}

// Both links of rank 1 become slow: what they have in common is named.
static void the_end_that_slow_links_have_in_common_is_named(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(6);
    for (int64_t step = 1; step <= 45; step++) {
        chain(detector, step, 0, 1, step > 30 ? 3 : 1);
        for (uint32_t rank = 4; rank < 6; rank++) { // other links, as many as these
            struct hand hand;
            by_hand(&hand, rank, (uint16_t)rank, step, 1);
            for (uint32_t i = 0; i < 2; i++) {
                hand.links[i] = (struct dp_straggler_link){.peer = rank == 4 ? 5 - 5 * i : 4 - i,
                                                           .count = 8,
                                                           .bytes = 8 << 20,
                                                           .transfer_ns = 16 * MS};
            }
            hand.sample.links = hand.links;
            hand.sample.links_count = 2;
            dp_straggler_take(detector, &hand.sample);
        }
    }
    struct dp_straggler_verdict verdict;
    for (int i = 0; i < 2; i++) {
        assert_true(dp_straggler_next(detector, &verdict));
        assert_int_equal(verdict.cause, DP_STRAGGLER_LINK);
        assert_int_equal(verdict.rank, 1);
    }
    assert_true(is_quiet(detector));
}

static void samples_that_make_no_sense_are_left_alone(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(2);
    struct hand hand;
    by_hand(&hand, 7, 0, 1, 1); // a rank that there is not
    dp_straggler_take(detector, &hand.sample);
    by_hand(&hand, 0, 0, 5, 1);
    dp_straggler_take(detector, &hand.sample);
    dp_straggler_take(detector, &hand.sample); // twice
    by_hand(&hand, 1, 0, 5, 1);
    dp_straggler_take(detector, &hand.sample);
    assert_int_equal(dp_straggler_step(detector), 5);
    by_hand(&hand, 0, 0, 4, 1); // older than what was looked at
    dp_straggler_take(detector, &hand.sample);
    hand.kinds[0].count = 0;
    hand.links[0] = (struct dp_straggler_link){.peer = 9, .count = 1, .transfer_ns = 1};
    hand.sample = (struct dp_straggler_sample){.rank = 0,
                                               .step = 6,
                                               .kinds = hand.kinds,
                                               .kinds_count = 2,
                                               .links = hand.links,
                                               .links_count = 1};
    dp_straggler_take(detector, &hand.sample);
    by_hand(&hand, 1, 0, 6, 1);
    dp_straggler_take(detector, &hand.sample);
    assert_int_equal(dp_straggler_step(detector), 6);
    struct dp_straggler_probe probe = {.request = 1, .rank = 9};
    dp_straggler_take_probe(detector, &probe);
    assert_true(is_quiet(detector));
}

static void steps_of_ranks_that_run_apart_are_compared_in_order(void **state)
{
    (void)state;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = detector_of(2);
    // Rank 1 tells what it did three steps later, and of the last ones in the wrong order.
    for (int64_t step = 1; step <= 60; step++) {
        struct hand hand;
        by_hand(&hand, 0, 0, step, 1);
        dp_straggler_take(detector, &hand.sample);
        if (step > 3) {
            by_hand(&hand, 1, 0, step - 3, step - 3 > 30 ? 1.5 : 1);
            dp_straggler_take(detector, &hand.sample);
        }
    }
    assert_int_equal(dp_straggler_step(detector), 57);
    assert_true(next_is(detector, DP_STRAGGLER_SUSPECTED, DP_STRAGGLER_DEVICE, 1));
    static const int64_t order[] = {60, 58, 59};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(order); i++) {
        struct hand hand;
        by_hand(&hand, 1, 0, order[i], 1.5);
        dp_straggler_take(detector, &hand.sample);
    }
    assert_int_equal(dp_straggler_step(detector), 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_reference_over_own),
        cmocka_unit_test(scores_are_told_though_nobody_is_suspected),
        cmocka_unit_test(a_few_slow_steps_are_no_straggler),
        cmocka_unit_test(a_rank_recovers_and_is_found_again),
        cmocka_unit_test(what_a_slow_rank_leaves_behind_is_not_taken_for_uneven_data),
        cmocka_unit_test(what_is_known_to_be_slow_stands_and_is_no_news_until_it_recovers),
        cmocka_unit_test(what_is_known_may_be_probed_before_a_step_has_come),
        cmocka_unit_test(a_change_has_to_last_some_time_too),
        cmocka_unit_test(no_data_is_not_healthy),
        cmocka_unit_test(a_stage_that_is_slow_everywhere_is_the_plans_fault),
        cmocka_unit_test(a_stage_that_comes_and_goes_is_noted_a_few_times),
        cmocka_unit_test(a_rank_that_was_always_slow_is_told_from_its_stage_by_a_probe),
        cmocka_unit_test(what_a_slow_rank_leaves_behind_is_not_taken_for_an_uneven_stage),
        cmocka_unit_test(a_stage_that_was_planned_to_be_slow_is_nobodys_fault),
        cmocka_unit_test(sequences_of_uneven_length_are_no_ranks_fault),
        cmocka_unit_test(what_begins_with_our_own_action_is_our_own_doing),
        cmocka_unit_test(time_without_a_core_is_the_hosts_fault),
        cmocka_unit_test(a_probe_that_finds_nothing_confirms_nothing),
        cmocka_unit_test(a_slow_rank_without_a_mirror_is_told_by_its_change),
        cmocka_unit_test(waiting_for_a_slow_neighbour_is_no_slow_link),
        cmocka_unit_test(a_rank_that_was_planned_to_be_slower_is_not_suspected),
        cmocka_unit_test(what_costs_next_to_nothing_is_left_alone),
        cmocka_unit_test(a_rank_is_not_blamed_while_an_action_of_ours_settles),
        cmocka_unit_test(wide_noise_is_not_uneven_data),
        cmocka_unit_test(links_that_all_become_slow_blame_none_of_them),
        cmocka_unit_test(a_link_is_confirmed_when_it_is_slow_alone_too),
        cmocka_unit_test(the_end_that_slow_links_have_in_common_is_named),
        cmocka_unit_test(samples_that_make_no_sense_are_left_alone),
        cmocka_unit_test(steps_of_ranks_that_run_apart_are_compared_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
