// Windows: memory of a rank that peers write into without its doing anything.
//
// A window has the same id and size on every rank of the transport that opens it. A put copies
// bytes to a place in the peer's window and then, never before they are all there, raises the
// peer's count of landed puts from this rank by one. Counts only grow and are absolute, so a note
// that comes twice or late does no harm. Puts of one rank to one peer land in the order they were
// made; those of different ranks in any order. Who may write where, and when a place may be
// written again, is for the callers to agree on (credits are puts of no bytes in the other
// direction).
//
// Every put carries a 64-bit note, which the waiter reads: a peer that does other things than it
// should, or the same ones in another order, is told by it.
//
// Threads: put, landed and wait from any thread. As with messages, a connected transport must have
// its dp_transport_progress running.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "dp/error.h"
#include "dp/transport.h"

struct dp_window;

// `id` < DP_WINDOWS_MAX and not open already. Memory is 64-byte aligned and starts as zeros.
// All ranks of the world open the same windows in the same order: it returns when every rank has
// its own (they have exchanged descriptors or keys), so no put comes before its window. DP_CONFLICT
// names a rank that opens it with another size; deadline and other errors as for dp_transport_recv.
dp_status dp_window_open(struct dp_transport *transport, uint32_t id, size_t bytes,
                         int64_t deadline_ns, struct dp_window **ret_window, struct dp_error *err);
// Accepts NULL. Puts that come later are lost without harm. Before the transport is freed.
void dp_window_close(struct dp_window *window);
void *dp_window_memory(struct dp_window *window);
size_t dp_window_bytes(const struct dp_window *window);
// The peer's window where this process can address it (loopback, shm, this rank's own), NULL
// elsewhere. What is stored there is seen by the peer once a later put to it has landed.
void *dp_window_map(struct dp_window *window, int32_t peer);

// Parts one behind the other at `offset` of the peer's window; up to DP_TRANSPORT_PARTS_MAX, none
// is a note alone. peer may be the rank itself. Returns once the parts may be reused. Refuses what
// reaches beyond the window (DP_TOO_LARGE), before anything is sent.
dp_status dp_window_put(struct dp_window *window, int32_t peer, size_t offset,
                        const struct iovec *parts, int count, uint64_t note, struct dp_error *err);
// Puts of the peer that have landed so far; what they wrote is there to be read.
uint64_t dp_window_landed(struct dp_window *window, int32_t peer);
// Waits until at least `count` puts of the peer have landed (counting from 1) and tells the note of
// that put (NULL = not asked for). Notes of the last DP_WINDOW_NOTES_MAX puts of a peer are kept.
// Errors and deadline as for dp_transport_recv.
dp_status dp_window_wait(struct dp_window *window, int32_t peer, uint64_t count,
                         int64_t deadline_ns, uint64_t *ret_note, struct dp_error *err);
// Waits until anything has landed in any of the transport's windows since `seen` (which it moves
// on; start with 0), or until the deadline (0 = DP_TRANSPORT_BLOCKED_MS_MAX): DP_OK also then, and
// when a peer has closed, which the wait for its puts tells. For one thread that serves many; that
// it sleeps here does not make its rank one that waits (dp/transport.h): peers whose messages
// nobody takes are held back meanwhile, and with them what they put behind those.
dp_status dp_window_wait_any(struct dp_transport *transport, uint64_t *seen, int64_t deadline_ns,
                             struct dp_error *err);

// Payload bytes put to each peer over all windows so far, [world]; counts every put once.
void dp_window_put_bytes(struct dp_transport *transport, uint64_t *ret_bytes);
