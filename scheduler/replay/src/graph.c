// What waits for what in one step.
//
// On a stage: compute follows compute, and transfers of one kind each other, as they started in the
// first step of the first replica. A receive is posted when the compute before the one that it
// serves has ended, and the first backward transfers when the forward two before the first backward
// has. Gradients are summed after the last compute (or, when they overlap with it, after the last
// backward of their chunk), then they are clipped and the optimizer runs.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

void dp_replay_link(struct replay_links *links, int32_t before, int32_t after)
{
    if (links->count == links->capacity) {
        links->capacity = links->capacity == 0 ? 256 : 2 * links->capacity;
        links->edges = dp_realloc(links->edges, links->capacity, sizeof(*links->edges));
    }
    links->edges[links->count++] = (struct replay_edge){before, after};
}

static void links_deinit(struct replay_links *links)
{
    free(links->edges);
    free(links->node);
    free(links->joint);
    free(links->across);
}

struct started {
    double start;
    int32_t seq, kind, position;
};

static int compare_started(const void *a, const void *b)
{
    const struct started *left = a, *right = b;
    if (left->start != right->start) {
        return left->start < right->start ? -1 : 1;
    }
    if (left->seq != right->seq) {
        return left->seq < right->seq ? -1 : 1;
    }
    return (left->kind < right->kind) - (left->kind > right->kind);
}

int32_t *dp_replay_in_order(const struct replay_table *table, int32_t stage, dp_replay_kind a,
                            dp_replay_kind b, size_t *ret_count)
{
    const dp_replay_kind kinds[2] = {a, b};
    size_t count = (size_t)replay_count(table, stage, a) +
                   (a == b ? 0 : (size_t)replay_count(table, stage, b));
    DP_AUTO_FREE struct started *list = dp_new_array(struct started, count);
    size_t found = 0;
    for (int i = 0; i < (a == b ? 1 : 2); i++) {
        for (int32_t seq = 0; seq < replay_count(table, stage, kinds[i]); seq++) {
            int32_t position = replay_position(table, stage, kinds[i], seq);
            list[found++] = (struct started){replay_first_start(table, position), seq,
                                             (int32_t)kinds[i], position};
        }
    }
    qsort(list, count, sizeof(*list), compare_started);
    int32_t *positions = dp_new_array(int32_t, count);
    for (size_t i = 0; i < count; i++) {
        positions[i] = list[i].position;
    }
    *ret_count = count;
    return positions;
}

static void link_chain(const struct replay_table *table, int32_t stage, dp_replay_kind a,
                       dp_replay_kind b, struct replay_links *links)
{
    size_t count;
    DP_AUTO_FREE int32_t *list = dp_replay_in_order(table, stage, a, b, &count);
    for (size_t i = 1; i < count; i++) {
        dp_replay_link(links, list[i - 1], list[i]);
    }
}

// The first backward transfers are posted when the forward two before the first backward ends.
static void link_first_backward(const struct replay_table *table, int32_t stage,
                                const int32_t *computes, size_t count, struct replay_links *links)
{
    size_t first = 0;
    while (first < count && table->kind[computes[first]] != DP_REPLAY_BACKWARD_COMPUTE) {
        first++;
    }
    if (first == count || first < 2) {
        return;
    }
    const dp_replay_kind kinds[2] = {DP_REPLAY_BACKWARD_RECV, DP_REPLAY_BACKWARD_SEND};
    for (int i = 0; i < 2; i++) {
        if (replay_count(table, stage, kinds[i]) > 0) {
            dp_replay_link(links, computes[first - 2], replay_position(table, stage, kinds[i], 0));
        }
    }
}

// A chunk's first forward needs its parameters: the last gather of them.
static void link_gathers(const struct replay_table *table, int32_t stage, const int32_t *computes,
                         size_t count, struct replay_links *links)
{
    DP_AUTO_FREE bool *done = dp_new_array(bool, (size_t)table->chunks);
    for (int32_t seq = replay_count(table, stage, DP_REPLAY_PARAMS_ALL_GATHER) - 1; seq >= 0;
         seq--) {
        int32_t gather = replay_position(table, stage, DP_REPLAY_PARAMS_ALL_GATHER, seq);
        int32_t chunk = table->mc[gather];
        for (size_t i = 0; i < count && !done[chunk]; i++) {
            if (table->kind[computes[i]] == DP_REPLAY_FORWARD_COMPUTE &&
                table->mc[computes[i]] == chunk) {
                dp_replay_link(links, gather, computes[i]);
                done[chunk] = true;
            }
        }
    }
}

// Sums that overlap with compute: the first of a chunk needs the chunk's last backward.
static void link_overlapped_sums(const struct replay_table *table, int32_t stage,
                                 struct replay_links *links)
{
    DP_AUTO_FREE bool *done = dp_new_array(bool, (size_t)table->chunks);
    for (int32_t seq = 0; seq < replay_count(table, stage, DP_REPLAY_GRADS_REDUCE_SCATTER); seq++) {
        int32_t sum = replay_position(table, stage, DP_REPLAY_GRADS_REDUCE_SCATTER, seq);
        int32_t last = -1;
        for (int32_t i = 0; i < replay_count(table, stage, DP_REPLAY_BACKWARD_COMPUTE); i++) {
            int32_t compute = replay_position(table, stage, DP_REPLAY_BACKWARD_COMPUTE, i);
            if (table->mc[compute] == table->mc[sum] &&
                (last < 0 || replay_first_end(table, compute) > replay_first_end(table, last))) {
                last = compute;
            }
        }
        if (last >= 0 && !done[table->mc[sum]]) {
            dp_replay_link(links, last, sum);
            done[table->mc[sum]] = true;
        }
    }
}

static int32_t last_to_end(const struct replay_table *table, const int32_t *list, size_t count)
{
    int32_t last = list[0];
    for (size_t i = 1; i < count; i++) {
        last = replay_first_end(table, list[i]) > replay_first_end(table, last) ? list[i] : last;
    }
    return last;
}

// What follows the last compute: sums, clipping, the optimizer. With overlap the chunks' sums run
// beside the backward, and the rest waits for the last of them too.
static void link_end(const struct replay_table *table, int32_t stage, const int32_t *computes,
                     size_t count, bool overlap, struct replay_links *links)
{
    static const dp_replay_kind plain[] = {DP_REPLAY_GC,
                                           DP_REPLAY_LAYERNORM_GRADS_ALL_REDUCE,
                                           DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE,
                                           DP_REPLAY_GRADS_REDUCE_SCATTER,
                                           DP_REPLAY_OPTIMIZER_CLIP,
                                           DP_REPLAY_OPTIMIZER};
    static const dp_replay_kind overlapped[] = {DP_REPLAY_GC,
                                                DP_REPLAY_LAYERNORM_GRADS_ALL_REDUCE,
                                                DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE,
                                                DP_REPLAY_SEPARATE_GRADS_ALL_REDUCE,
                                                DP_REPLAY_OPTIMIZER_CLIP,
                                                DP_REPLAY_OPTIMIZER};
    const dp_replay_kind *kinds = overlap ? overlapped : plain;
    int32_t sums = replay_count(table, stage, DP_REPLAY_GRADS_REDUCE_SCATTER);
    int32_t sum = overlap && sums > 0
                      ? replay_position(table, stage, DP_REPLAY_GRADS_REDUCE_SCATTER, sums - 1)
                      : -1;
    int32_t last = last_to_end(table, computes, count);
    for (size_t k = 0; k < sizeof(plain) / sizeof(plain[0]); k++) {
        for (int32_t seq = 0; seq < replay_count(table, stage, kinds[k]); seq++) {
            int32_t next = replay_position(table, stage, kinds[k], seq);
            dp_replay_link(links, last, next);
            if (sum >= 0 && kinds[k] != DP_REPLAY_GC) {
                dp_replay_link(links, sum, next);
                sum = -1;
            }
            last = next;
        }
    }
}

static void link_stage(const struct replay_table *table, int32_t stage, bool overlap,
                       struct replay_links *links)
{
    static const dp_replay_kind streams[] = {DP_REPLAY_FORWARD_SEND, DP_REPLAY_FORWARD_RECV,
                                             DP_REPLAY_BACKWARD_SEND, DP_REPLAY_BACKWARD_RECV};
    size_t count;
    DP_AUTO_FREE int32_t *computes = dp_replay_in_order(table, stage, DP_REPLAY_FORWARD_COMPUTE,
                                                        DP_REPLAY_BACKWARD_COMPUTE, &count);
    for (size_t i = 1; i < count; i++) {
        dp_replay_link(links, computes[i - 1], computes[i]);
    }
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
        link_chain(table, stage, streams[i], streams[i], links);
    }
    link_chain(table, stage, DP_REPLAY_PARAMS_ALL_GATHER, DP_REPLAY_GRADS_REDUCE_SCATTER, links);
    link_first_backward(table, stage, computes, count, links);
    link_gathers(table, stage, computes, count, links);
    if (overlap) {
        link_overlapped_sums(table, stage, links);
    }
    link_end(table, stage, computes, count, overlap, links);
}

// One node of the operations of a kind and number on all stages.
static void join_stages(const struct replay_table *table, dp_replay_kind kind,
                        struct replay_links *links)
{
    for (int32_t seq = 0, found = 1; found > 0; seq++) {
        found = 0;
        int32_t leader = -1;
        for (int32_t stage = 0; stage < table->stages; stage++) {
            if (seq < replay_count(table, stage, kind)) {
                int32_t position = replay_position(table, stage, kind, seq);
                leader = leader < 0 ? position : leader;
                links->node[position] = leader;
                found++;
            }
        }
    }
}

static void mark_kinds(const struct replay_table *table, struct replay_links *links)
{
    for (size_t i = 0; i < table->positions; i++) {
        switch ((dp_replay_kind)table->kind[i]) {
        case DP_REPLAY_PARAMS_ALL_GATHER:
        case DP_REPLAY_GRADS_REDUCE_SCATTER:
        case DP_REPLAY_SEPARATE_GRADS_ALL_REDUCE:
        case DP_REPLAY_OPTIMIZER_CLIP:
            links->joint[i] = links->across[i] = true;
            break;
        case DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE:
        case DP_REPLAY_FORWARD_SEND:
        case DP_REPLAY_FORWARD_RECV:
        case DP_REPLAY_BACKWARD_SEND:
        case DP_REPLAY_BACKWARD_RECV:
            links->joint[i] = true;
            break;
        default:
            break;
        }
    }
}

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
    DP_CLEANUP(links_deinit)
    struct replay_links links = {
        .node = dp_new_array(int32_t, table->positions),
        .joint = dp_new_array(bool, table->positions),
        .across = dp_new_array(bool, table->positions),
    };
    bool overlap = false;
    for (size_t i = 0; i < table->positions; i++) {
        links.node[i] = (int32_t)i;
        overlap = overlap || table->kind[i] == DP_REPLAY_SEPARATE_GRADS_ALL_REDUCE;
    }
    mark_kinds(table, &links);
    // Every stage has compute: the match refuses those without.
    dp_status status = dp_replay_match(table, &links, err);
    if (status != DP_OK) {
        return status;
    }
    for (int32_t stage = 0; stage < table->stages; stage++) {
        link_stage(table, stage, overlap, &links);
    }
    join_stages(table, DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE, &links);
    join_stages(table, DP_REPLAY_OPTIMIZER_CLIP, &links);
    return compile(table, &links, ret_graph, err);
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
