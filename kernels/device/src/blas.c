#include "blas.h"

#include <cblas.h>
#include <limits.h>
#include <pthread.h>

#include "dp/check.h"

// Threads are the device's: see dp_cpu_parallel. OpenBLAS's own would fight with them.
static void one_thread(void)
{
    openblas_set_num_threads(1);
}

static void prepare(const struct dp_gemm *g)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, one_thread);
    DP_CHECK(g->m <= INT_MAX && g->n <= INT_MAX && g->k <= INT_MAX);
    DP_CHECK(g->lda <= INT_MAX && g->ldb <= INT_MAX && g->ldc <= INT_MAX);
}

static CBLAS_TRANSPOSE transpose_of(bool transpose)
{
    return transpose ? CblasTrans : CblasNoTrans;
}

void dp_blas_f32(const struct dp_gemm *g)
{
    prepare(g);
    cblas_sgemm(CblasRowMajor, transpose_of(g->transpose_a), transpose_of(g->transpose_b),
                (int)g->m, (int)g->n, (int)g->k, 1, g->a, (int)g->lda, g->b, (int)g->ldb,
                g->accumulate ? 1 : 0, g->c, (int)g->ldc);
}

void dp_blas_f64(const struct dp_gemm *g)
{
    prepare(g);
    cblas_dgemm(CblasRowMajor, transpose_of(g->transpose_a), transpose_of(g->transpose_b),
                (int)g->m, (int)g->n, (int)g->k, 1, g->a, (int)g->lda, g->b, (int)g->ldb,
                g->accumulate ? 1 : 0, g->c, (int)g->ldc);
}
