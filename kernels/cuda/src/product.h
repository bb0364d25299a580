// A matrix product as cuBLASLt takes it: what to ask for (a pure function of the GPU and of the
// product), and the descriptors for it, which need no GPU either.
#pragma once

#include "dp/device.h"

typedef enum dp_cuda_type { DP_CUDA_F32, DP_CUDA_BF16, DP_CUDA_E4M3 } dp_cuda_type;

// Scales of an fp8 operand as cuBLASLt wants them.
typedef enum dp_cuda_scale {
    DP_CUDA_SCALE_NONE,
    DP_CUDA_SCALE_VEC128, // float for each 128 values along k, [k / 128, rows] with rows in turn
    DP_CUDA_SCALE_BLK128, // float for each 128 x 128, [rows / 128, k / 128] in rows of 4 scales
    DP_CUDA_SCALE_VEC32,  // exponent byte for each 32 values along k, in tiles of 128 x 4
} dp_cuda_scale;

// One operand, column-major: rows x cols with `ld` from column to column.
struct dp_cuda_operand {
    dp_cuda_type type;
    bool transposed;
    bool widened; // bf16 beside float: a copy in float takes part, and d is rounded from its copy
    int64_t rows, cols, ld;
    dp_cuda_scale scale;
    int64_t scale_cols; // the given scales: in a row of tiles
    int32_t tile_rows;  // the given scales: 1 or 128
    size_t scale_bytes; // of cuBLASLt's
};

// d[m, n] = op(first) op(second) + beta d, column-major: the row-major product the other way round,
// so `first` is the caller's b and `second` its a.
struct dp_cuda_product {
    int64_t m, n, k;
    struct dp_cuda_operand first, second, d;
    float beta;
};

// sm: compute capability as 80, 90, 100. DP_UNSUPPORTED with the reason where the GPU or cuBLASLt
// has no such product.
dp_status dp_cuda_product_plan(int sm, dp_element element, const struct dp_gemm *gemm,
                               struct dp_cuda_product *ret_product, struct dp_error *err);

// cuBLASLt's objects; handles of the types of cublasLt.h. deinit after any use.
struct dp_cuda_descriptors {
    void *product, *first, *second, *d;
};
// scales: in cuBLASLt's form, device memory; NULL where there are none.
dp_status dp_cuda_descriptors_init(struct dp_cuda_descriptors *descriptors,
                                   const struct dp_cuda_product *product, const void *first_scales,
                                   const void *second_scales, struct dp_error *err);
void dp_cuda_descriptors_deinit(struct dp_cuda_descriptors *descriptors);
