// The operations and what they wait for, as nodes in an order that can be computed front to back.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

// Numbers the nodes 0.. and lists members and what they wait for, in any order.
static void gather_nodes(const struct replay_table *table, const struct replay_links *links,
                         int32_t *number, struct replay_graph *graph)
{
    size_t positions = table->positions;
    for (size_t i = 0; i < positions; i++) {
        if (links->node[i] == (int32_t)i) {
            number[i] = (int32_t)graph->nodes++;
        }
    }
    graph->member_begin = dp_new_array(int32_t, graph->nodes + 1);
    graph->wait_begin = dp_new_array(int32_t, graph->nodes + 1);
    graph->members = dp_new_array(int32_t, positions);
    graph->waits = dp_new_array(int32_t, links->count);
    graph->joint = dp_new_array(bool, graph->nodes);
    graph->across = dp_new_array(bool, graph->nodes);
    for (size_t i = 0; i < positions; i++) {
        number[i] = number[links->node[i]];
        graph->member_begin[number[i] + 1]++;
        graph->joint[number[i]] = links->joint[i];
        graph->across[number[i]] = links->across[i];
    }
    for (size_t i = 0; i < links->count; i++) {
        graph->wait_begin[number[links->edges[i].after] + 1]++;
    }
    for (size_t i = 0; i < graph->nodes; i++) {
        graph->member_begin[i + 1] += graph->member_begin[i];
        graph->wait_begin[i + 1] += graph->wait_begin[i];
    }
    DP_AUTO_FREE int32_t *filled = dp_new_array(int32_t, graph->nodes);
    for (size_t i = 0; i < positions; i++) {
        graph->members[graph->member_begin[number[i]] + filled[number[i]]++] = (int32_t)i;
    }
    memset(filled, 0, graph->nodes * sizeof(*filled));
    for (size_t i = 0; i < links->count; i++) {
        int32_t node = number[links->edges[i].after];
        graph->waits[graph->wait_begin[node] + filled[node]++] = links->edges[i].before;
    }
}

// The nodes that wait for each node: the edges the other way round.
struct followers {
    int32_t *begin, *nodes;
};

static void followers_deinit(struct followers *followers)
{
    free(followers->begin);
    free(followers->nodes);
}

static void find_followers(const struct replay_graph *graph, const int32_t *number,
                           struct followers *followers)
{
    size_t nodes = graph->nodes;
    followers->begin = dp_new_array(int32_t, nodes + 2);
    followers->nodes = dp_new_array(int32_t, (size_t)graph->wait_begin[nodes]);
    for (int32_t i = 0; i < graph->wait_begin[nodes]; i++) {
        followers->begin[number[graph->waits[i]] + 2]++;
    }
    for (size_t i = 0; i < nodes; i++) {
        followers->begin[i + 2] += followers->begin[i + 1];
    }
    for (size_t node = 0; node < nodes; node++) {
        for (int32_t i = graph->wait_begin[node]; i < graph->wait_begin[node + 1]; i++) {
            int32_t before = number[graph->waits[i]];
            followers->nodes[followers->begin[before + 1]++] = (int32_t)node;
        }
    }
}

// Fills `order` with the nodes such that each comes after what it waits for; returns how many could
// be placed.
static size_t sort_nodes(const struct replay_graph *graph, const struct followers *followers,
                         int32_t *order)
{
    DP_AUTO_FREE int32_t *open = dp_new_array(int32_t, graph->nodes);
    size_t placed = 0;
    for (size_t i = 0; i < graph->nodes; i++) {
        open[i] = graph->wait_begin[i + 1] - graph->wait_begin[i];
        if (open[i] == 0) {
            order[placed++] = (int32_t)i;
        }
    }
    for (size_t next = 0; next < placed; next++) {
        int32_t node = order[next];
        for (int32_t i = followers->begin[node]; i < followers->begin[node + 1]; i++) {
            int32_t follower = followers->nodes[i];
            if (--open[follower] == 0) {
                order[placed++] = follower;
            }
        }
    }
    return placed;
}

// The same graph with its nodes in the given order.
static void reorder(struct replay_graph *graph, const int32_t *order)
{
    struct replay_graph sorted = {
        .nodes = graph->nodes,
        .member_begin = dp_new_array(int32_t, graph->nodes + 1),
        .members = dp_new_array(int32_t, (size_t)graph->member_begin[graph->nodes]),
        .wait_begin = dp_new_array(int32_t, graph->nodes + 1),
        .waits = dp_new_array(int32_t, (size_t)graph->wait_begin[graph->nodes]),
        .joint = dp_new_array(bool, graph->nodes),
        .across = dp_new_array(bool, graph->nodes),
    };
    for (size_t i = 0; i < graph->nodes; i++) {
        int32_t from = order[i];
        int32_t members = graph->member_begin[from + 1] - graph->member_begin[from];
        int32_t waits = graph->wait_begin[from + 1] - graph->wait_begin[from];
        memcpy(&sorted.members[sorted.member_begin[i]], &graph->members[graph->member_begin[from]],
               (size_t)members * sizeof(int32_t));
        memcpy(&sorted.waits[sorted.wait_begin[i]], &graph->waits[graph->wait_begin[from]],
               (size_t)waits * sizeof(int32_t));
        sorted.member_begin[i + 1] = sorted.member_begin[i] + members;
        sorted.wait_begin[i + 1] = sorted.wait_begin[i] + waits;
        sorted.joint[i] = graph->joint[from];
        sorted.across[i] = graph->across[from];
    }
    dp_replay_graph_deinit(graph);
    *graph = sorted;
}

static dp_status fail_cycle(const struct replay_table *table, const struct replay_graph *graph,
                            const int32_t *order, size_t placed, struct dp_error *err)
{
    DP_AUTO_FREE bool *done = dp_new_array(bool, graph->nodes);
    for (size_t i = 0; i < placed; i++) {
        done[order[i]] = true;
    }
    size_t stuck = 0;
    while (done[stuck]) {
        stuck++;
    }
    int32_t position = graph->members[graph->member_begin[stuck]];
    return dp_fail(err, DP_INVALID,
                   "stage %d, step %d, dp_rank 0: %s %d waits for itself, by way of others: the "
                   "recorded order cannot be; is the clock of a stage off?",
                   table->stage[position], table->step[0],
                   dp_replay_kind_text((dp_replay_kind)table->kind[position]),
                   replay_seq(table, position));
}

static dp_status compile(const struct replay_table *table, const struct replay_links *links,
                         struct replay_graph *ret_graph, struct dp_error *err)
{
    struct replay_graph graph = {0};
    DP_AUTO_FREE int32_t *number = dp_new_array(int32_t, table->positions);
    gather_nodes(table, links, number, &graph);
    DP_CLEANUP(followers_deinit) struct followers followers = {0};
    find_followers(&graph, number, &followers);
    DP_AUTO_FREE int32_t *order = dp_new_array(int32_t, graph.nodes);
    size_t placed = sort_nodes(&graph, &followers, order);
    if (placed < graph.nodes) {
        dp_status status = fail_cycle(table, &graph, order, placed, err);
        dp_replay_graph_deinit(&graph);
        return status;
    }
    reorder(&graph, order);
    *ret_graph = graph;
    return DP_OK;
}

dp_status dp_replay_graph_init(struct replay_graph *ret_graph, const struct replay_table *table,
                               struct dp_error *err)
{
    DP_CLEANUP(dp_replay_links_deinit) struct replay_links links = {0};
    dp_status status = dp_replay_links_init(&links, table, err);
    return status == DP_OK ? compile(table, &links, ret_graph, err) : status;
}

void dp_replay_graph_deinit(struct replay_graph *graph)
{
    free(graph->member_begin);
    free(graph->members);
    free(graph->wait_begin);
    free(graph->waits);
    free(graph->joint);
    free(graph->across);
    *graph = (struct replay_graph){0};
}
