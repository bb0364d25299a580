// For those who write a transport: what a row provides, and what it is given.
//
// The common part (struct dp_transport) holds the queues of arrived messages, the windows, and the
// waiting of receivers; a row moves bytes. A row embeds struct dp_transport as its first member.
//
// A row may serve some of the peers of a mesh, which is then its `front`: the front has the queues,
// the windows, the mutex and the reason of an abort, and the row must use those. Every function
// below may be given either and finds the front itself; rows that look at members write
// transport->front->aborted and the like. Alone, a row is its own front.
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "dp/limits.h"
#include "dp/rand.h"
#include "dp/transport.h"
#include "dp/window.h"

struct dp_message {
    struct dp_message *next;
    uint64_t tag;
    size_t length;
    int64_t arrived_ns; // set by dp_transport_deliver
    // Where its bytes are: behind it, or in memory of the row, which is given back by release. That
    // is called without the mutex.
    const unsigned char *data;
    void (*release)(struct dp_message *message); // NULL = nothing to give back
    unsigned char bytes[];
};
// Bytes undefined.
struct dp_message *dp_message_new(uint64_t tag, size_t length);
// One that holds a copy of the parts.
struct dp_message *dp_message_gather(uint64_t tag, const struct iovec *parts, int count,
                                     size_t length);

// Gives its bytes back, too; without the mutex.
void dp_message_free(struct dp_message *message);

// What arrived from one peer; under the transport's mutex.
struct dp_transport_peer {
    struct dp_message *head, **tail;
    uint64_t waiting_bytes;
    bool paused; // the row has stopped reading from this peer
    bool closed;
    char reason[128];    // why it closed
    int64_t progress_ns; // when something came last
};

// What wakes those of a rank who wait for puts, also when another process wrote them: a futex, in
// memory that peers map where they write the counts themselves.
struct dp_bell {
    _Atomic uint32_t rung;     // how often, modulo 2^32
    _Atomic uint32_t sleepers; // who rings need not enter the kernel at 0
};
void dp_bell_ring(struct dp_bell *bell);
// Sleeps until the bell has been rung since `seen` was read from it, or until then.
void dp_bell_sleep(struct dp_bell *bell, uint32_t seen, int64_t until_ns);

// What one writer has put into a window; in the window's own mapping, ahead of its memory.
#define DP_WINDOW_NOTES_KEPT                                                                       \
    (2 * DP_WINDOW_NOTES_MAX) // those being overwritten are never asked for
struct dp_window_lane {
    _Alignas(64) _Atomic uint64_t landed;
    _Alignas(64) _Atomic uint64_t notes[DP_WINDOW_NOTES_KEPT]; // of put n at n modulo
};

// The way into one peer's window of the same id.
struct dp_window_out {
    pthread_mutex_t mutex; // puts of a pair follow each other
    uint64_t sent;         // puts made
    void *row;             // the row's: where the peer's memory is (mapping, remote key)
};

// Mapped from a sealed memfd, so that any row can share, register or just fill it:
// [lanes, world][memory at dp_window_memory_offset].
struct dp_window {
    struct dp_transport *transport; // the front
    int32_t world;
    uint32_t key; // id | generation << 16, the same on all ranks; what goes on the wire
    int fd;
    size_t bytes;
    void *region;
    size_t region_bytes;
    struct dp_window_lane *lanes; // [world], by writer
    unsigned char *memory;        // [bytes]
    struct dp_window_out *outs;   // [world], by peer
    _Atomic int32_t users;        // its opener, and rows that write into it just now
};
#define DP_WINDOW_CARD_BYTES 64 // what a rank tells a peer about its window

struct dp_transport_ops {
    struct dp_transport_attributes attributes;
    // Of the way to a peer; NULL = those above.
    const struct dp_transport_attributes *(*peer_attributes)(const struct dp_transport *transport,
                                                             int32_t peer);
    // See dp_transport_nodes; NULL = one node where peers share it, else one for each rank.
    void (*nodes)(const struct dp_transport *transport, int32_t *ret_node_of);
    // Second half of an open: links to every peer whose address is not NULL, in the row's own
    // form, and blocks until all are there. NULL = there is nothing to link (loopback).
    dp_status (*connect)(struct dp_transport *transport, const char *const *addresses,
                         int64_t deadline_ns, struct dp_error *err);
    // Queues a message for another rank; called without the mutex.
    dp_status (*send)(struct dp_transport *transport, int32_t peer, uint64_t tag,
                      const struct iovec *parts, int count, size_t length, struct dp_error *err);
    // A paused peer may be read again; called under the mutex.
    void (*resume)(struct dp_transport *transport, int32_t peer);
    // Breaks the link to a peer as if it had died; called without the mutex.
    void (*cut)(struct dp_transport *transport, int32_t peer);
    // Wakes senders and breaks all links; called without the mutex.
    void (*aborted)(struct dp_transport *transport);
    // In a thread of its own from connect until close or abort.
    void (*progress)(struct dp_transport *transport);
    // Windows; all called without the mutex. Opening exchanges a card with every linked peer as a
    // message, so that no put comes before its window; what offer sends by send or by other ways
    // on the same link has arrived when the peer's accept sees the card. NULL where a row needs
    // none of them.
    dp_status (*window_offer)(struct dp_transport *transport, struct dp_window *window,
                              int32_t peer, unsigned char card[DP_WINDOW_CARD_BYTES],
                              struct dp_error *err);
    dp_status (*window_accept)(struct dp_transport *transport, struct dp_window *window,
                               int32_t peer, const unsigned char card[DP_WINDOW_CARD_BYTES],
                               struct dp_error *err);
    // Gives up what offer and accept hold for this peer, also after a failure of either.
    void (*window_forget)(struct dp_transport *transport, struct dp_window *window, int32_t peer);
    // Where the peer's memory can be addressed; NULL = nowhere.
    void *(*window_map)(struct dp_transport *transport, struct dp_window *window, int32_t peer);
    // The number-th put (from 1) to another rank; parts lie within the window. Called under
    // outs[peer].mutex. Nothing of it may have landed when this fails.
    dp_status (*put)(struct dp_transport *transport, struct dp_window *window, int32_t peer,
                     size_t offset, const struct iovec *parts, int count, size_t length,
                     uint64_t number, uint64_t note, struct dp_error *err);
    dp_status (*close)(struct dp_transport *transport, int64_t deadline_ns, struct dp_error *err);
    // Frees the row, dp_transport_deinit included.
    void (*free)(struct dp_transport *transport);
};

struct dp_transport {
    const struct dp_transport_ops *ops;
    struct dp_transport *front; // itself, or the mesh it is part of
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
    int64_t fault_sent;   // messages to fault.cut_peer
    struct dp_bell *bell; // own_bell, or one in memory that peers map; rung by landed puts, closed
    struct dp_bell own_bell; // peers and aborts
    struct dp_window *windows[DP_WINDOWS_MAX];
    uint16_t generations[DP_WINDOWS_MAX]; // how often each id has been opened
    _Atomic uint64_t *put_bytes;          // [world]
};

// mutex NULL = its own.
void dp_transport_init(struct dp_transport *transport, const struct dp_transport_ops *ops,
                       int32_t rank, int32_t world, pthread_mutex_t *mutex);
void dp_transport_deinit(struct dp_transport *transport);
// Before its connect: the row becomes a part of the front, whose mutex it uses from now on.
void dp_transport_join(struct dp_transport *transport, struct dp_transport *front);

// Frees what has arrived from the peer and has not been taken. Before a row that lends the bytes of
// messages is freed; takes the mutex.
void dp_transport_drop_messages(struct dp_transport *transport, int32_t peer);
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
// Waits until every linked peer has closed, an abort, or the deadline (DP_TIMEOUT).
dp_status dp_transport_await_closed(struct dp_transport *transport,
                                    bool (*is_linked)(const struct dp_transport *, int32_t peer),
                                    int64_t deadline_ns, struct dp_error *err);
// The failure of a call on an aborted transport, or towards a closed peer. Under the mutex.
dp_status dp_transport_fail_aborted(struct dp_transport *transport, struct dp_error *err);
dp_status dp_transport_fail_closed(struct dp_transport *transport, int32_t peer, const char *action,
                                   uint64_t tag, struct dp_error *err);

// The open window of that key, to be released; NULL when it is closed, and what comes for it is of
// no use to anybody. Any thread; takes the mutex.
struct dp_window *dp_window_acquire(struct dp_transport *transport, uint32_t key);
// Accepts NULL.
void dp_window_release(struct dp_window *window);

// Windows that ranks of this process have opened and peers have still to take; their openers may
// close them before. For a row that keeps them in a list under a mutex of its own. What is taken is
// the caller's to release, and is there: its card, which has come, is sent behind the offer.
struct dp_window_offer;
void dp_window_offer_add(struct dp_window_offer **offers, struct dp_window *window, int32_t from,
                         int32_t to);
struct dp_window *dp_window_offer_take(struct dp_window_offer **offers, uint32_t key, int32_t from,
                                       int32_t to);
void dp_window_offers_drop(struct dp_window_offer **offers);
// All bytes of put `number` of that rank are in place: raises the count and wakes who waits. One
// thread at a time for a (window, from). A number that has landed before does nothing; false when
// one is missing in between.
bool dp_window_land(struct dp_window *window, int32_t from, uint64_t number, uint64_t note);
// The same for the owner of a lane in another process, whose numbers have no gaps.
void dp_window_post(struct dp_window_lane *lane, struct dp_bell *bell, uint64_t number,
                    uint64_t note);
size_t dp_window_memory_offset(int32_t world);
void dp_window_gather(unsigned char *to, const struct iovec *parts, int count);
// A sealed memfd of that size, mapped: it can neither shrink nor grow, so who maps it is safe.
dp_status dp_shared_memory_new(const char *name, size_t bytes, int *ret_fd, void **ret_memory,
                               struct dp_error *err);
// Delays the caller and cuts the link when its time has come.
void dp_transport_apply_fault(struct dp_transport *transport, int32_t peer);
dp_status dp_transport_check_world(int32_t rank, int32_t world, struct dp_error *err);
