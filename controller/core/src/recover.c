// Ranks are lost, and what they held lives on elsewhere: in the other half of a pipeline that goes
// both ways, or in data-parallel replicas. Ranks that miss a peer hold and serve their state; once
// every rank holds or is lost, those that are a step behind finish it, a layout without the lost
// ones is asked for, and it takes over as any other (reassign.c). Nothing was written to a file.
#include "core_internal.h"

#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

#define ASKS_MAX 60 // for one layout after the other that does not fit, half a second apart
#define ASK_AGAIN_MS 500
#define NAMED_MAX 3 // ranks that are waited for
#define TRIES_MAX 3 // of new ranks that fail before they take over

// What another rank at the same place would not run into, too.
static bool is_passing(dp_cause cause, const char *reason)
{
    switch (cause) {
    case DP_CAUSE_PEER_LOST:
    case DP_CAUSE_NODE_LOST:
        return true;
    case DP_CAUSE_NODE:
        return strcmp(reason, "KeeperLost") == 0 || strcmp(reason, "NodeFailed") == 0;
    case DP_CAUSE_RANK:
        return strcmp(reason, "RankDied") == 0;
    default:
        return false;
    }
}

static bool is_silent(const struct core_job *job, const struct dp_rank_record *rank)
{
    const struct core_node *node = dp_core_node_find(job->core, rank->node);
    return node == NULL || node->state == DP_NODE_LOST;
}

static bool holds(const struct core_job *job, const struct dp_rank_record *rank)
{
    return rank->is_held && !dp_rank_record_over(rank) && !is_silent(job, rank);
}

// Of the gradients that made `step`.
static bool norm_of(const struct core_job *job, uint64_t step, double *ret_norm)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        const struct dp_rank_record *rank = &job->ranks[i];
        if (rank->is_held && rank->held.step == step && rank->held.norm_known) {
            *ret_norm = rank->held.grad_norm;
            return true;
        }
    }
    return false;
}

double dp_core_recover_norm(const struct core_job *job, uint64_t step)
{
    double norm = 0;
    norm_of(job, step, &norm);
    return norm;
}

bool dp_core_recover_serves(const struct core_job *job, const struct dp_rank_record *rank,
                            uint64_t step)
{
    double norm = 0;
    if (!holds(job, rank) || rank->held.address[0] == '\0') {
        return false;
    }
    return rank->held.step == step ||
           (rank->held.step + 1 == step && rank->held.gradients_whole && norm_of(job, step, &norm));
}

bool dp_core_recover_settled(const struct core_job *job, uint64_t step)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        const struct dp_rank_record *rank = &job->ranks[i];
        if (dp_core_recover_serves(job, rank, step) && rank->held.step != step) {
            return false;
        }
    }
    return true;
}

// The best explanation so far, should the job end by it after all.
static void remember(struct core_job *job, dp_cause cause, const char *reason, const char *message)
{
    struct core_failure *failure = &job->reassign.failure;
    if (cause > failure->cause) {
        failure->cause = cause;
        DP_COPY_TEXT(failure->reason, reason);
        DP_COPY_TEXT(failure->message, message);
        DP_COPY_TEXT(job->row.reason, "Recovering");
        DP_COPY_TEXT(job->row.message, message);
        dp_core_job_changed(job);
        dp_core_note(job->core, job, NULL, true, "job.cause", "%s: %s", reason, message);
    }
}

static size_t count_lost(const struct core_job *job)
{
    size_t lost = 0;
    for (size_t i = 0; i < job->ranks_count; i++) {
        lost += !dp_core_recover_serves(job, &job->ranks[i], job->reassign.step);
    }
    return lost;
}

static void gather(struct dp_core *core, struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    dp_core_rebalance_drop(job, reassign->failure.message);
    if (reassign->next != NULL) {
        dp_core_decision_set(job, DP_DECISION_ABANDONED, "%s", reassign->failure.message);
        dp_core_side_give_up(job);
    }
    if (job->row.state != DP_STATE_REASSIGNING) {
        dp_core_job_move(core, job, DP_STATE_REASSIGNING, "Recovering", "%s",
                         reassign->failure.message);
    }
    reassign->asks = 0;
    if (reassign->paused_ns == 0) {
        reassign->paused_ns = core->now_ns;
    }
    reassign->request = 0;
    reassign->answer_ns = 0;
    dp_core_reassign_phase(core, job, CORE_GATHERING, dp_core_hold_timeout_ns(core, job));
}

bool dp_core_recover_takes(struct dp_core *core, struct core_job *job, dp_cause cause,
                           const char *reason, const char *message)
{
    struct core_reassign *reassign = &job->reassign;
    bool lives = job->row.state == DP_STATE_RUNNING || job->row.state == DP_STATE_LOST ||
                 (job->row.state == DP_STATE_REASSIGNING && reassign->phase < CORE_SWITCHING);
    if (!lives || job->row.recovery != DP_JOB_RECOVERY_AUTO || !is_passing(cause, reason) ||
        !dp_core_reassign_may(job)) {
        return false;
    }
    if (reassign->recoveries >= core->config.recoveries_max &&
        job->row.step <= reassign->recovered_step) {
        dp_core_note(core, job, NULL, true, "job.not_recovered",
                     "%u times from step %llu, without a step in between", reassign->recoveries,
                     (unsigned long long)reassign->recovered_step);
        return false;
    }
    remember(job, cause, reason, message);
    // One that was counted as lost has ended, too: that changes nothing.
    bool planned = reassign->phase == CORE_ASKING || reassign->phase == CORE_READYING ||
                   (reassign->phase == CORE_SETTLING && reassign->next == NULL);
    if (reassign->phase == CORE_GATHERING || (planned && count_lost(job) == reassign->lost_count)) {
        return true;
    }
    gather(core, job);
    return true;
}

void dp_core_recover_held(struct dp_core *core, struct core_job *job,
                          const struct dp_rank_record *rank)
{
    bool told = rank->held.why[0] == '\0';
    if (job->row.state == DP_STATE_REASSIGNING && job->reassign.phase != CORE_PREPARING && told) {
        return;
    }
    if (!told) {
        dp_core_job_blame(core, job, DP_CAUSE_PEER_LOST, "PeerLost",
                          "rank %u on %s holds step "
                          "%llu: %s",
                          rank->rank, rank->node, (unsigned long long)rank->held.step,
                          rank->held.why);
        return;
    }
    if (job->row.state == DP_STATE_RUNNING || job->row.state == DP_STATE_LOST ||
        job->reassign.phase == CORE_PREPARING) {
        // An earlier controller told it to; what that had in mind is not known.
        job->reassign.failure = (struct core_failure){
            .message = "its ranks hold, as they were told before this controller was started"};
        gather(core, job);
    }
}

void dp_core_recover_next_failed(struct dp_core *core, struct core_job *job, const char *why)
{
    struct core_reassign *reassign = &job->reassign;
    if (reassign->tries >= TRIES_MAX) {
        dp_core_reassign_fall(core, job, "%s", why);
        return;
    }
    reassign->tries++;
    dp_core_note(core, job, NULL, true, "job.reassign_again", "%s", why);
    dp_core_decision_set(job, DP_DECISION_ABANDONED, "%s", why);
    if (reassign->failure.cause == DP_CAUSE_NONE) {
        DP_COPY_TEXT(reassign->failure.message, why);
    }
    if (reassign->phase == CORE_READYING) {
        dp_core_side_give_up(job);
        dp_core_recover_ask(core, job);
    } else {
        gather(core, job);
    }
}

static bool is_waited_for(const struct core_job *job, const struct dp_rank_record *rank)
{
    return !dp_rank_record_over(rank) && !is_silent(job, rank) && !rank->is_held;
}

// Whom it waits for: nodes that are late may be lost later, without a word in between.
static void explain_gathering(struct dp_core *core, struct core_job *job)
{
    char text[DP_TEXT_MAX], until[32];
    size_t length = (size_t)snprintf(text, sizeof(text), "%.*s; waits for", DP_TEXT_MAX / 2,
                                     job->reassign.failure.message);
    uint32_t named = 0;
    for (size_t i = 0; i < job->ranks_count && named <= NAMED_MAX; i++) {
        const struct dp_rank_record *rank = &job->ranks[i];
        if (is_waited_for(job, rank) && named++ < NAMED_MAX) {
            length += (size_t)snprintf(text + length, sizeof(text) - length, "%s rank %u on %s",
                                       named == 1 ? "" : ",", rank->rank, rank->node);
        }
    }
    int64_t left_ns = job->deadline_ns - core->now_ns;
    snprintf(text + length, sizeof(text) - length, "%s to hold, until %s at most",
             named > NAMED_MAX ? " and others" : "",
             dp_clock_format_utc(until, core->wall_ns + left_ns));
    if (strcmp(job->row.message, text) != 0) {
        DP_COPY_TEXT(job->row.message, text);
        dp_core_job_changed(job);
    }
}

void dp_core_recover_gather(struct dp_core *core, struct core_job *job, bool at_deadline)
{
    size_t serving = 0, waiting = 0;
    for (size_t i = 0; i < job->ranks_count; i++) {
        const struct dp_rank_record *rank = &job->ranks[i];
        waiting += is_waited_for(job, rank);
        serving += holds(job, rank) && rank->held.address[0] != '\0';
    }
    if (waiting > 0 && !at_deadline) {
        explain_gathering(core, job);
        return;
    }
    if (serving == 0 || job->row.step == 0) {
        dp_core_reassign_fall(core, job, "%s",
                              serving == 0 ? "no rank is left that holds its state"
                                           : "no step was complete yet");
        return;
    }
    dp_core_reassign_settle(core, job);
    job->reassign.lost_count = count_lost(job);
    dp_core_reassign_advance(core, job);
}

void dp_core_recover_unsettled(struct dp_core *core, struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    for (size_t i = 0; i < job->ranks_count; i++) {
        struct dp_rank_record *rank = &job->ranks[i];
        if (rank->is_held && rank->held.step != reassign->step) {
            rank->held.gradients_whole = false; // it had its time
        }
    }
    dp_core_reassign_phase(core, job, CORE_SETTLING, dp_core_hold_timeout_ns(core, job));
    dp_core_reassign_advance(core, job);
}

static const uint32_t *list_lost(struct dp_core *core, const struct core_job *job,
                                 size_t *ret_count)
{
    uint32_t *lost = dp_arena_alloc(&core->effects->arena, (job->ranks_count + 1) * sizeof(*lost));
    *ret_count = 0;
    for (size_t i = 0; i < job->ranks_count; i++) {
        if (!dp_core_recover_serves(job, &job->ranks[i], job->reassign.step)) {
            lost[(*ret_count)++] = (uint32_t)i;
        }
    }
    return lost;
}

void dp_core_recover_ask(struct dp_core *core, struct core_job *job)
{
    struct dp_adapt_ask ask = {
        .recovers = true,
        .step = job->reassign.step,
        .away = job->reassign.away,
        .cause = job->reassign.failure.message,
    };
    ask.lost = list_lost(core, job, &ask.lost_count);
    if (ask.lost_count == 0) {
        // All of them hold, and go on where they are, whatever they were to leave.
        job->reassign.away[0] = '\0';
    }
    job->reassign.lost_count = ask.lost_count;
    job->reassign.asks++;
    dp_core_reassign_phase(core, job, CORE_ASKING, 0);
    dp_core_ask(core, job, &ask);
}

void dp_core_recover_done(struct dp_core *core, struct core_job *job,
                          const struct dp_adapt_done *done)
{
    if (job->reassign.phase != CORE_ASKING) {
        return;
    }
    if (done->ranks_count == 0) {
        dp_core_recover_failed(core, job, done->action);
        return;
    }
    if (!dp_core_slots_fit(core, job, done->ranks, done->ranks_count)) {
        // Somebody else was given them meanwhile, or a node of them is late: once more in a moment.
        if (job->reassign.asks < ASKS_MAX) {
            dp_core_reassign_phase(core, job, CORE_ASKING, ASK_AGAIN_MS * DP_NS_PER_MS);
        } else {
            dp_core_recover_failed(core, job, "the places that it was to have are not free");
        }
        return;
    }
    dp_core_side_prepare(job, done);
    dp_core_decision_make(core, job, done, DP_DECISION_PREPARING);
    snprintf(job->row.message, sizeof(job->row.message), "%.*s; %.*s", DP_TEXT_MAX / 2,
             job->reassign.failure.message, DP_TEXT_MAX / 2 - 8, done->action);
    dp_core_reassign_phase(core, job, CORE_READYING,
                           core->config.prepare_timeout_ms * DP_NS_PER_MS);
    dp_core_job_changed(job);
}

void dp_core_recover_failed(struct dp_core *core, struct core_job *job, const char *why)
{
    if (job->reassign.phase == CORE_ASKING) {
        dp_core_reassign_fall(core, job, "%s", why);
    }
}
