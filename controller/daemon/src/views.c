#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "dp/cleanup.h"

static bool from_core(struct daemon *daemon, uint64_t number, struct job_view *ret_view)
{
    ret_view->job = dp_core_job(daemon->core, number, &ret_view->ranks, &ret_view->ranks_count);
    return ret_view->job != NULL;
}

// The core knows more of a job that it has than the store does.
static dp_status complete(struct daemon *daemon, struct job_view *view, struct dp_error *err)
{
    struct job_view live = {0};
    if (from_core(daemon, view->owned_job.number, &live)) {
        dp_job_record_deinit(&view->owned_job);
        *view = live;
        return DP_OK;
    }
    view->job = &view->owned_job;
    dp_status status = dp_store_load_ranks(daemon->store, view->owned_job.number,
                                           &view->owned_ranks, &view->ranks_count, err);
    view->ranks = view->owned_ranks;
    if (status != DP_OK) {
        view_deinit(view);
    }
    return status;
}

dp_status view_find(struct daemon *daemon, const char *key, struct job_view *ret_view,
                    struct dp_error *err)
{
    struct job_view view = {0};
    uint64_t number = dp_core_job_find(daemon->core, key);
    if (number != 0 && from_core(daemon, number, &view)) {
        *ret_view = view;
        return DP_OK;
    }
    dp_status status = dp_store_find_job(daemon->store, key, &view.owned_job, err);
    if (status == DP_OK) {
        status = complete(daemon, &view, err);
    }
    if (status == DP_OK) {
        *ret_view = view;
        // The view moved, and what it points to inside itself with it.
        ret_view->job = view.job == &view.owned_job ? &ret_view->owned_job : view.job;
    }
    return status;
}

dp_status view_get(struct daemon *daemon, uint64_t number, struct job_view *ret_view,
                   struct dp_error *err)
{
    if (from_core(daemon, number, ret_view)) {
        return DP_OK;
    }
    char id[DP_ID_MAX];
    snprintf(id, sizeof(id), "job-%llu", (unsigned long long)number);
    return view_find(daemon, id, ret_view, err);
}

void view_deinit(struct job_view *view)
{
    dp_job_record_deinit(&view->owned_job);
    free(view->owned_ranks);
    *view = (struct job_view){0};
}

dp_status view_plan(const struct dp_job_record *job, struct dp_arena *arena,
                    Dp__V1__Plan **ret_plan, struct dp_error *err)
{
    if (job->plan.length == 0) {
        return dp_fail(err, DP_NOT_FOUND, "%s has no plan yet: it is %s", job->id,
                       dp_job_state_text(job->state));
    }
    ProtobufCMessage *message = NULL;
    dp_status status = dp_wire_unpack(&dp__v1__plan__descriptor, job->plan.bytes, job->plan.length,
                                      arena, &message, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "the plan of %s", job->id);
    }
    *ret_plan = (Dp__V1__Plan *)message;
    return DP_OK;
}
