// Matrix products of floats and of doubles by the libraries on this machine. One thread each.
#pragma once

#include "dp/device.h"

// c (+)= op(a) op(b) with every operand as it is; all sizes over 0. By any thread.
void dp_blas_f32(const struct dp_gemm *gemm);
void dp_blas_f64(const struct dp_gemm *gemm);
