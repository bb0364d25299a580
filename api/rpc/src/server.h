// The server's insides. Everything here runs on the owner's thread.
#pragma once

#include "address.h"
#include "core.h"
#include "dp/rpc.h"
#include "loop.h"
#include "result.h"

// uthash without a fallback for memory that runs out: that aborts.
#include <stdlib.h>
#include <uthash.h>

#define RPC_POSTED_PER_METHOD 16 // a burst of so many calls waits for no thread of ours
#define RPC_POSTED_CATCH_ALL 16

// One request for the next call of one method (or of none that is known), posted again as soon as
// it was met.
struct rpc_posted {
    struct rpc_tag tag;
    struct dp_rpc_server *server;
    const struct dp_rpc_handler *handler; // NULL = catch-all
    void *registered;
    grpc_call *core;
    gpr_timespec deadline;
    grpc_metadata_array metadata;
    grpc_call_details details; // catch-all
    grpc_byte_buffer *payload;
};

struct rpc_call;

struct rpc_call_tag {
    struct rpc_tag base;
    struct rpc_call *call;
};

struct rpc_queued {
    struct rpc_queued *next;
    grpc_byte_buffer *bytes;
    size_t length;
};

struct rpc_call {
    uint64_t id;
    struct dp_rpc_server *server;
    const struct dp_rpc_handler *handler; // NULL = no such method
    grpc_call *core;
    unsigned tags_out;
    struct rpc_call_tag close_tag, headers_tag, receive_tag, send_tag, status_tag;
    int cancelled;              // written by the library until close_tag is back
    grpc_byte_buffer *received; // until receive_tag is back
    grpc_byte_buffer *sending;  // until send_tag or status_tag is back
    struct rpc_queued *first, **last;
    size_t queued_count, queued_bytes;
    struct rpc_trailer trailer;
    bool told;   // the handler knows the call
    bool closed; // close_tag is back
    bool headers_sent;
    bool send_broken;  // a write failed: only the close is to come
    bool send_refused; // on_writable is owed
    bool wake;         // also once nothing waits any more
    bool ending;       // the trailer is set; sent when the queue is empty
    bool ended;        // the status batch was started
    bool cut;          // the server stopped before the call had its answer
    UT_hash_handle hh;
};

struct dp_rpc_server {
    struct rpc_loop loop;
    grpc_server *core;
    struct rpc_address listen;
    char address[DP_ADDRESS_MAX];
    const struct dp_rpc_handler *handlers;
    void *context;
    size_t message_bytes_max, queue_messages_max, queue_bytes_max;
    struct rpc_posted *posted;
    size_t posted_count;
    size_t posted_out;
    struct rpc_call *calls; // by id; also the ones whose tags are still out
    uint64_t next_id;
    uint64_t ended[DP_METHOD_COUNT][DP_RPC_CODES];
    struct rpc_tag shutdown_tag;
    bool stopping, shut_down, stopped;
};

// Registers the handlers' methods (before the start) and posts requests (after it).
dp_status dp_rpc_posted_register(struct dp_rpc_server *server,
                                 const struct dp_rpc_server_options *options, struct dp_error *err);
void dp_rpc_posted_start(struct dp_rpc_server *server);

// Takes over a call that arrived, and its payload (NULL = none came).
void dp_rpc_call_begin(struct dp_rpc_server *server, const struct dp_rpc_handler *handler,
                       grpc_call *core, grpc_byte_buffer *payload, const char *method);
void dp_rpc_call_end(struct rpc_call *call, dp_status status, const char *message);
// Ends a call because the server stops.
void dp_rpc_call_cut(struct rpc_call *call);
