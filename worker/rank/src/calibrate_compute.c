// Rates of the cpu device's operations.
#include <pthread.h>
#include <stdatomic.h>
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
#define WIDTH_MAX 1024
// More than a cache holds: weights, their gradients and moments come from memory.
#define ELEMENTS_MAX (8 << 20)
// Cores beyond these are left idle: memory is busy long before.
#define HELPERS_MAX 15
#define HELPER_ELEMENTS (2 << 20)
#define FILL_BYTE 0x3d // makes 0.046 of every float
#define ROUNDS 7
#define ROUND_NS (3 * DP_NS_PER_MS)

// What is being timed: one call of `work` does about the same as every other.
struct timed {
    struct dp_device *device;
    void (*work)(struct timed *timed);
    void *a, *b, *c, *d; // [elements] each
    int64_t elements;
    int64_t rows, cols;
    int64_t at; // of the next weights
    struct dp_gemm gemm;
    struct dp_attention attention;
};

// Seconds of CPU of one call.
static double seconds_of(struct timed *timed)
{
    timed->work(timed);
    double seconds[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        int64_t calls = 0;
        int64_t start_ns = dp_clock_thread_cpu_ns();
        int64_t length_ns = 0;
        while (length_ns < ROUND_NS) {
            timed->work(timed);
            calls++;
            length_ns = dp_clock_thread_cpu_ns() - start_ns;
        }
        seconds[round] = (double)length_ns / (double)DP_NS_PER_S / (double)calls;
    }
    return calibrate_median(seconds, ROUNDS);
}

// Each call takes other weights (or their gradient), as one layer after the other does.
static void work_gemm(struct timed *t)
{
    bool is_weight_grad = t->gemm.transpose_a;
    int64_t size = is_weight_grad ? t->gemm.m * t->gemm.n : t->gemm.k * t->gemm.n;
    t->at = t->at + 2 * size <= t->elements ? t->at + size : 0;
    if (is_weight_grad) {
        t->gemm.c = (float *)t->c + t->at;
    } else {
        t->gemm.b = (float *)t->b + t->at;
    }
    t->device->ops->gemm(t->device->stream, &t->gemm);
}

static void set_gemm(struct timed *t, dp_gemm_kind kind, int32_t m, int32_t k, int32_t n)
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
}

static double gemm_seconds(struct timed *t, dp_gemm_kind kind, int32_t m, int32_t k, int32_t n)
{
    set_gemm(t, kind, m, k, n);
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

// Residual and norm of one micro-batch.
static void work_elements(struct timed *t)
{
    const struct dp_device_ops *ops = t->device->ops;
    struct dp_rmsnorm norm = {
        .rows = t->rows, .cols = t->cols, .eps = 1e-5, .x = t->a, .gain = t->b, .rstd = t->d};
    ops->add(t->device->stream, t->rows * t->cols, DP_OPERAND_ELEMENT, t->a, DP_OPERAND_ELEMENT,
             t->c);
    ops->rmsnorm_forward(t->device->stream, &norm, t->c);
}

static void measure_elements(struct timed *t, struct dp_profile *profile)
{
    t->work = work_elements;
    t->rows = ROWS_MAX;
    t->cols = 256;
    // add reads two and writes one, the norm reads and writes one.
    double bytes = 5 * (double)(t->rows * t->cols) * profile->element_bytes;
    profile->memory_bytes_per_s = bytes / seconds_of(t);
}

static struct dp_swiglu swiglu_of(const struct timed *t)
{
    return (struct dp_swiglu){.rows = t->rows, .width = t->cols, .gate_up = t->a, .weight = t->d};
}

static void work_activation(struct timed *t)
{
    struct dp_swiglu swiglu = swiglu_of(t);
    t->device->ops->swiglu_forward(t->device->stream, &swiglu, t->c);
}

static void work_activation_gradient(struct timed *t)
{
    struct dp_swiglu swiglu = swiglu_of(t);
    t->device->ops->swiglu_input_grad(t->device->stream, &swiglu, t->b, t->c, t->c, t->b);
}

// The routed rows of one expert.
static void measure_activation(struct timed *t, struct dp_profile *profile)
{
    t->rows = 64;
    t->cols = 512;
    double elements = (double)(t->rows * t->cols);
    t->work = work_activation;
    profile->activation_elements_per_s = elements / seconds_of(t);
    t->work = work_activation_gradient;
    profile->activation_gradient_elements_per_s = elements / seconds_of(t);
}

// The vector of a row of queries, keys and values that `heads` others stand before.
static void *values_at(const struct timed *t, void *row, int32_t heads)
{
    return (char *)row +
           (size_t)(heads * t->attention.qk_dim) * dp_element_bytes(t->device->element);
}

static void work_attention(struct timed *t)
{
    t->device->ops->attention_forward(t->device->stream, &t->attention);
}

static void work_attention_gradient(struct timed *t)
{
    const struct dp_attention *a = &t->attention;
    t->device->ops->attention_input_grad(t->device->stream, a, t->b, t->c,
                                         values_at(t, t->c, a->heads),
                                         values_at(t, t->c, a->heads + a->kv_heads), NULL);
}

static void measure_attention(struct timed *t, struct dp_profile *profile)
{
    struct dp_attention attention = {.samples = 2,
                                     .sequence = 128,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .qk_dim = 32,
                                     .v_dim = 32,
                                     .q_stride = 8 * 32,
                                     .k_stride = 8 * 32,
                                     .v_stride = 8 * 32,
                                     .output = t->b,
                                     .lse = t->d};
    t->attention = attention;
    t->attention.q = t->a;
    t->attention.k = values_at(t, t->a, attention.heads);
    t->attention.v = values_at(t, t->a, attention.heads + attention.kv_heads);
    // Two products of the causal half; the gradient has five.
    double flops = 2.0 * (double)(attention.samples * attention.sequence) *
                   (double)attention.sequence * attention.heads * attention.qk_dim;
    t->work = work_attention;
    profile->attention_flops_per_s = flops / seconds_of(t);
    t->work = work_attention_gradient;
    profile->attention_gradient_flops_per_s = 2.5 * flops / seconds_of(t);
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
    ops->sum_squares(t->device->stream, t->rows, DP_OPERAND_REAL, t->a, &sum);
    ops->adamw(t->device->stream, &adamw, t->rows, t->a, t->b, t->c, t->d);
    ops->fill(t->device->stream, t->a, 0, (size_t)t->rows * sizeof(float));
}

static double optimizer_bytes_per_s(struct timed *t, const struct dp_profile *profile)
{
    // Weights and moments are read and written, the gradient counts once (dp_cost_optimizer_s).
    double bytes = 2 * (profile->weight_bytes + profile->optimizer_bytes) + profile->gradient_bytes;
    return bytes * (double)t->rows / seconds_of(t);
}

static void free_buffers(struct timed *timed)
{
    void *buffers[] = {timed->a, timed->b, timed->c, timed->d};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(buffers); i++) {
        timed->device->ops->free(timed->device, buffers[i]);
    }
}

static dp_status alloc_buffers(struct timed *timed, int64_t elements, struct dp_error *err)
{
    void **buffers[] = {&timed->a, &timed->b, &timed->c, &timed->d};
    size_t bytes = sizeof(float) * (size_t)elements;
    timed->elements = elements;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(buffers); i++) {
        dp_status status =
            timed->device->ops->alloc(timed->device, DP_MEMORY_SCRATCH, bytes, buffers[i], err);
        if (status != DP_OK) {
            return status;
        }
        timed->device->ops->fill(timed->device->stream, *buffers[i], FILL_BYTE, bytes);
    }
    return DP_OK;
}

// A thread that keeps one core at the same work as the one that is timed.
struct helper {
    pthread_t thread;
    struct timed timed;
    void (*prepare)(struct timed *timed);
    atomic_int *ready;
    atomic_bool *stop;
    dp_status status;
    struct dp_error err;
};

static void *run_helper(void *argument)
{
    struct helper *helper = argument;
    struct timed *timed = &helper->timed;
    helper->status = dp_device_open_cpu(DP_F32, &timed->device, &helper->err);
    if (helper->status == DP_OK) {
        helper->status = alloc_buffers(timed, HELPER_ELEMENTS, &helper->err);
    }
    atomic_fetch_add(helper->ready, 1);
    if (helper->status == DP_OK) {
        helper->prepare(timed);
    }
    while (helper->status == DP_OK && !atomic_load(helper->stop)) {
        timed->work(timed);
    }
    if (timed->device != NULL) {
        free_buffers(timed);
        dp_device_close(timed->device);
    }
    return NULL;
}

// Calls `measure` while all other cores are at the work that `prepare` sets.
static dp_status with_all_cores(struct timed *t, struct dp_profile *profile,
                                void (*prepare)(struct timed *timed),
                                void (*measure)(struct timed *t, struct dp_profile *profile),
                                struct dp_error *err)
{
    int count = profile->cores - 1 < HELPERS_MAX ? profile->cores - 1 : HELPERS_MAX;
    struct helper helpers[HELPERS_MAX] = {0};
    atomic_int ready = 0;
    atomic_bool stop = false;
    for (int i = 0; i < count; i++) {
        helpers[i].prepare = prepare;
        helpers[i].ready = &ready;
        helpers[i].stop = &stop;
        DP_CHECK(pthread_create(&helpers[i].thread, NULL, run_helper, &helpers[i]) == 0);
    }
    while (atomic_load(&ready) < count) {
        dp_clock_sleep_until_ns(dp_clock_monotonic_ns() + DP_NS_PER_MS);
    }
    prepare(t);
    measure(t, profile);
    atomic_store(&stop, true);
    dp_status status = DP_OK;
    for (int i = 0; i < count; i++) {
        pthread_join(helpers[i].thread, NULL);
        if (status == DP_OK && helpers[i].status != DP_OK) {
            status = dp_fail(err, helpers[i].status, "%s", helpers[i].err.message);
        }
    }
    return status;
}

static void prepare_optimizer(struct timed *t)
{
    t->work = work_adamw;
    t->rows = t->elements;
}

static void measure_optimizer(struct timed *t, struct dp_profile *profile)
{
    profile->optimizer_bytes_per_s = optimizer_bytes_per_s(t, profile);
}

static void prepare_layer(struct timed *t)
{
    set_gemm(t, DP_GEMM_NT, 128, 512, 512);
}

static void measure_busy(struct timed *t, struct dp_profile *profile)
{
    profile->busy_slowdown = seconds_of(t);
}

static dp_status measure_slowdown(struct timed *t, struct dp_profile *profile, struct dp_error *err)
{
    prepare_layer(t);
    double alone_s = seconds_of(t);
    dp_status status = with_all_cores(t, profile, prepare_layer, measure_busy, err);
    double slowdown = profile->busy_slowdown / alone_s;
    profile->busy_slowdown = slowdown > 1 ? slowdown : 1;
    return status;
}

static dp_status measure(struct timed *t, struct dp_profile *profile, struct dp_error *err)
{
    measure_gemms(t, profile);
    measure_elements(t, profile);
    measure_activation(t, profile);
    measure_attention(t, profile);
    profile->op_overhead_s = gemm_seconds(t, DP_GEMM_NT, 4, 4, 4);
    dp_status status = measure_slowdown(t, profile, err);
    if (status == DP_OK) {
        status = with_all_cores(t, profile, prepare_optimizer, measure_optimizer, err);
    }
    return status == DP_OK ? t->device->ops->stream_sync(t->device->stream, err) : status;
}

dp_status calibrate_compute(struct dp_profile *profile, struct dp_error *err)
{
    struct timed timed = {0};
    dp_status status = dp_device_open_cpu(DP_F32, &timed.device, err);
    if (status != DP_OK) {
        return status;
    }
    status = alloc_buffers(&timed, ELEMENTS_MAX, err);
    status = status == DP_OK ? measure(&timed, profile, err) : status;
    free_buffers(&timed);
    dp_device_close(timed.device);
    return status;
}
