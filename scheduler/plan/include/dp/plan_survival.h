// What a plan can lose without falling back to a checkpoint: how many copies of its tensors there
// are, and where.
//
// A stage's weights and their moments lie on its position (both positions of a bidirectional
// pipeline) of every replica; experts only on those ranks that have the same place in their expert
// groups. What is shared out has one copy: moments with zero1, with fsdp the weights too. Copies of
// busy experts (expert_copies) come and go with their loads and do not count. Pure; any thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/plan.h"

typedef enum dp_plan_tensors {
    DP_PLAN_WEIGHTS, // all but experts
    DP_PLAN_EXPERTS,
    DP_PLAN_MOMENTS, // the optimizer's, of either
    DP_PLAN_TENSORS_COUNT
} dp_plan_tensors;
// "weights", "experts", "moments".
const char *dp_plan_tensors_text(dp_plan_tensors tensors);

// Of one kind of tensors of one stage, those with the fewest copies.
struct dp_plan_copies {
    int32_t stage;
    dp_plan_tensors tensors;
    int32_t ranks; // that hold one and the same of them
    int32_t nodes; // that these stand on
    int32_t rank;  // one of these ranks
};

struct dp_plan_survival {
    int32_t ranks, nodes; // any so many may be lost at once, everything else being there
    // What is scarcest, by ranks and by nodes: the reason that it is not more.
    struct dp_plan_copies by_ranks, by_nodes;
};

// DP_CONFLICT and DP_INVALID as dp_plan_schedule, which says where stages stand.
dp_status dp_plan_survival_of(const struct dp_plan *plan, struct dp_plan_survival *ret_survival,
                              struct dp_error *err);
// One line without its end: "tolerates any one node: ...", "tolerates no loss: ...".
void dp_plan_survival_text(const struct dp_plan *plan, const struct dp_plan_survival *survival,
                           struct dp_buf *out);

// For every stage its kinds of tensors in turn: [stages][DP_PLAN_TENSORS_COUNT]; ranks is 0 for
// experts that there are none of. The caller frees *ret_copies.
dp_status dp_plan_copies_of(const struct dp_plan *plan, struct dp_plan_copies **ret_copies,
                            struct dp_error *err);

// Whether the ranks that are not lost hold everything; lost[dp_plan_world] by global rank. What of
// it does not survive goes to ret_gone (NULL = not wanted): the kind, the stage and one of the
// ranks that held it.
dp_status dp_plan_survives(const struct dp_plan *plan, const bool *lost, bool *ret_survives,
                           struct dp_plan_copies *ret_gone, struct dp_error *err);
