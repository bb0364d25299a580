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

// Those that take work, with all their slots.
void plan_nodes_connected(struct daemon *daemon, struct plan_nodes *ret_nodes);
void plan_nodes_deinit(struct plan_nodes *nodes);
struct dp_planner_resources plan_nodes_resources(const struct plan_nodes *nodes);
