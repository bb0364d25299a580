// Predictions against closed forms and published figures; schedules of published papers.
#include "support.h"

#include <math.h>

#include "dp/check.h"
#include "made_costs.h"

static const double tolerance = 1e-9;

static void assert_near(double got, double wanted)
{
    if (!(fabs(got - wanted) <= tolerance * (1 + fabs(wanted)))) {
        fail_msg("%.12g is not %.12g", got, wanted);
    }
}

static double makespan_of(const char *family, int32_t pipeline, int32_t microbatches,
                          struct dp_sim_uniform uniform)
{
    struct dp_schedule schedule = make_schedule(family, pipeline, microbatches);
    struct dp_sim_result result = simulate_uniform(&schedule, uniform);
    double makespan = result.makespan;
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
    return makespan;
}

// (P-1)(F+B) on every rank, for both.
static void gpipe_and_1f1b_waste_the_fill_and_the_drain(void **state)
{
    (void)state;
    static const char *const families[] = {"gpipe", "1f1b"};
    for (int i = 0; i < 2; i++) {
        for (int32_t p = 1; p <= 8; p++) {
            for (int32_t m = p; m <= 20; m += 3) {
                double f = 1 + 0.25 * p;
                double b = 2 + 0.125 * m;
                double makespan =
                    makespan_of(families[i], p, m, (struct dp_sim_uniform){.f = f, .b = b});
                assert_near(makespan, (m + p - 1) * (f + b));
            }
        }
    }
}

// The table of published makespans: F = I = W = 1, B = 2.
static void dual_schedules_take_the_published_times(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        int32_t p, m;
        double fb3, bubble3, fb25, low25, high25;
        uint32_t peak;
    } cases[] = {
        {"dualpipe", 2, 4, 12, 0, 11.5, 0, 0, 3},
        {"dualpipe", 4, 8, 26, 2, 24, 1.5, 1.5, 5},
        {"dualpipe", 4, 10, 32, 2, 29, 1.5, 1.5, 5},
        {"dualpipe", 6, 12, 40, 4, 36.5, 2.5, 3, 7},
        {"dualpipe", 8, 16, 54, 6, 49, 3.5, 4.5, 9},
        {"dualpipe", 8, 20, 66, 6, 59, 3.5, 4.5, 9},
        {"dualpipe", 8, 40, 126, 6, 109, 3.5, 4.5, 9},
        {"dualpipe", 16, 32, 110, 14, 99, 7.5, 10.5, 17},
        {"dualpipev", 2, 4, 26, 2, 24, 1.5, 1.5, 5},
        {"dualpipev", 4, 8, 54, 6, 49, 3.5, 4.5, 9},
        {"dualpipev", 4, 10, 66, 6, 59, 3.5, 4.5, 9},
        {"dualpipev", 4, 20, 126, 6, 109, 3.5, 4.5, 9},
        {"dualpipev", 8, 16, 110, 14, 99, 7.5, 10.5, 17},
        {"dualpipev", 8, 40, 254, 14, 219, 7.5, 10.5, 17},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_schedule schedule = make_schedule(cases[i].family, cases[i].p, cases[i].m);
        struct dp_sim_uniform uniform = {.f = 1, .b = 2, .i = 1, .w = 1, .fb = 3};
        struct dp_sim_result result = simulate_uniform(&schedule, uniform);
        assert_near(result.makespan, cases[i].fb3);
        for (int32_t rank = 0; rank < cases[i].p; rank++) {
            assert_near(result.ranks[rank].bubble, cases[i].bubble3);
            assert_int_equal(result.ranks[rank].peak_chunks, cases[i].peak);
        }
        dp_sim_result_deinit(&result);
        uniform.fb = 2.5;
        result = simulate_uniform(&schedule, uniform);
        assert_near(result.makespan, cases[i].fb25);
        double low = INFINITY;
        double high = 0;
        for (int32_t rank = 0; rank < cases[i].p; rank++) {
            low = fmin(low, result.ranks[rank].bubble);
            high = fmax(high, result.ranks[rank].bubble);
        }
        assert_near(low, cases[i].low25);
        assert_near(high, cases[i].high25);
        dp_sim_result_deinit(&result);
        dp_schedule_deinit(&schedule);
    }
}

// (2N-2H-1) FB + (2H+1)(F+B) + (H-1)(FB+B-3W), exact while F = I >= W, max(F,B) <= FB <= F+B.
static void dual_schedules_follow_their_closed_form(void **state)
{
    (void)state;
    for (int32_t h = 1; h <= 6; h++) {
        for (int32_t n = 2 * h; n <= 2 * h + 9; n += 3) {
            for (int k = 0; k < 5; k++) {
                double f = 1 + 0.3 * k;
                double w = f * (1 - 0.2 * k);
                double b = f + w;
                double fb = b + f * 0.25 * (4 - k);
                double wanted = (2 * n - 2 * h - 1) * fb + (2 * h + 1) * (f + b) +
                                (h - 1) * (fb + b - 3 * w);
                struct dp_sim_uniform uniform = {.f = f, .b = b, .i = f, .w = w, .fb = fb};
                assert_near(makespan_of("dualpipe", 2 * h, 2 * n, uniform), wanted);
                assert_near(makespan_of("dualpipev", h, n, uniform), wanted);
            }
        }
    }
}

// Bubble rates that the zero-bubble paper measured with these times (its Tables 5 and 9).
static void latency_costs_1f1b_what_the_zero_bubble_paper_published(void **state)
{
    (void)state;
    static const struct {
        int32_t p, m;
        double f, b, w, c, rate;
    } cases[] = {{8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431},
                 {8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240},
                 {8, 32, 29.802, 29.428, 19.53, 0.577, 0.1898},
                 {16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552},
                 {16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251},
                 {32, 128, 10.408, 10.204, 7.703, 0.408, 0.2168}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double work = cases[i].m * (cases[i].f + cases[i].b + cases[i].w);
        double makespan = makespan_of("1f1b", cases[i].p, cases[i].m,
                                      (struct dp_sim_uniform){.f = cases[i].f,
                                                              .b = cases[i].b + cases[i].w,
                                                              .hop = {cases[i].c, 0}});
        double rate = (makespan - work) / makespan;
        if (!(fabs(rate - cases[i].rate) <= 5.1e-5)) {
            fail_msg("p=%d m=%d: %.5f, published %.4f", cases[i].p, cases[i].m, rate,
                     cases[i].rate);
        }
    }
}

static void latency_costs_dual_schedules_what_others_found(void **state)
{
    (void)state;
    struct dp_sim_uniform uniform = {.f = 1, .b = 2, .i = 1, .w = 1, .fb = 3, .hop = {0.25, 0}};
    assert_near(makespan_of("dualpipe", 8, 40, uniform), 137);
    assert_near(makespan_of("dualpipev", 8, 40, uniform), 277);
}

// The measured chunk durations of DeepSeek-V3's trace: the best and the worst rank.
static void a_pair_faster_than_its_parts_leaves_ranks_unequal(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("dualpipe", 16, 120);
    struct dp_sim_result result = simulate_uniform(
        &schedule,
        (struct dp_sim_uniform){.f = 97.4, .i = 111.7, .w = 35.1, .b = 146.8, .fb = 128.5});
    double low = INFINITY;
    double high = 0;
    for (int32_t rank = 0; rank < 16; rank++) {
        low = fmin(low, result.ranks[rank].bubble);
        high = fmax(high, result.ranks[rank].bubble);
    }
    assert_int_equal((int)low, 664);
    assert_int_equal((int)high, 1358);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
    assert_near(makespan_of("dualpipe", 16, 32,
                            (struct dp_sim_uniform){.f = 1, .b = 2, .i = 1, .w = 1, .fb = 2}),
                88);
}

static void gpipe_keeps_every_microbatch_and_1f1b_as_many_as_stages_follow(void **state)
{
    (void)state;
    for (int32_t m = 1; m <= 12; m += 3) {
        struct dp_schedule gpipe = make_schedule("gpipe", 6, m);
        struct dp_schedule fb = make_schedule("1f1b", 6, m);
        struct dp_sim_uniform uniform = {.f = 1, .b = 2};
        struct dp_sim_result a = simulate_uniform(&gpipe, uniform);
        struct dp_sim_result b = simulate_uniform(&fb, uniform);
        for (int32_t rank = 0; rank < 6; rank++) {
            assert_int_equal(a.ranks[rank].peak_chunks, m);
            assert_int_equal(b.ranks[rank].peak_chunks, min32(m, 6 - rank));
            assert_int_equal(b.ranks[rank].peak_bytes, min32(m, 6 - rank));
        }
        dp_sim_result_deinit(&a);
        dp_sim_result_deinit(&b);
        dp_schedule_deinit(&gpipe);
        dp_schedule_deinit(&fb);
    }
}

// Published: P-r chunks of the near stage and r+1 of the far one, at the same time, on each rank.
static void uneven_stages_weigh_what_dualpipe_keeps_of_each(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("dualpipe", 8, 20);
    struct dp_sim_costs costs;
    dp_sim_costs_init_uniform(&costs, &schedule,
                              &(struct dp_sim_uniform){.f = 1, .b = 2, .i = 1, .w = 1});
    for (int32_t rank = 0; rank < 8; rank++) {
        for (int32_t slot = 0; slot < 2; slot++) {
            struct dp_sim_chunk *chunk = dp_sim_chunk_at(&costs, rank, slot);
            chunk->activation_bytes = slot == 0 ? 1000 : 7;
            chunk->released_at_i_bytes = 0;
        }
    }
    struct dp_sim_result result;
    assert_ok(dp_simulate(&schedule, &costs, false, &result, &err), &err);
    assert_null(result.spans);
    for (int32_t rank = 0; rank < 8; rank++) {
        assert_int_equal(result.ranks[rank].slot_peak_chunks[0], 8 - rank);
        assert_int_equal(result.ranks[rank].slot_peak_chunks[1], rank + 1);
        assert_int_equal(result.ranks[rank].peak_bytes, 1000 * (8 - rank) + 7 * (rank + 1));
    }
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

// Rank 0: F 0-1, B 5-7. Rank 1: F 1.5-2.5, B 2.5-4.5.
static void the_bubble_is_split_by_its_cause(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("1f1b", 2, 1);
    struct dp_sim_result result = simulate_uniform(
        &schedule, (struct dp_sim_uniform){.f = 1, .b = 2, .hop = {.latency = 0.5}});
    const struct dp_sim_rank *first = &result.ranks[0];
    const struct dp_sim_rank *second = &result.ranks[1];
    assert_near(result.makespan, 7);
    assert_near(first->warmup, 0);
    assert_near(first->dependency, 3.5);
    assert_near(first->comm, 0.5);
    assert_near(first->cooldown, 0);
    assert_near(first->busy[DP_ACTION_F], 1);
    assert_near(first->busy[DP_ACTION_B], 2);
    assert_near(second->warmup, 1.5);
    assert_near(second->dependency + second->comm, 0);
    assert_near(second->cooldown, 2.5);
    assert_near(second->span_bubble, 0);
    assert_near(second->bubble, 4);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
}

// Two messages leave at 1 and 2 and need 3 seconds each on the wire: they arrive at 4.5 and 7.5.
static void messages_of_one_pair_of_ranks_share_the_wire(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("gpipe", 2, 2);
    struct dp_sim_costs costs;
    dp_sim_costs_init_uniform(
        &costs, &schedule,
        &(struct dp_sim_uniform){.f = 1, .b = 1, .hop = {.latency = 0.5, .bytes_per_second = 2}});
    costs.message_bytes_f = 6;
    struct dp_sim_result result;
    assert_ok(dp_simulate(&schedule, &costs, true, &result, &err), &err);
    assert_near(result.spans[4].start, 4.5);
    assert_near(result.spans[5].start, 7.5);
    // Gradients weigh nothing here: B at 8.5 on rank 1, back after the latency.
    assert_near(result.spans[2].start, 10);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

static double step_of(const struct dp_schedule *schedule, const struct dp_sim_costs *costs)
{
    struct dp_error err = {0};
    struct dp_sim_result result;
    assert_ok(dp_simulate(schedule, costs, false, &result, &err), &err);
    double makespan;
    double step;
    assert_ok(dp_simulate_makespan(schedule, costs, NULL, &makespan, &step, &err), &err);
    assert_true(makespan == result.makespan);
    assert_true(step == result.step);
    dp_sim_result_deinit(&result);
    return step;
}

// 1F1B, 2 ranks, one micro-batch, F = B = 1: rank 1 is done at 3, rank 0 at 4.
static void the_step_adds_gradient_sums_and_the_optimizer(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("1f1b", 2, 1);
    struct dp_sim_costs costs;
    dp_sim_costs_init_uniform(&costs, &schedule, &(struct dp_sim_uniform){.f = 1, .b = 1});
    assert_near(step_of(&schedule, &costs), 4);
    costs.gradient_sync[1] = 5;  // 3 + 5 against 4 + 0
    costs.optimizer[0] = 2;
    costs.optimizer[1] = 0.5;
    assert_near(step_of(&schedule, &costs), 8 + 2);
    costs.barrier = false;
    assert_near(step_of(&schedule, &costs), 8.5);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

// Ranks r and P-1-r hold the same stages, so neither can sum gradients before both are done.
static void mirrored_ranks_sum_their_gradients_together(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("dualpipe", 2, 4);
    struct dp_sim_costs costs;
    dp_sim_costs_init_uniform(&costs, &schedule,
                              &(struct dp_sim_uniform){.f = 1, .b = 2, .i = 1, .w = 1});
    // The last actions are W: a slow one makes rank 1 late and nobody else.
    for (int32_t slot = 0; slot < 2; slot++) {
        dp_sim_chunk_at(&costs, 1, slot)->seconds[DP_ACTION_W] = 3;
    }
    costs.barrier = false;
    costs.gradient_sync[0] = 4;
    struct dp_sim_result result;
    assert_ok(dp_simulate(&schedule, &costs, false, &result, &err), &err);
    assert_near(result.ranks[1].end, result.ranks[0].end + 2);
    assert_near(result.step, result.ranks[1].end + 4);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

// GPipe's phases each take as long as their slowest rank allows: every micro-batch adds 0.5 + 1.
static void a_slow_rank_costs_its_loss_once_per_microbatch(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 4, 16);
    struct dp_sim_costs costs;
    struct dp_sim_costs slow;
    dp_sim_costs_init_uniform(&costs, &schedule, &(struct dp_sim_uniform){.f = 1, .b = 2});
    dp_sim_costs_copy(&slow, &costs);
    costs_slow_rank(&slow, 2, 1.5);
    assert_near(step_of(&schedule, &slow), step_of(&schedule, &costs) + 16 * 1.5);
    dp_sim_costs_deinit(&slow);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

static void costs_that_are_no_durations_are_refused(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_sim_result result;
    struct dp_schedule schedule = make_schedule("dualpipe", 2, 4);
    struct dp_schedule other = make_schedule("1f1b", 3, 4);
    struct dp_sim_costs costs;
    dp_sim_costs_init(&costs, &schedule);
    struct dp_sim_chunk *chunk = dp_sim_chunk_at(&costs, 1, 0);
    chunk->seconds[DP_ACTION_W] = -1;
    assert_refused(dp_simulate(&schedule, &costs, false, &result, &err), DP_INVALID, &err,
                   "rank 1, slot 0: W takes -1 seconds");
    chunk->seconds[DP_ACTION_W] = 0;
    costs.fb[3] = NAN;
    assert_refused(dp_simulate(&schedule, &costs, false, &result, &err), DP_INVALID, &err,
                   "the pair of slots 1 and 1");
    costs.fb[3] = 0;
    costs.host[1] = 1;
    assert_refused(dp_simulate(&schedule, &costs, false, &result, &err), DP_INVALID, &err,
                   "rank 1 is on host 1");
    costs.host[1] = 0;
    dp_sim_hop_at(&costs, 0, 1)->latency = INFINITY;
    assert_refused(dp_simulate(&schedule, &costs, false, &result, &err), DP_INVALID, &err,
                   "hop from rank 0 to 1");
    assert_refused(dp_simulate(&other, &costs, false, &result, &err), DP_INVALID, &err,
                   "3 ranks");
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
    dp_schedule_deinit(&other);
}

// Sums of them must stay finite: 1e308 seconds are a number, twice as many are none.
static void costs_beyond_all_measure_are_refused_with_the_most_that_may_be(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("dualpipe", 2, 4);
    struct dp_sim_costs costs;
    dp_sim_costs_init(&costs, &schedule);
    struct dp_sim_hop *hop = dp_sim_hop_at(&costs, 1, 0);
    costs.message_bytes_b = 100;
    const struct {
        double *cost, value;
        const char *message;
    } cases[] = {
        {&dp_sim_chunk_at(&costs, 1, 0)->seconds[DP_ACTION_F], 1e308,
         "rank 1, slot 0: F takes 1e+308 seconds; give 0 to 1e+09"},
        {&costs.fi[1], 1.1e9, "slots 0 and 1 takes 1.1e+09 seconds; give 0 to 1e+09"},
        {&costs.gradient_sync[1], 2e9, "rank 1: gradient sync 2e+09, optimizer 0 seconds; give 0"},
        {&costs.optimizer[0], 1e300, "rank 0: gradient sync 0, optimizer 1e+300 seconds"},
        {&hop->latency, 1e10, "hop from rank 1 to 0: latency 1e+10 seconds"},
        {&hop->bytes_per_second, 9e-8, "100 bytes at 9e-08 bytes/s take over 1e+09 seconds"},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(cases); i++) {
        struct dp_error err = {0};
        struct dp_sim_result result;
        *cases[i].cost = cases[i].value;
        assert_refused(dp_simulate(&schedule, &costs, false, &result, &err), DP_INVALID, &err,
                       cases[i].message);
        *cases[i].cost = 0;
    }
    dp_sim_chunk_at(&costs, 0, 0)->seconds[DP_ACTION_F] = 1e9;
    struct dp_error err = {0};
    struct dp_sim_result result;
    assert_ok(dp_simulate(&schedule, &costs, false, &result, &err), &err);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

// A rank of GPipe keeps all of its chunks at once; here, 2^16 of 2^46 bytes.
static void bytes_of_the_largest_chunks_add_up(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_sim_result result;
    struct dp_schedule schedule = make_schedule("gpipe", 1, 65536);
    struct dp_sim_costs costs;
    dp_sim_costs_init(&costs, &schedule);
    struct dp_sim_chunk *chunk = dp_sim_chunk_at(&costs, 0, 0);
    chunk->activation_bytes = chunk->released_at_i_bytes = 1ull << 46;
    assert_ok(dp_simulate(&schedule, &costs, false, &result, &err), &err);
    assert_true(result.ranks[0].peak_bytes == 1ull << 62);
    dp_sim_result_deinit(&result);
    chunk->activation_bytes++;
    assert_refused(dp_simulate(&schedule, &costs, false, &result, &err), DP_INVALID, &err,
                   "keeps 70368744177665 bytes of activations; 70368744177664 is the most");
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_the_largest_chunks_add_up),
        cmocka_unit_test(gpipe_and_1f1b_waste_the_fill_and_the_drain),
        cmocka_unit_test(dual_schedules_take_the_published_times),
        cmocka_unit_test(dual_schedules_follow_their_closed_form),
        cmocka_unit_test(latency_costs_1f1b_what_the_zero_bubble_paper_published),
        cmocka_unit_test(latency_costs_dual_schedules_what_others_found),
        cmocka_unit_test(a_pair_faster_than_its_parts_leaves_ranks_unequal),
        cmocka_unit_test(gpipe_keeps_every_microbatch_and_1f1b_as_many_as_stages_follow),
        cmocka_unit_test(uneven_stages_weigh_what_dualpipe_keeps_of_each),
        cmocka_unit_test(the_bubble_is_split_by_its_cause),
        cmocka_unit_test(messages_of_one_pair_of_ranks_share_the_wire),
        cmocka_unit_test(the_step_adds_gradient_sums_and_the_optimizer),
        cmocka_unit_test(mirrored_ranks_sum_their_gradients_together),
        cmocka_unit_test(a_slow_rank_costs_its_loss_once_per_microbatch),
        cmocka_unit_test(costs_that_are_no_durations_are_refused),
        cmocka_unit_test(costs_beyond_all_measure_are_refused_with_the_most_that_may_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
