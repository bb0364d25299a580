#include "dp/alltoall_layout.h"

#define ALIGNMENT 64

// What the fullest rank needs room for, in units of tokens_max rows.
struct worst {
    int64_t served;  // sources of other nodes that a rank forwards for
    int64_t partial; // ranks that give rows back to it, each for as many sources as it serves
};

static struct worst find_worst(const struct dp_alltoall_topology *topology)
{
    struct worst worst = {0};
    for (int32_t r = 0; r < topology->ranks; r++) {
        int64_t served = dp_alltoall_served(topology, r);
        int64_t others = dp_alltoall_node_ranks(topology, topology->node[r]) - 1;
        int64_t partial = (served + 1) * others;
        worst.served = served > worst.served ? served : worst.served;
        worst.partial = partial > worst.partial ? partial : worst.partial;
    }
    return worst;
}

static dp_status check(const struct dp_alltoall_sizes *sizes, struct dp_error *err)
{
    if (sizes->tokens_max < 0 || sizes->tokens_max > DP_ALLTOALL_TOKENS_MAX) {
        return dp_fail(err, DP_INVALID, "all-to-all of %lld tokens a rank; there are 0 to %d",
                       (long long)sizes->tokens_max, DP_ALLTOALL_TOKENS_MAX);
    }
    if (sizes->hidden < 1 || sizes->hidden > DP_HIDDEN_MAX) {
        return dp_fail(err, DP_INVALID, "all-to-all of rows of %lld elements; they have 1 to %d",
                       (long long)sizes->hidden, DP_HIDDEN_MAX);
    }
    if (sizes->top_k < 1 || sizes->top_k > DP_EXPERTS_MAX) {
        return dp_fail(err, DP_INVALID, "all-to-all with %d experts for a token; there are 1 to %d",
                       sizes->top_k, DP_EXPERTS_MAX);
    }
    if (sizes->depth < 1 || sizes->depth > DP_ALLTOALL_DEPTH_MAX) {
        return dp_fail(err, DP_INVALID,
                       "all-to-all with %d exchanges of one kind at a time; there are 1 to %d",
                       sizes->depth, DP_ALLTOALL_DEPTH_MAX);
    }
    return DP_OK;
}

// Where nodes are of very different sizes the worst routing may need more bytes than can be
// counted: no area counts for more than would be refused anyway, so that their sum can be.
static void carve(struct dp_alltoall_regions *regions, struct dp_alltoall_area *area, int64_t rows,
                  int64_t width)
{
    const int64_t most = INT64_MAX / (4 * DP_ALLTOALL_DEPTH_MAX * DP_ALLTOALL_AREAS) - ALIGNMENT;
    int64_t bytes = rows <= most / width ? rows * width : most;
    *area = (struct dp_alltoall_area){.offset = regions->bytes, .bytes = bytes};
    regions->bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void carve_lane(struct dp_alltoall_regions *regions, struct dp_alltoall_lane_areas *lane,
                       const struct dp_alltoall_topology *topology,
                       const struct dp_alltoall_sizes *sizes, dp_move move)
{
    struct worst worst = find_worst(topology);
    int64_t row = sizes->hidden * sizes->element_bytes;
    int64_t scales = (sizes->hidden + DP_ALLTOALL_SCALE_ELEMENTS - 1) / DP_ALLTOALL_SCALE_ELEMENTS *
                     (int64_t)sizeof(float);
    int64_t index = sizes->top_k * (int64_t)sizeof(int32_t);
    int64_t weights = (int64_t)sizes->top_k * sizes->real_bytes;
    int64_t forward = worst.served * sizes->tokens_max;
    if (move == DP_MOVE_DISPATCH || move == DP_MOVE_COMBINE_INPUT) {
        carve(regions, &lane->rows, regions->receive, row);
        carve(regions, &lane->scales, regions->receive, scales);
        carve(regions, &lane->in_rows, forward, row);
        carve(regions, &lane->in_scales, forward, scales);
    } else {
        carve(regions, &lane->partial_rows, worst.partial * sizes->tokens_max, row);
        carve(regions, &lane->return_rows, topology->nodes * sizes->tokens_max, row);
    }
    if (move == DP_MOVE_DISPATCH) {
        carve(regions, &lane->counts, topology->ranks,
              dp_alltoall_count_words(topology) * (int64_t)sizeof(int32_t));
        carve(regions, &lane->index, regions->receive, index);
        carve(regions, &lane->weights, regions->receive, weights);
        carve(regions, &lane->in_index, forward, index);
        carve(regions, &lane->in_weights, forward, weights);
    } else if (move == DP_MOVE_DISPATCH_INPUT) {
        carve(regions, &lane->partial_weights, worst.partial * sizes->tokens_max, weights);
        carve(regions, &lane->return_weights, topology->nodes * sizes->tokens_max, weights);
    }
}

int64_t dp_alltoall_bytes_limit(int64_t bytes_max)
{
    const int64_t most = (int64_t)DP_WINDOW_BYTES_MAX;
    return bytes_max > 0 && bytes_max < most ? bytes_max : most;
}

dp_status dp_alltoall_regions_make(const struct dp_alltoall_topology *topology,
                                   const struct dp_alltoall_sizes *sizes, int64_t bytes_max,
                                   struct dp_alltoall_regions *ret_regions, struct dp_error *err)
{
    dp_status status = check(sizes, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_alltoall_regions regions = {.receive = topology->ranks * sizes->tokens_max};
    for (int move = 0; move < 4; move++) {
        for (int32_t i = 0; i < sizes->depth; i++) {
            carve_lane(&regions, &regions.lanes[move][i], topology, sizes, (dp_move)move);
        }
    }
    const int64_t limit = dp_alltoall_bytes_limit(bytes_max);
    if (regions.bytes > limit) {
        return dp_fail(err, DP_TOO_LARGE,
                       "all-to-all: room for the worst routing takes %lld bytes of each rank where "
                       "%lld may be used: %d ranks on %d nodes, %lld tokens a rank, rows of %lld "
                       "elements of %d bytes, %d exchanges of each kind at a time; smaller "
                       "micro-batches need less",
                       (long long)regions.bytes, (long long)limit, topology->ranks, topology->nodes,
                       (long long)sizes->tokens_max, (long long)sizes->hidden, sizes->element_bytes,
                       sizes->depth);
    }
    *ret_regions = regions;
    return DP_OK;
}
