#include "core.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/support/log.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/log.h"

#define LOG_LINES_PER_SECOND 20

// The core logs peers' mistakes as errors on stderr; here they are debug lines, and not too many.
static void log_line(gpr_log_func_args *args)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int64_t window_ns;
    static unsigned lines, dropped;
    pthread_mutex_lock(&lock);
    int64_t now_ns = dp_clock_monotonic_ns();
    unsigned report = 0;
    if (now_ns - window_ns >= DP_NS_PER_S) {
        window_ns = now_ns;
        report = dropped;
        lines = dropped = 0;
    }
    bool keep = lines++ < LOG_LINES_PER_SECOND;
    dropped += keep ? 0 : 1;
    pthread_mutex_unlock(&lock);
    if (report > 0) {
        dp_log_debug("grpc.dropped", "lines=%u", report);
    }
    if (keep) {
        char quoted[1024];
        const char *file = strrchr(args->file, '/');
        dp_log_debug("grpc.core", "at=%s:%d message=%s", file == NULL ? args->file : file + 1,
                     args->line, dp_log_quote(quoted, sizeof quoted, args->message));
    }
}

void dp_rpc_signals_block(sigset_t *ret_old)
{
    // Faults stay deliverable: they belong to the thread that makes them.
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF};
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(faults); i++) {
        sigdelset(&all, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &all, ret_old);
}

void dp_rpc_signals_restore(const sigset_t *old)
{
    pthread_sigmask(SIG_SETMASK, old, NULL);
}

void dp_rpc_core_enter(void)
{
    sigset_t old;
    dp_rpc_signals_block(&old);
    gpr_set_log_function(log_line);
    grpc_init();
    dp_rpc_signals_restore(&old);
}

void dp_rpc_core_leave(void)
{
    grpc_shutdown();
}

gpr_timespec dp_rpc_deadline_ms(unsigned ms)
{
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

gpr_timespec dp_rpc_deadline_never(void)
{
    return gpr_inf_future(GPR_CLOCK_MONOTONIC);
}

grpc_byte_buffer *dp_rpc_message_pack(const ProtobufCMessage *message, size_t bytes_max,
                                      size_t *ret_bytes)
{
    size_t length = protobuf_c_message_get_packed_size(message);
    *ret_bytes = length;
    if (length > bytes_max) {
        return NULL;
    }
    grpc_slice slice = grpc_slice_malloc(length);
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

bool dp_rpc_bytes_read(grpc_byte_buffer *buffer, struct dp_buf *out)
{
    dp_buf_clear(out);
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer)) {
        return false;
    }
    grpc_slice slice;
    while (grpc_byte_buffer_reader_next(&reader, &slice)) {
        dp_buf_append(out, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
        grpc_slice_unref(slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    return true;
}

bool dp_rpc_batch_start(grpc_call *call, const grpc_op *ops, size_t count, void *tag)
{
    grpc_call_error error = grpc_call_start_batch(call, ops, count, tag, NULL);
    if (error != GRPC_CALL_OK) {
        dp_log_error("grpc.batch", "error=%s", grpc_call_error_to_string(error));
        grpc_call_cancel(call, NULL);
    }
    return error == GRPC_CALL_OK;
}

void dp_rpc_args_int(struct rpc_args *args, const char *key, int value)
{
    DP_CHECK(args->count < RPC_ARGS_MAX);
    args->args[args->count++] =
        (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

void dp_rpc_args_common(struct rpc_args *args, size_t message_bytes_max)
{
    DP_CHECK(message_bytes_max <= INT_MAX);
    // The receiver's limit is the one that counts, so both ends set both.
    dp_rpc_args_int(args, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, (int)message_bytes_max);
    dp_rpc_args_int(args, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, (int)message_bytes_max);
    // Over this a call costs its whole connection, so there is room to spare.
    dp_rpc_args_int(args, GRPC_ARG_MAX_METADATA_SIZE, DP_RPC_METADATA_BYTES_MAX);
    // A peer that vanished without a word is noticed within 15 s.
    dp_rpc_args_int(args, GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
    dp_rpc_args_int(args, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
    dp_rpc_args_int(args, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    dp_rpc_args_int(args, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}

grpc_channel_args dp_rpc_args_view(struct rpc_args *args)
{
    return (grpc_channel_args){.num_args = args->count, .args = args->args};
}
