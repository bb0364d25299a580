#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "internal.h"

struct split {
    const double *prefix; // [layers + 1]
    int32_t layers, runs;
    double first_s, last_s;
};

static double run_cost(const struct split *split, int32_t run, int32_t begin, int32_t end)
{
    double cost = split->prefix[end] - split->prefix[begin];
    cost += run == 0 ? split->first_s : 0;
    cost += run == split->runs - 1 ? split->last_s : 0;
    return cost;
}

// One pass of dynamic programming over (run, end): combines the cost of the last run with the best
// of the runs before it, by maximum or by sum of squares under a cap. Returns the best of the whole
// and the cuts that give it.
static double best_cuts(const struct split *split, bool by_maximum, double cap, int32_t *ret_begin)
{
    int32_t layers = split->layers, runs = split->runs;
    size_t width = (size_t)layers + 1;
    DP_AUTO_FREE double *best = dp_new_array(double, width *((size_t)runs + 1));
    DP_AUTO_FREE int32_t *from = dp_new_array(int32_t, width * ((size_t)runs + 1));
    for (size_t i = 0; i < width; i++) {
        best[i] = i == 0 ? 0 : INFINITY;
    }
    for (int32_t run = 0; run < runs; run++) {
        double *row = best + width * ((size_t)run + 1);
        for (size_t i = 0; i < width; i++) {
            row[i] = INFINITY;
        }
        // Every run has a layer, so ends and begins stay clear of both borders.
        for (int32_t end = run + 1; end <= layers - (runs - run - 1); end++) {
            for (int32_t begin = end - 1; begin >= run; begin--) {
                double cost = run_cost(split, run, begin, end);
                // Longer runs only cost more.
                if (cost > cap || (by_maximum && cost >= row[end])) {
                    break;
                }
                double before = best[width * (size_t)run + (size_t)begin];
                double value = by_maximum ? fmax(before, cost) : before + cost * cost;
                if (value < row[end]) {
                    row[end] = value;
                    from[width * ((size_t)run + 1) + (size_t)end] = begin;
                }
            }
        }
    }
    int32_t end = layers;
    for (int32_t run = runs; run > 0; run--) {
        ret_begin[run] = end;
        end = from[width * (size_t)run + (size_t)end];
    }
    ret_begin[0] = 0;
    return best[width * (size_t)runs + (size_t)layers];
}

void dp_planner_split_layers(const double *cost, int32_t layers, int32_t runs, double first_s,
                             double last_s, int32_t *ret_begin)
{
    DP_AUTO_FREE double *prefix = dp_new_array(double, (size_t)layers + 1);
    for (int32_t layer = 0; layer < layers; layer++) {
        prefix[layer + 1] = prefix[layer] + cost[layer];
    }
    struct split split = {prefix, layers, runs, first_s, last_s};
    double largest = best_cuts(&split, true, INFINITY, ret_begin);
    // Rounding of the prefix sums must not exclude the cuts just found.
    best_cuts(&split, false, largest * (1 + 1e-9), ret_begin);
}
