#include <float.h>

#include "cpu_real.h"

#ifdef DP_CPU_DOUBLE
#define LOWEST (-DBL_MAX)
#else
#define LOWEST (-FLT_MAX)
#endif

// Logits that are worth another thread.
#define GRAIN 4096

struct routing {
    struct dp_router r;
    real route_scale;
    double aux_scale;
    const real *logits;
    real *dlogits;
    const real *dweight;
    real *weight;
    int32_t *chosen;
    const int32_t *index;
    double *balance; // [sequences]
};

static struct routing routing_of(const struct dp_router *router)
{
    return (struct routing){
        .r = *router, .route_scale = (real)(router->route_scale != 0 ? router->route_scale : 1)};
}

static real sigmoid(real x)
{
    return 1 / (1 + real_exp(-x));
}

// A token's logits are of use when none of them is NaN or +Inf.
static bool sound(int64_t count, const real *x)
{
    real worst = 0;
    for (int64_t i = 0; i < count; i++) {
        worst += x[i] < (real)INFINITY ? 0 : 1;
    }
    return worst == 0;
}

// Each score as a share of their sum. exp(x - c), and sigmoid(x) = e^min(x, 0) / (1 + e^-|x|)
// without a factor of e^c: the largest stays of the order of 1 whatever the scores are.
static void shares(dp_router_score score, int64_t count, const real *x, real *share)
{
    const bool is_sigmoid = score == DP_ROUTER_SIGMOID;
    real top = LOWEST, sum = 0;
    for (int64_t i = 0; i < count; i++) {
        const real y = is_sigmoid && x[i] > 0 ? 0 : x[i];
        top = y > top ? y : top;
    }
    for (int64_t i = 0; i < count; i++) {
        const real y = is_sigmoid && x[i] > 0 ? 0 : x[i];
        const real below = is_sigmoid ? 1 + real_exp(x[i] > 0 ? -x[i] : x[i]) : 1;
        share[i] = real_exp(y - top) / below;
    }
    for (int64_t i = 0; i < count; i++) {
        sum += share[i];
    }
    for (int64_t i = 0; i < count; i++) {
        share[i] /= sum;
    }
}

// What is left to be chosen is above -INFINITY.
static int32_t take_best(int32_t count, real *key)
{
    real best = -(real)INFINITY;
    for (int32_t i = 0; i < count; i++) {
        best = key[i] > best ? key[i] : best;
    }
    int32_t at = 0;
    while (key[at] != best) {
        at++;
    }
    key[at] = -(real)INFINITY;
    return at;
}

// Keys in the order of choice. Without a bias the logits will do, which sigmoids of them near 1
// would not tell apart.
static void choice_keys(const struct dp_router *r, const real *x, real *key)
{
    const real *bias = r->bias;
    if (bias == NULL) {
        memcpy(key, x, (size_t)r->experts * sizeof(real));
    } else if (r->score == DP_ROUTER_SIGMOID) {
        for (int32_t e = 0; e < r->experts; e++) {
            key[e] = sigmoid(x[e]) + bias[e];
        }
    } else {
        shares(r->score, r->experts, x, key);
        for (int32_t e = 0; e < r->experts; e++) {
            key[e] += bias[e];
        }
    }
    for (int32_t e = 0; e < r->experts; e++) {
        key[e] = key[e] >= LOWEST ? key[e] : LOWEST; // NaN as well
    }
}

static real group_score(const struct dp_router *r, const real *key)
{
    const int32_t size = r->experts / r->groups;
    real first = LOWEST, second = LOWEST;
    for (int32_t i = 0; i < size; i++) {
        const real lesser = key[i] > first ? first : key[i];
        first = key[i] > first ? key[i] : first;
        second = lesser > second ? lesser : second;
    }
    if (r->bias == NULL || size == 1) {
        return first;
    }
    return first + second >= LOWEST ? first + second : LOWEST;
}

// Leaves only the experts of the best groups to be chosen. score: [groups].
static void limit_groups(const struct dp_router *r, real *key, real *score)
{
    const int32_t size = r->experts / r->groups;
    for (int32_t g = 0; g < r->groups; g++) {
        score[g] = group_score(r, key + g * size);
    }
    for (int32_t i = 0; i < r->top_groups; i++) {
        take_best(r->groups, score);
    }
    for (int32_t e = 0; e < r->experts; e++) {
        key[e] = score[e / size] == -(real)INFINITY ? key[e] : -(real)INFINITY;
    }
}

static void choose(const struct dp_router *r, const real *x, real *scratch, int32_t *chosen)
{
    real *key = scratch, *score = scratch + r->experts;
    choice_keys(r, x, key);
    if (r->groups > 0 && r->top_groups < r->groups) {
        limit_groups(r, key, score);
    }
    for (int32_t k = 0; k < r->top_k; k++) {
        const int32_t best = take_best(r->experts, key);
        int32_t at = k;
        while (at > 0 && chosen[at - 1] > best) {
            chosen[at] = chosen[at - 1];
            at--;
        }
        chosen[at] = best;
    }
}

// Scores of the chosen without the scale: shares of each other, or as they are.
static void chosen_scores(const struct dp_router *r, const real *x, const int32_t *chosen,
                          real *scratch, real *score)
{
    real *picked = scratch;
    if (r->raw_weights && r->score == DP_ROUTER_SOFTMAX) {
        shares(r->score, r->experts, x, scratch);
        for (int32_t j = 0; j < r->top_k; j++) {
            score[j] = scratch[chosen[j]];
        }
        return;
    }
    for (int32_t j = 0; j < r->top_k; j++) {
        picked[j] = r->raw_weights ? sigmoid(x[chosen[j]]) : x[chosen[j]];
    }
    if (r->raw_weights) {
        memcpy(score, picked, (size_t)r->top_k * sizeof(real));
    } else {
        shares(r->score, r->top_k, picked, score);
    }
}

static void forward_tokens(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    const struct routing *routing = context;
    const struct dp_router *r = &routing->r;
    real *scratch = dp_stream_scratch(stream, (size_t)(r->experts + r->groups) * sizeof(real));
    for (int64_t t = begin; t < end; t++) {
        const real *x = routing->logits + t * r->experts;
        real *w = routing->weight + t * r->top_k;
        int32_t *chosen = routing->chosen + t * r->top_k;
        choose(r, x, scratch, chosen);
        chosen_scores(r, x, chosen, scratch, w);
        const real factor = sound(r->experts, x) ? routing->route_scale : (real)NAN;
        for (int32_t j = 0; j < r->top_k; j++) {
            w[j] *= factor;
        }
    }
}

static void router_forward(struct dp_stream *stream, const struct dp_router *router,
                           const void *logits, int32_t *index, void *weight)
{
    struct routing routing = routing_of(router);
    routing.logits = logits;
    routing.weight = weight;
    routing.chosen = index;
    dp_cpu_parallel(stream, router->tokens, 1 + GRAIN / (1 + router->experts), forward_tokens,
                    &routing);
}

// Tokens that chose each expert, over one sequence.
static void count_load(const struct dp_router *r, const int32_t *index, real *load)
{
    memset(load, 0, (size_t)r->experts * sizeof(real));
    for (int64_t s = 0; s < r->sequence * r->top_k; s++) {
        load[index[s]] += 1;
    }
}

// d[e] += share[e] * (v[e] - mean of v by shares): back through shares to the logarithms of scores.
static void add_shares_grad(int64_t count, const real *share, const real *v, real *d)
{
    real mean = 0;
    for (int64_t i = 0; i < count; i++) {
        mean += share[i] * v[i];
    }
    for (int64_t i = 0; i < count; i++) {
        d[i] += share[i] * (v[i] - mean);
    }
}

// d += the weights' part; d and share are [experts].
static void add_weights_grad(const struct routing *routing, const real *x, const int32_t *chosen,
                             const real *dweight, real *share, real *d)
{
    const struct dp_router *r = &routing->r;
    real *score = share + r->experts;
    chosen_scores(r, x, chosen, share, score);
    real mean = 0;
    for (int32_t j = 0; j < r->top_k; j++) {
        mean += score[j] * dweight[j];
    }
    if (r->raw_weights && r->score == DP_ROUTER_SIGMOID) {
        mean = 0;
    }
    if (r->raw_weights && r->score == DP_ROUTER_SOFTMAX) {
        for (int32_t e = 0; e < r->experts; e++) {
            d[e] -= routing->route_scale * share[e] * mean;
        }
        mean = 0;
    }
    for (int32_t j = 0; j < r->top_k; j++) {
        d[chosen[j]] += routing->route_scale * score[j] * (dweight[j] - mean);
    }
}

// The logits of one token become their gradient. load: how a token's share of each expert counts
// in the balance loss; NULL = not at all. scratch: [3 experts].
static void token_grad(const struct routing *routing, const int32_t *chosen, const real *dweight,
                       const real *load, real *scratch, real *x)
{
    const struct dp_router *r = &routing->r;
    real *d = scratch, *share = scratch + r->experts;
    memset(d, 0, (size_t)r->experts * sizeof(real));
    if (load != NULL) {
        shares(r->score, r->experts, x, share);
        add_shares_grad(r->experts, share, load, d);
    }
    add_weights_grad(routing, x, chosen, dweight, share, d);
    const real factor = sound(r->experts, x) ? 1 : (real)NAN;
    for (int32_t e = 0; e < r->experts; e++) {
        // d log(score) / d logit, 1 - sigmoid(x) for the sigmoid.
        const real slope = r->score == DP_ROUTER_SIGMOID ? sigmoid(-x[e]) : 1;
        x[e] = factor * slope * d[e];
    }
}

static void grad_sequences(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    const struct routing *routing = context;
    const struct dp_router *r = &routing->r;
    const int64_t n = r->sequence;
    real *scratch = dp_stream_scratch(stream, 4 * (size_t)r->experts * sizeof(real));
    real *load = scratch + 3 * (int64_t)r->experts;
    const real each =
        (real)(routing->aux_scale * r->experts / ((double)r->top_k * (double)n * (double)n));
    for (int64_t s = begin; s < end; s++) {
        if (each != 0) {
            count_load(r, routing->index + s * n * r->top_k, load);
            for (int32_t e = 0; e < r->experts; e++) {
                load[e] *= each;
            }
        }
        for (int64_t t = s * n; t < (s + 1) * n; t++) {
            token_grad(routing, routing->index + t * r->top_k, routing->dweight + t * r->top_k,
                       each != 0 ? load : NULL, scratch, routing->dlogits + t * r->experts);
        }
    }
}

static int64_t sequences(const struct dp_router *router)
{
    return router->tokens == 0 ? 0 : router->tokens / router->sequence;
}

static void router_input_grad(struct dp_stream *stream, const struct dp_router *router,
                              double aux_scale, const int32_t *index, const void *dweight,
                              void *logits)
{
    struct routing routing = routing_of(router);
    routing.aux_scale = aux_scale;
    routing.index = index;
    routing.dweight = dweight;
    routing.dlogits = logits;
    dp_cpu_parallel(stream, sequences(router), 1, grad_sequences, &routing);
}

static void balance_sequences(struct dp_stream *stream, int64_t begin, int64_t end, void *context)
{
    const struct routing *routing = context;
    const struct dp_router *r = &routing->r;
    const int64_t n = r->sequence;
    real *load = dp_stream_scratch(stream, 2 * (size_t)r->experts * sizeof(real));
    real *share = load + r->experts;
    for (int64_t s = begin; s < end; s++) {
        count_load(r, routing->index + s * n * r->top_k, load);
        double sum = 0;
        for (int64_t t = s * n; t < (s + 1) * n; t++) {
            shares(r->score, r->experts, routing->logits + t * r->experts, share);
            for (int32_t e = 0; e < r->experts; e++) {
                sum += (double)load[e] * (double)share[e];
            }
        }
        routing->balance[s] = sum * r->experts / ((double)r->top_k * (double)n * (double)n);
    }
}

static void router_balance(struct dp_stream *stream, const struct dp_router *router,
                           const int32_t *index, const void *logits, double *ret_sum)
{
    struct routing routing = routing_of(router);
    const int64_t count = sequences(router);
    routing.index = index;
    routing.logits = logits;
    routing.balance = dp_stream_scratch(stream, (size_t)count * sizeof(double));
    dp_cpu_parallel(stream, count, 1, balance_sequences, &routing);
    double sum = 0;
    for (int64_t s = 0; s < count; s++) {
        sum += routing.balance[s];
    }
    *ret_sum = sum;
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
    ops->router_balance = router_balance;
    ops->sort_slots = sort_slots;
}
