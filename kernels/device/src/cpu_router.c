#include "cpu_real.h"

static void softmax(int64_t count, real *x)
{
    real max = x[0], sum = 0;
    for (int64_t i = 1; i < count; i++) {
        max = x[i] > max ? x[i] : max;
    }
    for (int64_t i = 0; i < count; i++) {
        x[i] = real_exp(x[i] - max);
    }
    for (int64_t i = 0; i < count; i++) {
        sum += x[i];
    }
    for (int64_t i = 0; i < count; i++) {
        x[i] /= sum;
    }
}

// The best expert that comes after `last` in the order of (probability falling, index rising).
// Probabilities that are NaN compare with nothing: any legal index serves, the loss is lost anyway.
static int32_t next_best(const struct dp_router *router, const real *p, int32_t last, int32_t slot)
{
    int32_t best = -1;
    for (int32_t e = 0; e < router->experts; e++) {
        bool after = last < 0 || p[e] < p[last] || (p[e] == p[last] && e > last);
        if (after && p[e] >= 0 && (best < 0 || p[e] > p[best])) {
            best = e;
        }
    }
    return best < 0 ? slot : best;
}

static void choose(const struct dp_router *router, const real *p, int32_t *index)
{
    int32_t last = -1;
    for (int32_t k = 0; k < router->top_k; k++) {
        last = next_best(router, p, last, k);
        int32_t at = k;
        while (at > 0 && index[at - 1] > last) {
            index[at] = index[at - 1];
            at--;
        }
        index[at] = last;
    }
}

static void router_forward(struct dp_stream *stream, const struct dp_router *router, void *logits,
                           int32_t *index, void *weight)
{
    (void)stream;
    const int32_t k = router->top_k;
    for (int64_t t = 0; t < router->tokens; t++) {
        real *p = (real *)logits + t * router->experts;
        int32_t *chosen = index + t * k;
        real *w = (real *)weight + t * k;
        softmax(router->experts, p);
        choose(router, p, chosen);
        real sum = 0;
        for (int32_t j = 0; j < k; j++) {
            sum += p[chosen[j]];
        }
        for (int32_t j = 0; j < k; j++) {
            w[j] = p[chosen[j]] / sum;
        }
    }
}

// d(loss)/d(probability) of one token into dp, which comes in holding the balance loss's part.
static void add_weight_grad(const struct dp_router *router, const real *p, const int32_t *chosen,
                            const real *dweight, real *dp)
{
    real sum = 0, mean = 0;
    for (int32_t j = 0; j < router->top_k; j++) {
        sum += p[chosen[j]];
        mean += p[chosen[j]] * dweight[j];
    }
    mean /= sum;
    for (int32_t j = 0; j < router->top_k; j++) {
        dp[chosen[j]] += (dweight[j] - mean) / sum;
    }
}

static void softmax_grad(int64_t count, const real *dp, real *p)
{
    real mean = 0;
    for (int64_t i = 0; i < count; i++) {
        mean += p[i] * dp[i];
    }
    for (int64_t i = 0; i < count; i++) {
        p[i] *= dp[i] - mean;
    }
}

// balance[e] = d(balance loss)/d(probability of e) for every token of one sequence.
static void balance_grad(const struct dp_router *router, double aux_scale, const int32_t *index,
                         real *balance)
{
    const double n = (double)router->sequence;
    const real each = (real)(aux_scale * router->experts / ((double)router->top_k * n * n));
    memset(balance, 0, (size_t)router->experts * sizeof(real));
    for (int64_t s = 0; s < router->sequence * router->top_k; s++) {
        balance[index[s]] += each;
    }
}

static void router_input_grad(struct dp_stream *stream, const struct dp_router *router,
                              double aux_scale, const int32_t *index, const void *dweight,
                              void *probabilities)
{
    const size_t row_bytes = (size_t)router->experts * sizeof(real);
    real *balance = dp_stream_scratch(stream, 2 * row_bytes);
    real *dp = balance + router->experts;
    for (int64_t t = 0; t < router->tokens; t++) {
        real *p = (real *)probabilities + t * router->experts;
        const int32_t *chosen = index + t * router->top_k;
        if (t % router->sequence == 0) {
            balance_grad(router, aux_scale, chosen, balance);
        }
        memcpy(dp, balance, row_bytes);
        add_weight_grad(router, p, chosen, (const real *)dweight + t * router->top_k, dp);
        softmax_grad(router->experts, dp, p);
    }
}

static void sort_slots(struct dp_stream *stream, int64_t slots, int32_t experts,
                       const int32_t *index, int32_t *counts, int32_t *row_of)
{
    int32_t *next = dp_stream_scratch(stream, (size_t)experts * sizeof(int32_t));
    memset(counts, 0, (size_t)experts * sizeof(int32_t));
    for (int64_t s = 0; s < slots; s++) {
        if (index[s] >= 0) {
            counts[index[s]]++;
        }
    }
    int32_t row = 0;
    for (int32_t e = 0; e < experts; e++) {
        next[e] = row;
        row += counts[e];
    }
    for (int64_t s = 0; s < slots; s++) {
        row_of[s] = index[s] >= 0 ? next[index[s]]++ : -1;
    }
}

void DP_CPU_INSTALLER(router)(struct dp_device_ops *ops)
{
    ops->router_forward = router_forward;
    ops->router_input_grad = router_input_grad;
    ops->sort_slots = sort_slots;
}
