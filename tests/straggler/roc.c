// Prints how often healthy ranks are suspected, and how soon slow ones are suspected and confirmed,
// by threshold and by how slow they are: straggler_roc [RUNS]. The jobs are those of the campaign,
// without skewed experts.
#include <math.h>
#include <stdlib.h>

#include "virtual_job.h"

static const double thresholds[] = {1.11, 1.15, 1.2, 1.3, 1.5};
static const double factors[] = {1.1, 1.2, 1.3, 1.5, 2, 3};
enum {
    THRESHOLDS = sizeof(thresholds) / sizeof(thresholds[0]),
    FACTORS = sizeof(factors) / sizeof(factors[0]),
    HEALTHY_STEPS = 5000,
    ONSET = 40,
    FOUND_WITHIN = 12,
};

static struct dp_straggler *detector_of(const struct virtual_job *job, double enter)
{
    struct dp_straggler_config config;
    dp_straggler_config_init(&config);
    config.ranks = virtual_job_ranks(job);
    config.enter = enter;
    return dp_straggler_new(&config);
}

static void make_job(struct virtual_job *job, uint64_t seed, struct dp_rand *rand)
{
    dp_rand_init(rand, seed);
    virtual_job_init(job, (virtual_layout)(seed % 3));
    job->action_sigma = 0.01 + 0.05 * dp_rand_double(rand);
    job->step_sigma = 0.01 + 0.03 * dp_rand_double(rand);
    job->slow_rank = (uint32_t)dp_rand_below(rand, virtual_job_ranks(job));
}

// Suspicions in a healthy run.
static int alarms(uint64_t seed, double enter, int64_t *ret_rank_steps)
{
    struct dp_rand rand;
    struct virtual_job job;
    make_job(&job, seed, &rand);
    struct dp_straggler *detector = detector_of(&job, enter);
    struct dp_straggler_verdict verdict;
    int count = 0;
    for (int64_t step = 1; step <= HEALTHY_STEPS; step++) {
        virtual_job_step(&job, step, &rand, detector);
        while (dp_straggler_next(detector, &verdict)) {
            count += verdict.state >= DP_STRAGGLER_SUSPECTED;
        }
    }
    *ret_rank_steps += HEALTHY_STEPS * virtual_job_ranks(&job);
    dp_straggler_free(detector);
    return count;
}

// Steps until the slow rank is suspected and confirmed; 0 = not within 100.
struct delay {
    int suspected, confirmed;
};

static struct delay delay(uint64_t seed, double enter, double factor)
{
    struct dp_rand rand;
    struct virtual_job job;
    make_job(&job, seed, &rand);
    job.fault = VIRTUAL_SLOW_RANK;
    job.factor = factor;
    job.onset_step = ONSET;
    struct dp_straggler *detector = detector_of(&job, enter);
    struct dp_straggler_verdict verdict;
    struct delay found = {0};
    for (int step = 1; step < ONSET + 100 && found.confirmed == 0; step++) {
        virtual_job_step(&job, step, &rand, detector);
        uint64_t request;
        if (dp_straggler_wants_probe(detector, &request)) {
            virtual_job_probe(&job, request, &rand, detector);
        }
        while (dp_straggler_next(detector, &verdict)) {
            bool right = verdict.rank == job.slow_rank && step >= ONSET;
            if (right && verdict.state == DP_STRAGGLER_SUSPECTED && found.suspected == 0) {
                found.suspected = step - ONSET + 1;
            } else if (right && verdict.state == DP_STRAGGLER_CONFIRMED) {
                found.confirmed = step - ONSET + 1;
            }
        }
    }
    dp_straggler_free(detector);
    return found;
}

static void print_delays(int runs, double enter, double factor)
{
    int soon = 0, found = 0, confirmed = 0, steps = 0;
    for (int run = 1; run <= runs; run++) {
        struct delay after = delay((uint64_t)run, enter, factor);
        soon += after.suspected > 0 && after.suspected <= FOUND_WITHIN;
        found += after.suspected > 0;
        confirmed += after.confirmed > 0;
        steps += after.confirmed;
    }
    printf("  %d/%d/%d(%.1f)", 100 * soon / runs, 100 * found / runs, 100 * confirmed / runs,
           confirmed > 0 ? (double)steps / confirmed : 0);
}

int main(int argc, char **argv)
{
    int runs = argc > 1 ? atoi(argv[1]) : 60;
    printf("threshold  false alarms per million steps of a rank");
    for (int f = 0; f < FACTORS; f++) {
        printf("  x%.1f", factors[f]);
    }
    printf("   (%% suspected within %d steps / within 100 / confirmed (after so many))\n",
           FOUND_WITHIN);
    for (int t = 0; t < THRESHOLDS; t++) {
        int64_t rank_steps = 0;
        int wrong = 0;
        for (int run = 1; run <= runs; run++) {
            wrong += alarms((uint64_t)run, thresholds[t], &rank_steps);
        }
        printf("%9.2f  %d in %.1f million", thresholds[t], wrong, (double)rank_steps / 1e6);
        for (int f = 0; f < FACTORS; f++) {
            print_delays(runs, thresholds[t], factors[f]);
        }
        printf("\n");
    }
    return 0;
}
