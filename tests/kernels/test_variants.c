// The float variants of the kernels, plain, with AVX2 and with AVX-512, against the double ones on
// the same numbers.
#include "gradient.h"

#include <stdlib.h>

#include "cpu.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

#define INSTALL(variant, ops)                                                                      \
    do {                                                                                           \
        dp_cpu_install_arithmetic_##variant(ops);                                                  \
        dp_cpu_install_attention_##variant(ops);                                                   \
        dp_cpu_install_fp8_##variant(ops);                                                         \
        dp_cpu_install_gemm_##variant(ops);                                                        \
        dp_cpu_install_loss_##variant(ops);                                                        \
        dp_cpu_install_norm_##variant(ops);                                                        \
        dp_cpu_install_router_##variant(ops);                                                      \
        dp_cpu_install_rows_##variant(ops);                                                        \
        dp_cpu_install_swiglu_##variant(ops);                                                      \
    } while (0)

static struct dp_device_ops tables[3], exact;
static int table_count;
static struct dp_device *device; // for its stream
static struct dp_stream *stream;

static int install(void **state)
{
    (void)state;
    if (dp_device_open_cpu(DP_F32, &device, NULL) != DP_OK) {
        return -1;
    }
    stream = device->stream;
    INSTALL(f64, &exact);
    INSTALL(f32, &tables[0]);
    table_count = 1;
#ifdef __x86_64__
    if (dp_cpu_runs_avx2()) {
        INSTALL(f32_avx2, &tables[table_count]);
        table_count++;
    }
    if (dp_cpu_runs_avx512()) {
        INSTALL(f32_avx512, &tables[table_count]);
        table_count++;
    }
#endif
    return 0;
}

static int release(void **state)
{
    (void)state;
    dp_device_close(device);
    return 0;
}

// The same random numbers as float and double.
struct numbers {
    float *f;
    double *d;
    int64_t count;
};

static struct numbers draw(uint64_t seed, int64_t count, double scale)
{
    struct numbers n = {dp_new_array(float, (size_t)count), dp_new_array(double, (size_t)count),
                        count};
    struct dp_rand rand;
    dp_rand_init(&rand, seed);
    fill_normal(&rand, n.d, count, scale);
    for (int64_t i = 0; i < count; i++) {
        n.f[i] = (float)n.d[i];
        n.d[i] = (double)n.f[i];
    }
    return n;
}

static void numbers_free(struct numbers *n)
{
    free(n->f);
    free(n->d);
}

#define NUMBERS DP_CLEANUP(numbers_free) struct numbers

static void assert_close(const struct numbers *n, double tolerance)
{
    double largest = 0;
    for (int64_t i = 0; i < n->count; i++) {
        largest = fmax(largest, fabs(n->d[i]));
    }
    for (int64_t i = 0; i < n->count; i++) {
        assert_near((double)n->f[i], n->d[i], tolerance * largest);
    }
}

static void float_swiglu_keeps_seven_digits(void **state)
{
    (void)state;
    const int64_t rows = 40, width = 37;
    for (int t = 0; t < table_count; t++) {
        // From the flat to the steep parts of the sigmoid.
        NUMBERS x = draw(1, 2 * rows * width, 6);
        NUMBERS w = draw(2, rows, 1), y = draw(3, rows * width, 1), dy = draw(4, rows * width, 1);
        NUMBERS dx = draw(5, 2 * rows * width, 1), dw = draw(6, rows, 1);
        const struct dp_swiglu f = {rows, width, x.f, w.f}, d = {rows, width, x.d, w.d};
        tables[t].swiglu_forward(stream, &f, y.f);
        exact.swiglu_forward(stream, &d, y.d);
        assert_close(&y, 1e-6);
        tables[t].swiglu_input_grad(stream, &f, dy.f, dx.f, dw.f, y.f);
        exact.swiglu_input_grad(stream, &d, dy.d, dx.d, dw.d, y.d);
        assert_close(&y, 1e-6);
        assert_close(&dx, 1e-6);
        assert_close(&dw, 1e-5);
    }
}

// Softmax of widely spread logits, element by element: the relative error of the exponential.
static void float_exponential_is_accurate_over_its_range(void **state)
{
    (void)state;
    const int64_t n = 4096;
    for (int t = 0; t < table_count; t++) {
        NUMBERS x = draw(1, n, 1);
        for (int64_t i = 0; i < n; i++) {
            x.d[i] = x.f[i] = (float)(-85.0 * (double)i / (double)n);
        }
        const int32_t target = 0;
        float lse_f = 0;
        double lse_d = 0, sum_f, sum_d;
        const struct dp_cross_entropy f = {1, n, &target, &lse_f}, d = {1, n, &target, &lse_d};
        tables[t].cross_entropy_forward(stream, &f, x.f, &sum_f);
        exact.cross_entropy_forward(stream, &d, x.d, &sum_d);
        assert_near(sum_f, sum_d, 1e-6 * sum_d);
        // With a log-sum-exp of 0 the gradient is the exponential itself.
        lse_f = 0;
        lse_d = 0;
        tables[t].cross_entropy_input_grad(stream, &f, 1, x.f);
        exact.cross_entropy_input_grad(stream, &d, 1, x.d);
        for (int64_t i = 1; i < n; i++) {
            assert_near((double)x.f[i], x.d[i], 3e-7 * x.d[i]);
        }
    }
}

static void float_norm_and_gemm_agree_with_double(void **state)
{
    (void)state;
    const int64_t rows = 33, cols = 70;
    for (int t = 0; t < table_count; t++) {
        NUMBERS x = draw(1, rows * cols, 1), gain = draw(2, cols, 1), rstd = draw(3, rows, 1);
        NUMBERS y = draw(4, rows * cols, 1), dx = draw(5, rows * cols, 1), dg = draw(6, cols, 1);
        const struct dp_rmsnorm f = {
            .rows = rows, .cols = cols, .eps = 1e-6, .x = x.f, .gain = gain.f, .rstd = rstd.f};
        const struct dp_rmsnorm d = {
            .rows = rows, .cols = cols, .eps = 1e-6, .x = x.d, .gain = gain.d, .rstd = rstd.d};
        tables[t].rmsnorm_forward(stream, &f, y.f);
        exact.rmsnorm_forward(stream, &d, y.d);
        assert_close(&y, 1e-6);
        tables[t].rmsnorm_input_grad(stream, &f, y.f, dx.f);
        exact.rmsnorm_input_grad(stream, &d, y.d, dx.d);
        assert_close(&dx, 3e-6);
        tables[t].rmsnorm_weight_grad(stream, &f, y.f, dg.f);
        exact.rmsnorm_weight_grad(stream, &d, y.d, dg.d);
        assert_close(&dg, 3e-6);
        NUMBERS product = draw(7, cols * cols, 1);
        struct dp_gemm g = {.transpose_a = true,
                            .accumulate = true,
                            .m = cols,
                            .n = cols,
                            .k = rows,
                            .lda = cols,
                            .ldb = cols,
                            .ldc = cols,
                            .a = x.f,
                            .b = y.f,
                            .c = product.f};
        tables[t].gemm(stream, &g);
        g.a = x.d;
        g.b = y.d;
        g.c = product.d;
        exact.gemm(stream, &g);
        assert_close(&product, 3e-6);
    }
}

// Two query heads of 8 and a key and a value head in rows of 32.
static struct dp_attention packed_attention(const void *qkv, size_t bytes, void *out, void *lse)
{
    return (struct dp_attention){.samples = 2,
                                 .sequence = 100,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .qk_dim = 8,
                                 .v_dim = 8,
                                 .q = qkv,
                                 .k = (const char *)qkv + 16 * bytes,
                                 .v = (const char *)qkv + 24 * bytes,
                                 .q_stride = 32,
                                 .k_stride = 32,
                                 .v_stride = 32,
                                 .output = out,
                                 .lse = lse};
}

static void float_attention_agrees_with_double(void **state)
{
    (void)state;
    const int64_t rows = 2 * 100;
    for (int t = 0; t < table_count; t++) {
        NUMBERS qkv = draw(1, rows * 32, 1), out = draw(2, rows * 16, 1),
                lse = draw(3, rows * 2, 1);
        NUMBERS dout = draw(4, rows * 16, 1), dqkv = draw(5, rows * 32, 1);
        const struct dp_attention f = packed_attention(qkv.f, sizeof(float), out.f, lse.f);
        const struct dp_attention d = packed_attention(qkv.d, sizeof(double), out.d, lse.d);
        tables[t].attention_forward(stream, &f);
        exact.attention_forward(stream, &d);
        assert_close(&out, 1e-6);
        assert_close(&lse, 1e-6);
        tables[t].attention_input_grad(stream, &f, dout.f, dqkv.f, dqkv.f + 16, dqkv.f + 24, NULL);
        exact.attention_input_grad(stream, &d, dout.d, dqkv.d, dqkv.d + 16, dqkv.d + 24, NULL);
        assert_close(&dqkv, 5e-6);
    }
}

static void float_routing_makes_the_choices_of_double(void **state)
{
    (void)state;
    for (int t = 0; t < 2 * table_count; t++) {
        const struct dp_router router = {.tokens = 64,
                                         .sequence = 16,
                                         .experts = 9,
                                         .top_k = 3,
                                         .score = t % 2 ? DP_ROUTER_SIGMOID : DP_ROUTER_SOFTMAX};
        const struct dp_device_ops *table = &tables[t / 2];
        NUMBERS x = draw(1, 64 * 9, 2), w = draw(2, 64 * 3, 1), dw = draw(3, 64 * 3, 1);
        int32_t index_f[64 * 3], index_d[64 * 3];
        table->router_forward(stream, &router, x.f, index_f, w.f);
        exact.router_forward(stream, &router, x.d, index_d, w.d);
        assert_memory_equal(index_f, index_d, sizeof(index_f));
        assert_close(&w, 1e-6);
        double balance_f, balance_d;
        table->router_balance(stream, &router, index_f, x.f, &balance_f);
        exact.router_balance(stream, &router, index_d, x.d, &balance_d);
        assert_near(balance_f, balance_d, 1e-6 * balance_d);
        table->router_input_grad(stream, &router, 0.3, index_f, dw.f, x.f);
        exact.router_input_grad(stream, &router, 0.3, index_d, dw.d, x.d);
        assert_close(&x, 3e-6);
    }
}

static void float_adamw_agrees_with_double(void **state)
{
    (void)state;
    const struct dp_adamw adamw = {.lr = 1e-2,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .step = 3,
                                   .grad_scale = 0.5};
    for (int t = 0; t < table_count; t++) {
        NUMBERS g = draw(1, 100, 1), w = draw(2, 100, 1), m = draw(3, 100, 1), v = draw(4, 100, 1);
        for (int64_t i = 0; i < 100; i++) {
            v.f[i] *= v.f[i];
            v.d[i] = (double)v.f[i];
        }
        tables[t].adamw(stream, &adamw, 100, g.f, w.f, m.f, v.f);
        exact.adamw(stream, &adamw, 100, g.d, w.d, m.d, v.d);
        assert_close(&w, 1e-6);
        assert_close(&m, 1e-6);
        assert_close(&v, 1e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_swiglu_keeps_seven_digits),
        cmocka_unit_test(float_exponential_is_accurate_over_its_range),
        cmocka_unit_test(float_norm_and_gemm_agree_with_double),
        cmocka_unit_test(float_attention_agrees_with_double),
        cmocka_unit_test(float_routing_makes_the_choices_of_double),
        cmocka_unit_test(float_adamw_agrees_with_double),
    };
    return cmocka_run_group_tests(tests, install, release);
}
