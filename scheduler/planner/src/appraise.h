// One candidate for accelerators in full: simulated, with where time and memory go on every
// pipeline position.
#pragma once

#include "simulation.h"

struct appraisal {
    struct choice choice;
    struct pricing pricing; // points into itself: not to be copied
    int32_t *layer_begin;   // [stages + 1]; owned, as is the rest
    struct dp_schedule schedule;
    bool is_borrowed; // the schedule is the caller's
    struct dp_sim_costs costs;
    struct dp_sim_result result;
    struct dp_plan_position *positions; // [pipeline]
    int32_t critical;                   // the position with the least bubble
    int32_t fullest;
    double fullest_bytes;
};
// The caller deinits *ret_appraisal whatever came out.
dp_status dp_planner_appraise(struct explorer *explorer, const struct choice *choice,
                              struct appraisal *ret_appraisal, struct dp_error *err);
// The same for given stages and a profile of its own. order NULL = the family's, else it must
// outlive the appraisal.
dp_status dp_planner_appraise_with(struct explorer *explorer, const struct choice *choice,
                                   const int32_t *layer_begin, const struct dp_profile *profile,
                                   const struct dp_schedule *order, struct appraisal *ret_appraisal,
                                   struct dp_error *err);
void dp_planner_appraisal_deinit(struct appraisal *appraisal);
