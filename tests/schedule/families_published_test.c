// Families against what papers and other implementations published.
#include "support.h"

#include <math.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

static void assert_near(double got, double wanted, double tolerance)
{
    if (!(fabs(got - wanted) <= tolerance)) {
        fail_msg("%.12g is not %.12g", got, wanted);
    }
}

static struct dp_schedule make_virtual(const char *family, int32_t pipeline, int32_t microbatches,
                                       int32_t chunks)
{
    struct dp_error err = {0};
    struct dp_schedule schedule;
    struct dp_schedule_params params = {pipeline, microbatches, chunks};
    assert_ok(dp_schedule_generate(family, &params, &schedule, &err), &err);
    return schedule;
}

// Times that the zero-bubble paper profiled under ZB-2p, milliseconds, and the bubble rates that it
// computed from them: (cost - m (F + I + W)) / cost, cost being the longest time that a stage is at
// work (arXiv 2401.10241, tables 5 and 9). Interleaved: one layer per chunk.
static const struct {
    int32_t p, m, chunks;
    double f, i, w, c;
    double one_f_one_b, interleaved, zb_h1, zb_h2;
} rates[] = {
    {8, 24, 3, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1055, 0.1585, 0.1083},
    {8, 64, 3, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0443, 0.0674, 0.0444},
    {8, 32, 4, 29.802, 29.428, 19.53, 0.577, 0.1898, 0.0628, 0.1045, 0.0559},
    {16, 48, 3, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1104, 0.1397, 0.0672},
    {16, 128, 3, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0445, 0.0576, 0.0266},
    {32, 128, 2, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1164, 0.1106, 0.0490},
};
static const double rounded = 5.1e-5; // four decimals were published

static double own_span_rate(const char *family, size_t row)
{
    struct dp_schedule schedule = make_schedule(family, rates[row].p, rates[row].m);
    struct dp_sim_uniform uniform = {.f = rates[row].f,
                                     .b = rates[row].i + rates[row].w,
                                     .i = rates[row].i,
                                     .w = rates[row].w,
                                     .hop = {.latency = rates[row].c}};
    struct dp_sim_result result = simulate_uniform(&schedule, uniform);
    double rate = dp_sim_own_span_bubble_ratio(&result);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
    return rate;
}

static void zero_bubble_orders_have_the_published_rates(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        assert_near(own_span_rate("1f1b", i), rates[i].one_f_one_b, rounded);
        assert_near(own_span_rate("zb-h1", i), rates[i].zb_h1, rounded);
        assert_near(own_span_rate("zb-h2", i), rates[i].zb_h2, rounded);
    }
}

// A second simulator, for F and B of one length each and a latency. `every_turn`: whether all
// micro-batches wait at the way from the last rank to the first (backwards: first to last), or only
// the first one of each group of P.
struct replay {
    const struct dp_schedule *schedule;
    double f, b, c;
    bool every_turn;
    double *end; // [F, B][stages][microbatches]; 0 = not yet
};

static double *end_of(const struct replay *replay, bool forward, int32_t stage, uint32_t microbatch)
{
    int32_t row = (forward ? 0 : replay->schedule->stages) + stage;
    return &replay->end[(size_t)row * (size_t)replay->schedule->microbatches + microbatch];
}

// When the action's input is there; -1 when it was not made yet.
static double input_at(const struct replay *replay, int32_t rank, const struct dp_action *action)
{
    bool forward = action->kind == DP_ACTION_F;
    int32_t ranks = replay->schedule->pipeline;
    int32_t source = forward ? action->stage - 1 : action->stage + 1;
    if (source < 0 || source == replay->schedule->stages) {
        return 0;
    }
    bool turns = rank == (forward ? 0 : ranks - 1);
    if (turns && !replay->every_turn && action->microbatch % (uint32_t)ranks != 0) {
        return 0;
    }
    double made = *end_of(replay, forward, source, action->microbatch);
    return made > 0 ? made + replay->c : -1;
}

static double replay_makespan(const struct replay *replay)
{
    const struct dp_schedule *schedule = replay->schedule;
    size_t at[DP_PIPELINE_MAX];
    double time[DP_PIPELINE_MAX] = {0};
    double makespan = 0;
    memcpy(at, schedule->rank_begin, (size_t)schedule->pipeline * sizeof(at[0]));
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
            while (at[rank] < schedule->rank_begin[rank + 1]) {
                const struct dp_action *action = &schedule->actions[at[rank]];
                bool forward = action->kind == DP_ACTION_F;
                double input = input_at(replay, rank, action);
                if (input < 0) {
                    break;
                }
                time[rank] = fmax(time[rank], input) + (forward ? replay->f : replay->b);
                *end_of(replay, forward, action->stage, action->microbatch) = time[rank];
                makespan = fmax(makespan, time[rank]);
                at[rank]++;
                moved = true;
            }
        }
    }
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        assert_int_equal(at[rank], schedule->rank_begin[rank + 1]);
    }
    return makespan;
}

// The paper's authors compute the interleaved rates in a program in which only the first
// micro-batch of each group of P waits for the last rank before it starts its next chunk
// (sail-sg/zero-bubble-pipeline-parallelism, efficiency.py, get_interleave_schedule). Under that
// rule our order has the published rates. With every dependency kept it takes P hops more.
static void interleaved_has_the_published_rates_but_for_waits_that_were_left_out(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        int32_t v = rates[i].chunks;
        struct dp_schedule schedule = make_virtual("interleaved", rates[i].p, rates[i].m, v);
        size_t ends = 2 * (size_t)schedule.stages * (size_t)schedule.microbatches;
        double work = rates[i].m * (rates[i].f + rates[i].i + rates[i].w);
        double f = rates[i].f / v;
        double b = (rates[i].i + rates[i].w) / v;
        double makespan[2];
        for (int every = 0; every < 2; every++) {
            DP_AUTO_FREE double *end = dp_new_array(double, ends);
            makespan[every] =
                replay_makespan(&(struct replay){&schedule, f, b, rates[i].c, every == 1, end});
        }
        assert_near((makespan[0] - work) / makespan[0], rates[i].interleaved, rounded);
        struct dp_sim_result result = simulate_uniform(
            &schedule, (struct dp_sim_uniform){.f = f, .b = b, .hop = {.latency = rates[i].c}});
        assert_near(result.makespan, makespan[1], 1e-6);
        assert_near(result.makespan - makespan[0], rates[i].p * rates[i].c, 1e-6);
        dp_sim_result_deinit(&result);
        dp_schedule_deinit(&schedule);
    }
}

// Measured with other implementations, F = I = W = 2 for a whole stage: makespan, bubble, bubble
// within the ranks' own spans, and micro-batches' activations. ZB2P was given 2p of those; ZB-H2
// takes as long with the 2p-1 that the paper says.
static void orders_take_what_others_measured(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        int32_t chunks, p, m;
        double makespan, bubble, own, peak;
    } cases[] = {
        {"1f1b", 1, 8, 16, 138, 42, 42, 8},           {"1f1b", 1, 16, 64, 474, 90, 90, 16},
        {"interleaved", 2, 8, 16, 117, 21, 21, 11.5}, {"interleaved", 2, 16, 64, 429, 45, 45, 23.5},
        {"interleaved-zb", 2, 8, 64, 391, 7, 7, 8},
        {"interleaved-zb", 2, 16, 128, 783, 15, 15, 16},
        {"zb-h1", 1, 8, 16, 110, 14, 14, 8},          {"zb-h1", 1, 16, 64, 414, 30, 30, 16},
        {"zb-h2", 1, 8, 16, 110, 14, 0, 15},          {"zb-h2", 1, 16, 64, 414, 30, 0, 31},
        {"dualpipev", 2, 8, 16, 110, 14, 14, 8.5},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_schedule schedule =
            make_virtual(cases[i].family, cases[i].p, cases[i].m, cases[i].chunks);
        double unit = 2.0 / cases[i].chunks;
        struct dp_sim_result result = simulate_uniform(
            &schedule, (struct dp_sim_uniform){.f = unit, .b = 2 * unit, .i = unit, .w = unit});
        double bubble = 0, own = 0, peak = 0;
        for (int32_t rank = 0; rank < cases[i].p; rank++) {
            bubble = fmax(bubble, result.ranks[rank].bubble);
            own = fmax(own, result.ranks[rank].span_bubble);
            peak = fmax(peak, result.ranks[rank].peak_activations);
        }
        assert_near(result.makespan, cases[i].makespan, 1e-9);
        assert_near(bubble, cases[i].bubble, 1e-9);
        assert_near(own, cases[i].own, 1e-9);
        assert_near(peak, cases[i].peak, 1e-9);
        dp_sim_result_deinit(&result);
        dp_schedule_deinit(&schedule);
    }
}

static double bubble_ratio(struct dp_schedule schedule, double f, double b)
{
    struct dp_sim_result result =
        simulate_uniform(&schedule, (struct dp_sim_uniform){.f = f, .b = b});
    double ratio = dp_sim_bubble_ratio(&result);
    dp_sim_result_deinit(&result);
    dp_schedule_deinit(&schedule);
    return ratio;
}

// (2P-2) / (3PW+P-1) for W waves, M = P and B = 2F is the paper's figure (recalled); a plain greedy
// scheduler of waves was measured to do better, at the ratios below.
static void hanayo_is_no_worse_than_a_greedy_scheduler_of_waves(void **state)
{
    (void)state;
    static const struct {
        int32_t p, waves;
        double greedy;
    } cases[] = {{4, 1, 0.333}, {4, 2, 0.213}, {8, 1, 0.368}, {8, 2, 0.238}, {8, 4, 0.135}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int32_t p = cases[i].p;
        int32_t waves = cases[i].waves;
        double ratio = bubble_ratio(make_virtual("hanayo", p, p, 2 * waves), 1, 2);
        assert_true(ratio <= cases[i].greedy + 5.1e-4);
        assert_true(ratio <= (2.0 * p - 2) / (3.0 * p * waves + p - 1));
    }
}

// (D-2) / (2N+D-2) with forwards and backwards of the same length and N a multiple of D.
static void chimera_has_the_published_bubble_ratio(void **state)
{
    (void)state;
    for (int32_t d = 2; d <= 16; d += 2) {
        for (int32_t units = 1; units <= 4; units++) {
            double n = units * d;
            double ratio = bubble_ratio(make_schedule("chimera", d, units * d), 1, 1);
            assert_near(ratio, (d - 2) / (2 * n + d - 2), 1e-9);
        }
    }
}

// Without the split in the cool-down (what MindSpeed does by default) the bubble of DualPipeV on 8
// ranks grows from 14 to 28 units of F = I = W = 1.
static void a_whole_backward_in_the_cool_down_costs_twice_the_weight_gradients(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        int32_t p, m;
        double bubble;
    } cases[] = {{"dualpipev", 8, 16, 14},
                 {"dualpipev-full-b", 8, 16, 28},
                 {"dualpipev-full-b", 8, 40, 28},
                 {"dualpipe-full-b", 16, 32, 28}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_schedule schedule = make_schedule(cases[i].family, cases[i].p, cases[i].m);
        struct dp_sim_result result = simulate_uniform(
            &schedule, (struct dp_sim_uniform){.f = 1, .b = 2, .i = 1, .w = 1, .fb = 3});
        double worst = 0;
        for (int32_t rank = 0; rank < cases[i].p; rank++) {
            worst = fmax(worst, result.ranks[rank].bubble);
        }
        assert_near(worst, cases[i].bubble, 1e-9);
        dp_sim_result_deinit(&result);
        dp_schedule_deinit(&schedule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_bubble_orders_have_the_published_rates),
        cmocka_unit_test(interleaved_has_the_published_rates_but_for_waits_that_were_left_out),
        cmocka_unit_test(orders_take_what_others_measured),
        cmocka_unit_test(hanayo_is_no_worse_than_a_greedy_scheduler_of_waves),
        cmocka_unit_test(chimera_has_the_published_bubble_ratio),
        cmocka_unit_test(a_whole_backward_in_the_cool_down_costs_twice_the_weight_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
