// What people change of jobs: whether they may start, and before whom they go.
#include "core_internal.h"

#include <stdio.h>
#include <string.h>

// It waits, or will again: what runs is cancelled or drained, not held.
static bool may_be_held(const struct core_job *job)
{
    return job->row.state == DP_STATE_SUBMITTED || job->row.state == DP_STATE_QUEUED ||
           dp_core_job_goes_on(job);
}

static const char *by_whom(const struct dp_job_update *update)
{
    return update->by[0] == '\0' ? "somebody" : update->by;
}

// It is judged anew.
static void look_again(struct dp_core *core, struct core_job *job)
{
    core->index++;
    dp_core_job_changed(job);
    dp_core_queue_freshen(core, job);
    dp_core_reschedule(core);
}

static void hold(struct dp_core *core, struct core_job *job, const struct dp_job_update *update)
{
    if (job->row.held_ns != 0 && strcmp(job->row.held_by, update->by) == 0 &&
        strcmp(job->row.held_reason, update->reason) == 0) {
        return;
    }
    job->row.held_ns = core->wall_ns;
    DP_COPY_TEXT(job->row.held_by, update->by);
    DP_COPY_TEXT(job->row.held_reason, update->reason);
    job->passed_ns = 0; // once it is released, others have not passed it yet
    dp_core_note(core, job, NULL, false, "job.held", "by %s%s%s", by_whom(update),
                 update->reason[0] == '\0' ? "" : ": ", update->reason);
    look_again(core, job);
}

static void release(struct dp_core *core, struct core_job *job, const struct dp_job_update *update)
{
    if (job->row.held_ns == 0) {
        return;
    }
    job->row.held_ns = 0;
    job->row.held_by[0] = job->row.held_reason[0] = '\0';
    if (job->row.state == DP_STATE_QUEUED) {
        job->row.reason[0] = job->row.message[0] = '\0';
    }
    dp_core_note(core, job, NULL, false, "job.released", "by %s", by_whom(update));
    look_again(core, job);
}

static void set_priority(struct dp_core *core, struct core_job *job,
                         const struct dp_job_update *update)
{
    if (job->row.priority == update->priority) {
        return;
    }
    dp_core_note(core, job, NULL, false, "job.priority", "%d, it was %d; by %s", update->priority,
                 job->row.priority, by_whom(update));
    job->row.priority = update->priority;
    dp_core_queue_move(core, job);
    look_again(core, job);
}

void dp_core_job_update(struct dp_core *core, const struct dp_job_update *update)
{
    struct core_job *job = dp_core_job_by_id(core, update->job);
    if (job == NULL) {
        dp_core_refuse_absent(core, update->reply, update->job);
        return;
    }
    if (dp_core_audit_has(core, update->request_id, update->job)) {
        dp_core_reply_stored(core, update->reply, job);
        return;
    }
    if (dp_job_state_ended(job->row.state)) {
        dp_core_refuse_stored(core, update->reply, job, DP_CONFLICT, "%s has ended already: %s",
                              update->job, dp_job_state_text(job->row.state));
        return;
    }
    if (update->holds && !may_be_held(job)) {
        dp_core_refuse_stored(core, update->reply, job, DP_CONFLICT,
                              "%s is %s: only a job that waits can be held; `dpctl cancel %s` ends "
                              "it",
                              update->job, dp_job_state_text(job->row.state), update->job);
        return;
    }
    if (update->holds) {
        hold(core, job, update);
    } else if (update->releases) {
        release(core, job, update);
    }
    if (update->sets_priority) {
        set_priority(core, job, update);
    }
    dp_core_reply_stored(core, update->reply, job);
}
