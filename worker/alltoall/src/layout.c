#include "dp/alltoall_layout.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"

#define WORD_BITS 64

static bool is_in(const struct dp_alltoall_layout *layout, int64_t token, int32_t rank)
{
    return layout->in_rank[token * layout->words + rank / WORD_BITS] >> rank % WORD_BITS & 1;
}

// The bits of every token, and the slots of every expert.
static dp_status mark(struct dp_alltoall_layout *layout,
                      const struct dp_alltoall_topology *topology, const int32_t *index,
                      int32_t only_node, struct dp_error *err)
{
    int32_t own = layout->experts / layout->ranks;
    for (int64_t t = 0; t < layout->tokens; t++) {
        for (int32_t k = 0; k < layout->top_k; k++) {
            int32_t expert = index[t * layout->top_k + k];
            if (expert == -1) {
                continue;
            }
            if (expert < -1 || expert >= layout->experts) {
                return dp_fail(err, DP_INVALID,
                               "all-to-all: slot %d of token %lld has expert %d; there are %d, "
                               "from 0, and -1 is none",
                               k, (long long)t, expert, layout->experts);
            }
            int32_t rank = expert / own;
            if (only_node < 0 || topology->node[rank] == only_node) {
                layout->expert_tokens[expert]++;
                layout->in_rank[t * layout->words + rank / WORD_BITS] |= 1ull << rank % WORD_BITS;
            }
        }
    }
    return DP_OK;
}

static int32_t ranks_in_node(const struct dp_alltoall_layout *layout,
                             const struct dp_alltoall_topology *topology, int64_t token,
                             int32_t node)
{
    int32_t ranks = 0;
    for (int32_t i = topology->first[node]; i < topology->first[node + 1]; i++) {
        ranks += is_in(layout, token, topology->members[i]);
    }
    return ranks;
}

// Counts ranks and nodes of every token; tells how much node_token and via hold.
static dp_status count(struct dp_alltoall_layout *layout,
                       const struct dp_alltoall_topology *topology, int32_t limited_nodes,
                       int64_t *ret_vias, struct dp_error *err)
{
    int64_t vias = 0;
    for (int64_t t = 0; t < layout->tokens; t++) {
        int32_t nodes = 0;
        for (int32_t n = 0; n < layout->nodes; n++) {
            int32_t ranks = ranks_in_node(layout, topology, t, n);
            nodes += ranks > 0;
            layout->node_tokens[n] += ranks > 0;
            vias += ranks;
        }
        if (limited_nodes > 0 && nodes > limited_nodes) {
            return dp_fail(err, DP_INVALID,
                           "all-to-all: token %lld has experts on %d nodes where the router is to "
                           "keep to %d (limited_groups)",
                           (long long)t, nodes, limited_nodes);
        }
    }
    *ret_vias = vias;
    return DP_OK;
}

static void list(struct dp_alltoall_layout *layout, const struct dp_alltoall_topology *topology,
                 int64_t vias)
{
    for (int32_t n = 0; n < layout->nodes; n++) {
        layout->node_start[n + 1] = layout->node_start[n] + layout->node_tokens[n];
    }
    int64_t entries = layout->node_start[layout->nodes];
    layout->node_token = dp_new_array(int32_t, (size_t)entries);
    layout->via_start = dp_new_array(int64_t, (size_t)entries + 1);
    layout->via = dp_new_array(int32_t, (size_t)vias);
    int64_t entry = 0, via = 0;
    for (int32_t n = 0; n < layout->nodes; n++) {
        for (int64_t t = 0; t < layout->tokens; t++) {
            int64_t before = via;
            for (int32_t i = topology->first[n]; i < topology->first[n + 1]; i++) {
                int32_t rank = topology->members[i];
                if (is_in(layout, t, rank)) {
                    layout->via[via++] = rank;
                    layout->rank_tokens[rank]++;
                }
            }
            if (via > before) {
                layout->node_token[entry++] = (int32_t)t;
                layout->via_start[entry] = via;
            }
        }
    }
    DP_CHECK(entry == entries && via == vias);
}

dp_status dp_alltoall_layout_init(struct dp_alltoall_layout *layout,
                                  const struct dp_alltoall_topology *topology, int32_t experts,
                                  int64_t tokens, int32_t top_k, const int32_t *index,
                                  int32_t only_node, int32_t limited_nodes, struct dp_error *err)
{
    DP_CHECK(experts >= topology->ranks && experts % topology->ranks == 0 && top_k > 0);
    DP_CHECK(tokens >= 0 && tokens <= DP_ALLTOALL_TOKENS_MAX);
    int32_t words = (topology->ranks + WORD_BITS - 1) / WORD_BITS;
    *layout = (struct dp_alltoall_layout){
        .tokens = tokens,
        .top_k = top_k,
        .experts = experts,
        .ranks = topology->ranks,
        .nodes = topology->nodes,
        .words = words,
        .rank_tokens = dp_new_array(int32_t, (size_t)topology->ranks),
        .node_tokens = dp_new_array(int32_t, (size_t)topology->nodes),
        .expert_tokens = dp_new_array(int32_t, (size_t)experts),
        .in_rank = dp_new_array(uint64_t, (size_t)tokens * (size_t)words),
        .node_start = dp_new_array(int64_t, (size_t)topology->nodes + 1),
    };
    int64_t vias = 0;
    dp_status status = mark(layout, topology, index, only_node, err);
    if (status == DP_OK) {
        status = count(layout, topology, limited_nodes, &vias, err);
    }
    if (status != DP_OK) {
        dp_alltoall_layout_deinit(layout);
        return status;
    }
    list(layout, topology, vias);
    return DP_OK;
}

void dp_alltoall_layout_deinit(struct dp_alltoall_layout *layout)
{
    free(layout->rank_tokens);
    free(layout->node_tokens);
    free(layout->expert_tokens);
    free(layout->in_rank);
    free(layout->node_start);
    free(layout->node_token);
    free(layout->via_start);
    free(layout->via);
    *layout = (struct dp_alltoall_layout){0};
}

void dp_alltoall_counts_init(struct dp_alltoall_counts *counts,
                             const struct dp_alltoall_topology *topology)
{
    size_t ranks = (size_t)topology->ranks;
    counts->to_rank = dp_new_array(int32_t, ranks * ranks);
    counts->to_node = dp_new_array(int32_t, ranks * (size_t)topology->nodes);
    counts->tokens = dp_new_array(int32_t, ranks);
}

void dp_alltoall_counts_deinit(struct dp_alltoall_counts *counts)
{
    free(counts->to_rank);
    free(counts->to_node);
    free(counts->tokens);
    *counts = (struct dp_alltoall_counts){0};
}

int64_t dp_alltoall_receive_offset(const struct dp_alltoall_topology *topology,
                                   const struct dp_alltoall_counts *counts, int32_t rank,
                                   int32_t source)
{
    int64_t offset = 0;
    for (int32_t s = 0; s < source; s++) {
        offset += counts->to_rank[s * topology->ranks + rank];
    }
    return offset;
}

int64_t dp_alltoall_partial_offset(const struct dp_alltoall_topology *topology,
                                   const struct dp_alltoall_counts *counts, int32_t from,
                                   int32_t source)
{
    int32_t node = topology->node[from];
    int32_t forwarder = dp_alltoall_forwarder(topology, source, node);
    int64_t offset = 0;
    for (int32_t s = 0; s <= source; s++) {
        if (dp_alltoall_forwarder(topology, s, node) != forwarder) {
            continue;
        }
        for (int32_t i = topology->first[node]; i < topology->first[node + 1]; i++) {
            int32_t rank = topology->members[i];
            if (s == source && rank >= from) {
                break;
            }
            offset += rank != forwarder ? counts->to_rank[s * topology->ranks + rank] : 0;
        }
    }
    return offset;
}

static uint64_t row_bytes(const struct dp_alltoall_widths *widths, dp_move move)
{
    uint64_t row = (uint64_t)widths->row, weights = (uint64_t)widths->weights;
    switch (move) {
    case DP_MOVE_DISPATCH:
        return row + (uint64_t)widths->scales + (uint64_t)widths->index + weights;
    case DP_MOVE_COMBINE_INPUT:
        return row + (uint64_t)widths->scales;
    case DP_MOVE_COMBINE:
        return row;
    case DP_MOVE_DISPATCH_INPUT:
        return row + weights;
    }
    return 0;
}

// Rows to every member of the way there; the way back puts as many against the direction.
static int64_t rows_between(const struct dp_alltoall_topology *topology,
                            const struct dp_alltoall_counts *counts, bool is_back, int32_t from,
                            int32_t to)
{
    int32_t giver = is_back ? to : from, taker = is_back ? from : to;
    int32_t node = topology->node[taker];
    if (topology->node[giver] != node) {
        return dp_alltoall_forwarder(topology, giver, node) == taker
                   ? counts->to_node[giver * topology->nodes + node]
                   : 0;
    }
    int64_t rows = 0;
    for (int32_t s = 0; s < topology->ranks; s++) {
        if (dp_alltoall_forwarder(topology, s, node) == giver) {
            rows += counts->to_rank[s * topology->ranks + taker];
        }
    }
    return rows;
}

void dp_alltoall_link_bytes(const struct dp_alltoall_topology *topology,
                            const struct dp_alltoall_counts *counts,
                            const struct dp_alltoall_widths *widths, dp_move move, int32_t rank,
                            uint64_t *ret_bytes)
{
    bool is_back = move == DP_MOVE_COMBINE || move == DP_MOVE_DISPATCH_INPUT;
    uint64_t bytes = row_bytes(widths, move);
    uint64_t counts_bytes = (uint64_t)dp_alltoall_count_words(topology) * sizeof(int32_t);
    for (int32_t to = 0; to < topology->ranks; to++) {
        ret_bytes[to] = 0;
        if (to != rank) {
            ret_bytes[to] = (uint64_t)rows_between(topology, counts, is_back, rank, to) * bytes;
            ret_bytes[to] += move == DP_MOVE_DISPATCH ? counts_bytes : 0;
        }
    }
}
