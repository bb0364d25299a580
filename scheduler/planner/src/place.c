#include <math.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "internal.h"

// Replicas that fit when none may leave its node.
static int64_t whole_replicas(const struct problem *problem, int32_t pipeline)
{
    int64_t count = 0;
    for (size_t i = 0; i < problem->nodes_count; i++) {
        count += problem->nodes[i].slots / pipeline;
    }
    return count;
}

void dp_planner_place_ranks(const struct problem *problem, const struct choice *choice,
                            struct place *ret_places)
{
    bool whole = whole_replicas(problem, choice->pipeline) >= choice->data;
    int32_t placed = 0, world = choice->pipeline * choice->data;
    for (size_t n = 0; n < problem->nodes_count && placed < world; n++) {
        const struct dp_planner_node *node = &problem->nodes[n];
        int32_t usable = whole ? node->slots / choice->pipeline * choice->pipeline : node->slots;
        for (int32_t slot = 0; slot < usable && placed < world; slot++) {
            ret_places[placed++] = (struct place){(int32_t)n, node->first_slot + slot};
        }
    }
    DP_CHECK(placed == world);
}

int32_t dp_planner_ep_group_nodes(const struct choice *choice, const struct place *places)
{
    int32_t widest = 1;
    for (int32_t p = 0; p < choice->pipeline; p++) {
        int32_t nodes = 0;
        for (int32_t d = 0; d < choice->data; d++) {
            bool starts = d % choice->expert == 0;
            // Places go node by node: a new node has not been seen in this group.
            bool moves = starts || places[d * choice->pipeline + p].node !=
                                       places[(d - 1) * choice->pipeline + p].node;
            nodes = starts ? 1 : nodes + moves;
            widest = nodes > widest ? nodes : widest;
        }
    }
    return widest;
}

bool dp_planner_same_host(const struct problem *problem, int32_t a, int32_t b)
{
    const char *host = problem->nodes[a].host;
    return a == b || (host[0] != '\0' && strcmp(host, problem->nodes[b].host) == 0);
}

int32_t dp_planner_ranks_on_host(const struct problem *problem, const struct layout *layout,
                                 int32_t node)
{
    int32_t count = 0;
    for (int32_t i = 0; i < layout->choice.pipeline * layout->choice.data; i++) {
        count += dp_planner_same_host(problem, node, layout->places[i].node);
    }
    return count;
}

int32_t dp_planner_host_cores(const struct problem *problem, int32_t node)
{
    int32_t cores = 0;
    for (int32_t i = 0; i < (int32_t)problem->nodes_count; i++) {
        if (dp_planner_same_host(problem, node, i) && problem->nodes[i].cores > cores) {
            cores = problem->nodes[i].cores;
        }
    }
    return cores;
}

double dp_planner_ranks_per_core(const struct problem *problem, const struct layout *layout,
                                 int32_t node)
{
    int32_t cores = dp_planner_host_cores(problem, node);
    return cores > 0 ? fmax(1, (double)dp_planner_ranks_on_host(problem, layout, node) / cores) : 1;
}

double dp_planner_compute_slowdown(const struct problem *problem, const struct layout *layout)
{
    double busiest = 0;
    for (int32_t i = 0; i < layout->choice.pipeline * layout->choice.data; i++) {
        int32_t node = layout->places[i].node;
        if (i > 0 && node == layout->places[i - 1].node) {
            continue; // a node's ranks mostly follow each other
        }
        int32_t cores = dp_planner_host_cores(problem, node);
        if (cores > 1) {
            double others = dp_planner_ranks_on_host(problem, layout, node) - 1;
            busiest = fmax(busiest, fmin(1, others / (cores - 1)));
        }
    }
    return 1 + (problem->profile->busy_slowdown - 1) * busiest;
}

int64_t dp_planner_all_cores(const struct problem *problem)
{
    int64_t total = 0;
    for (int32_t i = 0; i < (int32_t)problem->nodes_count; i++) {
        bool first = true;
        for (int32_t before = 0; first && before < i; before++) {
            first = !dp_planner_same_host(problem, before, i);
        }
        int32_t cores = dp_planner_host_cores(problem, i);
        if (cores == 0) {
            return 0;
        }
        total += first ? cores : 0;
    }
    return total;
}

void dp_planner_cluster_nodes(const struct dp_cluster_spec *cluster,
                              struct dp_planner_node **ret_nodes, size_t *ret_count)
{
    DP_AUTO_FREE struct dp_cluster_node *hosts = NULL;
    dp_cluster_nodes(cluster, &hosts);
    size_t count = (size_t)cluster->nodes;
    struct dp_planner_node *nodes = dp_new_array(struct dp_planner_node, count);
    for (size_t i = 0; i < count; i++) {
        DP_COPY_TEXT(nodes[i].name, hosts[i].name);
        nodes[i].slots = hosts[i].ranks;
        nodes[i].cores = cluster->cores_per_node;
        nodes[i].memory_bytes = cluster->memory_bytes;
        nodes[i].domain = hosts[i].domain;
        memcpy(nodes[i].group, hosts[i].group, sizeof(nodes[i].group));
    }
    *ret_nodes = nodes;
    *ret_count = count;
}
