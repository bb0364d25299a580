// Layers to stages: against trying every cut.

#include "planner_support.h"

#include "dp/rand.h"
#include "internal.h"

struct best {
    double largest, squares;
};

static double cost_of(const double *cost, int32_t begin, int32_t end)
{
    double sum = 0;
    for (int32_t l = begin; l < end; l++) {
        sum += cost[l];
    }
    return sum;
}

// Every way to cut [begin, layers) into the runs left, with what the runs before cost.
static void try_all(const double *cost, int32_t layers, int32_t run, int32_t runs, int32_t begin,
                    const double *ends, struct best so_far, struct best *best)
{
    if (run == runs) {
        bool better = so_far.largest < best->largest - 1e-9 ||
                      (so_far.largest < best->largest + 1e-9 && so_far.squares < best->squares);
        *best = begin == layers && better ? so_far : *best;
        return;
    }
    for (int32_t end = begin + 1; end <= layers - (runs - run - 1); end++) {
        double c =
            cost_of(cost, begin, end) + (run == 0 ? ends[0] : 0) + (run == runs - 1 ? ends[1] : 0);
        struct best next = {fmax(so_far.largest, c), so_far.squares + c * c};
        try_all(cost, layers, run + 1, runs, end, ends, next, best);
    }
}

static void a_split_is_the_best_of_all_cuts(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 3);
    for (int round = 0; round < 200; round++) {
        int32_t layers = 1 + (int32_t)dp_rand_below(&rand, 11);
        int32_t runs = 1 + (int32_t)dp_rand_below(&rand, (uint64_t)layers);
        double cost[16], ends[2];
        for (int32_t l = 0; l < layers; l++) {
            cost[l] = round % 2 == 0 ? 1 + (double)dp_rand_below(&rand, 4) : dp_rand_double(&rand);
        }
        ends[0] = dp_rand_double(&rand);
        ends[1] = 2 * dp_rand_double(&rand);
        int32_t begin[17];
        dp_planner_split_layers(cost, layers, runs, ends[0], ends[1], begin);
        struct best got = {0, 0}, best = {INFINITY, INFINITY};
        assert_int_equal(begin[0], 0);
        assert_int_equal(begin[runs], layers);
        for (int32_t r = 0; r < runs; r++) {
            assert_true(begin[r + 1] > begin[r]);
            double c = cost_of(cost, begin[r], begin[r + 1]) + (r == 0 ? ends[0] : 0) +
                       (r == runs - 1 ? ends[1] : 0);
            got.largest = fmax(got.largest, c);
            got.squares += c * c;
        }
        try_all(cost, layers, 0, runs, 0, ends, (struct best){0, 0}, &best);
        assert_near(got.largest, best.largest, 1e-9);
        assert_near(got.squares, best.squares, 1e-6);
    }
}

static void equal_layers_split_evenly(void **state)
{
    (void)state;
    double cost[61];
    for (int l = 0; l < 61; l++) {
        cost[l] = 1;
    }
    int32_t begin[17];
    dp_planner_split_layers(cost, 61, 16, 0, 0, begin);
    for (int s = 0; s < 16; s++) {
        assert_in_range(begin[s + 1] - begin[s], 3, 4);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_is_the_best_of_all_cuts),
        cmocka_unit_test(equal_layers_split_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
