// Several answers at once.
//
// For each way to place the slow ranks that is looked at (as they stand; the slowest place with
// every other rank's in turn; on free slots) layers and micro-batches are searched in turn, each
// going on from what the other found, beginning with either. What is best in the order that runs
// need not be in another: where layers or micro-batches were moved to make up for an order's waits,
// a new order does better without. So the best of all gets a new order, and so do the best of those
// that leave the layers where they are, and of those that change places alone; then layers are
// searched once more in the order that was found.

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dp/check.h"
#include "internal.h"

enum { PLACEMENTS_MAX = 24 };

typedef bool (*search_fn)(struct adapt *adapt, struct layout *layout, char *ret_why);

// What the best of these leaves as it is.
enum { BESTS = 3 };
static const unsigned untouched[BESTS] = {0, 1u << DP_ADAPT_LAYERS,
                                          1u << DP_ADAPT_LAYERS | 1u << DP_ADAPT_SHIFT};

struct best {
    struct layout layout;
    double step;
};

static void keep_one(struct adapt *adapt, const struct layout *layout, double step,
                     struct best *best)
{
    if (step < best->step * (1 - 1e-9) && dp_adapt_layout_fits(adapt, layout)) {
        dp_adapt_layout_deinit(&best->layout);
        dp_adapt_layout_copy(adapt, layout, &best->layout);
        best->step = step;
    }
}

static void keep(struct adapt *adapt, const struct layout *layout, struct best *bests)
{
    double step = dp_adapt_layout_step(adapt, layout);
    unsigned parts = dp_adapt_layout_parts(adapt, layout);
    for (int i = 0; i < BESTS; i++) {
        if ((parts & untouched[i]) == 0) {
            keep_one(adapt, layout, step, &bests[i]);
        }
    }
}

static void walk(struct adapt *adapt, const struct layout *from, struct best *bests)
{
    static const search_fn ways[2][4] = {
        {dp_adapt_shift, dp_adapt_layers, dp_adapt_shift, dp_adapt_layers},
        {dp_adapt_layers, dp_adapt_shift, dp_adapt_layers, dp_adapt_shift},
    };
    char why[DP_ADAPT_WHY_MAX];
    keep(adapt, from, bests);
    for (int w = 0; w < (adapt->blocks > 1 ? 2 : 1); w++) {
        struct layout walked;
        dp_adapt_layout_copy(adapt, from, &walked);
        for (int i = 0; i < 4; i++) {
            ways[w][i](adapt, &walked, why);
            keep(adapt, &walked, bests);
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
static void walk_swaps(struct adapt *adapt, struct best *bests)
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
        walk(adapt, &swapped, bests);
        dp_adapt_layout_deinit(&swapped);
    }
}

static void walk_from(struct adapt *adapt, search_fn search, struct best *bests)
{
    char why[DP_ADAPT_WHY_MAX];
    struct layout moved;
    dp_adapt_layout_copy(adapt, &adapt->base, &moved);
    if (search(adapt, &moved, why)) {
        walk(adapt, &moved, bests);
    }
    dp_adapt_layout_deinit(&moved);
}

// New orders for a layout, and the layers that suit them.
static void order_one(struct adapt *adapt, const struct layout *from, struct best *bests)
{
    static const search_fn ways[] = {dp_adapt_order, dp_adapt_layers, dp_adapt_order};
    char why[DP_ADAPT_WHY_MAX];
    struct layout ordered;
    dp_adapt_layout_copy(adapt, from, &ordered);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(ways); i++) {
        if (!ways[i](adapt, &ordered, why)) {
            break;
        }
        keep_one(adapt, &ordered, dp_adapt_layout_step(adapt, &ordered), &bests[0]);
    }
    dp_adapt_layout_deinit(&ordered);
}

static void order_all(struct adapt *adapt, struct best *bests)
{
    struct layout begin[BESTS];
    for (int i = 0; i < BESTS; i++) {
        dp_adapt_layout_copy(adapt, &bests[i].layout, &begin[i]);
    }
    for (int i = 0; i < BESTS; i++) {
        order_one(adapt, &begin[i], bests);
        dp_adapt_layout_deinit(&begin[i]);
    }
}

bool dp_adapt_combine(struct adapt *adapt, struct layout *layout, char *ret_why)
{
    snprintf(ret_why, DP_ADAPT_WHY_MAX, "together they do no better than one of them");
    double now = dp_adapt_layout_step(adapt, layout);
    struct best bests[BESTS];
    for (int i = 0; i < BESTS; i++) {
        bests[i].step = now;
        dp_adapt_layout_copy(adapt, layout, &bests[i].layout);
    }
    walk(adapt, &adapt->base, bests);
    walk_swaps(adapt, bests);
    walk_from(adapt, dp_adapt_swap, bests);
    walk_from(adapt, dp_adapt_spares, bests);
    order_all(adapt, bests);
    dp_adapt_layout_deinit(layout);
    *layout = bests[0].layout;
    for (int i = 1; i < BESTS; i++) {
        dp_adapt_layout_deinit(&bests[i].layout);
    }
    return bests[0].step < now;
}
