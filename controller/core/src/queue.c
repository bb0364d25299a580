// Jobs come in, wait in their order, and get their plans.
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

bool dp_core_queue_before(const struct core_job *job, const struct core_job *other)
{
    if (job->row.priority != other->row.priority) {
        return job->row.priority > other->row.priority;
    }
    return job->row.number < other->row.number;
}

void dp_core_queue_add(struct dp_core *core, struct core_job *job)
{
    struct core_job *ahead = core->queue_last;
    while (ahead != NULL && dp_core_queue_before(job, ahead)) {
        ahead = ahead->ahead;
    }
    job->ahead = ahead;
    job->behind = ahead == NULL ? core->queue : ahead->behind;
    *(job->ahead == NULL ? &core->queue : &job->ahead->behind) = job;
    *(job->behind == NULL ? &core->queue_last : &job->behind->ahead) = job;
    job->queued = true;
    dp_core_queue_freshen(core, job);
}

void dp_core_queue_move(struct dp_core *core, struct core_job *job)
{
    if (job->queued) {
        struct core_job *planned = core->planned; // stays what it is
        dp_core_queue_remove(core, job);
        dp_core_queue_add(core, job);
        core->planned = planned;
    }
}

void dp_core_queue_freshen(struct dp_core *core, struct core_job *job)
{
    core->fresh += job->queued && !job->fresh;
    job->fresh = job->queued;
}

void dp_core_queue_remove(struct dp_core *core, struct core_job *job)
{
    if (!job->queued) {
        return;
    }
    *(job->ahead == NULL ? &core->queue : &job->ahead->behind) = job->behind;
    *(job->behind == NULL ? &core->queue_last : &job->behind->ahead) = job->ahead;
    job->ahead = job->behind = NULL;
    job->queued = false;
    core->fresh -= job->fresh;
    job->fresh = false;
    if (core->planned == job) {
        core->planned = NULL;
    }
}

static size_t count_active(const struct dp_core *core)
{
    size_t count = 0;
    FOR_EACH_JOB(core, job)
    {
        count += !dp_job_state_ended(job->row.state);
    }
    return count;
}

static void answer_again(struct dp_core *core, struct core_job *job, const struct dp_submit *submit)
{
    const struct dp_buf *before = &job->row.job_toml;
    if (before->length == submit->job_toml_length &&
        (before->length == 0 || memcmp(before->bytes, submit->job_toml, before->length) == 0)) {
        dp_core_reply_stored(core, submit->reply, job);
    } else {
        dp_core_refuse_stored(core, submit->reply, job, DP_CONFLICT, DP_CORE_REQUEST_TAKEN,
                              submit->request_id, job->row.id);
    }
}

static void fill_row(const struct dp_core *core, struct dp_job_record *row,
                     const struct dp_submit *submit)
{
    snprintf(row->id, sizeof(row->id), "job-%llu", (unsigned long long)row->number);
    row->token = submit->token;
    DP_COPY_TEXT(row->name, submit->name);
    DP_COPY_TEXT(row->device, submit->device);
    dp_buf_append(&row->job_toml, submit->job_toml, submit->job_toml_length);
    row->ranks_wanted = submit->ranks_wanted;
    row->ranks_fixed = submit->ranks_fixed;
    row->needs_profile = submit->needs_profile;
    row->steps_total = submit->steps_total;
    row->tokens_per_step = submit->tokens_per_step;
    row->submitted_ns = row->queued_ns = core->wall_ns;
    DP_COPY_TEXT(row->user, submit->user == NULL ? "" : submit->user);
    row->priority = submit->priority;
    row->preemptible = submit->preemptible;
    row->retry_max = submit->retry_max;
    row->retry_backoff_s = submit->retry_backoff_s;
    row->no_progress_max = submit->no_progress_max;
    row->recovery = submit->recovery;
    row->adapt = submit->adapt;
    row->straggler_enter = submit->straggler_enter;
}

static bool is_full(const struct dp_core *core)
{
    uint32_t most = core->config.active_jobs_max;
    return core->jobs_count >= most && count_active(core) >= most;
}

void dp_core_submit(struct dp_core *core, const struct dp_submit *submit)
{
    struct core_job *job = dp_core_job_by_request(core, submit->request_id);
    if (job != NULL) {
        answer_again(core, job, submit);
        return;
    }
    if (submit->check_index != 0 && submit->check_index != core->index) {
        dp_core_reply_error(core, submit->reply, DP_CONFLICT,
                            "the cluster has changed: its index is %llu, and %llu was to be "
                            "checked; look at the plan again",
                            (unsigned long long)core->index,
                            (unsigned long long)submit->check_index);
        return;
    }
    if (is_full(core)) {
        dp_core_reply_error(
            core, submit->reply, DP_UNAVAILABLE,
            "%u jobs are waiting or running, which is the most this controller takes: "
            "wait for some to end, or cancel some",
            core->config.active_jobs_max);
        return;
    }
    job = dp_core_job_add(core, core->next_number++, submit->request_id);
    fill_row(core, &job->row, submit);
    dp_core_job_move(core, job, DP_STATE_SUBMITTED, "", "%s", job->row.name);
    job->row.message[0] = '\0';
    dp_core_reply_stored(core, submit->reply, job);
}

// It may have been held meanwhile, or its slots are others' now.
static bool may_start(struct dp_core *core, const struct core_job *job,
                      const struct dp_plan_done *done)
{
    return job->row.held_ns == 0 && dp_core_slots_fit(core, job, done->ranks, done->ranks_count) &&
           done->ranks_count <= dp_core_quota_left(core, job);
}

static void take_ranks(struct core_job *job, const struct dp_plan_done *done)
{
    free(job->ranks);
    job->ranks_count = done->ranks_count;
    job->ranks = dp_new_array(struct dp_rank_record, done->ranks_count);
    for (size_t i = 0; i < done->ranks_count; i++) {
        job->ranks[i].job = job->row.number;
        job->ranks[i].rank = (uint32_t)i;
        job->ranks[i].slot = done->ranks[i].slot;
        job->ranks[i].step = job->row.step; // of the checkpoint that it goes on from
        DP_COPY_TEXT(job->ranks[i].node, done->ranks[i].node);
    }
    dp_core_job_set_members(job);
    job->ranks_changed = true;
    dp_core_grow_note(job->core, job);
}

// The job of an answer that is still waited for.
static struct core_job *planned_job(struct dp_core *core, uint64_t number)
{
    struct core_job *job = dp_core_job_number(core, number);
    if (job == NULL || job->row.state != DP_STATE_QUEUED || !job->planning) {
        return NULL;
    }
    dp_core_job_touch(job);
    job->planning = false;
    core->planned = NULL;
    dp_core_quotas_count(core);
    dp_core_reschedule(core);
    return job;
}

void dp_core_plan_done(struct dp_core *core, const struct dp_plan_done *done)
{
    struct core_job *job = planned_job(core, done->job);
    if (job == NULL || !may_start(core, job, done)) {
        return;
    }
    dp_buf_clear(&job->row.plan);
    dp_buf_append(&job->row.plan, done->plan, done->plan_length);
    take_ranks(job, done);
    dp_core_job_move(core, job, DP_STATE_PLANNED, "", "%zu rank%s on %zu node%s", job->ranks_count,
                     job->ranks_count == 1 ? "" : "s", job->members_count,
                     job->members_count == 1 ? "" : "s");
    job->row.attempt = job->row.attempt == 0 ? 1 : job->row.attempt;
    job->row.epoch = ++job->row.epoch_used;
    job->row.retry_at_ns = 0;
    dp_core_job_move(core, job, DP_STATE_ASSIGNING, "", "%s", "");
    job->assigned_ns = core->now_ns;
    job->deadline_ns = core->now_ns + core->config.prepare_timeout_ms * DP_NS_PER_MS;
}

void dp_core_plan_failed(struct dp_core *core, const struct dp_plan_failed *failed)
{
    struct core_job *job = planned_job(core, failed->job);
    if (job == NULL) {
        return;
    }
    if (job->offered_some && failed->error.status == DP_UNSCHEDULABLE) {
        job->offer_all = true; // nodes close to each other were not enough
        return;
    }
    if (job->row.held_ns != 0) {
        return; // it is planned anew once it is released, with what there is then
    }
    const char *reason = failed->error.status == DP_UNSCHEDULABLE ? "Unschedulable" : "PlanFailed";
    char left[DP_TEXT_MAX / 4];
    dp_core_job_describe_remains(job, left, sizeof(left));
    dp_core_job_move(core, job, DP_STATE_FAILED, reason, "%s%s%s", failed->error.message,
                     left[0] == '\0' ? "" : "; ", left);
}
