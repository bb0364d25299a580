// Several answers at once.
//
// For each way to place the slow ranks that is looked at (as they stand; the slowest place with
// every other rank's in turn; on free slots) layers and micro-batches are searched in turn, each
// going on from what the other found, beginning with either; the best of all gets a new order.

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

enum { PLACEMENTS_MAX = 24 };

typedef bool (*search_fn)(struct adapt *adapt, struct layout *layout, char *ret_why);

struct best {
    struct layout layout;
    double step;
};

static void keep(struct adapt *adapt, const struct layout *layout, struct best *best)
{
    double step = dp_adapt_layout_step(adapt, layout);
    if (step < best->step * (1 - 1e-9) && dp_adapt_layout_fits(adapt, layout)) {
        dp_adapt_layout_deinit(&best->layout);
        dp_adapt_layout_copy(adapt, layout, &best->layout);
        best->step = step;
    }
}

static void walk(struct adapt *adapt, const struct layout *from, struct best *best)
{
    static const search_fn ways[2][4] = {
        {dp_adapt_shift, dp_adapt_layers, dp_adapt_shift, dp_adapt_layers},
        {dp_adapt_layers, dp_adapt_shift, dp_adapt_layers, dp_adapt_shift},
    };
    char why[DP_ADAPT_WHY_MAX];
    for (int w = 0; w < (adapt->blocks > 1 ? 2 : 1); w++) {
        struct layout walked;
        dp_adapt_layout_copy(adapt, from, &walked);
        for (int i = 0; i < 4; i++) {
            ways[w][i](adapt, &walked, why);
            keep(adapt, &walked, best);
        }
        dp_adapt_layout_deinit(&walked);
    }
}

static int32_t slowest_rank(const struct adapt *adapt)
{
    int32_t slowest = 0;
    for (int32_t r = 1; r < adapt->world; r++) {
        slowest = adapt->places[r].slow > adapt->places[slowest].slow ? r : slowest;
    }
    return slowest;
}

// Its own replica's ranks first, which are nearest.
static void walk_swaps(struct adapt *adapt, struct best *best)
{
    int32_t slow = slowest_rank(adapt), of_replica = adapt->pipeline * adapt->shards;
    int32_t begin = slow / of_replica * of_replica;
    for (int32_t i = 0; i < adapt->world && i < PLACEMENTS_MAX; i++) {
        int32_t other = (begin + i) % adapt->world;
        if (other == slow || adapt->places[slow].slow <= adapt->places[other].slow ||
            dp_adapt_is_over(adapt)) {
            continue;
        }
        struct layout swapped;
        dp_adapt_layout_copy(adapt, &adapt->base, &swapped);
        swapped.place[slow] = other;
        swapped.place[other] = slow;
        walk(adapt, &swapped, best);
        dp_adapt_layout_deinit(&swapped);
    }
}

static void walk_from(struct adapt *adapt, search_fn search, struct best *best)
{
    char why[DP_ADAPT_WHY_MAX];
    struct layout moved;
    dp_adapt_layout_copy(adapt, &adapt->base, &moved);
    if (search(adapt, &moved, why)) {
        keep(adapt, &moved, best);
        walk(adapt, &moved, best);
    }
    dp_adapt_layout_deinit(&moved);
}

bool dp_adapt_combine(struct adapt *adapt, struct layout *layout, char *ret_why)
{
    snprintf(ret_why, DP_ADAPT_WHY_MAX, "together they do no better than one of them");
    double now = dp_adapt_layout_step(adapt, layout);
    struct best best = {.step = now};
    dp_adapt_layout_copy(adapt, layout, &best.layout);
    walk(adapt, &adapt->base, &best);
    walk_swaps(adapt, &best);
    walk_from(adapt, dp_adapt_swap, &best);
    walk_from(adapt, dp_adapt_spares, &best);
    char why[DP_ADAPT_WHY_MAX];
    struct layout ordered;
    dp_adapt_layout_copy(adapt, &best.layout, &ordered);
    if (dp_adapt_order(adapt, &ordered, why)) {
        keep(adapt, &ordered, &best);
    }
    dp_adapt_layout_deinit(&ordered);
    dp_adapt_layout_deinit(layout);
    *layout = best.layout;
    return best.step < now;
}
