// What the cpu kernels share. Each cpu_*.c is compiled once per variant (element type and
// instruction set) and installs its operations into the table of a device.
#pragma once

#include <stddef.h>

#include "dp/device.h"

struct dp_queue;
struct dp_crew;

struct dp_stream {
    struct dp_device *device;
    const struct dp_device_ops *kernels; // what runs an operation
    struct dp_queue *queue;              // of an opened stream; NULL = operations run at the call
    struct dp_crew *crew;                // borrowed; NULL = the stream's thread works alone
    void *scratch;
    size_t scratch_bytes;
    struct dp_stream **lanes; // what ranges of dp_cpu_parallel are given
    int32_t lane_count;
    struct dp_error err; // the first failure since the last sync
};

// At least `bytes` of memory, valid until the next call on this stream.
void *dp_stream_scratch(struct dp_stream *stream, size_t bytes);

// Keeps a failure for stream_sync unless there is an earlier one.
void dp_stream_fail(struct dp_stream *stream, dp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Some of the work of one operation: items [begin, end). `stream` is for scratch memory, failures
// and products; it is another one for each range at work, and never the caller's.
typedef void (*dp_cpu_range)(struct dp_stream *stream, int64_t begin, int64_t end, void *context);

// Calls `range` for the parts of [0, count), and returns when all are done. The parts depend on
// count, grain and the device's number of threads alone; none but the last has fewer than `grain`
// items. Without threads to spare it is one call.
void dp_cpu_parallel(struct dp_stream *stream, int64_t count, int64_t grain, dp_cpu_range range,
                     void *context);

// Streams and events, and of the kernels copy and fill.
void dp_cpu_install_streams(struct dp_device_ops *ops);
// Operations that run those of a stream's kernels, at once or from its queue.
void dp_cpu_front(struct dp_device_ops *ops);
// The stream that runs at the call; freed by stream_close.
struct dp_stream *dp_stream_new(struct dp_device *device, const struct dp_device_ops *kernels);

#define DP_CPU_DECLARE(variant)                                                                    \
    void dp_cpu_install_arithmetic_##variant(struct dp_device_ops *ops);                           \
    void dp_cpu_install_attention_##variant(struct dp_device_ops *ops);                            \
    void dp_cpu_install_fp8_##variant(struct dp_device_ops *ops);                                  \
    void dp_cpu_install_gemm_##variant(struct dp_device_ops *ops);                                 \
    void dp_cpu_install_loss_##variant(struct dp_device_ops *ops);                                 \
    void dp_cpu_install_norm_##variant(struct dp_device_ops *ops);                                 \
    void dp_cpu_install_router_##variant(struct dp_device_ops *ops);                               \
    void dp_cpu_install_rows_##variant(struct dp_device_ops *ops);                                 \
    void dp_cpu_install_swiglu_##variant(struct dp_device_ops *ops);
DP_CPU_DECLARE(f32)
DP_CPU_DECLARE(f64)
DP_CPU_DECLARE(bf16)
DP_CPU_DECLARE(f32_avx2)
DP_CPU_DECLARE(bf16_avx2)
DP_CPU_DECLARE(f32_avx512)
DP_CPU_DECLARE(bf16_avx512)

#ifdef __x86_64__
// Whether this machine runs the variants of the name.
static inline bool dp_cpu_runs_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static inline bool dp_cpu_runs_avx512(void)
{
    return dp_cpu_runs_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif
