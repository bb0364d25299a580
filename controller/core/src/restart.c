// From a checkpoint, without the nodes that slow the job down: it makes way as if preempted, and
// the queue places its next attempt elsewhere. The nodes are left out of this job until somebody
// says, or something shows, that they are well.
#include "core_internal.h"

#include <stdio.h>
#include <string.h>

static const char restart[] = "restart"; // the kind of such a decision

// The list without the name; the same one when it is not in it.
static bool find_name(const char *list, const char *name, size_t *ret_at)
{
    size_t length = strlen(name);
    for (const char *at = list; *at != '\0'; at += strspn(at, ",")) {
        size_t own = strcspn(at, ",");
        if (own == length && memcmp(at, name, length) == 0) {
            *ret_at = (size_t)(at - list);
            return true;
        }
        at += own;
    }
    return false;
}

bool dp_core_job_avoids(const struct core_job *job, const char *node)
{
    size_t at;
    return job->row.avoid[0] != '\0' && find_name(job->row.avoid, node, &at);
}

// False when there is no room for all of them.
static bool add_names(struct core_job *job, const char *names)
{
    char list[DP_AVOID_MAX];
    DP_COPY_TEXT(list, job->row.avoid);
    for (const char *at = names; *at != '\0'; at += strspn(at, ",")) {
        size_t own = strcspn(at, ","), length = strlen(list), found;
        char name[DP_NAME_MAX];
        if (own >= sizeof(name) || length + own + 2 > sizeof(list)) {
            return false;
        }
        memcpy(name, at, own);
        name[own] = '\0';
        if (!find_name(list, name, &found)) {
            snprintf(list + length, sizeof(list) - length, "%s%s", length > 0 ? "," : "", name);
        }
        at += own;
    }
    DP_COPY_TEXT(job->row.avoid, list);
    return true;
}

static void remove_name(struct core_job *job, const char *name)
{
    size_t at;
    if (find_name(job->row.avoid, name, &at)) {
        char *list = job->row.avoid;
        size_t end = at + strlen(name);
        end += list[end] == ',';
        memmove(list + at, list + end, strlen(list + end) + 1);
        size_t length = strlen(list);
        if (length > 0 && list[length - 1] == ',') {
            list[length - 1] = '\0';
        }
    }
}

static bool is_restart(const struct dp_decision_record *decision)
{
    return decision->number != 0 && decision->state == DP_DECISION_SWITCHING &&
           strcmp(decision->kind, restart) == 0;
}

bool dp_core_restart_begin(struct dp_core *core, struct core_job *job,
                           const struct dp_adapt_done *done)
{
    if (!add_names(job, done->without)) {
        return false;
    }
    core->avoiding = true;
    snprintf(job->row.avoid_why, sizeof(job->row.avoid_why), "%.*s", DP_AVOID_MAX - 1,
             job->reassign.cause);
    dp_core_decision_make(core, job, done, DP_DECISION_SWITCHING);
    job->reassign.decision.attempt = job->row.attempt + 1;
    job->reassign.decision.epoch = 1;
    char why[DP_TEXT_MAX];
    snprintf(why, sizeof(why), "begins anew without %.*s: %.*s", DP_TEXT_MAX / 4, done->without,
             DP_TEXT_MAX / 2, job->reassign.cause);
    dp_core_job_make_way(core, job, "Restarted", why);
    return true;
}

bool dp_core_restart_awaited(const struct core_job *job)
{
    const struct dp_decision_record *decision = &job->reassign.decision;
    bool before = job->row.attempt + 1 == decision->attempt;
    bool placed = job->row.attempt == decision->attempt && job->row.state < DP_STATE_RUNNING;
    return is_restart(decision) && (before || placed);
}

int64_t dp_core_restart_cost_ns(const struct dp_core *core, const struct core_job *job)
{
    if (core->restart_ns != 0) {
        return core->restart_ns;
    }
    // One is written, its ranks start, and read it.
    bool known = job->start_ns > 0 && job->write_ns > 0;
    return known ? job->start_ns + 2 * job->write_ns : 0;
}

void dp_core_restart_runs(struct dp_core *core, struct core_job *job)
{
    struct dp_decision_record *decision = &job->reassign.decision;
    if (!is_restart(decision) || decision->attempt != job->row.attempt) {
        return;
    }
    int64_t paused_ns = core->wall_ns - decision->time_ns; // clocks of the wall jump
    decision->measured_pause_ns = paused_ns > 0 ? paused_ns : 0;
    core->restart_ns = decision->measured_pause_ns;
    job->reassign.measured_from = job->reassign.recent_first = job->row.step + 2;
    dp_core_decision_set(job, DP_DECISION_RUNNING, "%s", "");
}

void dp_core_avoid_lift(struct dp_core *core, const struct core_node *node, const char *why)
{
    if (!core->avoiding) {
        return;
    }
    core->avoiding = false;
    FOR_EACH_JOB(core, job)
    {
        if (dp_core_job_avoids(job, node->row.name)) {
            remove_name(job, node->row.name);
            dp_core_note(core, job, node, false, "job.node_let_in",
                         "node %s is left out no more: %s", node->row.name, why);
            dp_core_job_changed(job);
            dp_core_reschedule(core);
        }
        core->avoiding = core->avoiding || job->row.avoid[0] != '\0';
    }
}
