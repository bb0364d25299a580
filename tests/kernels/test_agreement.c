// The operations of a model's layers in bf16 against double on the same numbers, and with several
// threads against one: those must be the same bits.
#include "gradient.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/device.h"

enum {
    SEQUENCE = 70,
    TOKENS = 8 * SEQUENCE, // enough for several threads to share the smallest operation
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 24,
    QKV = (HEADS + 2 * KV_HEADS) * DIM,
    COLS = HEADS * DIM,
    EXPERTS = 12,
    TOP_K = 3,
    VOCABULARY = 301,
    OUTPUTS = 24,
};

struct output {
    const char *name;
    void *at;
    int64_t count;
    dp_operand kind;
};

// One device's results. Inputs are drawn again for every operation, so that nothing adds up.
struct results {
    struct dp_device *device;
    struct output outputs[OUTPUTS];
    int count;
    uint64_t seed;
    int32_t index[TOKENS * TOP_K];
    double loss, balance;
};

static size_t bytes_of(const struct results *r, dp_operand kind)
{
    return dp_operand_bytes(r->device, kind);
}

// Draws that every element type holds exactly: floats without their lower half.
static void *input(struct results *r, dp_operand kind, int64_t count, double scale)
{
    DP_AUTO_FREE double *values = dp_new_array(double, (size_t)count);
    struct dp_rand rand;
    dp_rand_init(&rand, r->seed++);
    for (int64_t i = 0; i < count; i++) {
        float value = (float)(scale * dp_rand_normal(&rand));
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        bits &= 0xffff0000u;
        memcpy(&value, &bits, sizeof(bits));
        values[i] = (double)value;
    }
    void *memory = dp_alloc((size_t)count, bytes_of(r, kind));
    r->device->ops->from_double(r->device->stream, count, values, kind, memory);
    return memory;
}

static void *keep(struct results *r, const char *name, dp_operand kind, int64_t count, void *at)
{
    assert_true(r->count < OUTPUTS);
    r->outputs[r->count++] = (struct output){name, at, count, kind};
    return at;
}

// As NaN, where it is not given.
static void *output(struct results *r, const char *name, dp_operand kind, int64_t count)
{
    void *memory = dp_alloc((size_t)count, bytes_of(r, kind));
    memset(memory, 0xff, (size_t)count * bytes_of(r, kind));
    return keep(r, name, kind, count, memory);
}

#define ELEMENT DP_OPERAND_ELEMENT
#define REAL DP_OPERAND_REAL

static void run_norm(struct results *r)
{
    const struct dp_device_ops *ops = r->device->ops;
    struct dp_stream *stream = r->device->stream;
    DP_AUTO_FREE void *x = input(r, ELEMENT, TOKENS * COLS, 1);
    DP_AUTO_FREE void *gain = input(r, REAL, COLS, 1), *dy = input(r, ELEMENT, TOKENS * COLS, 1);
    const struct dp_rmsnorm norm = {.rows = TOKENS,
                                    .cols = COLS,
                                    .eps = 1e-5,
                                    .x = x,
                                    .gain = gain,
                                    .rstd = output(r, "rstd", REAL, TOKENS)};
    ops->rmsnorm_forward(stream, &norm, output(r, "norm", ELEMENT, TOKENS * COLS));
    void *dx = input(r, ELEMENT, TOKENS * COLS, 1), *dgain = input(r, REAL, COLS, 1);
    ops->rmsnorm_input_grad(stream, &norm, dy, keep(r, "norm dx", ELEMENT, TOKENS * COLS, dx));
    ops->rmsnorm_weight_grad(stream, &norm, dy, keep(r, "dgain", REAL, COLS, dgain));
    DP_AUTO_FREE void *table = input(r, REAL, SEQUENCE * DIM, 1);
    const struct dp_rope rope = {.rows = TOKENS,
                                 .sequence = SEQUENCE,
                                 .heads = HEADS,
                                 .width = DIM,
                                 .stride = COLS,
                                 .table = table};
    void *turned = input(r, ELEMENT, TOKENS * COLS, 1);
    ops->rope(stream, &rope, keep(r, "rope", ELEMENT, TOKENS * COLS, turned));
}

static void *part(const struct results *r, void *row, int64_t at)
{
    return (char *)row + (size_t)at * bytes_of(r, ELEMENT);
}

static void run_attention(struct results *r)
{
    const struct dp_device_ops *ops = r->device->ops;
    DP_AUTO_FREE void *qkv = input(r, ELEMENT, TOKENS * QKV, 1), *sink = input(r, REAL, HEADS, 1);
    DP_AUTO_FREE void *dout = input(r, ELEMENT, TOKENS * COLS, 1);
    const int64_t k = HEADS * DIM, v = (HEADS + KV_HEADS) * DIM;
    const struct dp_attention a = {.samples = TOKENS / SEQUENCE,
                                   .sequence = SEQUENCE,
                                   .heads = HEADS,
                                   .kv_heads = KV_HEADS,
                                   .qk_dim = DIM,
                                   .v_dim = DIM,
                                   .window = 50,
                                   .q = qkv,
                                   .k = part(r, qkv, k),
                                   .v = part(r, qkv, v),
                                   .q_stride = QKV,
                                   .k_stride = QKV,
                                   .v_stride = QKV,
                                   .sink = sink,
                                   .output = output(r, "attention", ELEMENT, TOKENS * COLS),
                                   .lse = output(r, "lse", REAL, TOKENS * HEADS)};
    ops->attention_forward(r->device->stream, &a);
    void *d = output(r, "dqkv", ELEMENT, TOKENS * QKV), *dsink = input(r, REAL, HEADS, 1);
    ops->attention_input_grad(r->device->stream, &a, dout, d, part(r, d, k), part(r, d, v),
                              keep(r, "dsink", REAL, HEADS, dsink));
}

static void run_swiglu(struct results *r)
{
    const struct dp_device_ops *ops = r->device->ops;
    DP_AUTO_FREE void *x = input(r, ELEMENT, 2 * TOKENS * COLS, 2), *w = input(r, REAL, TOKENS, 1);
    DP_AUTO_FREE void *dy = input(r, ELEMENT, TOKENS * COLS, 1);
    const struct dp_swiglu swiglu = {TOKENS, COLS, x, w};
    ops->swiglu_forward(r->device->stream, &swiglu, output(r, "swiglu", ELEMENT, TOKENS * COLS));
    void *again = output(r, "swiglu again", ELEMENT, TOKENS * COLS);
    void *dx = output(r, "swiglu dx", ELEMENT, 2 * TOKENS * COLS);
    ops->swiglu_input_grad(r->device->stream, &swiglu, dy, dx,
                           output(r, "swiglu dweight", REAL, TOKENS), again);
}

static void run_ends(struct results *r)
{
    const struct dp_device_ops *ops = r->device->ops;
    const struct dp_router router = {.tokens = TOKENS,
                                     .sequence = SEQUENCE,
                                     .experts = EXPERTS,
                                     .top_k = TOP_K,
                                     .score = DP_ROUTER_SIGMOID,
                                     .groups = 4,
                                     .top_groups = 2};
    void *x = input(r, REAL, TOKENS * EXPERTS, 1);
    DP_AUTO_FREE void *dweight = input(r, REAL, TOKENS * TOP_K, 1);
    ops->router_forward(r->device->stream, &router, x, r->index,
                        output(r, "weights", REAL, TOKENS * TOP_K));
    ops->router_balance(r->device->stream, &router, r->index, x, &r->balance);
    ops->router_input_grad(r->device->stream, &router, 0.5, r->index, dweight,
                           keep(r, "router dx", REAL, TOKENS * EXPERTS, x));
    int32_t targets[TOKENS];
    for (int32_t t = 0; t < TOKENS; t++) {
        targets[t] = t * 7 % VOCABULARY;
    }
    const struct dp_cross_entropy loss = {TOKENS, VOCABULARY, targets,
                                          output(r, "loss lse", REAL, TOKENS)};
    void *logits = input(r, REAL, TOKENS * VOCABULARY, 2);
    ops->cross_entropy_forward(r->device->stream, &loss, logits, &r->loss);
    ops->cross_entropy_input_grad(r->device->stream, &loss, 0.1,
                                  keep(r, "dlogits", REAL, TOKENS * VOCABULARY, logits));
}

static struct results run_all(dp_element element, int32_t threads)
{
    struct results r = {.seed = 1};
    assert_int_equal(dp_device_open_cpu(element, &r.device, NULL), DP_OK);
    assert_int_equal(dp_device_set_threads(r.device, threads, NULL), DP_OK);
    run_norm(&r);
    run_attention(&r);
    run_swiglu(&r);
    run_ends(&r);
    return r;
}

static void results_free(struct results *r)
{
    for (int i = 0; i < r->count; i++) {
        free(r->outputs[i].at);
    }
    dp_device_close(r->device);
}

#define RESULTS DP_CLEANUP(results_free) struct results

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    const dp_element elements[] = {DP_F32, DP_F64, DP_BF16};
    for (int e = 0; e < 3; e++) {
        RESULTS one = run_all(elements[e], 1);
        for (int32_t threads = 2; threads <= 5; threads++) {
            RESULTS more = run_all(elements[e], threads);
            for (int i = 0; i < one.count; i++) {
                const struct output *x = &one.outputs[i];
                if (memcmp(x->at, more.outputs[i].at, (size_t)x->count * bytes_of(&one, x->kind)) !=
                    0) {
                    fail_msg("%s differs with %d threads", x->name, threads);
                }
            }
            assert_memory_equal(one.index, more.index, sizeof(one.index));
            assert_near(one.loss, more.loss, 0);
            assert_near(one.balance, more.balance, 0);
        }
    }
}

static double value_at(const struct results *r, const struct output *x, int64_t i)
{
    switch (bytes_of(r, x->kind)) {
    case sizeof(double):
        return ((const double *)x->at)[i];
    case sizeof(float):
        return (double)((const float *)x->at)[i];
    default: {
        const uint32_t bits = (uint32_t)((const uint16_t *)x->at)[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof(value));
        return (double)value;
    }
    }
}

// 1 - 2 <x, y> / (<x, x> + <y, y>), as DeepGEMM's tests measure it; 0 when both are 0.
static double difference_of(const struct results *a, const struct results *b, int which)
{
    double xy = 0, squares = 0;
    for (int64_t i = 0; i < a->outputs[which].count; i++) {
        const double x = value_at(a, &a->outputs[which], i);
        const double y = value_at(b, &b->outputs[which], i);
        xy += x * y;
        squares += x * x + y * y;
    }
    return squares == 0 ? 0 : 1 - 2 * xy / squares;
}

static void check_precision(dp_element element, double tolerance)
{
    RESULTS exact = run_all(DP_F64, 1), rounded = run_all(element, 1);
    assert_memory_equal(exact.index, rounded.index, sizeof(exact.index));
    assert_near(rounded.loss, exact.loss, 1e-5 * exact.loss);
    assert_near(rounded.balance, exact.balance, 1e-5 * exact.balance);
    for (int i = 0; i < exact.count; i++) {
        const double got = difference_of(&exact, &rounded, i);
        if (!(got <= tolerance)) { // NaN fails too
            fail_msg("%s differs by %g", exact.outputs[i].name, got);
        }
    }
}

static void bf16_results_are_those_of_double_to_its_digits(void **state)
{
    (void)state;
    check_precision(DP_BF16, 1e-5);
}

static void float_results_are_those_of_double_to_its_digits(void **state)
{
    (void)state;
    check_precision(DP_F32, 1e-11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(bf16_results_are_those_of_double_to_its_digits),
        cmocka_unit_test(float_results_are_those_of_double_to_its_digits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
