// Failures of a stream, and operations that the cuda device does not have yet.
#include <stdarg.h>
#include <stdio.h>

#include "cuda_device.h"

void dp_cuda_fail(struct dp_stream *stream, dp_status status, const char *format, ...)
{
    if (stream->err.status != DP_OK) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(stream->err.message, sizeof(stream->err.message), format, arguments);
    va_end(arguments);
    stream->err.status = status;
}

static void refuse(struct dp_stream *stream, const char *operation)
{
    dp_cuda_fail(stream, DP_UNSUPPORTED,
                 "%s on the cuda device is not built; run this model on the cpu device", operation);
}

static void attention_forward(struct dp_stream *stream, const struct dp_attention *attention)
{
    (void)attention;
    refuse(stream, "attention");
}

static void attention_input_grad(struct dp_stream *stream, const struct dp_attention *attention,
                                 const void *doutput, void *dq, void *dk, void *dv, void *dsink)
{
    (void)attention;
    (void)doutput;
    (void)dq;
    (void)dk;
    (void)dv;
    (void)dsink;
    refuse(stream, "the gradient of attention");
}

void dp_cuda_install_absent(struct dp_device_ops *ops)
{
    ops->attention_forward = attention_forward;
    ops->attention_input_grad = attention_input_grad;
}
