// Closed forms of the literature over random sizes and costs, latency of the links included, each
// in the range in which it is exact. c is the latency of one hop; F, B = I + W and the pair FB are
// of one chunk.
#include "support.h"

#include <math.h>

#include "dp/rand.h"

static struct dp_rand state_of_random;

static double random_between(double least, double most)
{
    return least + (most - least) * dp_rand_double(&state_of_random);
}

static int32_t random_count(int32_t least, int32_t most)
{
    return least + (int32_t)dp_rand_below(&state_of_random, (uint64_t)(most - least + 1));
}

static void assert_near(double got, double wanted)
{
    if (!(fabs(got - wanted) <= 1e-9 * (1 + fabs(wanted)))) {
        fail_msg("%.12g is not %.12g", got, wanted);
    }
}

struct outcome {
    double makespan, own_span; // the longest own span of a rank
    double ratio, own_ratio;
    double activations; // the most of a rank
};

static struct outcome outcome_of(const char *family, struct dp_schedule_params params,
                                 struct dp_sim_uniform uniform)
{
    struct dp_error err = {0};
    struct dp_schedule schedule;
    assert_ok(dp_schedule_generate(family, &params, &schedule, &err), &err);
    struct dp_sim_result result = simulate_uniform(&schedule, uniform);
    struct outcome outcome = {.makespan = result.makespan,
                              .ratio = dp_sim_bubble_ratio(&result),
                              .own_ratio = dp_sim_own_span_bubble_ratio(&result)};
    for (int32_t i = 0; i < result.pipeline; i++) {
        const struct dp_sim_rank *rank = &result.ranks[i];
        outcome.own_span = fmax(outcome.own_span, rank->end - rank->begin);
        outcome.activations = fmax(outcome.activations, rank->peak_activations);
        assert_true(rank->imbalance == 0);
        assert_near(rank->warmup + rank->dependency + rank->comm + rank->cooldown, rank->bubble);
    }
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
    return outcome;
}

// Any durations; W no longer than F and I.
static struct dp_sim_uniform random_costs(void)
{
    struct dp_sim_uniform costs = {.f = random_between(0.5, 3), .i = random_between(0.5, 3)};
    costs.w = fmin(costs.f, costs.i) * random_between(0.1, 1);
    costs.b = costs.i + costs.w;
    costs.hop.latency = random_between(0, 0.5);
    return costs;
}

// (M+P-1)(F+B) + 2(P-1)c: latency is paid once each way. Exact for all sizes and costs.
static void gpipe_pays_latency_once_each_way(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct dp_sim_uniform u = random_costs();
        int32_t p = random_count(1, 10);
        int32_t m = random_count(1, 40);
        struct outcome got =
            outcome_of("gpipe", (struct dp_schedule_params){.pipeline = p, .microbatches = m}, u);
        assert_near(got.makespan, (m + p - 1) * (u.f + u.b) + 2 * (p - 1) * u.hop.latency);
        assert_near(got.activations, m);
    }
}

// With q = M mod P: (M+P-1)(F+B) + c (2(P-1) floor(M/P) + 2(P-1) - 2 + {0 if q=0, 2 if q=1,
// 2(q-1)}), for P >= 2 and M >= P. Where P divides M it is the published form (planned and measured
// by Qi et al. for M = 3P to 8P); latency is paid all the way through.
static void one_f_one_b_pays_latency_in_every_round(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct dp_sim_uniform u = random_costs();
        int32_t p = random_count(2, 10);
        int32_t m = random_count(p, 60);
        int32_t q = m % p;
        double hops = 2 * (p - 1) * (m / p) + 2 * (p - 1) - 2 +
                      (q == 0   ? 0
                       : q == 1 ? 2
                                : 2 * (q - 1));
        struct outcome got =
            outcome_of("1f1b", (struct dp_schedule_params){.pipeline = p, .microbatches = m}, u);
        assert_near(got.makespan, (m + p - 1) * (u.f + u.b) + hops * u.hop.latency);
        assert_near(got.activations, p);
    }
}

// Mv(F+B) + (P-1)(F+B) + 2c(vP-1), where P divides M: the fill is v times shorter than 1F1B's, and
// every chunk passed on the way to the last stage and back costs a hop once. P + (P-1)/v
// activations on the first rank when there are so many.
static void interleaving_shortens_the_fill(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct dp_sim_uniform u = random_costs();
        int32_t p = random_count(2, 9);
        int32_t v = random_count(2, 4);
        int32_t m = p * random_count(2, 5);
        struct outcome got = outcome_of(
            "interleaved",
            (struct dp_schedule_params){.pipeline = p, .microbatches = m, .virtual_stages = v}, u);
        double pair = u.f + u.b;
        assert_near(got.makespan,
                    m * v * pair + (p - 1) * pair + 2 * (v * p - 1) * u.hop.latency);
        assert_near(got.activations, p + (p - 1.0) / v);
    }
}

// (P-1)(F+I-W) + 4(P-1)c of bubble, exact for W <= min(F, I), M >= 2P-1 and 2c <= W.
static void zb_h1_hides_a_weight_gradient_per_rank(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct dp_sim_uniform u = random_costs();
        int32_t p = random_count(2, 10);
        int32_t m = random_count(2 * p - 1, 60);
        u.hop.latency = fmin(u.hop.latency, u.w / 2);
        double bubble = (p - 1) * (u.f + u.i - u.w) + 4 * (p - 1) * u.hop.latency;
        struct outcome got =
            outcome_of("zb-h1", (struct dp_schedule_params){.pipeline = p, .microbatches = m}, u);
        assert_near(got.makespan, m * (u.f + u.b) + bubble);
        assert_near(got.own_ratio, bubble / (bubble + m * (u.f + u.b)));
        assert_near(got.activations, p);
    }
}

// The same of a chunk, and (v-1)P hops more; where P divides M, M >= 2P, W <= min(F, I), 2c <= W.
static void interleaved_zb_hides_a_weight_gradient_per_rank(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct dp_sim_uniform u = random_costs();
        int32_t p = random_count(2, 9);
        int32_t v = random_count(1, 4);
        int32_t m = p * random_count(2, 5);
        u.hop.latency = fmin(u.hop.latency, u.w / 2);
        struct outcome got = outcome_of(
            "interleaved-zb",
            (struct dp_schedule_params){.pipeline = p, .microbatches = m, .virtual_stages = v}, u);
        double hops = 4 * (p - 1) + (v - 1) * p;
        assert_near(got.makespan, m * v * (u.f + u.b) + (p - 1) * (u.f + u.i - u.w) +
                                      hops * u.hop.latency);
        assert_near(got.activations, p);
    }
}

// (P-1)(F+I-2W) + 2(P-1)c of bubble in the longest own span, exact for W <= min(F, I), M >= 2P-1.
static void zb_h2_hides_two_weight_gradients_per_rank(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct dp_sim_uniform u = random_costs();
        int32_t p = random_count(2, 10);
        int32_t m = random_count(2 * p - 1, 60);
        double bubble = (p - 1) * (u.f + u.i - 2 * u.w) + 2 * (p - 1) * u.hop.latency;
        struct outcome got =
            outcome_of("zb-h2", (struct dp_schedule_params){.pipeline = p, .microbatches = m}, u);
        assert_near(got.own_span, m * (u.f + u.b) + bubble);
        assert_near(got.own_ratio, bubble / (bubble + m * (u.f + u.b)));
        assert_near(got.activations, 2 * p - 1);
    }
}

// (2N-2H-1) FB + (2H+1)(F+B) + (H-1)(FB+B-3W), exact for F = I >= W and max(F,B) <= FB <= F+B
// without latency. DualPipe: H = P/2, N = M/2; DualPipeV: H = P, N = M. 2H+1 chunks, which weigh
// P+1 and P+1/2 micro-batches.
static void dual_schedules_have_one_form(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        int32_t h = random_count(1, 7);
        int32_t n = random_count(2 * h, 2 * h + 30);
        double f = random_between(0.5, 3);
        double w = f * dp_rand_double(&state_of_random);
        double b = f + w;
        double fb = random_between(b, f + b);
        struct dp_sim_uniform u = {.f = f, .i = f, .w = w, .b = b, .fb = fb};
        double wanted =
            (2 * n - 2 * h - 1) * fb + (2 * h + 1) * (f + b) + (h - 1) * (fb + b - 3 * w);
        struct outcome both = outcome_of(
            "dualpipe", (struct dp_schedule_params){.pipeline = 2 * h, .microbatches = 2 * n}, u);
        struct outcome v = outcome_of(
            "dualpipev", (struct dp_schedule_params){.pipeline = h, .microbatches = n}, u);
        assert_near(both.makespan, wanted);
        assert_near(v.makespan, wanted);
        assert_near(both.activations, 2 * h + 1);
        assert_near(v.activations, h + 0.5);
    }
}

// The published bubble ratio, (P-1)/(M+P-1) whatever F and B are.
static void the_ratio_of_1f1b_depends_on_sizes_alone(void **state)
{
    (void)state;
    for (long run = 0; run < dp_fuzz_runs(100); run++) {
        struct dp_sim_uniform u = random_costs();
        int32_t p = random_count(1, 10);
        int32_t m = random_count(p, 40);
        u.hop.latency = 0;
        struct outcome got =
            outcome_of("1f1b", (struct dp_schedule_params){.pipeline = p, .microbatches = m}, u);
        assert_near(got.ratio, (p - 1.0) / (m + p - 1.0));
        assert_near(got.own_ratio, got.ratio);
    }
    struct outcome nothing =
        outcome_of("1f1b", (struct dp_schedule_params){.pipeline = 2, .microbatches = 2},
                   (struct dp_sim_uniform){0});
    assert_true(nothing.ratio == 0 && nothing.own_ratio == 0);
}

static int seed(void **state)
{
    (void)state;
    dp_rand_init(&state_of_random, 31);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(gpipe_pays_latency_once_each_way, seed),
        cmocka_unit_test_setup(one_f_one_b_pays_latency_in_every_round, seed),
        cmocka_unit_test_setup(interleaving_shortens_the_fill, seed),
        cmocka_unit_test_setup(zb_h1_hides_a_weight_gradient_per_rank, seed),
        cmocka_unit_test_setup(interleaved_zb_hides_a_weight_gradient_per_rank, seed),
        cmocka_unit_test_setup(zb_h2_hides_two_weight_gradients_per_rank, seed),
        cmocka_unit_test_setup(dual_schedules_have_one_form, seed),
        cmocka_unit_test_setup(the_ratio_of_1f1b_depends_on_sizes_alone, seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
