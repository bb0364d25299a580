// What is left of a job beside its ranks in force: ranks of earlier epochs and attempts, those that
// this controller has replaced (its sides) and those that one before it gave out, which nodes tell
// of. A job that has ended has none of them where somebody can be asked.
#include "core_internal.h"

#include <stdio.h>
#include <string.h>

#include "core_changes.h"

// Given out by a controller before this one, and not in force any more.
static bool has_strays(const struct core_node *node, const struct core_job *job)
{
    for (size_t i = 0; i < node->foreign_count; i++) {
        const struct core_foreign *foreign = &node->foreign[i];
        if (foreign->live > 0 && strcmp(foreign->fence.job, job->row.id) == 0) {
            return true;
        }
    }
    return false;
}

static bool may_have_strays(const struct core_job *job)
{
    return job->row.attempt > 1 || job->row.epoch_used > 1;
}

bool dp_core_job_alone(const struct core_job *job)
{
    if (!dp_core_sides_may_end(job)) {
        return false;
    }
    if (!may_have_strays(job)) {
        return true;
    }
    FOR_EACH_NODE(job->core, node)
    {
        bool silent = node->state == DP_NODE_LOST;
        bool asked = !silent || job->row.outcome == DP_STATE_CANCELLED;
        bool unheard = job->loaded && !node->listed && !silent;
        if (unheard || (asked && has_strays(node, job))) {
            return false;
        }
    }
    return true;
}

static bool has_side(const struct core_node *node, const struct core_job *job)
{
    for (const struct core_side *side = job->sides; side != NULL; side = side->next) {
        if (!dp_core_side_over(side, node->row.name)) {
            return true;
        }
    }
    return false;
}

void dp_core_job_describe_remains(const struct core_job *job, char *ret_text, size_t size)
{
    size_t length = 0;
    ret_text[0] = '\0';
    FOR_EACH_NODE(job->core, node)
    {
        if (length + 1 < size && (has_side(node, job) || has_strays(node, job))) {
            length += (size_t)snprintf(ret_text + length, size - length, "%s%s",
                                       length == 0 ? "ranks of earlier epochs still end on " : ", ",
                                       node->row.name);
        }
    }
    if (length == 0 && !dp_core_job_alone(job)) {
        snprintf(ret_text, size, "nodes that have not come back may run ranks of earlier epochs");
    }
}

static bool waits(const struct core_job *job)
{
    return job->row.state == DP_STATE_STOPPING || job->done_ns != 0;
}

void dp_core_remains_changed(struct dp_core *core, const char *id)
{
    struct core_job *job = dp_core_job_by_id(core, id);
    if (job != NULL && waits(job)) {
        dp_core_job_advance(core, job);
    }
}

void dp_core_remains_look(struct dp_core *core)
{
    struct core_job *next = NULL;
    for (struct core_job *job = core->placed; job != NULL; job = next) {
        next = job->placed_next; // the job may have none afterwards
        if (waits(job) && may_have_strays(job)) {
            dp_core_job_touch(job);
            dp_core_job_advance(core, job);
        }
    }
}
