// The expert all-to-all: a struct dp_exchanger over windows, in two levels.
//
// To the experts a token crosses to each node once, whatever the experts there, and the node's
// forwarder hands it on (dp/alltoall_layout.h). On the way back a node's ranks give their rows to
// the forwarder, which adds them up in ascending rank, and the source adds up the nodes in
// ascending order; sums are float (double on DP_F64), rounded to the element once per node and once
// per token. Nothing depends on who was faster: the same routing and rows give the same bits.
//
// Rows go straight to their place in the receiver's window, which has room for the worst routing;
// places follow from the counts, which all members tell each other when a routing's DISPATCH
// begins. A place is written again once its reader has said that the round before is over. Every
// put tells round, move and routing: a member that makes other calls, or the same in another order,
// is found out (DP_INTERNAL naming both). Each of the four moves has `depth` lanes, memory of its
// own, so a forward and a backward move never meet; a move begun while its lanes are taken waits
// for the oldest to be finished or collected. So finish soon after arrive.
//
// Threads: one makes the exchanger's calls; another of the program runs dp_alltoall_progress from
// open until it returns, and does all copying, forwarding and adding. The transport's own progress
// must be running too.
//
// Failures: a lost peer, a mismatch or an abort fails every call from then on with what is known:
// peer, move, and the routing's tag in words. A member that another waits for, in arrive or
// collect, for blocked_ms without any progress is a DP_TIMEOUT naming it.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/alltoall_layout.h"
#include "dp/device.h"
#include "dp/error.h"
#include "dp/exchanger.h"
#include "dp/transport.h"

struct dp_alltoall;

struct dp_alltoall_config {
    struct dp_transport *transport; // borrowed
    uint32_t window;                // id, the same on all ranks of the transport
    const int32_t *ranks;           // [count] members: ranks of the transport, ascending
    int32_t count;
    const int32_t *node_of; // [count] node of each member, from 0; NULL = all on one
    dp_element element;
    int32_t experts; // of the whole model; member i owns the i-th equal share
    int32_t top_k;
    int64_t hidden;
    int64_t tokens_max;    // of any member in one routing
    int32_t limited_nodes; // a token's experts are on so many nodes at most; 0 = no promise
    int32_t depth;         // moves of one kind at a time; 0 = 1
    int64_t chunk_bytes;   // of rows handed on at a time; 0 = a default
    uint32_t epoch;        // attempt: what an earlier one put is refused
    int64_t bytes_max;     // of window; 0 = DP_WINDOW_BYTES_MAX
    int64_t blocked_ms;    // 0 = DP_TRANSPORT_BLOCKED_MS_MAX
};

// Opens the window, which all ranks of the transport do at the same point. All members give the
// same config but for `transport`. Refuses (DP_INVALID) sizes and members that make no sense, and
// (DP_TOO_LARGE) a window over bytes_max, of this rank or of another whose group lies on nodes in
// another way, naming the figure.
dp_status dp_alltoall_open(const struct dp_alltoall_config *config, int64_t deadline_ns,
                           struct dp_alltoall **ret_alltoall, struct dp_error *err);
// Moves rows until the all-to-all is closed or has failed. Sleeps when there is nothing to do.
void dp_alltoall_progress(struct dp_alltoall *alltoall);
// Says goodbye: waits until all that was begun is over here and every member has closed too, at the
// latest until the deadline, then ends dp_alltoall_progress, also one that only begins to run then.
// Members that died do not count. DP_TIMEOUT when the deadline ended it. A failure is told by
// the call that it hinders; where it comes behind the last of them, nothing depends on it any more.
dp_status dp_alltoall_close(struct dp_alltoall *alltoall, int64_t deadline_ns,
                            struct dp_error *err);
// Every call that waits, and every later one, fails with this; ends dp_alltoall_progress. The first
// failure counts. Any thread, never blocks. Does not abort the transport.
void dp_alltoall_abort(struct dp_alltoall *alltoall, dp_status status, const char *reason);
// After dp_alltoall_progress has returned; routings still held are released first. Accepts NULL.
void dp_alltoall_free(struct dp_alltoall *alltoall);

// What a stage is given; lives as long as the all-to-all.
const struct dp_exchanger *dp_alltoall_exchanger(const struct dp_alltoall *alltoall);

struct dp_alltoall_stats {
    uint64_t moves[4];                        // that are over, by dp_move
    int64_t move_ns[4];                       // their times from begin until all was there
    uint64_t scale_up_bytes, scale_out_bytes; // put to members of the own node, of others
    int64_t window_bytes;
};
// Any thread. peer_bytes[count], NULL if not wanted: what was put to each member; as
// dp_alltoall_link_bytes computes it.
void dp_alltoall_stats(struct dp_alltoall *alltoall, struct dp_alltoall_stats *ret_stats,
                       uint64_t *ret_peer_bytes);
