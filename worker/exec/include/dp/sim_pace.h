// How a sim rank differs from its plan: the lists and the noise of [sim] (dp/sim_items.h), as one
// rank sees them.
//
// The noise of an action follows from seed, rank, step and the action's number alone: a run is
// repeated exactly, and every layout and every process that takes over sees the same.
//
// Nothing changes after the making: any thread may read.
#pragma once

#include <stdint.h>

#include "dp/error.h"
#include "dp/sim_items.h"
#include "dp/spec.h"

struct dp_sim_pace_config {
    const struct dp_sim_spec *spec;
    const struct dp_sim_place *places; // of all ranks, by rank; copied, their nodes too
    int32_t world;
    int32_t rank; // this one
    uint64_t seed;
};

struct dp_sim_pace;

// DP_INVALID names the item, or the line of the noise file, that cannot be read.
dp_status dp_sim_pace_new(const struct dp_sim_pace_config *config, struct dp_sim_pace **ret_pace,
                          struct dp_error *err);
// Accepts NULL.
void dp_sim_pace_free(struct dp_sim_pace *pace);

// NULL for `pace` is a rank that runs as planned.

// What the rank's work takes at that step, over what was planned.
double dp_sim_pace_slowness(const struct dp_sim_pace *pace, int64_t step);
// The same of the step's action of that number, noise included.
double dp_sim_pace_action(const struct dp_sim_pace *pace, int64_t step, uint64_t action);
// Of hops to or from a rank.
double dp_sim_pace_link(const struct dp_sim_pace *pace, int64_t step, int32_t peer);
// How late the host is with each action, ns.
int64_t dp_sim_pace_gap_ns(const struct dp_sim_pace *pace, int64_t step);
