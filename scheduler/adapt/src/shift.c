// Micro-batches between replicas.
//
// Steps grow with the number of micro-batches. While a replica that takes longest can give some to
// one that is still done earlier with them, it does. No such move left means that none exists: any
// better sharing gives less to every longest replica and more to another, whose first addition
// would have been such a move (where legal numbers are evenly spaced, as those of all families
// are above their least).

#include <math.h>
#include <stdio.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

// The next legal number below or above; 0 = none within what this block could need.
static int32_t next_count(struct adapt *adapt, int32_t count, int step, int32_t most)
{
    for (int32_t n = count + step; n >= 1 && n <= most; n += step) {
        if (dp_adapt_order_of(adapt, n)->is_legal) {
            return n;
        }
    }
    return 0;
}

static int32_t longest_block(const struct adapt *adapt, const double *steps)
{
    int32_t longest = 0;
    for (int32_t b = 1; b < adapt->blocks; b++) {
        longest = steps[b] > steps[longest] ? b : longest;
    }
    return longest;
}

static double step_with(struct adapt *adapt, struct layout *layout, int32_t block, int32_t count)
{
    int32_t now = layout->count[block];
    struct order *own = layout->own[block];
    layout->count[block] = count;
    layout->own[block] = NULL;
    double step = dp_adapt_block_step(adapt, layout, block);
    layout->count[block] = now;
    layout->own[block] = own;
    return step;
}

// The block that is done first when it takes what `from` gives, if that is before `from` is now.
static int32_t taker_of(struct adapt *adapt, struct layout *layout, int32_t from, int32_t given,
                        double limit, double *ret_step)
{
    int32_t best = -1;
    double least = limit;
    for (int32_t b = 0; b < adapt->blocks; b++) {
        int32_t count = layout->count[b] + given;
        if (b != from && dp_adapt_order_of(adapt, count)->is_legal) {
            double step = step_with(adapt, layout, b, count);
            if (step < least * (1 - 1e-12)) {
                least = step;
                best = b;
            }
        }
    }
    *ret_step = least;
    return best;
}

static void give(struct layout *layout, int32_t from, int32_t to, int32_t count)
{
    layout->count[from] -= count;
    layout->count[to] += count;
    layout->own[from] = layout->own[to] = NULL;
}

// One move away from the block that takes longest. Steps of both blocks are kept up to date.
static bool move_once(struct adapt *adapt, struct layout *layout, double *steps)
{
    int32_t from = longest_block(adapt, steps);
    int32_t fewer = next_count(adapt, layout->count[from], -1, layout->count[from]);
    double step;
    if (fewer == 0) {
        return false;
    }
    int32_t given = layout->count[from] - fewer;
    int32_t to = taker_of(adapt, layout, from, given, steps[from], &step);
    if (to < 0) {
        return false;
    }
    give(layout, from, to, given);
    if (!dp_adapt_layout_fits(adapt, layout)) {
        give(layout, to, from, given);
        return false;
    }
    steps[to] = step;
    steps[from] = dp_adapt_block_step(adapt, layout, from);
    return true;
}

static void explain(struct adapt *adapt, char *ret_why)
{
    const struct dp_plan *plan = adapt->plan;
    int32_t count = adapt->base.count[0];
    if (adapt->blocks == 1 && plan->data > 1) {
        snprintf(ret_why, DP_ADAPT_WHY_MAX,
                 "expert groups couple all %d replicas: their ranks run the same micro-batches",
                 plan->data);
    } else if (adapt->blocks == 1) {
        snprintf(ret_why, DP_ADAPT_WHY_MAX, "there is one replica");
    } else if (next_count(adapt, count, -1, count) == 0) {
        const struct order *order = dp_adapt_order_of(adapt, count > 1 ? count - 1 : 1);
        snprintf(ret_why, DP_ADAPT_WHY_MAX, "no replica can have fewer: %s",
                 order->refusal != NULL ? order->refusal : "each has one");
    } else {
        snprintf(ret_why, DP_ADAPT_WHY_MAX, "no other share is faster");
    }
}

bool dp_adapt_shift(struct adapt *adapt, struct layout *layout, char *ret_why)
{
    explain(adapt, ret_why);
    if (adapt->blocks == 1) {
        return false;
    }
    bool moved = false;
    DP_AUTO_FREE double *steps = dp_new_array(double, (size_t)adapt->blocks);
    for (int32_t b = 0; b < adapt->blocks; b++) {
        steps[b] = dp_adapt_block_step(adapt, layout, b);
    }
    while (!dp_adapt_is_over(adapt) && move_once(adapt, layout, steps)) {
        moved = true;
    }
    return moved;
}
