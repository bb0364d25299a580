// The halves of a sum: reduce-scatter and all-gather.
#include "cluster.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/collective.h"
#include "dp/rand.h"

struct run {
    int32_t world;
    int64_t count;
    dp_element element;
    uint64_t seed;
};

static double value(const struct run *run, int32_t rank, int64_t index)
{
    uint64_t bits = dp_rand_mix(dp_rand_mix(run->seed, (uint64_t)rank), (uint64_t)index);
    return ((double)(bits >> 11) * 0x1.0p-53 - 0.5) * (index % 3 == 0 ? 1e6 : 1);
}

static void set(const struct run *run, void *values, int64_t index, double x)
{
    if (run->element == DP_F32) {
        ((float *)values)[index] = (float)x;
    } else {
        ((double *)values)[index] = x;
    }
}

static double get(const struct run *run, const void *values, int64_t index)
{
    return run->element == DP_F32 ? (double)((const float *)values)[index]
                                  : ((const double *)values)[index];
}

// In the order of the members; of floats in double, rounded once.
static double sum(const struct run *run, int64_t index)
{
    double total = 0;
    for (int32_t rank = 0; rank < run->world; rank++) {
        double x = value(run, rank, index);
        x = run->element == DP_F32 ? (double)(float)x : x;
        total = rank == 0 ? x : total + x;
    }
    return run->element == DP_F32 ? (double)(float)total : total;
}

static dp_status halves(struct dp_transport *transport, void *context, struct dp_error *err)
{
    const struct run *run = context;
    int32_t rank = dp_transport_rank(transport), ranks[16];
    for (int32_t i = 0; i < run->world; i++) {
        ranks[i] = i;
    }
    DP_CLEANUP(dp_group_deinit) struct dp_group group = {0};
    EXPECT_OK(dp_group_init(&group, transport, 3, ranks, run->world, err));
    size_t width = dp_element_bytes(run->element);
    DP_AUTO_FREE void *values = dp_alloc_aligned((size_t)run->count + 1, width);
    for (int64_t i = 0; i < run->count; i++) {
        set(run, values, i, value(run, rank, i));
    }
    EXPECT_OK(dp_group_reduce_scatter(&group, 1, run->element, values, run->count, err));
    // Shares are equal, longer ones first, and cover everything.
    int64_t begin = dp_group_share_begin(run->count, run->world, rank);
    int64_t end = dp_group_share_begin(run->count, run->world, rank + 1);
    EXPECT(end - begin == run->count / run->world + (rank < run->count % run->world));
    EXPECT(dp_group_share_begin(run->count, run->world, 0) == 0);
    EXPECT(dp_group_share_begin(run->count, run->world, run->world) == run->count);
    for (int64_t i = 0; i < run->count; i++) {
        bool is_mine = i >= begin && i < end;
        double wanted = is_mine ? sum(run, i) : value(run, rank, i);
        wanted = run->element == DP_F32 ? (double)(float)wanted : wanted;
        EXPECT(get(run, values, i) == wanted);
    }
    EXPECT_OK(dp_group_all_gather(&group, 2, width, values, run->count, err));
    for (int64_t i = 0; i < run->count; i++) {
        EXPECT(get(run, values, i) == sum(run, i));
    }
    return DP_OK;
}

static void both_halves_give_the_sum_of_any_number_of_values_over_any_number_of_ranks(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 21);
    for (long i = dp_fuzz_runs(40); i > 0; i--) {
        struct run run = {.world = 1 + (int32_t)dp_rand_below(&rand, 6),
                          .count = (int64_t)dp_rand_below(&rand, 200),
                          .element = i % 2 == 0 ? DP_F32 : DP_F64,
                          .seed = dp_rand_u64(&rand)};
        cluster_run((cluster_kind)(i % CLUSTER_KINDS), run.world, halves, &run);
    }
}

static void more_values_than_one_round_takes_are_all_summed(void **state)
{
    (void)state;
    // A round moves 2 MiB of all shares together.
    struct run run = {.world = 3, .count = 1500001, .element = DP_F32, .seed = 4};
    cluster_run(CLUSTER_LOOPBACK, run.world, halves, &run);
    run = (struct run){.world = 2, .count = 300007, .element = DP_F64, .seed = 5};
    cluster_run(CLUSTER_TCP, run.world, halves, &run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_halves_give_the_sum_of_any_number_of_values_over_any_number_of_ranks),
        cmocka_unit_test(more_values_than_one_round_takes_are_all_summed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
