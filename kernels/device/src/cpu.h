// What the cpu kernels share. Each cpu_*.c is compiled once per variant (element type and
// instruction set) and installs its operations into the table of a device.
#pragma once

#include <stddef.h>

#include "dp/device.h"

struct dp_stream {
    struct dp_device *device;
    void *scratch;
    size_t scratch_bytes;
};

// At least `bytes` of memory, valid until the next call on this stream.
void *dp_stream_scratch(struct dp_stream *stream, size_t bytes);

#define DP_CPU_DECLARE(variant)                                                                    \
    void dp_cpu_install_arithmetic_##variant(struct dp_device_ops *ops);                           \
    void dp_cpu_install_attention_##variant(struct dp_device_ops *ops);                            \
    void dp_cpu_install_gemm_##variant(struct dp_device_ops *ops);                                 \
    void dp_cpu_install_loss_##variant(struct dp_device_ops *ops);                                 \
    void dp_cpu_install_norm_##variant(struct dp_device_ops *ops);                                 \
    void dp_cpu_install_router_##variant(struct dp_device_ops *ops);                               \
    void dp_cpu_install_rows_##variant(struct dp_device_ops *ops);                                 \
    void dp_cpu_install_swiglu_##variant(struct dp_device_ops *ops);
DP_CPU_DECLARE(f32)
DP_CPU_DECLARE(f64)
DP_CPU_DECLARE(f32_avx2)
