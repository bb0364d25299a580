// More ranks, for a job that has fewer than it once had: nodes were lost or drained, and there is
// room again.

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "anew.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"

// As its file says; where there is no room for that, with as many replicas as there is room for.
static dp_status plan_more(struct adapt *adapt, struct dp_plan *ret_plan, const char **ret_gave,
                           struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf left_out = {0};
    dp_status status = dp_adapt_plan_well(adapt, false, ret_plan, ret_gave, &left_out, err);
    if (status == DP_UNSCHEDULABLE || status == DP_INVALID) {
        status = dp_adapt_plan_well(adapt, true, ret_plan, ret_gave, &left_out, err);
    }
    if (status == DP_OK && dp_plan_world(ret_plan) <= adapt->world) {
        int32_t found = dp_plan_world(ret_plan);
        dp_plan_deinit(ret_plan);
        *ret_plan = (struct dp_plan){0};
        return dp_fail(err, DP_UNSCHEDULABLE, "the best layout on what is free has %d ranks",
                       found);
    }
    return status;
}

// Nothing of the new layout need lie where it lay: what the fullest rank takes comes from others.
static double takes_over_s(const struct adapt *adapt, const struct dp_plan *plan)
{
    const struct dp_adapt_acting *acting = &adapt->input->acting;
    double most = 0;
    for (int32_t p = 0; p < plan->pipeline && plan->positions != NULL; p++) {
        most = fmax(most, plan->positions[p].memory.weights + plan->positions[p].memory.optimizer);
    }
    bool moves = dp_adapt_has_state(adapt) && acting->network_bytes_per_s > 0;
    return acting->switch_s + (moves ? most / acting->network_bytes_per_s : 0);
}

dp_status dp_adapt_grow(struct adapt *adapt, double scale, struct dp_adapt_answer *answer,
                        char *ret_why, struct dp_error *err)
{
    const struct dp_adapt_input *input = adapt->input;
    if (!input->grows || input->spec == NULL || input->resources == NULL) {
        snprintf(ret_why, DP_ADAPT_WHY_MAX, "it has as many ranks as it ever had");
        return DP_OK;
    }
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    struct dp_error refusal = {0};
    const char *gave = "";
    dp_status status = plan_more(adapt, &plan, &gave, &refusal);
    if (status != DP_OK) {
        return dp_adapt_no_plan(&refusal, ret_why, err);
    }
    answer->possible = true;
    answer->after_s = plan.step_s * dp_adapt_planner_off(adapt, scale);
    answer->cost_s = takes_over_s(adapt, &plan);
    answer->action = dp_asprintf("%d ranks become %d (pipeline %d x data %d)%s%s", adapt->world,
                                 dp_plan_world(&plan), plan.pipeline, plan.data,
                                 gave[0] == '\0' ? "" : ", giving up ", gave);
    answer->plan = dp_new(struct dp_plan);
    *answer->plan = plan;
    plan = (struct dp_plan){0};
    return DP_OK;
}
