// What nodes say of a job's assignments beside the one in force.
#include "core_internal.h"

#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

static void next_failed(struct dp_core *core, struct core_job *job, const char *why)
{
    if (job->reassign.phase == CORE_PREPARING) {
        dp_core_reassign_abandon(core, job, "%s", why);
    } else {
        // The job's ranks hold by now, or are about to.
        dp_core_recover_next_failed(core, job, why);
    }
}

// A text that differs would be trained on beside the other.
static bool same_corpus(const struct core_job *job, const struct dp_rank_ready *ready)
{
    return ready->corpus_bytes == 0 || job->corpus_hash == 0 ||
           (ready->corpus_hash == job->corpus_hash && ready->corpus_bytes == job->row.corpus_bytes);
}

// Returns why the rank cannot be what it was started for, in `why`.
static void merge_rank(const struct core_job *job, struct dp_rank_record *rank,
                       const struct dp_rank_level *level, char *why, size_t size)
{
    rank->pid = level->pid != 0 ? level->pid : rank->pid;
    if (level->ready_known && rank->address[0] == '\0') {
        DP_COPY_TEXT(rank->address, level->ready.address);
        rank->parameters = level->ready.parameters;
        if (!same_corpus(job, &level->ready)) {
            snprintf(why, size, "rank %u on %s reads another text than the ranks that train",
                     rank->rank, rank->node);
        }
    }
    rank->gone = rank->gone && level->phase == DP_RANK_UNKNOWN;
    if (dp_rank_phase_ended(rank->phase) || level->phase <= rank->phase) {
        return;
    }
    rank->phase = level->phase;
    rank->exit_status = level->exit_status;
    rank->signal = level->signal;
    rank->stopped = level->stopped;
    if (level->finished_known) {
        snprintf(why, size, "rank %u on %s: %.*s", rank->rank, rank->node, DP_TEXT_MAX / 2,
                 level->finished.error);
    } else if (rank->phase == DP_RANK_DIED && rank->signal != 0) {
        snprintf(why, size, "rank %u on %s was ended by signal %d (SIG%s)", rank->rank, rank->node,
                 rank->signal, dp_core_signal_name(rank->signal));
    } else if (dp_rank_phase_ended(rank->phase)) {
        snprintf(why, size, "rank %u on %s ended with exit status %d", rank->rank, rank->node,
                 rank->exit_status);
    }
}

bool dp_core_side_level(struct dp_core *core, struct core_job *job, const struct core_node *node,
                        const struct dp_assignment_level *level)
{
    struct core_side *side = dp_core_side_find(job, &level->fence);
    struct core_member *member = side == NULL ? NULL : dp_core_side_member(side, node->row.name);
    if (member == NULL) {
        return false;
    }
    char why[DP_TEXT_MAX] = "";
    member->reached = true;
    // An order that has arrived shows in the level; one that does not was lost.
    bool lost =
        (member->told == DP_ORDER_STOP && !level->stopping) || member->told == DP_ORDER_RELEASE;
    if (lost && member->told_ns < dp_core_node_arrived_ns(core, node)) {
        member->told = DP_ORDER_START;
        dp_core_job_touch(job);
    }
    for (size_t i = 0; i < level->ranks_count; i++) {
        uint32_t rank = level->ranks[i].rank;
        if (rank < side->ranks_count && strcmp(side->ranks[rank].node, node->row.name) == 0) {
            merge_rank(job, &side->ranks[rank], &level->ranks[i], why, sizeof(why));
        }
    }
    if (level->keeper_lost || (level->error[0] != '\0' && !dp_core_has_live(level))) {
        dp_core_side_end(side, node->row.name);
        snprintf(why, sizeof(why), "node %s: %.*s", node->row.name, DP_TEXT_MAX / 2,
                 level->error[0] != '\0' ? level->error : "the keeper of its ranks was ended");
    }
    dp_core_sides_recount(job);
    if (side == job->reassign.next && why[0] != '\0') {
        next_failed(core, job, why);
    }
    dp_core_job_advance(core, job);
    return true;
}

static void miss_next(struct dp_core *core, struct core_job *job, struct core_member *member)
{
    struct core_side *side = job->reassign.next;
    for (size_t i = 0; i < side->ranks_count; i++) {
        if (strcmp(side->ranks[i].node, member->node) == 0 &&
            side->ranks[i].phase != DP_RANK_UNKNOWN) {
            char why[DP_TEXT_MAX];
            snprintf(why, sizeof(why), "node %s no longer knows of the new ranks of %s",
                     member->node, job->row.id);
            dp_core_side_end(side, member->node);
            next_failed(core, job, why);
            return;
        }
    }
    member->told = DP_ORDER_NONE; // the order was lost
}

static void find_missing(struct dp_core *core, struct core_job *job, const struct core_node *node,
                         const struct dp_levels *levels, bool at_hello)
{
    // An order may still be on its way when a heartbeat leaves the node.
    int64_t had_time_ns = dp_core_node_arrived_ns(core, node);
    for (struct core_side *side = job->sides; side != NULL; side = side->next) {
        struct core_member *member = dp_core_side_member(side, node->row.name);
        struct dp_fence fence = dp_core_side_fence(job, side);
        if (member != NULL && (at_hello || member->told_ns < had_time_ns) &&
            !dp_core_is_listed(levels, &fence)) {
            dp_core_side_end(side, member->node);
            member->told = DP_ORDER_RELEASE;
        }
    }
    struct core_side *next = job->reassign.next;
    struct core_member *member = next == NULL ? NULL : dp_core_side_member(next, node->row.name);
    if (member != NULL && member->told != DP_ORDER_NONE &&
        (at_hello || member->told_ns < had_time_ns)) {
        struct dp_fence fence = dp_core_side_fence(job, next);
        if (!dp_core_is_listed(levels, &fence)) {
            miss_next(core, job, member);
        }
    }
}

// Jobs with sides; what is done to one may take it off the list.
static struct core_job **each_sided(struct dp_core *core, size_t *ret_count)
{
    *ret_count = core->sided_count;
    return dp_core_keep(core, core->sided, core->sided_count * sizeof(struct core_job *));
}

static bool has_member(const struct core_job *job, const char *node)
{
    bool has = job->reassign.next != NULL && dp_core_side_member(job->reassign.next, node) != NULL;
    for (const struct core_side *side = job->sides; side != NULL && !has; side = side->next) {
        has = dp_core_side_member(side, node) != NULL;
    }
    return has;
}

void dp_core_sides_missing(struct dp_core *core, const struct core_node *node,
                           const struct dp_levels *levels, bool at_hello)
{
    size_t count = 0;
    struct core_job **jobs = each_sided(core, &count);
    for (size_t i = 0; i < count; i++) {
        if (has_member(jobs[i], node->row.name)) {
            find_missing(core, jobs[i], node, levels, at_hello);
            dp_core_sides_recount(jobs[i]);
            dp_core_job_advance(core, jobs[i]);
        }
    }
}

void dp_core_sides_hello(struct dp_core *core, const struct core_node *node,
                         const struct dp_levels *levels)
{
    for (size_t i = 0; i < levels->count; i++) {
        const struct dp_assignment_level *level = &levels->assignments[i];
        struct core_job *job = dp_core_job_by_id(core, level->fence.job);
        struct core_side *side = job == NULL ? NULL : dp_core_side_find(job, &level->fence);
        struct core_member *member =
            side == NULL ? NULL : dp_core_side_member(side, node->row.name);
        if (member != NULL) {
            member->told = dp_core_told_before(level);
            member->told_ns = core->now_ns;
        }
    }
}

void dp_core_sides_lose_node(struct dp_core *core, const struct core_node *node)
{
    size_t count = 0;
    struct core_job **jobs = each_sided(core, &count);
    for (size_t i = 0; i < count; i++) {
        struct core_side *next = jobs[i]->reassign.next;
        if (next != NULL && dp_core_side_member(next, node->row.name) != NULL) {
            char why[DP_TEXT_MAX];
            snprintf(why, sizeof(why), "node %s is silent for longer than its lease of %lld ms",
                     node->row.name, (long long)dp_core_node_lease_ms(core, node));
            next_failed(core, jobs[i], why);
        }
    }
}

void dp_core_sides_fence_node(struct dp_core *core, const struct core_node *node)
{
    size_t count = 0;
    struct core_job **jobs = each_sided(core, &count);
    for (size_t i = 0; i < count; i++) {
        bool ended = false;
        for (struct core_side *side = jobs[i]->sides; side != NULL; side = side->next) {
            ended = dp_core_side_end(side, node->row.name) || ended;
        }
        if (ended) {
            dp_core_sides_recount(jobs[i]);
            dp_core_job_advance(core, jobs[i]);
        }
    }
}
