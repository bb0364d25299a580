// What the cuda device's parts share. Kernels live in *.cu, each with the host code that launches
// them; each file installs its operations into the table of a device. The same files are compiled
// by nvcc, and as C++ for the emulator of tests/cuda.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#include <stddef.h>

#include "dp/device.h"

struct dp_stream {
    struct dp_device *device;
    void *handle; // cudaStream_t; the emulator's stream
    void *scratch;
    size_t scratch_bytes;
    // Device memory: how many values could not be stored as fp8, and codes whose scales are no
    // powers of two. What stream_sync asks for.
    unsigned long long *bad_values, *bad_scales;
    struct dp_error err; // the first failure since the last sync
};

// At least `bytes` of device memory for work queued next, until the next call on this stream. NULL
// where there is no more, which is a failure of the stream.
void *dp_cuda_scratch(struct dp_stream *stream, size_t bytes);

// Keeps a failure for stream_sync unless there is an earlier one.
void dp_cuda_fail(struct dp_stream *stream, dp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// CUDA's calls of this thread go to the device's GPU.
void dp_cuda_use(const struct dp_device *device);

// After a launch: whether it was accepted.
void dp_cuda_launched(struct dp_stream *stream, const char *kernel);

// From device memory to a host's double, in the stream's order.
void dp_cuda_fetch_double(struct dp_stream *stream, const double *from, double *to);

// *ret_sum = the sum of `count` doubles in device memory, in the same order every time; behind them
// DP_CUDA_SUM_BYTES more are written.
#define DP_CUDA_SUM_BYTES 64
void dp_cuda_sum_doubles(struct dp_stream *stream, int64_t count, double *values, double *ret_sum);

void dp_cuda_install_arithmetic(struct dp_device_ops *ops);
void dp_cuda_install_fp8(struct dp_device_ops *ops);
void dp_cuda_install_loss(struct dp_device_ops *ops);
void dp_cuda_install_norm(struct dp_device_ops *ops);
void dp_cuda_install_router(struct dp_device_ops *ops);
void dp_cuda_install_rows(struct dp_device_ops *ops);
void dp_cuda_install_swiglu(struct dp_device_ops *ops);
// Operations that refuse, each by its name.
void dp_cuda_install_absent(struct dp_device_ops *ops);

#ifdef __cplusplus
}
#endif
