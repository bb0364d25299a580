// Products of floats through the cpu device against the libraries called directly: OpenBLAS, oneDNN
// and BLIS (where it is installed), at every shape of the training step that torch_moe.py makes,
// forward, gradient of inputs and gradient of weights. Prints rows of build/bench.json.
#include <cblas.h>
#include <dlfcn.h>
#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/device.h"

#define ROUNDS 10
#define SETTLE_NS 5000000
#define FLOPS_PER_ROUND 4e6 // below that, a round is many products
#define GOAL 0.9

void omp_set_num_threads(int threads); // oneDNN's threads; no header with every compiler

typedef void (*blis_sgemm)(CBLAS_ORDER order, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int m, int n,
                           int k, float alpha, const float *a, int lda, const float *b, int ldb,
                           float beta, float *c, int ldc);

enum { OURS, OPENBLAS, ONEDNN, BLIS, CALLEES };
static const char *const names[CALLEES] = {"ours", "OpenBLAS", "oneDNN", "BLIS"};

struct bench {
    struct dp_device *device;
    blis_sgemm blis; // NULL = not there
    struct dp_gemm gemm;
    double flops;      // of all shapes
    double seconds[2]; // ours, and the best library's at each shape
    double worst;      // ratio
    char worst_text[96];
};

static CBLAS_TRANSPOSE transposed(bool transpose)
{
    return transpose ? CblasTrans : CblasNoTrans;
}

static void call(const struct bench *bench, int callee)
{
    const struct dp_gemm *g = &bench->gemm;
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

// Seconds of one product, after others of the same callee: a library's threads that still spin from
// its last call would take the core of the next callee's.
static double time_callee(const struct bench *bench, int callee, int repeats)
{
    const int64_t settled = dp_clock_monotonic_ns() + SETTLE_NS;
    do {
        call(bench, callee);
    } while (dp_clock_monotonic_ns() < settled);
    const int64_t begin = dp_clock_monotonic_ns();
    for (int i = 0; i < repeats; i++) {
        call(bench, callee);
    }
    return 1e-9 * (double)(dp_clock_monotonic_ns() - begin) / repeats;
}

// The least time of some rounds, in turn, so that what else the machine does meets all alike.
static void time_shape(struct bench *bench, const char *name)
{
    const struct dp_gemm *g = &bench->gemm;
    const double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    const int repeats = 1 + (int)(FLOPS_PER_ROUND / flops);
    double best[CALLEES];
    for (int callee = 0; callee < CALLEES; callee++) {
        best[callee] = INFINITY;
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int callee = 0; callee < (bench->blis == NULL ? BLIS : CALLEES); callee++) {
            best[callee] = fmin(best[callee], time_callee(bench, callee, repeats));
        }
    }
    int peer = OPENBLAS;
    for (int callee = OPENBLAS; callee < CALLEES; callee++) {
        peer = best[callee] < best[peer] ? callee : peer;
    }
    const double ratio = best[peer] / best[OURS];
    printf("# %-10s %5lld %5lld %5lld %7.1f Gflop/s, %s %7.1f, %.2f\n", name, (long long)g->m,
           (long long)g->n, (long long)g->k, flops / best[OURS] * 1e-9, names[peer],
           flops / best[peer] * 1e-9, ratio);
    bench->flops += flops;
    bench->seconds[0] += best[OURS];
    bench->seconds[1] += best[peer];
    if (bench->worst == 0 || ratio < bench->worst) {
        bench->worst = ratio;
        snprintf(bench->worst_text, sizeof(bench->worst_text), "%s m %lld n %lld k %lld, %s", name,
                 (long long)g->m, (long long)g->n, (long long)g->k, names[peer]);
    }
}

static void set_shape(struct bench *bench, bool ta, bool tb, bool accumulate, int64_t m, int64_t n,
                      int64_t k)
{
    struct dp_gemm *g = &bench->gemm;
    g->transpose_a = ta;
    g->transpose_b = tb;
    g->accumulate = accumulate;
    g->m = m;
    g->n = n;
    g->k = k;
    g->lda = ta ? m : k;
    g->ldb = tb ? k : n;
    g->ldc = n;
}

// The three products of y[rows, out] = x[rows, in] w[out, in]^T.
static void time_linear(struct bench *bench, int64_t rows, int64_t out, int64_t in)
{
    set_shape(bench, false, true, false, rows, out, in);
    time_shape(bench, "forward");
    set_shape(bench, false, false, false, rows, in, out);
    time_shape(bench, "of inputs");
    set_shape(bench, true, false, true, out, in, rows);
    time_shape(bench, "of weights");
}

static void run(struct bench *bench, int threads)
{
    dp_device_set_threads(bench->device, threads);
    openblas_set_num_threads(threads);
    omp_set_num_threads(threads);
    bench->flops = bench->seconds[0] = bench->seconds[1] = bench->worst = 0;
    time_linear(bench, 1024, 768, 256);
    time_linear(bench, 1024, 256, 256);
    time_linear(bench, 1024, 8192, 256);
    time_linear(bench, 1024, 8, 256);
    for (int64_t rows = 32; rows <= 512; rows *= 2) {
        time_linear(bench, rows, 1024, 256);
        time_linear(bench, rows, 256, 512);
    }
    printf("{\"name\": \"GEMM, %d thread%s, all shapes of a step\", \"value\": %.1f, \"unit\": "
           "\"Gflop/s\", \"peer\": \"the best library at each: %.1f\", \"ratio\": %.4f, "
           "\"goal\": \"at least %g\", \"met\": %s}\n",
           threads, threads == 1 ? "" : "s", bench->flops / bench->seconds[0] * 1e-9,
           bench->flops / bench->seconds[1] * 1e-9, bench->seconds[1] / bench->seconds[0], GOAL,
           bench->seconds[1] >= GOAL * bench->seconds[0] ? "true" : "false");
    printf(
        "{\"name\": \"GEMM, %d thread%s, the worst shape\", \"value\": %.4f, \"unit\": \"ratio\", "
        "\"peer\": \"%s\", \"ratio\": %.4f, \"goal\": \"at least %g\", \"met\": %s}\n",
        threads, threads == 1 ? "" : "s", bench->worst, bench->worst_text, bench->worst, GOAL,
        bench->worst >= GOAL ? "true" : "false");
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
    struct dp_error err;
    DP_CHECK(dp_device_open_cpu(DP_F32, &bench.device, &err) == DP_OK);
    // One thread each: BLIS reads it when it is loaded.
    setenv("BLIS_NUM_THREADS", "1", 1);
    void *library = dlopen("libblis.so.4", RTLD_NOW | RTLD_LOCAL);
    if (library != NULL) {
        *(void **)&bench.blis = dlsym(library, "cblas_sgemm");
    }
    const int64_t most = 1024 * 8192;
    DP_AUTO_FREE float *a = values(most), *b = values(most), *c = values(most);
    bench.gemm = (struct dp_gemm){.a = a, .b = b, .c = c};
    run(&bench, 1);
    run(&bench, 2);
    dp_device_close(bench.device);
    return 0;
}
