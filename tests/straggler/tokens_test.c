// Experts that are loaded unevenly for good: what more tokens explain, and what they do not.
#include <math.h>

#include "dp/cleanup.h"
#include "dp/rand.h"
#include "dp/straggler.h"
#include "dp_test.h"

DP_DEFINE_CLEANUP(cleanup_straggler, struct dp_straggler, dp_straggler_free)

enum { RANKS = 2, STEPS = 3000, MEAN_TOKENS = 1000, NEVER = INT32_MAX };
// How much follows the tokens is known to some error, and the doubt is for the rank.
enum { FOUND_WITHIN = 30 };

struct job {
    double skew;     // tokens of rank 0 over the mean; rank 1 has the rest
    double of_token; // of an action at the mean of tokens, over what does not follow them
    double noise;    // deviation of an action's time
    double lacking;  // of that time, there was no core for so much
    uint32_t slow_rank;
    int64_t onset_step;
    double slow;
};

// An action takes so many seconds without tokens, and so many with the mean of them.
static double action_s(const struct job *job, uint32_t rank, int64_t step, double tokens)
{
    double s = 0.01 * (1 + job->of_token * tokens / MEAN_TOKENS);
    return s * (rank == job->slow_rank && step >= job->onset_step ? job->slow : 1);
}

static void take_step(const struct job *job, int64_t step, struct dp_rand *rand,
                      struct dp_straggler *detector)
{
    // What one rank has more the other one has less.
    double share = fmin(job->skew * (1 + 0.05 * dp_rand_normal(rand)), 2);
    struct dp_straggler_kind kinds[RANKS][2];
    int64_t step_ns = 0, work_ns[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        double tokens = MEAN_TOKENS * (r == 0 ? share : 2 - share), sum_s = 0;
        for (uint8_t i = 0; i < 2; i++) {
            double s =
                (1 + i) * action_s(job, r, step, tokens) * exp(job->noise * dp_rand_normal(rand));
            kinds[r][i] = (struct dp_straggler_kind){.kind = i == 0 ? DP_ACTION_F : DP_ACTION_B,
                                                     .count = 4,
                                                     .total_ns = (int64_t)(4e9 * s),
                                                     .median_ns = (int64_t)(1e9 * s),
                                                     .tokens = (uint64_t)(4 * tokens)};
            sum_s += 4 * s;
        }
        work_ns[r] = (int64_t)(sum_s * 1e9);
        step_ns = work_ns[r] > step_ns ? work_ns[r] : step_ns;
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct dp_straggler_sample sample = {.rank = r,
                                                   .step = step,
                                                   .step_ns = step_ns,
                                                   .off_core_ns =
                                                       (int64_t)(job->lacking * (double)work_ns[r]),
                                                   .kinds = kinds[r],
                                                   .kinds_count = 2};
        dp_straggler_take(detector, &sample);
    }
}

// The first step at which a rank is suspected, or NEVER; which one.
static int64_t run(const struct job *job, uint64_t seed, uint32_t *ret_rank)
{
    struct dp_straggler_config config;
    dp_straggler_config_init(&config);
    config.ranks = RANKS;
    DP_CLEANUP(cleanup_straggler) struct dp_straggler *detector = dp_straggler_new(&config);
    struct dp_rand rand;
    dp_rand_init(&rand, seed);
    for (int64_t step = 1; step <= STEPS; step++) {
        take_step(job, step, &rand, detector);
        struct dp_straggler_verdict verdict;
        while (dp_straggler_next(detector, &verdict)) {
            if (verdict.state >= DP_STRAGGLER_SUSPECTED) {
                *ret_rank = verdict.rank;
                return step;
            }
        }
    }
    return NEVER;
}

// With the last one the other rank has hardly any: who is slow then takes long to find.
static const double skews[] = {1.2, 1.4, 1.6, 1.75, 1.85, 2}, of_tokens[] = {0.2, 0.5, 1, 2, 5};

static void a_rank_whose_experts_are_busy_for_good_is_not_slow(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(skews) / sizeof(skews[0]); i++) {
        for (size_t j = 0; j < sizeof(of_tokens) / sizeof(of_tokens[0]); j++) {
            const struct job job = {
                .skew = skews[i], .of_token = of_tokens[j], .noise = 0.03, .slow_rank = RANKS};
            uint32_t rank = 0;
            int64_t step = run(&job, 1 + i * 10 + j, &rank);
            if (step != NEVER) {
                fail_msg("x%.2f of the tokens, %.1f of the time: rank %u at step %lld", job.skew,
                         job.of_token, rank, (long long)step);
            }
        }
    }
}

static void a_rank_that_works_more_loses_more_of_its_cores(void **state)
{
    (void)state;
    const struct job job = {
        .skew = 1.85, .of_token = 5, .noise = 0.03, .lacking = 0.4, .slow_rank = RANKS};
    uint32_t rank = 0;
    assert_int_equal(run(&job, 7, &rank), NEVER);
}

static void a_slow_rank_is_found_whether_its_experts_are_busy_or_idle(void **state)
{
    (void)state;
    for (size_t i = 0; i + 1 < sizeof(skews) / sizeof(skews[0]); i++) {
        for (size_t j = 0; j < sizeof(of_tokens) / sizeof(of_tokens[0]); j++) {
            for (uint32_t slow_rank = 0; slow_rank < RANKS; slow_rank++) {
                const struct job job = {.skew = skews[i],
                                        .of_token = of_tokens[j],
                                        .noise = 0.03,
                                        .slow_rank = slow_rank,
                                        .onset_step = 1000,
                                        .slow = 2};
                uint32_t rank = RANKS;
                int64_t step = run(&job, 100 + i * 10 + j, &rank);
                if (rank != slow_rank || step < job.onset_step ||
                    step > job.onset_step + FOUND_WITHIN) {
                    fail_msg("x%.2f of the tokens, %.1f of the time, rank %u is slow: rank %u at "
                             "step %lld",
                             job.skew, job.of_token, slow_rank, rank, (long long)step);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_whose_experts_are_busy_for_good_is_not_slow),
        cmocka_unit_test(a_rank_that_works_more_loses_more_of_its_cores),
        cmocka_unit_test(a_slow_rank_is_found_whether_its_experts_are_busy_or_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
