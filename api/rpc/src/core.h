// What server and client share of the C core: its life, time, bytes, channel arguments.
#pragma once

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <protobuf-c/protobuf-c.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/limits.h"

#define RPC_KEY_STATUS "dp-status"
#define RPC_KEY_MESSAGE "dp-message-bin"

// Counted. Threads that gRPC makes inherit the signal mask, so each call that may make some runs
// between block and restore.
void dp_rpc_core_enter(void);
void dp_rpc_core_leave(void);
void dp_rpc_signals_block(sigset_t *ret_old);
void dp_rpc_signals_restore(const sigset_t *old);

// Before the first server: keeps a descriptor to turn callers away with when there are no others.
// Any thread.
void dp_rpc_accept_prepare(void);

// Monotonic, so that setting the clock moves no deadline.
gpr_timespec dp_rpc_deadline_ms(unsigned ms);
gpr_timespec dp_rpc_deadline_never(void);

// A buffer for the core; NULL when the message is longer than bytes_max. An empty message is a
// buffer with an empty slice: NULL would mean "no message".
grpc_byte_buffer *dp_rpc_message_pack(const ProtobufCMessage *message, size_t bytes_max,
                                      size_t *ret_bytes);
// Replaces what `out` held; false when the bytes cannot be decompressed.
bool dp_rpc_bytes_read(grpc_byte_buffer *buffer, struct dp_buf *out);

// A call error is a mistake of this module: it is logged, and no tag will come.
bool dp_rpc_batch_start(grpc_call *call, const grpc_op *ops, size_t count, void *tag);

#define RPC_ARGS_MAX 16

struct rpc_args {
    grpc_arg args[RPC_ARGS_MAX];
    size_t count;
};

void dp_rpc_args_int(struct rpc_args *args, const char *key, int value);
// What both ends need: limits and keepalive.
void dp_rpc_args_common(struct rpc_args *args, size_t message_bytes_max);
grpc_channel_args dp_rpc_args_view(struct rpc_args *args);
