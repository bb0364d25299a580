// Orders of their own making for accelerators: schedule = "auto".
#pragma once

#include "appraise.h"
#include "search.h"

// What was found on the sizes where families do best.
struct searched {
    struct choice choice;        // family = how the stages are placed
    struct dp_schedule schedule; // owned, as is the rest
    int32_t *layer_begin;
    double step_s;
    char *note; // a line for people
};
// layer_begin is NULL where no order is as good as the best family, or none can be carried by a
// plan; note says why. DP_INTERRUPTED when stopped.
dp_status dp_planner_searched_find(struct explorer *explorer, const struct search *search,
                                   struct searched *ret_searched, struct dp_error *err);
void dp_planner_searched_deinit(struct searched *searched);
