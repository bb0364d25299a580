// Long healthy runs raise no alarm; whatever becomes slow is found in time, with its cause.
#include <math.h>

#include "virtual_job.h"

#include "dp/cleanup.h"

DP_DEFINE_CLEANUP(cleanup_straggler, struct dp_straggler, dp_straggler_free)

// Two hours at most of virtual time, in each run of the long form; shared out in the short one.
static const double healthy_s = 7200;
enum { FOUND_WITHIN = 12, STEPS_MAX = 100 };
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

// The probe agrees.
static void confirm(const struct virtual_job *job, struct dp_rand *rand,
                    struct dp_straggler *detector)
{
    uint64_t request = 0;
    assert_true(dp_straggler_wants_probe(detector, &request));
    virtual_job_probe(job, request, rand, detector);
    struct dp_straggler_verdict verdict;
    assert_true(dp_straggler_next(detector, &verdict));
    assert_int_equal(verdict.state, DP_STRAGGLER_CONFIRMED);
    assert_true(names_it(job, &verdict));
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
        confirm(&job, &rand, detector);
        late += steps > FOUND_WITHIN;
        sum += steps;
    }
    assert_true(late <= 1 + runs / LATE_ONE_IN);
    printf("%ld faults found after %.1f steps on average, %ld of them after more than %d\n", runs,
           (double)sum / (double)runs, late, FOUND_WITHIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(healthy_runs_of_two_hours_raise_no_alarm),
        cmocka_unit_test(what_becomes_slow_is_found_within_12_steps_with_its_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
