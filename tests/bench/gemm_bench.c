// Products of floats through the cpu device against the libraries called directly: OpenBLAS, oneDNN
// and BLIS (where it is installed), at every shape of the training step that torch_moe.py makes,
// forward, gradient of inputs and gradient of weights. Prints rows of build/bench.json.
#include <cblas.h>
#include <dlfcn.h>
#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/device.h"

#define TURNS 3 // of each callee
#define ROUNDS 6
#define FLOPS_PER_ROUND 4e6 // below that, a round is many products
#define WARM_UP_NS (100 * DP_NS_PER_MS)
#define GOAL 0.9

void omp_set_num_threads(int threads); // oneDNN's threads; no header with every compiler

typedef void (*blis_sgemm)(CBLAS_ORDER order, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n,
                           int k, float alpha, const float *a, int lda, const float *b, int ldb,
                           float beta, float *c, int ldc);

enum { OURS, OPENBLAS, ONEDNN, BLIS, CALLEES };
static const char *const names[CALLEES] = {"ours", "OpenBLAS", "oneDNN", "BLIS"};

#define SHAPES_MAX 64

struct shape {
    const char *name;
    struct dp_gemm gemm;
    double best[CALLEES]; // seconds
};

struct bench {
    struct shape shapes[SHAPES_MAX];
    int count;
    blis_sgemm blis;          // NULL = not there
    struct dp_device *device; // of a child that measures ours
};

static CBLAS_TRANSPOSE transposed(bool transpose)
{
    return transpose ? CblasTrans : CblasNoTrans;
}

static void call(const struct bench *bench, const struct dp_gemm *g, int callee)
{
    const int m = (int)g->m, n = (int)g->n, k = (int)g->k;
    const int lda = (int)g->lda, ldb = (int)g->ldb, ldc = (int)g->ldc;
    const float beta = g->accumulate ? 1 : 0;
    if (callee == OURS) {
        bench->device->ops->gemm(bench->device->stream, g);
    } else if (callee == OPENBLAS) {
        cblas_sgemm(CblasRowMajor, transposed(g->transpose_a), transposed(g->transpose_b), m, n, k,
                    1, g->a, lda, g->b, ldb, beta, g->c, ldc);
    } else if (callee == ONEDNN) {
        dnnl_sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', m, n, k, 1, g->a, lda,
                   g->b, ldb, beta, g->c, ldc);
    } else {
        bench->blis(CblasRowMajor, transposed(g->transpose_a), transposed(g->transpose_b), m, n, k,
                    1, g->a, lda, g->b, ldb, beta, g->c, ldc);
    }
}

static double flops_of(const struct dp_gemm *g)
{
    return 2.0 * (double)g->m * (double)g->n * (double)g->k;
}

// The least of some rounds.
static double time_shape(const struct bench *bench, const struct dp_gemm *g, int callee)
{
    const int repeats = 1 + (int)(FLOPS_PER_ROUND / flops_of(g));
    double best = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        const int64_t begin = dp_clock_monotonic_ns();
        for (int i = 0; i < repeats; i++) {
            call(bench, g, callee);
        }
        best = fmin(best, 1e-9 * (double)(dp_clock_monotonic_ns() - begin) / repeats);
    }
    return best;
}

// Threads that were just made share a core until the system spreads them.
static void warm_up(const struct bench *bench, int callee)
{
    const int64_t end_ns = dp_clock_monotonic_ns() + WARM_UP_NS;
    while (dp_clock_monotonic_ns() < end_ns) {
        call(bench, &bench->shapes[0].gemm, callee);
    }
}

static void measure(struct bench *bench, int callee, int threads, int out)
{
    struct dp_error err;
    double seconds[SHAPES_MAX];
    DP_CHECK(dp_device_open_cpu(DP_F32, &bench->device, &err) == DP_OK);
    if (callee == OURS) {
        DP_CHECK(dp_device_set_threads(bench->device, threads, &err) == DP_OK);
    }
    openblas_set_num_threads(callee == OPENBLAS ? threads : 1);
    omp_set_num_threads(threads);
    warm_up(bench, callee);
    for (int i = 0; i < bench->count; i++) {
        seconds[i] = time_shape(bench, &bench->shapes[i].gemm, callee);
    }
    dp_device_close(bench->device);
    const size_t bytes = (size_t)bench->count * sizeof(double);
    _exit(write(out, seconds, bytes) == (ssize_t)bytes ? 0 : 1);
}

// In a process of its own: a library's threads spin long after its last call, on the core of the
// next callee's.
static void measure_apart(struct bench *bench, int callee, int threads)
{
    int ends[2];
    double seconds[SHAPES_MAX];
    DP_CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    DP_CHECK(child >= 0);
    if (child == 0) {
        measure(bench, callee, threads, ends[1]);
    }
    close(ends[1]);
    const ssize_t bytes = (ssize_t)((size_t)bench->count * sizeof(double));
    DP_CHECK(read(ends[0], seconds, (size_t)bytes) == bytes);
    close(ends[0]);
    DP_CHECK(waitpid(child, NULL, 0) == child);
    for (int i = 0; i < bench->count; i++) {
        double *best = &bench->shapes[i].best[callee];
        *best = fmin(*best, seconds[i]);
    }
}

static void add_shape(struct bench *bench, const char *name, bool ta, bool tb, int64_t m, int64_t n,
                      int64_t k)
{
    DP_CHECK(bench->count < SHAPES_MAX);
    bench->shapes[bench->count++] = (struct shape){.name = name,
                                                   .gemm = {.transpose_a = ta,
                                                            .transpose_b = tb,
                                                            .accumulate = ta,
                                                            .m = m,
                                                            .n = n,
                                                            .k = k,
                                                            .lda = ta ? m : k,
                                                            .ldb = tb ? k : n,
                                                            .ldc = n}};
}

// The three products of y[rows, out] = x[rows, in] w[out, in]^T.
static void add_linear(struct bench *bench, int64_t rows, int64_t out, int64_t in)
{
    add_shape(bench, "forward", false, true, rows, out, in);
    add_shape(bench, "of inputs", false, false, rows, in, out);
    add_shape(bench, "of weights", true, false, out, in, rows);
}

static void print_row(const char *what, int threads, double value, const char *unit,
                      const char *peer, double ratio)
{
    printf("{\"name\": \"GEMM, threads: %d, %s\", \"value\": %.4f, \"unit\": \"%s\", "
           "\"peer\": \"%s\", \"ratio\": %.4f, \"goal\": \"at least %g\", \"met\": %s}\n",
           threads, what, value, unit, peer, ratio, GOAL, ratio >= GOAL ? "true" : "false");
}

static void report(const struct bench *bench, int threads)
{
    double flops = 0, ours = 0, theirs = 0, worst = INFINITY;
    char worst_text[96] = "", peer_text[96];
    for (int i = 0; i < bench->count; i++) {
        const struct shape *shape = &bench->shapes[i];
        const struct dp_gemm *g = &shape->gemm;
        int peer = OPENBLAS;
        for (int callee = OPENBLAS; callee < CALLEES; callee++) {
            peer = shape->best[callee] < shape->best[peer] ? callee : peer;
        }
        const double ratio = shape->best[peer] / shape->best[OURS];
        printf("# %-10s %5lld %5lld %5lld %7.1f Gflop/s, %s %7.1f, %.2f\n", shape->name,
               (long long)g->m, (long long)g->n, (long long)g->k,
               flops_of(g) / shape->best[OURS] * 1e-9, names[peer],
               flops_of(g) / shape->best[peer] * 1e-9, ratio);
        flops += flops_of(g);
        ours += shape->best[OURS];
        theirs += shape->best[peer];
        if (ratio < worst) {
            worst = ratio;
            snprintf(worst_text, sizeof(worst_text), "%s m %lld n %lld k %lld, %s", shape->name,
                     (long long)g->m, (long long)g->n, (long long)g->k, names[peer]);
        }
    }
    snprintf(peer_text, sizeof(peer_text), "the best library at each: %.1f", flops / theirs * 1e-9);
    print_row("all shapes of a step", threads, flops / ours * 1e-9, "Gflop/s", peer_text,
              theirs / ours);
    print_row("the worst shape", threads, worst, "ratio", worst_text, worst);
}

static void run(struct bench *bench, int threads)
{
    for (int i = 0; i < bench->count; i++) {
        for (int callee = 0; callee < CALLEES; callee++) {
            bench->shapes[i].best[callee] = INFINITY;
        }
    }
    for (int turn = 0; turn < TURNS; turn++) {
        for (int callee = 0; callee < (bench->blis == NULL ? BLIS : CALLEES); callee++) {
            measure_apart(bench, callee, threads);
        }
    }
    report(bench, threads);
    fflush(stdout);
}

static float *values(int64_t count)
{
    float *x = dp_alloc_aligned((size_t)count, sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)(i % 13 - 6) / 8;
    }
    return x;
}

int main(void)
{
    struct bench bench = {0};
    // BLIS has one thread: it reads the number when it is loaded.
    setenv("BLIS_NUM_THREADS", "1", 1);
    void *library = dlopen("libblis.so.4", RTLD_NOW | RTLD_LOCAL);
    if (library != NULL) {
        *(void **)&bench.blis = dlsym(library, "cblas_sgemm");
    }
    add_linear(&bench, 1024, 768, 256);
    add_linear(&bench, 1024, 256, 256);
    add_linear(&bench, 1024, 8192, 256);
    add_linear(&bench, 1024, 8, 256);
    for (int64_t rows = 32; rows <= 512; rows *= 2) {
        add_linear(&bench, rows, 1024, 256);
        add_linear(&bench, rows, 256, 512);
    }
    const int64_t most = 1024 * 8192;
    DP_AUTO_FREE float *a = values(most), *b = values(most), *c = values(most);
    for (int i = 0; i < bench.count; i++) {
        bench.shapes[i].gemm.a = a;
        bench.shapes[i].gemm.b = b;
        bench.shapes[i].gemm.c = c;
    }
    run(&bench, 1);
    run(&bench, 2);
    return 0;
}
