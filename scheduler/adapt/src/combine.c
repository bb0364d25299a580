// Several answers at once: each search goes on from what the others found.

#include <stdio.h>

#include "internal.h"

typedef bool (*search_fn)(struct adapt *adapt, struct layout *layout, char *ret_why);

static double walk(struct adapt *adapt, struct layout *layout, const search_fn *searches,
                   size_t count)
{
    char why[DP_ADAPT_WHY_MAX];
    for (size_t i = 0; i < count; i++) {
        searches[i](adapt, layout, why);
    }
    return dp_adapt_layout_step(adapt, layout);
}

bool dp_adapt_combine(struct adapt *adapt, struct layout *layout, char *ret_why)
{
    static const search_fn ways[][6] = {
        {dp_adapt_swap, dp_adapt_shift, dp_adapt_layers, dp_adapt_shift, dp_adapt_layers,
         dp_adapt_order},
        {dp_adapt_layers, dp_adapt_swap, dp_adapt_shift, dp_adapt_layers, dp_adapt_shift,
         dp_adapt_order},
        {dp_adapt_spares, dp_adapt_swap, dp_adapt_layers, dp_adapt_shift, dp_adapt_layers,
         dp_adapt_order},
    };
    enum { WAYS = sizeof(ways) / sizeof(ways[0]) };
    snprintf(ret_why, DP_ADAPT_WHY_MAX, "together they do no better than one of them");
    double least = dp_adapt_layout_step(adapt, layout);
    bool is_better = false;
    for (int w = 0; w < WAYS; w++) {
        struct layout walked;
        // Without a free slot the third is the second.
        if (w == 2 && adapt->input->spares_count == 0) {
            continue;
        }
        dp_adapt_layout_copy(adapt, &adapt->base, &walked);
        double step = walk(adapt, &walked, ways[w], sizeof(ways[w]) / sizeof(ways[w][0]));
        if (step < least * (1 - 1e-9) && dp_adapt_layout_fits(adapt, &walked)) {
            struct layout before = *layout;
            *layout = walked;
            walked = before;
            least = step;
            is_better = true;
        }
        dp_adapt_layout_deinit(&walked);
    }
    return is_better;
}
