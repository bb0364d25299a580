// Operations that every member of a group of ranks takes part in, in the same order.
//
// Each call carries its kind, its tag and its sizes to the peers, so that members that call
// different things, or the same things in another order, are told so (DP_INTERNAL naming both)
// instead of hanging or adding up the wrong tensors. Every member sends to every other one in every
// call, bytes or not: nobody skips a call for having nothing to say.
//
// Results do not depend on who came first: rows stand in the order of their source, sums are formed
// in the order of the members, by one member for each element, so all have them bitwise alike.
//
// Buffers are host memory (that of the cpu and sim devices is). A group belongs to one thread;
// groups of one transport may be used by different threads. Errors are the transport's.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/device.h"
#include "dp/error.h"
#include "dp/transport.h"

struct dp_group {
    struct dp_transport *transport; // borrowed
    uint32_t id;
    int32_t count;
    int32_t self;   // index of this rank among the members
    int32_t *ranks; // [count] global ranks, ascending; owned
    uint32_t calls; // made so far
};

// The members in ascending order, this rank among them. `id` is the same on all members and differs
// between groups that share two or more of them; < 2^24. Refuses ranks that are unordered, doubled
// or outside the world.
dp_status dp_group_init(struct dp_group *group, struct dp_transport *transport, uint32_t id,
                        const int32_t *ranks, int32_t count, struct dp_error *err);
// Accepts a zeroed group.
void dp_group_deinit(struct dp_group *group);

// One all-to-all. Peer i's part of a buffer lies behind those of peers below i; own part included,
// at `self`.
struct dp_group_parts {
    int32_t peers, self;
    const void *send;
    const size_t *send_bytes; // [peers]
    void *recv;
    const size_t *recv_bytes; // [peers]
};

// All-to-all of bytes: peer i gets the i-th part of `send`, and its part for this rank becomes the
// i-th part of `recv`. parts->peers and self are those of the group. Both ends must agree on
// lengths. `tag` is anything that tells this call from others (dp_transport_tag).
dp_status dp_group_exchange(struct dp_group *group, uint64_t tag,
                            const struct dp_group_parts *parts, struct dp_error *err);
// The same in two halves, with other work or other calls of the group in between: begin sends, end
// waits. `send` may be reused after begin; the arrays of parts must be the same at end. Ends come
// in any order.
struct dp_group_pending {
    uint64_t tag;
    uint32_t call;
};
dp_status dp_group_exchange_begin(struct dp_group *group, uint64_t tag,
                                  const struct dp_group_parts *parts,
                                  struct dp_group_pending *ret_pending, struct dp_error *err);
dp_status dp_group_exchange_end(struct dp_group *group, const struct dp_group_pending *pending,
                                const struct dp_group_parts *parts, struct dp_error *err);
// Whether end would not wait.
bool dp_group_exchange_ready(struct dp_group *group, const struct dp_group_pending *pending);

// values[count] become their sums over the members, in place. f32 is added up in double and rounded
// once.
dp_status dp_group_sum(struct dp_group *group, uint64_t tag, dp_element element, void *values,
                       int64_t count, struct dp_error *err);
// The halves of a sum. Member i's share of `count` values is [share_begin(i), share_begin(i + 1)).
int64_t dp_group_share_begin(int64_t count, int32_t members, int32_t i);
// This member's share of values becomes the sums over the members, bitwise as dp_group_sum gives
// them; the rest is as it was.
dp_status dp_group_reduce_scatter(struct dp_group *group, uint64_t tag, dp_element element,
                                  void *values, int64_t count, struct dp_error *err);
// Every member's share of values, of `width` bytes each, reaches all.
dp_status dp_group_all_gather(struct dp_group *group, uint64_t tag, size_t width, void *values,
                              int64_t count, struct dp_error *err);
// A few doubles (norms, losses, flags), in one round trip.
dp_status dp_group_sum_scalars(struct dp_group *group, uint64_t tag, double *values, int32_t count,
                               struct dp_error *err);
// bytes[length] of member `root` (an index) reach all.
dp_status dp_group_broadcast(struct dp_group *group, uint64_t tag, int32_t root, void *bytes,
                             size_t length, struct dp_error *err);
// Returns once every member has called it.
dp_status dp_group_barrier(struct dp_group *group, uint64_t tag, struct dp_error *err);
// A barrier that tells everyone whether all succeeded: DP_OK when all gave DP_OK; this rank's own
// failure as it stands in err; otherwise DP_UNAVAILABLE naming the lowest rank that failed.
dp_status dp_group_agree(struct dp_group *group, uint64_t tag, dp_status mine,
                         struct dp_error *err);
