// Closed forms of bubbles and memory over random sizes and costs, each in the range where it holds.
#include "support.h"

#include <math.h>

#include "dp/rand.h"

static struct dp_rand random_state;

static int32_t between(int32_t low, int32_t high)
{
    return low + (int32_t)dp_rand_below(&random_state, (uint64_t)(high - low + 1));
}

// What one schedule takes and keeps.
struct measured {
    double makespan, own_bubble, bubble; // of the worst rank
    uint32_t held[DP_PIPELINE_MAX];      // chunks, by rank
};

static struct measured measure(const char *family, struct dp_schedule_params params,
                               struct dp_sim_uniform uniform)
{
    struct dp_error err = {0};
    struct dp_schedule schedule;
    assert_ok(dp_schedule_generate(family, &params, &schedule, &err), &err);
    struct dp_sim_result result = simulate_uniform(&schedule, uniform);
    struct measured measured = {.makespan = result.makespan};
    for (int32_t rank = 0; rank < params.pipeline; rank++) {
        measured.own_bubble = fmax(measured.own_bubble, result.ranks[rank].span_bubble);
        measured.bubble = fmax(measured.bubble, result.ranks[rank].bubble);
        measured.held[rank] = result.ranks[rank].held_peak_chunks;
    }
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
    return measured;
}

#define assert_form(got, wanted, p)                                                                \
    do {                                                                                           \
        if (!(fabs((got) - (wanted)) <= 1e-9 * (1 + fabs(wanted)))) {                              \
            fail_msg("P=%d M=%d v=%d: %.12g is not %.12g", (p).pipeline, (p).microbatches,         \
                     (p).virtual_stages, (double)(got), (double)(wanted));                         \
        }                                                                                          \
    } while (0)

// F, I, W between 1 and 12 eighths.
static struct dp_sim_uniform random_costs(void)
{
    struct dp_sim_uniform u = {
        .f = between(1, 12) / 8.0, .i = between(1, 12) / 8.0, .w = between(1, 12) / 8.0};
    u.b = u.i + u.w;
    return u;
}

// (P-1)(F+I-W) within the ranks' own spans while M >= P and W <= F: a longer W delays the forwards
// behind it. Of the makespan while W <= I, too: else the last rank ends after the first.
static void zb_h1_wastes_a_drain_less_its_weight_gradients(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        int32_t p = between(1, 12);
        struct dp_schedule_params params = {p, between(p, 4 * p), 0};
        struct dp_sim_uniform u = random_costs();
        u.w = fmin(u.w, u.f);
        struct measured got = measure("zb-h1", params, u);
        double wanted = (p - 1) * (u.f + u.i - u.w);
        assert_form(got.own_bubble, wanted, params);
        if (u.w <= u.i) {
            assert_form(got.bubble, wanted, params);
        }
    }
}

// (P-1)(F+I-2W) within the ranks' own spans while M >= 2P-1, W <= F and 2W <= F+I.
static void zb_h2_wastes_less_by_twice_its_weight_gradients(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        int32_t p = between(1, 12);
        struct dp_schedule_params params = {p, between(2 * p - 1, 5 * p), 0};
        struct dp_sim_uniform u = random_costs();
        u.w = fmin(u.w, fmin(u.f, (u.f + u.i) / 2));
        double wanted = (p - 1) * (u.f + u.i - 2 * u.w);
        assert_form(measure("zb-h2", params, u).own_bubble, wanted, params);
    }
}

static void one_microbatch_less_and_zero_bubble_orders_waste_more(void **state)
{
    (void)state;
    struct dp_sim_uniform u = {.f = 1, .b = 2, .i = 1, .w = 1};
    for (int32_t p = 2; p <= 10; p++) {
        struct dp_schedule_params h1 = {p, p - 1, 0};
        struct dp_schedule_params h2 = {p, 2 * p - 2, 0};
        assert_true(measure("zb-h1", h1, u).own_bubble > (p - 1) * (u.f + u.i - u.w));
        assert_true(measure("zb-h2", h2, u).own_bubble > 0);
    }
}

// (P-1)(F+B)/v while M >= P, also where P does not divide M; F and B of a whole stage.
static void interleaved_wastes_a_vth_of_1f1b(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        int32_t p = between(1, 10);
        struct dp_schedule_params params = {p, between(p, 5 * p), between(1, 6)};
        int32_t v = params.virtual_stages;
        struct dp_sim_uniform u = {.f = between(1, 12) / 8.0, .b = between(1, 12) / 8.0};
        struct measured got = measure("interleaved", params, u);
        assert_form(got.bubble, (p - 1) * (u.f + u.b), params);
        assert_form(got.makespan, (double)v * params.microbatches * (u.f + u.b) + got.bubble,
                    params);
    }
}

// As ZB-H1, of a chunk each: (P-1)(F+I-W) while M >= P and W <= F and I, also where P does not
// divide M. All ranks keep as much: P chunks and v-1 groups, the first of which is M/(M/P) large,
// rounded down and then up; that is P micro-batches where P divides M.
static void interleaved_zb_wastes_a_vth_of_zb_h1_with_its_memory(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        int32_t p = between(1, 10), m = between(p, 5 * p), v = between(1, 6);
        struct dp_schedule_params params = {p, m, v};
        struct dp_sim_uniform u = random_costs();
        u.w = fmin(u.w, fmin(u.f, u.i));
        struct measured got = measure("interleaved-zb", params, u);
        assert_form(got.bubble, (p - 1) * (u.f + u.i - u.w), params);
        uint32_t group = (uint32_t)ceil(m / floor((double)m / p));
        for (int32_t rank = 0; rank < p; rank++) {
            assert_int_equal(got.held[rank], (uint32_t)(v - 1) * group + (uint32_t)p);
        }
    }
}

static void interleaved_zb_of_one_chunk_is_zb_h1(void **state)
{
    (void)state;
    for (int32_t p = 1; p <= 9; p++) {
        for (int32_t m = 1; m <= 3 * p; m++) {
            struct dp_error err = {0};
            struct dp_schedule h1, one;
            struct dp_schedule_params params = {p, m, 0}, chunk = {p, m, 1};
            assert_ok(dp_schedule_generate("zb-h1", &params, &h1, &err), &err);
            assert_ok(dp_schedule_generate("interleaved-zb", &chunk, &one, &err), &err);
            size_t count = dp_schedule_action_count(&h1);
            assert_int_equal(dp_schedule_action_count(&one), count);
            assert_memory_equal(one.actions, h1.actions, count * sizeof(struct dp_action));
            dp_schedule_deinit(&one);
            dp_schedule_deinit(&h1);
        }
    }
}

// 2M+P-2 slots when P divides M and F = B; for other M no more than 1F1B's 2(M+P-1).
static void chimera_takes_two_slots_per_microbatch_and_a_half_drain(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        int32_t p = 2 * between(1, 6);
        struct dp_schedule_params whole = {p, p * between(1, 4), 0};
        struct dp_schedule_params any = {p, between(2, 4 * p), 0};
        double slot = between(1, 12) / 8.0;
        struct dp_sim_uniform u = {.f = slot, .b = slot};
        assert_form(measure("chimera", whole, u).makespan, (2 * whole.microbatches + p - 2) * slot,
                    whole);
        assert_true(measure("chimera", any, u).makespan <=
                    2 * (any.microbatches + p - 1) * slot + 1e-9);
    }
}

// (H-1)(FB+B-W) on the worst rank while N >= 2H, F = I >= W and max(F, B) <= FB <= F+B.
static void a_whole_cool_down_has_its_closed_form(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        int32_t h = between(1, 6);
        int32_t n = between(2 * h, 5 * h);
        struct dp_sim_uniform u = random_costs();
        u.i = u.f;
        u.w = fmin(u.w, u.f);
        u.b = u.i + u.w;
        u.fb = u.b + u.f * between(0, 8) / 8;
        double wanted = (h - 1) * (u.fb + u.b - u.w);
        struct dp_schedule_params v = {h, n, 0};
        struct dp_schedule_params two = {2 * h, 2 * n, 0};
        assert_form(measure("dualpipev-full-b", v, u).bubble, wanted, v);
        assert_form(measure("dualpipe-full-b", two, u).bubble, wanted, two);
    }
}

// At B = 2F, which its order assumes, whatever M and the number of waves.
static void hanayo_is_never_slower_than_1f1b(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(150); run++) {
        int32_t p = between(1, 9);
        struct dp_schedule_params params = {p, between(1, 5 * p), 2 * between(1, 4)};
        int32_t v = params.virtual_stages;
        struct measured got = measure("hanayo", params, (struct dp_sim_uniform){.f = 1, .b = 2});
        assert_true(got.makespan <= 3.0 * v * (params.microbatches + p - 1) + 1e-9);
    }
}

// One wave and M >= 3P/2: the bubble of interleaved 1F1B with two chunks, (P-1)(F+B)/2 of a stage.
static void one_wave_wastes_as_little_as_two_interleaved_chunks(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(150); run++) {
        int32_t p = between(1, 10);
        struct dp_schedule_params params = {p, between((3 * p + 1) / 2, 6 * p), 2};
        struct measured got = measure("hanayo", params, (struct dp_sim_uniform){.f = 1, .b = 2});
        assert_form(got.bubble, 3.0 * (p - 1), params);
    }
}

// No closed form is known for more waves and M > P: the slots that a list scheduler written apart
// from this one (on heaps, by events) needs with the same rule.
static void more_waves_take_what_another_scheduler_of_the_same_rule_takes(void **state)
{
    (void)state;
    static const struct {
        struct dp_schedule_params params;
        double slots;
    } cases[] = {
        {{4, 6, 4}, 92},   {{4, 16, 4}, 211}, {{8, 12, 4}, 185}, {{8, 16, 4}, 242},
        {{8, 64, 4}, 798}, {{6, 9, 6}, 204},  {{6, 24, 6}, 475}, {{8, 16, 8}, 480},
        {{8, 32, 8}, 817}, {{5, 11, 4}, 161}, {{7, 10, 6}, 233}, {{3, 40, 16}, 1958},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct measured got =
            measure("hanayo", cases[i].params, (struct dp_sim_uniform){.f = 1, .b = 2});
        assert_form(got.makespan, cases[i].slots, cases[i].params);
    }
}

static uint32_t least(int32_t a, int32_t b)
{
    return (uint32_t)min32(a, b);
}

// Chunks alive from F until their last backward, on each rank.
static void ranks_keep_what_their_family_promises(void **state)
{
    (void)state;
    struct dp_sim_uniform u = {.f = 1, .b = 2, .i = 1, .w = 1};
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        int32_t p = between(1, 10);
        int32_t m = between(1, 5 * p);
        int32_t v = between(2, 5);
        // Groups of nearly the same size, at least P where M allows it; the first is the largest.
        int32_t groups = m / p > 1 ? m / p : 1;
        int32_t group = (m + groups - 1) / groups;
        struct dp_schedule_params params = {p, m, 0};
        struct measured h1 = measure("zb-h1", params, u);
        struct measured h2 = measure("zb-h2", params, u);
        params.virtual_stages = 1;
        struct measured one = measure("interleaved", params, u);
        params.virtual_stages = v;
        struct measured many = measure("interleaved", params, u);
        for (int32_t rank = 0; rank < p; rank++) {
            assert_int_equal(h1.held[rank], least(m, p));
            assert_int_equal(h2.held[rank], least(m, 2 * p - 1));
            assert_int_equal(one.held[rank], least(m, p - rank));
            int32_t ahead = 2 * (p - 1 - rank) + (v - 1) * group;
            assert_int_equal(many.held[rank], least(m * v, ahead + 1));
        }
    }
}

// Chimera: D/2+1 to D, the inner ranks the most. Hanayo: P for M = P; for any M
// P + (P-1)/2 with one wave, as interleaved 1F1B with two chunks, and 3P/2 with more.
static void two_streams_and_waves_keep_what_was_published(void **state)
{
    (void)state;
    struct dp_sim_uniform u = {.f = 1, .b = 2, .i = 1, .w = 1, .fb = 3};
    for (long run = 0; run < dp_fuzz_runs(100); run++) {
        int32_t d = 2 * between(1, 6);
        int32_t p = between(1, 8);
        int32_t v = 2 * between(1, 3);
        struct dp_schedule_params dense = {d, d * between(1, 4), 0};
        struct measured chimera = measure("chimera", dense, u);
        for (int32_t rank = 0; rank < d; rank++) {
            int32_t near = rank < d / 2 ? rank : d - 1 - rank;
            assert_int_equal(chimera.held[rank], d / 2 + 1 + near);
        }
        struct dp_schedule_params wave = {p, p, v};
        struct dp_schedule_params waves = {p, between(1, 6 * p), v};
        struct measured paper = measure("hanayo", wave, u);
        struct measured more = measure("hanayo", waves, u);
        struct dp_schedule_params folded = {p, between(2 * p - 1, 5 * p), 0};
        struct measured whole = measure("dualpipev-full-b", folded, u);
        for (int32_t rank = 0; rank < p; rank++) {
            assert_true(paper.held[rank] <= (uint32_t)(p * v));
            assert_true(2 * more.held[rank] <= (uint32_t)((v == 2 ? 3 * p - 1 : 3 * p) * v));
            assert_true(whole.held[rank] <= (uint32_t)(2 * p + 1));
        }
    }
}

static int set_up(void **state)
{
    (void)state;
    dp_rand_init(&random_state, 20240110);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zb_h1_wastes_a_drain_less_its_weight_gradients),
        cmocka_unit_test(zb_h2_wastes_less_by_twice_its_weight_gradients),
        cmocka_unit_test(one_microbatch_less_and_zero_bubble_orders_waste_more),
        cmocka_unit_test(interleaved_wastes_a_vth_of_1f1b),
        cmocka_unit_test(interleaved_zb_wastes_a_vth_of_zb_h1_with_its_memory),
        cmocka_unit_test(interleaved_zb_of_one_chunk_is_zb_h1),
        cmocka_unit_test(chimera_takes_two_slots_per_microbatch_and_a_half_drain),
        cmocka_unit_test(a_whole_cool_down_has_its_closed_form),
        cmocka_unit_test(hanayo_is_never_slower_than_1f1b),
        cmocka_unit_test(one_wave_wastes_as_little_as_two_interleaved_chunks),
        cmocka_unit_test(more_waves_take_what_another_scheduler_of_the_same_rule_takes),
        cmocka_unit_test(ranks_keep_what_their_family_promises),
        cmocka_unit_test(two_streams_and_waves_keep_what_was_published),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
