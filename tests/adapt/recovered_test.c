// What is chosen beside what exhaustive simulation says can be had: every split of the layers,
// every sharing of the micro-batches and every place that a slow rank can change to.

#include "adapt_support.h"

enum { CASES = 60, COUNT_MAX = 32, STAGES_MAX = 8, REPLICAS_MAX = 3, PLACES_MAX = 16 };

static int32_t between(struct dp_rand *rand, int32_t low, int32_t high)
{
    return low + (int32_t)dp_rand_below(rand, (uint64_t)(high - low) + 1);
}

struct search {
    struct way way;
    int32_t layer_begin[STAGES_MAX + 1];
    double place_slow[PLACES_MAX];
    int32_t total;
    double table[REPLICAS_MAX][COUNT_MAX + 1]; // steps of a replica by its share
    double best;
};

// Steps of one replica alone.
static double replica_step(struct search *search, int32_t replica, int32_t count)
{
    struct dp_plan one = *search->way.plan;
    one.data = 1;
    struct way way = search->way;
    way.plan = &one;
    way.counts = &count;
    way.place_slow = search->place_slow + replica * one.pipeline;
    return simulate_way(&way);
}

static void share_out(struct search *search, int32_t replica, int32_t left, double longest)
{
    if (replica == search->way.plan->data) {
        search->best = left == 0 && longest < search->best ? longest : search->best;
        return;
    }
    for (int32_t n = 1; n <= left; n++) {
        share_out(search, replica + 1, left - n, fmax(longest, search->table[replica][n]));
    }
}

static void try_split(struct search *search)
{
    int32_t data = search->way.plan->data;
    for (int32_t d = 0; d < data; d++) {
        for (int32_t n = data == 1 ? search->total : 1; n <= search->total - data + 1; n++) {
            search->table[d][n] = replica_step(search, d, n);
        }
    }
    share_out(search, 0, search->total, 0);
}

static void split_layers(struct search *search, int32_t stage)
{
    int32_t stages = search->way.plan->stages, layers = search->way.costs->layers;
    if (stage == stages) {
        search->layer_begin[stages] = layers;
        try_split(search);
        return;
    }
    int32_t least = search->layer_begin[stage - 1] + (stage > 1);
    for (int32_t l = least; l <= layers; l++) {
        bool leaves_enough = layers - l >= stages - 1 - stage;
        if (leaves_enough) {
            search->layer_begin[stage] = l;
            split_layers(search, stage + 1);
        }
    }
}

// Every rank that stands on a slow place in turn changes with every other, or goes to the spare.
static double best_of_all(const struct dp_plan *plan, const struct dp_adapt_costs *costs,
                          const double *slow, double spare)
{
    struct search search = {.best = INFINITY, .total = plan->data * plan->microbatches};
    search.way = (struct way){.plan = plan, .costs = costs};
    search.way.layer_begin = search.layer_begin;
    int32_t world = plan->pipeline * plan->data;
    memcpy(search.place_slow, slow, (size_t)world * sizeof(*slow));
    split_layers(&search, 1);
    for (int32_t a = 0; a < world; a++) {
        for (int32_t b = 0; b < world && slow[a] > 1; b++) {
            memcpy(search.place_slow, slow, (size_t)world * sizeof(*slow));
            search.place_slow[a] = slow[b];
            search.place_slow[b] = slow[a];
            if (b != a) {
                split_layers(&search, 1);
            }
        }
        if (slow[a] > 1 && spare > 0) {
            memcpy(search.place_slow, slow, (size_t)world * sizeof(*slow));
            search.place_slow[a] = spare;
            split_layers(&search, 1);
        }
    }
    return search.best;
}

struct sample {
    struct sizes sizes;
    double slow[PLACES_MAX];
    double spare; // 0 = none
};

static struct sample some_sample(struct dp_rand *rand)
{
    static const char *const schedules[] = {"1f1b", "gpipe", "zb-h1", "dualpipe", "dualpipev"};
    int32_t family = between(rand, 0, 4);
    bool is_dual = family >= 3;
    struct sample sample = {.sizes = {.schedule = schedules[family], .ranks_per_node = 2}};
    struct sizes *sizes = &sample.sizes;
    sizes->pipeline = family == 3 ? 2 * between(rand, 1, 2) : family == 4 ? 2 : between(rand, 2, 4);
    sizes->data = between(rand, 1, 2);
    sizes->microbatches =
        is_dual ? 2 * sizes->pipeline + 2 * between(rand, 0, 2) : between(rand, 3, 6);
    sizes->layers = between(rand, 5, 7);
    int32_t world = sizes->pipeline * sizes->data;
    for (int32_t r = 0; r < world; r++) {
        sample.slow[r] = 1;
    }
    sample.slow[between(rand, 0, world - 1)] = 1.2 + 1.8 * dp_rand_double(rand);
    if (between(rand, 0, 3) == 0) {
        sample.slow[between(rand, 0, world - 1)] = 1.2 + 1.8 * dp_rand_double(rand);
    }
    sample.spare = between(rand, 0, 3) == 0 ? 1 + 0.3 * dp_rand_double(rand) : 0;
    return sample;
}

// Layers of unlike prices, an embedding and a head.
static struct dp_adapt_costs some_costs(struct dp_rand *rand, const struct dp_plan *plan)
{
    struct dp_adapt_costs costs = even_costs(plan, 1, 1, 1);
    for (int32_t l = 0; l < costs.layers; l++) {
        double weight = l == 0 ? 0.5 : 0.9 + 0.2 * dp_rand_double(rand);
        for (int k = 0; k < DP_ADAPT_KINDS; k++) {
            costs.layer[l][k] *= weight;
        }
    }
    costs.last[DP_ACTION_F] = 0.5 * dp_rand_double(rand);
    costs.last[DP_ACTION_B] = 2 * costs.last[DP_ACTION_F];
    costs.last[DP_ACTION_I] = costs.last[DP_ACTION_W] = costs.last[DP_ACTION_F];
    return costs;
}

// The share of what can be recovered that the choice recovers; NaN when nothing can.
static double recovered_share(struct dp_rand *rand, double *ret_gain)
{
    struct dp_error err = {0};
    const struct sample sample = some_sample(rand);
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sample.sizes);
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = some_costs(rand, &plan);
    const struct dp_adapt_spare spare = {.node = "free", .slow = sample.spare};
    struct dp_adapt_input input = input_of(&plan, &costs, sample.slow);
    input.spares = &spare;
    input.spares_count = sample.spare > 0;
    input.limits.least_gain_share = 0;
    input.limits.moves_max = 60;
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    assert_ok(dp_adapt_choose(&input, &answers, &err), &err);
    const struct dp_adapt_answer *best = &answers.answers[answers.best];

    int32_t counts[REPLICAS_MAX];
    for (int32_t d = 0; d < plan.data; d++) {
        counts[d] = plan.microbatches;
    }
    const struct way now = {&plan, &costs, plan.layer_begin, counts, sample.slow, NULL};
    double before = simulate_way(&now);
    assert_true(fabs(best->before_s - before) <= 1e-9 * before);
    double can_be = before - best_of_all(&plan, &costs, sample.slow, sample.spare);
    *ret_gain = can_be / before;
    double share = (before - best->after_s) / can_be;
    if (can_be > 1e-9 * before && share < 0.85) {
        print_message("%s P %d D %d M %d L %d: %s recovers %.3f\n", plan.schedule, plan.pipeline,
                      plan.data, plan.microbatches, costs.layers, dp_adapt_kind_text(best->kind),
                      share);
    }
    return can_be > 1e-9 * before ? share : NAN;
}

static int compare_doubles(const void *a, const void *b)
{
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

static void the_choice_recovers_what_exhaustive_simulation_says_can_be_recovered(void **state)
{
    (void)state;
    long cases = dp_fuzz_runs(CASES), counted = 0;
    DP_AUTO_FREE double *shares = dp_new_array(double, (size_t)cases);
    double sum = 0, gains = 0;
    for (long i = 0; i < cases; i++) {
        struct dp_rand rand;
        dp_rand_init(&rand, (uint64_t)i + 1);
        double gain, share = recovered_share(&rand, &gain);
        if (!isnan(share)) {
            shares[counted++] = share;
            sum += share;
            gains += gain;
        }
    }
    qsort(shares, (size_t)counted, sizeof(*shares), compare_doubles);
    print_message("recovered of what can be, %ld cases (mean gain %.1f %% of a step): least %.3f, "
                  "5 %% %.3f, 25 %% %.3f, median %.3f, mean %.3f, most %.3f\n",
                  counted, 100 * gains / (double)counted, shares[0], shares[counted / 20],
                  shares[counted / 4], shares[counted / 2], sum / (double)counted,
                  shares[counted - 1]);
    assert_true(counted > cases / 2);
    assert_true(shares[0] >= 0.85);
}

// Sharing alone: the best of every sharing, for families whose numbers are all legal, even, or
// multiples of the pipeline's depth.
static void the_sharing_of_micro_batches_is_the_best_there_is(void **state)
{
    (void)state;
    static const struct sizes sizes[] = {
        {"1f1b", 2, 3, 1, 5, 4, 0, 2},     {"gpipe", 3, 3, 1, 4, 6, 0, 2},
        {"dualpipe", 2, 3, 1, 8, 4, 0, 2}, {"interleaved", 2, 3, 1, 6, 8, 2, 2},
        {"zb-h1", 2, 2, 1, 8, 4, 0, 2},
    };
    struct dp_rand rand;
    dp_rand_init(&rand, 11);
    for (size_t i = 0; i < 4 * sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct dp_error err = {0};
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes[i / 4]);
        DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = some_costs(&rand, &plan);
        struct search search = {.best = INFINITY, .total = plan.data * plan.microbatches};
        search.way = (struct way){.plan = &plan, .costs = &costs, .layer_begin = plan.layer_begin};
        for (int32_t r = 0; r < plan.pipeline * plan.data; r++) {
            search.place_slow[r] = between(&rand, 0, 2) == 0 ? 1 + 2 * dp_rand_double(&rand) : 1;
        }
        search.place_slow[0] = 2;
        try_split(&search);
        struct dp_adapt_input input = input_of(&plan, &costs, search.place_slow);
        input.limits.moves_max = 1;
        DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
        assert_ok(dp_adapt_choose(&input, &answers, &err), &err);
        const struct dp_adapt_answer *shift = answer_of(&answers, DP_ADAPT_SHIFT);
        double found = shift->possible ? shift->after_s : shift->before_s;
        if (fabs(found / search.best - 1) > 1e-9) {
            fail_msg("%s: %g, the best sharing takes %g", plan.schedule, found, search.best);
        }
    }
}

// More splits than are tried one by one: single moves beside all of them.
static void layers_that_move_one_by_one_come_near_the_best_split(void **state)
{
    (void)state;
    static const struct sizes sizes[] = {{"1f1b", 4, 1, 1, 6, 22, 0, 2},
                                         {"dualpipe", 4, 1, 1, 8, 20, 0, 2},
                                         {"dualpipev", 2, 1, 1, 4, 21, 0, 2},
                                         {"zb-h1", 4, 1, 1, 6, 22, 0, 2}};
    struct dp_rand rand;
    dp_rand_init(&rand, 12);
    double least = 1;
    for (size_t i = 0; i < 3 * sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct dp_error err = {0};
        DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = plan_of(&sizes[i / 3]);
        DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = some_costs(&rand, &plan);
        struct search search = {.best = INFINITY, .total = plan.microbatches};
        search.way = (struct way){.plan = &plan, .costs = &costs};
        search.way.layer_begin = search.layer_begin;
        for (int32_t r = 0; r < plan.pipeline; r++) {
            search.place_slow[r] = 1;
        }
        search.place_slow[between(&rand, 0, plan.pipeline - 1)] = 1.2 + 1.8 * dp_rand_double(&rand);
        split_layers(&search, 1);
        struct dp_adapt_input input = input_of(&plan, &costs, search.place_slow);
        input.limits.moves_max = 1;
        DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
        assert_ok(dp_adapt_choose(&input, &answers, &err), &err);
        const struct dp_adapt_answer *layers = answer_of(&answers, DP_ADAPT_LAYERS);
        double share = layers->possible
                           ? (layers->before_s - layers->after_s) / (layers->before_s - search.best)
                           : 0;
        least = share < least ? share : least;
    }
    print_message("recovered of what a split of the layers can: at least %.3f\n", least);
    assert_true(least >= 0.85);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_choice_recovers_what_exhaustive_simulation_says_can_be_recovered),
        cmocka_unit_test(the_sharing_of_micro_batches_is_the_best_there_is),
        cmocka_unit_test(layers_that_move_one_by_one_come_near_the_best_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
