// Rounds, and the lists that they work through.
#include "engine.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp/rand.h"

struct round *dp_round_new(struct dp_routing *routing, dp_move move, const struct dp_load *load)
{
    struct dp_alltoall *alltoall = routing->alltoall;
    struct round *round = dp_new(struct round);
    *round = (struct round){
        .routing = routing,
        .load = *load,
        .move = move,
        .begin_ns = dp_clock_monotonic_ns(),
        .told = 1,
        .is_counted = move != DP_MOVE_DISPATCH,
    };
    uint64_t of = dp_rand_mix(routing->tag, (uint64_t)alltoall->epoch << 32 | (uint32_t)move << 8 |
                                                (uint32_t)load->format);
    round->check = (uint32_t)of & NOTE_CHECK_MASK;
    return round;
}

void dp_round_free(struct round *round)
{
    for (int32_t i = 0; round->streams != NULL && i <= round->routing->alltoall->served; i++) {
        free(round->streams[i].at);
        free(round->streams[i].row);
    }
    free(round->streams);
    free(round->codes);
    free(round->scales);
    free(round->out);
    free(round->give);
    free(round);
}

// The codes of the rows are made once, however many ranks they go to.
static dp_status encode(struct dp_alltoall *alltoall, struct round *round, struct dp_error *err)
{
    struct dp_fp8 fp8 = {.rows = round->routing->tokens,
                         .cols = alltoall->hidden,
                         .tile_rows = 1,
                         .tile_cols = DP_ALLTOALL_SCALE_ELEMENTS};
    size_t tokens = (size_t)round->routing->tokens;
    round->codes = dp_alloc_aligned(tokens, (size_t)alltoall->hidden);
    round->scales = dp_alloc_aligned(tokens, (size_t)alltoall->widths.scales);
    const struct dp_device_ops *ops = alltoall->device->ops;
    ops->quantize_fp8(alltoall->device->stream, &fp8, DP_OPERAND_ELEMENT, round->load.rows,
                      round->codes, round->scales);
    dp_status status = ops->stream_sync(alltoall->device->stream, err);
    char text[ROUND_TEXT_MAX];
    return status == DP_OK
               ? DP_OK
               : dp_fail_in(err, "all-to-all: %s: rows as fp8", dp_round_text(text, round));
}

static void make_room_for_totals(struct dp_alltoall *alltoall, struct round *round)
{
    struct lane *lane = round->lane;
    if (lane->totals_rows < round->routing->tokens) {
        lane->totals_rows = round->routing->tokens;
        size_t rows = (size_t)lane->totals_rows;
        lane->totals = dp_realloc(lane->totals, rows, (size_t)alltoall->widths.row);
        lane->total_weights =
            dp_realloc(lane->total_weights, rows, (size_t)alltoall->widths.weights);
    }
}

dp_status dp_round_start(struct dp_alltoall *alltoall, struct round *round, struct dp_error *err)
{
    const struct dp_alltoall_topology *topology = &alltoall->topology;
    round->out = dp_new_array(int64_t, (size_t)topology->nodes);
    round->give = dp_new_array(int64_t, (size_t)topology->ranks);
    round->streams = dp_new_array(struct stream, (size_t)alltoall->served + 1);
    for (int32_t i = 0; i <= alltoall->served; i++) {
        round->streams[i].source = alltoall->sources[i];
        round->streams[i].at = dp_new_array(int64_t, (size_t)alltoall->node_ranks);
        round->streams[i].row = dp_new_array(int64_t, (size_t)alltoall->node_ranks);
    }
    if (dp_alltoall_is_back(round->move)) {
        make_room_for_totals(alltoall, round);
    }
    if (round->is_counted) {
        dp_round_set_streams(alltoall, round);
    }
    return dp_round_is_fp8(round) ? encode(alltoall, round, err) : DP_OK;
}

// Where the rows of each rank of this node begin that are to be added up for a source.
static void set_places(struct dp_alltoall *alltoall, const struct round *round,
                       struct stream *stream)
{
    const struct dp_alltoall_topology *topology = &alltoall->topology;
    const struct dp_alltoall_counts *counts = &round->routing->counts;
    for (int32_t i = 0; i < alltoall->node_ranks; i++) {
        int32_t rank = topology->members[topology->first[alltoall->node] + i];
        stream->at[i] = rank == alltoall->self
                            ? dp_alltoall_receive_offset(topology, counts, rank, stream->source)
                            : dp_alltoall_partial_offset(topology, counts, rank, stream->source);
    }
}

void dp_round_set_streams(struct dp_alltoall *alltoall, struct round *round)
{
    struct dp_routing *routing = round->routing;
    int32_t nodes = alltoall->topology.nodes;
    for (int32_t i = 0; i <= alltoall->served; i++) {
        struct stream *stream = &round->streams[i];
        stream->entries = routing->counts.to_node[stream->source * nodes + alltoall->node];
        if (i == 0) {
            stream->layout = &routing->layout;
            stream->first = routing->layout.node_start[alltoall->node];
        }
        if (dp_alltoall_is_back(round->move)) {
            set_places(alltoall, round, stream);
        }
    }
}

bool dp_round_find_layout(struct dp_alltoall *alltoall, const struct round *round, int32_t number)
{
    struct stream *stream = &round->streams[number];
    const struct dp_alltoall_layout *layout = &round->routing->served[number > 0 ? number - 1 : 0];
    if (stream->layout == NULL && layout->node_start != NULL) {
        stream->layout = layout;
        stream->first = layout->node_start[alltoall->node];
    }
    return stream->layout != NULL;
}

void dp_round_done(struct dp_alltoall *alltoall, struct round *round)
{
    int64_t now_ns = dp_clock_monotonic_ns();
    pthread_mutex_lock(&alltoall->mutex);
    round->done = true;
    round->routing->landed_ns[round->move] = now_ns;
    alltoall->stats.moves[round->move]++;
    alltoall->stats.move_ns[round->move] += now_ns - round->begin_ns;
    pthread_cond_broadcast(&alltoall->changed);
    pthread_mutex_unlock(&alltoall->mutex);
}
