// Both ways of waiting for messages, and what each wait is called: against a second simulator on
// random small schedules, against the batches of DualPipe's own implementation, and by hand.
#include "random_schedule.h"
#include "sim_oracle.h"
#include "support.h"

#include <math.h>

#include "dp/alloc.h"
#include "made_costs.h"

static void assert_near(double got, double wanted)
{
    if (!(fabs(got - wanted) <= 1e-9 * (1 + fabs(wanted)))) {
        fail_msg("%.12g is not %.12g", got, wanted);
    }
}

static struct dp_sim_result simulate(const struct dp_schedule *schedule,
                                     const struct dp_sim_costs *costs)
{
    struct dp_error err = {0};
    struct dp_sim_result result;
    assert_ok(dp_simulate(schedule, costs, true, &result, &err), &err);
    return result;
}

static struct dp_sim_result simulate_blocking(const struct dp_schedule *schedule,
                                              struct dp_sim_uniform uniform)
{
    struct dp_sim_costs costs;
    dp_sim_costs_init_uniform(&costs, schedule, &uniform);
    costs.p2p = DP_SIM_P2P_BLOCKING;
    struct dp_sim_result result = simulate(schedule, &costs);
    dp_sim_costs_deinit(&costs);
    return result;
}

static const struct {
    const char *family;
    int32_t p, m;
} golden[] = {{"dualpipe", 2, 4},  {"dualpipe", 4, 8},   {"dualpipe", 4, 10},
              {"dualpipe", 8, 16}, {"dualpipe", 8, 20},  {"dualpipe", 8, 40},
              {"dualpipe", 16, 32}, {"dualpipev", 2, 4}, {"dualpipev", 4, 8},
              {"dualpipev", 4, 10}, {"dualpipev", 8, 16}, {"dualpipev", 8, 40}};

// Traced from DualPipe's implementation: its blocking commits cost nothing where links are instant.
static void batches_cost_dual_schedules_nothing_on_instant_links(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        struct dp_schedule schedule = make_schedule(golden[i].family, golden[i].p, golden[i].m);
        for (int k = 0; k < 2; k++) {
            struct dp_sim_uniform uniform = {
                .f = 1, .b = 2, .i = 1, .w = 1, .fb = k == 0 ? 3 : 2.5};
            struct dp_sim_result free_running = simulate_uniform(&schedule, uniform);
            struct dp_sim_result blocking = simulate_blocking(&schedule, uniform);
            assert_true(blocking.makespan == free_running.makespan);
            for (int32_t rank = 0; rank < schedule.pipeline; rank++) {
                assert_true(blocking.ranks[rank].bubble == free_running.ranks[rank].bubble);
            }
            dp_sim_result_deinit(&free_running);
            dp_sim_result_deinit(&blocking);
        }
        dp_schedule_deinit(&schedule);
    }
}

// What the batches of DualPipe's own implementation (deepseek-ai/DualPipe, its commits before each
// chunk) take when a message leaves with its second end and holds both until it is there, by a
// simulation of those batches. F = I = W = 1, B = 2, FB = 3.
static void batches_are_as_good_as_those_of_dualpipe_itself(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        double hop, published_order;
    } cases[] = {{"dualpipe", 0.25, 139},    {"dualpipe", 0.5, 152}, {"dualpipe", 1, 178},
                 {"dualpipev", 0.25, 280.5}, {"dualpipev", 0.5, 307}, {"dualpipev", 1, 360}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_schedule schedule = make_schedule(cases[i].family, 8, 40);
        struct dp_sim_uniform uniform = {
            .f = 1, .b = 2, .i = 1, .w = 1, .fb = 3, .hop = {cases[i].hop, 0}};
        struct dp_sim_result free_running = simulate_uniform(&schedule, uniform);
        struct dp_sim_result blocking = simulate_blocking(&schedule, uniform);
        assert_true(blocking.makespan >= free_running.makespan);
        assert_true(fabs(blocking.makespan / cases[i].published_order - 1) < 0.01);
        dp_sim_result_deinit(&free_running);
        dp_sim_result_deinit(&blocking);
        dp_schedule_deinit(&schedule);
    }
}

// F takes 1 on rank 0 and 3 on rank 1, latency 0.5. Rank 0: F 0-1, its message is there at 1.5; F
// 1.5-2.5, but rank 1 is busy from 1.5 to 4.5 and posts its receive then, so it is there at 5.
static void a_rank_waits_until_what_it_sends_has_arrived(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 2, 3);
    struct dp_sim_costs costs;
    dp_sim_costs_init_uniform(&costs, &schedule,
                              &(struct dp_sim_uniform){.f = 1, .b = 1, .hop = {0.5, 0}});
    dp_sim_chunk_at(&costs, 1, 0)->seconds[DP_ACTION_F] = 3;
    costs.p2p = DP_SIM_P2P_BLOCKING;
    struct dp_sim_result result = simulate(&schedule, &costs);
    assert_near(result.spans[1].start, 1.5);
    assert_near(result.spans[2].start, 5);
    assert_near(result.spans[6].start, 1.5);
    assert_near(result.spans[7].start, 5);
    assert_near(result.spans[8].start, 8.5);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

// 1F1B, 2 ranks, one micro-batch, F = 1, B = 2, latency 0.5: rank 1 ends at 4.5, but its gradient
// is there at 5, and only then its own work may start.
static void a_last_batch_closes_the_step(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("1f1b", 2, 1);
    struct dp_sim_costs costs;
    dp_sim_costs_init_uniform(&costs, &schedule,
                              &(struct dp_sim_uniform){.f = 1, .b = 2, .hop = {0.5, 0}});
    costs.p2p = DP_SIM_P2P_BLOCKING;
    costs.barrier = false;
    costs.gradient_sync[1] = 3;
    struct dp_sim_result result = simulate(&schedule, &costs);
    assert_near(result.makespan, 7);
    assert_near(result.ranks[1].end, 4.5);
    assert_near(result.ranks[0].dependency, 3.5);
    assert_near(result.ranks[0].comm, 0.5);
    assert_near(result.step, 8);
    struct dp_sim_result again;
    dp_sim_result_from_spans(&schedule, &costs, result.spans, false, &again);
    assert_near(again.step, 8);
    dp_sim_result_deinit(&again);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

static void batches_that_never_meet_end_in_an_error(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("1f1b", 2, 2);
    struct dp_sim_costs costs;
    struct dp_sim_result result;
    dp_sim_costs_init_uniform(&costs, &schedule, &(struct dp_sim_uniform){.f = 1, .b = 2});
    costs.p2p = DP_SIM_P2P_BLOCKING;
    struct dp_action first = schedule.actions[0];
    schedule.actions[0] = schedule.actions[schedule.rank_begin[1] - 1];
    schedule.actions[schedule.rank_begin[1] - 1] = first;
    assert_refused(dp_simulate(&schedule, &costs, false, &result, &err), DP_INVALID, &err, "");
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

struct trial {
    struct dp_schedule schedule;
    struct dp_sim_costs costs;
    struct dp_sim_result result;
    struct oracle oracle;
};

static void trial_init(struct trial *trial, struct dp_rand *rand, long run)
{
    trial->schedule = make_random_schedule(rand);
    dp_sim_costs_init(&trial->costs, &trial->schedule);
    random_whole_costs(rand, &trial->costs, (uint32_t)dp_rand_below(rand, 4),
                       (uint32_t)dp_rand_below(rand, 3));
    trial->costs.p2p = run % 2 == 0 ? DP_SIM_P2P_FREE : DP_SIM_P2P_BLOCKING;
    trial->costs.barrier = false;
    for (int32_t rank = 0; rank < trial->costs.pipeline; rank++) {
        trial->costs.gradient_sync[rank] = random_seconds(rand, 0, 20);
    }
    trial->result = simulate(&trial->schedule, &trial->costs);
    oracle_init(&trial->oracle, &trial->schedule, &trial->costs);
}

static void trial_deinit(struct trial *trial)
{
    oracle_deinit(&trial->oracle);
    dp_sim_result_deinit(&trial->result);
    dp_sim_costs_deinit(&trial->costs);
    dp_schedule_deinit(&trial->schedule);
}

static void every_action_starts_when_the_second_simulator_starts_it(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 21);
    for (long run = 0; run < dp_fuzz_runs(600); run++) {
        struct trial trial;
        trial_init(&trial, &rand, run);
        double makespan, step;
        struct dp_error err = {0};
        assert_true(oracle_run(&trial.oracle) == trial.result.makespan);
        for (size_t i = 0; i < trial.oracle.actions; i++) {
            assert_true(trial.oracle.spans[i].start == trial.result.spans[i].start);
            assert_true(trial.oracle.spans[i].end == trial.result.spans[i].end);
        }
        assert_ok(dp_simulate_makespan(&trial.schedule, &trial.costs, NULL, &makespan, &step, &err),
                  &err);
        assert_true(makespan == trial.result.makespan && step == trial.result.step);
        // As many cores as ranks, less next to nothing: the other engine must agree.
        trial.costs.cores[0] = trial.schedule.pipeline - 1e-12;
        struct dp_sim_result shared = simulate(&trial.schedule, &trial.costs);
        assert_near(shared.makespan, makespan);
        assert_near(shared.step, step);
        assert_ok(dp_simulate_makespan(&trial.schedule, &trial.costs, NULL, &makespan, &step, &err),
                  &err);
        assert_near(makespan, shared.makespan);
        assert_near(step, shared.step);
        dp_sim_result_deinit(&shared);
        trial_deinit(&trial);
    }
}

static void crowd(struct dp_rand *rand, struct dp_sim_costs *costs)
{
    free(costs->cores);
    costs->hosts = 1 + (int32_t)dp_rand_below(rand, 3);
    costs->cores = dp_new_array(double, (size_t)costs->hosts);
    for (int32_t host = 0; host < costs->hosts; host++) {
        costs->cores[host] = 0.5 * (double)dp_rand_below(rand, 6);
    }
    for (int32_t rank = 0; rank < costs->pipeline; rank++) {
        costs->host[rank] = (int32_t)dp_rand_below(rand, (uint32_t)costs->hosts);
    }
}

// How many actions of the host are under way.
static int active_at(const struct trial *trial, const struct dp_sim_span *spans, int32_t host,
                     double time)
{
    int active = 0;
    for (size_t i = 0; i < trial->oracle.actions; i++) {
        bool there = trial->costs.host[oracle_rank_of(&trial->oracle, i)] == host;
        active += there && spans[i].start <= time && time < spans[i].end;
    }
    return active;
}

static int compare_times(const void *a, const void *b)
{
    const double *one = a, *two = b;
    return (*one > *two) - (*one < *two);
}

// Seconds of work that each action is given when the cores of its host are shared out evenly.
static double *shares_of(const struct trial *trial, const struct dp_sim_span *spans)
{
    size_t count = trial->oracle.actions;
    DP_AUTO_FREE double *times = dp_new_array(double, 2 * count);
    double *work = dp_new_array(double, count);
    for (size_t i = 0; i < count; i++) {
        times[2 * i] = spans[i].start;
        times[2 * i + 1] = spans[i].end;
    }
    qsort(times, 2 * count, sizeof(double), compare_times);
    for (size_t k = 0; k + 1 < 2 * count; k++) {
        double middle = (times[k] + times[k + 1]) / 2;
        for (size_t i = 0; i < count; i++) {
            if (spans[i].start <= middle && middle < spans[i].end) {
                int32_t host = trial->costs.host[oracle_rank_of(&trial->oracle, i)];
                int active = active_at(trial, spans, host, middle);
                double cores = trial->costs.cores[host];
                bool short_of = cores > 0 && active > cores;
                work[i] += (times[k + 1] - times[k]) * (short_of ? cores / active : 1);
            }
        }
    }
    return work;
}

// Both laws together leave one solution: the second simulator, told how long each action took,
// finds the same starts; and in that time each action was given just its work.
static void ranks_of_a_crowded_host_start_when_they_may_and_get_their_share(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 34);
    int crowded = 0;
    for (long run = 0; run < dp_fuzz_runs(120); run++) {
        struct trial trial;
        trial_init(&trial, &rand, run);
        crowd(&rand, &trial.costs);
        struct dp_sim_result shared = simulate(&trial.schedule, &trial.costs);
        DP_AUTO_FREE double *work = shares_of(&trial, shared.spans);
        for (size_t i = 0; i < trial.oracle.actions; i++) {
            assert_near(work[i], trial.oracle.seconds[i]);
            trial.oracle.seconds[i] = shared.spans[i].end - shared.spans[i].start;
        }
        assert_near(oracle_run(&trial.oracle), shared.makespan);
        for (size_t i = 0; i < trial.oracle.actions; i++) {
            assert_near(trial.oracle.spans[i].start, shared.spans[i].start);
        }
        crowded += dp_sim_costs_share_cores(&trial.costs);
        dp_sim_result_deinit(&shared);
        trial_deinit(&trial);
    }
    assert_true(crowded > 20);
}

// When the last of what the rank waits for before the action was at hand, but for its way.
static double known_at(const struct oracle *oracle, int32_t rank, size_t action)
{
    bool blocking = oracle->costs->p2p == DP_SIM_P2P_BLOCKING;
    size_t position = action - oracle->schedule->rank_begin[rank];
    double known = 0;
    for (size_t k = 0; k < oracle->messages; k++) {
        const struct oracle_message *message = &oracle->message[k];
        double made = oracle->spans[message->from].end;
        if (!blocking && message->to == action) {
            known = fmax(known, made);
        }
        bool here = (message->sender == rank && message->send_batch == position) ||
                    (message->receiver == rank && message->receive_batch == position);
        if (blocking && here && message->sender != message->receiver) {
            size_t begin = oracle->schedule->rank_begin[message->receiver];
            size_t batch = message->receive_batch;
            double posted = batch == 0 ? 0 : oracle->spans[begin + batch - 1].end;
            known = fmax(known, fmax(made, posted));
        }
    }
    return known;
}

// Seconds between the rank's actions in which it waited for what was not at hand, and for the rest.
static void waits_of(const struct oracle *oracle, int32_t rank, double *ret_dependency,
                     double *ret_comm)
{
    *ret_dependency = 0;
    *ret_comm = 0;
    for (size_t i = oracle->schedule->rank_begin[rank] + 1;
         i < oracle->schedule->rank_begin[rank + 1]; i++) {
        double free_at = oracle->spans[i - 1].end;
        double start = oracle->spans[i].start;
        double known = fmin(fmax(known_at(oracle, rank, i), free_at), start);
        *ret_dependency += known - free_at;
        *ret_comm += start - known;
    }
}

static int kind_of(const struct dp_action *action)
{
    bool split = action->kind == DP_ACTION_FB && action->b_kind == DP_ACTION_I;
    return split ? DP_ACTION_KIND_COUNT : action->kind;
}

// Every action takes the mean of its kind.
static void spread_evenly(struct oracle *oracle)
{
    double seconds[DP_ACTION_KIND_COUNT + 1] = {0};
    double count[DP_ACTION_KIND_COUNT + 1] = {0};
    for (size_t i = 0; i < oracle->actions; i++) {
        seconds[kind_of(&oracle->schedule->actions[i])] += oracle->seconds[i];
        count[kind_of(&oracle->schedule->actions[i])]++;
    }
    for (size_t i = 0; i < oracle->actions; i++) {
        int kind = kind_of(&oracle->schedule->actions[i]);
        oracle->seconds[i] = seconds[kind] / count[kind];
    }
}

static void waits_are_called_what_they_are(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 22);
    for (long run = 0; run < dp_fuzz_runs(600); run++) {
        struct trial trial;
        trial_init(&trial, &rand, run);
        double waited[8];
        oracle_run(&trial.oracle);
        for (int32_t r = 0; r < trial.schedule.pipeline; r++) {
            const struct dp_sim_rank *rank = &trial.result.ranks[r];
            double comm;
            waits_of(&trial.oracle, r, &waited[r], &comm);
            assert_near(rank->dependency + rank->imbalance, waited[r]);
            assert_near(rank->comm, comm);
            assert_near(rank->warmup + waited[r] + comm + rank->cooldown, rank->bubble);
        }
        spread_evenly(&trial.oracle);
        oracle_run(&trial.oracle);
        for (int32_t r = 0; r < trial.schedule.pipeline; r++) {
            double even, comm;
            waits_of(&trial.oracle, r, &even, &comm);
            assert_near(trial.result.ranks[r].imbalance, fmax(0, waited[r] - even));
            assert_true(trial.result.ranks[r].dependency >= 0);
        }
        trial_deinit(&trial);
    }
}

// The engines measure as they go; given times are measured afterwards, by other code.
static void given_times_are_measured_as_simulated_ones(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 23);
    for (long run = 0; run < dp_fuzz_runs(300); run++) {
        struct trial trial;
        trial_init(&trial, &rand, run);
        struct dp_error err = {0};
        struct dp_sim_result bare, given;
        assert_ok(dp_simulate(&trial.schedule, &trial.costs, false, &bare, &err), &err);
        dp_sim_result_from_spans(&trial.schedule, &trial.costs, trial.result.spans, true, &given);
        assert_memory_equal(given.spans, trial.result.spans,
                            trial.oracle.actions * sizeof(struct dp_sim_span));
        assert_null(bare.spans);
        for (int32_t r = 0; r < trial.schedule.pipeline; r++) {
            const struct dp_sim_rank *a = &trial.result.ranks[r];
            const struct dp_sim_rank *others[] = {&bare.ranks[r], &given.ranks[r]};
            for (int k = 0; k < 2; k++) {
                const struct dp_sim_rank *b = others[k];
                assert_near(b->bubble, a->bubble);
                assert_near(b->warmup, a->warmup);
                assert_near(b->dependency, a->dependency);
                assert_near(b->imbalance, a->imbalance);
                assert_near(b->comm, a->comm);
                assert_near(b->cooldown, a->cooldown);
                assert_near(b->contention, 0);
                assert_true(b->peak_bytes == a->peak_bytes && b->peak_at == a->peak_at);
                assert_int_equal(b->peak_chunks, a->peak_chunks);
                assert_int_equal(b->held_peak_chunks, a->held_peak_chunks);
            }
        }
        assert_near(given.step, trial.result.step);
        assert_near(bare.step, trial.result.step);
        dp_sim_result_deinit(&bare);
        dp_sim_result_deinit(&given);
        trial_deinit(&trial);
    }
}

static void ranks_that_are_alike_have_no_imbalance(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        struct dp_schedule schedule = make_schedule(golden[i].family, golden[i].p, golden[i].m);
        struct dp_sim_uniform uniform = {.f = 0.1, .b = 0.2, .i = 0.15, .w = 0.05, .fb = 0.25,
                                         .hop = {0.03, 0}};
        struct dp_sim_result results[] = {simulate_uniform(&schedule, uniform),
                                          simulate_blocking(&schedule, uniform)};
        for (int k = 0; k < 2; k++) {
            for (int32_t rank = 0; rank < schedule.pipeline; rank++) {
                assert_true(results[k].ranks[rank].imbalance == 0);
            }
            dp_sim_result_deinit(&results[k]);
        }
        dp_schedule_deinit(&schedule);
    }
}

// GPipe, 3 ranks, F = B = 2, rank 1 half as slow again: rank 2 waits one second for each F but the
// first, rank 0 as long for each B. With 7/3 for everybody neither would.
static void waiting_for_a_slow_neighbour_is_imbalance(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("gpipe", 3, 8);
    struct dp_sim_costs costs;
    dp_sim_costs_init_uniform(&costs, &schedule, &(struct dp_sim_uniform){.f = 2, .b = 2});
    costs_slow_rank(&costs, 1, 1.5);
    struct dp_sim_result result = simulate(&schedule, &costs);
    assert_near(result.ranks[2].imbalance, 7);
    assert_near(result.ranks[2].dependency, 0);
    assert_near(result.ranks[1].imbalance, 0);
    // In the even step rank 0 ends its forwards at 56/3, rank 2 its own at 70/3 and its first B at
    // 77/3, and rank 1 its first B at 28.
    assert_near(result.ranks[0].dependency, 28.0 / 3);
    assert_near(result.ranks[0].dependency + result.ranks[0].imbalance,
                result.ranks[0].bubble - result.ranks[0].cooldown);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

// Of everything only the pairs of one rank are slow.
static void slow_pairs_are_imbalance_too(void **state)
{
    (void)state;
    struct dp_schedule schedule = make_schedule("dualpipev", 4, 10);
    struct dp_sim_costs costs;
    dp_sim_costs_init_uniform(&costs, &schedule,
                              &(struct dp_sim_uniform){.f = 1, .b = 2, .i = 1, .w = 1});
    costs.fb[dp_sim_pair_index(&costs, 2, 0, 1)] *= 2;
    struct dp_sim_result result = simulate(&schedule, &costs);
    assert_true(result.ranks[3].imbalance > 0);
    assert_true(result.ranks[2].imbalance == 0);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_cost_dual_schedules_nothing_on_instant_links),
        cmocka_unit_test(batches_are_as_good_as_those_of_dualpipe_itself),
        cmocka_unit_test(a_rank_waits_until_what_it_sends_has_arrived),
        cmocka_unit_test(a_last_batch_closes_the_step),
        cmocka_unit_test(batches_that_never_meet_end_in_an_error),
        cmocka_unit_test(every_action_starts_when_the_second_simulator_starts_it),
        cmocka_unit_test(ranks_of_a_crowded_host_start_when_they_may_and_get_their_share),
        cmocka_unit_test(waits_are_called_what_they_are),
        cmocka_unit_test(given_times_are_measured_as_simulated_ones),
        cmocka_unit_test(ranks_that_are_alike_have_no_imbalance),
        cmocka_unit_test(waiting_for_a_slow_neighbour_is_imbalance),
        cmocka_unit_test(slow_pairs_are_imbalance_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
