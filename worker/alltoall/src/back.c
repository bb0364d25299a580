// Back: every rank gives the rows of its experts to the forwarders of their sources, a forwarder
// adds up those of its node and returns the sums, and the source adds up the nodes.
#include "engine.h"

#include <stdio.h>
#include <string.h>

static int64_t count_of(const struct dp_alltoall *alltoall, const struct round *round,
                        int32_t source, int32_t rank)
{
    return round->routing->counts.to_rank[source * alltoall->topology.ranks + rank];
}

static dp_status give(struct dp_alltoall *alltoall, struct round *round, int32_t source,
                      int32_t forwarder, int64_t rows, struct dp_error *err)
{
    const struct dp_alltoall_lane_areas *areas = round->lane->areas;
    const struct dp_alltoall_counts *counts = &round->routing->counts;
    int64_t from = dp_alltoall_receive_offset(&alltoall->topology, counts, alltoall->self, source) +
                   round->give[source];
    int64_t to = dp_alltoall_partial_offset(&alltoall->topology, counts, alltoall->self, source) +
                 round->give[source];
    int64_t width = alltoall->widths.weights;
    dp_status status = DP_OK;
    if (round->move == DP_MOVE_DISPATCH_INPUT) {
        status = dp_link_put(alltoall, round, forwarder, areas->partial_weights.offset + to * width,
                             (const uint8_t *)round->load.weights + from * width, rows * width,
                             NOTE_PART, source, rows, err);
    }
    if (status == DP_OK) {
        width = alltoall->widths.row;
        status = dp_link_put(alltoall, round, forwarder, areas->partial_rows.offset + to * width,
                             (const uint8_t *)round->load.rows + from * width, rows * width,
                             NOTE_PARTIAL, source, rows, err);
    }
    round->give[source] += rows;
    return status;
}

static dp_status step_give(struct dp_alltoall *alltoall, struct round *round, bool *progress,
                           struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t i = 0; i < alltoall->topology.ranks && status == DP_OK; i++) {
        int32_t source = (alltoall->self + 1 + i) % alltoall->topology.ranks;
        int32_t forwarder = dp_alltoall_forwarder(&alltoall->topology, source, alltoall->node);
        int64_t all = count_of(alltoall, round, source, alltoall->self);
        int64_t left = all - round->give[source];
        if (forwarder == alltoall->self) {
            round->give[source] = all; // read where they lie
        } else if (left > 0 && dp_link_may_put(alltoall, round, forwarder)) {
            int64_t rows = left < alltoall->chunk_rows ? left : alltoall->chunk_rows;
            status = give(alltoall, round, source, forwarder, rows, err);
            *progress = true;
        }
    }
    return status;
}

// Entries of the stream, at most `limit`, whose rows of all ranks have come.
static int64_t count_ready(const struct dp_alltoall *alltoall, const struct round *round,
                           const struct stream *stream, int64_t limit)
{
    const struct dp_alltoall_layout *layout = stream->layout;
    const int64_t *landed = round->lane->partial + (int64_t)stream->source * alltoall->node_ranks;
    int64_t *cursors = alltoall->cursors;
    memcpy(cursors, stream->row, (size_t)alltoall->node_ranks * sizeof cursors[0]);
    for (int64_t i = 0; i < limit; i++) {
        int64_t entry = stream->first + stream->added + i;
        for (int64_t v = layout->via_start[entry]; v < layout->via_start[entry + 1]; v++) {
            int32_t rank = layout->via[v], local = alltoall->topology.local[rank];
            if (rank != alltoall->self && landed[local] <= cursors[local]) {
                return i;
            }
            cursors[local]++;
        }
    }
    return limit;
}

// What is added up: rows of elements, or the weights that go with them.
struct kind {
    dp_element element;
    int64_t cols, width;
    int64_t partial;     // area
    const uint8_t *load; // the own rank's
};

static struct kind rows_kind(const struct dp_alltoall *alltoall, const struct round *round)
{
    return (struct kind){alltoall->element, alltoall->hidden, alltoall->widths.row,
                         round->lane->areas->partial_rows.offset, round->load.rows};
}

static struct kind weights_kind(const struct dp_alltoall *alltoall, const struct round *round)
{
    return (struct kind){dp_element_real(alltoall->element), alltoall->top_k,
                         alltoall->widths.weights, round->lane->areas->partial_weights.offset,
                         round->load.weights};
}

// Sums of `count` entries, one behind the other or, when is_spread, each in its token's row. Leaves
// the cursors behind the rows it has read.
static void add_entries(struct dp_alltoall *alltoall, const struct stream *stream, int64_t count,
                        const struct kind *kind, bool is_spread, uint8_t *to)
{
    const struct dp_alltoall_layout *layout = stream->layout;
    int64_t *cursors = alltoall->cursors;
    memcpy(cursors, stream->row, (size_t)alltoall->node_ranks * sizeof cursors[0]);
    for (int64_t i = 0; i < count; i++) {
        int64_t entry = stream->first + stream->added + i;
        int32_t terms = 0;
        for (int64_t v = layout->via_start[entry]; v < layout->via_start[entry + 1]; v++) {
            int32_t rank = layout->via[v], local = alltoall->topology.local[rank];
            int64_t at = (stream->at[local] + cursors[local]++) * kind->width;
            alltoall->terms[terms++] =
                rank == alltoall->self ? kind->load + at : alltoall->memory + kind->partial + at;
        }
        int64_t place = is_spread ? layout->node_token[entry] : i;
        dp_sum_rows(kind->element, kind->cols, alltoall->terms, terms, to + place * kind->width);
    }
}

// Sums of the own tokens: where the returns of this node stand, or, with a single node, the totals.
static void add_own(struct dp_alltoall *alltoall, const struct stream *stream, int64_t count,
                    const struct kind *kind, int64_t area, uint8_t *totals)
{
    bool is_single = alltoall->topology.nodes == 1;
    int64_t place = alltoall->node * alltoall->tokens_max + stream->added;
    uint8_t *to = is_single ? totals : alltoall->memory + area + place * kind->width;
    add_entries(alltoall, stream, count, kind, is_single, to);
}

static dp_status return_sums(struct dp_alltoall *alltoall, struct round *round,
                             struct stream *stream, int64_t count, const struct kind *kind,
                             int64_t area, note_kind note, struct dp_error *err)
{
    int64_t place = alltoall->node * alltoall->tokens_max + stream->added;
    int64_t to = area + place * kind->width;
    uint8_t *memory = dp_link_reserve(alltoall, stream->source, to, count * kind->width);
    add_entries(alltoall, stream, count, kind, false, memory);
    return dp_link_commit(alltoall, round, stream->source, to, count * kind->width, note,
                          alltoall->node, count, err);
}

static dp_status add_some(struct dp_alltoall *alltoall, struct round *round, struct stream *stream,
                          int64_t count, struct dp_error *err)
{
    const struct dp_alltoall_lane_areas *areas = round->lane->areas;
    struct kind rows = rows_kind(alltoall, round), weights = weights_kind(alltoall, round);
    bool has_weights = round->move == DP_MOVE_DISPATCH_INPUT;
    dp_status status = DP_OK;
    if (stream->source == alltoall->self) {
        if (has_weights) {
            add_own(alltoall, stream, count, &weights, areas->return_weights.offset,
                    round->lane->total_weights);
        }
        add_own(alltoall, stream, count, &rows, areas->return_rows.offset, round->lane->totals);
        round->lane->returned[alltoall->node] += count;
    } else {
        if (has_weights) {
            status = return_sums(alltoall, round, stream, count, &weights,
                                 areas->return_weights.offset, NOTE_PART, err);
        }
        if (status == DP_OK) {
            status = return_sums(alltoall, round, stream, count, &rows, areas->return_rows.offset,
                                 NOTE_RETURN, err);
        }
    }
    memcpy(stream->row, alltoall->cursors, (size_t)alltoall->node_ranks * sizeof(int64_t));
    stream->added += count;
    return status;
}

static dp_status step_add(struct dp_alltoall *alltoall, struct round *round, int32_t number,
                          bool *progress, struct dp_error *err)
{
    struct stream *stream = &round->streams[number];
    int64_t left = stream->entries - stream->added;
    if (left == 0 || !dp_link_may_put(alltoall, round, stream->source) ||
        !dp_round_find_layout(alltoall, round, number)) {
        return DP_OK;
    }
    int64_t limit = left < alltoall->chunk_rows ? left : alltoall->chunk_rows;
    int64_t count = count_ready(alltoall, round, stream, limit);
    if (count == 0) {
        return DP_OK;
    }
    *progress = true;
    return add_some(alltoall, round, stream, count, err);
}

// Whether the next entry of the node is that of the token.
static bool is_next(const struct dp_alltoall_layout *layout, const struct round *round,
                    int32_t node, int64_t token)
{
    return round->out[node] < layout->node_tokens[node] &&
           layout->node_token[layout->node_start[node] + round->out[node]] == token;
}

static bool has_returns(const struct dp_alltoall *alltoall, const struct round *round,
                        int64_t token)
{
    for (int32_t n = 0; n < alltoall->topology.nodes; n++) {
        if (is_next(&round->routing->layout, round, n, token) &&
            round->lane->returned[n] <= round->out[n]) {
            return false;
        }
    }
    return true;
}

static void add_nodes(struct dp_alltoall *alltoall, const struct round *round, int64_t token,
                      const struct kind *kind, int64_t area, uint8_t *totals)
{
    int32_t terms = 0;
    for (int32_t n = 0; n < alltoall->topology.nodes; n++) {
        if (is_next(&round->routing->layout, round, n, token)) {
            int64_t place = n * alltoall->tokens_max + round->out[n];
            alltoall->terms[terms++] = alltoall->memory + area + place * kind->width;
        }
    }
    dp_sum_rows(kind->element, kind->cols, alltoall->terms, terms, totals + token * kind->width);
}

// The next token's total, once all nodes have returned theirs.
static bool total_token(struct dp_alltoall *alltoall, struct round *round)
{
    const struct dp_alltoall_lane_areas *areas = round->lane->areas;
    struct kind rows = rows_kind(alltoall, round), weights = weights_kind(alltoall, round);
    int64_t token = round->total;
    bool is_single = alltoall->topology.nodes == 1;
    bool is_there = is_single && is_next(&round->routing->layout, round, 0, token);
    if (!has_returns(alltoall, round, token)) {
        return false;
    }
    if (!is_there) { // with a single node the sums are there already
        add_nodes(alltoall, round, token, &rows, areas->return_rows.offset, round->lane->totals);
        if (round->move == DP_MOVE_DISPATCH_INPUT) {
            add_nodes(alltoall, round, token, &weights, areas->return_weights.offset,
                      round->lane->total_weights);
        }
    }
    for (int32_t n = 0; n < alltoall->topology.nodes; n++) {
        round->out[n] += is_next(&round->routing->layout, round, n, token);
    }
    round->total++;
    return true;
}

dp_status dp_back_step(struct dp_alltoall *alltoall, struct round *round, bool *progress,
                       struct dp_error *err)
{
    dp_status status = step_give(alltoall, round, progress, err);
    for (int32_t i = alltoall->served; i >= 0 && status == DP_OK; i--) {
        status = step_add(alltoall, round, i, progress, err);
    }
    for (int64_t i = 0; i < alltoall->chunk_rows && status == DP_OK; i++) {
        if (round->total == round->routing->tokens || !total_token(alltoall, round)) {
            break;
        }
        *progress = true;
    }
    // Until nothing is left to be done for others, the load is read.
    if (status == DP_OK && !round->done && round->total == round->routing->tokens &&
        dp_back_is_over(alltoall, round)) {
        dp_round_done(alltoall, round);
        *progress = true;
    }
    return status;
}

bool dp_back_is_over(const struct dp_alltoall *alltoall, const struct round *round)
{
    bool is_over = true;
    for (int32_t s = 0; s < alltoall->topology.ranks && is_over; s++) {
        is_over = round->give[s] == count_of(alltoall, round, s, alltoall->self);
    }
    for (int32_t i = 0; i <= alltoall->served && is_over; i++) {
        is_over = round->streams[i].added == round->streams[i].entries;
    }
    return is_over;
}

// Other nodes' forwarders whose sums are missing, and ranks of this node whose rows are.
void dp_back_missing(const struct dp_alltoall *alltoall, const struct round *round, char *text,
                     size_t size)
{
    const struct dp_alltoall_topology *topology = &alltoall->topology;
    size_t used = 0;
    text[0] = '\0';
    for (int32_t r = 0; r < topology->ranks && used < size; r++) {
        int32_t node = topology->node[r];
        int64_t missing = 0;
        if (node == alltoall->node && r != alltoall->self) {
            missing =
                count_of(alltoall, round, alltoall->self, r) -
                round->lane
                    ->partial[(int64_t)alltoall->self * alltoall->node_ranks + topology->local[r]];
        } else if (dp_alltoall_forwarder(topology, alltoall->self, node) == r) {
            missing = round->routing->layout.node_tokens[node] - round->lane->returned[node];
        }
        if (missing > 0 && r != alltoall->self) {
            used += (size_t)snprintf(text + used, size - used, " rank %d (%lld rows),",
                                     alltoall->links[r].rank, (long long)missing);
        }
    }
}
