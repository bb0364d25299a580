// Ranks over tcp: one socket for each pair of ranks, all moved by the one thread that runs
// dp_transport_progress. A sender writes to the socket itself while nothing is queued before it.
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "dp/transport_ops.h"

#define FRAME_MAGIC 0x31545044u // "DPT1"
#define FRAME_BYTES 24u         // magic u32, zero u32, tag u64, length u64; little-endian
#define SCRATCH_BYTES 65536u

// Bytes that wait for room in the socket.
struct tcp_out {
    struct tcp_out *next;
    size_t length, sent;
    unsigned char bytes[];
};

struct tcp_link {
    int fd; // -1 = none; closed by free alone, so that any thread may shut it down
    // Under out_mutex.
    struct tcp_out *out_head, **out_tail;
    uint32_t events; // that epoll watches
    _Atomic bool broken;
    // Progress thread.
    unsigned char frame[FRAME_BYTES];
    size_t frame_got;
    struct dp_message *message; // being received
    size_t message_got;
    _Atomic bool resume_wanted;
};

// Lock order: out_mutex before the common mutex.
struct tcp {
    struct dp_transport base;
    uint64_t token;
    int listen_fd, epoll_fd, wake_fd;
    struct tcp_link *links; // [world]
    unsigned char *scratch; // of the progress thread
    bool connected;
    _Atomic bool stop;
    pthread_mutex_t out_mutex;
    pthread_cond_t out_room; // bytes left, or a link broke
    uint64_t out_bytes;      // queued, all links
    uint64_t out_moved;      // ever written from the queues
};

static inline struct tcp *tcp_of(struct dp_transport *transport)
{
    return (struct tcp *)transport;
}

extern const struct dp_transport_ops dp_tcp_ops;

// tcp_send.c
dp_status dp_tcp_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                      const struct iovec *parts, int count, size_t length, struct dp_error *err);
// Writes what is queued for a link; the progress thread's.
void dp_tcp_flush(struct tcp *tcp, int32_t peer);
// Under out_mutex: drops what is queued.
void dp_tcp_drop_queue(struct tcp *tcp, struct tcp_link *link);
// Waits until the queues are empty, or the deadline.
void dp_tcp_drain(struct tcp *tcp, int64_t deadline_ns);
// Under out_mutex: watches the link for these events.
void dp_tcp_watch(struct tcp *tcp, int32_t peer, uint32_t events);
void dp_tcp_wake(struct tcp *tcp);
