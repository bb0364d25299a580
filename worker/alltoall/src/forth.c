// To the experts: rows leave for the forwarders of other nodes, and every stream of rows (the own
// one, and those that this rank forwards) is dealt out to the ranks of this node.
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"

static const struct dp_alltoall_lane_areas *areas_of(const struct round *round)
{
    return round->lane->areas;
}

static int64_t row_width(const struct dp_alltoall *alltoall, const struct round *round)
{
    return dp_round_is_fp8(round) ? alltoall->hidden : alltoall->widths.row;
}

// Rows of one kind on their way: from a base, one of `width` bytes for each place.
struct rows {
    const uint8_t *base;
    int64_t width;
    int64_t to; // offset in the peer's window of the first
};

// Copies rows of the stream's entries from `at` on that go to `rank` (-1 = all), at most `limit`,
// behind each other (tokens of a forwarded stream are its entries); returns how many entries were
// looked at, with the rows in *ret_rows.
static int64_t gather(const struct stream *stream, int32_t rank, int64_t at, int64_t limit,
                      const struct rows *rows, uint8_t *to, int64_t *ret_rows)
{
    const struct dp_alltoall_layout *layout = stream->layout;
    int64_t count = 0, entry = at;
    for (; entry < stream->entries && count < limit; entry++) {
        int64_t token = layout->node_token[stream->first + entry];
        const uint64_t *bits = layout->in_rank + token * layout->words;
        if (rank < 0 || (bits[rank / 64] >> rank % 64 & 1) != 0) {
            if (to != NULL) {
                const uint8_t *from = rows->base + token * rows->width;
                memcpy(to + count * rows->width, from, (size_t)rows->width);
            }
            count++;
        }
    }
    *ret_rows = count;
    return entry - at;
}

// A chunk of one kind of rows; nothing happens when there is nothing of the kind.
static dp_status send_rows(struct dp_alltoall *alltoall, const struct round *round,
                           const struct stream *stream, int32_t peer, int32_t rank, int64_t at,
                           int64_t count, const struct rows *rows, note_kind kind,
                           struct dp_error *err)
{
    if (count == 0) {
        return DP_OK;
    }
    int64_t found, bytes = count * rows->width;
    uint8_t *to = dp_link_reserve(alltoall, peer, rows->to, bytes);
    gather(stream, rank, at, count, rows, to, &found);
    DP_CHECK(found == count);
    return dp_link_commit(alltoall, round, peer, rows->to, bytes, kind, stream->source, count, err);
}

static const uint8_t *load_rows(const struct round *round)
{
    return dp_round_is_fp8(round) ? round->codes : round->load.rows;
}

// Rows to the forwarder of another node: index and weights of all tokens first, as it deals out by
// them, then the rows.
static dp_status send_out(struct dp_alltoall *alltoall, struct round *round, int32_t node,
                          int64_t chunk, struct dp_error *err)
{
    const struct dp_alltoall_lane_areas *areas = areas_of(round);
    const struct dp_alltoall_widths *widths = &alltoall->widths;
    const struct dp_alltoall_layout *layout = &round->routing->layout;
    struct stream stream = {.source = alltoall->self,
                            .layout = layout,
                            .first = layout->node_start[node],
                            .entries = layout->node_tokens[node]};
    int32_t peer = dp_alltoall_forwarder(&alltoall->topology, alltoall->self, node);
    int64_t slot = dp_alltoall_served_place(&alltoall->topology, peer, alltoall->self);
    int64_t at = round->out[node], base = slot * alltoall->tokens_max, width;
    dp_status status = DP_OK;
    if (at == 0 && round->move == DP_MOVE_DISPATCH) {
        struct rows index = {(const uint8_t *)round->routing->index, widths->index,
                             areas->in_index.offset + base * widths->index};
        struct rows weights = {round->load.weights, widths->weights,
                               areas->in_weights.offset + base * widths->weights};
        status = send_rows(alltoall, round, &stream, peer, -1, 0, stream.entries, &index, NOTE_PART,
                           err);
        if (status == DP_OK) {
            status = send_rows(alltoall, round, &stream, peer, -1, 0, stream.entries, &weights,
                               NOTE_PART, err);
        }
    }
    if (status == DP_OK && dp_round_is_fp8(round)) {
        width = widths->scales;
        struct rows scales = {(const uint8_t *)round->scales, width,
                              areas->in_scales.offset + (base + at) * width};
        status = send_rows(alltoall, round, &stream, peer, -1, at, chunk, &scales, NOTE_PART, err);
    }
    if (status == DP_OK) {
        width = row_width(alltoall, round);
        struct rows rows = {load_rows(round), width, areas->in_rows.offset + (base + at) * width};
        status = send_rows(alltoall, round, &stream, peer, -1, at, chunk, &rows, NOTE_INBOUND, err);
    }
    round->out[node] += chunk;
    return status;
}

static dp_status step_out(struct dp_alltoall *alltoall, struct round *round, bool *progress,
                          struct dp_error *err)
{
    dp_status status = DP_OK;
    for (int32_t i = 1; i < alltoall->topology.nodes && status == DP_OK; i++) {
        int32_t node = (alltoall->node + i) % alltoall->topology.nodes;
        int64_t left = round->routing->layout.node_tokens[node] - round->out[node];
        int32_t peer = dp_alltoall_forwarder(&alltoall->topology, alltoall->self, node);
        if (left > 0 && dp_link_may_put(alltoall, round, peer)) {
            int64_t chunk = left < alltoall->chunk_rows ? left : alltoall->chunk_rows;
            status = send_out(alltoall, round, node, chunk, err);
            *progress = true;
        }
    }
    return status;
}

// Where the rows of a stream are read from on this rank.
static struct rows source_rows(const struct dp_alltoall *alltoall, const struct stream *stream,
                               const void *own, int64_t area, int64_t width)
{
    if (stream->source == alltoall->self) {
        return (struct rows){.base = own, .width = width};
    }
    int64_t slot = dp_alltoall_served_place(&alltoall->topology, alltoall->self, stream->source);
    int64_t first = slot * alltoall->tokens_max * width;
    return (struct rows){.base = alltoall->memory + area + first, .width = width};
}

// Index and weights as the rank wants them: its own experts from 0, and 0 for those of others.
static void localize(const struct dp_alltoall *alltoall, int32_t rank, int64_t rows, int32_t *index,
                     void *weights)
{
    int32_t own = alltoall->experts / alltoall->topology.ranks, first = rank * own;
    size_t real = (size_t)(alltoall->widths.weights / alltoall->top_k);
    for (int64_t i = 0; i < rows * alltoall->top_k; i++) {
        bool is_own = index[i] >= first && index[i] < first + own;
        index[i] = is_own ? index[i] - first : -1;
        if (!is_own) {
            memset((uint8_t *)weights + (size_t)i * real, 0, real);
        }
    }
}

static dp_status deal_index(struct dp_alltoall *alltoall, const struct round *round,
                            const struct stream *stream, int32_t rank, int64_t place, int64_t count,
                            struct dp_error *err)
{
    const struct dp_alltoall_widths *widths = &alltoall->widths;
    const struct dp_alltoall_lane_areas *areas = areas_of(round);
    struct rows index =
        source_rows(alltoall, stream, round->routing->index, areas->in_index.offset, widths->index);
    struct rows weights = source_rows(alltoall, stream, round->load.weights,
                                      areas->in_weights.offset, widths->weights);
    int64_t found, bytes = count * (widths->index + widths->weights);
    uint8_t *both = dp_alloc((size_t)bytes, 1);
    uint8_t *second = both + count * widths->weights; // reals first: they may be the wider ones
    gather(stream, rank, 0, count, &weights, both, &found);
    gather(stream, rank, 0, count, &index, second, &found);
    localize(alltoall, rank, count, (int32_t *)(void *)second, both);
    const struct {
        const uint8_t *from;
        int64_t to, width;
    } parts[2] = {{second, areas->index.offset, widths->index},
                  {both, areas->weights.offset, widths->weights}};
    dp_status status = DP_OK;
    for (int i = 0; i < 2 && status == DP_OK; i++) {
        int64_t to = parts[i].to + place * parts[i].width, length = count * parts[i].width;
        memcpy(dp_link_reserve(alltoall, rank, to, length), parts[i].from, (size_t)length);
        status = dp_link_commit(alltoall, round, rank, to, length, NOTE_PART, stream->source, count,
                                err);
    }
    free(both);
    return status;
}

// The next chunk of a stream for one rank of this node.
static dp_status deal(struct dp_alltoall *alltoall, struct round *round, struct stream *stream,
                      int32_t rank, int64_t entries, struct dp_error *err)
{
    const struct dp_alltoall_lane_areas *areas = areas_of(round);
    const struct dp_alltoall_counts *counts = &round->routing->counts;
    int32_t local = alltoall->topology.local[rank];
    int64_t total = counts->to_rank[stream->source * alltoall->topology.ranks + rank];
    int64_t at = stream->at[local];
    int64_t place = dp_alltoall_receive_offset(&alltoall->topology, counts, rank, stream->source);
    struct stream part = *stream;
    int64_t width = row_width(alltoall, round), count;
    part.entries = entries;
    dp_status status = DP_OK;
    if (at == 0 && total > 0 && round->move == DP_MOVE_DISPATCH) {
        status = deal_index(alltoall, round, stream, rank, place, total, err);
    }
    int64_t looked = gather(&part, rank, at, alltoall->chunk_rows, NULL, NULL, &count);
    place += stream->row[local];
    if (status == DP_OK && dp_round_is_fp8(round)) {
        struct rows scales = source_rows(alltoall, stream, round->scales, areas->in_scales.offset,
                                         alltoall->widths.scales);
        scales.to = areas->scales.offset + place * scales.width;
        status = send_rows(alltoall, round, &part, rank, rank, at, count, &scales, NOTE_PART, err);
    }
    if (status == DP_OK) {
        struct rows rows =
            source_rows(alltoall, stream, load_rows(round), areas->in_rows.offset, width);
        rows.to = areas->rows.offset + place * width;
        status = send_rows(alltoall, round, &part, rank, rank, at, count, &rows, NOTE_ARRIVAL, err);
    }
    stream->at[local] += looked;
    stream->row[local] += count;
    return status;
}

// What a forwarded source's tokens go to, from the index that came ahead of its rows.
static dp_status read_index(struct dp_alltoall *alltoall, struct round *round,
                            struct stream *stream, int32_t place, struct dp_error *err)
{
    struct dp_alltoall_layout *layout = &round->routing->served[place];
    int64_t first = place * alltoall->tokens_max * alltoall->widths.index;
    const int32_t *index =
        (const int32_t *)(const void *)(alltoall->memory + areas_of(round)->in_index.offset +
                                        first);
    dp_alltoall_layout_deinit(layout);
    dp_status status =
        dp_alltoall_layout_init(layout, &alltoall->topology, alltoall->experts, stream->entries,
                                alltoall->top_k, index, alltoall->node, 0, err);
    const int32_t *told =
        round->routing->counts.to_rank + (int64_t)stream->source * alltoall->topology.ranks;
    bool is_same = status == DP_OK && layout->node_tokens[alltoall->node] == stream->entries;
    for (int32_t i = 0; i < alltoall->node_ranks && is_same; i++) {
        int32_t rank = alltoall->topology.members[alltoall->topology.first[alltoall->node] + i];
        is_same = layout->rank_tokens[rank] == told[rank];
    }
    if (status == DP_OK && !is_same) {
        status = dp_fail(err, DP_INTERNAL, "its index is not that of its counts");
    }
    if (status != DP_OK) {
        char text[ROUND_TEXT_MAX];
        return dp_fail_in(err, "all-to-all: %s: what rank %d gave to be forwarded",
                          dp_round_text(text, round), alltoall->links[stream->source].rank);
    }
    dp_round_find_layout(alltoall, round, place + 1);
    return DP_OK;
}

static dp_status step_stream(struct dp_alltoall *alltoall, struct round *round, int32_t number,
                             bool *progress, struct dp_error *err)
{
    struct stream *stream = &round->streams[number];
    int64_t ready = number == 0 ? stream->entries : round->lane->inbound[stream->source];
    dp_status status = DP_OK;
    if (ready > stream->entries) {
        char text[ROUND_TEXT_MAX];
        return dp_fail(err, DP_INTERNAL,
                       "all-to-all: %s: rank %d gave %lld rows to be forwarded and told of %lld",
                       dp_round_text(text, round), alltoall->links[stream->source].rank,
                       (long long)ready, (long long)stream->entries);
    }
    if (stream->layout == NULL && ready > 0) {
        if (round->move == DP_MOVE_DISPATCH) {
            status = read_index(alltoall, round, stream, number - 1, err);
        } else if (!dp_round_find_layout(alltoall, round, number)) {
            return DP_OK;
        }
    }
    for (int32_t i = 0; i < alltoall->node_ranks && status == DP_OK && ready > 0; i++) {
        int32_t local = (alltoall->topology.local[alltoall->self] + i + 1) % alltoall->node_ranks;
        int32_t rank = alltoall->topology.members[alltoall->topology.first[alltoall->node] + local];
        if (stream->at[local] < ready && dp_link_may_put(alltoall, round, rank)) {
            status = deal(alltoall, round, stream, rank, ready, err);
            *progress = true;
        }
    }
    return status;
}

static bool has_all(const struct dp_alltoall *alltoall, const struct round *round)
{
    const struct dp_alltoall_counts *counts = &round->routing->counts;
    for (int32_t s = 0; s < alltoall->topology.ranks; s++) {
        if (round->lane->arrived[s] <
            counts->to_rank[s * alltoall->topology.ranks + alltoall->self]) {
            return false;
        }
    }
    return true;
}

// What came in an earlier DISPATCH of the same routing stays as it is: the caller may be reading
// it.
static dp_status compare_index(const struct dp_alltoall *alltoall, const struct round *round,
                               int64_t arrived, struct dp_error *err)
{
    const struct dp_routing *routing = round->routing;
    size_t bytes = (size_t)(arrived * alltoall->widths.index);
    const uint8_t *index = alltoall->memory + areas_of(round)->index.offset;
    if (arrived == routing->arrived && (bytes == 0 || memcmp(routing->expert, index, bytes) == 0)) {
        return DP_OK;
    }
    char text[ROUND_TEXT_MAX];
    return dp_fail(err, DP_INTERNAL,
                   "all-to-all: %s: other tokens have come than when the routing was dispatched "
                   "before",
                   dp_round_text(text, round));
}

// Keeps the index beyond the round, for the other moves.
static dp_status keep_index(struct dp_alltoall *alltoall, struct round *round, struct dp_error *err)
{
    struct dp_routing *routing = round->routing;
    int32_t own = alltoall->experts / alltoall->topology.ranks;
    int64_t arrived = dp_alltoall_receive_offset(&alltoall->topology, &routing->counts,
                                                 alltoall->self, alltoall->topology.ranks);
    if (routing->has_arrived) {
        return compare_index(alltoall, round, arrived, err);
    }
    int64_t slots = arrived * alltoall->top_k;
    const int32_t *index =
        (const int32_t *)(const void *)(alltoall->memory + areas_of(round)->index.offset);
    routing->expert = dp_new_array(int32_t, (size_t)slots);
    for (int64_t i = 0; i < slots; i++) {
        int32_t expert = index[i];
        if (expert < -1 || expert >= own) {
            char text[ROUND_TEXT_MAX];
            return dp_fail(
                err, DP_INTERNAL, "all-to-all: %s: row %lld came for expert %d of the %d here",
                dp_round_text(text, round), (long long)(i / alltoall->top_k), expert, own);
        }
        routing->expert[i] = expert;
        if (expert >= 0) {
            routing->expert_counts[expert]++;
        }
    }
    routing->arrived = arrived;
    routing->has_arrived = true;
    return DP_OK;
}

// The caller may use the load again. A peer whose rows have all come may still be a round behind.
static bool is_load_read(const struct dp_alltoall *alltoall, const struct round *round)
{
    const struct stream *own = &round->streams[0];
    bool is_read = true;
    for (int32_t n = 0; n < alltoall->topology.nodes && is_read; n++) {
        is_read = n == alltoall->node || round->out[n] == round->routing->layout.node_tokens[n];
    }
    for (int32_t l = 0; l < alltoall->node_ranks && is_read; l++) {
        is_read = own->at[l] == own->entries;
    }
    return is_read;
}

dp_status dp_forth_step(struct dp_alltoall *alltoall, struct round *round, bool *progress,
                        struct dp_error *err)
{
    dp_status status = DP_OK;
    if (round->move == DP_MOVE_DISPATCH) {
        status = dp_counts_tell(alltoall, round, progress, err);
    }
    if (status == DP_OK) {
        status = step_out(alltoall, round, progress, err);
    }
    if (status == DP_OK && !round->is_counted) {
        status = dp_counts_take(alltoall, round, progress, err);
        if (round->is_counted) {
            dp_round_set_streams(alltoall, round);
        }
    }
    for (int32_t i = alltoall->served; i >= 0 && status == DP_OK && round->is_counted; i--) {
        status = step_stream(alltoall, round, i, progress, err);
    }
    if (status == DP_OK && round->is_counted && !round->done && has_all(alltoall, round) &&
        is_load_read(alltoall, round)) {
        status = round->move == DP_MOVE_DISPATCH ? keep_index(alltoall, round, err) : DP_OK;
        if (status == DP_OK) {
            dp_round_done(alltoall, round);
            *progress = true;
        }
    }
    return status;
}

bool dp_forth_is_over(const struct dp_alltoall *alltoall, const struct round *round)
{
    bool is_over = round->is_counted &&
                   (round->move != DP_MOVE_DISPATCH || round->told == alltoall->topology.ranks);
    for (int32_t n = 0; n < alltoall->topology.nodes && is_over; n++) {
        is_over = n == alltoall->node || round->out[n] == round->routing->layout.node_tokens[n];
    }
    for (int32_t i = 0; i <= alltoall->served && is_over; i++) {
        for (int32_t l = 0; l < alltoall->node_ranks && is_over; l++) {
            is_over = round->streams[i].at[l] == round->streams[i].entries;
        }
    }
    return is_over;
}

// Whoever a source's rows come from in the end: itself, or the forwarder here.
void dp_forth_missing(const struct dp_alltoall *alltoall, const struct round *round, char *text,
                      size_t size)
{
    const struct dp_alltoall_topology *topology = &alltoall->topology;
    size_t used = 0;
    text[0] = '\0';
    for (int32_t s = 0; s < topology->ranks && used < size; s++) {
        int32_t rank = alltoall->links[s].rank;
        if (!round->is_counted) {
            if (s != alltoall->self && !round->lane->peers[s].has_counts) {
                used += (size_t)snprintf(text + used, size - used, " rank %d (has not begun it),",
                                         rank);
            }
            continue;
        }
        int64_t missing = round->routing->counts.to_rank[s * topology->ranks + alltoall->self] -
                          round->lane->arrived[s];
        if (missing > 0) {
            int32_t by = dp_alltoall_forwarder(topology, s, alltoall->node);
            used += (size_t)snprintf(text + used, size - used, " rank %d (%lld rows%s%s),", rank,
                                     (long long)missing, by == s ? "" : " through its forwarder",
                                     by == alltoall->self ? ", here" : "");
        }
    }
    if (round->is_counted && used < size && !is_load_read(alltoall, round)) {
        snprintf(text + used, size - used, " peers that are a round behind,");
    }
}
