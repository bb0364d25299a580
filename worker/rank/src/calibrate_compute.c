#include <stdlib.h>

#include "calibrate.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/device.h"

// Rows of a micro-batch or of one expert's share, and widths between which a layer's weights lie.
static const int32_t gemm_rows[] = {32, 128, 512};
static const int32_t gemm_shapes[][2] = {
    {128, 128}, {128, 512}, {512, 128}, {512, 512}, {1024, 1024}};
#define ROWS_MAX 512
// More than a cache holds.
#define ELEMENTS_MAX (4 << 20)
#define FILL_BYTE 0x3d // makes 0.046 of every float
#define ROUNDS 7
#define ROUND_NS (5 * DP_NS_PER_MS)

// What is being timed: one call of `work` does the same as every other.
struct timed {
    struct dp_device *device;
    void (*work)(struct timed *timed);
    void *a, *b, *c, *d;
    int64_t rows, cols;
    struct dp_gemm gemm;
    struct dp_attention attention;
};

// Seconds of one call: the best round, since everything else on the machine only adds.
static double seconds_of(struct timed *timed)
{
    timed->work(timed);
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t calls = 0;
        int64_t start_ns = dp_clock_monotonic_ns();
        int64_t length_ns = 0;
        while (length_ns < ROUND_NS) {
            timed->work(timed);
            calls++;
            length_ns = dp_clock_monotonic_ns() - start_ns;
        }
        double seconds = (double)length_ns / (double)DP_NS_PER_S / (double)calls;
        best = round == 0 || seconds < best ? seconds : best;
    }
    return best;
}

static void work_gemm(struct timed *t)
{
    t->device->ops->gemm(t->device->stream, &t->gemm);
}

static double gemm_seconds(struct timed *t, dp_gemm_kind kind, int32_t m, int32_t k, int32_t n)
{
    bool transpose_a = kind == DP_GEMM_TN;
    bool transpose_b = kind == DP_GEMM_NT;
    t->gemm = (struct dp_gemm){.transpose_a = transpose_a,
                               .transpose_b = transpose_b,
                               .accumulate = kind == DP_GEMM_TN,
                               .m = m,
                               .n = n,
                               .k = k,
                               .a = t->a,
                               .lda = transpose_a ? m : k,
                               .b = t->b,
                               .ldb = transpose_b ? k : n,
                               .c = t->c,
                               .ldc = n};
    t->work = work_gemm;
    return seconds_of(t);
}

static void add_gemm_point(struct timed *t, struct dp_profile *profile, dp_gemm_kind kind,
                           int32_t rows, const int32_t shape[2])
{
    // A weight gradient is [out, in] and sums over the rows.
    int32_t m = kind == DP_GEMM_TN ? shape[0] : rows;
    int32_t k = kind == DP_GEMM_TN ? rows : shape[0];
    double flops = 2.0 * m * k * shape[1];
    DP_CHECK(profile->gemms_count < DP_PROFILE_GEMMS_MAX);
    profile->gemms[profile->gemms_count++] =
        (struct dp_gemm_point){.kind = kind,
                               .m = m,
                               .k = k,
                               .n = shape[1],
                               .flops_per_s = flops / gemm_seconds(t, kind, m, k, shape[1])};
}

static void measure_gemms(struct timed *t, struct dp_profile *profile)
{
    double sum = 0;
    profile->gemms_count = 0;
    for (int kind = 0; kind < DP_GEMM_KIND_COUNT; kind++) {
        for (size_t i = 0; i < DP_ARRAY_LENGTH(gemm_rows); i++) {
            for (size_t j = 0; j < DP_ARRAY_LENGTH(gemm_shapes); j++) {
                add_gemm_point(t, profile, (dp_gemm_kind)kind, gemm_rows[i], gemm_shapes[j]);
                sum += profile->gemms[profile->gemms_count - 1].flops_per_s;
            }
        }
    }
    profile->gemm_flops_per_s = sum / (double)profile->gemms_count;
}

// A dense layer's elementwise work on one micro-batch: residual, norm and activation.
static void work_elements(struct timed *t)
{
    const struct dp_device_ops *ops = t->device->ops;
    struct dp_rmsnorm norm = {
        .rows = t->rows, .cols = t->cols, .eps = 1e-5, .x = t->a, .gain = t->b, .rstd = t->d};
    struct dp_swiglu swiglu = {.rows = t->rows, .width = t->cols / 2, .gate_up = t->a};
    ops->add(t->device->stream, t->rows * t->cols, t->a, t->c);
    ops->rmsnorm_forward(t->device->stream, &norm, t->c);
    ops->swiglu_forward(t->device->stream, &swiglu, t->c);
}

static void measure_elements(struct timed *t, struct dp_profile *profile)
{
    t->work = work_elements;
    t->rows = ROWS_MAX;
    t->cols = 256;
    // add reads two and writes one, the norm reads and writes one, the activation reads one and
    // writes half.
    double bytes = 6.5 * (double)(t->rows * t->cols) * profile->element_bytes;
    profile->memory_bytes_per_s = bytes / seconds_of(t);
}

static void work_attention(struct timed *t)
{
    const struct dp_device_ops *ops = t->device->ops;
    ops->attention_forward(t->device->stream, &t->attention);
    ops->attention_input_grad(t->device->stream, &t->attention, t->b, t->c);
}

static void measure_attention(struct timed *t, struct dp_profile *profile)
{
    struct dp_attention attention = {.samples = 2,
                                     .sequence = 128,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 32,
                                     .qkv = t->a,
                                     .output = t->b,
                                     .lse = t->d};
    t->attention = attention;
    t->work = work_attention;
    // Forward has two products of the causal half, the gradient five.
    double flops = 3.5 * 2.0 * (double)(attention.samples * attention.sequence) *
                   (double)attention.sequence * attention.heads * attention.head_dim;
    profile->attention_flops_per_s = flops / seconds_of(t);
}

static void work_adamw(struct timed *t)
{
    const struct dp_device_ops *ops = t->device->ops;
    struct dp_adamw adamw = {.lr = 1e-4,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .step = 1,
                             .grad_scale = 1};
    double sum;
    ops->sum_squares(t->device->stream, t->rows, t->a, &sum);
    ops->adamw(t->device->stream, &adamw, t->rows, t->a, t->b, t->c, t->d);
    ops->fill(t->device->stream, t->a, 0, (size_t)t->rows * sizeof(float));
}

static void measure_optimizer(struct timed *t, struct dp_profile *profile)
{
    t->work = work_adamw;
    t->rows = ELEMENTS_MAX;
    // Weights and moments are read and written, the gradient counts once (dp_cost_optimizer_s).
    double bytes = 2 * (profile->weight_bytes + profile->optimizer_bytes) + profile->gradient_bytes;
    profile->optimizer_bytes_per_s = bytes * (double)t->rows / seconds_of(t);
}

static dp_status measure(struct timed *t, struct dp_profile *profile, struct dp_error *err)
{
    measure_gemms(t, profile);
    measure_elements(t, profile);
    measure_attention(t, profile);
    measure_optimizer(t, profile);
    profile->op_overhead_s = gemm_seconds(t, DP_GEMM_NT, 4, 4, 4);
    return t->device->ops->stream_sync(t->device->stream, err);
}

dp_status calibrate_compute(struct dp_profile *profile, struct dp_error *err)
{
    struct timed timed = {0};
    dp_status status = dp_device_open_cpu(DP_F32, &timed.device, err);
    if (status != DP_OK) {
        return status;
    }
    void **buffers[] = {&timed.a, &timed.b, &timed.c, &timed.d};
    size_t bytes = sizeof(float) * ELEMENTS_MAX;
    for (size_t i = 0; status == DP_OK && i < DP_ARRAY_LENGTH(buffers); i++) {
        status = timed.device->ops->alloc(timed.device, bytes, buffers[i], err);
        if (status == DP_OK) {
            timed.device->ops->fill(timed.device->stream, *buffers[i], FILL_BYTE, bytes);
        }
    }
    status = status == DP_OK ? measure(&timed, profile, err) : status;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(buffers); i++) {
        timed.device->ops->free(timed.device, *buffers[i]);
    }
    dp_device_close(timed.device);
    return status;
}
