// Copies of operands that cuBLASLt does not take as they are. Everything is device memory.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda_device.h"
#include "product.h"

// A bf16 matrix to dense floats, and dense floats to a bf16 matrix; ld: of the bf16 matrix.
void dp_cuda_widen(struct dp_stream *stream, const struct dp_cuda_operand *operand, int64_t ld,
                   const void *matrix, float *dense);
void dp_cuda_narrow(struct dp_stream *stream, const struct dp_cuda_operand *operand, int64_t ld,
                    const float *dense, void *matrix);

// Scales of an fp8 operand, row by row of tiles, into operand->scale_bytes at `to`. Scales that
// become exponents must be powers of two; others are a failure of the stream.
void dp_cuda_lay_scales(struct dp_stream *stream, const struct dp_cuda_operand *operand,
                        const float *scales, void *to);

#ifdef __cplusplus
}
#endif
