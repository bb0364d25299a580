// Ranks on other places: two change theirs, or one goes to a free one.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

// Slower than this is worth a move; what is named as the end of a slow link is too.
static const double slow_from = 1.05;
enum { SWAPS_MAX = 4 };

static void name_link_ends(const struct adapt *adapt, bool *suspects)
{
    for (size_t i = 0; i < adapt->input->links_count; i++) {
        const struct dp_adapt_link *link = &adapt->input->links[i];
        suspects[link->from >= 0 ? link->from : link->to] = true;
        suspects[link->to >= 0 ? link->to : link->from] = true;
    }
}

static int32_t find_suspects(const struct adapt *adapt, bool *ret_suspects)
{
    int32_t count = 0;
    name_link_ends(adapt, ret_suspects);
    for (int32_t r = 0; r < adapt->world; r++) {
        ret_suspects[r] = ret_suspects[r] || adapt->places[r].slow >= slow_from;
        count += ret_suspects[r];
    }
    return count;
}

static void exchange(struct layout *layout, int32_t a, int32_t b)
{
    int32_t place = layout->place[a];
    layout->place[a] = layout->place[b];
    layout->place[b] = place;
}

static bool best_swap(struct adapt *adapt, struct layout *layout, const bool *suspects,
                      double *step)
{
    int32_t best_a = -1, best_b = -1;
    double least = *step;
    for (int32_t a = 0; a < adapt->world; a++) {
        // A suspect's place goes with it.
        if (layout->place[a] >= adapt->world || !suspects[layout->place[a]]) {
            continue;
        }
        for (int32_t b = 0; b < adapt->world && !dp_adapt_is_over(adapt); b++) {
            if (b == a) {
                continue;
            }
            exchange(layout, a, b);
            double with = dp_adapt_layout_step(adapt, layout);
            if (with < least * (1 - 1e-9)) {
                least = with;
                best_a = a;
                best_b = b;
            }
            exchange(layout, a, b);
        }
    }
    if (best_a < 0) {
        return false;
    }
    exchange(layout, best_a, best_b);
    *step = least;
    return true;
}

bool dp_adapt_swap(struct adapt *adapt, struct layout *layout, char *ret_why)
{
    DP_AUTO_FREE bool *suspects = dp_new_array(bool, (size_t)adapt->world);
    if (find_suspects(adapt, suspects) == 0) {
        snprintf(ret_why, DP_ADAPT_WHY_MAX, "no rank or link is slow");
        return false;
    }
    snprintf(ret_why, DP_ADAPT_WHY_MAX, "the same work on other ranks of the job takes as long: %s",
             adapt->input->links_count > 0 ? "the link has traffic wherever they stand"
                                           : "all of them have about as much of it");
    double step = dp_adapt_layout_step(adapt, layout);
    bool is_better = false;
    for (int i = 0; i < SWAPS_MAX && best_swap(adapt, layout, suspects, &step); i++) {
        is_better = true;
    }
    return is_better;
}

// The free place that is fastest and has the memory; -1 = none.
static int32_t best_spare(struct adapt *adapt, struct layout *layout, int32_t rank,
                          const bool *taken)
{
    int32_t best = -1, old = layout->place[rank];
    double least = INFINITY;
    for (int32_t i = adapt->world; i < adapt->places_count; i++) {
        if (taken[i - adapt->world] || adapt->places[i].slow > adapt->places[old].slow) {
            continue;
        }
        layout->place[rank] = i;
        double step = dp_adapt_layout_step(adapt, layout);
        bool is_faster =
            step < least * (1 - 1e-9) || (step <= least * (1 + 1e-9) && best >= 0 &&
                                          adapt->places[i].slow < adapt->places[best].slow);
        if (is_faster && dp_adapt_layout_fits(adapt, layout)) {
            least = step;
            best = i;
        }
    }
    layout->place[rank] = old;
    return best;
}

struct suspect {
    int32_t rank;
    double slow;
};

static int compare_suspects(const void *a, const void *b)
{
    const struct suspect *one = a, *two = b;
    return one->slow != two->slow ? (one->slow < two->slow) - (one->slow > two->slow)
                                  : (one->rank > two->rank) - (one->rank < two->rank);
}

// All suspects move before anything is compared: several slow ranks hide each other's gain.
static bool move_all(struct adapt *adapt, struct layout *layout, const struct suspect *suspects,
                     int32_t count)
{
    DP_AUTO_FREE bool *taken = dp_new_array(bool, adapt->input->spares_count);
    bool moved = false;
    for (int32_t i = 0; i < count; i++) {
        int32_t spare = best_spare(adapt, layout, suspects[i].rank, taken);
        if (spare >= 0) {
            layout->place[suspects[i].rank] = spare;
            taken[spare - adapt->world] = true;
            moved = true;
        }
    }
    return moved;
}

static void take_back_idle(struct adapt *adapt, struct layout *layout, const struct layout *before,
                           const struct suspect *suspects, int32_t count)
{
    for (int32_t i = count - 1; i >= 0; i--) {
        int32_t rank = suspects[i].rank, place = layout->place[rank];
        double step = dp_adapt_layout_step(adapt, layout);
        layout->place[rank] = before->place[rank];
        if (dp_adapt_layout_step(adapt, layout) > step * (1 + 1e-9)) {
            layout->place[rank] = place;
        }
    }
}

bool dp_adapt_spares(struct adapt *adapt, struct layout *layout, char *ret_why)
{
    if (adapt->input->spares_count == 0) {
        snprintf(ret_why, DP_ADAPT_WHY_MAX, "there is no free slot");
        return false;
    }
    DP_AUTO_FREE bool *is_suspect = dp_new_array(bool, (size_t)adapt->world);
    int32_t count = find_suspects(adapt, is_suspect);
    if (count == 0) {
        snprintf(ret_why, DP_ADAPT_WHY_MAX, "no rank or link is slow");
        return false;
    }
    DP_AUTO_FREE struct suspect *suspects = dp_new_array(struct suspect, (size_t)count);
    for (int32_t r = 0, i = 0; r < adapt->world; r++) {
        if (is_suspect[r]) {
            suspects[i++] = (struct suspect){r, adapt->places[r].slow};
        }
    }
    qsort(suspects, (size_t)count, sizeof(*suspects), compare_suspects);
    snprintf(ret_why, DP_ADAPT_WHY_MAX, "no free slot is faster and has the memory");
    double now = dp_adapt_layout_step(adapt, layout);
    struct layout before;
    dp_adapt_layout_copy(adapt, layout, &before);
    bool moved = move_all(adapt, layout, suspects, count);
    if (moved) {
        take_back_idle(adapt, layout, &before, suspects, count);
    }
    bool is_better = moved && dp_adapt_layout_step(adapt, layout) < now * (1 - 1e-9);
    for (int32_t r = 0; !is_better && r < adapt->world; r++) {
        layout->place[r] = before.place[r];
    }
    dp_adapt_layout_deinit(&before);
    return is_better;
}
