// What agents say is: of jobs that the core has, and of others.
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

#define SIGKILL_NUMBER 9

// < 0 when the fence is older than the job.
static int compare_fence(const struct dp_fence *fence, const struct core_job *job)
{
    if (fence->attempt != job->row.attempt) {
        return fence->attempt < job->row.attempt ? -1 : 1;
    }
    if (fence->epoch != job->row.epoch) {
        return fence->epoch < job->row.epoch ? -1 : 1;
    }
    return 0;
}

// The job that an assignment belongs to, if it is one of the core's. It may have ended while this
// node was silent.
static struct core_job *job_of(struct dp_core *core, const struct core_node *node,
                               const struct dp_fence *fence)
{
    struct core_job *job = dp_core_job_by_id(core, fence->job);
    if (job == NULL || compare_fence(fence, job) != 0 ||
        dp_core_job_member(job, node->row.name) == NULL) {
        return NULL;
    }
    return job;
}

// A rank holds for good, though it may come to hold one step more.
static void merge_held(struct dp_core *core, struct core_job *job, struct dp_rank_record *rank,
                       const struct dp_rank_held *held)
{
    bool again = rank->is_held && rank->held.step == held->step;
    bool spent = again && !rank->held.gradients_whole;
    rank->is_held = true;
    rank->held = *held;
    rank->held.gradients_whole = held->gradients_whole && !spent;
    if (!again) {
        job->show = true;
        dp_core_recover_held(core, job, rank);
    }
}

// Whatever keeps a process that was killed (a device, a file system that hangs) keeps others, too.
static void merge_unkillable(struct dp_core *core, const struct core_job *job,
                             struct dp_rank_record *rank, bool unkillable)
{
    struct core_node *node = dp_core_node_find(core, rank->node);
    if (unkillable && !rank->unkillable && node != NULL) {
        char text[DP_TEXT_MAX];
        snprintf(text, sizeof(text),
                 "UNKILLABLE: rank %u of %s (process %lld) was killed and does "
                 "not end",
                 rank->rank, job->row.id, (long long)rank->pid);
        dp_core_node_unfit(core, node, text);
    }
    rank->unkillable = unkillable;
}

static void merge_rank(struct dp_core *core, struct core_job *job, struct dp_rank_record *rank,
                       const struct dp_rank_level *level)
{
    if (level->pid != 0) {
        rank->pid = level->pid;
    }
    if (level->ready_known && rank->address[0] == '\0') {
        dp_core_rank_ready(core, job, rank, &level->ready);
    }
    // A node that was given up came back, and its rank with it: that one must be stopped, too.
    rank->gone = rank->gone && level->phase == DP_RANK_UNKNOWN;
    bool ended = dp_rank_phase_ended(rank->phase);
    dp_rank_phase before = rank->phase;
    if (!ended && level->phase > rank->phase) {
        job->ranks_changed = job->ranks_changed || dp_job_state_ended(job->row.state);
        rank->phase = level->phase;
        rank->exit_status = level->exit_status;
        rank->signal = level->signal;
        rank->stopped = level->stopped;
        job->show = true;
    }
    if (level->finished_known && !rank->finished) {
        dp_core_rank_finished(core, job, rank, &level->finished);
    } else if (!ended && dp_rank_phase_ended(rank->phase)) {
        dp_core_blame_rank(core, job, rank);
    }
    job->recount = job->recount || rank->phase != before;
    if (job->reassign.phase == CORE_SWITCHING && rank->step < job->row.source_step) {
        rank->step = level->step < job->row.source_step ? level->step : job->row.source_step;
    }
    if (level->held_known && !dp_rank_phase_ended(rank->phase)) {
        merge_held(core, job, rank, &level->held);
    }
    merge_unkillable(core, job, rank, level->unkillable);
}

// `had_ranks`: some had not ended before this level.
static void lose_keeper(struct dp_core *core, struct core_job *job, const struct core_node *node,
                        const struct dp_assignment_level *level, bool had_ranks)
{
    const struct core_member *member = dp_core_job_member(job, node->row.name);
    if (member->told != DP_ORDER_STOP) {
        char how[64] = "";
        if (level->keeper_signal != 0) {
            snprintf(how, sizeof(how), " by signal %d (SIG%s)", level->keeper_signal,
                     dp_core_signal_name(level->keeper_signal));
        }
        dp_core_job_blame(core, job, DP_CAUSE_NODE, "KeeperLost",
                          "the keeper of %s's ranks on %s was ended%s; its ranks ended with it",
                          job->row.id, node->row.name, how);
        if (had_ranks) {
            dp_core_job_suspect(core, job, node->row.name, "the keeper of %s's ranks was ended%s",
                                job->row.id, how);
        }
    }
    for (size_t i = 0; i < job->ranks_count; i++) {
        struct dp_rank_record *rank = &job->ranks[i];
        if (strcmp(rank->node, node->row.name) == 0 && !dp_rank_phase_ended(rank->phase)) {
            rank->phase = DP_RANK_DIED;
            rank->signal = SIGKILL_NUMBER;
            rank->stopped = member->told == DP_ORDER_STOP;
            job->show = job->recount = true;
        }
    }
}

bool dp_core_has_live(const struct dp_assignment_level *level)
{
    for (size_t i = 0; i < level->ranks_count; i++) {
        // Of what it found on its disk a node does not know more until the keeper has answered.
        if (!dp_rank_phase_ended(level->ranks[i].phase)) {
            return true;
        }
    }
    return false;
}

// Some had no process at all: what the node says is about them, whatever became of the others.
static bool lacks_processes(const struct dp_assignment_level *level)
{
    for (size_t i = 0; i < level->ranks_count; i++) {
        if (level->ranks[i].phase == DP_RANK_DIED && level->ranks[i].pid == 0) {
            return true;
        }
    }
    return false;
}

// It was not told to end them, either.
static bool without_word(const struct dp_assignment_level *level)
{
    return !level->keeper_lost && !level->stopping && lacks_processes(level);
}

// The node could not start its ranks (its disk is full, it has no more processes), or has ended
// them by itself. Ranks without a process are no cause of their own, so that one is told in any
// case.
static void take_error(struct dp_core *core, struct core_job *job, const struct core_node *node,
                       const struct dp_assignment_level *level, bool had_ranks)
{
    bool live = dp_core_has_live(level);
    if (live && !lacks_processes(level)) {
        return;
    }
    const char *error =
        level->error[0] == '\0' ? "it started no process, and does not say why" : level->error;
    bool silent = dp_core_job_member(job, node->row.name)->lost;
    dp_core_job_blame(core, job, silent ? DP_CAUSE_NODE_LOST : DP_CAUSE_NODE,
                      silent ? "NodeLost" : dp_core_node_failure(job), "node %s: %s",
                      node->row.name, error);
    if (!silent && had_ranks) {
        dp_core_job_suspect(core, job, node->row.name, "%s: %s", job->row.id, error);
    }
    if (!live) {
        // What did not start will not end either.
        dp_core_job_end_ranks(job, node->row.name);
    }
}

static void merge_level(struct dp_core *core, struct core_job *job, const struct core_node *node,
                        const struct dp_assignment_level *level)
{
    dp_core_job_member(job, node->row.name)->reached = true;
    bool had_ranks = !dp_core_job_over(job, node->row.name);
    for (size_t i = 0; i < level->ranks_count; i++) {
        const struct dp_rank_level *given = &level->ranks[i];
        if (given->rank >= job->ranks_count ||
            strcmp(job->ranks[given->rank].node, node->row.name) != 0) {
            dp_core_note(core, job, node, true, "level.refused", "rank %u is not placed here",
                         given->rank);
            continue;
        }
        merge_rank(core, job, &job->ranks[given->rank], given);
    }
    if (level->keeper_lost) {
        lose_keeper(core, job, node, level, had_ranks);
    }
    if (level->error[0] != '\0' || without_word(level)) {
        take_error(core, job, node, level, had_ranks);
    }
    dp_core_job_advance(core, job);
}

static bool is_known(struct dp_core *core, const struct core_node *node,
                     const struct dp_assignment_level *level)
{
    const struct core_job *job = dp_core_job_by_id(core, level->fence.job);
    const struct core_side *side = job == NULL ? NULL : dp_core_side_find(job, &level->fence);
    return job_of(core, node, &level->fence) != NULL ||
           (side != NULL && dp_core_side_member(side, node->row.name) != NULL);
}

// False when it is no assignment of the core's jobs.
static bool merge_known(struct dp_core *core, const struct core_node *node,
                        const struct dp_assignment_level *level)
{
    struct core_job *job = job_of(core, node, &level->fence);
    if (job != NULL) {
        merge_level(core, job, node, level);
        return true;
    }
    job = dp_core_job_by_id(core, level->fence.job);
    return job != NULL && dp_core_side_level(core, job, node, level);
}

static struct core_foreign *find_foreign(struct core_node *node, const struct dp_fence *fence)
{
    for (size_t i = 0; i < node->foreign_count; i++) {
        const struct dp_fence *known = &node->foreign[i].fence;
        if (strcmp(known->job, fence->job) == 0 && known->attempt == fence->attempt &&
            known->epoch == fence->epoch) {
            return &node->foreign[i];
        }
    }
    return NULL;
}

// Ranks in force take their state from it, which an earlier controller had them do.
static bool serves(const struct core_job *job, const struct dp_fence *fence)
{
    return job->row.state == DP_STATE_REASSIGNING && fence->attempt == job->row.attempt &&
           fence->epoch == job->row.source_epoch;
}

// Whether the controller knows that nothing of this assignment should run. What it does not know of
// is left alone, unless its node was taken down: it may belong to a state directory that was lost.
static bool is_over(struct dp_core *core, const struct core_node *node,
                    const struct dp_fence *fence)
{
    const struct core_job *job = dp_core_job_by_id(core, fence->job);
    if (job == NULL) {
        return node->row.admin == DP_ADMIN_DOWN ||
               dp_core_has_ended(core, dp_core_number_of(fence->job));
    }
    if (serves(job, fence)) {
        return false;
    }
    // A newer epoch that was given out and never came into force was given up by an earlier
    // controller.
    return dp_job_state_ended(job->row.state) || compare_fence(fence, job) < 0 ||
           (fence->attempt == job->row.attempt && fence->epoch > job->row.epoch &&
            fence->epoch <= job->row.epoch_used);
}

int64_t dp_core_node_arrived_ns(const struct dp_core *core, const struct core_node *node)
{
    int64_t long_ago_ns = core->now_ns - 3 * core->config.heartbeat_ms * DP_NS_PER_MS;
    return node->arrived_ns < long_ago_ns ? node->arrived_ns : long_ago_ns;
}

// An order may still be on its way when a heartbeat leaves the node.
static void note_arrived(const struct dp_core *core, struct core_node *node,
                         const struct dp_levels *levels)
{
    const struct core_ack *seen = &node->acks[levels->acked % CORE_ACKS_KEPT];
    if (levels->acked == 0 && node->protocol < 2) {
        node->arrived_ns = core->now_ns; // it does not tell
    } else if (seen->sequence == levels->acked) {
        node->arrived_ns = seen->sent_ns;
    }
    node->acks[levels->sequence % CORE_ACKS_KEPT] =
        (struct core_ack){levels->sequence, core->now_ns};
}

// An attempt that was begun after the database in use had been written: the job's next one is
// newer, and ends it.
static void see_attempt(struct core_job *job, uint32_t attempt)
{
    bool is_newer = attempt > job->row.attempt && attempt > job->attempt_seen;
    if (is_newer && attempt - job->row.attempt <= DP_CORE_FOREIGN_ATTEMPTS_MAX) {
        job->attempt_seen = attempt;
    }
}

static void note_unknown(struct dp_core *core, struct core_node *node, const struct core_job *job,
                         const struct dp_fence *fence)
{
    if (job != NULL) {
        dp_core_note(core, NULL, node, true, "assignment.unknown",
                     "%s runs attempt %u, epoch %u of %s, of which this controller's database says "
                     "nothing: it is an older one that was put back, or not the only one; what "
                     "runs there ends when the job's next attempt begins",
                     node->row.name, fence->attempt, fence->epoch, fence->job);
    } else {
        dp_core_note(core, NULL, node, true, "assignment.unknown",
                     "%s runs %s, which this controller does not know; it is left alone, and "
                     "`dpctl nodes down %s` ends it",
                     node->row.name, fence->job, node->row.name);
    }
}

static void meet_foreign(struct dp_core *core, struct core_node *node,
                         const struct dp_assignment_level *level)
{
    struct core_job *job = dp_core_job_by_id(core, level->fence.job);
    bool told_later = job != NULL && !dp_core_job_clean(job); // its end is not on disk yet
    struct core_foreign *foreign = find_foreign(node, &level->fence);
    bool over = is_over(core, node, &level->fence);
    if (job != NULL) {
        see_attempt(job, level->fence.attempt);
    }
    if (foreign == NULL) {
        node->foreign = dp_realloc(node->foreign, node->foreign_count + 1, sizeof(*node->foreign));
        foreign = &node->foreign[node->foreign_count++];
        *foreign = (struct core_foreign){.fence = level->fence};
        uint64_t number = dp_core_number_of(level->fence.job);
        if (!over && !(job != NULL && serves(job, &level->fence))) {
            note_unknown(core, node, job, &level->fence);
            // Its number must not be given to another job.
            if (number >= core->next_number && number < DP_CORE_FOREIGN_NUMBER_MAX) {
                core->next_number = number + 1;
            }
        }
    }
    foreign->ours = over || job != NULL;
    uint32_t live = foreign->live;
    foreign->live = 0;
    for (size_t i = 0; i < level->ranks_count; i++) {
        foreign->live += !dp_rank_phase_ended(level->ranks[i].phase);
    }
    if (foreign->live != live) {
        dp_core_reschedule(core);
        dp_core_remains_changed(core, level->fence.job);
    }
    dp_order_kind wanted =
        foreign->live > 0 && !level->keeper_lost ? DP_ORDER_STOP : DP_ORDER_RELEASE;
    // What it still has after a while did not arrive.
    bool again = foreign->told_ns < dp_core_node_arrived_ns(core, node);
    if (over && !told_later && (foreign->told != wanted || again)) {
        foreign->told = wanted;
        foreign->told_ns = core->now_ns;
        dp_core_send(core, node, wanted, &foreign->fence, "this assignment is over");
    }
}

static const struct dp_assignment_level *find_level(const struct dp_levels *levels,
                                                    const struct dp_fence *fence)
{
    for (size_t i = 0; i < levels->count; i++) {
        const struct dp_fence *given = &levels->assignments[i].fence;
        if (strcmp(given->job, fence->job) == 0 && given->attempt == fence->attempt &&
            given->epoch == fence->epoch) {
            return &levels->assignments[i];
        }
    }
    return NULL;
}

bool dp_core_is_listed(const struct dp_levels *levels, const struct dp_fence *fence)
{
    return find_level(levels, fence) != NULL;
}

// The node does not know the assignment: it has no ranks of it.
static void miss_assignment(struct dp_core *core, struct core_job *job, struct core_member *member)
{
    bool was_there = false;
    for (size_t i = 0; i < job->ranks_count; i++) {
        was_there = was_there || (strcmp(job->ranks[i].node, member->node) == 0 &&
                                  job->ranks[i].phase != DP_RANK_UNKNOWN);
    }
    if (job->row.state == DP_STATE_ASSIGNING && !was_there) {
        member->told = DP_ORDER_NONE;
        dp_core_job_touch(job); // to be told again in this step
        return;
    }
    dp_core_job_blame(core, job, DP_CAUSE_NODE_LOST, "AssignmentLost",
                      "node %s no longer knows of %s (why is not known: told to end its ranks by "
                      "somebody else, as before this database was restored, or with another state "
                      "directory)",
                      member->node, job->row.id);
    dp_core_job_end_ranks(job, member->node);
    dp_core_job_advance(core, job);
}

static void forget_foreign(struct dp_core *core, struct core_node *node,
                           const struct dp_levels *levels)
{
    size_t kept = 0;
    for (size_t i = 0; i < node->foreign_count; i++) {
        if (dp_core_is_listed(levels, &node->foreign[i].fence)) {
            node->foreign[kept++] = node->foreign[i];
        }
    }
    bool gone = kept != node->foreign_count;
    node->foreign_count = kept;
    if (gone) {
        dp_core_reschedule(core);
        dp_core_remains_look(core);
    }
}

static void merge_all(struct dp_core *core, struct core_node *node, const struct dp_levels *levels)
{
    forget_foreign(core, node, levels);
    // Those first: whether a job is over hangs on them.
    bool *met = dp_arena_alloc(&core->effects->arena, levels->count + 1);
    for (size_t i = 0; i < levels->count; i++) {
        met[i] = !is_known(core, node, &levels->assignments[i]);
        if (met[i]) {
            meet_foreign(core, node, &levels->assignments[i]);
        }
    }
    node->listed = true;
    for (size_t i = 0; i < levels->count; i++) {
        const struct dp_assignment_level *level = &levels->assignments[i];
        if (!met[i] && !merge_known(core, node, level)) {
            meet_foreign(core, node, level);
        }
    }
}

static bool lags(const struct core_job *job, const char *node)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        if (strcmp(job->ranks[i].node, node) == 0 && job->ranks[i].phase < DP_RANK_RUNNING) {
            return true;
        }
    }
    return false;
}

// An order that has arrived shows in the levels; one that does not was lost.
static void order_again(struct core_job *job, struct core_member *member,
                        const struct dp_assignment_level *level)
{
    bool reassigning = job->row.state == DP_STATE_REASSIGNING;
    bool starts = job->row.state == DP_STATE_ASSIGNING ||
                  (reassigning && job->reassign.phase == CORE_SWITCHING);
    struct core_member before = *member;
    before.told = DP_ORDER_START;
    bool holds = reassigning &&
                 (member->told == DP_ORDER_PAUSE || member->told == DP_ORDER_SETTLE) &&
                 dp_core_reassign_order(job, &before) == member->told;
    bool ends =
        member->told == DP_ORDER_STOP && !level->stopping && !dp_core_job_over(job, member->node);
    if (member->told == DP_ORDER_START && starts && lags(job, member->node)) {
        member->told = DP_ORDER_PREPARE;
        dp_core_job_touch(job);
    } else if (holds || ends) {
        member->told = DP_ORDER_START;
        dp_core_job_touch(job);
    }
}

static void find_missing(struct dp_core *core, struct core_node *node,
                         const struct dp_levels *levels, bool at_hello)
{
    // What is found may take jobs off the node.
    size_t count = node->jobs_count;
    struct core_job **jobs = dp_core_keep(core, node->jobs, count * sizeof(struct core_job *));
    for (size_t i = 0; i < count; i++) {
        struct core_job *job = jobs[i];
        struct core_member *member = dp_core_job_member(job, node->row.name);
        struct dp_fence fence = dp_core_job_fence(job);
        if (member == NULL) {
            continue;
        }
        bool arrived = member->told_ns < dp_core_node_arrived_ns(core, node);
        const struct dp_assignment_level *level = find_level(levels, &fence);
        if (level != NULL) {
            if (arrived && !at_hello) {
                order_again(job, member, level);
            }
            continue;
        }
        if (dp_job_state_ended(job->row.state)) {
            if (at_hello || arrived) {
                dp_core_job_end_ranks(job, member->node);
            }
            continue;
        }
        if (at_hello || (member->told != DP_ORDER_NONE && arrived)) {
            miss_assignment(core, job, member);
        }
    }
    dp_core_sides_missing(core, node, levels, at_hello);
}

void dp_core_heartbeat(struct dp_core *core, const struct dp_levels *levels)
{
    struct core_node *node = dp_core_node_session(core, levels->session);
    if (node == NULL) {
        return;
    }
    dp_core_node_seen(core, node);
    note_arrived(core, node, levels);
    dp_core_send(core, node, DP_ORDER_ACK, NULL, NULL);
    struct dp_effect *ack = &core->effects->items[core->effects->count - 1];
    ack->request = levels->sequence;
    node->heartbeat_ms = ack->heartbeat_ms = dp_core_node_heartbeat_ms(core);
    merge_all(core, node, levels);
    find_missing(core, node, levels, false);
}

void dp_core_level(struct dp_core *core, const struct dp_levels *levels)
{
    struct core_node *node = dp_core_node_session(core, levels->session);
    if (node == NULL) {
        return;
    }
    dp_core_node_seen(core, node);
    for (size_t i = 0; i < levels->count; i++) {
        merge_known(core, node, &levels->assignments[i]);
    }
}

dp_order_kind dp_core_told_before(const struct dp_assignment_level *level)
{
    if (level->stopping) {
        return DP_ORDER_STOP;
    }
    for (size_t i = 0; i < level->ranks_count; i++) {
        if (level->ranks[i].phase < DP_RANK_RUNNING) {
            return DP_ORDER_PREPARE;
        }
    }
    return DP_ORDER_START;
}

void dp_core_hello_levels(struct dp_core *core, struct core_node *node,
                          const struct dp_levels *levels)
{
    node->foreign_count = 0;
    // What was ordered in earlier sessions came before the hello, or is lost.
    memset(node->acks, 0, sizeof(node->acks));
    node->arrived_ns = core->now_ns;
    dp_core_reschedule(core);
    for (size_t i = 0; i < levels->count; i++) {
        struct core_job *job = job_of(core, node, &levels->assignments[i].fence);
        if (job != NULL) {
            struct core_member *member = dp_core_job_member(job, node->row.name);
            member->told = dp_core_told_before(&levels->assignments[i]);
            member->told_ns = core->now_ns;
        }
    }
    dp_core_sides_hello(core, node, levels);
    merge_all(core, node, levels);
    find_missing(core, node, levels, true);
    dp_core_remains_look(core);
}
