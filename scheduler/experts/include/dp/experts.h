// Where experts lie when some are busier than others: copies of the busy ones, and ranks that have
// about the same to do.
//
// The method is that of DeepSeek's expert-parallel load balancer (deepseek-ai/EPLB, its two
// policies): groups of experts are packed onto nodes, so that a token's groups meet few nodes;
// inside each node the expert with the most load per copy gets the next copy, until all slots are
// used; the copies are packed onto the node's ranks. Where the groups do not divide over the nodes,
// the same is done with one group and one node. Packing goes from the heaviest item to the
// lightest, each into the lightest pack that still has room; ties go to the lowest number.
//
// Pure functions of their arguments: any thread, and all ranks find the same answer.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/error.h"

struct dp_experts_shape {
    int32_t experts; // of one layer
    int32_t slots;   // places for copies of them over all ranks, at least one for each expert
    int32_t groups;  // of routing: experts / groups neighbours each; 1 = none
    int32_t nodes;
    int32_t ranks; // slots [r * slots / ranks, (r + 1) * slots / ranks) are rank r's
};

// DP_INVALID naming what does not divide, or DP_TOO_LARGE above DP_EXPERTS_MAX experts or
// DP_EXPERT_SLOTS_MAX slots.
dp_status dp_experts_shape_check(const struct dp_experts_shape *shape, struct dp_error *err);

// The expert in each slot, ret_expert[slots], from load[experts]: tokens, or any measure of work
// that is not negative. Every expert has a slot. The shape has been checked.
void dp_experts_place(const struct dp_experts_shape *shape, const double *load,
                      int32_t *ret_expert);
// One slot an expert, in order, those left over for copies of the first experts: what a job starts
// with.
void dp_experts_place_plainly(const struct dp_experts_shape *shape, int32_t *ret_expert);

// Load of the fullest rank over the mean of all when every expert's load is split evenly over its
// slots; 1 is perfect balance, and the answer when there is no load at all.
double dp_experts_skew(const struct dp_experts_shape *shape, const double *load,
                       const int32_t *expert);
// That rank's load.
double dp_experts_fullest(const struct dp_experts_shape *shape, const double *load,
                          const int32_t *expert);

// Turns a placement, expert[slots], so that what lies as `held` [slots] does stays where it can:
// the packs of a node go to the ranks that hold most of them, experts to the slots that they are
// in. Loads of ranks are as before, in another order.
void dp_experts_keep(const struct dp_experts_shape *shape, const int32_t *held, int32_t *expert);
// Slots whose expert is another.
int32_t dp_experts_moved(const struct dp_experts_shape *shape, const int32_t *held,
                         const int32_t *expert);

// What to do about a load when experts lie as `held`: dp_experts_place, kept as much as it can be,
// when the fullest rank then has less than `worth` (0 to 1) times what it has now; otherwise `held`
// and false.
bool dp_experts_propose(const struct dp_experts_shape *shape, const double *load,
                        const int32_t *held, double worth, int32_t *ret_expert);
