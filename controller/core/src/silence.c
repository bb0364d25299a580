// Nodes that are silent past their lease: their ranks may run on, so nothing is concluded from the
// silence itself.
#include "core_internal.h"

#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

// "2, 3" of a node's ranks that are not known to have ended.
static size_t list_ranks(const struct core_job *job, const struct core_member *member, char *text,
                         size_t size)
{
    size_t length = 0, count = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < member->ranks; i++) {
        const struct dp_rank_record *rank = dp_core_member_rank(job, member, i);
        if (dp_rank_phase_ended(rank->phase)) {
            continue;
        }
        if (length + 1 < size) {
            int written =
                snprintf(text + length, size - length, "%s%u", count == 0 ? "" : ", ", rank->rank);
            length += written > 0 ? (size_t)written : 0;
        }
        count++;
    }
    return count;
}

static void describe_node(const struct dp_core *core, const struct core_job *job,
                          const struct core_member *member, char *text, size_t size)
{
    char ranks[DP_TEXT_MAX / 4], until[32];
    const struct core_node *node = member->at;
    size_t count = list_ranks(job, member, ranks, sizeof(ranks));
    const char *word = count == 1 ? "rank" : "ranks";
    int written = snprintf(text, size, "node %s is silent for longer than its lease of %lld ms: ",
                           node->row.name, (long long)dp_core_node_lease_ms(core, node));
    size_t length = written < 0 ? 0 : (size_t)written < size ? (size_t)written : size;
    if (node->fenced) {
        snprintf(text + length, size - length, "its %s %s ended by now without a word", word,
                 ranks);
        return;
    }
    int64_t left_ns = dp_core_node_fence_ns(core, node) - core->now_ns;
    snprintf(text + length, size - length, "its %s %s may still run; they end by themselves by %s",
             word, ranks, dp_clock_format_utc(until, core->wall_ns + left_ns));
}

void dp_core_job_describe_lost(struct dp_core *core, const struct core_job *job, char *ret_text,
                               size_t size)
{
    size_t length = 0;
    ret_text[0] = '\0';
    for (size_t i = 0; i < job->members_count && length + 2 < size; i++) {
        if (!job->members[i].lost || job->members[i].at == NULL) {
            continue;
        }
        if (length > 0) {
            length += (size_t)snprintf(ret_text + length, size - length, "; ");
        }
        describe_node(core, job, &job->members[i], ret_text + length, size - length);
        length += strlen(ret_text + length);
    }
}

static void blame_silence(struct dp_core *core, struct core_job *job)
{
    char text[DP_TEXT_MAX];
    dp_core_job_describe_lost(core, job, text, sizeof(text));
    dp_core_job_blame(core, job, DP_CAUSE_NODE_LOST, "NodeLost", "%s", text);
}

void dp_core_job_lose_node(struct dp_core *core, struct core_job *job, const struct core_node *node)
{
    struct core_member *member = dp_core_job_member(job, node->row.name);
    if (member == NULL || dp_core_job_over(job, node->row.name)) {
        return;
    }
    member->lost = true;
    for (uint32_t i = 0; i < member->ranks; i++) {
        struct dp_rank_record *rank = dp_core_member_rank(job, member, i);
        if (!dp_rank_record_over(rank)) {
            rank->phase = DP_RANK_UNKNOWN;
            job->ranks_changed = true;
        }
    }
    dp_core_job_changed(job);
    char text[DP_TEXT_MAX];
    dp_core_job_describe_lost(core, job, text, sizeof(text));
    if (job->row.state == DP_STATE_REASSIGNING && job->reassign.phase == CORE_PREPARING) {
        dp_core_reassign_abandon(core, job, "%s", text);
    }
    switch (job->row.state) {
    case DP_STATE_RUNNING:
        dp_core_job_move(core, job, DP_STATE_LOST, "NodeLost", "%s", text);
        break;
    case DP_STATE_LOST:
        DP_COPY_TEXT(job->row.message, text);
        break;
    case DP_STATE_STOPPING:
        blame_silence(core, job);
        dp_core_job_explain_wait(job, text);
        break;
    default:
        // It has not begun, and will not in time.
        blame_silence(core, job);
        break;
    }
    dp_core_job_advance(core, job);
}

void dp_core_job_fence_node(struct dp_core *core, struct core_job *job,
                            const struct core_node *node)
{
    if (dp_core_job_member(job, node->row.name) == NULL || dp_core_job_over(job, node->row.name)) {
        return;
    }
    if (job->row.state == DP_STATE_LOST) {
        blame_silence(core, job);
    }
    dp_core_job_end_ranks(job, node->row.name);
    dp_core_job_advance(core, job);
}

void dp_core_job_return(struct dp_core *core, struct core_job *job)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        if (job->ranks[i].phase < DP_RANK_RUNNING) {
            return;
        }
    }
    for (size_t i = 0; i < job->members_count; i++) {
        job->members[i].lost = false;
    }
    job->ranks_changed = true;
    job->save_ns = core->now_ns + core->config.save_ms * DP_NS_PER_MS;
    dp_core_job_move(core, job, DP_STATE_RUNNING, "", "%s", "");
}

void dp_core_job_explain_wait(struct core_job *job, const char *what)
{
    if (job->row.outcome != DP_STATE_CANCELLED || what[0] == '\0') {
        return;
    }
    if (job->why[0] == '\0') {
        DP_COPY_TEXT(job->why, job->row.message);
    }
    snprintf(job->row.message, sizeof(job->row.message), "%.*s; %s", DP_TEXT_MAX / 2, job->why,
             what);
    dp_core_job_changed(job);
}
