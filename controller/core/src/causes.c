// Why a job ends: many things break at once, one of them is the reason.
#include "core_internal.h"

#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

void dp_core_job_stop(struct dp_core *core, struct core_job *job, dp_job_state outcome)
{
    job->row.outcome = outcome;
    dp_core_job_move(core, job, DP_STATE_STOPPING, "", "%s", "");
    job->deadline_ns = core->now_ns + core->config.stop_timeout_ms * DP_NS_PER_MS;
    if (job->reassign.phase != CORE_STEADY) {
        dp_core_decision_set(job, DP_DECISION_ABANDONED, "the job was stopped meanwhile");
    }
    dp_core_reassign_stop(job);
    for (size_t i = 0; i < job->members_count; i++) {
        if (!job->members[i].reached) {
            dp_core_job_end_ranks(job, job->members[i].node);
        }
    }
}

static bool is_live(const struct core_job *job)
{
    return job->row.state == DP_STATE_ASSIGNING || job->row.state == DP_STATE_RUNNING ||
           job->row.state == DP_STATE_REASSIGNING || job->row.state == DP_STATE_LOST;
}

// The job is to fail. What made it LOST is why, until something better is known.
static void begin_failure(struct dp_core *core, struct core_job *job)
{
    bool was_lost = job->row.state == DP_STATE_LOST;
    char silent[DP_TEXT_MAX] = "";
    if (was_lost) {
        dp_core_job_describe_lost(core, job, silent, sizeof(silent));
        if (silent[0] == '\0') {
            DP_COPY_TEXT(silent, job->row.message); // from before a restart of the controller
        }
    }
    dp_core_job_stop(core, job, DP_STATE_FAILED);
    job->row.cause_weight = DP_CAUSE_NONE;
    // A consequence waits a little for its cause; a cause stops the other ranks at once.
    job->stop_ns = core->now_ns + core->config.collect_ms * DP_NS_PER_MS;
    if (was_lost) {
        dp_core_job_blame(core, job, DP_CAUSE_NODE_LOST, "NodeLost", "%s", silent);
    }
}

void dp_core_job_blame(struct dp_core *core, struct core_job *job, dp_cause cause,
                       const char *reason, const char *format, ...)
{
    char message[DP_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    if (is_live(job)) {
        if (dp_core_recover_takes(core, job, cause, reason, message)) {
            return;
        }
        if (job->reassign.phase == CORE_SWITCHING && cause < DP_CAUSE_NOT_FINITE) {
            // Whatever breaks while ranks take each other's place is not the job's own doing.
            cause = DP_CAUSE_NODE;
            reason = "ReassignFailed";
        }
        if (job->reassign.phase != CORE_STEADY) {
            dp_core_decision_set(job, DP_DECISION_FELL_BACK, "%s", message);
        }
        begin_failure(core, job);
    }
    if (job->row.state != DP_STATE_STOPPING || job->row.outcome != DP_STATE_FAILED ||
        (int32_t)cause <= job->row.cause_weight) {
        return;
    }
    job->row.cause_weight = (int32_t)cause;
    if (cause > DP_CAUSE_PEER_LOST && job->stop_ns > core->now_ns) {
        job->stop_ns = core->now_ns;
    }
    DP_COPY_TEXT(job->row.reason, reason);
    DP_COPY_TEXT(job->row.message, message);
    dp_core_job_changed(job);
    dp_core_note(core, job, NULL, true, "job.cause", "%s: %s", reason, job->row.message);
}

// A rank that ends after its node was told to stop ends because of that, unless a signal other than
// the polite one took it before force was due.
static bool ended_by_order(struct dp_core *core, struct core_job *job,
                           const struct dp_rank_record *rank)
{
    const struct core_member *member = dp_core_job_member(job, rank->node);
    if (rank->stopped) {
        return !rank->not_finite;
    }
    if (member == NULL || member->told != DP_ORDER_STOP) {
        return false;
    }
    if (rank->phase == DP_RANK_FINISHED) {
        return !rank->not_finite;
    }
    int64_t force_ns = member->told_ns + core->config.stop_grace_ms * DP_NS_PER_MS / 2;
    return rank->signal == 0 || rank->signal == 15 || core->now_ns >= force_ns;
}

const char *dp_core_node_failure(const struct core_job *job)
{
    return job->row.started_ns == 0 ? "PrepareFailed" : "NodeFailed";
}

void dp_core_job_suspect(struct dp_core *core, struct core_job *job, const char *node,
                         const char *format, ...)
{
    struct core_member *member = dp_core_job_member(job, node);
    if (member == NULL || member->blamed) {
        return; // levels are repeated
    }
    char why[DP_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    member->blamed = true;
    DP_COPY_TEXT(job->around, node);
    dp_core_node_suspect(core, dp_core_node_find(core, node), why);
}

static void blame_finished(struct dp_core *core, struct core_job *job,
                           const struct dp_rank_record *rank)
{
    char where[DP_NAME_MAX + 16] = "";
    if (rank->action[0] != '\0') {
        snprintf(where, sizeof(where), ", action %s", rank->action);
    }
    dp_cause cause = DP_CAUSE_RANK;
    const char *reason = "RankFailed";
    if (rank->not_finite) {
        cause = DP_CAUSE_NOT_FINITE;
        reason = "NotFinite";
    } else if (rank->peer_lost) {
        cause = DP_CAUSE_PEER_LOST;
        reason = "PeerLost";
    } else if (rank->node_fault) {
        cause = DP_CAUSE_NODE;
        reason = dp_core_node_failure(job);
    }
    const char *error = rank->error[0] == '\0' ? "failed without a word" : rank->error;
    dp_core_job_blame(core, job, cause, reason, "rank %u on %s%s: %s", rank->rank, rank->node,
                      where, error);
    if (cause == DP_CAUSE_NODE) {
        dp_core_job_suspect(core, job, rank->node, "rank %u of %s: %s", rank->rank, job->row.id,
                            error);
    }
}

const char *dp_core_signal_name(int signal_number)
{
    const char *text = sigabbrev_np(signal_number);
    return text == NULL ? "?" : text;
}

void dp_core_blame_rank(struct dp_core *core, struct core_job *job,
                        const struct dp_rank_record *rank)
{
    const struct core_member *member = dp_core_job_member(job, rank->node);
    if (ended_by_order(core, job, rank)) {
        if (is_live(job)) {
            dp_core_job_blame(core, job, DP_CAUSE_NODE_LOST, "NodeFailed",
                              "node %s ended rank %u by itself", rank->node, rank->rank);
        }
        return;
    }
    // What its keeper or a reboot did while the node was silent is the silence's doing.
    if (member != NULL && member->lost && rank->phase == DP_RANK_DIED && rank->signal == 9) {
        dp_core_job_blame(core, job, DP_CAUSE_NODE_LOST, "NodeLost",
                          "node %s was silent, and its rank %u has ended meanwhile", rank->node,
                          rank->rank);
        return;
    }
    if (rank->finished && !rank->ok) {
        blame_finished(core, job, rank);
    } else if (rank->phase == DP_RANK_DIED && rank->pid == 0) {
        // It never was: what kept it from that is told with its node's level.
    } else if (rank->phase == DP_RANK_DIED && rank->signal != 0) {
        dp_core_job_blame(core, job, DP_CAUSE_RANK, "RankDied",
                          "rank %u on %s (pid %lld) was ended by signal %d (SIG%s) after step %llu",
                          rank->rank, rank->node, (long long)rank->pid, rank->signal,
                          dp_core_signal_name(rank->signal), (unsigned long long)rank->step);
    } else if (rank->phase == DP_RANK_DIED) {
        dp_core_job_blame(core, job, DP_CAUSE_RANK, "RankDied",
                          "rank %u on %s (pid %lld) ended with exit status %d after step %llu: see "
                          "`dpctl logs %s --rank %u`",
                          rank->rank, rank->node, (long long)rank->pid, rank->exit_status,
                          (unsigned long long)rank->step, job->row.id, rank->rank);
    }
}
