// Ways to cut the layers into stages that depend on the model alone: never on what devices, links
// or memory can do, so that a better cluster has the same ways to choose from.
#pragma once

#include "dp/price.h"
#include "internal.h"

// Stages with the same units are of one class.
struct cut {
    int32_t stages;
    int32_t *layer_begin; // [stages + 1]
    int32_t *class_of;    // [stages]
    struct dp_stage_units *classes;
    int32_t classes_count;
};

typedef enum cut_rule {
    CUT_LAYERS, // layers alone have weight, by their operations
    CUT_ENDS,   // embedding, head and MTP layers as well
    CUT_SPARSE, // layers with experts weigh half as much again: their exchange is not hidden
    CUT_MEMORY, // by parameters and what a micro-batch leaves
    CUT_RULES_COUNT,
    CUT_AS_SET = CUT_RULES_COUNT, // parallel.layers_per_stage
    CUT_ALL_COUNT
} cut_rule;

struct cuts {
    const struct dp_job_spec *spec;
    // Of one micro-batch on one device: weights of units under each rule.
    double weights[CUT_RULES_COUNT][DP_UNIT_COUNT];
    struct cut *known[DP_STAGES_MAX + 1][CUT_ALL_COUNT]; // owned
    bool is_same[DP_STAGES_MAX + 1][CUT_ALL_COUNT];      // as that of a rule before
    int32_t *as_set; // layers of each stage; NULL = not set; owned
    int32_t as_set_count;
};
// The price gives operations and bytes of units; what device it is for does not matter.
dp_status dp_planner_cuts_init(struct cuts *ret_cuts, const struct dp_job_spec *spec,
                               const struct dp_price *price, struct dp_error *err);
void dp_planner_cuts_deinit(struct cuts *cuts);
// Whether the layers can be cut into so many stages: as many as layers_per_stage has, or one layer
// each with the embedding and the head alone at the ends.
bool dp_planner_cuts_allow(const struct cuts *cuts, int32_t stages);
// NULL where the rule cuts as one before it does, or cannot cut so. Borrowed.
const struct cut *dp_planner_cuts_get(struct cuts *cuts, int32_t stages, cut_rule rule);
