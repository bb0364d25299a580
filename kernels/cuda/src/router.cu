// Routing: a warp for each token, its experts over the lanes; slots in the experts' order.
#include <float.h>
#include <math.h>

#include "element.cuh"
#include "reduce.cuh"

#define LOWEST (-FLT_MAX)
#define SHARED_BYTES 49152 // what a block may ask for without opting in

struct router_args {
    struct dp_router r;
    float route_scale, each; // each: what a slot counts in the balance loss's gradient; 0 = nothing
    const float *logits, *dweight;
    const int32_t *index;
    float *weight, *dlogits;
    int32_t *chosen;
    int32_t *load;   // [sequences, experts]: slots of each expert
    double *balance; // [tokens]
};

static __device__ __forceinline__ unsigned lane_of(void)
{
    return threadIdx.x % DP_WARP;
}

static __device__ __forceinline__ float infinity(void)
{
    return bits_float(0x7f800000u);
}

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

static __device__ __forceinline__ bool is_sigmoid(const struct dp_router &r)
{
    return r.score == DP_ROUTER_SIGMOID;
}

// A token's logits are of use when none of them is NaN or +Inf.
static __device__ __forceinline__ bool is_sound(int32_t count, const float *x)
{
    bool sound = true;
    for (int32_t i = (int32_t)lane_of(); i < count; i += DP_WARP) {
        sound = sound && x[i] < infinity();
    }
    return __all_sync(DP_ALL_LANES, sound) != 0;
}

// Scores as shares of their sum: exp(x - c) and sigmoid(x) = e^min(x, 0) / (1 + e^-|x|), without
// a factor of e^c, so that the largest stays of the order of 1.
struct shares {
    bool sigmoid;
    float top, sum;

    __device__ float exponent(float x) const
    {
        return sigmoid && x > 0 ? 0 : x;
    }

    __device__ float part(float x) const
    {
        const float below = sigmoid ? 1 + expf(x > 0 ? -x : x) : 1;
        return expf(exponent(x) - top) / below;
    }

    __device__ float share(float x) const
    {
        return part(x) / sum;
    }
};

// Over x[at(i)] for i < count; all lanes of the warp.
template <typename A>
static __device__ __forceinline__ shares shares_of(const struct dp_router &r, int32_t count,
                                                   const float *x, A at)
{
    shares s = {is_sigmoid(r), LOWEST, 0};
    for (int32_t i = (int32_t)lane_of(); i < count; i += DP_WARP) {
        const float y = s.exponent(x[at(i)]);
        s.top = y > s.top ? y : s.top;
    }
    s.top = warp_max(s.top);
    float sum = 0;
    for (int32_t i = (int32_t)lane_of(); i < count; i += DP_WARP) {
        sum += s.part(x[at(i)]);
    }
    s.sum = warp_sum(sum);
    return s;
}

struct at_itself {
    __device__ int32_t operator()(int32_t i) const
    {
        return i;
    }
};

struct at_chosen {
    const int32_t *chosen;
    __device__ int32_t operator()(int32_t i) const
    {
        return chosen[i];
    }
};

// The best of what is left, for all lanes, ties to the lowest index; it is left no more, which is
// -Inf. What is left is above that.
static __device__ __forceinline__ int32_t take_best(int32_t count, float *key)
{
    float best = -infinity();
    int32_t at = INT32_MAX;
    for (int32_t i = (int32_t)lane_of(); i < count; i += DP_WARP) {
        if (key[i] > best) {
            best = key[i];
            at = i;
        }
    }
    for (int lanes = DP_WARP / 2; lanes > 0; lanes /= 2) {
        const float other = __shfl_xor_sync(DP_ALL_LANES, best, lanes);
        const int32_t other_at = __shfl_xor_sync(DP_ALL_LANES, at, lanes);
        const bool wins = other > best || (other == best && other_at < at);
        best = wins ? other : best;
        at = wins ? other_at : at;
    }
    if ((unsigned)at % DP_WARP == lane_of()) {
        key[at] = -infinity();
    }
    return at;
}

// Keys in the order of choice. Without a bias the logits will do, which sigmoids of them near 1
// would not tell apart.
static __device__ void choice_keys(const struct dp_router &r, const float *x, float *key)
{
    const float *bias = (const float *)r.bias;
    const bool by_share = bias != NULL && !is_sigmoid(r);
    shares all = {};
    if (by_share) {
        all = shares_of(r, r.experts, x, at_itself());
    }
    for (int32_t e = (int32_t)lane_of(); e < r.experts; e += DP_WARP) {
        float k = x[e];
        if (bias != NULL) {
            k = (by_share ? all.share(k) : sigmoid(k)) + bias[e];
        }
        key[e] = k >= LOWEST ? k : LOWEST; // NaN as well
    }
    __syncwarp();
}

static __device__ float group_score(const struct dp_router &r, const float *key)
{
    const int32_t size = r.experts / r.groups;
    float first = LOWEST, second = LOWEST;
    for (int32_t i = 0; i < size; i++) {
        const float lesser = key[i] > first ? first : key[i];
        first = key[i] > first ? key[i] : first;
        second = lesser > second ? lesser : second;
    }
    if (r.bias == NULL || size == 1) {
        return first;
    }
    return first + second >= LOWEST ? first + second : LOWEST;
}

// Leaves only the experts of the best groups to be chosen.
static __device__ void limit_groups(const struct dp_router &r, float *key, float *score)
{
    const int32_t size = r.experts / r.groups;
    for (int32_t g = (int32_t)lane_of(); g < r.groups; g += DP_WARP) {
        score[g] = group_score(r, key + g * size);
    }
    __syncwarp();
    for (int32_t i = 0; i < r.top_groups; i++) {
        take_best(r.groups, score);
    }
    __syncwarp();
    for (int32_t e = (int32_t)lane_of(); e < r.experts; e += DP_WARP) {
        key[e] = score[e / size] == -infinity() ? key[e] : -infinity();
    }
    __syncwarp();
}

// The scores of the chosen without the scale, of slot j for the lane that asks: shares of each
// other, or as they are.
struct chosen_scores {
    bool raw, sigmoid_score;
    shares s;

    __device__ float at(float x) const
    {
        return raw && sigmoid_score ? sigmoid(x) : s.share(x);
    }
};

static __device__ __forceinline__ chosen_scores scores_of(const struct dp_router &r, const float *x,
                                                          const int32_t *chosen)
{
    chosen_scores c = {r.raw_weights, is_sigmoid(r), {}};
    if (!c.raw) {
        c.s = shares_of(r, r.top_k, x, at_chosen{chosen});
    } else if (!c.sigmoid_score) {
        c.s = shares_of(r, r.experts, x, at_itself());
    }
    return c;
}

// What a warp needs of shared memory: keys, groups' scores, and the chosen as they came.
static __host__ __device__ __forceinline__ size_t forward_words(const struct dp_router &r)
{
    return (size_t)r.experts + (size_t)r.groups + (size_t)r.top_k;
}

static __global__ void router_choose(router_args a)
{
    DP_SHARED_DYNAMIC(float, shared);
    const struct dp_router r = a.r;
    const int64_t warps = blockDim.x / DP_WARP, warp = threadIdx.x / DP_WARP;
    float *key = shared + warp * (int64_t)forward_words(r), *score = key + r.experts;
    int32_t *found = (int32_t *)(score + r.groups);
    for (int64_t t = blockIdx.x * warps + warp; t < r.tokens; t += gridDim.x * warps) {
        const float *x = a.logits + t * r.experts;
        choice_keys(r, x, key);
        if (r.groups > 0 && r.top_groups < r.groups) {
            limit_groups(r, key, score);
        }
        for (int32_t k = 0; k < r.top_k; k++) {
            const int32_t best = take_best(r.experts, key);
            if (lane_of() == 0) {
                found[k] = best;
            }
        }
        __syncwarp();
        const chosen_scores scores = scores_of(r, x, found);
        const float factor = is_sound(r.experts, x) ? a.route_scale : bits_float(0x7fc00000u);
        for (int32_t k = (int32_t)lane_of(); k < r.top_k; k += DP_WARP) {
            int32_t slot = 0; // among the chosen in the experts' order
            for (int32_t j = 0; j < r.top_k; j++) {
                slot += found[j] < found[k] ? 1 : 0;
            }
            a.chosen[t * r.top_k + slot] = found[k];
            a.weight[t * r.top_k + slot] = scores.at(x[found[k]]) * factor;
        }
    }
}

// Slots of each expert, a block for each sequence.
static __global__ void router_load(router_args a)
{
    const int64_t slots = a.r.sequence * a.r.top_k;
    for (int64_t s = blockIdx.x; s < a.r.tokens / a.r.sequence; s += gridDim.x) {
        int32_t *load = a.load + s * a.r.experts;
        for (int32_t e = (int32_t)threadIdx.x; e < a.r.experts; e += blockDim.x) {
            load[e] = 0;
        }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < slots; i += blockDim.x) {
            atomicAdd(&load[a.index[s * slots + i]], 1);
        }
        __syncthreads();
    }
}

// d[e] = the balance loss's part; 0 where it does not count.
static __device__ void balance_grad(const router_args &a, const float *x, const int32_t *load,
                                    float *d)
{
    const struct dp_router &r = a.r;
    if (a.each == 0) {
        for (int32_t e = (int32_t)lane_of(); e < r.experts; e += DP_WARP) {
            d[e] = 0;
        }
        return;
    }
    const shares all = shares_of(r, r.experts, x, at_itself());
    float mean = 0;
    for (int32_t e = (int32_t)lane_of(); e < r.experts; e += DP_WARP) {
        mean += all.share(x[e]) * ((float)load[e] * a.each);
    }
    mean = warp_sum(mean);
    for (int32_t e = (int32_t)lane_of(); e < r.experts; e += DP_WARP) {
        d[e] = all.share(x[e]) * ((float)load[e] * a.each - mean);
    }
}

// d[e] += the weights' part.
static __device__ void weights_grad(const router_args &a, const float *x, const int32_t *chosen,
                                    const float *dweight, float *d)
{
    const struct dp_router &r = a.r;
    const chosen_scores scores = scores_of(r, x, chosen);
    float mean = 0;
    for (int32_t j = (int32_t)lane_of(); j < r.top_k; j += DP_WARP) {
        mean += scores.at(x[chosen[j]]) * dweight[j];
    }
    mean = warp_sum(mean);
    if (r.raw_weights && !is_sigmoid(r)) {
        for (int32_t e = (int32_t)lane_of(); e < r.experts; e += DP_WARP) {
            d[e] -= a.route_scale * scores.s.share(x[e]) * mean;
        }
    }
    mean = r.raw_weights ? 0 : mean;
    __syncwarp();
    for (int32_t j = (int32_t)lane_of(); j < r.top_k; j += DP_WARP) {
        d[chosen[j]] += a.route_scale * scores.at(x[chosen[j]]) * (dweight[j] - mean);
    }
    __syncwarp();
}

static __global__ void router_grad(router_args a)
{
    DP_SHARED_DYNAMIC(float, shared);
    const struct dp_router r = a.r;
    const int64_t warps = blockDim.x / DP_WARP, warp = threadIdx.x / DP_WARP;
    float *d = shared + warp * r.experts;
    for (int64_t t = blockIdx.x * warps + warp; t < r.tokens; t += gridDim.x * warps) {
        float *x = a.dlogits + t * r.experts;
        balance_grad(a, x, a.load + t / r.sequence * r.experts, d);
        weights_grad(a, x, a.index + t * r.top_k, a.dweight + t * r.top_k, d);
        const float factor = is_sound(r.experts, x) ? 1 : bits_float(0x7fc00000u);
        for (int32_t e = (int32_t)lane_of(); e < r.experts; e += DP_WARP) {
            // d log(score) / d logit, 1 - sigmoid(x) for the sigmoid.
            const float slope = is_sigmoid(r) ? sigmoid(-x[e]) : 1;
            x[e] = factor * slope * d[e];
        }
    }
}

// Each token's part of the balance loss.
static __global__ void router_balances(router_args a)
{
    const struct dp_router r = a.r;
    const int64_t warps = blockDim.x / DP_WARP, warp = threadIdx.x / DP_WARP;
    const double n = (double)r.sequence;
    for (int64_t t = blockIdx.x * warps + warp; t < r.tokens; t += gridDim.x * warps) {
        const float *x = a.logits + t * r.experts;
        const int32_t *load = a.load + t / r.sequence * r.experts;
        const shares all = shares_of(r, r.experts, x, at_itself());
        double sum = 0;
        for (int32_t e = (int32_t)lane_of(); e < r.experts; e += DP_WARP) {
            sum += (double)load[e] * (double)all.share(x[e]);
        }
        sum = warp_sum(sum);
        if (lane_of() == 0) {
            a.balance[t] = sum * r.experts / ((double)r.top_k * n * n);
        }
    }
}

struct sort_args {
    int64_t slots;
    int32_t experts;
    const int32_t *index;
    int32_t *counts, *row_of;
};

// A block for each expert; the first also marks the slots that are left out.
static __global__ void sort_count(sort_args a)
{
    for (int32_t e = (int32_t)blockIdx.x; e < a.experts; e += gridDim.x) {
        int32_t count = 0;
        for (int64_t s = threadIdx.x; s < a.slots; s += blockDim.x) {
            count += a.index[s] == e ? 1 : 0;
            if (e == 0 && a.index[s] < 0) {
                a.row_of[s] = -1;
            }
        }
        count = block_sum(count);
        if (threadIdx.x == 0) {
            a.counts[e] = count;
        }
    }
}

// A block for each expert goes through the slots in their order, as many as it has threads at once.
static __global__ void sort_place(sort_args a)
{
    DP_SHARED(int32_t, of_warp, DP_WARP);
    const unsigned warp = threadIdx.x / DP_WARP, warps = blockDim.x / DP_WARP;
    for (int32_t e = (int32_t)blockIdx.x; e < a.experts; e += gridDim.x) {
        int32_t row = 0;
        for (int32_t i = (int32_t)threadIdx.x; i < e; i += blockDim.x) {
            row += a.counts[i];
        }
        row = block_sum(row);
        for (int64_t first = 0; first < a.slots; first += blockDim.x) {
            const int64_t s = first + threadIdx.x;
            const bool mine = s < a.slots && a.index[s] == e;
            const unsigned lanes = __ballot_sync(DP_ALL_LANES, mine);
            if (lane_of() == 0) {
                of_warp[warp] = __popc(lanes);
            }
            __syncthreads();
            int32_t before = __popc(lanes & ((1u << lane_of()) - 1)), all = 0;
            for (unsigned w = 0; w < warps; w++) {
                before += w < warp ? of_warp[w] : 0;
                all += of_warp[w];
            }
            if (mine) {
                a.row_of[s] = row + before;
            }
            row += all;
            __syncthreads();
        }
    }
}

static router_args router_of(const struct dp_router *router)
{
    router_args a = {};
    a.r = *router;
    a.route_scale = (float)(router->route_scale != 0 ? router->route_scale : 1);
    return a;
}

static int64_t sequences_of(const struct dp_router *router)
{
    return router->tokens / router->sequence;
}

// Warps of a block that `words` floats of shared memory each leave room for; 0 = a failure.
static unsigned warps_for(struct dp_stream *stream, const struct dp_router *router, size_t words)
{
    const size_t fit = SHARED_BYTES / (words * sizeof(float));
    if (fit == 0) {
        dp_cuda_fail(stream, DP_UNSUPPORTED,
                     "routing to %d experts takes %zu bytes of a block's shared memory, and %d are "
                     "there; use fewer experts or the cpu device",
                     router->experts, words * sizeof(float), SHARED_BYTES);
        return 0;
    }
    return fit < 4 ? (unsigned)fit : 4;
}

static void router_forward(struct dp_stream *stream, const struct dp_router *router,
                           const void *logits, int32_t *index, void *weight)
{
    router_args a = router_of(router);
    const unsigned warps = warps_for(stream, router, forward_words(*router));
    if (router->tokens == 0 || warps == 0) {
        return;
    }
    a.logits = (const float *)logits;
    a.chosen = index;
    a.weight = (float *)weight;
    DP_LAUNCH(stream, router_choose, dp_grid(router->tokens, warps), warps * DP_WARP,
              warps * forward_words(*router) * sizeof(float), a);
}

static void launch_load(struct dp_stream *stream, const router_args &a)
{
    DP_LAUNCH(stream, router_load, dp_grid(sequences_of(&a.r), 1), 256, 0, a);
}

static void router_input_grad(struct dp_stream *stream, const struct dp_router *router,
                              double aux_scale, const int32_t *index, const void *dweight,
                              void *logits)
{
    router_args a = router_of(router);
    const unsigned warps = warps_for(stream, router, (size_t)router->experts);
    if (router->tokens == 0 || warps == 0) {
        return;
    }
    const double n = (double)router->sequence;
    a.each = (float)(aux_scale * router->experts / ((double)router->top_k * n * n));
    a.index = index;
    a.dweight = (const float *)dweight;
    a.dlogits = (float *)logits;
    if (a.each != 0) {
        const size_t counts = (size_t)sequences_of(router) * (size_t)router->experts;
        a.load = (int32_t *)dp_cuda_scratch(stream, counts * sizeof(int32_t));
        if (a.load == NULL) {
            return;
        }
        launch_load(stream, a);
    }
    DP_LAUNCH(stream, router_grad, dp_grid(router->tokens, warps), warps * DP_WARP,
              warps * (size_t)router->experts * sizeof(float), a);
}

static void router_balance(struct dp_stream *stream, const struct dp_router *router,
                           const int32_t *index, const void *logits, double *ret_sum)
{
    if (router->tokens == 0) {
        *ret_sum = 0;
        return;
    }
    router_args a = router_of(router);
    const size_t counts = (size_t)sequences_of(router) * (size_t)router->experts;
    const size_t sums = (size_t)router->tokens * sizeof(double);
    char *scratch =
        (char *)dp_cuda_scratch(stream, sums + DP_CUDA_SUM_BYTES + counts * sizeof(int32_t));
    if (scratch == NULL) {
        return;
    }
    a.balance = (double *)scratch;
    a.load = (int32_t *)(scratch + sums + DP_CUDA_SUM_BYTES);
    a.index = index;
    a.logits = (const float *)logits;
    launch_load(stream, a);
    DP_LAUNCH(stream, router_balances, dp_grid(router->tokens, 4), 4 * DP_WARP, 0, a);
    dp_cuda_sum_doubles(stream, router->tokens, a.balance, ret_sum);
}

static void sort_slots(struct dp_stream *stream, int64_t slots, int32_t experts,
                       const int32_t *index, int32_t *counts, int32_t *row_of)
{
    const sort_args a = {slots, experts, index, counts, row_of};
    DP_LAUNCH(stream, sort_count, dp_grid(experts, 1), dp_block(slots, 256), 0, a);
    if (slots > 0) {
        DP_LAUNCH(stream, sort_place, dp_grid(experts, 1), dp_block(slots, 256), 0, a);
    }
}

void dp_cuda_install_router(struct dp_device_ops *ops)
{
    ops->router_forward = router_forward;
    ops->router_input_grad = router_input_grad;
    ops->router_balance = router_balance;
    ops->sort_slots = sort_slots;
}
