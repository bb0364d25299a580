#include "scene.h"

#include <math.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "dp_test.h"

static double load(dp_element element, const void *from, int64_t i)
{
    if (element == DP_F64) {
        return ((const double *)from)[i];
    }
    if (element == DP_F32) {
        return (double)((const float *)from)[i];
    }
    float value;
    uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

// bfloat16 has 8 bits of significand: scaled to an integer of 8 bits and rounded to even.
static float round_bf16(double value)
{
    int exponent;
    double part = frexp(value, &exponent);
    return (float)ldexp(rint(ldexp(part, 8)), exponent - 8);
}

static void store(dp_element element, void *to, int64_t i, double value)
{
    if (element == DP_F64) {
        ((double *)to)[i] = value;
    } else if (element == DP_F32) {
        ((float *)to)[i] = (float)value;
    } else {
        float rounded = round_bf16(value);
        uint32_t bits;
        memcpy(&bits, &rounded, sizeof bits);
        ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
    }
}

static float decode(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent == 0 ? ldexp(mantissa, -9) : ldexp(1 + mantissa / 8.0, exponent - 7);
    return (float)(code & 0x80 ? -value : value);
}

static int32_t draw_expert(const struct scene *scene, struct dp_rand *rand)
{
    int32_t own = scene->shape.own, last = scene->experts - own;
    int32_t any = (int32_t)dp_rand_below(rand, (uint64_t)scene->experts);
    switch (scene->shape.kind) {
    case SCENE_ALL_TO_ONE:
        return scene->experts / 2;
    case SCENE_MASKED:
        return dp_rand_below(rand, 3) == 0 ? -1 : any;
    case SCENE_UNBALANCED:
        return dp_rand_below(rand, 5) == 0 ? any : (int32_t)dp_rand_below(rand, (uint64_t)own);
    case SCENE_EMPTY_RANK:
        return last > 0 && any >= last ? any - last : any;
    default:
        return any;
    }
}

static int64_t draw_tokens(const struct scene *scene, struct dp_rand *rand, int32_t rank)
{
    uint64_t most = (uint64_t)scene->shape.tokens_max;
    if (scene->shape.kind == SCENE_EMPTY_RANK && rank == 0) {
        return 0;
    }
    return dp_rand_below(rand, 6) == 0 ? 0 : (int64_t)dp_rand_below(rand, most + 1);
}

static void make_tokens(struct scene *scene, struct scene_tokens *of, uint64_t seed, int32_t rank)
{
    struct dp_rand rand;
    dp_rand_init(&rand, seed);
    const struct scene_shape *shape = &scene->shape;
    dp_element real = dp_element_real(shape->element);
    of->tokens = draw_tokens(scene, &rand, rank);
    int64_t slots = of->tokens * shape->top_k, values = of->tokens * shape->hidden;
    of->index = dp_new_array(int32_t, (size_t)slots);
    of->weights = dp_alloc((size_t)slots, scene->real);
    of->rows = dp_alloc_aligned((size_t)of->tokens, scene->row);
    of->gradients = dp_alloc_aligned((size_t)of->tokens, scene->row);
    for (int64_t i = 0; i < slots; i++) {
        of->index[i] = draw_expert(scene, &rand);
        store(real, of->weights, i, dp_rand_double(&rand));
    }
    for (int64_t i = 0; i < values; i++) {
        store(shape->element, of->rows, i, dp_rand_normal(&rand));
        store(shape->element, of->gradients, i, dp_rand_normal(&rand));
    }
}

static void make_codes(struct scene *scene, struct scene_tokens *of, struct dp_device *device)
{
    struct dp_fp8 fp8 = {
        .rows = of->tokens, .cols = scene->shape.hidden, .tile_rows = 1, .tile_cols = 128};
    for (int i = 0; i < 2; i++) {
        of->codes[i] = dp_alloc_aligned((size_t)of->tokens, (size_t)scene->shape.hidden);
        of->scales[i] = dp_alloc_aligned((size_t)(of->tokens * scene->scale_cols), sizeof(float));
        device->ops->quantize_fp8(device->stream, &fp8, DP_OPERAND_ELEMENT,
                                  i == 0 ? of->rows : of->gradients, of->codes[i], of->scales[i]);
    }
}

void scene_make(struct scene *scene, const struct scene_shape *shape)
{
    struct dp_error err;
    struct dp_device *device;
    *scene = (struct scene){.shape = *shape, .experts = shape->ranks * shape->own};
    scene->row = (size_t)shape->hidden * dp_element_bytes(shape->element);
    scene->real = dp_element_bytes(dp_element_real(shape->element));
    scene->scale_cols = (shape->hidden + 127) / 128;
    for (int32_t r = 0; r < shape->ranks; r++) {
        scene->nodes = shape->node_of[r] >= scene->nodes ? shape->node_of[r] + 1 : scene->nodes;
    }
    assert_ok(dp_device_open_cpu(shape->element, &device, &err), &err);
    for (int32_t q = 0; q < shape->routings; q++) {
        for (int32_t r = 0; r < shape->ranks; r++) {
            uint64_t seed = dp_rand_mix(shape->seed, (uint64_t)(q * SCENE_RANKS_MAX + r));
            make_tokens(scene, &scene->of[q][r], seed, r);
            if (shape->is_fp8) {
                make_codes(scene, &scene->of[q][r], device);
            }
        }
    }
    assert_ok(device->ops->stream_sync(device->stream, &err), &err);
    dp_device_close(device);
}

void scene_drop(struct scene *scene)
{
    for (int32_t q = 0; q < scene->shape.routings; q++) {
        for (int32_t r = 0; r < scene->shape.ranks; r++) {
            struct scene_tokens *of = &scene->of[q][r];
            free(of->index);
            free(of->rows);
            free(of->weights);
            free(of->gradients);
            for (int i = 0; i < 2; i++) {
                free(of->codes[i]);
                free(of->scales[i]);
            }
        }
    }
}

bool scene_goes_to(const struct scene *scene, int32_t routing, int32_t source, int64_t token,
                   int32_t rank)
{
    const struct scene_tokens *of = &scene->of[routing][source];
    for (int32_t k = 0; k < scene->shape.top_k; k++) {
        int32_t expert = of->index[token * scene->shape.top_k + k];
        if (expert >= 0 && expert / scene->shape.own == rank) {
            return true;
        }
    }
    return false;
}

void scene_apply(const struct scene *scene, bool is_backward, int32_t rank, const void *row,
                 const float *scales, void *out)
{
    double factor = (is_backward ? 0.75 : 1.25) + rank / 7.0;
    for (int64_t c = 0; c < scene->shape.hidden; c++) {
        double value = scales != NULL
                           ? (double)(decode(((const uint8_t *)row)[c]) * scales[c / 128])
                           : load(scene->shape.element, row, c);
        store(scene->shape.element, out, c, value * factor);
    }
}

void scene_weight_gradients(const struct scene *scene, const int32_t *expert, const void *row,
                            void *out)
{
    dp_element real = dp_element_real(scene->shape.element);
    for (int32_t k = 0; k < scene->shape.top_k; k++) {
        // A first byte of the row, so that tokens differ.
        double value = expert[k] >= 0 ? (expert[k] + 1) / 3.0 + ((const uint8_t *)row)[0] : 0;
        store(real, out, k, value);
    }
}

// Experts of one token in a rank's own numbering.
static void localize(const struct scene *scene, const int32_t *index, int32_t rank,
                     int32_t *ret_expert)
{
    for (int32_t k = 0; k < scene->shape.top_k; k++) {
        bool is_own = index[k] >= 0 && index[k] / scene->shape.own == rank;
        ret_expert[k] = is_own ? index[k] % scene->shape.own : -1;
    }
}

static const void *row_of(const struct scene *scene, const struct scene_tokens *of,
                          bool is_backward, int64_t token, const float **ret_scales)
{
    *ret_scales = NULL;
    if (scene->shape.is_fp8) {
        *ret_scales = of->scales[is_backward] + token * scene->scale_cols;
        return of->codes[is_backward] + token * scene->shape.hidden;
    }
    return (const char *)(is_backward ? of->gradients : of->rows) + (size_t)token * scene->row;
}

static const char *check_arrival(const struct scene *scene, const struct scene_tokens *of,
                                 int64_t token, int32_t rank, bool is_backward,
                                 const struct dp_arrivals *arrivals, int64_t at, int32_t *counts)
{
    int32_t top_k = scene->shape.top_k, expert[64] = {0};
    const float *scales;
    const void *row = row_of(scene, of, is_backward, token, &scales);
    size_t width = scales != NULL ? (size_t)scene->shape.hidden : scene->row;
    if (memcmp((const char *)arrivals->rows + (size_t)at * width, row, width) != 0) {
        return "a row is another";
    }
    if (scales != NULL && memcmp(arrivals->scales + at * scene->scale_cols, scales,
                                 (size_t)scene->scale_cols * sizeof(float)) != 0) {
        return "a scale is another";
    }
    localize(scene, of->index + token * top_k, rank, expert);
    if (memcmp(arrivals->expert + at * top_k, expert, (size_t)top_k * sizeof expert[0]) != 0) {
        return "an expert is another";
    }
    for (int32_t k = 0; k < top_k; k++) {
        counts[expert[k] >= 0 ? expert[k] : 0] += expert[k] >= 0;
        if (is_backward) {
            continue;
        }
        const char *weight = (const char *)of->weights + (size_t)(token * top_k + k) * scene->real;
        const char zero[8] = {0};
        if (memcmp((const char *)arrivals->weights + (size_t)(at * top_k + k) * scene->real,
                   expert[k] >= 0 ? weight : zero, scene->real) != 0) {
            return "a weight is another";
        }
    }
    return NULL;
}

const char *scene_check_arrivals(const struct scene *scene, int32_t routing, int32_t rank,
                                 dp_move move, const struct dp_arrivals *arrivals)
{
    DP_AUTO_FREE int32_t *counts = dp_new_array(int32_t, (size_t)scene->shape.own);
    int64_t at = 0;
    for (int32_t s = 0; s < scene->shape.ranks; s++) {
        const struct scene_tokens *of = &scene->of[routing][s];
        for (int64_t t = 0; t < of->tokens; t++) {
            if (!scene_goes_to(scene, routing, s, t, rank)) {
                continue;
            }
            if (at == arrivals->tokens) {
                return "a token has not arrived";
            }
            const char *why = check_arrival(scene, of, t, rank, move == DP_MOVE_COMBINE_INPUT,
                                            arrivals, at++, counts);
            if (why != NULL) {
                return why;
            }
        }
    }
    if (at != arrivals->tokens) {
        return "too many tokens have arrived";
    }
    return memcmp(counts, arrivals->counts, (size_t)scene->shape.own * sizeof counts[0]) == 0
               ? NULL
               : "rows of an expert are miscounted";
}

struct sums {
    dp_element element;
    int64_t cols;
    void *term, *node, *total; // [cols]
    double *sum;               // float sums as what they are in double
};

static void add(struct sums *sums, const void *term)
{
    for (int64_t c = 0; c < sums->cols; c++) {
        double value = load(sums->element, term, c);
        sums->sum[c] = sums->element == DP_F64 ? sums->sum[c] + value
                                               : (double)((float)sums->sum[c] + (float)value);
    }
}

static void round_off(struct sums *sums, void *to)
{
    for (int64_t c = 0; c < sums->cols; c++) {
        store(sums->element, to, c, sums->sum[c]);
        sums->sum[c] = 0;
    }
}

static void make_term(const struct scene *scene, int32_t routing, int32_t source, int64_t token,
                      int32_t rank, dp_move move, bool is_weights, void *term)
{
    const struct scene_tokens *of = &scene->of[routing][source];
    int32_t expert[64];
    const float *scales;
    bool is_backward = move == DP_MOVE_DISPATCH_INPUT;
    const void *row = row_of(scene, of, is_backward, token, &scales);
    localize(scene, of->index + token * scene->shape.top_k, rank, expert);
    if (is_weights) {
        scene_weight_gradients(scene, expert, row, term);
    } else {
        scene_apply(scene, is_backward, rank, row, scales, term);
    }
}

// Ranks in ascending order, rounded; then nodes in ascending order, rounded.
static void sum_token(const struct scene *scene, int32_t routing, int32_t source, int64_t token,
                      dp_move move, bool is_weights, struct sums *sums)
{
    DP_AUTO_FREE double *total = dp_new_array(double, (size_t)sums->cols);
    for (int32_t n = 0; n < scene->nodes; n++) {
        bool is_any = false;
        for (int32_t r = 0; r < scene->shape.ranks; r++) {
            if (scene->shape.node_of[r] == n && scene_goes_to(scene, routing, source, token, r)) {
                make_term(scene, routing, source, token, r, move, is_weights, sums->term);
                add(sums, sums->term);
                is_any = true;
            }
        }
        round_off(sums, sums->node);
        for (int64_t c = 0; c < sums->cols && is_any; c++) {
            double value = load(sums->element, sums->node, c);
            total[c] = sums->element == DP_F64 ? total[c] + value
                                               : (double)((float)total[c] + (float)value);
        }
    }
    memcpy(sums->sum, total, (size_t)sums->cols * sizeof total[0]);
    round_off(sums, sums->total);
}

static bool has_sums(const struct scene *scene, int32_t routing, int32_t rank, dp_move move,
                     bool is_weights, const void *got)
{
    dp_element element = scene->shape.element;
    struct sums sums = {.element = is_weights ? dp_element_real(element) : element,
                        .cols = is_weights ? scene->shape.top_k : scene->shape.hidden};
    size_t width = (size_t)sums.cols * dp_element_bytes(sums.element);
    DP_AUTO_FREE char *rows = dp_alloc(3, width);
    sums.term = rows;
    sums.node = rows + width;
    sums.total = rows + 2 * width;
    sums.sum = dp_new_array(double, (size_t)sums.cols);
    bool is_same = true;
    for (int64_t t = 0; t < scene->of[routing][rank].tokens && is_same; t++) {
        sum_token(scene, routing, rank, t, move, is_weights, &sums);
        is_same = memcmp((const char *)got + (size_t)t * width, sums.total, width) == 0;
    }
    free(sums.sum);
    return is_same;
}

const char *scene_check_sums(const struct scene *scene, int32_t routing, int32_t rank, dp_move move,
                             const void *rows, const void *weights)
{
    if (!has_sums(scene, routing, rank, move, false, rows)) {
        return "a sum of rows is another";
    }
    if (move == DP_MOVE_DISPATCH_INPUT && !has_sums(scene, routing, rank, move, true, weights)) {
        return "a sum of weights is another";
    }
    return NULL;
}

// What goes into a sum: as the rank gave it, or as it would have been without codes.
static double term_of(const struct scene *scene, const struct scene_tokens *of, int64_t token,
                      int32_t rank, dp_move move, const void *term, int64_t c)
{
    if (!scene->shape.is_fp8) {
        return load(scene->shape.element, term, c);
    }
    bool is_backward = move == DP_MOVE_DISPATCH_INPUT;
    double factor = (is_backward ? 0.75 : 1.25) + rank / 7.0;
    return factor * load(scene->shape.element, is_backward ? of->gradients : of->rows,
                         token * scene->shape.hidden + c);
}

double scene_distance(const struct scene *scene, int32_t routing, int32_t rank, dp_move move,
                      bool is_weights, const void *got)
{
    dp_element element = scene->shape.element;
    dp_element kind = is_weights ? dp_element_real(element) : element;
    int64_t cols = is_weights ? scene->shape.top_k : scene->shape.hidden;
    const struct scene_tokens *of = &scene->of[routing][rank];
    DP_AUTO_FREE void *term = dp_alloc((size_t)cols, dp_element_bytes(kind));
    double product = 0, squares = 0;
    for (int64_t t = 0; t < of->tokens; t++) {
        DP_AUTO_FREE double *total = dp_new_array(double, (size_t)cols);
        for (int32_t r = 0; r < scene->shape.ranks; r++) {
            if (!scene_goes_to(scene, routing, rank, t, r)) {
                continue;
            }
            make_term(scene, routing, rank, t, r, move, is_weights, term);
            for (int64_t c = 0; c < cols; c++) {
                total[c] +=
                    is_weights ? load(kind, term, c) : term_of(scene, of, t, r, move, term, c);
            }
        }
        for (int64_t c = 0; c < cols; c++) {
            double value = load(kind, got, t * cols + c);
            product += value * total[c];
            squares += value * value + total[c] * total[c];
        }
    }
    return squares > 0 ? 1 - 2 * product / squares : 0;
}

static int32_t forwarder(const struct scene *scene, int32_t source, int32_t node)
{
    const int32_t *node_of = scene->shape.node_of;
    int32_t local = 0, size = 0;
    for (int32_t r = 0; r < scene->shape.ranks; r++) {
        local += r < source && node_of[r] == node_of[source];
        size += node_of[r] == node;
    }
    int32_t found = -1;
    for (int32_t r = 0, place = 0; r < scene->shape.ranks; r++) {
        if (node_of[r] == node && place++ == local % size) {
            found = r;
        }
    }
    return found;
}

void scene_add_bytes(const struct scene *scene, int32_t routing, int32_t rank, uint64_t *ret_bytes)
{
    const struct scene_shape *shape = &scene->shape;
    uint64_t row = (uint64_t)scene->row, weights = (uint64_t)shape->top_k * scene->real;
    uint64_t coded = shape->is_fp8 ? (uint64_t)(shape->hidden + 4 * scene->scale_cols) : row;
    uint64_t forth = 2 * coded + (uint64_t)shape->top_k * 4 + weights, back = 2 * row + weights;
    for (int32_t r = 0; r < shape->ranks; r++) {
        ret_bytes[r] += r == rank ? 0 : (uint64_t)(shape->ranks + scene->nodes + 3) * 4;
    }
    for (int32_t s = 0; s < shape->ranks; s++) {
        for (int64_t t = 0; t < scene->of[routing][s].tokens; t++) {
            for (int32_t n = 0; n < scene->nodes; n++) {
                int32_t f = forwarder(scene, s, n);
                bool is_any = false;
                for (int32_t r = 0; r < shape->ranks; r++) {
                    bool goes = shape->node_of[r] == n && scene_goes_to(scene, routing, s, t, r);
                    is_any = is_any || goes;
                    if (goes && r != f) {
                        ret_bytes[r] += f == rank ? forth : 0;
                        ret_bytes[f] += r == rank ? back : 0;
                    }
                }
                if (is_any && f != s) {
                    ret_bytes[f] += s == rank ? forth : 0;
                    ret_bytes[s] += f == rank ? back : 0;
                }
            }
        }
    }
}
