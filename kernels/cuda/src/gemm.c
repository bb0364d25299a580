// Products by cuBLASLt: operands that it does not take as they are become copies in the stream's
// scratch memory.
#include <string.h>

#include "operands.h"
#include "stream.h"

#define WORKSPACE_BYTES ((size_t)32 << 20)
#define ALIGN 256

// The scratch memory of one product.
struct places {
    size_t first, second, d, first_scales, second_scales, workspace, bytes;
};

static size_t take(size_t *bytes, size_t wanted)
{
    const size_t at = *bytes;
    *bytes += (wanted + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static size_t copy_bytes(const struct dp_cuda_operand *operand)
{
    return operand->widened ? (size_t)(operand->rows * operand->cols) * sizeof(float) : 0;
}

static struct places places_for(const struct dp_cuda_product *p)
{
    struct places at = {0};
    at.first = take(&at.bytes, copy_bytes(&p->first));
    at.second = take(&at.bytes, copy_bytes(&p->second));
    at.d = take(&at.bytes, copy_bytes(&p->d));
    at.first_scales = take(&at.bytes, p->first.scale_bytes);
    at.second_scales = take(&at.bytes, p->second.scale_bytes);
    at.workspace = take(&at.bytes, WORKSPACE_BYTES);
    return at;
}

static uint32_t alignment_of(const void *memory)
{
    const uintptr_t bits = (uintptr_t)memory | ALIGN;
    return (uint32_t)(bits & (~bits + 1));
}

static cublasStatus_t ask(struct dp_cuda_device *cuda, const struct dp_cuda_descriptors *d,
                          const uint32_t alignment[3], cublasLtMatmulAlgo_t *ret_algorithm)
{
    static const cublasLtMatmulPreferenceAttributes_t names[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const size_t workspace = WORKSPACE_BYTES;
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return status;
    }
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace, sizeof(workspace));
    for (size_t i = 0; i < 3; i++) {
        cublasLtMatmulPreferenceSetAttribute(preference, names[i], &alignment[i],
                                             sizeof(alignment[i]));
    }
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                         &alignment[2], sizeof(alignment[2]));
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    status = cublasLtMatmulAlgoGetHeuristic(cuda->cublas, d->product, d->first, d->second, d->d,
                                            d->d, preference, 1, &best, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_SUCCESS && found == 0) {
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        *ret_algorithm = best.algo;
    }
    return status;
}

static size_t slot_of(const struct dp_cuda_product *p)
{
    uint64_t mixed = 0;
    const int64_t sizes[] = {p->m,        p->n,         p->k,          p->first.transposed,
                             p->first.ld, p->second.ld, p->first.type, p->second.transposed};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        mixed = (mixed ^ (uint64_t)sizes[i]) * 0x9e3779b97f4a7c15u;
        mixed ^= mixed >> 29;
    }
    return mixed % DP_CUDA_CHOICES;
}

static bool is_operand(const struct dp_cuda_operand *a, const struct dp_cuda_operand *b)
{
    return a->type == b->type && a->transposed == b->transposed && a->rows == b->rows &&
           a->cols == b->cols && a->ld == b->ld && a->scale == b->scale;
}

static bool is_choice(const struct dp_cuda_choice *c, const struct dp_cuda_product *p,
                      const uint32_t alignment[3])
{
    return c->known && c->product.k == p->k && is_operand(&c->product.first, &p->first) &&
           is_operand(&c->product.second, &p->second) && is_operand(&c->product.d, &p->d) &&
           c->product.beta == p->beta && memcmp(c->alignment, alignment, sizeof(c->alignment)) == 0;
}

// A heuristic takes longer than a small product, so the last of each kind is kept.
static cublasStatus_t choose(struct dp_cuda_device *cuda, const struct dp_cuda_product *p,
                             const struct dp_cuda_descriptors *d, const uint32_t alignment[3],
                             cublasLtMatmulAlgo_t *ret_algorithm)
{
    struct dp_cuda_choice *choice = &cuda->choices[slot_of(p)];
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    pthread_mutex_lock(&cuda->lock);
    if (!is_choice(choice, p, alignment)) {
        choice->known = false;
        status = ask(cuda, d, alignment, &choice->algorithm);
        choice->known = status == CUBLAS_STATUS_SUCCESS;
        choice->product = *p;
        memcpy(choice->alignment, alignment, sizeof(choice->alignment));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        *ret_algorithm = choice->algorithm;
    }
    pthread_mutex_unlock(&cuda->lock);
    return status;
}

static void multiply(struct dp_stream *stream, const struct dp_cuda_product *p,
                     const struct dp_cuda_descriptors *d, const void *first, const void *second,
                     void *to, void *workspace)
{
    struct dp_cuda_device *cuda = dp_cuda_of(stream->device);
    const float alpha = 1;
    const uint32_t alignment[3] = {alignment_of(first), alignment_of(second), alignment_of(to)};
    cublasLtMatmulAlgo_t algorithm;
    cublasStatus_t status = choose(cuda, p, d, alignment, &algorithm);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmul(cuda->cublas, d->product, &alpha, first, d->first, second,
                                d->second, &p->beta, to, d->d, to, d->d, &algorithm, workspace,
                                WORKSPACE_BYTES, stream->handle);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        dp_cuda_fail(stream, DP_UNSUPPORTED, "a product of %lld x %lld x %lld by cuBLASLt: %s",
                     (long long)p->n, (long long)p->m, (long long)p->k,
                     cublasLtGetStatusString(status));
    }
}

// The operand, or its copy.
static const void *operand_for(struct dp_stream *stream, const struct dp_cuda_operand *operand,
                               int64_t ld, const void *given, char *copy)
{
    if (!operand->widened) {
        return given;
    }
    dp_cuda_widen(stream, operand, ld, given, (float *)copy);
    return copy;
}

static const void *scales_for(struct dp_stream *stream, const struct dp_cuda_operand *operand,
                              const float *given, char *to)
{
    if (operand->scale == DP_CUDA_SCALE_NONE) {
        return NULL;
    }
    dp_cuda_lay_scales(stream, operand, given, to);
    return to;
}

static void run(struct dp_stream *stream, const struct dp_gemm *g, const struct dp_cuda_product *p)
{
    const struct places at = places_for(p);
    char *scratch = dp_cuda_scratch(stream, at.bytes);
    if (scratch == NULL) {
        return;
    }
    const void *first = operand_for(stream, &p->first, g->ldb, g->b, scratch + at.first);
    const void *second = operand_for(stream, &p->second, g->lda, g->a, scratch + at.second);
    void *to = p->d.widened ? scratch + at.d : g->c;
    if (p->d.widened && p->beta != 0) {
        dp_cuda_widen(stream, &p->d, g->ldc, g->c, to);
    }
    const void *first_scales =
        scales_for(stream, &p->first, g->b_scales.values, scratch + at.first_scales);
    const void *second_scales =
        scales_for(stream, &p->second, g->a_scales.values, scratch + at.second_scales);
    struct dp_cuda_descriptors descriptors;
    struct dp_error err;
    if (dp_cuda_descriptors_init(&descriptors, p, first_scales, second_scales, &err) != DP_OK) {
        dp_cuda_fail(stream, err.status, "%s", err.message);
        return;
    }
    multiply(stream, p, &descriptors, first, second, to, scratch + at.workspace);
    dp_cuda_descriptors_deinit(&descriptors);
    if (p->d.widened) {
        dp_cuda_narrow(stream, &p->d, g->ldc, to, g->c);
    }
}

static void gemm(struct dp_stream *stream, const struct dp_gemm *g)
{
    struct dp_device *device = stream->device;
    struct dp_cuda_product product;
    struct dp_error err;
    if (g->m == 0 || g->n == 0) {
        return;
    }
    dp_cuda_use(device);
    if (g->k == 0) {
        const size_t each = dp_operand_bytes(device, g->c_kind);
        if (!g->accumulate) {
            dp_cuda_check(stream,
                          cudaMemset2DAsync(g->c, (size_t)g->ldc * each, 0, (size_t)g->n * each,
                                            (size_t)g->m, stream->handle),
                          "an empty product");
        }
        return;
    }
    if (dp_cuda_product_plan(dp_cuda_of(device)->sm, device->element, g, &product, &err) != DP_OK) {
        dp_cuda_fail(stream, err.status, "%s", err.message);
        return;
    }
    run(stream, g, &product);
}

void dp_cuda_install_gemm(struct dp_device_ops *ops)
{
    ops->gemm = gemm;
}
