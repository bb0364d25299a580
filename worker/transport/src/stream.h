// Ranks over sockets: one stream for each pair of ranks, all moved by the one thread that runs
// dp_transport_progress. A sender writes to the socket itself while nothing is queued before it.
// Two rows are made of it: tcp, and shm, whose sockets are local ones that pass descriptors of
// windows along with the messages.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "dp/tcp.h"
#include "dp/transport_ops.h"

// Frames, little-endian: magic u32, key u32, tag or note u64, length u64; of a put then also offset
// u64 and number u64. A frame with a descriptor has no more than its head.
#define FRAME_MESSAGE 0x31545044u // "DPT1"
#define FRAME_PUT 0x31575044u     // "DPW1"
#define FRAME_FD 0x31465044u      // "DPF1"
#define FRAME_SHARED 0x31535044u  // "DPS1": as a put's; a message at offset of the sender's arena
#define FRAME_FREE 0x31525044u    // "DPR1": as a put's; the place at offset is free again
#define FRAME_HEAD_BYTES 24u
#define FRAME_BYTES_MAX 40u
#define SCRATCH_BYTES 65536u
#define BELL_BYTES 4096u
#define ARENA_BYTES ((size_t)64 << 20) // of one sender's messages to all peers of its node
#define ARENA_GRANULE ((size_t)32 << 10)
#define ARENA_MESSAGE_MIN 8192u // shorter ones are no slower over the socket
#define ARENA_KEY (UINT32_MAX - 1)
#define BELL_KEY UINT32_MAX // of the descriptor that has a rank's bell

// Bytes that wait for room in the socket.
struct stream_out {
    struct stream_out *next;
    size_t length, sent;
    int fd; // goes with the first of them; -1 = none
    unsigned char bytes[];
};

// A window's descriptor that has come and has not been asked for yet.
struct stream_offer {
    uint32_t key;
    int fd;
};

struct stream_link {
    int fd; // -1 = none; closed by free alone, so that any thread may shut it down
    // Under out_mutex.
    struct stream_out *out_head, **out_tail;
    uint64_t out_bytes; // queued
    uint64_t out_moved; // ever written from the queue
    uint32_t events;    // that epoll watches
    _Atomic bool broken;
    // Progress thread: what is being received. Bytes go to `to`, or nowhere when it is NULL.
    unsigned char frame[FRAME_BYTES_MAX];
    size_t frame_got;
    bool is_inside; // the frame is complete, its bytes are coming
    unsigned char *to;
    size_t left;
    struct dp_message *message;
    struct dp_window *window; // held while a put comes in
    uint64_t number, note;
    int passed_fd; // came with bytes whose frame is not complete; -1 = none
    _Atomic bool resume_wanted;
    // shm, under the common mutex: the peer's bell, and windows offered and not yet accepted.
    struct dp_bell *bell;
    const unsigned char *arena;  // where its messages are
    struct stream_offer *offers; // [offer_count]
    size_t offer_count;
};

// Lock order: out_mutex before the common mutex.
struct stream {
    struct dp_transport base;
    uint64_t token;
    bool is_local;
    uint64_t identity; // of the memory and the sockets that a rank shares; local
    int listen_fd, epoll_fd, wake_fd;
    int bell_fd;                // -1 = the bell is not shared
    struct stream_arena *arena; // local, else NULL
    struct stream_link *links;  // [world]
    unsigned char *scratch;     // of the progress thread
    bool connected;
    _Atomic bool stop;
    pthread_mutex_t out_mutex;
    pthread_cond_t out_room; // bytes left, or a link broke
    uint64_t out_bytes;      // queued, all links
};

static inline struct stream *stream_of(struct dp_transport *transport)
{
    return (struct stream *)transport;
}

// stream.c
// Takes the descriptor of a listening socket.
dp_status dp_socket_new(const struct dp_transport_ops *ops, int32_t rank, int32_t world,
                        uint64_t token, int listen_fd, struct stream **ret_stream,
                        struct dp_error *err);
void dp_socket_progress(struct dp_transport *transport);
void dp_socket_resume(struct dp_transport *transport, int32_t peer);
void dp_socket_cut(struct dp_transport *transport, int32_t peer);
void dp_socket_aborted(struct dp_transport *transport);
dp_status dp_socket_close(struct dp_transport *transport, int64_t deadline_ns,
                          struct dp_error *err);
void dp_socket_free(struct dp_transport *transport);

// stream_receive.c
// One read of what a peer sends; false = the link is of no more use, or of none just now. The
// reason is in ret_got as recv has it (0, or -1 and errno), else it was broken here.
bool dp_socket_read(struct stream *stream, int32_t peer, ssize_t *ret_got);
void dp_socket_drop_input(struct stream_link *link);
// Nothing more comes over the link or goes out.
void dp_socket_break(struct stream *stream, int32_t peer, const char *reason);

// stream_send.c
dp_status dp_socket_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                         const struct iovec *parts, int count, size_t length, struct dp_error *err);
dp_status dp_socket_put(struct dp_transport *transport, struct dp_window *window, int32_t peer,
                        size_t offset, const struct iovec *parts, int count, size_t length,
                        uint64_t number, uint64_t note, struct dp_error *err);
// Sends a descriptor (its duplicate) under a key; local sockets alone.
dp_status dp_socket_pass(struct stream *stream, int32_t peer, uint32_t key, int fd,
                         struct dp_error *err);
// A frame about the sender's or the receiver's arena.
dp_status dp_socket_tell(struct stream *stream, int32_t peer, uint32_t magic, uint64_t tag,
                         uint64_t length, uint64_t offset, struct dp_error *err);
// Writes what is queued for a link; the progress thread's.
void dp_socket_flush(struct stream *stream, int32_t peer);
// Under out_mutex: drops what is queued.
void dp_socket_drop_queue(struct stream *stream, struct stream_link *link);
// Waits until the queues are empty, or the deadline (DP_TIMEOUT).
dp_status dp_socket_drain(struct stream *stream, int64_t deadline_ns, struct dp_error *err);
// Under out_mutex: watches the link for these events.
void dp_socket_watch(struct stream *stream, int32_t peer, uint32_t events);
void dp_socket_wake(struct stream *stream);

// stream_connect.c
dp_status dp_socket_connect(struct dp_transport *transport, const char *const *addresses,
                            int64_t deadline_ns, struct dp_error *err);

// shm.c
dp_status dp_shm_resolve(const struct stream *stream, const char *address,
                         struct sockaddr_storage *ret_address, socklen_t *ret_length,
                         struct dp_error *err);
// A descriptor has come from the peer, under the common mutex; takes it. False when it is none
// that a peer may send.
bool dp_shm_passed(struct stream *stream, int32_t peer, uint32_t key, int fd);
void dp_shm_forget_peer(struct stream_link *link);

// shm_arena.c
dp_status dp_shm_arena_new(struct stream_arena **ret_arena, struct dp_error *err);
void dp_shm_arena_free(struct stream_arena *arena); // accepts NULL
int dp_shm_arena_fd(const struct stream_arena *arena);
dp_status dp_shm_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                      const struct iovec *parts, int count, size_t length, struct dp_error *err);
// The peer has taken the message at offset; false when there is none for it. All when it is gone.
bool dp_shm_arena_release(struct stream *stream, int32_t peer, uint64_t offset);
void dp_shm_arena_release_all(struct stream *stream, int32_t peer);
// The message that a peer says is in its arena; NULL when it cannot be there.
struct dp_message *dp_shm_arena_message(struct stream *stream, int32_t peer, uint64_t tag,
                                        uint64_t length, uint64_t offset);

extern const struct dp_transport_ops dp_tcp_ops, dp_shm_ops;
