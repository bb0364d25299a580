// Ranks that a job has lost with their nodes come back when there is room for them again: once
// there was for a while, what more ranks gain is weighed against what the change costs, as any
// answer.
#include "core_internal.h"

#include <stdio.h>

#include "dp/clock.h"

#define DOUBLINGS_MAX 6 // of a minute: what does not pay is weighed again in an hour

static int64_t later_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

// What made the job smaller may make it larger.
static bool may_grow(const struct core_job *job)
{
    return job->row.state == DP_STATE_RUNNING && job->ranks_count < job->row.ranks_full &&
           (job->row.recovery == DP_JOB_RECOVERY_AUTO || job->row.adapt == DP_JOB_ADAPT_AUTO) &&
           dp_core_reassign_may(job);
}

static bool has_room(const struct dp_core *core, const struct core_job *job)
{
    if (core->lacks_room && core->lacks_priority >= job->row.priority) {
        return false;
    }
    FOR_EACH_NODE(core, node)
    {
        if (dp_core_may_be_offered(job, node) && dp_core_node_slots_free(core, node) > 0) {
            return true;
        }
    }
    return false;
}

void dp_core_grow_look(struct dp_core *core)
{
    if (!core->small) {
        return;
    }
    core->small = false;
    FOR_EACH_PLACED_JOB(core, job)
    {
        core->small = core->small || job->ranks_count < job->row.ranks_full;
        bool grows = may_grow(job) && has_room(core, job);
        if (grows != (job->reassign.grow_ns != 0)) {
            job->reassign.grow_ns = grows ? core->now_ns + core->config.grow_ms * DP_NS_PER_MS : 0;
            dp_core_job_touch(job);
        }
    }
}

bool dp_core_grow_allowed(struct dp_core *core, const struct core_job *job, size_t ranks)
{
    if (ranks <= job->ranks_count) {
        return true;
    }
    dp_core_quotas_count(core);
    return ranks - job->ranks_count <= dp_core_quota_left(core, job);
}

void dp_core_grow_deadline(struct dp_core *core, struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    if (reassign->grow_ns == 0 || core->now_ns < reassign->grow_ns) {
        return;
    }
    reassign->grow_ns = 0; // what changes next has it looked at anew
    if (!may_grow(job) || !has_room(core, job) ||
        !dp_core_grow_allowed(core, job, job->ranks_count + 1)) {
        return;
    }
    int64_t least_ns = later_of(reassign->cool_ns, reassign->grow_again_ns);
    if (!dp_core_may_ask(job) || core->now_ns < least_ns) {
        int64_t later_ns = core->now_ns + core->config.grow_ms * DP_NS_PER_MS;
        reassign->grow_ns = later_of(later_ns, least_ns);
        return;
    }
    snprintf(reassign->cause, sizeof(reassign->cause),
             "it has %zu ranks of the %u that it once had, and there is room again",
             job->ranks_count, job->row.ranks_full);
    reassign->away[0] = '\0';
    reassign->policy = DP_JOB_ADAPT_AUTO;
    struct dp_adapt_ask ask = {.away = "", .cause = reassign->cause, .grows = true};
    dp_core_take_standing(core, job, false, &ask);
    dp_core_ask(core, job, &ask);
}

void dp_core_grow_asked(struct dp_core *core, struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    int64_t apart_ns = core->config.cool_down_ms * DP_NS_PER_MS;
    reassign->grow_again_ns = core->now_ns + (apart_ns << reassign->grow_doublings);
    reassign->grow_doublings += reassign->grow_doublings < DOUBLINGS_MAX;
}

void dp_core_grow_note(struct dp_core *core, struct core_job *job)
{
    job->reassign.grow_again_ns = 0;
    job->reassign.grow_doublings = 0;
    const char *away = job->reassign.away;
    const struct core_node *left = away[0] == '\0' ? NULL : dp_core_node_find(core, away);
    // A node that goes on working was left because somebody wanted that.
    bool wished = left != NULL && left->state == DP_NODE_READY;
    if (wished || job->ranks_count > job->row.ranks_full) {
        job->row.ranks_full = (uint32_t)job->ranks_count;
    }
    core->small = core->small || job->ranks_count < job->row.ranks_full;
}
