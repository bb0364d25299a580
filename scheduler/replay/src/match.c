// Which compute a transfer serves, and which send meets which receive.
//
// A recording says neither. On one stage the n-th transfer of a kind, by start, belongs to the n-th
// compute of its direction; the n-th real send of a stage meets the n-th real receive of its
// neighbour. Recorders also list transfers that nobody performed: receives after the last compute
// began, sends before the first one ended, and those of a chunk without a neighbour. They wait and
// are waited for as if alone.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

// Clocks of two machines agree this well (that of the published analyzer).
static const double clock_error_s = 5e-5;

struct side {
    dp_replay_kind transfer, peer, compute;
    bool is_send;
    int32_t towards; // the peer's stage, and chunk of the model, from here
};

static const struct side sides[] = {
    {DP_REPLAY_FORWARD_SEND, DP_REPLAY_FORWARD_RECV, DP_REPLAY_FORWARD_COMPUTE, true, 1},
    {DP_REPLAY_FORWARD_RECV, DP_REPLAY_FORWARD_SEND, DP_REPLAY_FORWARD_COMPUTE, false, -1},
    {DP_REPLAY_BACKWARD_SEND, DP_REPLAY_BACKWARD_RECV, DP_REPLAY_BACKWARD_COMPUTE, true, -1},
    {DP_REPLAY_BACKWARD_RECV, DP_REPLAY_BACKWARD_SEND, DP_REPLAY_BACKWARD_COMPUTE, false, 1},
};
enum { SIDES = sizeof(sides) / sizeof(sides[0]) };

// The transfers that were performed, in order, of each (side, stage).
struct performed {
    int32_t *positions;
    size_t count;
};

struct matcher {
    const struct replay_table *table;
    struct replay_links *links;
    struct performed *performed; // [SIDES][stages]
};

static void matcher_deinit(struct matcher *matcher)
{
    for (int32_t i = 0; i < SIDES * matcher->table->stages; i++) {
        free(matcher->performed[i].positions);
    }
    free(matcher->performed);
}

// Where the compute of a direction begins for the last time and ends for the first.
struct window {
    double last_start, first_end;
};

static struct window window_of(const struct replay_table *table, int32_t stage,
                               dp_replay_kind compute)
{
    int32_t at = replay_position(table, stage, compute, 0);
    struct window window = {replay_first_start(table, at), replay_first_end(table, at)};
    for (int32_t seq = 1; seq < replay_count(table, stage, compute); seq++) {
        double start = replay_first_start(table, at + seq);
        double end = replay_first_end(table, at + seq);
        window.last_start = start > window.last_start ? start : window.last_start;
        window.first_end = end < window.first_end ? end : window.first_end;
    }
    return window;
}

static bool in_window(const struct replay_table *table, const struct side *side, int32_t position,
                      const struct window *window)
{
    return side->is_send
               ? replay_first_end(table, position) >= window->first_end - clock_error_s
               : replay_first_start(table, position) <= window->last_start + clock_error_s;
}

// Ties one transfer to its compute; it counts as performed unless its chunk has no neighbour.
static void tie(struct matcher *matcher, const struct side *side, int32_t transfer, int32_t compute,
                struct performed *performed)
{
    const struct replay_table *table = matcher->table;
    if (side->is_send) {
        dp_replay_link(matcher->links, compute, transfer);
    } else {
        dp_replay_link(matcher->links, transfer, compute);
        if (replay_seq(table, compute) > 0) {
            dp_replay_link(matcher->links, compute - 1, transfer);
        }
    }
    int32_t chunk = table->gmc[compute] + side->towards;
    if (chunk >= 0 && chunk < table->chunks * table->stages && table->stages > 1) {
        performed->positions[performed->count++] = transfer;
    }
}

static dp_status match_stage(struct matcher *matcher, const struct side *side, int32_t stage,
                             struct performed *performed, struct dp_error *err)
{
    const struct replay_table *table = matcher->table;
    int32_t computes = replay_count(table, stage, side->compute);
    size_t count;
    DP_AUTO_FREE int32_t *transfers =
        dp_replay_in_order(table, stage, side->transfer, side->transfer, &count);
    if (computes == 0) {
        return dp_fail(err, DP_INVALID, "stage %d has no %s", stage,
                       dp_replay_kind_text(side->compute));
    }
    struct window window = window_of(table, stage, side->compute);
    size_t real = 0;
    for (size_t i = 0; i < count; i++) {
        if (in_window(table, side, transfers[i], &window)) {
            transfers[real++] = transfers[i];
        }
    }
    // Ends of the pipeline have none, or with several chunks one fewer: the very first receive.
    bool one_fewer = real + 1 == (size_t)computes;
    bool is_end = stage == 0 || stage == table->stages - 1;
    if (real != (size_t)computes && !(is_end && (real == 0 || one_fewer))) {
        return dp_fail(err, DP_INVALID,
                       "stage %d, step %d, dp_rank 0: %zu %s for %d %s; each needs one", stage,
                       table->step[0], real, dp_replay_kind_text(side->transfer), computes,
                       dp_replay_kind_text(side->compute));
    }
    int32_t skipped = !side->is_send && one_fewer && real > 0 ? 1 : 0;
    performed->positions = dp_new_array(int32_t, real);
    for (size_t i = 0; i < real; i++) {
        int32_t compute = replay_position(table, stage, side->compute, (int32_t)i + skipped);
        tie(matcher, side, transfers[i], compute, performed);
    }
    return DP_OK;
}

// Makes a send and its receive one node.
static dp_status meet(struct matcher *matcher, int send_side, int32_t stage, struct dp_error *err)
{
    const struct replay_table *table = matcher->table;
    const struct side *send = &sides[send_side];
    int32_t peer_stage = (stage + send->towards + table->stages) % table->stages;
    const struct performed *sends = &matcher->performed[send_side * table->stages + stage];
    const struct performed *recvs =
        &matcher->performed[(send_side + 1) * table->stages + peer_stage];
    if (sends->count != recvs->count) {
        return dp_fail(err, DP_INVALID,
                       "step %d, dp_rank 0: stage %d has %zu %s, stage %d %zu %s to meet them",
                       table->step[0], stage, sends->count, dp_replay_kind_text(send->transfer),
                       peer_stage, recvs->count, dp_replay_kind_text(send->peer));
    }
    for (size_t i = 0; i < sends->count; i++) {
        matcher->links->node[recvs->positions[i]] = sends->positions[i];
    }
    return DP_OK;
}

dp_status dp_replay_match(const struct replay_table *table, struct replay_links *links,
                          struct dp_error *err)
{
    DP_CLEANUP(matcher_deinit)
    struct matcher matcher = {
        .table = table,
        .links = links,
        .performed = dp_new_array(struct performed, (size_t)SIDES * (size_t)table->stages),
    };
    dp_status status = DP_OK;
    for (int side = 0; side < SIDES && status == DP_OK; side++) {
        for (int32_t stage = 0; stage < table->stages && status == DP_OK; stage++) {
            status = match_stage(&matcher, &sides[side], stage,
                                 &matcher.performed[side * table->stages + stage], err);
        }
    }
    for (int side = 0; side < SIDES && status == DP_OK; side += 2) {
        for (int32_t stage = 0; stage < table->stages && status == DP_OK; stage++) {
            status = meet(&matcher, side, stage, err);
        }
    }
    return status;
}
