// What waits for what in one step.
//
// On a stage: compute follows compute, and transfers of one kind each other, as they started in the
// first step of the first replica. A receive is posted when the compute before the one that it
// serves has ended, and the first backward transfers when the forward two before the first backward
// has. Gradients are summed after the last compute (or, when they overlap with it, after the last
// backward of their chunk), then they are clipped and the optimizer runs.

#include <stdlib.h>

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

void dp_replay_links_deinit(struct replay_links *links)
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
    // By chunk: one past the last gather; 0 = none, or the forward is linked.
    DP_AUTO_FREE int32_t *gathers = dp_new_array(int32_t, (size_t)table->chunks);
    for (int32_t seq = 0; seq < replay_count(table, stage, DP_REPLAY_PARAMS_ALL_GATHER); seq++) {
        int32_t gather = replay_position(table, stage, DP_REPLAY_PARAMS_ALL_GATHER, seq);
        gathers[table->mc[gather]] = gather + 1;
    }
    for (size_t i = 0; i < count; i++) {
        int32_t *gather = &gathers[table->mc[computes[i]]];
        if (table->kind[computes[i]] == DP_REPLAY_FORWARD_COMPUTE && *gather > 0) {
            dp_replay_link(links, *gather - 1, computes[i]);
            *gather = 0;
        }
    }
}

// Sums that overlap with compute: the first of a chunk needs the chunk's last backward.
static void link_overlapped_sums(const struct replay_table *table, int32_t stage,
                                 struct replay_links *links)
{
    // By chunk: one past the backward that ends last; 0 = none, or the sum is linked.
    DP_AUTO_FREE int32_t *lasts = dp_new_array(int32_t, (size_t)table->chunks);
    for (int32_t seq = 0; seq < replay_count(table, stage, DP_REPLAY_BACKWARD_COMPUTE); seq++) {
        int32_t compute = replay_position(table, stage, DP_REPLAY_BACKWARD_COMPUTE, seq);
        int32_t *last = &lasts[table->mc[compute]];
        if (*last == 0 || replay_first_end(table, compute) > replay_first_end(table, *last - 1)) {
            *last = compute + 1;
        }
    }
    for (int32_t seq = 0; seq < replay_count(table, stage, DP_REPLAY_GRADS_REDUCE_SCATTER); seq++) {
        int32_t sum = replay_position(table, stage, DP_REPLAY_GRADS_REDUCE_SCATTER, seq);
        int32_t *last = &lasts[table->mc[sum]];
        if (*last > 0) {
            dp_replay_link(links, *last - 1, sum);
            *last = 0;
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
    int32_t most = 0;
    for (int32_t stage = 0; stage < table->stages; stage++) {
        int32_t count = replay_count(table, stage, kind);
        most = count > most ? count : most;
    }
    // By number: one past the operation of the first stage that has it.
    DP_AUTO_FREE int32_t *leaders = dp_new_array(int32_t, (size_t)most);
    for (int32_t stage = 0; stage < table->stages; stage++) {
        for (int32_t seq = 0; seq < replay_count(table, stage, kind); seq++) {
            int32_t position = replay_position(table, stage, kind, seq);
            leaders[seq] = leaders[seq] == 0 ? position + 1 : leaders[seq];
            links->node[position] = leaders[seq] - 1;
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

dp_status dp_replay_links_init(struct replay_links *ret_links, const struct replay_table *table,
                               struct dp_error *err)
{
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
        dp_replay_links_deinit(&links);
        return status;
    }
    for (int32_t stage = 0; stage < table->stages; stage++) {
        link_stage(table, stage, overlap, &links);
    }
    join_stages(table, DP_REPLAY_EMBEDDING_GRADS_ALL_REDUCE, &links);
    join_stages(table, DP_REPLAY_OPTIMIZER_CLIP, &links);
    *ret_links = links;
    return DP_OK;
}
