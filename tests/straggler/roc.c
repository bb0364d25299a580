// Prints how often healthy ranks are suspected and how soon slow ones are, by threshold and by how
// slow they are: straggler_roc [RUNS]. The jobs are those of the campaign, without skewed experts.
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

// Steps until the slow rank is suspected; 0 = not within 100.
static int delay(uint64_t seed, double enter, double factor)
{
    struct dp_rand rand;
    struct virtual_job job;
    make_job(&job, seed, &rand);
    job.fault = VIRTUAL_SLOW_RANK;
    job.factor = factor;
    job.onset_step = ONSET;
    struct dp_straggler *detector = detector_of(&job, enter);
    struct dp_straggler_verdict verdict;
    int found = 0;
    for (int step = 1; step < ONSET + 100 && found == 0; step++) {
        virtual_job_step(&job, step, &rand, detector);
        while (dp_straggler_next(detector, &verdict)) {
            bool right = verdict.state >= DP_STRAGGLER_SUSPECTED && verdict.rank == job.slow_rank;
            found = right && step >= ONSET ? step - ONSET + 1 : found;
        }
    }
    dp_straggler_free(detector);
    return found;
}

int main(int argc, char **argv)
{
    int runs = argc > 1 ? atoi(argv[1]) : 60;
    printf("threshold  false alarms per million steps of a rank");
    for (int f = 0; f < FACTORS; f++) {
        printf("  x%.1f", factors[f]);
    }
    printf("   (%% found within %d steps / within 100)\n", FOUND_WITHIN);
    for (int t = 0; t < THRESHOLDS; t++) {
        int64_t rank_steps = 0;
        int wrong = 0;
        for (int run = 1; run <= runs; run++) {
            wrong += alarms((uint64_t)run, thresholds[t], &rank_steps);
        }
        printf("%9.2f  %d in %.1f million", thresholds[t], wrong, (double)rank_steps / 1e6);
        for (int f = 0; f < FACTORS; f++) {
            int soon = 0, found = 0;
            for (int run = 1; run <= runs; run++) {
                int steps = delay((uint64_t)run, thresholds[t], factors[f]);
                soon += steps > 0 && steps <= FOUND_WITHIN;
                found += steps > 0;
            }
            printf("  %d/%d", 100 * soon / runs, 100 * found / runs);
        }
        printf("\n");
    }
    return 0;
}
