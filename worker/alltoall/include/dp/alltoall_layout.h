// Where the tokens of an expert all-to-all go and where they lie: pure functions of the routing.
//
// The members of a group of expert-parallel ranks sit on nodes. Member r owns the experts
// [r * experts / ranks, (r + 1) * experts / ranks). A token crosses to a node once: its source
// sends it to the forwarder of that node, the rank there with the source's own index within its
// node (modulo the ranks there: the same rail where nodes are alike), which hands it on to each
// rank of the node that has one of its experts. A source is the forwarder of its own node. The way
// back is the same: a node's ranks send to the forwarder, which adds up and sends one row.
//
// Rows stand in the order (source rank, token) wherever they have arrived, so every address follows
// from prefix sums of the counts that all members know.
//
// Any thread; nothing here blocks.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/error.h"
#include "dp/exchanger.h"

struct dp_alltoall_topology {
    int32_t ranks, nodes;
    int32_t *node;    // [ranks]
    int32_t *local;   // [ranks] index within the node
    int32_t *first;   // [nodes + 1] where a node's ranks begin in `members`
    int32_t *members; // [ranks] by node, then by rank
};

// node_of[ranks] counts nodes from 0, every one having a rank; NULL = all on one. Refuses
// (DP_INVALID) anything else, naming the rank.
dp_status dp_alltoall_topology_init(struct dp_alltoall_topology *topology, int32_t ranks,
                                    const int32_t *node_of, struct dp_error *err);
// Accepts a zeroed topology.
void dp_alltoall_topology_deinit(struct dp_alltoall_topology *topology);

static inline int32_t dp_alltoall_node_ranks(const struct dp_alltoall_topology *topology,
                                             int32_t node)
{
    return topology->first[node + 1] - topology->first[node];
}
// The rank on `node` that passes on what `source` sends there; source itself on its own node.
int32_t dp_alltoall_forwarder(const struct dp_alltoall_topology *topology, int32_t source,
                              int32_t node);
// Sources of other nodes that a rank forwards for, and the place of one among them in ascending
// order; -1 when the rank does not forward for it.
int32_t dp_alltoall_served(const struct dp_alltoall_topology *topology, int32_t rank);
int32_t dp_alltoall_served_place(const struct dp_alltoall_topology *topology, int32_t rank,
                                 int32_t source);

// What limited_nodes may promise when a router takes a token's experts from `top_groups` of
// `groups` groups of neighbours: so many nodes at most, found as the sum of the top_groups groups
// that lie on most. Slot s holds expert s % experts, member r has the r-th equal share of the
// slots. 0 = nothing to promise: the router may choose from everywhere. node_of[ranks] as above.
int32_t dp_alltoall_limited_nodes(int32_t ranks, const int32_t *node_of, int32_t slots,
                                  int32_t experts, int32_t groups, int32_t top_groups);

// One source's tokens by node, and the ranks of each there.
struct dp_alltoall_layout {
    int64_t tokens;
    int32_t top_k, experts, ranks, nodes, words;
    int32_t *rank_tokens;   // [ranks] tokens that have an expert there
    int32_t *node_tokens;   // [nodes]
    int32_t *expert_tokens; // [experts] slots
    uint64_t *in_rank;      // [tokens, words]: bit r of a token says that it goes to rank r
    int64_t *node_start;    // [nodes + 1] into node_token
    int32_t *node_token;    // tokens of node 0, then of node 1, ... ; ascending in each
    int64_t *via_start;     // [entries of node_token + 1] into via
    int32_t *via;           // ranks of an entry, ascending
};

// index[tokens, top_k] of experts below `experts` (a multiple of the ranks), -1 = none. only_node
// >= 0 leaves out every other node. Refuses (DP_INVALID) an expert out of range and, when
// limited_nodes > 0, a token that needs more nodes, naming token and nodes.
dp_status dp_alltoall_layout_init(struct dp_alltoall_layout *layout,
                                  const struct dp_alltoall_topology *topology, int32_t experts,
                                  int64_t tokens, int32_t top_k, const int32_t *index,
                                  int32_t only_node, int32_t limited_nodes, struct dp_error *err);
// Accepts a zeroed layout.
void dp_alltoall_layout_deinit(struct dp_alltoall_layout *layout);

// What all members know of a routing once it has begun.
struct dp_alltoall_counts {
    int32_t *to_rank; // [ranks, ranks] tokens of source (row) that go to rank (column)
    int32_t *to_node; // [ranks, nodes]
    int32_t *tokens;  // [ranks] tokens of each source
};
void dp_alltoall_counts_init(struct dp_alltoall_counts *counts,
                             const struct dp_alltoall_topology *topology);
// Accepts zeroed counts.
void dp_alltoall_counts_deinit(struct dp_alltoall_counts *counts);
// Where the rows of a source begin among what a rank has received.
int64_t dp_alltoall_receive_offset(const struct dp_alltoall_topology *topology,
                                   const struct dp_alltoall_counts *counts, int32_t rank,
                                   int32_t source);
// Where the rows that `from` gives back for a source begin among what the source's forwarder on
// from's node has got to add up: sources in ascending order, then ranks; the forwarder's own rows
// do not lie there.
int64_t dp_alltoall_partial_offset(const struct dp_alltoall_topology *topology,
                                   const struct dp_alltoall_counts *counts, int32_t from,
                                   int32_t source);

// Bytes of one row of each kind that moves with a token.
struct dp_alltoall_widths {
    int64_t row, scales, index, weights;
};
// What `rank` puts to each member in one move, [ranks]: rows with what goes with them, and with
// DISPATCH the counts. Closed in the counts.
void dp_alltoall_link_bytes(const struct dp_alltoall_topology *topology,
                            const struct dp_alltoall_counts *counts,
                            const struct dp_alltoall_widths *widths, dp_move move, int32_t rank,
                            uint64_t *ret_bytes);
// Integers of the counts that a source sends to each member: to_rank, to_node, tokens, and its
// routing's tag in two halves.
static inline int32_t dp_alltoall_count_words(const struct dp_alltoall_topology *topology)
{
    return topology->ranks + topology->nodes + 3;
}

// Elements that one scale of FP8 rows stands for.
#define DP_ALLTOALL_SCALE_ELEMENTS 128

// A window of a rank: for each move `depth` lanes, each with room for the worst routing.
struct dp_alltoall_sizes {
    int64_t tokens_max, hidden;
    int32_t top_k, element_bytes, real_bytes, depth;
};
struct dp_alltoall_area {
    int64_t offset, bytes;
};
struct dp_alltoall_lane_areas {
    struct dp_alltoall_area counts;                                   // DISPATCH: of all sources
    struct dp_alltoall_area rows, scales, index, weights;             // to the experts: arrivals
    struct dp_alltoall_area in_rows, in_scales, in_index, in_weights; // and what is to be forwarded
    struct dp_alltoall_area partial_rows, partial_weights; // back: what is to be added up
    struct dp_alltoall_area return_rows, return_weights;   // and one row for each token and node
};
#define DP_ALLTOALL_AREAS 13
struct dp_alltoall_regions {
    int64_t bytes;   // of the window, the same on every member
    int64_t receive; // rows that can arrive
    struct dp_alltoall_lane_areas lanes[4][DP_ALLTOALL_DEPTH_MAX]; // by dp_move
};
// What a window may take: bytes_max, where that is not 0, and never over DP_WINDOW_BYTES_MAX.
int64_t dp_alltoall_bytes_limit(int64_t bytes_max);
// Refuses (DP_TOO_LARGE, with the figure and what it is made of) a window over that limit, and
// (DP_INVALID) sizes out of range.
dp_status dp_alltoall_regions_make(const struct dp_alltoall_topology *topology,
                                   const struct dp_alltoall_sizes *sizes, int64_t bytes_max,
                                   struct dp_alltoall_regions *ret_regions, struct dp_error *err);
