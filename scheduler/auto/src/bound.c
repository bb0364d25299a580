// What no order of a field can beat. For each rank the largest of
//   - its work, which cannot start before the first micro-batch gets there;
//   - its work, of which before the first backward gets there only forwards can be done, and no
//     more of them than memory holds; and what follows on earlier stages after its last backward;
//   - the work of all ranks that share cores with it, on these cores;
//   - the room that its chunks take for the time in which they go up and come back, against the
//     room there is.
#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "search.h"

struct pass {
    double forward, backward; // seconds at least: alone or in a pair
    double down, up;          // the first F and the first backward cannot start earlier
    double tail;              // after a backward: those of earlier stages
};

static double seconds_of(const struct field *field, int32_t at, dp_action_kind kind)
{
    const struct lane *lane = &field->lanes[at];
    return dp_sim_chunk_at(&field->costs, lane->rank, lane->slot)->seconds[kind];
}

static double quickest_pair(const struct field *field, int32_t forward, int32_t backward)
{
    const struct lane *f = &field->lanes[forward], *b = &field->lanes[backward];
    size_t pair = dp_sim_pair_index(&field->costs, f->rank, f->slot, b->slot);
    return fmin(field->costs.fb[pair], field->costs.fi[pair]);
}

static double least_backward(const struct field *field, int32_t at)
{
    return fmin(seconds_of(field, at, DP_ACTION_B), seconds_of(field, at, DP_ACTION_I));
}

static double least_work(const struct field *field, int32_t at)
{
    double split = seconds_of(field, at, DP_ACTION_I) + seconds_of(field, at, DP_ACTION_W);
    return fmin(seconds_of(field, at, DP_ACTION_B), split);
}

static void fill_passes(const struct field *field, struct pass *passes)
{
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        int32_t begin = field->lane_begin[rank], end = field->lane_begin[rank + 1];
        for (int32_t i = begin; i < end; i++) {
            passes[i].forward = seconds_of(field, i, DP_ACTION_F);
            passes[i].backward = least_backward(field, i);
            for (int32_t j = begin; j < end; j++) {
                passes[i].forward = fmin(passes[i].forward, quickest_pair(field, i, j));
                passes[i].backward = fmin(passes[i].backward, quickest_pair(field, j, i));
            }
        }
    }
}

static double hop(const struct field *field, int32_t link, int way)
{
    return field->links[link].latency + field->links[link].seconds[way];
}

static void follow(const struct field *field, struct pass *passes, int32_t first)
{
    int32_t last = first;
    while (field->lanes[last].next >= 0) {
        int32_t next = field->lanes[last].next;
        double way = hop(field, field->lanes[last].up, 0);
        double back = hop(field, field->lanes[next].down, 1);
        passes[next].down = passes[last].down + passes[last].forward + way;
        passes[next].tail = passes[last].tail + passes[last].backward + back;
        last = next;
    }
    passes[last].up = passes[last].down + passes[last].forward;
    for (int32_t at = last; field->lanes[at].before >= 0; at = field->lanes[at].before) {
        passes[field->lanes[at].before].up =
            passes[at].up + passes[at].backward + hop(field, field->lanes[at].down, 1);
    }
}

// What pairs can save on one rank: every forward and every backward is in one pair at most.
// with_weights = against all of the work, else against forwards and I alone.
static double most_saved(const struct field *field, int32_t rank, bool with_weights)
{
    int32_t begin = field->lane_begin[rank], end = field->lane_begin[rank + 1];
    double by_side[2] = {0, 0};
    for (int side = 0; side < 2; side++) {
        for (int32_t i = begin; i < end; i++) {
            double best = 0;
            for (int32_t j = begin; j < end; j++) {
                int32_t f = side == 0 ? i : j, b = side == 0 ? j : i;
                const struct lane *lane_f = &field->lanes[f], *lane_b = &field->lanes[b];
                size_t pair =
                    dp_sim_pair_index(&field->costs, lane_f->rank, lane_f->slot, lane_b->slot);
                double weight = with_weights ? seconds_of(field, b, DP_ACTION_W) : 0;
                double paired = fmin(field->costs.fb[pair], field->costs.fi[pair] + weight);
                double alone = seconds_of(field, f, DP_ACTION_F) +
                               (with_weights ? least_work(field, b) : least_backward(field, b));
                best = fmax(best, alone - paired);
            }
            by_side[side] += best * field->lanes[i].count;
        }
    }
    return fmin(by_side[0], by_side[1]);
}

// Seconds of forwards that fit into memory before anything is given back, the longest for their
// bytes first, the last one in part.
static double most_filled(const struct field *field, int32_t rank)
{
    double left = (double)field->room[rank], seconds = 0;
    bool taken[DP_RANK_STAGES_MAX] = {false};
    int32_t begin = field->lane_begin[rank], count = field_lane_count(field, rank);
    for (int32_t round = 0; round < count; round++) {
        int32_t best = -1;
        double best_rate = -1;
        for (int32_t i = 0; i < count; i++) {
            double bytes = (double)field->lanes[begin + i].bytes;
            double forward = seconds_of(field, begin + i, DP_ACTION_F);
            double rate = bytes > 0 ? forward / bytes : INFINITY;
            if (!taken[i] && rate > best_rate) {
                best = i;
                best_rate = rate;
            }
        }
        const struct lane *lane = &field->lanes[begin + best];
        taken[best] = true;
        double wanted = (double)lane->bytes * lane->count;
        double share = wanted <= left ? 1 : left / wanted;
        seconds += share * seconds_of(field, begin + best, DP_ACTION_F) * lane->count;
        left -= share * wanted;
    }
    return seconds;
}

struct totals {
    double work, passes, held; // seconds, seconds, bytes x seconds
    double begin, tail;        // the earliest begin and the least tail of its lanes
    double first_back;         // the first backward
    double turn;               // from the rank's first action to its first backward, at least
};

static struct totals add_up(const struct field *field, const struct pass *passes, int32_t rank)
{
    struct totals totals = {
        .begin = INFINITY, .tail = INFINITY, .first_back = INFINITY, .turn = INFINITY};
    for (int32_t i = field->lane_begin[rank]; i < field->lane_begin[rank + 1]; i++) {
        const struct lane *lane = &field->lanes[i];
        const struct pass *pass = &passes[i];
        if (lane->count == 0) {
            continue;
        }
        double forward = seconds_of(field, i, DP_ACTION_F);
        double life = pass->up + pass->backward - pass->down;
        totals.work += lane->count * (forward + least_work(field, i));
        totals.passes += lane->count * (forward + least_backward(field, i));
        totals.held += (double)lane->bytes * lane->count * life;
        totals.begin = fmin(totals.begin, pass->down);
        totals.tail = fmin(totals.tail, pass->tail);
        totals.first_back = fmin(totals.first_back, pass->up);
        // Its forward passed the rank's first stage of that direction.
        double entered = pass->down;
        for (int32_t j = field->lane_begin[rank]; j < field->lane_begin[rank + 1]; j++) {
            bool same = field->lanes[j].direction == lane->direction;
            entered = same ? fmin(entered, passes[j].down) : entered;
        }
        totals.turn = fmin(totals.turn, pass->up - entered);
    }
    return totals;
}

static double rank_bound(const struct field *field, const struct pass *passes, int32_t rank,
                         bool longest_span)
{
    struct totals totals = add_up(field, passes, rank);
    if (totals.begin >= INFINITY) {
        return 0;
    }
    double work = totals.work - most_saved(field, rank, true);
    double passing = totals.passes - most_saved(field, rank, false);
    double filled = most_filled(field, rank);
    double room = (double)field->room[rank];
    double held = room > 0 ? totals.held / room : 0;
    if (longest_span) {
        double idle = fmax(0, totals.turn - filled);
        return fmax(work + idle, held);
    }
    double idle = fmax(0, totals.first_back - totals.begin - filled);
    double before = totals.begin;
    return fmax(before + work + idle, before + totals.tail + fmax(passing + idle, held));
}

// The work of the ranks that share a host's cores.
static double host_bound(const struct field *field, const struct pass *passes)
{
    double bound = 0;
    for (int32_t host = 0; host < field->costs.hosts; host++) {
        double work = 0;
        for (int32_t rank = 0; rank < field->pipeline; rank++) {
            bool here = field->costs.host[rank] == host;
            work += here ? add_up(field, passes, rank).work - most_saved(field, rank, true) : 0;
        }
        double cores = field->costs.cores[host];
        bound = cores > 0 ? fmax(bound, work / cores) : bound;
    }
    return bound;
}

double dp_auto_bound(const struct field *field, bool longest_span)
{
    int32_t lanes = field->lane_begin[field->pipeline];
    struct pass *passes = dp_new_array(struct pass, (size_t)lanes);
    fill_passes(field, passes);
    for (int32_t i = 0; i < lanes; i++) {
        if (field->lanes[i].before < 0) {
            follow(field, passes, i);
        }
    }
    double bound = 0;
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        bound = fmax(bound, rank_bound(field, passes, rank, longest_span));
    }
    bound = longest_span ? bound : fmax(bound, host_bound(field, passes));
    free(passes);
    // Sums in another order may differ in their last bits.
    return bound * (1 - 1e-12);
}
