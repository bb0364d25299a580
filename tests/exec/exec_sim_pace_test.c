// Sim ranks that are slow, noisy or late, and what their measured actions say of it.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/buf.h"
#include "dp/clock.h"
#include "dp/sim_pace.h"
#include "dp_test.h"
#include "exec_harness.h"
#include "temporary.h"

#define RANKS 4

static struct dp_sim_pace *pace_of(const struct dp_sim_spec *spec, int32_t rank, uint64_t seed)
{
    static const struct dp_sim_place places[RANKS] = {
        {0, "n1", 0}, {1, "n1", 1}, {2, "n2", 0}, {3, "n2", 1}};
    struct dp_sim_pace_config config = {
        .spec = spec, .places = places, .world = RANKS, .rank = rank, .seed = seed};
    struct dp_sim_pace *pace = NULL;
    struct dp_error err = {0};
    assert_ok(dp_sim_pace_new(&config, &pace, &err), &err);
    return pace;
}

static void noise_has_its_deviation_and_a_mean_of_one(void **state)
{
    (void)state;
    const struct dp_sim_spec spec = {.noise = 0.1};
    struct dp_sim_pace *pace = pace_of(&spec, 2, 7);
    const int count = 20000;
    double sum = 0, log_sum = 0, log_squares = 0;
    for (int i = 0; i < count; i++) {
        double factor = dp_sim_pace_action(pace, 1 + i / 100, (uint64_t)i % 100);
        sum += factor;
        log_sum += log(factor);
        log_squares += log(factor) * log(factor);
    }
    double log_mean = log_sum / count;
    double deviation = sqrt(log_squares / count - log_mean * log_mean);
    // Four standard errors: 0.1 / sqrt(20000) of the mean, and 1 / sqrt(2) of that of the other.
    assert_true(fabs(sum / count - 1) < 0.003);
    assert_true(fabs(deviation - 0.1) < 0.002);
    dp_sim_pace_free(pace);
}

static void noise_is_the_same_again_and_another_for_every_action_rank_and_seed(void **state)
{
    (void)state;
    const struct dp_sim_spec spec = {.noise = 0.1, .slow = "rank=2:2"};
    struct dp_sim_pace *first = pace_of(&spec, 2, 7), *again = pace_of(&spec, 2, 7);
    struct dp_sim_pace *peer = pace_of(&spec, 1, 7), *seeded = pace_of(&spec, 2, 8);
    double factor = dp_sim_pace_action(first, 5, 3);
    assert_true(factor == dp_sim_pace_action(again, 5, 3));
    assert_true(factor != dp_sim_pace_action(first, 5, 4));
    assert_true(factor != dp_sim_pace_action(first, 6, 3));
    assert_true(factor / 2 != dp_sim_pace_action(peer, 5, 3));
    assert_true(factor != dp_sim_pace_action(seeded, 5, 3));
    assert_true(dp_sim_pace_slowness(first, 5) == 2 && dp_sim_pace_slowness(peer, 5) == 1);
    dp_sim_pace_free(first);
    dp_sim_pace_free(again);
    dp_sim_pace_free(peer);
    dp_sim_pace_free(seeded);
}

static void recorded_factors_are_taken_in_their_order(void **state)
{
    (void)state;
    char directory[TEMPORARY_MAX];
    temporary_make(directory);
    struct dp_sim_spec spec = {0};
    snprintf(spec.noise_file, sizeof(spec.noise_file), "%s/noise", directory);
    struct dp_error err = {0};
    assert_ok(dp_write_file(spec.noise_file, "1.5\n0.5 \n2e0\r\n", 14, &err), &err);
    struct dp_sim_pace *pace = pace_of(&spec, 0, 1);
    double seen[6];
    for (uint64_t i = 0; i < 6; i++) {
        seen[i] = dp_sim_pace_action(pace, 3, i);
        assert_true(i < 3 || seen[i] == seen[i - 3]);
    }
    // Each after the one before, whichever was first.
    for (int i = 0; i < 3; i++) {
        double next = seen[i] == 1.5 ? 0.5 : seen[i] == 0.5 ? 2 : 1.5;
        assert_true(seen[i + 1] == next);
    }
    dp_sim_pace_free(pace);
    static const struct {
        const char *text, *message;
    } bad[] = {{"", "holds no factor"}, {"1\n\n1\n", "line 2"}, {"1\nx\n", "line 2"},
               {"1\n1 1\n", "line 2"},  {"0.001\n", "line 1"},  {"1\n101\n", "line 2"},
               {"nan\n", "line 1"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct dp_sim_place place = {0, "n", 0};
        struct dp_sim_pace_config config = {.spec = &spec, .places = &place, .world = 1};
        assert_ok(dp_write_file(spec.noise_file, bad[i].text, strlen(bad[i].text), &err), &err);
        assert_int_equal(dp_sim_pace_new(&config, &pace, &err), DP_INVALID);
        assert_non_null(strstr(err.message, bad[i].message));
        assert_non_null(strstr(err.message, "[sim] noise_file"));
    }
    temporary_remove(directory);
}

// The shortest of a rank's forwards in steps [first, last].
static int64_t least_forward_ns(const struct trial_rank *rank, int64_t first, int64_t last)
{
    int64_t least_ns = INT64_MAX;
    for (size_t i = 0; i < rank->records_count; i++) {
        const struct dp_action_span *span = &rank->records[i].span;
        if (span->step >= first && span->step <= last && span->kind == DP_ACTION_F) {
            int64_t took_ns = span->end_ns - span->start_ns;
            least_ns = took_ns < least_ns ? took_ns : least_ns;
        }
    }
    return least_ns;
}

// Runs four ranks of 1F1B with the times of `uniform` and what `spec` says of them.
static void run_sim(const struct dp_sim_uniform *uniform, const struct dp_sim_spec *spec,
                    int64_t steps, struct trial_result *ret_result, struct dp_sim_costs *ret_costs)
{
    struct trial trial = trial_default();
    struct dp_sim_pace *paces[RANKS];
    struct dp_schedule schedule;
    trial.schedule = "1f1b";
    trial.sim = true;
    trial.pipeline = RANKS;
    trial.microbatches = 8;
    trial.steps = steps;
    trial_make_schedule(&trial, &schedule);
    dp_sim_costs_init_uniform(ret_costs, &schedule, uniform);
    for (int32_t i = 0; i < RANKS; i++) {
        paces[i] = pace_of(spec, i, 1);
    }
    trial.costs = ret_costs;
    trial.paces = (const struct dp_sim_pace *const *)paces;
    trial_run(&trial, ret_result);
    trial_expect_ok(ret_result);
    for (int32_t i = 0; i < RANKS; i++) {
        dp_sim_pace_free(paces[i]);
    }
    dp_schedule_deinit(&schedule);
}

static const struct dp_sim_uniform milliseconds = {
    .f = 1e-3, .b = 2e-3, .i = 1e-3, .w = 1e-3, .hop = {.latency = 1e-3}};

static void a_slow_place_shows_in_its_own_actions_and_from_its_step_on(void **state)
{
    (void)state;
    const struct dp_sim_spec spec = {.slow = "slot=n2/0:8@3"};
    struct trial_result result;
    struct dp_sim_costs costs;
    run_sim(&milliseconds, &spec, 4, &result, &costs);
    // Its plan does not move when it wakes up less than 5 ms late.
    assert_true(least_forward_ns(&result.ranks[2], 3, 4) >= 2 * DP_NS_PER_MS);
    for (int32_t i = 0; i < RANKS; i++) {
        struct dp_sim_pace *pace = pace_of(&spec, i, 1);
        assert_true(dp_sim_pace_action(pace, 2, 0) == 1);
        assert_true(dp_sim_pace_action(pace, 3, 0) == (i == 2 ? 8 : 1));
        dp_sim_pace_free(pace);
    }
    // The step is as long as with costs that say so. The first rank begins and ends it; another
    // that enters it late, while it has nothing to do yet, has a shorter one.
    for (int kind = 0; kind < DP_ACTION_FB; kind++) {
        dp_sim_chunk_at(&costs, 2, 0)->seconds[kind] *= 8;
    }
    struct dp_sim_result predicted;
    struct dp_error err = {0};
    assert_ok(dp_simulate(&result.schedule, &costs, false, &predicted, &err), &err);
    assert_true(result.ranks[0].reports[3].step_ns >=
                (int64_t)(predicted.makespan * (double)DP_NS_PER_S) - DP_NS_PER_MS / 10);
    dp_sim_result_deinit(&predicted);
    dp_sim_costs_deinit(&costs);
    trial_result_deinit(&result);
}

static void a_slow_link_delays_what_crosses_it_and_slows_no_action(void **state)
{
    (void)state;
    const struct dp_sim_spec spec = {.slow_link = "n1~n2:8"};
    struct trial_result result;
    struct dp_sim_costs costs;
    run_sim(&milliseconds, &spec, 1, &result, &costs);
    dp_sim_hop_at(&costs, 1, 2)->latency *= 8;
    dp_sim_hop_at(&costs, 2, 1)->latency *= 8;
    struct dp_sim_result predicted;
    struct dp_error err = {0};
    assert_ok(dp_simulate(&result.schedule, &costs, false, &predicted, &err), &err);
    assert_true(result.ranks[0].reports[1].step_ns >=
                (int64_t)(predicted.makespan * (double)DP_NS_PER_S) - DP_NS_PER_MS / 10);
    struct dp_sim_pace *pace = pace_of(&spec, 1, 1);
    assert_true(dp_sim_pace_action(pace, 1, 0) == 1 && dp_sim_pace_gap_ns(pace, 1) == 0);
    assert_true(dp_sim_pace_link(pace, 1, 2) == 8 && dp_sim_pace_link(pace, 1, 0) == 1);
    dp_sim_pace_free(pace);
    dp_sim_result_deinit(&predicted);
    dp_sim_costs_deinit(&costs);
    trial_result_deinit(&result);
}

static void a_late_host_leaves_gaps_before_its_actions(void **state)
{
    (void)state;
    const struct dp_sim_spec spec = {.gap = "rank=1:0.003"};
    struct trial_result result;
    struct dp_sim_costs costs;
    run_sim(&milliseconds, &spec, 1, &result, &costs);
    // Eight forwards and eight backwards, each 3 ms late.
    assert_true(result.ranks[1].reports[1].step_ns >=
                (8 * (3 + 1) + 8 * (3 + 2)) * DP_NS_PER_MS - DP_NS_PER_MS / 10);
    struct dp_sim_pace *pace = pace_of(&spec, 1, 1);
    assert_true(dp_sim_pace_gap_ns(pace, 1) == 3 * DP_NS_PER_MS);
    assert_true(dp_sim_pace_action(pace, 1, 0) == 1);
    dp_sim_pace_free(pace);
    dp_sim_costs_deinit(&costs);
    trial_result_deinit(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_has_its_deviation_and_a_mean_of_one),
        cmocka_unit_test(noise_is_the_same_again_and_another_for_every_action_rank_and_seed),
        cmocka_unit_test(recorded_factors_are_taken_in_their_order),
        cmocka_unit_test(a_slow_place_shows_in_its_own_actions_and_from_its_step_on),
        cmocka_unit_test(a_slow_link_delays_what_crosses_it_and_slows_no_action),
        cmocka_unit_test(a_late_host_leaves_gaps_before_its_actions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
