// gRPC over HTTP/2, server and client, on the gRPC C core (its one owner).
//
// Threads. The library's own threads and the threads that this module creates never call the
// owner: they put completions into a queue and write an eventfd. The owner (a libuv loop, a test)
// waits for the descriptor and calls the pump; every callback runs inside the pump, on the owner's
// thread, and every function on a server or a stream is called from that same thread. So calls need
// no locks above this header. The blocking client functions may be called from any thread, one at
// a time per client.
//
// Signals are blocked in all those threads; the owner handles them as it likes.
//
// Fork. After the first server or client exists a child may only call async-signal-safe functions
// and exec (posix_spawn, or fork and exec at once); all of the library's descriptors are
// close-on-exec. A daemon detaches before. A child that goes on using the parent's channel hangs.
//
// Errors. A failure travels as a gRPC status code, with the exact dp_status in the trailing
// metadata "dp-status" and the whole text in "dp-message-bin" (the status text itself is cut at
// DP_STATUS_DETAIL_MAX); the client restores both, and foreign clients see a good status anyway.
//
// Messages go in as protobuf-c messages and come out as bytes: dp_wire_unpack checks them.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/method.h"

// Server.

struct dp_rpc_server;

// What a method does. A call is known by its id, which is never 0 and never used again: replies to
// calls that are over are ignored, so an id may be kept for as long as one likes.
struct dp_rpc_handler {
    dp_method_id method;
    // Client-streaming methods only: a client opened the call. NULL = nothing to do.
    void (*on_open)(void *context, uint64_t call);
    // The request (once, unless the client streams) or the next message. Bytes are borrowed for the
    // duration of the callback. Answer now or later. Required.
    void (*on_message)(void *context, uint64_t call, const void *bytes, size_t length);
    // Client-streaming methods only: the client will send nothing more (or is gone, and on_closed
    // follows). NULL = finish the call.
    void (*on_half_closed)(void *context, uint64_t call);
    // A send was refused because the queue was full, and half of it is free now. NULL = not needed.
    void (*on_writable)(void *context, uint64_t call);
    // Once for each call that reached on_open or on_message, when it is over: answered, or
    // `cancelled` (client gone, cancelled, deadline passed, server stopping). NULL = not needed.
    void (*on_closed)(void *context, uint64_t call, bool cancelled);
};

struct dp_rpc_server_options {
    const char *listen; // "host:port" (port 0 = a free one), "[::1]:port", "unix:/path"
    const struct dp_rpc_handler *handlers; // borrowed until free; other methods: UNIMPLEMENTED
    size_t handlers_count;
    void *context;             // given to every handler
    unsigned threads;          // that poll the network; 0 = 2
    size_t message_bytes_max;  // one message, either way; 0 = DP_MESSAGE_BYTES_MAX
    size_t queue_messages_max; // waiting on one stream; 0 = DP_STREAM_QUEUE_MAX
    size_t queue_bytes_max;    // waiting on one stream; 0 = twice message_bytes_max
};

// Binds and serves. A port that another process holds is DP_CONFLICT (the port is never shared), an
// address that cannot be bound DP_UNAVAILABLE, one that is not an address DP_INVALID.
dp_status dp_rpc_server_new(const struct dp_rpc_server_options *options,
                            struct dp_rpc_server **ret_server, struct dp_error *err);
// "host:port" with the real port, or "unix:/path"; valid until free.
const char *dp_rpc_server_address(const struct dp_rpc_server *server);
// Readable when the pump has something to do. Owned by the server.
int dp_rpc_server_fd(const struct dp_rpc_server *server);
// Runs the callbacks that are due; never blocks. Not to be called from a callback.
void dp_rpc_server_pump(struct dp_rpc_server *server);
// Takes no new calls, answers open ones with UNAVAILABLE and a hint to retry, waits at most
// grace_ms for clients to take that, then cancels what is left. on_closed runs for each; afterwards
// no callback does and the port is free. Not to be called from a callback.
void dp_rpc_server_stop(struct dp_rpc_server *server, unsigned grace_ms);
// Stops without grace if still running. Accepts NULL.
void dp_rpc_server_free(struct dp_rpc_server *server);

// Unary: the answer, which ends the call.
void dp_rpc_call_reply(struct dp_rpc_server *server, uint64_t call,
                       const ProtobufCMessage *message);
// Streams: queues one message. DP_NOT_FOUND when the call is over; DP_TOO_LARGE when the queue is
// full (nothing was queued: wait for on_writable, drop, or send something newer later) or when the
// message itself is over the limit. A reader that stops reading thus costs a bounded queue.
dp_status dp_rpc_call_send(struct dp_rpc_server *server, uint64_t call,
                           const ProtobufCMessage *message);
// Messages still waiting in the queue; 0 when the call is over.
size_t dp_rpc_call_queued(const struct dp_rpc_server *server, uint64_t call);
// Streams: on_writable runs once when no message waits any more, for a sender that keeps fewer
// waiting than the queue takes. To be asked for while some do.
void dp_rpc_call_wake(struct dp_rpc_server *server, uint64_t call);
// Streams: ends the call with OK once the queue has been sent.
void dp_rpc_call_finish(struct dp_rpc_server *server, uint64_t call);
// Ends the call with an error; what still waits in the queue is dropped. status must not be DP_OK.
void dp_rpc_call_fail(struct dp_rpc_server *server, uint64_t call, dp_status status,
                      const char *message);
// "127.0.0.1:41234"; false when the call is over. Never proof of who it is.
bool dp_rpc_call_peer(const struct dp_rpc_server *server, uint64_t call, char *ret_peer,
                      size_t size);
// Calls that are open now.
size_t dp_rpc_server_calls(const struct dp_rpc_server *server);
// Calls that are over, by the gRPC code that they ended with (1 for those that their client left).
#define DP_RPC_CODES 17
uint64_t dp_rpc_server_ended(const struct dp_rpc_server *server, dp_method_id method, int code);

// Client.

struct dp_rpc_client;

struct dp_rpc_client_options {
    const char *address;      // "host:port", "[::1]:port", "unix:/path"
    size_t message_bytes_max; // 0 = DP_MESSAGE_BYTES_MAX
    bool own_connection;      // else clients of one process and address share one
};

// Makes a channel; connects when first used, and again by itself (after 200 ms, at most 1 s apart).
// DP_INVALID when the address is not one.
dp_status dp_rpc_client_open(const struct dp_rpc_client_options *options,
                             struct dp_rpc_client **ret_client, struct dp_error *err);
// Readers and streams that are still open keep the connection until they are closed. Accepts NULL.
void dp_rpc_client_close(struct dp_rpc_client *client);
const char *dp_rpc_client_address(const struct dp_rpc_client *client);
// Blocks until the channel is connected; DP_UNAVAILABLE after wait_ms (0 = the first refusal).
dp_status dp_rpc_client_connect(struct dp_rpc_client *client, unsigned wait_ms,
                                struct dp_error *err);

struct dp_rpc_call_options {
    unsigned deadline_ms; // of the whole call; 0 = the method's, which streams have none of
    bool wait_for_ready;  // wait for a connection within the deadline, instead of DP_UNAVAILABLE
};

// Blocking unary call; options may be NULL. The answer's bytes replace what ret_bytes held.
dp_status dp_rpc_client_call(struct dp_rpc_client *client, dp_method_id method,
                             const ProtobufCMessage *request,
                             const struct dp_rpc_call_options *options, struct dp_buf *ret_bytes,
                             struct dp_error *err);

// A server stream, read with blocking calls.
struct dp_rpc_reader;

typedef enum dp_rpc_read {
    DP_RPC_MESSAGE, // ret_bytes holds one
    DP_RPC_IDLE,    // none within the timeout; call again
    DP_RPC_END,     // the server ended the stream with OK
} dp_rpc_read;

dp_status dp_rpc_reader_open(struct dp_rpc_client *client, dp_method_id method,
                             const ProtobufCMessage *request,
                             const struct dp_rpc_call_options *options,
                             struct dp_rpc_reader **ret_reader, struct dp_error *err);
// Waits at most timeout_ms. Anything but DP_OK is the stream's end with that error, told again by
// every later call.
dp_status dp_rpc_reader_next(struct dp_rpc_reader *reader, unsigned timeout_ms,
                             dp_rpc_read *ret_read, struct dp_buf *ret_bytes, struct dp_error *err);
// Cancels what still runs. Accepts NULL.
void dp_rpc_reader_close(struct dp_rpc_reader *reader);

// A bidirectional stream for an event loop. It waits for a connection as long as it takes, and ends
// for good when the connection breaks: open another one then, after a back-off with jitter.
struct dp_rpc_stream;

struct dp_rpc_stream_events {
    // Bytes are borrowed for the duration of the callback.
    void (*on_message)(void *context, const void *bytes, size_t length);
    // Once, and the last callback: err->status is DP_OK when the server ended the stream so.
    void (*on_closed)(void *context, const struct dp_error *err);
    void *context;
};

dp_status dp_rpc_stream_open(struct dp_rpc_client *client, dp_method_id method,
                             const struct dp_rpc_stream_events *events,
                             struct dp_rpc_stream **ret_stream, struct dp_error *err);
// Readable when the pump has something to do. Owned by the stream.
int dp_rpc_stream_fd(const struct dp_rpc_stream *stream);
// Runs the callbacks that are due; never blocks.
void dp_rpc_stream_pump(struct dp_rpc_stream *stream);
// Queues one message (before the connection exists, too). DP_UNAVAILABLE when the stream is over,
// DP_TOO_LARGE when the queue is full (DP_STREAM_QUEUE_MAX messages, or twice message_bytes_max
// bytes, which the last of them may exceed) or the message over the limit.
dp_status dp_rpc_stream_send(struct dp_rpc_stream *stream, const ProtobufCMessage *message,
                             struct dp_error *err);
// Messages still waiting: the sender drops or merges telemetry when this grows.
size_t dp_rpc_stream_queued(const struct dp_rpc_stream *stream);
size_t dp_rpc_stream_queued_bytes(const struct dp_rpc_stream *stream);
// Says that nothing more will be sent; on_closed follows when the server ends the call.
void dp_rpc_stream_half_close(struct dp_rpc_stream *stream);
// Cancels if still open; no callback runs any more. Allowed in the stream's own callbacks. Accepts
// NULL.
void dp_rpc_stream_free(struct dp_rpc_stream *stream);
