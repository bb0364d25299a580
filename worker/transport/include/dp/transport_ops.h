// For those who write a transport: what a row provides, and what it is given.
//
// The common part (struct dp_transport) holds the queues of arrived messages and the waiting of
// receivers; a row moves bytes. A row embeds struct dp_transport as its first member.
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "dp/rand.h"
#include "dp/transport.h"

struct dp_message {
    struct dp_message *next;
    uint64_t tag;
    size_t length;
    unsigned char bytes[];
};
// Bytes undefined; freed with free().
struct dp_message *dp_message_new(uint64_t tag, size_t length);
// One that holds a copy of the parts.
struct dp_message *dp_message_gather(uint64_t tag, const struct iovec *parts, int count,
                                     size_t length);

// What arrived from one peer; under the transport's mutex.
struct dp_transport_peer {
    struct dp_message *head, **tail;
    uint64_t waiting_bytes;
    bool paused; // the row has stopped reading from this peer
    bool closed;
    char reason[128];    // why it closed
    int64_t progress_ns; // when something came last
};

struct dp_transport_ops {
    struct dp_transport_attributes attributes;
    // Queues a message for another rank; called without the mutex.
    dp_status (*send)(struct dp_transport *transport, int32_t peer, uint64_t tag,
                      const struct iovec *parts, int count, size_t length, struct dp_error *err);
    // A paused peer may be read again; called under the mutex.
    void (*resume)(struct dp_transport *transport, int32_t peer);
    // Breaks the link to a peer as if it had died; called without the mutex.
    void (*cut)(struct dp_transport *transport, int32_t peer);
    // Wakes senders and breaks all links; called without the mutex.
    void (*aborted)(struct dp_transport *transport);
    void (*progress)(struct dp_transport *transport);
    void (*close)(struct dp_transport *transport, int64_t deadline_ns);
    // Frees the row, dp_transport_deinit included.
    void (*free)(struct dp_transport *transport);
};

struct dp_transport {
    const struct dp_transport_ops *ops;
    int32_t rank, world;
    _Atomic int64_t blocked_ns;
    _Atomic int aborted;    // a dp_status; set once
    pthread_mutex_t *mutex; // guards what follows; own_mutex, or one that ends share
    pthread_mutex_t own_mutex;
    pthread_cond_t changed;          // a message, a closed peer, room, an abort
    struct dp_transport_peer *peers; // [world]
    int32_t waiters;                 // threads that wait in a call of this transport
    char abort_reason[DP_ERROR_MESSAGE_MAX];
    struct dp_transport_stats stats;
    uint64_t waiting_bytes; // of all peers
    struct dp_transport_fault fault;
    struct dp_rand fault_rand;
    int64_t fault_sent; // messages to fault.cut_peer
};

// mutex NULL = its own.
void dp_transport_init(struct dp_transport *transport, const struct dp_transport_ops *ops,
                       int32_t rank, int32_t world, pthread_mutex_t *mutex);
void dp_transport_deinit(struct dp_transport *transport);

// Under the mutex. Hands an arrived message over (taken). Aborts the transport when the peer is
// further ahead than may be held; returns false then.
bool dp_transport_deliver(struct dp_transport *transport, int32_t peer, struct dp_message *message);
// Under the mutex. Whether more may be read from the peer now; false marks it as paused, so that
// resume will be called.
bool dp_transport_may_read(struct dp_transport *transport, int32_t peer);
// Under the mutex. Nothing more will come from the peer. The first reason counts.
void dp_transport_peer_closed(struct dp_transport *transport, int32_t peer, const char *reason);
// Under the mutex. Around any wait inside a call: paused peers are read meanwhile.
void dp_transport_wait_begin(struct dp_transport *transport);
void dp_transport_wait_end(struct dp_transport *transport);
// The failure of a call on an aborted transport, or towards a closed peer. Under the mutex.
dp_status dp_transport_fail_aborted(struct dp_transport *transport, struct dp_error *err);
dp_status dp_transport_fail_closed(struct dp_transport *transport, int32_t peer, const char *action,
                                   uint64_t tag, struct dp_error *err);

// Condition variables that wait by the monotonic clock.
void dp_transport_cond_init(pthread_cond_t *cond);
void dp_transport_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns);
