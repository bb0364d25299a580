// Slack, critical path and memory over time, against brute force on small schedules: each action is
// made longer by hand, in a simulator of another kind.
#include "random_schedule.h"
#include "sim_oracle.h"
#include "support.h"

#include <math.h>

#include "dp/sim_analysis.h"

struct trial {
    struct dp_schedule schedule;
    struct dp_sim_costs costs;
    struct dp_sim_result result;
    struct dp_sim_analysis analysis;
};

static void trial_run(struct trial *trial)
{
    struct dp_error err = {0};
    assert_ok(dp_simulate(&trial->schedule, &trial->costs, true, &trial->result, &err), &err);
    assert_ok(dp_sim_analyze(&trial->schedule, &trial->costs, trial->result.spans,
                             &trial->analysis, &err),
              &err);
}

static void trial_init_random(struct trial *trial, struct dp_rand *rand, dp_sim_p2p p2p)
{
    trial->schedule = make_random_schedule(rand);
    dp_sim_costs_init(&trial->costs, &trial->schedule);
    random_whole_costs(rand, &trial->costs, (uint32_t)dp_rand_below(rand, 4),
                       (uint32_t)dp_rand_below(rand, 3));
    trial->costs.p2p = p2p;
}

static void trial_deinit(struct trial *trial)
{
    dp_sim_analysis_deinit(&trial->analysis);
    dp_sim_result_deinit(&trial->result);
    dp_sim_costs_deinit(&trial->costs);
    dp_schedule_deinit(&trial->schedule);
}

// Whole seconds, so every comparison is exact.
static void assert_slack_is_what_a_longer_action_may_take(struct trial *trial,
                                                          struct oracle *oracle)
{
    double makespan = oracle_run(oracle);
    assert_true(makespan == trial->result.makespan);
    for (size_t i = 0; i < oracle->actions; i++) {
        double slack = trial->analysis.slack[i];
        double seconds = oracle->seconds[i];
        assert_true(slack >= 0);
        oracle->seconds[i] = seconds + slack;
        assert_true(oracle_run(oracle) == makespan);
        oracle->seconds[i] = seconds + slack + 1;
        assert_true(oracle_run(oracle) == makespan + 1);
        oracle->seconds[i] = seconds;
    }
    oracle_run(oracle);
}

// The messages that the step before sends, directly or by keeping the wire busy, until one of them
// reaches this step: how long they take together; negative when they don't.
static double carried_between(const struct oracle *oracle, const struct dp_sim_path_step *before,
                              const struct dp_sim_path_step *step)
{
    bool blocking = oracle->costs->p2p == DP_SIM_P2P_BLOCKING;
    size_t after = before->action + 1 - oracle->schedule->rank_begin[before->rank];
    size_t at = step->action - oracle->schedule->rank_begin[step->rank];
    for (size_t k = 0; k < oracle->messages; k++) {
        const struct oracle_message *first = &oracle->message[k];
        bool posts = (first->sender == before->rank && first->send_batch == after) ||
                     (first->receiver == before->rank && first->receive_batch == after);
        if (first->sender == first->receiver ||
            !(blocking ? posts : first->from == before->action)) {
            continue;
        }
        double latency = dp_sim_hop_at(oracle->costs, first->sender, first->receiver)->latency;
        double wire = 0;
        for (size_t j = k; j < oracle->messages; j++) {
            const struct oracle_message *message = &oracle->message[j];
            if (message->sender != first->sender || message->receiver != first->receiver) {
                continue;
            }
            wire += oracle_wire_seconds(oracle, message);
            bool ends = (message->sender == step->rank && message->send_batch == at) ||
                        (message->receiver == step->rank && message->receive_batch == at);
            if ((blocking ? ends : message->to == step->action) &&
                before->end + wire + latency == step->start) {
                return wire + latency;
            }
        }
    }
    return -1;
}

static bool is_input(const struct oracle *oracle, size_t from, size_t to)
{
    for (size_t k = 0; k < oracle->messages; k++) {
        if (oracle->message[k].from == from && oracle->message[k].to == to) {
            return true;
        }
    }
    return false;
}

static void assert_path_is_a_chain(const struct trial *trial, const struct oracle *oracle)
{
    const struct dp_sim_path_step *path = trial->analysis.path;
    double seconds = 0;
    assert_true(trial->analysis.path_count > 0);
    for (size_t i = 0; i < trial->analysis.path_count; i++) {
        const struct dp_sim_path_step *step = &path[i];
        assert_int_equal(oracle_rank_of(oracle, step->action), step->rank);
        assert_true(step->start == trial->result.spans[step->action].start);
        assert_true(step->end == trial->result.spans[step->action].end);
        assert_true(trial->analysis.slack[step->action] == 0);
        assert_int_equal(step->cause == DP_SIM_CAUSE_START, i == 0);
        double gap = i == 0 ? step->start : step->start - path[i - 1].end;
        seconds += gap + step->end - step->start;
        if (step->cause == DP_SIM_CAUSE_ORDER) {
            assert_true(step->action == path[i - 1].action + 1 && step->rank == path[i - 1].rank);
        }
        if (step->cause == DP_SIM_CAUSE_COMM) {
            assert_true(gap > 0);
            assert_true(carried_between(oracle, &path[i - 1], step) == gap);
        } else {
            assert_true(gap == 0);
        }
        if (step->cause == DP_SIM_CAUSE_DEPENDENCY && path[i - 1].rank != step->rank) {
            assert_true(carried_between(oracle, &path[i - 1], step) == 0);
        } else if (step->cause == DP_SIM_CAUSE_DEPENDENCY) {
            assert_true(is_input(oracle, path[i - 1].action, step->action) ||
                        carried_between(oracle, &path[i - 1], step) == 0);
        }
    }
    assert_true(seconds == trial->result.makespan);
    assert_true(path[trial->analysis.path_count - 1].end == trial->result.makespan);
}

static void run_random_trials(uint64_t seed, dp_sim_p2p p2p, long runs)
{
    struct dp_rand rand;
    dp_rand_init(&rand, seed);
    for (long run = 0; run < runs; run++) {
        struct trial trial = {0};
        trial_init_random(&trial, &rand, p2p);
        trial_run(&trial);
        struct oracle oracle;
        oracle_init(&oracle, &trial.schedule, &trial.costs);
        assert_slack_is_what_a_longer_action_may_take(&trial, &oracle);
        assert_path_is_a_chain(&trial, &oracle);
        oracle_deinit(&oracle);
        trial_deinit(&trial);
    }
}

static void an_action_may_end_later_by_its_slack_and_no_more(void **state)
{
    (void)state;
    run_random_trials(11, DP_SIM_P2P_FREE, dp_fuzz_runs(60));
}

static void slack_reckons_with_batches_that_block(void **state)
{
    (void)state;
    run_random_trials(12, DP_SIM_P2P_BLOCKING, dp_fuzz_runs(60));
}

// Ranks that share cores: the durations are kept as they came out.
static void slack_takes_the_durations_of_shared_cores_as_they_came_out(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 13);
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct trial trial = {0};
        trial_init_random(&trial, &rand, run % 2 == 0 ? DP_SIM_P2P_FREE : DP_SIM_P2P_BLOCKING);
        trial.costs.cores[0] = 1 + (double)dp_rand_below(&rand, 2) * 0.5;
        trial_run(&trial);
        struct oracle oracle;
        oracle_init(&oracle, &trial.schedule, &trial.costs);
        for (size_t i = 0; i < oracle.actions; i++) {
            oracle.seconds[i] = trial.result.spans[i].end - trial.result.spans[i].start;
        }
        double makespan = oracle_run(&oracle);
        assert_true(fabs(makespan - trial.result.makespan) < 1e-9 * makespan);
        for (size_t i = 0; i < oracle.actions; i++) {
            double seconds = oracle.seconds[i];
            oracle.seconds[i] = seconds + trial.analysis.slack[i] + 1;
            assert_true(fabs(oracle_run(&oracle) - makespan - 1) < 1e-9 * makespan);
            oracle.seconds[i] = seconds;
        }
        const struct dp_sim_path_step *last =
            &trial.analysis.path[trial.analysis.path_count - 1];
        assert_true(last->end == trial.result.makespan);
        oracle_deinit(&oracle);
        trial_deinit(&trial);
    }
}

// Times that are no whole numbers: the path's slack is 0, not nearly 0.
static void rounding_gives_the_path_no_slack(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        int32_t p, m;
    } sizes[] = {{"gpipe", 5, 7}, {"1f1b", 8, 24}, {"dualpipe", 8, 20}, {"dualpipev", 5, 12}};
    struct dp_rand rand;
    dp_rand_init(&rand, 14);
    for (int run = 0; run < 40; run++) {
        struct trial trial = {0};
        trial.schedule = make_schedule(sizes[run % 4].family, sizes[run % 4].p, sizes[run % 4].m);
        dp_sim_costs_init(&trial.costs, &trial.schedule);
        random_whole_costs(&rand, &trial.costs, 3, 2);
        for (int32_t i = 0; i < trial.costs.pipeline * trial.costs.slots; i++) {
            for (int kind = 0; kind < DP_ACTION_FB; kind++) {
                trial.costs.chunks[i].seconds[kind] *= 0.1 + dp_rand_double(&rand);
            }
        }
        for (int32_t i = 0; i < trial.costs.pipeline * trial.costs.pipeline; i++) {
            trial.costs.hops[i].latency *= dp_rand_double(&rand);
            trial.costs.hops[i].bytes_per_second /= 3;
        }
        trial.costs.p2p = run % 8 < 4 ? DP_SIM_P2P_FREE : DP_SIM_P2P_BLOCKING;
        trial_run(&trial);
        const struct dp_sim_path_step *path = trial.analysis.path;
        for (size_t i = 0; i < trial.analysis.path_count; i++) {
            assert_true(trial.analysis.slack[path[i].action] == 0);
            assert_true(i == 0 ? path[i].start == 0 : path[i].start >= path[i - 1].end);
            assert_true(i == 0 || path[i].cause == DP_SIM_CAUSE_COMM ||
                        path[i].start == path[i - 1].end);
        }
        assert_true(path[trial.analysis.path_count - 1].end == trial.result.makespan);
        for (size_t i = 0; i < dp_schedule_action_count(&trial.schedule); i++) {
            assert_true(trial.analysis.slack[i] >= 0);
        }
        trial_deinit(&trial);
    }
}

// 1F1B, 2 ranks, one micro-batch, F = 1, B = 2, half a second of latency: everything is critical.
static void the_path_of_one_micro_batch_goes_there_and_back(void **state)
{
    (void)state;
    struct trial trial = {.schedule = make_schedule("1f1b", 2, 1)};
    dp_sim_costs_init_uniform(&trial.costs, &trial.schedule,
                              &(struct dp_sim_uniform){.f = 1, .b = 2, .hop = {.latency = 0.5}});
    trial_run(&trial);
    static const struct dp_sim_path_step wanted[] = {
        {0, DP_SIM_CAUSE_START, 0, 0, 1},
        {1, DP_SIM_CAUSE_COMM, 2, 1.5, 2.5},
        {1, DP_SIM_CAUSE_ORDER, 3, 2.5, 4.5},
        {0, DP_SIM_CAUSE_COMM, 1, 5, 7},
    };
    assert_int_equal(trial.analysis.path_count, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(trial.analysis.path[i].rank, wanted[i].rank);
        assert_int_equal(trial.analysis.path[i].cause, wanted[i].cause);
        assert_int_equal(trial.analysis.path[i].action, wanted[i].action);
        assert_true(trial.analysis.path[i].start == wanted[i].start);
        assert_true(trial.analysis.path[i].end == wanted[i].end);
    }
    assert_string_equal(dp_sim_cause_text(DP_SIM_CAUSE_COMM), "comm");
    trial_deinit(&trial);
}

static void times_of_other_costs_are_refused(void **state)
{
    (void)state;
    struct dp_error err = {0};
    for (int p2p = 0; p2p < 2; p2p++) {
        struct trial trial = {.schedule = make_schedule("1f1b", 4, 8)};
        dp_sim_costs_init_uniform(
            &trial.costs, &trial.schedule,
            &(struct dp_sim_uniform){.f = 1, .b = 2, .hop = {.latency = 0.5}});
        trial.costs.p2p = (dp_sim_p2p)p2p;
        trial_run(&trial);
        struct dp_sim_analysis other;
        dp_sim_hop_at(&trial.costs, 2, 3)->latency = 0.75;
        assert_refused(dp_sim_analyze(&trial.schedule, &trial.costs, trial.result.spans, &other,
                                      &err),
                       DP_INVALID, &err, "are not those of schedule 1f1b with these costs");
        dp_sim_hop_at(&trial.costs, 2, 3)->latency = 0.25;
        assert_refused(dp_sim_analyze(&trial.schedule, &trial.costs, trial.result.spans, &other,
                                      &err),
                       DP_INVALID, &err, "are not those of schedule 1f1b with these costs");
        trial_deinit(&trial);
    }
}

static void memory_over_time_follows_every_chunk(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 15);
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        struct trial trial = {0};
        trial_init_random(&trial, &rand, DP_SIM_P2P_FREE);
        trial_run(&trial);
        for (int32_t rank = 0; rank < trial.schedule.pipeline; rank++) {
            const struct dp_sim_rank *summary = &trial.result.ranks[rank];
            struct dp_sim_memory_point *points;
            size_t count;
            dp_sim_memory_over_time(&trial.schedule, &trial.costs, trial.result.spans, rank,
                                    &points, &count);
            uint64_t peak = 0;
            uint32_t chunks = 0;
            double at = 0;
            for (size_t i = 0; i < count; i++) {
                assert_true(i == 0 || points[i].time >= points[i - 1].time);
                at = points[i].bytes > peak ? points[i].time : at;
                peak = points[i].bytes > peak ? points[i].bytes : peak;
                chunks = points[i].chunks > chunks ? points[i].chunks : chunks;
            }
            assert_true(points[0].time == 0 && points[0].bytes == 0 && points[0].chunks == 0);
            assert_true(points[count - 1].bytes == 0 && points[count - 1].chunks == 0);
            assert_true(peak == summary->peak_bytes);
            assert_int_equal(chunks, summary->held_peak_chunks);
            assert_true(summary->peak_activations ==
                        (double)chunks * trial.schedule.pipeline / trial.schedule.stages);
            assert_true(at == summary->peak_at);
            free(points);
        }
        trial_deinit(&trial);
    }
}

// Rank 1 of 1F1B with 2 ranks and 2 micro-batches: F 1-2, B 2-4, F 4-5, B 5-7.
static void memory_over_time_of_a_small_step(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_schedule schedule = make_schedule("1f1b", 2, 2);
    struct dp_sim_costs costs;
    struct dp_sim_result result;
    dp_sim_costs_init_uniform(&costs, &schedule, &(struct dp_sim_uniform){.f = 1, .b = 2});
    dp_sim_chunk_at(&costs, 1, 0)->activation_bytes = 7;
    assert_ok(dp_simulate(&schedule, &costs, true, &result, &err), &err);
    static const struct dp_sim_memory_point wanted[] = {
        {0, 0, 0}, {1, 7, 1}, {4, 0, 0}, {4, 7, 1}, {7, 0, 0}};
    struct dp_sim_memory_point *points;
    size_t count;
    dp_sim_memory_over_time(&schedule, &costs, result.spans, 1, &points, &count);
    assert_int_equal(count, 5);
    for (int i = 0; i < 5; i++) {
        assert_true(points[i].time == wanted[i].time && points[i].bytes == wanted[i].bytes &&
                    points[i].chunks == wanted[i].chunks);
    }
    assert_true(result.ranks[1].peak_at == 1);
    free(points);
    dp_sim_result_deinit(&result);
    dp_sim_costs_deinit(&costs);
    dp_schedule_deinit(&schedule);
}

// The messages of blocking batches are found once there, twice here.
static void one_call_says_what_two_say(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 12);
    for (long run = 0; run < dp_fuzz_runs(100); run++) {
        struct trial trial;
        trial_init_random(&trial, &rand,
                          run % 2 == 0 ? DP_SIM_P2P_FREE : DP_SIM_P2P_BLOCKING);
        trial.costs.cores[0] = (double)(run % 3);
        trial_run(&trial);
        struct dp_error err = {0};
        struct dp_sim_result result;
        struct dp_sim_analysis analysis;
        size_t count = dp_schedule_action_count(&trial.schedule);
        assert_ok(
            dp_simulate_analyzed(&trial.schedule, &trial.costs, &result, &analysis, &err), &err);
        assert_true(result.makespan == trial.result.makespan && result.step == trial.result.step);
        assert_memory_equal(result.spans, trial.result.spans, count * sizeof(*result.spans));
        assert_memory_equal(analysis.slack, trial.analysis.slack, count * sizeof(double));
        assert_int_equal(analysis.path_count, trial.analysis.path_count);
        for (size_t i = 0; i < analysis.path_count; i++) {
            assert_int_equal(analysis.path[i].action, trial.analysis.path[i].action);
            assert_int_equal(analysis.path[i].cause, trial.analysis.path[i].cause);
        }
        dp_sim_analysis_deinit(&analysis);
        dp_sim_result_deinit(&result);
        dp_sim_chunk_at(&trial.costs, 0, 0)->seconds[DP_ACTION_F] = -1;
        assert_refused(
            dp_simulate_analyzed(&trial.schedule, &trial.costs, &result, &analysis, &err),
            DP_INVALID, &err, "takes -1 seconds");
        trial_deinit(&trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_action_may_end_later_by_its_slack_and_no_more),
        cmocka_unit_test(one_call_says_what_two_say),
        cmocka_unit_test(slack_reckons_with_batches_that_block),
        cmocka_unit_test(slack_takes_the_durations_of_shared_cores_as_they_came_out),
        cmocka_unit_test(rounding_gives_the_path_no_slack),
        cmocka_unit_test(the_path_of_one_micro_batch_goes_there_and_back),
        cmocka_unit_test(times_of_other_costs_are_refused),
        cmocka_unit_test(memory_over_time_follows_every_chunk),
        cmocka_unit_test(memory_over_time_of_a_small_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
