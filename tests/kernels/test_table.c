// Every operation of the table, for every element: on an opened stream as on the device's own, with
// the arguments of the call whatever becomes of their struct, and twice alike with threads.
#include "gate.h"
#include "gradient.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/device.h"

#define TOKENS 192
#define WIDTH 192 // 3 heads of 64
#define EXPERTS 6
#define TOP_K 2
#define VALUES (3 * TOKENS * WIDTH)
#define BUFFERS 6

// Buffers as an operation finds them: x holds draws as elements, r as reals, the rest likewise or
// what the operation writes.
struct arena {
    void *x[BUFFERS], *r[BUFFERS];
    int32_t index[TOKENS * TOP_K], row_of[TOKENS * TOP_K], counts[EXPERTS];
    uint8_t codes[TOKENS * WIDTH];
    float scales[TOKENS * WIDTH];
    double sum;
};

static const struct dp_device_ops *ops;

static struct arena *arena_new(struct dp_device *device)
{
    struct arena *a = dp_new(struct arena);
    DP_AUTO_FREE double *draws = dp_new_array(double, VALUES);
    for (int i = 0; i < BUFFERS; i++) {
        struct dp_rand rand;
        dp_rand_init(&rand, (uint64_t)i);
        fill_normal(&rand, draws, VALUES, 0.5);
        a->x[i] = dp_alloc_aligned(VALUES, dp_element_bytes(device->element));
        a->r[i] = dp_alloc_aligned(VALUES, dp_device_real_bytes(device));
        ops->from_double(device->stream, VALUES, draws, DP_OPERAND_ELEMENT, a->x[i]);
        ops->from_double(device->stream, VALUES, draws, DP_OPERAND_REAL, a->r[i]);
    }
    for (int32_t i = 0; i < TOKENS * TOP_K; i++) {
        a->index[i] = i % 7 == 3 ? -1 : (i * 5 + i / 7) % EXPERTS;
        a->row_of[i] = i % 11 == 5 ? -1 : (i * 5) % (TOKENS * TOP_K);
    }
    return a;
}

static void arena_free(struct arena *a)
{
    for (int i = 0; i < BUFFERS; i++) {
        free(a->x[i]);
        free(a->r[i]);
    }
    free(a);
}

static void assert_alike(const char *what, const struct dp_device *device, const struct arena *a,
                         const struct arena *b)
{
    bool alike = true;
    for (int i = 0; i < BUFFERS; i++) {
        alike &= memcmp(a->x[i], b->x[i], VALUES * dp_element_bytes(device->element)) == 0;
        alike &= memcmp(a->r[i], b->r[i], VALUES * dp_device_real_bytes(device)) == 0;
    }
    const size_t rest = offsetof(struct arena, index);
    alike &= memcmp((const char *)a + rest, (const char *)b + rest, sizeof(*a) - rest) == 0;
    if (!alike) {
        fail_msg("%s differs on elements of kind %d", what, (int)device->element);
    }
}

// A call whose struct is gone when it returns.
#define CALL(operation, ...)                                                                       \
    do {                                                                                           \
        ops->operation(s, __VA_ARGS__);                                                            \
        memset(&args, 0xff, sizeof(args));                                                         \
    } while (0)

static void plain(struct dp_stream *s, struct arena *a)
{
    ops->copy(s, a->codes, a->scales, sizeof(a->codes));
    ops->fill(s, a->scales, 3, 100);
    ops->convert(s, VALUES, DP_OPERAND_REAL, a->r[0], DP_OPERAND_ELEMENT, a->x[0]);
    ops->convert(s, VALUES, DP_OPERAND_ELEMENT, a->x[1], DP_OPERAND_REAL, a->r[1]);
    ops->add(s, VALUES, DP_OPERAND_ELEMENT, a->x[0], DP_OPERAND_REAL, a->r[2]);
    ops->add(s, VALUES, DP_OPERAND_REAL, a->r[0], DP_OPERAND_ELEMENT, a->x[2]);
    ops->scale(s, VALUES, 0.7, DP_OPERAND_ELEMENT, a->x[3]);
    ops->sum_squares(s, VALUES, DP_OPERAND_ELEMENT, a->x[3], &a->sum);
    static const double pi[] = {3.14159265358979};
    ops->from_double(s, 1, pi, DP_OPERAND_ELEMENT, a->x[4]);
}

static void adamw(struct dp_stream *s, struct arena *a)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct dp_adamw args = {1e-3, 0.9, 0.95, 1e-8, 0.1, 3, 0.5, bf16 == 1};
        ops->fill(s, a->r[2], 0, VALUES);
        ops->fill(s, a->r[3], 0, VALUES);
        CALL(adamw, &args, VALUES / 8, a->r[0], a->r[1], a->r[2], a->r[3]);
    }
}

static void fp8(struct dp_stream *s, struct arena *a)
{
    struct dp_fp8 args = {TOKENS, WIDTH, 1, 128, false};
    CALL(quantize_fp8, &args, DP_OPERAND_ELEMENT, a->x[0], a->codes, a->scales);
    args = (struct dp_fp8){TOKENS, WIDTH, 1, 128, false};
    CALL(dequantize_fp8, &args, a->codes, a->scales, DP_OPERAND_ELEMENT, a->x[1]);
}

static void gemm(struct dp_stream *s, struct arena *a)
{
    for (int i = 0; i < 8; i++) {
        struct dp_gemm args = {.transpose_a = i & 1,
                               .transpose_b = i & 2,
                               .accumulate = i & 4,
                               .m = TOKENS,
                               .n = TOKENS,
                               .k = TOKENS,
                               .a = a->x[0],
                               .lda = WIDTH,
                               .b = a->x[1],
                               .ldb = WIDTH,
                               .c = i & 1 ? a->x[2] : a->r[2],
                               .ldc = WIDTH,
                               .c_kind = i & 1 ? DP_OPERAND_ELEMENT : DP_OPERAND_REAL};
        CALL(gemm, &args);
    }
}

static void norm_and_rope(struct dp_stream *s, struct arena *a)
{
    const struct dp_rmsnorm norm = {
        .rows = TOKENS, .cols = WIDTH, .eps = 1e-5, .x = a->x[0], .gain = a->r[0], .rstd = a->r[1]};
    struct dp_rmsnorm args = norm;
    CALL(rmsnorm_forward, &args, a->x[1]);
    args = norm;
    CALL(rmsnorm_again, &args, a->x[2]);
    args = norm;
    CALL(rmsnorm_input_grad, &args, a->x[3], a->x[4]);
    args = norm;
    CALL(rmsnorm_weight_grad, &args, a->x[3], a->r[2]);
}

static void rope(struct dp_stream *s, struct arena *a)
{
    struct dp_rope args = {.rows = TOKENS,
                           .sequence = TOKENS / 2,
                           .heads = 3,
                           .width = 64,
                           .stride = WIDTH,
                           .table = a->r[0]};
    CALL(rope, &args, a->x[0]);
}

static void attention(struct dp_stream *s, struct arena *a)
{
    const struct dp_attention attention = {.samples = 2,
                                           .sequence = TOKENS / 2,
                                           .heads = 3,
                                           .kv_heads = 1,
                                           .qk_dim = 64,
                                           .v_dim = 64,
                                           .q = a->x[0],
                                           .k = a->x[1],
                                           .v = a->x[2],
                                           .q_stride = WIDTH,
                                           .k_stride = WIDTH,
                                           .v_stride = WIDTH,
                                           .output = a->x[3],
                                           .lse = a->r[0]};
    struct dp_attention args = attention;
    CALL(attention_forward, &args);
    args = attention;
    CALL(attention_input_grad, &args, a->x[4], a->x[0], a->x[1], a->x[2], NULL);
}

static void swiglu(struct dp_stream *s, struct arena *a)
{
    const struct dp_swiglu swiglu = {TOKENS, WIDTH, a->x[0], a->r[0]};
    struct dp_swiglu args = swiglu;
    CALL(swiglu_forward, &args, a->x[1]);
    args = swiglu;
    CALL(swiglu_input_grad, &args, a->x[2], a->x[3], a->r[1], a->x[4]);
}

static void router(struct dp_stream *s, struct arena *a)
{
    const struct dp_router router = {
        .tokens = TOKENS, .sequence = TOKENS / 2, .experts = EXPERTS, .top_k = TOP_K};
    struct dp_router args = router;
    CALL(router_forward, &args, a->r[0], a->index, a->r[1]);
    args = router;
    CALL(router_balance, &args, a->index, a->r[0], &a->sum);
    args = router;
    CALL(router_input_grad, &args, 0.3, a->index, a->r[2], a->r[0]);
    ops->sort_slots(s, TOKENS * TOP_K, EXPERTS, a->index, a->counts, a->row_of);
}

static void rows(struct dp_stream *s, struct arena *a)
{
    struct dp_rows args = {TOKENS * TOP_K, WIDTH, DP_OPERAND_ELEMENT, DP_OPERAND_ELEMENT};
    CALL(spread_rows, &args, TOP_K, a->row_of, a->x[0], a->x[1]);
    args = (struct dp_rows){TOKENS, WIDTH, DP_OPERAND_ELEMENT, DP_OPERAND_REAL};
    CALL(collect_rows, &args, TOP_K, true, a->row_of, a->x[1], a->r[0]);
    args = (struct dp_rows){TOKENS, WIDTH, DP_OPERAND_REAL, DP_OPERAND_ELEMENT};
    CALL(add_rows, &args, a->index, a->r[1], a->x[2]);
}

static void heads(struct dp_stream *s, struct arena *a)
{
    struct dp_heads args = {TOKENS, 64, 3, WIDTH, 0, WIDTH, 64};
    CALL(copy_heads, &args, a->x[0], a->x[1]);
    args = (struct dp_heads){TOKENS, 64, 3, WIDTH, 64, WIDTH, 0};
    CALL(sum_heads, &args, a->x[1], a->x[2]);
}

static void loss(struct dp_stream *s, struct arena *a)
{
    const struct dp_cross_entropy loss = {TOKENS, WIDTH, a->index, a->r[1]};
    struct dp_cross_entropy args = loss;
    CALL(cross_entropy_forward, &args, a->r[0], &a->sum);
    args = loss;
    CALL(cross_entropy_input_grad, &args, 0.25, a->r[0]);
}

static const struct {
    const char *name;
    void (*run)(struct dp_stream *stream, struct arena *arena);
    bool is_product; // a BLAS may add up in another order where a product is cut otherwise
} groups[] = {
    {"plain arithmetic", plain, false},
    {"adamw", adamw, false},
    {"fp8", fp8, false},
    {"gemm", gemm, true},
    {"norm", norm_and_rope, false},
    {"rope", rope, false},
    {"attention", attention, false},
    {"swiglu", swiglu, false},
    {"router", router, false},
    {"rows", rows, false},
    {"heads", heads, false},
    {"loss", loss, false},
};
#define GROUPS (sizeof(groups) / sizeof(groups[0]))

static struct dp_device *open_device(dp_element element)
{
    struct dp_device *device = NULL;
    struct dp_error err;
    assert_ok(dp_device_open_cpu(element, &device, &err), &err);
    ops = device->ops;
    return device;
}

static void opened_streams_give_the_bits_of_the_devices_own(void **state)
{
    (void)state;
    for (int element = DP_F32; element <= DP_BF16; element++) {
        struct dp_device *device = open_device((dp_element)element);
        struct dp_stream *stream = NULL;
        struct dp_error err;
        assert_ok(ops->stream_open(device, &stream, &err), &err);
        for (size_t i = 0; i < GROUPS; i++) {
            struct gate gate = GATE_CLOSED;
            struct arena *untouched = arena_new(device);
            struct arena *own = arena_new(device), *opened = arena_new(device);
            groups[i].run(device->stream, own);
            put_gate(stream, &gate);
            groups[i].run(stream, opened);
            assert_alike(groups[i].name, device, opened, untouched);
            open_gate(&gate);
            assert_ok(ops->stream_sync(stream, &err), &err);
            assert_alike(groups[i].name, device, opened, own);
            arena_free(untouched);
            arena_free(own);
            arena_free(opened);
        }
        ops->stream_close(stream);
        dp_device_close(device);
    }
}

static struct arena *run_with_threads(struct dp_device *device, size_t group, int32_t threads)
{
    struct dp_error err;
    assert_ok(dp_device_set_threads(device, threads, &err), &err);
    struct arena *arena = arena_new(device);
    groups[group].run(device->stream, arena);
    return arena;
}

static void threads_give_the_same_bits_every_time(void **state)
{
    (void)state;
    for (int element = DP_F32; element <= DP_BF16; element++) {
        struct dp_device *device = open_device((dp_element)element);
        for (size_t i = 0; i < GROUPS; i++) {
            const int32_t threads = groups[i].is_product ? 3 : 1;
            struct arena *first = run_with_threads(device, i, threads);
            for (int again = 0; again < 3; again++) {
                struct arena *second = run_with_threads(device, i, 3);
                assert_alike(groups[i].name, device, first, second);
                arena_free(second);
            }
            arena_free(first);
        }
        dp_device_close(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opened_streams_give_the_bits_of_the_devices_own),
        cmocka_unit_test(threads_give_the_same_bits_every_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
