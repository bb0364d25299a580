// Opening a GPU, and its memory with an account of who has what.
#include "dp/cuda.h"

#include <search.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "memory.h"
#include "stream.h"

struct piece {
    void *memory;
    size_t bytes;
    dp_memory_tag tag;
};

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const struct piece *)a)->memory;
    const uintptr_t y = (uintptr_t)((const struct piece *)b)->memory;
    return (x > y) - (x < y);
}

// Staging memory is the host's, pinned so that copies need no thread; the rest is the GPU's.
static cudaError_t get(dp_memory_tag tag, size_t bytes, void **ret_memory)
{
    return tag == DP_MEMORY_STAGING ? cudaHostAlloc(ret_memory, bytes, cudaHostAllocPortable)
                                    : cudaMalloc(ret_memory, bytes);
}

static void give_back(const struct piece *piece)
{
    if (piece->tag == DP_MEMORY_STAGING) {
        cudaFreeHost(piece->memory);
    } else {
        cudaFree(piece->memory);
    }
}

static dp_status cuda_alloc(struct dp_device *device, dp_memory_tag tag, size_t bytes,
                            void **ret_memory, struct dp_error *err)
{
    struct dp_cuda_device *cuda = dp_cuda_of(device);
    if (!dp_account_add(device, tag, bytes, false)) {
        return dp_account_fail(device, tag, bytes, err);
    }
    struct piece *piece = dp_new(struct piece);
    *piece = (struct piece){.bytes = bytes, .tag = tag};
    dp_cuda_use(device);
    const cudaError_t error = get(tag, bytes == 0 ? 1 : bytes, &piece->memory);
    if (error != cudaSuccess) {
        cudaGetLastError(); // what the next launch would report
        free(piece);
        dp_account_remove(device, tag, bytes);
        return dp_fail(err, DP_UNSCHEDULABLE,
                       "no memory on GPU %d for %zu bytes of %s: %s; use a smaller micro-batch, "
                       "recompute more or spread over more ranks",
                       cuda->gpu, bytes, dp_memory_tag_text(tag), cudaGetErrorString(error));
    }
    pthread_mutex_lock(&cuda->lock);
    tsearch(piece, &cuda->pieces, by_address);
    pthread_mutex_unlock(&cuda->lock);
    *ret_memory = piece->memory;
    return DP_OK;
}

static void cuda_free(struct dp_device *device, void *memory)
{
    struct dp_cuda_device *cuda = dp_cuda_of(device);
    if (memory == NULL) {
        return;
    }
    const struct piece key = {.memory = memory};
    pthread_mutex_lock(&cuda->lock);
    struct piece **found = tfind(&key, &cuda->pieces, by_address);
    struct piece *piece = found == NULL ? NULL : *found;
    tdelete(&key, &cuda->pieces, by_address);
    pthread_mutex_unlock(&cuda->lock);
    DP_CHECK(piece != NULL);
    dp_cuda_use(device);
    give_back(piece);
    dp_account_remove(device, piece->tag, piece->bytes);
    free(piece);
}

static void install(struct dp_device_ops *ops)
{
    ops->alloc = cuda_alloc;
    ops->free = cuda_free;
    dp_cuda_install_streams(ops);
    dp_cuda_install_arithmetic(ops);
    dp_cuda_install_fp8(ops);
    dp_cuda_install_gemm(ops);
    dp_cuda_install_loss(ops);
    dp_cuda_install_norm(ops);
    dp_cuda_install_router(ops);
    dp_cuda_install_rows(ops);
    dp_cuda_install_swiglu(ops);
    dp_cuda_install_absent(ops);
}

// The GPU's compute capability as 80, 90, ...
static dp_status look_at_gpu(int gpu, int *ret_sm, struct dp_error *err)
{
    int count = 0, major = 0, minor = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && gpu >= count) {
        return dp_fail(err, DP_UNAVAILABLE, "there is no GPU %d: this process sees %d", gpu, count);
    }
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu);
    }
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu);
    }
    if (error != cudaSuccess) {
        return dp_fail(err, DP_UNAVAILABLE, "GPU %d: %s", gpu, cudaGetErrorString(error));
    }
    *ret_sm = 10 * major + minor;
    if (*ret_sm < 80) {
        return dp_fail(err, DP_UNSUPPORTED, "GPU %d has sm_%d; the kernels need sm_80 or newer",
                       gpu, *ret_sm);
    }
    return DP_OK;
}

dp_status dp_device_open_cuda(dp_element element, int gpu, struct dp_device **ret_device,
                              struct dp_error *err)
{
    int sm = 0;
    if (element != DP_F32 && element != DP_BF16) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "the cuda device holds floats and bf16, no doubles; use the cpu device");
    }
    dp_status status = look_at_gpu(gpu, &sm, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_cuda_device *cuda = dp_new(struct dp_cuda_device);
    cuda->gpu = gpu;
    cuda->sm = sm;
    pthread_mutex_init(&cuda->lock, NULL);
    install(&cuda->ops);
    cuda->device =
        (struct dp_device){.ops = &cuda->ops, .element = element, .account = dp_account_new()};
    dp_cuda_use(&cuda->device);
    const cublasStatus_t made = cublasLtCreate(&cuda->cublas);
    if (made != CUBLAS_STATUS_SUCCESS) {
        status = dp_fail(err, DP_UNAVAILABLE, "cuBLASLt on GPU %d: %s", gpu,
                         cublasLtGetStatusString(made));
    } else {
        status = dp_cuda_stream_open(&cuda->device, &cuda->device.stream, err);
    }
    if (status != DP_OK) {
        dp_device_close_cuda(&cuda->device);
        return status;
    }
    *ret_device = &cuda->device;
    return DP_OK;
}

void dp_device_close_cuda(struct dp_device *device)
{
    if (device == NULL) {
        return;
    }
    struct dp_cuda_device *cuda = dp_cuda_of(device);
    dp_cuda_stream_close(device->stream);
    if (cuda->cublas != NULL) {
        cublasLtDestroy(cuda->cublas);
    }
    DP_CHECK(cuda->pieces == NULL);
    dp_account_free(device->account);
    pthread_mutex_destroy(&cuda->lock);
    free(cuda);
}
