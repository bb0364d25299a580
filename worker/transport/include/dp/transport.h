// Tagged messages between the ranks of one assignment.
//
// A transport is one rank's end. A message has a peer, a 64-bit tag and bytes (none is fine).
// Messages of a pair with the same tag arrive in the order they were sent; those with different
// tags may be received in any order, since what nobody has asked for yet waits in a queue. Sending
// is buffered: it returns once the bytes are copied. Both queues are bounded: a sender waits while
// DP_TRANSPORT_QUEUED_BYTES_MAX are on their way to that peer, and a rank that is busy computing
// stops reading from a peer that is DP_TRANSPORT_WAITING_BYTES_MAX ahead of it. A rank that waits,
// for sending, receiving or closing, always goes on reading, so ranks that send to each other first
// and receive later do not lock up; one that would have to hold more than
// DP_TRANSPORT_HELD_BYTES_MAX fails instead.
//
// Waiting takes no CPU. Errors:
//   DP_UNAVAILABLE  the peer closed or died; what it sent before can still be received
//   DP_TIMEOUT      the deadline passed, or nothing came from the peer (or nothing could be sent)
//                   for DP_TRANSPORT_BLOCKED_MS_MAX; names rank and tag
//   DP_INTERNAL     another length than asked for; names both. The message stays in the queue
//   DP_TOO_LARGE    over DP_TRANSPORT_BYTES_MAX, or over DP_TRANSPORT_HELD_BYTES_MAX in waiting
//   or what dp_transport_abort was given.
//
// Threads: send and receive from any thread; one thread of the program runs dp_transport_progress
// for a transport that is connected, until it returns.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "dp/error.h"
#include "dp/limits.h"

struct dp_transport;

// A tag out of what identifies a message of the executor. kind and layer are the caller's own
// numbering: kind < 128, phase < 256, layer < 4096, stage < 4096, microbatch < 2^24. Never equal to
// a tag of a collective, which has the top bit set.
static inline uint64_t dp_transport_tag(uint32_t kind, uint32_t stage, uint32_t microbatch,
                                        uint32_t layer, uint32_t phase)
{
    return ((uint64_t)(kind & 0x7f) << 56) | ((uint64_t)(phase & 0xff) << 48) |
           ((uint64_t)(layer & 0xfff) << 36) | ((uint64_t)(stage & 0xfff) << 24) |
           (microbatch & 0xffffff);
}
// The tag in words, for messages; buffer of DP_TRANSPORT_TAG_TEXT_MAX, returned.
const char *dp_transport_tag_text(char *buffer, uint64_t tag);

int32_t dp_transport_rank(const struct dp_transport *transport);
int32_t dp_transport_world(const struct dp_transport *transport);

// Copies or queues the message and returns. peer may be the rank itself.
dp_status dp_transport_send(struct dp_transport *transport, int32_t peer, uint64_t tag,
                            const void *bytes, size_t length, struct dp_error *err);
// The same with the message in up to DP_TRANSPORT_PARTS_MAX pieces; the receiver sees one message.
dp_status dp_transport_sendv(struct dp_transport *transport, int32_t peer, uint64_t tag,
                             const struct iovec *parts, int count, struct dp_error *err);

// Waits for the oldest message of that peer and tag and takes it; its length must be `length`.
// deadline_ns is on the monotonic clock; 0 = DP_TRANSPORT_BLOCKED_MS_MAX without progress alone.
dp_status dp_transport_recv(struct dp_transport *transport, int32_t peer, uint64_t tag,
                            void *buffer, size_t length, int64_t deadline_ns, struct dp_error *err);
dp_status dp_transport_recvv(struct dp_transport *transport, int32_t peer, uint64_t tag,
                             const struct iovec *parts, int count, int64_t deadline_ns,
                             struct dp_error *err);
// The same; *ret_arrived_ns is when the message had arrived here, on the monotonic clock.
dp_status dp_transport_recvv_timed(struct dp_transport *transport, int32_t peer, uint64_t tag,
                                   const struct iovec *parts, int count, int64_t deadline_ns,
                                   int64_t *ret_arrived_ns, struct dp_error *err);
// Waits likewise, but leaves the message where it is: copies at most `length` of its first bytes
// and tells its whole length.
dp_status dp_transport_peek(struct dp_transport *transport, int32_t peer, uint64_t tag,
                            void *buffer, size_t length, int64_t deadline_ns, size_t *ret_length,
                            struct dp_error *err);
// Whether such a message is there now; ret_length may be NULL.
bool dp_transport_probe(struct dp_transport *transport, int32_t peer, uint64_t tag,
                        size_t *ret_length);

// Every call that waits, and every later one, fails with this status and reason, and the links are
// cut, so that peers see DP_UNAVAILABLE. The first abort counts. Any thread, never blocks.
void dp_transport_abort(struct dp_transport *transport, dp_status status, const char *reason);

// Moves the bytes of a connected transport until it is closed or aborted; to be run by one thread
// of the program from connect on. Returns at once where nothing needs to be moved (loopback).
void dp_transport_progress(struct dp_transport *transport);
// Says goodbye: waits until all that was sent has left and every peer has closed too, at the
// latest until the deadline, then ends dp_transport_progress. Peers that died do not count.
// DP_TIMEOUT when the deadline ended it: names a peer that it waited for; or the reason of an abort
// that came meanwhile. After one before there is nothing to wait for (DP_OK).
dp_status dp_transport_close(struct dp_transport *transport, int64_t deadline_ns,
                             struct dp_error *err);
// After dp_transport_progress has returned (or was never run). Accepts NULL.
void dp_transport_free(struct dp_transport *transport);

struct dp_transport_stats {
    uint64_t sent_messages, sent_bytes;
    uint64_t received_messages, received_bytes; // that were taken by dp_transport_recv
    int64_t send_wait_ns, receive_wait_ns;      // time that callers waited
    uint64_t waiting_bytes, waiting_bytes_peak; // arrived, not yet taken
};
void dp_transport_stats(struct dp_transport *transport, struct dp_transport_stats *ret_stats);

// What a transport can do. Its figures are hints for plans, as measured on one small machine;
// dp-rank --calibrate measures a node's own.
struct dp_transport_attributes {
    const char *name; // "loopback", "shm", "tcp", "mesh", ...
    double bandwidth; // of puts: bytes per second and direction
    double latency_s;
    uint64_t message_bytes_max;
    bool is_one_sided;          // a put takes no time of a thread at the peer
    bool has_registered_memory; // windows are registered with an adapter; opening them is slow
    bool shares_node;           // peers are on the same node, and a put is a copy
};
const struct dp_transport_attributes *dp_transport_attributes(const struct dp_transport *transport);

// Of the way to one peer: those of the part of a mesh that goes there.
const struct dp_transport_attributes *
dp_transport_peer_attributes(const struct dp_transport *transport, int32_t peer);

// Which ranks share a node, [world], numbered in the order of their first ranks; the same on all
// ranks. After connect.
void dp_transport_nodes(const struct dp_transport *transport, int32_t *ret_node_of);

// How long a call may see no progress; DP_TRANSPORT_BLOCKED_MS_MAX unless set (tests).
void dp_transport_set_blocked_ms(struct dp_transport *transport, int64_t blocked_ms);

// `world` ends in one process, for ranks that are threads; ret_transports[i] is rank i's, and each
// is closed and freed by itself.
void dp_transport_loopback(int32_t world, struct dp_transport **ret_transports);

// A transport of processes comes about in two halves. A listen of a row, or dp_transport_open for
// a mesh of them, gives an address text of at most DP_ADDRESS_MAX bytes for the peers; then, when
// all ranks' addresses are known:
//
typedef enum dp_transport_kind {
    DP_TRANSPORT_AUTO,  // shm to ranks on the same node; across, verbs where both have it, or tcp
    DP_TRANSPORT_SHM,   // alone: the job runs on one node
    DP_TRANSPORT_TCP,   // alone, also on one node
    DP_TRANSPORT_VERBS, // likewise
    DP_TRANSPORT_KINDS
} dp_transport_kind;
// "" = auto.
dp_status dp_transport_kind_parse(const char *text, dp_transport_kind *ret_kind,
                                  struct dp_error *err);

struct dp_verbs_config;
struct dp_transport_config {
    dp_transport_kind kind;
    const char *host; // where tcp listens; not for shm
    int32_t rank, world;
    uint64_t token;                      // what peers of the same assignment know each other by
    const struct dp_verbs_config *verbs; // dp/verbs.h; NULL = all defaults
};
// A mesh: each peer is reached over the best way that both have. `address` of DP_ADDRESS_MAX bytes
// receives "1;tcp=host:port;shm=node/name;verbs=host:port", all that this rank offers. A machine
// without the one kind that is asked for is DP_UNSUPPORTED, with the reason.
dp_status dp_transport_open(const struct dp_transport_config *config, char *ret_address,
                            struct dp_transport **ret_transport, struct dp_error *err);

// Links to every peer. addresses[world] are what the ranks' listens gave, this rank's own included.
// Peers need not have called it yet. Blocks until all links are up, the deadline, or
// dp_transport_abort; then dp_transport_progress is to be run. Of no effect on loopback.
dp_status dp_transport_connect(struct dp_transport *transport, const char *const *addresses,
                               int64_t deadline_ns, struct dp_error *err);

// tcp, first half: listens on host with a port the kernel gives; `address` of DP_ADDRESS_MAX bytes
// receives "host:port". The port is held from here on, so it cannot be lost before the start. The
// token is what peers of the same assignment know each other by: connections that do not say it
// are dropped.
dp_status dp_transport_tcp_listen(const char *host, int32_t rank, int32_t world, uint64_t token,
                                  char *ret_address, struct dp_transport **ret_transport,
                                  struct dp_error *err);
// shm: ranks that are processes of one node and user, in one network namespace; a rank elsewhere is
// refused by dp_transport_connect with DP_UNSUPPORTED. Uses no files, and leaves nothing behind.
dp_status dp_transport_shm_listen(int32_t rank, int32_t world, uint64_t token, char *ret_address,
                                  struct dp_transport **ret_transport, struct dp_error *err);

// For tests: what goes wrong, and when.
struct dp_transport_fault {
    uint64_t seed;
    int32_t delay_us_max; // every send waits for a random time below this
    int64_t cut_after;    // after that many messages to cut_peer its link is cut; 0 = never
    int32_t cut_peer;
};
void dp_transport_set_fault(struct dp_transport *transport, const struct dp_transport_fault *fault);
