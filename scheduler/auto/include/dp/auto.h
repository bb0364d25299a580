// Searches for the best order of actions for given costs: uneven stages, a slow rank, hops, a cap
// on memory. Never worse than the best fixed family on the same input, of those that were tried: of
// orders with millions of actions only the shortest are, and none with over DP_AUTO_ACTIONS_MAX.
//
// How. Every fixed family that is legal and fits is tried first. Then, for each placement of stages
// on ranks, lists are built by running the ranks forward in time and letting each take the most
// urgent action whose input is there and whose memory fits; what "urgent" means is varied. The best
// lists are then improved by moving single actions to and fro. Pure and repeatable: problem, seed
// and number of moves determine the answer, bit for bit; where the search is cut off changes
// nothing in what it does before. Which of two things at the same moment comes first can hang on
// how times are rounded, so the same costs in another unit (but for a power of two) may lead to
// another order, about as good.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/error.h"
#include "dp/limits.h"
#include "dp/schedule.h"
#include "dp/simulate.h"

typedef enum dp_auto_objective {
    DP_AUTO_MAKESPAN,      // the end of the last action
    DP_AUTO_LONGEST_SPAN,  // the longest time from a rank's first action to its last: what counts
                           // when steps follow each other without a barrier
} dp_auto_objective;

// "makespan" or "span".
static inline const char *dp_auto_objective_text(dp_auto_objective objective)
{
    return objective == DP_AUTO_LONGEST_SPAN ? "span" : "makespan";
}

// How stages are placed on ranks. Bits, to be combined.
typedef enum dp_auto_placement {
    DP_AUTO_STRAIGHT = 1,       // stage r on rank r
    DP_AUTO_LOOP = 2,           // stage s on rank s mod P, as interleaved
    DP_AUTO_VEE = 4,            // stages r and 2P-1-r on rank r, as zb-v
    DP_AUTO_WAVES = 8,          // down and up again several times, as hanayo
    DP_AUTO_BIDIRECTIONAL = 16, // stages r and P-1-r on rank r, streams from both ends, as
                                // dualpipe; any P and M: the middle rank of an odd P holds its
                                // stage once, of an odd M rank 0's stream takes the smaller half
} dp_auto_placement;

struct dp_auto_problem {
    int32_t pipeline, microbatches;
    // Fills the costs (dp_sim_costs_init and what is known) of the model cut into shape->stages
    // stages that stand where shape->placement says; shape has no actions.
    // ret_static_bytes[pipeline], zero on entry, takes what a rank holds all the time (parameters,
    // gradients, optimizer). A caller that knows the costs of one number of stages fails for
    // others: such placements are left out.
    dp_status (*costs)(void *context, const struct dp_schedule *shape,
                       struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                       struct dp_error *err);
    void *context;
    // Most bytes per rank, static ones and activations together; NULL = no limit. Borrowed.
    const uint64_t *memory_cap;
    // What is searched: dp_auto_placement bits, 0 = all; chunks per rank (and direction), 0 = any;
    // or the placement of `shape` alone when that is given (borrowed; its actions do not matter).
    unsigned placements;
    int32_t virtual_stages;
    const struct dp_schedule *shape;
    dp_auto_objective objective;
};

struct dp_auto_options {
    uint64_t seed;
    int64_t moves_max;           // orders tried; 0 = a default, some seconds' work at any size
    bool (*stop)(void *context); // asked between moves; NULL = never
    void *context;
};

struct dp_auto_result {
    struct dp_schedule schedule;     // named "auto"; valid; owned
    struct dp_sim_costs costs;       // of its shape; owned
    uint64_t *static_bytes;          // [pipeline]; owned
    double objective;                // seconds; what was minimised
    double makespan, longest_span;   // both, whichever was minimised
    int64_t moves;                   // tried; the first tries all families
    int64_t best_at;                 // the move that found the answer; 1 = it is a family's order
    bool is_stopped;                 // by the callback
    // The fastest fixed family that fits ("" when none does), and how the answer compares.
    char family[DP_NAME_MAX];
    int32_t family_virtual_stages;   // 0 = its default
    double family_objective;         // seconds; infinite when none fits
    int32_t left_out;                // families that were not tried, by number of chunks: too large
    // No order in the placements that were searched has a smaller objective.
    double bound;
};

// DP_INVALID: no placement can hold the stages within the cap (which rank needs how much at least),
// or the costs are refused for every shape (the callback's reason for the last one). DP_INTERRUPTED
// when stopped before the families were tried. DP_TOO_LARGE: the shortest order has over
// DP_AUTO_ACTIONS_MAX actions. options may be NULL. The caller deinits *ret_result.
dp_status dp_auto_search(const struct dp_auto_problem *problem,
                         const struct dp_auto_options *options, struct dp_auto_result *ret_result,
                         struct dp_error *err);
void dp_auto_result_deinit(struct dp_auto_result *result);
