// What `dpctl whatif` was asked, and the job that it is about.
#pragma once

#include "dp/adapt.h"
#include "dpctl.h"
#include "plan_request.h"

struct whatif_request {
    const char *source, *plan;           // a job or a job file; the plan to take of a file
    const char *cluster, *profile, *gpu; // as in `dpctl plan`
    int32_t gpus;
    struct dpctl_sets sets;
    const char *slow[DP_SETS_MAX], *links[DP_SETS_MAX], *lose[DP_SETS_MAX];
    int slow_count, links_count, lose_count;
    int64_t steps;    // that are left; 0 = as the job says
    double pause_s;   // of a change, without its state; < 0 = the default
    double restart_s; // < 0 = the default
};

// The job as it runs or would run, and where else its ranks could stand.
struct whatif_job {
    char name[DP_ID_MAX > DP_NAME_MAX ? DP_ID_MAX : DP_NAME_MAX];
    struct dp_job_spec spec;
    struct dp_plan plan;            // owned
    struct plan_question *question; // of a job file; owned
    struct dp_planner_node *nodes;  // all, with the slots that a new plan may have; owned
    struct dp_planner_resources resources;
    struct dp_adapt_spare *spares; // owned
    size_t spares_count;
    double measured_step_s; // of a job file: as planned; 0 = not known
    int64_t steps_left;
};
void whatif_job_deinit(struct whatif_job *job);
// DP_NOT_FOUND where there is neither such a file nor such a job; DP_CONFLICT when the job has no
// plan yet. The caller deinits *ret_job.
dp_status whatif_job_load(struct dpctl *ctl, const struct whatif_request *request,
                          struct whatif_job *ret_job, struct dp_error *err);

// "rank=3:1.5,node=n2:2": multiplies slow[world]. "2-3:4x": what messages between two ranks cost
// then, both ways, added to links[*count], which have room for two more each. DP_INVALID says what
// is wrong with which item.
dp_status whatif_slow(const char *text, const struct dp_plan *plan, double *slow,
                      struct dp_error *err);
dp_status whatif_slow_link(const char *text, const struct dp_plan *plan,
                           const struct dp_adapt_costs *costs, struct dp_adapt_link *links,
                           size_t *count, struct dp_error *err);
// "rank=3" or "node=n2": marks lost[world].
dp_status whatif_lose(const char *text, const struct dp_plan *plan, bool *lost,
                      struct dp_error *err);
