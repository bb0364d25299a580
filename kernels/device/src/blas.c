// Floats go to oneDNN, which is the fastest of Debian's libraries at every shape of a training step
// (tests/bench/gemm_bench.c), above all where one side is small; doubles to OpenBLAS, since oneDNN
// has none.
#include "blas.h"

#include <cblas.h>
#include <limits.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>

#include "dp/check.h"

// Of OpenMP's interface, whose header not every compiler has.
void omp_set_num_threads(int threads);

// Threads are the device's: see dp_cpu_parallel. OpenBLAS's own would fight with them.
static void one_thread(void)
{
    openblas_set_num_threads(1);
}

void dp_blas_f32(const struct dp_gemm *g)
{
    // oneDNN asks OpenMP, which keeps a number for each thread.
    static _Thread_local bool alone;
    if (!alone) {
        omp_set_num_threads(1);
        alone = true;
    }
    const dnnl_status_t status =
        dnnl_sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', g->m, g->n, g->k, 1,
                   g->a, g->lda, g->b, g->ldb, g->accumulate ? 1 : 0, g->c, g->ldc);
    // It refuses leading dimensions that are too short, and nothing else.
    DP_CHECK(status == dnnl_success);
}

void dp_blas_f64(const struct dp_gemm *g)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, one_thread);
    DP_CHECK(g->m <= INT_MAX && g->n <= INT_MAX && g->k <= INT_MAX);
    DP_CHECK(g->lda <= INT_MAX && g->ldb <= INT_MAX && g->ldc <= INT_MAX);
    cblas_dgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
                g->transpose_b ? CblasTrans : CblasNoTrans, (int)g->m, (int)g->n, (int)g->k, 1,
                g->a, (int)g->lda, g->b, (int)g->ldb, g->accumulate ? 1 : 0, g->c, (int)g->ldc);
}
