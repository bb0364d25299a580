// Streams, events, copies and scratch memory: cudart's.
#include "stream.h"

#include <stdlib.h>

#include "dp/alloc.h"

void dp_cuda_use(const struct dp_device *device)
{
    static _Thread_local int used = -1;
    const int gpu = ((const struct dp_cuda_device *)device)->gpu;
    if (used != gpu && cudaSetDevice(gpu) == cudaSuccess) {
        used = gpu;
    }
}

bool dp_cuda_check(struct dp_stream *stream, cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        dp_cuda_fail(stream, DP_INTERNAL, "%s on GPU %d: %s", what, dp_cuda_of(stream->device)->gpu,
                     cudaGetErrorString(error));
    }
    return error == cudaSuccess;
}

void dp_cuda_launched(struct dp_stream *stream, const char *kernel)
{
    dp_cuda_check(stream, cudaGetLastError(), kernel);
}

void *dp_cuda_scratch(struct dp_stream *stream, size_t bytes)
{
    struct dp_device *device = stream->device;
    if (bytes <= stream->scratch_bytes) {
        return stream->scratch;
    }
    dp_cuda_use(device);
    // Work that is queued may still use the old one.
    if (!dp_cuda_check(stream, cudaStreamSynchronize(stream->handle),
                       "waiting for scratch memory")) {
        return NULL;
    }
    device->ops->free(device, stream->scratch);
    stream->scratch = NULL;
    stream->scratch_bytes = 0;
    struct dp_error err;
    if (device->ops->alloc(device, DP_MEMORY_SCRATCH, bytes, &stream->scratch, &err) != DP_OK) {
        dp_cuda_fail(stream, err.status, "%s", err.message);
        return NULL;
    }
    stream->scratch_bytes = bytes;
    return stream->scratch;
}

void dp_cuda_fetch_double(struct dp_stream *stream, const double *from, double *to)
{
    stream->device->ops->copy(stream, to, from, sizeof(*to));
}

static void copy(struct dp_stream *stream, void *to, const void *from, size_t bytes)
{
    dp_cuda_use(stream->device);
    if (bytes > 0) {
        dp_cuda_check(stream, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream->handle),
                      "a copy");
    }
}

static void fill(struct dp_stream *stream, void *to, int value, size_t bytes)
{
    dp_cuda_use(stream->device);
    if (bytes > 0) {
        dp_cuda_check(stream, cudaMemsetAsync(to, value, bytes, stream->handle), "a fill");
    }
}

dp_status dp_cuda_stream_open(struct dp_device *device, struct dp_stream **ret_stream,
                              struct dp_error *err)
{
    struct dp_stream *stream = dp_new(struct dp_stream);
    void *counters = NULL;
    cudaStream_t handle = NULL;
    stream->device = device;
    dp_cuda_use(device);
    cudaError_t error = cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking);
    stream->handle = handle;
    if (error == cudaSuccess) {
        error = cudaMalloc(&counters, 2 * sizeof(unsigned long long));
        stream->bad_values = counters;
        stream->bad_scales = stream->bad_values + 1;
    }
    if (error == cudaSuccess) {
        error = cudaMemsetAsync(counters, 0, 2 * sizeof(unsigned long long), handle);
    }
    if (error != cudaSuccess) {
        dp_status status = dp_fail(err, DP_UNAVAILABLE, "opening a stream on GPU %d: %s",
                                   dp_cuda_of(device)->gpu, cudaGetErrorString(error));
        dp_cuda_stream_close(stream);
        return status;
    }
    *ret_stream = stream;
    return DP_OK;
}

void dp_cuda_stream_close(struct dp_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    dp_cuda_use(stream->device);
    if (stream->handle != NULL) {
        cudaStreamSynchronize(stream->handle);
        cudaStreamDestroy(stream->handle);
    }
    cudaFree(stream->bad_values);
    stream->device->ops->free(stream->device, stream->scratch);
    free(stream);
}

// What kernels counted; back to 0.
static void take_counters(struct dp_stream *stream)
{
    unsigned long long counted[2] = {0, 0};
    copy(stream, counted, stream->bad_values, sizeof(counted));
    dp_cuda_check(stream, cudaStreamSynchronize(stream->handle), "the stream's work");
    if (counted[0] > 0) {
        dp_cuda_fail(stream, DP_INVALID,
                     "%llu of the values to be stored as fp8 are infinite or NaN; lower the "
                     "learning rate or train in bf16",
                     counted[0]);
    }
    if (counted[1] > 0) {
        dp_cuda_fail(stream, DP_INVALID,
                     "%llu fp8 scales are no powers of two, which this GPU's products need; "
                     "quantise with power_of_two",
                     counted[1]);
    }
    if (counted[0] > 0 || counted[1] > 0) {
        fill(stream, stream->bad_values, 0, sizeof(counted));
    }
}

static dp_status stream_sync(struct dp_stream *stream, struct dp_error *err)
{
    take_counters(stream);
    if (stream->err.status == DP_OK) {
        return DP_OK;
    }
    dp_status status = dp_fail(err, stream->err.status, "%s", stream->err.message);
    stream->err.status = DP_OK;
    return status;
}

struct dp_event {
    cudaEvent_t event;
};

static void event_close(struct dp_event *event)
{
    if (event != NULL) {
        cudaEventDestroy(event->event); // when it has been reached, if it is waited for
        free(event);
    }
}

static dp_status event_record(struct dp_stream *stream, struct dp_event **ret_event,
                              struct dp_error *err)
{
    struct dp_event *event = dp_new(struct dp_event);
    dp_cuda_use(stream->device);
    cudaError_t error = cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming);
    if (error == cudaSuccess) {
        error = cudaEventRecord(event->event, stream->handle);
        if (error != cudaSuccess) {
            cudaEventDestroy(event->event);
        }
    }
    if (error != cudaSuccess) {
        free(event);
        return dp_fail(err, DP_INTERNAL, "recording an event on GPU %d: %s",
                       dp_cuda_of(stream->device)->gpu, cudaGetErrorString(error));
    }
    *ret_event = event;
    return DP_OK;
}

// With the device's own stream the calling thread waits as well, as on the cpu.
static void event_wait(struct dp_stream *stream, struct dp_event *event)
{
    dp_cuda_use(stream->device);
    dp_cuda_check(stream, cudaStreamWaitEvent(stream->handle, event->event, 0), "an event");
    if (stream == stream->device->stream) {
        dp_cuda_check(stream, cudaEventSynchronize(event->event), "an event");
    }
}

static bool event_done(struct dp_event *event)
{
    return cudaEventQuery(event->event) == cudaSuccess;
}

void dp_cuda_install_streams(struct dp_device_ops *ops)
{
    ops->copy = copy;
    ops->fill = fill;
    ops->stream_open = dp_cuda_stream_open;
    ops->stream_close = dp_cuda_stream_close;
    ops->stream_sync = stream_sync;
    ops->event_record = event_record;
    ops->event_wait = event_wait;
    ops->event_done = event_done;
    ops->event_close = event_close;
}
