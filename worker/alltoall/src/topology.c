#include "dp/alltoall_layout.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

static dp_status count_nodes(int32_t ranks, const int32_t *node_of, int32_t *ret_nodes,
                             struct dp_error *err)
{
    if (ranks < 1 || ranks > DP_TRANSPORT_WORLD_MAX) {
        return dp_fail(err, DP_INVALID, "an all-to-all of %d ranks; it has 1 to %d", ranks,
                       DP_TRANSPORT_WORLD_MAX);
    }
    int32_t nodes = 1;
    DP_AUTO_FREE bool *is_used = dp_new_array(bool, (size_t)ranks);
    for (int32_t r = 0; r < ranks && node_of != NULL; r++) {
        if (node_of[r] < 0 || node_of[r] >= ranks) {
            return dp_fail(err, DP_INVALID,
                           "all-to-all: rank %d of the group is on node %d; nodes count from 0 and "
                           "each has a rank",
                           r, node_of[r]);
        }
        is_used[node_of[r]] = true;
        nodes = node_of[r] >= nodes ? node_of[r] + 1 : nodes;
    }
    for (int32_t n = 0; n < nodes && node_of != NULL; n++) {
        if (!is_used[n]) {
            return dp_fail(err, DP_INVALID,
                           "all-to-all: no rank of the group is on node %d; nodes count from 0 and "
                           "each has a rank",
                           n);
        }
    }
    *ret_nodes = nodes;
    return DP_OK;
}

dp_status dp_alltoall_topology_init(struct dp_alltoall_topology *topology, int32_t ranks,
                                    const int32_t *node_of, struct dp_error *err)
{
    int32_t nodes = 0;
    dp_status status = count_nodes(ranks, node_of, &nodes, err);
    if (status != DP_OK) {
        return status;
    }
    *topology = (struct dp_alltoall_topology){
        .ranks = ranks,
        .nodes = nodes,
        .node = dp_new_array(int32_t, (size_t)ranks),
        .local = dp_new_array(int32_t, (size_t)ranks),
        .first = dp_new_array(int32_t, (size_t)nodes + 1),
        .members = dp_new_array(int32_t, (size_t)ranks),
    };
    int32_t placed = 0;
    for (int32_t n = 0; n < nodes; n++) {
        topology->first[n] = placed;
        for (int32_t r = 0; r < ranks; r++) {
            if (node_of == NULL || node_of[r] == n) {
                topology->node[r] = n;
                topology->local[r] = placed - topology->first[n];
                topology->members[placed++] = r;
            }
        }
    }
    topology->first[nodes] = placed;
    return DP_OK;
}

// Nodes that have an expert of the group in a slot.
static int32_t nodes_of_group(int32_t ranks, const int32_t *node_of, int32_t slots, int32_t experts,
                              int32_t first, int32_t size)
{
    DP_AUTO_FREE bool *is_met = dp_new_array(bool, (size_t)ranks);
    const int32_t share = slots / ranks;
    int32_t nodes = 0;
    for (int32_t s = 0; s < slots; s++) {
        const int32_t expert = s % experts, node = node_of == NULL ? 0 : node_of[s / share];
        if (expert >= first && expert < first + size && !is_met[node]) {
            is_met[node] = true;
            nodes++;
        }
    }
    return nodes;
}

int32_t dp_alltoall_limited_nodes(int32_t ranks, const int32_t *node_of, int32_t slots,
                                  int32_t experts, int32_t groups, int32_t top_groups)
{
    if (groups < 2 || top_groups < 1 || top_groups >= groups) {
        return 0;
    }
    // Groups by how many nodes they lie on.
    DP_AUTO_FREE int32_t *number = dp_new_array(int32_t, (size_t)ranks + 1);
    const int32_t size = experts / groups;
    for (int32_t g = 0; g < groups; g++) {
        number[nodes_of_group(ranks, node_of, slots, experts, g * size, size)]++;
    }
    int32_t left = top_groups, sum = 0;
    for (int32_t nodes = ranks; nodes > 0 && left > 0; nodes--) {
        const int32_t taken = number[nodes] < left ? number[nodes] : left;
        sum += taken * nodes;
        left -= taken;
    }
    return sum;
}

void dp_alltoall_topology_deinit(struct dp_alltoall_topology *topology)
{
    free(topology->node);
    free(topology->local);
    free(topology->first);
    free(topology->members);
    *topology = (struct dp_alltoall_topology){0};
}

int32_t dp_alltoall_forwarder(const struct dp_alltoall_topology *topology, int32_t source,
                              int32_t node)
{
    int32_t rail = topology->local[source] % dp_alltoall_node_ranks(topology, node);
    return topology->members[topology->first[node] + rail];
}

static bool serves(const struct dp_alltoall_topology *topology, int32_t rank, int32_t source)
{
    int32_t node = topology->node[rank];
    return topology->node[source] != node && dp_alltoall_forwarder(topology, source, node) == rank;
}

int32_t dp_alltoall_served(const struct dp_alltoall_topology *topology, int32_t rank)
{
    int32_t served = 0;
    for (int32_t s = 0; s < topology->ranks; s++) {
        served += serves(topology, rank, s);
    }
    return served;
}

int32_t dp_alltoall_served_place(const struct dp_alltoall_topology *topology, int32_t rank,
                                 int32_t source)
{
    if (!serves(topology, rank, source)) {
        return -1;
    }
    int32_t place = 0;
    for (int32_t s = 0; s < source; s++) {
        place += serves(topology, rank, s);
    }
    return place;
}
