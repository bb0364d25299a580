// A training step of one rank through the real trainer, beside its matrix products alone: the same
// calls in the same order, on operands of the same sizes that return as they do in the step. The
// step is that of torch_moe.py. Attention's inner products are not among them.
//
//     step_bench [THREADS]    prints rows of build/bench.json, for 1 thread and for every core's;
//                             or, given threads, the tokens/s of its best step alone
//
// Steps and products take turns, and the least of each counts: what else the machine does only ever
// adds.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "moe_trainer.h"

#define ROUNDS 24
#define GOAL 0.75
#define PRODUCTS_MAX 4096
#define OPERANDS_MAX (3 * PRODUCTS_MAX)

// The products of the last step, and the memory they are repeated in: an operand of the step lies
// at operands[i].offset of the arena.
static struct {
    struct dp_gemm products[PRODUCTS_MAX];
    int count;
    double seconds; // in them, in the step
    struct {
        const void *original;
        size_t values, offset;
    } operands[OPERANDS_MAX];
    int operand_count;
    float *arena;
    size_t arena_values;
} recorded;
static void (*plain_gemm)(struct dp_stream *stream, const struct dp_gemm *gemm);

static void record_gemm(struct dp_stream *stream, const struct dp_gemm *gemm)
{
    DP_CHECK(recorded.count < PRODUCTS_MAX);
    recorded.products[recorded.count++] = *gemm;
    int64_t begin = dp_clock_monotonic_ns();
    plain_gemm(stream, gemm);
    recorded.seconds += 1e-9 * (double)(dp_clock_monotonic_ns() - begin);
}

static int find(const void *original)
{
    int i = 0;
    while (i < recorded.operand_count && recorded.operands[i].original != original) {
        i++;
    }
    return i;
}

static void meet(const void *original, int64_t rows, int64_t stride)
{
    size_t values = (size_t)(rows * stride);
    int i = find(original);
    if (i == recorded.operand_count) {
        DP_CHECK(i < OPERANDS_MAX);
        recorded.operands[recorded.operand_count++].original = original;
        recorded.operands[i].values = 0;
    }
    if (recorded.operands[i].values < values) {
        recorded.operands[i].values = values;
    }
}

static void place(void)
{
    size_t end = 0;
    for (int i = 0; i < recorded.operand_count; i++) {
        recorded.operands[i].offset = end;
        end += (recorded.operands[i].values + 15) / 16 * 16;
    }
    if (end > recorded.arena_values) {
        free(recorded.arena);
        recorded.arena_values = end + end / 4;
        recorded.arena = dp_alloc_aligned(recorded.arena_values, sizeof(float));
        for (size_t i = 0; i < recorded.arena_values; i++) {
            recorded.arena[i] = (float)((int)(i * 7 % 13) - 6) / 64;
        }
    }
}

static float *own(const void *original)
{
    return recorded.arena + recorded.operands[find(original)].offset;
}

// The products of the last step, in memory of their own.
static void make_products(struct dp_gemm *ret_products)
{
    recorded.operand_count = 0;
    for (int i = 0; i < recorded.count; i++) {
        const struct dp_gemm *g = &recorded.products[i];
        meet(g->a, g->transpose_a ? g->k : g->m, g->lda);
        meet(g->b, g->transpose_b ? g->n : g->k, g->ldb);
        meet(g->c, g->m, g->ldc);
    }
    place();
    for (int i = 0; i < recorded.count; i++) {
        ret_products[i] = recorded.products[i];
        ret_products[i].a = own(ret_products[i].a);
        ret_products[i].b = own(ret_products[i].b);
        ret_products[i].c = own(ret_products[i].c);
    }
}

static double time_products(struct dp_device *device, const struct dp_gemm *products, int count)
{
    int64_t begin = dp_clock_monotonic_ns();
    for (int i = 0; i < count; i++) {
        plain_gemm(device->stream, &products[i]);
    }
    return 1e-9 * (double)(dp_clock_monotonic_ns() - begin);
}

struct figures {
    double step, products, inside; // seconds
};

static void step_once(struct moe_trainer *moe, struct figures *best)
{
    recorded.count = 0;
    recorded.seconds = 0;
    double seconds = moe_trainer_step(moe);
    if (seconds < best->step) {
        best->step = seconds;
        best->inside = recorded.seconds;
    }
}

static struct figures measure(struct moe_trainer *moe, bool with_products)
{
    static struct dp_gemm products[PRODUCTS_MAX];
    struct figures best = {.step = INFINITY, .products = INFINITY};
    step_once(moe, &best);
    best.step = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        step_once(moe, &best);
        if (with_products) {
            make_products(products);
            best.products =
                fmin(best.products, time_products(moe->device, products, recorded.count));
        }
    }
    return best;
}

// The cpu device's operations, with a product that is recorded.
static void make_ops(struct dp_device_ops *ret_ops)
{
    struct dp_error err;
    struct dp_device *device;
    DP_CHECK(dp_device_open_cpu(DP_F32, &device, &err) == DP_OK);
    *ret_ops = *device->ops;
    plain_gemm = device->ops->gemm;
    ret_ops->gemm = record_gemm;
    dp_device_close(device);
}

static struct figures run(int32_t threads, bool with_products)
{
    struct dp_device_ops ops;
    struct moe_trainer moe;
    make_ops(&ops);
    moe_trainer_open(&moe, threads, &ops);
    struct figures figures = measure(&moe, with_products);
    moe_trainer_close(&moe);
    free(recorded.arena);
    return figures;
}

static void print_row(int32_t threads)
{
    struct figures figures = run(threads, true);
    double ratio = figures.products / figures.step;
    printf("# %d threads: %.1f ms, %.1f ms of it in products, alone %.1f ms\n", threads,
           1e3 * figures.step, 1e3 * figures.inside, 1e3 * figures.products);
    printf("{\"name\": \"MoE step beside its products alone, threads: %d\", \"value\": %.1f, "
           "\"unit\": \"tokens/s\", \"peer\": \"the same products: %.2f ms of a step of %.2f ms\", "
           "\"ratio\": %.4f, \"goal\": \"at least %g\", \"met\": %s}\n",
           threads, MOE_SAMPLES * MOE_SEQUENCE / figures.step, 1e3 * figures.products,
           1e3 * figures.step, ratio, GOAL, ratio >= GOAL ? "true" : "false");
    fflush(stdout);
}

// In a process of its own: a library may keep the threads of its first call.
static void in_child(int32_t threads)
{
    fflush(stdout);
    pid_t child = fork();
    DP_CHECK(child >= 0);
    if (child == 0) {
        print_row(threads);
        _exit(0);
    }
    int status;
    DP_CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) != 0) {
        exit(1);
    }
}

int main(int count, char **arguments)
{
    dp_alloc_keep_freed(); // as dp-rank does
    if (count > 1) {
        struct figures figures = run(atoi(arguments[1]), false);
        printf("%.1f\n", MOE_SAMPLES * MOE_SEQUENCE / figures.step);
        return 0;
    }
    in_child(1);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (cores > 1) {
        in_child((int32_t)cores);
    }
    return 0;
}
