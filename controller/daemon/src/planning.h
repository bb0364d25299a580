// The nodes that plans are made for.
#pragma once

#include "daemon.h"
#include "dp/correction.h"
#include "dp/planner.h"

struct plan_nodes {
    struct dp_planner_node *nodes;
    uint32_t **slots; // for each node the numbers of its free slots; NULL = from 0
    size_t count;
    struct dp_profile profile; // of all
    bool profile_known;
    char profile_node[DP_NAME_MAX];  // that measured it
    struct dp_correction correction; // what of it was corrected
};

// For at most count_max nodes.
void plan_nodes_init(struct plan_nodes *ret_nodes, size_t count_max);
// A node with slots, of these `numbers`; NULL = from 0.
void plan_nodes_add(struct plan_nodes *nodes, const struct dp_node_record *node, uint32_t slots,
                    const uint32_t *numbers);
// The planner counts the free slots of a node from 0; they have numbers.
void plan_nodes_number(const struct plan_nodes *nodes, struct dp_plan *plan);
// Those that take work, with all their slots.
void plan_nodes_connected(struct daemon *daemon, struct plan_nodes *ret_nodes);
void plan_nodes_deinit(struct plan_nodes *nodes);
struct dp_planner_resources plan_nodes_resources(const struct plan_nodes *nodes);
