// Routing against a second way of choosing and finite differences, in double; and what has gone
// wrong in routers elsewhere.
#include "f64_device.h"
#include "gradient.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

static double score_of(const struct dp_router *r, const double *x, int32_t e)
{
    if (r->score == DP_ROUTER_SIGMOID) {
        return 1 / (1 + exp(-x[e]));
    }
    double sum = 0;
    for (int32_t i = 0; i < r->experts; i++) {
        sum += exp(x[i]);
    }
    return exp(x[e]) / sum;
}

// How many of the others come before one: they are greater, or equal and earlier. No sorting, no
// marks: this is the definition of a rank.
static int32_t rank_of(int32_t count, const double *key, const bool *eligible, int32_t i)
{
    int32_t before = 0;
    for (int32_t j = 0; j < count; j++) {
        if (eligible[j] && (key[j] > key[i] || (key[j] == key[i] && j < i))) {
            before++;
        }
    }
    return before;
}

static double group_key(const struct dp_router *r, const double *key, int32_t group)
{
    const int32_t size = r->experts / r->groups;
    bool all[64];
    memset(all, true, sizeof(all));
    double sum = 0;
    for (int32_t i = 0; i < size; i++) {
        const int32_t rank = rank_of(size, key + group * size, all, i);
        if (rank == 0 || (rank == 1 && r->bias != NULL)) {
            sum += key[group * size + i];
        }
    }
    return sum;
}

// Which experts one token takes.
static void naive_choice(const struct dp_router *r, const double *x, bool *ret_chosen)
{
    double key[64], group[64];
    bool eligible[64];
    memset(eligible, true, sizeof(eligible));
    for (int32_t e = 0; e < r->experts; e++) {
        key[e] = score_of(r, x, e) + (r->bias == NULL ? 0 : ((const double *)r->bias)[e]);
    }
    if (r->groups > 0) {
        for (int32_t g = 0; g < r->groups; g++) {
            group[g] = group_key(r, key, g);
        }
        for (int32_t e = 0; e < r->experts; e++) {
            const int32_t g = e / (r->experts / r->groups);
            bool all[64];
            memset(all, true, sizeof(all));
            eligible[e] = rank_of(r->groups, group, all, g) < r->top_groups;
        }
    }
    for (int32_t e = 0; e < r->experts; e++) {
        ret_chosen[e] = eligible[e] && rank_of(r->experts, key, eligible, e) < r->top_k;
    }
}

static void check_choice(const struct dp_router *r, const double *x, const int32_t *index,
                         const double *weight)
{
    bool chosen[64];
    naive_choice(r, x, chosen);
    double sum = 0;
    int32_t slot = 0;
    for (int32_t e = 0; e < r->experts; e++) {
        sum += chosen[e] ? score_of(r, x, e) : 0;
    }
    for (int32_t e = 0; e < r->experts; e++) {
        if (chosen[e]) {
            assert_int_equal(index[slot], e);
            const double scale = r->route_scale > 0 ? r->route_scale : 1;
            const double share = score_of(r, x, e) / (r->raw_weights ? 1 : sum);
            assert_near(weight[slot], scale * share, 1e-13);
            slot++;
        }
    }
    assert_int_equal(slot, r->top_k);
}

// Logits and biases are quarters, so that scores tie.
static void any_router_chooses_as_its_definition_says(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 1);
    for (long run = 0; run < dp_fuzz_runs(3000); run++) {
        const int32_t groups = 1 + (int32_t)dp_rand_below(&rand, 6);
        const int32_t experts = groups * (1 + (int32_t)dp_rand_below(&rand, 8));
        const int32_t top_groups = 1 + (int32_t)dp_rand_below(&rand, (uint64_t)groups);
        const int32_t reach = experts / groups * top_groups;
        double x[64], bias[64], weight[64];
        int32_t index[64];
        for (int32_t e = 0; e < experts; e++) {
            x[e] = 0.25 * (double)dp_rand_below(&rand, 8);
            bias[e] = 0.25 * (double)dp_rand_below(&rand, 8) - 1;
        }
        const struct dp_router r = {
            .tokens = 1,
            .sequence = 1,
            .experts = experts,
            .top_k = 1 + (int32_t)dp_rand_below(&rand, (uint64_t)reach),
            .score = dp_rand_below(&rand, 2) ? DP_ROUTER_SIGMOID : DP_ROUTER_SOFTMAX,
            .raw_weights = dp_rand_below(&rand, 2),
            .route_scale = dp_rand_below(&rand, 2) ? 2.5 : 0,
            .groups = groups,
            .top_groups = top_groups,
            .bias = dp_rand_below(&rand, 2) ? bias : NULL,
        };
        ops->router_forward(device->stream, &r, x, index, weight);
        check_choice(&r, x, index, weight);
    }
}

static void ties_go_to_the_lowest_index_of_experts_and_of_groups(void **state)
{
    (void)state;
    const double x[] = {0, 2, 1, 2, 5, 5, 5, 5, log(1), log(2), log(4), log(1)};
    double weight[6];
    int32_t index[6];
    struct dp_router r = {.tokens = 3, .sequence = 3, .experts = 4, .top_k = 2};
    ops->router_forward(device->stream, &r, x, index, weight);
    const int32_t expected[] = {1, 3, 0, 1, 1, 2};
    assert_memory_equal(index, expected, sizeof(expected));
    assert_near(weight[0], 0.5, 1e-15);
    assert_near(weight[4], 2.0 / 6, 1e-15);
    assert_near(weight[5], 4.0 / 6, 1e-15);
    // Groups {0, 1} and {2, 3} have the same best logit.
    const double even[] = {1, 0, 0, 1};
    r = (struct dp_router){
        .tokens = 1, .sequence = 1, .experts = 4, .top_k = 2, .groups = 2, .top_groups = 1};
    ops->router_forward(device->stream, &r, even, index, weight);
    assert_int_equal(index[0], 0);
    assert_int_equal(index[1], 1);
}

// Masked by 0 instead of by -inf, experts of other groups would win over negative scores.
static void experts_outside_the_best_groups_lose_to_negative_scores(void **state)
{
    (void)state;
    const double x[] = {0, 0, 1, 1}, bias[] = {-4, -4, -3, -3};
    double weight[2];
    int32_t index[2];
    const struct dp_router r = {.tokens = 1,
                                .sequence = 1,
                                .experts = 4,
                                .top_k = 2,
                                .score = DP_ROUTER_SIGMOID,
                                .groups = 2,
                                .top_groups = 1,
                                .bias = bias};
    ops->router_forward(device->stream, &r, x, index, weight);
    assert_int_equal(index[0], 2);
    assert_int_equal(index[1], 3);
    assert_near(weight[0], 0.5, 1e-15); // by scores alone
}

// DeepEP issue 595: kernels that kept a token's choices in the lanes of a warp stopped at 32.
static void more_than_32_experts_of_a_token_work(void **state)
{
    (void)state;
    const int32_t experts = 60;
    DP_AUTO_FREE double *x = drawn(5, experts, 1);
    const int32_t counts[] = {32, 33, 59, 60};
    for (int i = 0; i < 4; i++) {
        double weight[60];
        int32_t index[60];
        const struct dp_router r = {
            .tokens = 1, .sequence = 1, .experts = experts, .top_k = counts[i]};
        ops->router_forward(device->stream, &r, x, index, weight);
        check_choice(&r, x, index, weight);
    }
}

struct router_case {
    struct dp_router r;
    const double *logits, *w;
    double *weight;
    int32_t *index, *fixed; // fixed: the choices whose balance is taken
    double aux_scale;
};

// The balance loss from its formula: sum over experts of f_i P_i.
static double naive_balance(const struct dp_router *r, const double *logits, const int32_t *index)
{
    const int64_t n = r->sequence, experts = r->experts, k = r->top_k;
    double loss = 0;
    for (int64_t s = 0; s < r->tokens / n; s++) {
        for (int32_t e = 0; e < experts; e++) {
            double slots = 0, share = 0;
            for (int64_t t = s * n; t < (s + 1) * n; t++) {
                double sum = 0;
                for (int32_t i = 0; i < experts; i++) {
                    sum += score_of(r, logits + t * experts, i);
                }
                share += score_of(r, logits + t * experts, e) / sum / (double)n;
                for (int64_t j = 0; j < k; j++) {
                    slots += index[t * k + j] == e;
                }
            }
            loss += (double)experts / (double)(k * n) * slots * share;
        }
    }
    return loss;
}

static double objective(void *context)
{
    struct router_case *c = context;
    ops->router_forward(device->stream, &c->r, c->logits, c->index, c->weight);
    return weighted_sum(c->w, c->weight, c->r.tokens * c->r.top_k) +
           c->aux_scale * naive_balance(&c->r, c->logits, c->fixed);
}

static void check_gradient(struct dp_router r, double aux_scale)
{
    const int64_t slots = r.tokens * r.top_k, count = r.tokens * r.experts;
    DP_AUTO_FREE double *logits = drawn(10, count, 1), *w = drawn(11, slots, 1);
    DP_AUTO_FREE double *weight = drawn(12, slots, 1), *d = drawn(10, count, 1);
    DP_AUTO_FREE int32_t *index = dp_new_array(int32_t, (size_t)slots);
    DP_AUTO_FREE int32_t *fixed = dp_new_array(int32_t, (size_t)slots);
    ops->router_forward(device->stream, &r, logits, fixed, weight);
    double balance = NAN;
    ops->router_balance(device->stream, &r, fixed, logits, &balance);
    assert_near(balance, naive_balance(&r, logits, fixed), 1e-13 * balance);
    struct router_case c = {r, logits, w, weight, index, fixed, aux_scale};
    ops->router_input_grad(device->stream, &r, aux_scale, fixed, w, d);
    assert_gradient("dlogits", logits, d, count, 1, objective, &c);
}

// Megatron-LM issues 7389 and 1331: the balance loss was computed and its gradient got lost.
static void gradients_of_weights_and_of_the_balance_loss_match_differences(void **state)
{
    (void)state;
    const double bias[] = {0.3, -0.2, 0, 0.9, -0.4, 0.1};
    for (int kind = 0; kind < 16; kind++) {
        const struct dp_router r = {.tokens = 6,
                                    .sequence = 3,
                                    .experts = 6,
                                    .top_k = 3,
                                    .score = kind & 1 ? DP_ROUTER_SIGMOID : DP_ROUTER_SOFTMAX,
                                    .raw_weights = kind & 2,
                                    .route_scale = kind & 4 ? 2.5 : 0,
                                    .groups = kind & 4 ? 3 : 0,
                                    .top_groups = 2,
                                    .bias = kind & 8 ? bias : NULL};
        check_gradient(r, 0.7);
        check_gradient(r, 0);
    }
    check_gradient((struct dp_router){.tokens = 4, .sequence = 2, .experts = 36, .top_k = 33}, 1);
}

static void the_balance_loss_of_an_even_load_is_one_per_sequence(void **state)
{
    (void)state;
    const double logits[8] = {0};
    const int32_t even[] = {0, 1, 1, 0}, skewed[] = {0, 0, 0, 0};
    double sum = NAN;
    const struct dp_router r = {.tokens = 4, .sequence = 2, .experts = 2, .top_k = 1};
    ops->router_balance(device->stream, &r, even, logits, &sum);
    assert_near(sum, 2, 1e-15);
    // All slots to one expert that has all of the probability: as many as there are experts.
    const double certain[8] = {800, 0, 800, 0, 800, 0, 800, 0};
    ops->router_balance(device->stream, &r, skewed, certain, &sum);
    assert_near(sum, 4, 1e-12);
}

// Megatron-LM issue 1545: with scores divided by their sum plus 1e-20, a router could make the loss
// vanish by making every score small. Far down, sigmoids are exponentials, and their shares are
// those of a softmax, wherever that is.
static void a_router_cannot_hide_from_the_balance_loss_in_small_scores(void **state)
{
    (void)state;
    const int64_t tokens = 4, experts = 8;
    struct dp_router r = {
        .tokens = tokens, .sequence = tokens, .experts = 8, .top_k = 2, .score = DP_ROUTER_SIGMOID};
    DP_AUTO_FREE double *x = drawn(3, tokens * experts, 1), *w = drawn(4, tokens * 2, 1);
    double weight[8], soft_weight[8], balance, soft_balance, d[32], soft_d[32];
    int32_t index[8], soft_index[8];
    memcpy(soft_d, x, sizeof(soft_d));
    r.score = DP_ROUTER_SOFTMAX;
    ops->router_forward(device->stream, &r, x, soft_index, soft_weight);
    ops->router_balance(device->stream, &r, soft_index, x, &soft_balance);
    ops->router_input_grad(device->stream, &r, 0.5, soft_index, w, soft_d);
    r.score = DP_ROUTER_SIGMOID;
    const double depths[] = {60, 800, 1e5};
    for (int i = 0; i < 3; i++) {
        for (int64_t j = 0; j < tokens * experts; j++) {
            d[j] = x[j] - depths[i];
        }
        ops->router_forward(device->stream, &r, d, index, weight);
        assert_memory_equal(index, soft_index, sizeof(index));
        ops->router_balance(device->stream, &r, index, d, &balance);
        assert_near(balance, soft_balance, 1e-9);
        ops->router_input_grad(device->stream, &r, 0.5, index, w, d);
        for (int64_t j = 0; j < tokens * experts; j++) {
            assert_near(d[j], soft_d[j], 1e-9);
        }
        for (int j = 0; j < 8; j++) {
            assert_near(weight[j], soft_weight[j], 1e-9);
        }
    }
}

// As sigmoids these are all 1.
static void logits_far_up_are_still_told_apart(void **state)
{
    (void)state;
    const double x[] = {50, 70, 60, 40};
    double weight[2];
    int32_t index[2];
    const struct dp_router r = {
        .tokens = 1, .sequence = 1, .experts = 4, .top_k = 2, .score = DP_ROUTER_SIGMOID};
    ops->router_forward(device->stream, &r, x, index, weight);
    assert_int_equal(index[0], 1);
    assert_int_equal(index[1], 2);
}

static bool all_nan(const double *x, int count)
{
    for (int i = 0; i < count; i++) {
        if (!isnan(x[i])) {
            return false;
        }
    }
    return true;
}

static void a_logit_that_is_not_finite_shows_and_stays_in_bounds(void **state)
{
    (void)state;
    const double bad[] = {NAN, INFINITY, -NAN};
    const double bias[] = {0.1, 0, 0, -0.1};
    for (int kind = 0; kind < 24; kind++) {
        double x[] = {3, 2, 1, 0, 3, 2, 1, 0}, weight[4];
        const double w[] = {1, 2, 3, 4};
        x[kind & 3] = bad[kind / 8];
        int32_t index[] = {-1, -1, -1, -1};
        const struct dp_router r = {.tokens = 2,
                                    .sequence = 2,
                                    .experts = 4,
                                    .top_k = 2,
                                    .score = kind & 4 ? DP_ROUTER_SIGMOID : DP_ROUTER_SOFTMAX,
                                    .groups = kind & 1 ? 2 : 0,
                                    .top_groups = 1,
                                    .bias = kind & 2 ? bias : NULL};
        ops->router_forward(device->stream, &r, x, index, weight);
        for (int i = 0; i < 4; i += 2) {
            assert_in_range(index[i], 0, 2);
            assert_in_range(index[i + 1], index[i] + 1, 3);
        }
        // Chosen or not, it is seen in the token's weights and gradient, and only there.
        assert_true(all_nan(weight, 2));
        assert_near(weight[2] + weight[3], 1, 1e-15);
        ops->router_input_grad(device->stream, &r, 0, index, w, x);
        assert_true(all_nan(x, 4));
        assert_true(isfinite(x[4]) && isfinite(x[5]) && isfinite(x[6]) && isfinite(x[7]));
    }
    double x[] = {NAN, NAN, NAN}, weight[3];
    int32_t index[3];
    const struct dp_router r = {.tokens = 1, .sequence = 1, .experts = 3, .top_k = 3};
    ops->router_forward(device->stream, &r, x, index, weight);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(index[i], i);
    }
}

static void experts_at_minus_infinity_are_left_out_and_the_rest_stays_finite(void **state)
{
    (void)state;
    const double x[] = {-INFINITY, 1, -INFINITY, 1};
    double weight[2];
    int32_t index[2];
    const struct dp_router r = {.tokens = 1, .sequence = 1, .experts = 4, .top_k = 2};
    ops->router_forward(device->stream, &r, x, index, weight);
    assert_int_equal(index[0], 1);
    assert_int_equal(index[1], 3);
    assert_near(weight[0], 0.5, 1e-15);
}

static void no_tokens_are_no_work(void **state)
{
    (void)state;
    const struct dp_router r = {.tokens = 0, .sequence = 4, .experts = 4, .top_k = 2};
    double sum = NAN;
    ops->router_forward(device->stream, &r, NULL, NULL, NULL);
    ops->router_input_grad(device->stream, &r, 1, NULL, NULL, NULL);
    ops->router_balance(device->stream, &r, NULL, NULL, &sum);
    assert_near(sum, 0, 0);
}

static void slots_without_an_expert_have_no_row(void **state)
{
    (void)state;
    const int32_t index[] = {2, -1, 0, 2, -1};
    const int32_t counts_expected[] = {1, 0, 2}, rows_expected[] = {1, -1, 0, 2, -1};
    int32_t counts[3] = {9, 9, 9}, row_of[5];
    ops->sort_slots(device->stream, 5, 3, index, counts, row_of);
    assert_memory_equal(counts, counts_expected, sizeof(counts));
    assert_memory_equal(row_of, rows_expected, sizeof(row_of));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_router_chooses_as_its_definition_says),
        cmocka_unit_test(ties_go_to_the_lowest_index_of_experts_and_of_groups),
        cmocka_unit_test(experts_outside_the_best_groups_lose_to_negative_scores),
        cmocka_unit_test(more_than_32_experts_of_a_token_work),
        cmocka_unit_test(gradients_of_weights_and_of_the_balance_loss_match_differences),
        cmocka_unit_test(the_balance_loss_of_an_even_load_is_one_per_sequence),
        cmocka_unit_test(a_router_cannot_hide_from_the_balance_loss_in_small_scores),
        cmocka_unit_test(logits_far_up_are_still_told_apart),
        cmocka_unit_test(a_logit_that_is_not_finite_shows_and_stays_in_bounds),
        cmocka_unit_test(experts_at_minus_infinity_are_left_out_and_the_rest_stays_finite),
        cmocka_unit_test(no_tokens_are_no_work),
        cmocka_unit_test(slots_without_an_expert_have_no_row),
    };
    return cmocka_run_group_tests(tests, f64_device_open, f64_device_close);
}
