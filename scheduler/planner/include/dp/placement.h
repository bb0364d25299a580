// How a plan's ranks stand on the fabric of the nodes it was made for. Pure; any thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/plan.h"
#include "dp/planner.h"
#include "dp/price.h"

// Links between ranks by the outermost level that they cross (dp_span): 0 inside one scale-up
// domain, 1 scale-out, 2.. the fabric's levels.
enum { DP_PLACEMENT_LEVELS = 2 + DP_CLUSTER_LEVELS_MAX };
struct dp_placement {
    // Of all groups of a kind, the one that fares worst.
    struct dp_spans spans;
    int64_t hops[DP_PLACEMENT_LEVELS]; // neighbouring positions of all replicas
    // Scale-up domains that the experts of one token are in at most: all of its group's, or fewer
    // where the model's routing is limited to some groups of experts.
    int32_t token_domains;
};
// nodes: those that the plan was made for (DP_NOT_FOUND when it names another one).
dp_status dp_placement_of(const struct dp_plan *plan, const struct dp_model_spec *model,
                          const struct dp_planner_node *nodes, size_t nodes_count,
                          struct dp_placement *ret_placement, struct dp_error *err);
// Lines for people. levels: names of the fabric's levels beyond scale-up ("leaf", "spine"); NULL =
// one flat network.
void dp_placement_render(const struct dp_placement *placement, const char *const *levels,
                         struct dp_buf *out);
