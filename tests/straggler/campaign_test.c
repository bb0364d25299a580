// Long healthy runs raise no alarm; whatever becomes slow is found in time, with its cause.
#include <math.h>

#include "virtual_job.h"

#include "dp/cleanup.h"

DP_DEFINE_CLEANUP(cleanup_straggler, struct dp_straggler, dp_straggler_free)

// Two hours at most of virtual time, in each run of the long form; shared out in the short one.
static const double healthy_s = 7200;
enum { FOUND_WITHIN = 12, PROBE_WITHIN = 40, STEPS_MAX = 100 };
// Where experts are loaded very unevenly and the job is young, how much of the time follows the
// tokens is not known yet, and the doubt is for the rank: one in so many may take longer.
enum { LATE_ONE_IN = 200 };

static void fail_on_alarms(struct dp_straggler *detector, uint64_t seed, double now_s)
{
    struct dp_straggler_verdict verdict;
    while (dp_straggler_next(detector, &verdict)) {
        if (verdict.state >= DP_STRAGGLER_SUSPECTED || verdict.state == DP_STRAGGLER_BLIND) {
            fail_msg("seed %llu: after %.0f s, step %lld: %s: %s", (unsigned long long)seed, now_s,
                     (long long)verdict.step, dp_straggler_state_text(verdict.state), verdict.text);
        }
    }
}

static void vary(struct virtual_job *job, struct dp_rand *rand)
{
    job->microbatches = 8 + 8 * (uint32_t)dp_rand_below(rand, 3);
    job->action_sigma = 0.01 + 0.05 * dp_rand_double(rand);
    job->step_sigma = 0.01 + 0.03 * dp_rand_double(rand);
    job->is_planned = dp_rand_below(rand, 2) == 0;
    if (job->layout == VIRTUAL_REPLICAS) {
        job->replicas = 2 + (uint32_t)dp_rand_below(rand, 3);
    } else if (job->layout == VIRTUAL_MIRROR) {
        job->replicas = 1 + (uint32_t)dp_rand_below(rand, 2);
    }
    // Without replicas no rank has other experts than its stage's: all tokens are its own.
    if (job->replicas > 1 && dp_rand_below(rand, 2) == 0) {
        job->expert_share = 0.2 + 0.6 * dp_rand_double(rand);
        job->skew = dp_rand_double(rand);
    }
}

static void healthy_runs_of_two_hours_raise_no_alarm(void **state)
{
    (void)state;
    long runs = dp_fuzz_runs(3);
    for (uint64_t seed = 1; seed <= (uint64_t)runs; seed++) {
        struct dp_rand rand;
        dp_rand_init(&rand, seed);
        struct virtual_job job;
        virtual_job_init(&job, (virtual_layout)(seed % 3));
        vary(&job, &rand);
        DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = virtual_job_detector(&job);
        double now_s = 0;
        for (int64_t step = 1; now_s < healthy_s; step++) {
            now_s += virtual_job_step(&job, step, &rand, detector);
            fail_on_alarms(detector, seed, now_s);
        }
    }
}

static dp_straggler_cause cause_of(virtual_fault fault)
{
    return fault == VIRTUAL_SLOW_RANK   ? DP_STRAGGLER_DEVICE
           : fault == VIRTUAL_SLOW_LINK ? DP_STRAGGLER_LINK
                                        : DP_STRAGGLER_HOST;
}

static bool names_it(const struct virtual_job *job, const struct dp_straggler_verdict *verdict)
{
    if (verdict->cause != cause_of(job->fault)) {
        return false;
    }
    if (job->fault != VIRTUAL_SLOW_LINK) {
        return verdict->rank == job->slow_rank;
    }
    uint32_t peer = virtual_job_slow_peer(job);
    return (verdict->rank == job->slow_rank && verdict->peer == peer) ||
           (verdict->rank == peer && verdict->peer == job->slow_rank);
}

// Runs until the fault is found; returns how many steps that took, or -1 with the reason.
static int64_t find(const struct virtual_job *job, uint64_t seed, struct dp_rand *rand,
                    struct dp_straggler *detector, struct dp_straggler_verdict *ret_verdict)
{
    for (int64_t step = 1; step < job->onset_step + STEPS_MAX; step++) {
        virtual_job_step(job, step, rand, detector);
        struct dp_straggler_verdict verdict;
        while (dp_straggler_next(detector, &verdict)) {
            if (verdict.state < DP_STRAGGLER_SUSPECTED) {
                continue;
            }
            if (step < job->onset_step || !names_it(job, &verdict)) {
                fail_msg("seed %llu: onset %lld, step %lld, fault %d of rank %u: %s",
                         (unsigned long long)seed, (long long)job->onset_step, (long long)step,
                         (int)job->fault, job->slow_rank, verdict.text);
            }
            *ret_verdict = verdict;
            return step - job->onset_step + 1;
        }
    }
    return -1;
}

// Two probes agree, of which the second comes some steps later: cores may be shared.
static void confirm(const struct virtual_job *job, int64_t step, struct dp_rand *rand,
                    struct dp_straggler *detector)
{
    struct dp_straggler_verdict found = {.state = DP_STRAGGLER_SUSPECTED}, verdict;
    for (int probes = 0; probes < 2 && found.state != DP_STRAGGLER_CONFIRMED; probes++) {
        uint64_t request = 0;
        for (int64_t last = step + PROBE_WITHIN; !dp_straggler_wants_probe(detector, &request);) {
            assert_true(step < last);
            virtual_job_step(job, step++, rand, detector);
        }
        virtual_job_probe(job, request, rand, detector);
        while (dp_straggler_next(detector, &verdict)) {
            if (verdict.state != DP_STRAGGLER_NOTED) { // uneven data may be noted, too
                found = verdict;
            }
        }
    }
    assert_int_equal(found.state, DP_STRAGGLER_CONFIRMED);
    assert_true(names_it(job, &found));
}

static void choose_fault(struct virtual_job *job, struct dp_rand *rand)
{
    static const double factors[] = {1.5, 3};
    job->fault = (virtual_fault)(1 + dp_rand_below(rand, 4));
    job->factor = factors[dp_rand_below(rand, 2)];
    job->slow_rank = (uint32_t)dp_rand_below(rand, virtual_job_ranks(job));
    // The first steps are exempt, and where nobody does the same, a few say what is usual.
    job->onset_step = 25 + (int64_t)dp_rand_below(rand, 200);
    job->hop_share = 0.3; // a link that matters
}

static void what_becomes_slow_is_found_within_12_steps_with_its_cause(void **state)
{
    (void)state;
    long runs = dp_fuzz_runs(60), late = 0;
    int64_t sum = 0;
    for (uint64_t seed = 1; seed <= (uint64_t)runs; seed++) {
        struct dp_rand rand;
        dp_rand_init(&rand, dp_rand_mix(seed, 7));
        struct virtual_job job;
        virtual_job_init(&job, (virtual_layout)(seed % 3));
        vary(&job, &rand);
        choose_fault(&job, &rand);
        DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = virtual_job_detector(&job);
        struct dp_straggler_verdict verdict;
        int64_t steps = find(&job, seed, &rand, detector, &verdict);
        if (steps < 0 || (steps > FOUND_WITHIN && job.skew == 0)) {
            fail_msg("seed %llu: fault %d of rank %u, x%.1f from step %lld: found after %lld steps",
                     (unsigned long long)seed, (int)job.fault, job.slow_rank, job.factor,
                     (long long)job.onset_step, (long long)steps);
        }
        confirm(&job, job.onset_step + steps, &rand, detector);
        late += steps > FOUND_WITHIN;
        sum += steps;
    }
    assert_true(late <= 1 + runs / LATE_ONE_IN);
    printf("%ld faults found after %.1f steps on average, %ld of them after more than %d\n", runs,
           (double)sum / (double)runs, late, FOUND_WITHIN);
}

static int64_t wild(struct dp_rand *rand)
{
    static const int64_t values[] = {0, 1, -1, INT64_C(86400000000000), 1000000, INT32_MAX};
    return values[dp_rand_below(rand, 6)];
}

static void make_wild(struct dp_rand *rand, uint32_t ranks, struct dp_straggler_kind *kinds,
                      struct dp_straggler_link *links, struct dp_straggler_sample *ret_sample)
{
    for (int i = 0; i < 6; i++) {
        kinds[i] = (struct dp_straggler_kind){.kind = (uint8_t)dp_rand_below(rand, 6),
                                              .b_kind = (uint8_t)dp_rand_below(rand, 3),
                                              .stage = (uint16_t)dp_rand_below(rand, 5),
                                              .b_stage = (uint16_t)dp_rand_below(rand, 5),
                                              .count = (uint32_t)wild(rand),
                                              .total_ns = wild(rand),
                                              .median_ns = wild(rand),
                                              .planned_ns = wild(rand) & INT64_MAX,
                                              .tokens = (uint64_t)wild(rand) & INT64_MAX};
        links[i] = (struct dp_straggler_link){.peer = (uint32_t)dp_rand_below(rand, ranks + 1),
                                              .count = (uint32_t)wild(rand),
                                              .bytes = (uint64_t)wild(rand) & INT64_MAX,
                                              .transfer_ns = wild(rand),
                                              .waiting_ns = wild(rand)};
    }
    *ret_sample = (struct dp_straggler_sample){.rank = (uint32_t)dp_rand_below(rand, ranks + 1),
                                               .step_ns = wild(rand),
                                               .launch_gap_ns = wild(rand),
                                               .off_core_ns = wild(rand),
                                               .kinds = kinds,
                                               .kinds_count = dp_rand_below(rand, 7),
                                               .links = links,
                                               .links_count = dp_rand_below(rand, 7)};
}

static void look_at_all(struct dp_straggler *detector, uint32_t ranks)
{
    struct dp_straggler_verdict verdicts[8];
    while (dp_straggler_next(detector, &verdicts[0])) {
        assert_non_null(memchr(verdicts[0].text, '\0', sizeof(verdicts[0].text)));
    }
    dp_straggler_standing(detector, verdicts, 8);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct dp_straggler_score score;
        struct dp_straggler_kind_score kinds[4];
        dp_straggler_score(detector, rank, &score);
        dp_straggler_kind_scores(detector, rank, kinds, 4);
    }
}

static void whatever_ranks_report_breaks_nothing(void **state)
{
    (void)state;
    long runs = dp_fuzz_runs(40);
    for (uint64_t seed = 1; seed <= (uint64_t)runs; seed++) {
        struct dp_rand rand;
        dp_rand_init(&rand, dp_rand_mix(seed, 13));
        uint32_t ranks = 1 + (uint32_t)dp_rand_below(&rand, 5);
        struct dp_straggler_config config;
        dp_straggler_config_init(&config);
        config.ranks = ranks;
        DP_CLEANUP(cleanup_straggler)
        struct dp_straggler *detector = dp_straggler_new(&config);
        int64_t step = 1;
        for (int i = 0; i < 1000; i++) {
            struct dp_straggler_kind kinds[6];
            struct dp_straggler_link links[6];
            struct dp_straggler_sample sample;
            make_wild(&rand, ranks, kinds, links, &sample);
            step += dp_rand_below(&rand, 3) == 0;
            sample.step = step + (int64_t)dp_rand_below(&rand, 12) - 4;
            dp_straggler_take(detector, &sample);
            uint64_t request = dp_rand_below(&rand, 4);
            dp_straggler_wants_probe(detector, &request);
            struct dp_straggler_probe probe = {.request = request,
                                               .rank = (uint32_t)dp_rand_below(&rand, ranks + 1),
                                               .gemm_ns = wild(&rand),
                                               .gemm_flops = (double)wild(&rand)};
            dp_straggler_take_probe(detector, &probe);
            if (dp_rand_below(&rand, 50) == 0) {
                dp_straggler_freeze(detector, step, "something was done");
            }
        }
        look_at_all(detector, ranks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(healthy_runs_of_two_hours_raise_no_alarm),
        cmocka_unit_test(whatever_ranks_report_breaks_nothing),
        cmocka_unit_test(what_becomes_slow_is_found_within_12_steps_with_its_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
