#include <cblas.h>
#include <limits.h>

#include "cpu_real.h"
#include "dp/check.h"

static void clear(const struct dp_gemm *gemm)
{
    for (int64_t i = 0; i < gemm->m; i++) {
        memset((real *)gemm->c + i * gemm->ldc, 0, (size_t)gemm->n * sizeof(real));
    }
}

void real_gemm(struct dp_stream *stream, const struct dp_gemm *gemm)
{
    (void)stream;
    if (gemm->m == 0 || gemm->n == 0) {
        return;
    }
    if (gemm->k == 0) {
        if (!gemm->accumulate) {
            clear(gemm);
        }
        return;
    }
    DP_CHECK(gemm->m <= INT_MAX && gemm->n <= INT_MAX && gemm->k <= INT_MAX);
    DP_CHECK(gemm->lda <= INT_MAX && gemm->ldb <= INT_MAX && gemm->ldc <= INT_MAX);
    const CBLAS_TRANSPOSE ta = gemm->transpose_a ? CblasTrans : CblasNoTrans;
    const CBLAS_TRANSPOSE tb = gemm->transpose_b ? CblasTrans : CblasNoTrans;
    const real beta = gemm->accumulate ? 1 : 0;
#ifdef DP_CPU_DOUBLE
    cblas_dgemm(CblasRowMajor, ta, tb, (int)gemm->m, (int)gemm->n, (int)gemm->k, 1, gemm->a,
                (int)gemm->lda, gemm->b, (int)gemm->ldb, beta, gemm->c, (int)gemm->ldc);
#else
    cblas_sgemm(CblasRowMajor, ta, tb, (int)gemm->m, (int)gemm->n, (int)gemm->k, 1, gemm->a,
                (int)gemm->lda, gemm->b, (int)gemm->ldb, beta, gemm->c, (int)gemm->ldc);
#endif
}

void DP_CPU_INSTALLER(gemm)(struct dp_device_ops *ops)
{
    ops->gemm = real_gemm;
}
