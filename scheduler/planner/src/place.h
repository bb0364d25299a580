// Where ranks stand: a few orders of the dimensions on the fabric, what each means for the groups
// that talk to each other, and the places themselves.
//
// Ranks are numbered through by one order of the dimensions, innermost first, and fill the slots of
// the nodes in that order. The largest run of inner dimensions that fits into a host, into a
// scale-up domain and into each group of the fabric's levels is not split over two of them as long
// as there are slots enough to leave the rest of one free.
// Pure and deterministic; any thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/planner.h"
#include "dp/price.h"

// Sizes of a job, each at least 1. Data ranks are made of blocks of EP groups: `expert` x
// `expert_tensor` consecutive ranks of (tensor, context, data), tensor fastest.
struct dp_place_sizes {
    int32_t pipeline, data, tensor, context, expert, expert_tensor;
    // Groups of experts that routing is limited to some of (model.expert_groups); 0 = none. Their
    // ranks are kept together where their EP group is too large to be.
    int32_t expert_groups;
};

// Blocks of the fabric: 0 hosts, 1 scale-up domains, 2.. groups of each level.
enum { DP_FABRIC_BLOCKS_MAX = 2 + DP_CLUSTER_LEVELS_MAX };

struct dp_fabric_class;

// Nodes in the order of placement; made once for a search.
struct dp_fabric {
    const struct dp_planner_node *nodes; // borrowed
    int32_t nodes_count;
    int32_t slots;  // in all
    int32_t levels; // fabric levels beyond the domain that nodes name: 0 = flat scale-out
    int32_t *order; // [nodes_count] nodes with those of one group and domain together; owned
    // By kind of block: slots of each when they are all alike but for the last one, else 0.
    int32_t block[DP_FABRIC_BLOCKS_MAX];
    int32_t *block_of[DP_FABRIC_BLOCKS_MAX]; // [nodes_count] by place in `order`, from 0; owned
    // Blocks that are made alike, and which of them each block of a kind is; owned.
    struct dp_fabric_class *classes;
    int32_t classes_count;
    int32_t *class_of[DP_FABRIC_BLOCKS_MAX]; // [blocks_count]
    int32_t blocks_count[DP_FABRIC_BLOCKS_MAX];
};
// Borrows nodes; the caller deinits *ret_fabric.
void dp_fabric_init(struct dp_fabric *ret_fabric, const struct dp_planner_node *nodes,
                    size_t count);
void dp_fabric_deinit(struct dp_fabric *fabric);
// The outermost level that traffic between two nodes crosses, as in dp_span: 0 inside one scale-up
// domain, 1 scale-out, 2.. the fabric's levels.
int32_t dp_fabric_level(const struct dp_fabric *fabric, int32_t node_a, int32_t node_b);

// One order of the dimensions; tensor, then context, is always innermost.
typedef enum dp_place_dim {
    DP_PLACE_EXPERT,   // data replicas of one EP group
    DP_PLACE_PIPELINE, // positions
    DP_PLACE_REPLICA,  // the rest of the data replicas
    DP_PLACE_DIM_COUNT
} dp_place_dim;
struct dp_place_order {
    dp_place_dim dims[DP_PLACE_DIM_COUNT]; // innermost first
};
enum { DP_PLACE_ORDERS_MAX = 6 };
// "tensor, expert, pipeline, data": for people; dimensions of size 1 are left out.
void dp_place_order_text(const struct dp_place_order *order, const struct dp_place_sizes *sizes,
                         char ret_text[DP_NAME_MAX]);
// The orders that differ for these sizes, the usual first: at most DP_PLACE_ORDERS_MAX.
int32_t dp_place_orders(const struct dp_place_sizes *sizes,
                        struct dp_place_order ret_orders[DP_PLACE_ORDERS_MAX]);

// How the groups stand on the fabric under an order: of all groups of a kind, the one that fares
// worst (the fewest members inside one domain, the outermost level). Needs as many slots as ranks.
// Takes time in the number of dimensions and levels where blocks are alike and sizes divide them,
// else in the number of ranks.
void dp_place_spans(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                    const struct dp_place_order *order, struct dp_spans *ret_spans);

// Where each rank stands. Ranks count as in a plan: tensor fastest, then context, pipeline
// position, data replica. ret_places: [pipeline * data * tensor * context].
struct dp_place {
    int32_t node; // index into the fabric's nodes
    int32_t slot; // on it, first_slot included
};
void dp_place_ranks(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                    const struct dp_place_order *order, struct dp_place *ret_places);
// The same as dp_place_spans for given places, whatever made them.
void dp_place_spans_of(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                       const struct dp_place *places, struct dp_spans *ret_spans);
// Neighbouring positions p and p + 1 of all replicas by the level between them: ret_hops[level].
void dp_place_hops(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                   const struct dp_place *places, int64_t ret_hops[DP_FABRIC_BLOCKS_MAX]);
