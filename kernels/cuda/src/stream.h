// The device of cudart behind struct dp_device.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "cuda_device.h"
#include "product.h"

// The fastest algorithm for a product at an alignment, as cuBLASLt sees it; asked for once.
struct dp_cuda_choice {
    bool known;
    struct dp_cuda_product product;
    uint32_t alignment[3];
    cublasLtMatmulAlgo_t algorithm;
};
#define DP_CUDA_CHOICES 256

struct dp_cuda_device {
    struct dp_device device;
    struct dp_device_ops ops;
    int gpu, sm;
    cublasLtHandle_t cublas;
    pthread_mutex_t lock; // of what follows
    void *pieces;         // what was given out, a tree by address
    struct dp_cuda_choice choices[DP_CUDA_CHOICES];
};

static inline struct dp_cuda_device *dp_cuda_of(struct dp_device *device)
{
    return (struct dp_cuda_device *)device; // its first member
}

// As dp_cuda_fail for a failure that cudart names.
bool dp_cuda_check(struct dp_stream *stream, cudaError_t error, const char *what);

dp_status dp_cuda_stream_open(struct dp_device *device, struct dp_stream **ret_stream,
                              struct dp_error *err);
void dp_cuda_stream_close(struct dp_stream *stream);
void dp_cuda_install_streams(struct dp_device_ops *ops);
void dp_cuda_install_gemm(struct dp_device_ops *ops);
