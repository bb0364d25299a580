#include <cublasLt.h>

#include "product.h"

static cudaDataType type_of(dp_cuda_type type)
{
    static const cudaDataType types[] = {
        [DP_CUDA_F32] = CUDA_R_32F, [DP_CUDA_BF16] = CUDA_R_16BF, [DP_CUDA_E4M3] = CUDA_R_8F_E4M3};
    return types[type];
}

static cublasLtMatmulMatrixScale_t scale_of(dp_cuda_scale scale)
{
    static const cublasLtMatmulMatrixScale_t scales[] = {
        [DP_CUDA_SCALE_NONE] = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
        [DP_CUDA_SCALE_VEC128] = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
        [DP_CUDA_SCALE_BLK128] = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
        [DP_CUDA_SCALE_VEC32] = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0};
    return scales[scale];
}

static cublasStatus_t set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute,
                          const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(product, attribute, value, bytes);
}

static cublasStatus_t set_scales(cublasLtMatmulDesc_t product,
                                 const struct dp_cuda_operand *operand, const void *scales,
                                 cublasLtMatmulDescAttributes_t mode,
                                 cublasLtMatmulDescAttributes_t pointer)
{
    if (operand->scale == DP_CUDA_SCALE_NONE) {
        return CUBLAS_STATUS_SUCCESS;
    }
    const cublasLtMatmulMatrixScale_t scale = scale_of(operand->scale);
    cublasStatus_t status = set(product, mode, &scale, sizeof(scale));
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = set(product, pointer, &scales, sizeof(scales));
    }
    return status;
}

static cublasStatus_t set_product(cublasLtMatmulDesc_t product, const struct dp_cuda_product *p,
                                  const void *first_scales, const void *second_scales)
{
    const cublasOperation_t first = p->first.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = p->second.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t status = set(product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first));
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = set(product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = set_scales(product, &p->first, first_scales, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                            CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = set_scales(product, &p->second, second_scales, CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
                            CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
    }
    return status;
}

static cublasStatus_t layout(void **ret_layout, const struct dp_cuda_operand *operand)
{
    return cublasLtMatrixLayoutCreate((cublasLtMatrixLayout_t *)ret_layout, type_of(operand->type),
                                      (uint64_t)operand->rows, (uint64_t)operand->cols,
                                      operand->ld);
}

dp_status dp_cuda_descriptors_init(struct dp_cuda_descriptors *descriptors,
                                   const struct dp_cuda_product *product, const void *first_scales,
                                   const void *second_scales, struct dp_error *err)
{
    struct dp_cuda_descriptors made = {0};
    cublasStatus_t status = cublasLtMatmulDescCreate((cublasLtMatmulDesc_t *)&made.product,
                                                     CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = set_product(made.product, product, first_scales, second_scales);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = layout(&made.first, &product->first);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = layout(&made.second, &product->second);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = layout(&made.d, &product->d);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        dp_cuda_descriptors_deinit(&made);
        return dp_fail(err, DP_UNSUPPORTED,
                       "cuBLASLt does not describe a product of %lld x %lld x %lld: %s",
                       (long long)product->n, (long long)product->m, (long long)product->k,
                       cublasLtGetStatusString(status));
    }
    *descriptors = made;
    return DP_OK;
}

void dp_cuda_descriptors_deinit(struct dp_cuda_descriptors *descriptors)
{
    if (descriptors->product != NULL) {
        cublasLtMatmulDescDestroy(descriptors->product);
    }
    if (descriptors->first != NULL) {
        cublasLtMatrixLayoutDestroy(descriptors->first);
    }
    if (descriptors->second != NULL) {
        cublasLtMatrixLayoutDestroy(descriptors->second);
    }
    if (descriptors->d != NULL) {
        cublasLtMatrixLayoutDestroy(descriptors->d);
    }
    *descriptors = (struct dp_cuda_descriptors){0};
}
