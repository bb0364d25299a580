// The parts of a plan that say how the model is divided and where its time goes.
#pragma once

#include "dp/arena.h"
#include "dp/plan.h"
#include "dp/v1/plan.pb-c.h"

// Zeroed memory of an arena without limit.
void *dp_wire_must_alloc(struct dp_arena *arena, size_t bytes);

// What a candidate has beyond its sizes. Names that are "" are none, as older versions have it.
dp_status dp_wire_candidate_from_proto(const Dp__V1__Candidate *from, struct dp_plan_candidate *to,
                                       struct dp_error *err);
void dp_wire_candidate_to_proto(const struct dp_plan_candidate *from, struct dp_arena *arena,
                                Dp__V1__Candidate *to);

// DP_INVALID where a name is not known. What was allocated is the plan's, whatever came out.
dp_status dp_wire_strategy_from_proto(const Dp__V1__Plan *message, struct dp_plan *plan,
                                      struct dp_error *err);
void dp_wire_strategy_to_proto(const struct dp_plan *plan, struct dp_arena *arena,
                               Dp__V1__Plan *message);
