#include "dp/device.h"

#include <cblas.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "dp/alloc.h"
#include "dp/check.h"

struct cpu_device {
    struct dp_device device;
    struct dp_device_ops ops;
};

typedef void (*installer)(struct dp_device_ops *ops);

#define INSTALLERS(variant)                                                                        \
    {                                                                                              \
        dp_cpu_install_arithmetic_##variant, dp_cpu_install_attention_##variant,                   \
            dp_cpu_install_gemm_##variant, dp_cpu_install_loss_##variant,                          \
            dp_cpu_install_norm_##variant, dp_cpu_install_router_##variant,                        \
            dp_cpu_install_rows_##variant, dp_cpu_install_swiglu_##variant                         \
    }
#define INSTALLER_COUNT 8

static const installer installers_f32[INSTALLER_COUNT] = INSTALLERS(f32);
static const installer installers_f64[INSTALLER_COUNT] = INSTALLERS(f64);
#ifdef DP_CPU_HAS_AVX2
static const installer installers_f32_avx2[INSTALLER_COUNT] = INSTALLERS(f32_avx2);
#endif

static const installer *installers_for(dp_element element)
{
    if (element == DP_F64) {
        return installers_f64;
    }
#ifdef DP_CPU_HAS_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return installers_f32_avx2;
    }
#endif
    return installers_f32;
}

size_t dp_element_bytes(dp_element element)
{
    return element == DP_F64 ? sizeof(double) : sizeof(float);
}

void *dp_stream_scratch(struct dp_stream *stream, size_t bytes)
{
    if (bytes > stream->scratch_bytes) {
        free(stream->scratch);
        stream->scratch = dp_alloc_aligned(1, bytes);
        stream->scratch_bytes = bytes;
    }
    return stream->scratch;
}

static dp_status cpu_alloc(struct dp_device *device, size_t bytes, void **ret_memory,
                           struct dp_error *err)
{
    (void)device;
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes == 0 ? 64 : bytes) != 0) {
        return dp_fail(err, DP_UNSCHEDULABLE,
                       "no host memory for %zu bytes; use fewer ranks per node or a smaller "
                       "micro-batch",
                       bytes);
    }
    *ret_memory = memory;
    return DP_OK;
}

static void cpu_free(struct dp_device *device, void *memory)
{
    (void)device;
    free(memory);
}

static void cpu_copy(struct dp_stream *stream, void *to, const void *from, size_t bytes)
{
    (void)stream;
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
}

static void cpu_fill(struct dp_stream *stream, void *to, int value, size_t bytes)
{
    (void)stream;
    if (bytes > 0) {
        memset(to, value, bytes);
    }
}

static dp_status cpu_stream_open(struct dp_device *device, struct dp_stream **ret_stream,
                                 struct dp_error *err)
{
    (void)err;
    struct dp_stream *stream = dp_new(struct dp_stream);
    stream->device = device;
    *ret_stream = stream;
    return DP_OK;
}

static void cpu_stream_close(struct dp_stream *stream)
{
    free(stream->scratch);
    free(stream);
}

static dp_status cpu_stream_sync(struct dp_stream *stream, struct dp_error *err)
{
    (void)stream;
    (void)err;
    return DP_OK;
}

static dp_status cpu_event_record(struct dp_stream *stream, struct dp_event **ret_event,
                                  struct dp_error *err)
{
    (void)stream;
    (void)err;
    *ret_event = NULL;
    return DP_OK;
}

static void cpu_event_wait(struct dp_stream *stream, struct dp_event *event)
{
    (void)stream;
    (void)event;
}

static void cpu_event_close(struct dp_event *event)
{
    (void)event;
}

static const struct dp_device_ops cpu_base = {
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .stream_sync = cpu_stream_sync,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_close = cpu_event_close,
};

static void one_thread(void)
{
    openblas_set_num_threads(1);
}

void dp_device_set_threads(int32_t threads)
{
    DP_CHECK(threads >= 1);
    openblas_set_num_threads(threads);
}

dp_status dp_device_open_cpu(dp_element element, struct dp_device **ret_device,
                             struct dp_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, one_thread);
    struct cpu_device *cpu = dp_new(struct cpu_device);
    cpu->ops = cpu_base;
    const installer *install = installers_for(element);
    for (size_t i = 0; i < INSTALLER_COUNT; i++) {
        install[i](&cpu->ops);
    }
    cpu->device = (struct dp_device){.ops = &cpu->ops, .element = element};
    dp_status status = cpu_stream_open(&cpu->device, &cpu->device.stream, err);
    if (status != DP_OK) {
        free(cpu);
        return status;
    }
    *ret_device = &cpu->device;
    return DP_OK;
}

void dp_device_close(struct dp_device *device)
{
    if (device == NULL) {
        return;
    }
    device->ops->stream_close(device->stream);
    free(device);
}
