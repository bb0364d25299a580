#include "emulated_device.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_device.h"
#include "emulate.h"

struct emulated {
    struct dp_device device;
    struct dp_device_ops ops;
    struct dp_stream stream;
};

static dp_status alloc(struct dp_device *, dp_memory_tag, size_t bytes, void **ret_memory,
                       struct dp_error *)
{
    *ret_memory = emulate_alloc(bytes);
    return *ret_memory == NULL ? DP_TOO_LARGE : DP_OK;
}

static void release(struct dp_device *, void *memory)
{
    emulate_free(memory);
}

static void copy(struct dp_stream *, void *to, const void *from, size_t bytes)
{
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
}

static void fill(struct dp_stream *, void *to, int value, size_t bytes)
{
    if (bytes > 0) {
        memset(to, value, bytes);
    }
}

static dp_status stream_sync(struct dp_stream *stream, struct dp_error *err)
{
    if (*stream->bad_values > 0) {
        dp_cuda_fail(stream, DP_INVALID, "%llu of the values are infinite or NaN",
                     *stream->bad_values);
        *stream->bad_values = 0;
    }
    const dp_status status = stream->err.status;
    if (status != DP_OK) {
        *err = stream->err;
        stream->err.status = DP_OK;
    }
    return status;
}

extern "C" {

void *dp_cuda_scratch(struct dp_stream *stream, size_t bytes)
{
    emulate_free(stream->scratch);
    stream->scratch = emulate_alloc(bytes);
    return stream->scratch;
}

void dp_cuda_launched(struct dp_stream *stream, const char *kernel)
{
    const char *problem = emulate_error();
    if (problem != NULL) {
        dp_cuda_fail(stream, DP_INTERNAL, "%s: %s", kernel, problem);
    }
}

void dp_cuda_fetch_double(struct dp_stream *, const double *from, double *to)
{
    memcpy(to, from, sizeof(*to));
}

struct dp_device *emulated_device_open(dp_element element)
{
    struct emulated *e = (struct emulated *)calloc(1, sizeof(*e));
    e->ops.alloc = alloc;
    e->ops.free = release;
    e->ops.copy = copy;
    e->ops.fill = fill;
    e->ops.stream_sync = stream_sync;
    dp_cuda_install_arithmetic(&e->ops);
    dp_cuda_install_fp8(&e->ops);
    dp_cuda_install_loss(&e->ops);
    dp_cuda_install_norm(&e->ops);
    dp_cuda_install_router(&e->ops);
    dp_cuda_install_rows(&e->ops);
    dp_cuda_install_swiglu(&e->ops);
    dp_cuda_install_absent(&e->ops);
    e->device.ops = &e->ops;
    e->device.element = element;
    e->device.stream = &e->stream;
    e->stream.device = &e->device;
    e->stream.bad_values = (unsigned long long *)emulate_alloc(sizeof(unsigned long long));
    e->stream.bad_scales = (unsigned long long *)emulate_alloc(sizeof(unsigned long long));
    *e->stream.bad_values = *e->stream.bad_scales = 0;
    return &e->device;
}

void emulated_device_close(struct dp_device *device)
{
    struct emulated *e = (struct emulated *)device;
    emulate_free(e->stream.scratch);
    emulate_free(e->stream.bad_values);
    emulate_free(e->stream.bad_scales);
    free(e);
}

void emulated_device_schedule(uint64_t seed, bool weak_stores)
{
    emulate_options options = {};
    options.seed = seed;
    options.weak_stores = weak_stores;
    emulate_configure(options);
}

} // extern "C"
