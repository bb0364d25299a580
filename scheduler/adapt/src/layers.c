// Layers between stages.
//
// Where there are few splits all of them are simulated. Else a move takes a layer from one stage to
// another and shifts those between along; every pair of stages is tried and the best taken, until
// none is better. Beginnings: as it runs, and the split that is best when nothing but the busiest
// rank counts (found exactly, where each rank holds one stage).

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

// Ends may have none, the embedding or the head alone, where the device runs such a stage.
static int32_t least_layers(const struct adapt *adapt, int32_t stage)
{
    const struct dp_job_spec *spec = adapt->input->spec;
    const int32_t *begin = adapt->base.layer_begin;
    bool may_be_empty = spec == NULL || spec->resources.device == DP_DEVICE_CUDA ||
                        begin[stage + 1] == begin[stage];
    return (stage == 0 || stage == adapt->stages - 1) && may_be_empty ? 0 : 1;
}

// Of the stages from this one on.
static int32_t least_from(const struct adapt *adapt, int32_t stage)
{
    int32_t least = 0;
    for (int32_t s = stage; s < adapt->stages; s++) {
        least += least_layers(adapt, s);
    }
    return least;
}

// One layer from stage `from` to stage `to`.
static void move_layer(struct layout *layout, int32_t from, int32_t to)
{
    for (int32_t s = from + 1; s <= to; s++) {
        layout->layer_begin[s]--;
    }
    for (int32_t s = to + 1; s <= from; s++) {
        layout->layer_begin[s]++;
    }
}

static bool can_give(const struct adapt *adapt, const struct layout *layout, int32_t stage)
{
    return layout->layer_begin[stage + 1] - layout->layer_begin[stage] > least_layers(adapt, stage);
}

// With layers of unlike prices a move between distant stages shifts those between; every single
// one is a step of its own then.
static bool best_move(struct adapt *adapt, struct layout *layout, double *step)
{
    int32_t best_from = -1, best_to = -1;
    double least = *step;
    for (int32_t from = 0; from < adapt->stages; from++) {
        if (!can_give(adapt, layout, from)) {
            continue;
        }
        for (int32_t to = 0; to < adapt->stages && !dp_adapt_is_over(adapt); to++) {
            if (to == from) {
                continue;
            }
            move_layer(layout, from, to);
            double with = dp_adapt_layout_step(adapt, layout);
            if (with < least * (1 - 1e-9) && dp_adapt_layout_fits(adapt, layout)) {
                least = with;
                best_from = from;
                best_to = to;
            }
            move_layer(layout, to, from);
        }
    }
    if (best_from < 0) {
        return false;
    }
    move_layer(layout, best_from, best_to);
    *step = least;
    return true;
}

// What a position takes longer than a healthy one, in the block that is worst for it.
static double slowness_of(const struct adapt *adapt, const struct layout *layout, int32_t position)
{
    double most = 0;
    for (int32_t r = 0; r < adapt->world; r++) {
        if (dp_plan_rank_position(adapt->plan, r) == position) {
            most = fmax(most, adapt->places[layout->place[r]].slow);
        }
    }
    return most;
}

static double work_of(const struct adapt *adapt, int32_t begin, int32_t end, int32_t stage)
{
    const struct dp_adapt_costs *costs = adapt->input->costs;
    double seconds = 0;
    for (int kind = 0; kind < DP_ADAPT_KINDS; kind++) {
        if (kind == DP_ACTION_B) {
            continue; // I and W
        }
        seconds += adapt->prefix[end][kind] - adapt->prefix[begin][kind] + costs->action[kind];
        seconds += stage == 0 ? costs->first[kind] : 0;
        seconds += stage == adapt->stages - 1 ? costs->last[kind] : 0;
    }
    return seconds;
}

// least[s][l]: the busiest of stages 0..s that have the first l layers.
static void even_split(const struct adapt *adapt, struct layout *layout, const double *slow)
{
    int32_t layers = adapt->input->costs->layers, stages = adapt->stages;
    size_t row = (size_t)layers + 1;
    DP_AUTO_FREE double *least = dp_new_array(double, row *(size_t)stages);
    DP_AUTO_FREE int32_t *cut = dp_new_array(int32_t, row * (size_t)stages);
    for (int32_t s = 0; s < stages; s++) {
        for (int32_t l = 0; l <= layers; l++) {
            double *best = &least[(size_t)s * row + (size_t)l];
            *best = INFINITY;
            for (int32_t from = s == 0 ? 0 : l; from >= 0 && (s > 0 || from == 0); from--) {
                double before = s == 0 ? 0 : least[(size_t)(s - 1) * row + (size_t)from];
                double with = fmax(before, slow[s] * work_of(adapt, from, l, s));
                if (l - from >= least_layers(adapt, s) && with < *best) {
                    *best = with;
                    cut[(size_t)s * row + (size_t)l] = from;
                }
            }
        }
    }
    if (isfinite(least[(size_t)(stages - 1) * row + (size_t)layers])) {
        for (int32_t s = stages - 1, l = layers; s > 0; s--) {
            l = cut[(size_t)s * row + (size_t)l];
            layout->layer_begin[s] = l;
        }
    }
}

// Splits that are simulated one by one.
enum { SPLITS_MAX = 800 };

// How many ways there are to cut the layers, or more than SPLITS_MAX.
static int64_t count_splits(const struct adapt *adapt)
{
    // What is left over when each has its least goes anywhere.
    int64_t free_layers = adapt->input->costs->layers - least_from(adapt, 0), ways = 1;
    if (free_layers < 0) {
        return SPLITS_MAX + 1;
    }
    for (int32_t i = 1; i < adapt->stages && ways <= SPLITS_MAX; i++) {
        ways = ways * (free_layers + i) / i; // exact: a binomial coefficient at each turn
    }
    return ways;
}

struct tried {
    struct layout layout, best;
    double step;
};

static void try_all(struct adapt *adapt, struct tried *tried, int32_t stage)
{
    int32_t *begin = tried->layout.layer_begin;
    if (stage == adapt->stages) {
        double step = dp_adapt_layout_step(adapt, &tried->layout);
        if (step < tried->step * (1 - 1e-9) && dp_adapt_layout_fits(adapt, &tried->layout)) {
            tried->step = step;
            memcpy(tried->best.layer_begin, begin, ((size_t)adapt->stages + 1) * sizeof(*begin));
        }
        return;
    }
    int32_t last = adapt->input->costs->layers - least_from(adapt, stage);
    for (int32_t l = begin[stage - 1] + least_layers(adapt, stage - 1);
         l <= last && !dp_adapt_is_over(adapt); l++) {
        begin[stage] = l;
        try_all(adapt, tried, stage + 1);
    }
}

static bool try_splits(struct adapt *adapt, struct layout *layout)
{
    struct tried tried = {.step = dp_adapt_layout_step(adapt, layout)};
    double now = tried.step;
    dp_adapt_layout_copy(adapt, layout, &tried.layout);
    dp_adapt_layout_copy(adapt, layout, &tried.best);
    try_all(adapt, &tried, 1);
    memcpy(layout->layer_begin, tried.best.layer_begin,
           ((size_t)adapt->stages + 1) * sizeof(*layout->layer_begin));
    dp_adapt_layout_deinit(&tried.layout);
    dp_adapt_layout_deinit(&tried.best);
    return tried.step < now;
}

static double descend(struct adapt *adapt, struct layout *layout)
{
    double step = dp_adapt_layout_step(adapt, layout);
    while (!dp_adapt_is_over(adapt) && best_move(adapt, layout, &step)) {
    }
    return dp_adapt_layout_fits(adapt, layout) ? step : INFINITY;
}

// With one stage on each rank the split that the busiest rank asks for is another beginning.
static double descend_from_even(struct adapt *adapt, struct layout *layout)
{
    if (adapt->stages != adapt->pipeline) {
        return INFINITY;
    }
    const struct dp_schedule *schedule = &dp_adapt_block_order(adapt, layout, 0)->schedule;
    DP_AUTO_FREE double *slow = dp_new_array(double, (size_t)adapt->stages);
    for (int32_t s = 0; s < adapt->stages; s++) {
        slow[s] = fmax(slowness_of(adapt, layout, schedule->placement[2 * s]),
                       slowness_of(adapt, layout, schedule->placement[2 * s + 1]));
    }
    even_split(adapt, layout, slow);
    return descend(adapt, layout);
}

bool dp_adapt_layers(struct adapt *adapt, struct layout *layout, char *ret_why)
{
    if (adapt->stages == 1) {
        snprintf(ret_why, DP_ADAPT_WHY_MAX, "one stage holds all layers");
        return false;
    }
    if (adapt->input->spec != NULL && adapt->input->spec->parallel.layers_per_stage[0] != '\0') {
        snprintf(ret_why, DP_ADAPT_WHY_MAX, "the job sets layers_per_stage");
        return false;
    }
    snprintf(ret_why, DP_ADAPT_WHY_MAX, "no other split of the layers is faster and fits");
    if (count_splits(adapt) <= SPLITS_MAX) {
        return try_splits(adapt, layout);
    }
    double now = dp_adapt_layout_step(adapt, layout);
    struct layout even;
    dp_adapt_layout_copy(adapt, layout, &even);
    double from_even = descend_from_even(adapt, &even);
    struct layout walked;
    dp_adapt_layout_copy(adapt, layout, &walked);
    double from_here = descend(adapt, &walked);
    struct layout *best = from_even < from_here * (1 - 1e-9) ? &even : &walked;
    bool is_better = fmin(from_even, from_here) < now * (1 - 1e-9);
    if (is_better) {
        memcpy(layout->layer_begin, best->layer_begin,
               ((size_t)adapt->stages + 1) * sizeof(*layout->layer_begin));
    }
    dp_adapt_layout_deinit(&even);
    dp_adapt_layout_deinit(&walked);
    return is_better;
}
