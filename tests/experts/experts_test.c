// Placing experts by load: the published example, and what holds for every load.
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "dp/cleanup.h"
#include "dp/experts.h"
#include "dp/limits.h"
#include "dp/rand.h"
#include "dp_test.h"

// The example of deepseek-ai/EPLB's README: two layers of 12 experts in 4 groups get 16 slots on 8
// ranks of 2 nodes.
static const struct dp_experts_shape example = {
    .experts = 12, .slots = 16, .groups = 4, .nodes = 2, .ranks = 8};
static const double example_load[2][12] = {{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
                                           {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}};
static const int32_t example_slots[2][16] = {{5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1},
                                             {7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}};

static void the_published_example_is_placed_as_published(void **state)
{
    (void)state;
    struct dp_error err;
    assert_ok(dp_experts_shape_check(&example, &err), &err);
    for (int layer = 0; layer < 2; layer++) {
        int32_t expert[16];
        dp_experts_place(&example, example_load[layer], expert);
        for (int s = 0; s < 16; s++) {
            assert_int_equal(expert[s], example_slots[layer][s]);
        }
    }
}

static void skew_is_the_fullest_rank_over_the_mean(void **state)
{
    (void)state;
    // Four experts on two ranks by hand: 10 + 20 against 30 + 40, mean 50.
    const struct dp_experts_shape shape = {4, 4, 1, 1, 2};
    const double load[4] = {10, 20, 30, 40}, none[4] = {0};
    int32_t expert[4];
    dp_experts_place_plainly(&shape, expert);
    assert_float_equal(dp_experts_skew(&shape, load, expert), 1.4, 1e-12);
    assert_float_equal(dp_experts_skew(&shape, none, expert), 1, 0);
    // The best pairing: 10 + 40 and 20 + 30.
    dp_experts_place(&shape, load, expert);
    assert_float_equal(dp_experts_skew(&shape, load, expert), 1, 1e-12);
    // One expert has all: only copies help, and with one copy a rank it is even.
    const struct dp_experts_shape copies = {4, 8, 1, 1, 2};
    const double one[4] = {0, 0, 100, 0};
    int32_t placed[8];
    dp_experts_place(&copies, one, placed);
    assert_true(dp_experts_skew(&copies, one, placed) < 1.34);
}

static void shapes_that_do_not_divide_are_refused(void **state)
{
    (void)state;
    const struct {
        struct dp_experts_shape shape;
        dp_status status;
        const char *part;
    } rows[] = {
        {{12, 11, 1, 1, 1}, DP_INVALID, "11 slots hold no copy of each of 12 experts"},
        {{12, 12, 5, 1, 1}, DP_INVALID, "12 experts do not divide over 5 groups"},
        {{12, 12, 1, 2, 3}, DP_INVALID, "3 ranks do not divide over 2 nodes"},
        {{12, 13, 1, 1, 2}, DP_INVALID, "13 slots do not divide over 2 ranks"},
        {{0, 0, 1, 1, 1}, DP_INVALID, "at least 1"},
        {{DP_EXPERTS_MAX + 1, DP_EXPERTS_MAX + 1, 1, 1, 1}, DP_TOO_LARGE, "at most"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct dp_error err;
        dp_status status = dp_experts_shape_check(&rows[i].shape, &err);
        assert_refused(status, rows[i].status, &err, rows[i].part);
    }
}

// Copies of every expert, and on which node they lie (-1 = on several).
static void count_copies(const struct dp_experts_shape *shape, const int32_t *expert,
                         int32_t *ret_copies, int32_t *ret_node)
{
    for (int32_t s = 0; s < shape->slots; s++) {
        const int32_t e = expert[s], node = s / (shape->slots / shape->nodes);
        assert_in_range(e, 0, shape->experts - 1);
        ret_node[e] = ret_copies[e] == 0 || ret_node[e] == node ? node : -1;
        ret_copies[e]++;
    }
}

static void every_expert_has_a_place_and_busier_ones_no_fewer_copies(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 11);
    for (long run = 0; run < dp_fuzz_runs(2000); run++) {
        struct dp_experts_shape shape = {.nodes = 1 + (int32_t)dp_rand_below(&rand, 3),
                                         .groups = 1 + (int32_t)dp_rand_below(&rand, 6)};
        shape.ranks = shape.nodes * (1 + (int32_t)dp_rand_below(&rand, 4));
        shape.experts = shape.groups * shape.nodes * (1 + (int32_t)dp_rand_below(&rand, 4));
        const int32_t least = (shape.experts + shape.ranks - 1) / shape.ranks;
        shape.slots = shape.ranks * (least + (int32_t)dp_rand_below(&rand, 3));
        struct dp_error err;
        assert_ok(dp_experts_shape_check(&shape, &err), &err);
        double load[128];
        int32_t expert[256], copies[128] = {0}, node[128] = {0};
        for (int32_t e = 0; e < shape.experts; e++) {
            load[e] = (double)dp_rand_below(&rand, 5) * (double)dp_rand_below(&rand, 200);
        }
        dp_experts_place(&shape, load, expert);
        count_copies(&shape, expert, copies, node);
        const bool by_groups = shape.groups % shape.nodes == 0;
        const int32_t size = shape.experts / shape.groups;
        for (int32_t e = 0; e < shape.experts; e++) {
            assert_true(copies[e] >= 1);
            for (int32_t o = 0; o < shape.experts; o++) {
                const bool side_by_side = !by_groups || node[e] == node[o];
                assert_false(side_by_side && load[e] > load[o] && copies[e] < copies[o]);
                // A group's experts share a node.
                assert_false(by_groups && e / size == o / size && node[e] != node[o]);
            }
            assert_true(!by_groups || node[e] >= 0);
        }
    }
}

// The best of all ways to lay out experts without copies, by trying them.
static double best_skew(const struct dp_experts_shape *shape, const double *load, int32_t *expert,
                        int32_t from)
{
    if (from == shape->slots) {
        return dp_experts_skew(shape, load, expert);
    }
    double best = INFINITY;
    for (int32_t i = from; i < shape->slots; i++) {
        int32_t kept = expert[from];
        expert[from] = expert[i];
        expert[i] = kept;
        best = fmin(best, best_skew(shape, load, expert, from + 1));
        expert[i] = expert[from];
        expert[from] = kept;
    }
    return best;
}

static void packing_is_near_the_best_of_all_layouts(void **state)
{
    (void)state;
    const struct dp_experts_shape shape = {6, 6, 1, 1, 3};
    struct dp_rand rand;
    dp_rand_init(&rand, 5);
    for (long run = 0; run < dp_fuzz_runs(40); run++) {
        double load[6];
        int32_t expert[6], tried[6];
        for (int e = 0; e < 6; e++) {
            load[e] = 1 + (double)dp_rand_below(&rand, 100);
        }
        dp_experts_place(&shape, load, expert);
        dp_experts_place_plainly(&shape, tried);
        // Pairs, heaviest with lightest: greedy finds the best for two items a pack.
        assert_float_equal(dp_experts_skew(&shape, load, expert), best_skew(&shape, load, tried, 0),
                           1e-9);
    }
}

static int by_number(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

// Each rank's experts in order, and the ranks of each node by these: what a placement comes to when
// ranks of a node and slots of a rank are as good as each other. ret_sorted[slots].
static void sort_packs(const struct dp_experts_shape *shape, const int32_t *expert,
                       int32_t *ret_sorted)
{
    const int32_t size = shape->slots / shape->ranks, node_ranks = shape->ranks / shape->nodes;
    memcpy(ret_sorted, expert, (size_t)shape->slots * sizeof(*expert));
    for (int32_t r = 0; r < shape->ranks; r++) {
        qsort(ret_sorted + r * size, (size_t)size, sizeof(*expert), by_number);
    }
    for (int32_t r = 0; r < shape->ranks; r++) {
        for (int32_t o = r + 1; o < shape->ranks && o / node_ranks == r / node_ranks; o++) {
            int32_t *x = ret_sorted + r * size, *y = ret_sorted + o * size, at = 0;
            while (at < size && x[at] == y[at]) {
                at++;
            }
            const bool is_later = at < size && x[at] > y[at];
            for (int32_t i = 0; is_later && i < size; i++) {
                const int32_t kept = x[i];
                x[i] = y[i];
                y[i] = kept;
            }
        }
    }
}

static void what_can_stay_stays(void **state)
{
    (void)state;
    const struct dp_experts_shape shape = {6, 6, 1, 1, 3};
    // The same packs on other ranks, in another order: nothing has to move.
    const int32_t held[6] = {4, 1, 0, 5, 2, 3};
    int32_t turned[6] = {3, 2, 1, 4, 5, 0};
    dp_experts_keep(&shape, held, turned);
    assert_memory_equal(turned, held, sizeof(held));
    // Two experts change ranks: two slots do.
    int32_t swapped[6] = {3, 2, 1, 0, 5, 4};
    dp_experts_keep(&shape, held, swapped);
    assert_int_equal(dp_experts_moved(&shape, held, swapped), 2);
}

static void a_proposal_is_better_and_is_the_placement_turned(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 23);
    for (long run = 0; run < dp_fuzz_runs(2000); run++) {
        struct dp_experts_shape shape = {.nodes = 1 + (int32_t)dp_rand_below(&rand, 3)};
        shape.groups = shape.nodes;
        shape.ranks = shape.nodes * (1 + (int32_t)dp_rand_below(&rand, 4));
        shape.experts = shape.ranks * (1 + (int32_t)dp_rand_below(&rand, 4));
        shape.slots = shape.experts + shape.ranks * (int32_t)dp_rand_below(&rand, 3);
        double load[64];
        int32_t held[128], placed[128], proposed[128], a[128], b[128];
        for (int32_t e = 0; e < shape.experts; e++) {
            load[e] = (double)dp_rand_below(&rand, 100);
        }
        dp_experts_place_plainly(&shape, held);
        dp_experts_place(&shape, load, placed);
        const bool is_better = dp_experts_propose(&shape, load, held, 1, proposed);
        const double now = dp_experts_skew(&shape, load, held);
        const double gain = now - dp_experts_skew(&shape, load, placed);
        if (fabs(gain) < 1e-9) {
            continue; // sums of the same loads in another order
        }
        assert_int_equal(is_better, gain > 0);
        sort_packs(&shape, is_better ? placed : held, a);
        sort_packs(&shape, proposed, b);
        assert_memory_equal(a, b, (size_t)shape.slots * sizeof(*a));
        assert_true(dp_experts_moved(&shape, held, proposed) <=
                    dp_experts_moved(&shape, held, placed));
        // Asked for more than there is to gain, it leaves all as it is.
        assert_false(dp_experts_propose(&shape, load, held, 1 / now, proposed));
        assert_memory_equal(proposed, held, (size_t)shape.slots * sizeof(*held));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_example_is_placed_as_published),
        cmocka_unit_test(skew_is_the_fullest_rank_over_the_mean),
        cmocka_unit_test(shapes_that_do_not_divide_are_refused),
        cmocka_unit_test(every_expert_has_a_place_and_busier_ones_no_fewer_copies),
        cmocka_unit_test(packing_is_near_the_best_of_all_layouts),
        cmocka_unit_test(what_can_stay_stays),
        cmocka_unit_test(a_proposal_is_better_and_is_the_placement_turned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
