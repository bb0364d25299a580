// Ranks change while the job lives: the new ones are prepared beside the old ones, these hold at a
// step, the new ones take what they need from them and run, the old ones end. Every change goes
// this way, whether it was wanted or ranks were lost (recover.c).
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

bool dp_core_job_trains(const struct core_job *job)
{
    return job->row.state == DP_STATE_RUNNING ||
           (job->row.state == DP_STATE_REASSIGNING && job->reassign.phase == CORE_PREPARING);
}

void dp_core_reassign_phase(struct dp_core *core, struct core_job *job, core_phase phase,
                            int64_t timeout_ns)
{
    job->reassign.phase = phase;
    job->reassign.since_ns = core->now_ns;
    job->deadline_ns = timeout_ns == 0 ? 0 : core->now_ns + timeout_ns;
    dp_core_job_touch(job);
}

static int64_t prepare_timeout_ns(const struct dp_core *core)
{
    return core->config.prepare_timeout_ms * DP_NS_PER_MS;
}

// Ranks hold at the end of a step at the earliest, and steps may take long.
int64_t dp_core_hold_timeout_ns(const struct dp_core *core, const struct core_job *job)
{
    return core->config.pause_timeout_ms * DP_NS_PER_MS +
           4 * dp_core_recent_step_ns(job, CORE_NOW_STEPS);
}

void dp_core_reassign_begin(struct dp_core *core, struct core_job *job,
                            const struct dp_adapt_done *done)
{
    dp_core_side_prepare(job, done);
    job->reassign.failure = (struct core_failure){0};
    job->reassign.tries = 0;
    job->reassign.rebalances = done->rebalances;
    dp_core_decision_make(core, job, done, DP_DECISION_PREPARING);
    dp_core_job_move(core, job, DP_STATE_REASSIGNING, "Reassigning", "%s: %zu ranks are prepared",
                     done->action, done->ranks_count);
    dp_core_reassign_phase(core, job, CORE_PREPARING, prepare_timeout_ns(core));
}

void dp_core_reassign_stop(struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    bool changing = reassign->phase != CORE_STEADY;
    dp_core_rebalance_drop(job, "its ranks changed, or ended, first");
    dp_core_side_give_up(job);
    for (struct core_side *side = job->sides; side != NULL; side = side->next) {
        side->serves = false;
    }
    job->row.source_epoch = 0;
    job->row.source_step = 0;
    dp_buf_clear(&job->row.sources);
    free(reassign->sources);
    reassign->sources = NULL;
    reassign->sources_count = 0;
    reassign->request = 0;
    reassign->answer_ns = 0;
    reassign->away[0] = '\0';
    reassign->phase = CORE_STEADY;
    reassign->failure = (struct core_failure){0};
    dp_core_sides_recount(job);
    if (changing) {
        dp_core_job_changed(job);
    }
}

static void run_on(struct dp_core *core, struct core_job *job)
{
    job->save_ns = core->now_ns + core->config.save_ms * DP_NS_PER_MS;
    job->ranks_changed = true;
    dp_core_job_move(core, job, DP_STATE_RUNNING, "", "%s", "");
}

void dp_core_reassign_abandon(struct dp_core *core, struct core_job *job, const char *format, ...)
{
    char why[DP_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    dp_core_note(core, job, NULL, true, "job.reassign_abandoned", "%s", why);
    dp_core_decision_set(job, DP_DECISION_ABANDONED, "the job trained on as it was: %s", why);
    dp_core_reassign_stop(job);
    dp_core_ask_later(core, job);
    run_on(core, job);
}

void dp_core_reassign_fall(struct dp_core *core, struct core_job *job, const char *format, ...)
{
    char why[DP_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    struct core_failure failure = job->reassign.failure;
    dp_core_note(core, job, NULL, true, "job.reassign_failed", "%s", why);
    dp_core_decision_set(job, DP_DECISION_FELL_BACK, "%s", why);
    job->reassign.phase = CORE_FALLING;
    if (failure.cause == DP_CAUSE_NONE) {
        dp_core_job_blame(core, job, DP_CAUSE_TIMEOUT, "ReassignFailed", "%s", why);
    } else {
        dp_core_job_blame(core, job, failure.cause, failure.reason,
                          "%.*s; the other ranks could "
                          "not go on: %s",
                          DP_TEXT_MAX / 2, failure.message, why);
    }
    dp_core_job_advance(core, job);
}

static bool all_reached(const struct dp_rank_record *ranks, size_t count, dp_rank_phase phase)
{
    for (size_t i = 0; i < count; i++) {
        if (ranks[i].phase < phase) {
            return false;
        }
    }
    return true;
}

// "rank 2 on b (starting), ..." of ranks below the phase; DP_RANK_PHASE_COUNT: that do not hold.
static void list_waiting(const struct dp_rank_record *ranks, size_t count, dp_rank_phase phase,
                         char *text, size_t size)
{
    size_t length = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count && length + 1 < size; i++) {
        const struct dp_rank_record *rank = &ranks[i];
        bool waits = phase == DP_RANK_PHASE_COUNT ? !rank->is_held && !dp_rank_record_over(rank)
                                                  : rank->phase < phase;
        if (waits) {
            int written = snprintf(text + length, size - length, "%srank %u on %s (%s)",
                                   length == 0 ? "" : ", ", rank->rank, rank->node,
                                   dp_rank_record_text(rank));
            length += written > 0 ? (size_t)written : 0;
        }
    }
}

static void take_sources(struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    reassign->sources = dp_new_array(struct dp_state_source, job->ranks_count);
    for (size_t i = 0; i < job->ranks_count; i++) {
        const struct dp_rank_record *rank = &job->ranks[i];
        if (dp_core_recover_serves(job, rank, reassign->step) && rank->held.address[0] != '\0') {
            struct dp_state_source *source = &reassign->sources[reassign->sources_count++];
            source->rank = rank->rank;
            DP_COPY_TEXT(source->address, rank->held.address);
        }
    }
    job->row.source_epoch = job->row.epoch;
    job->row.source_step = reassign->step;
    dp_core_sources_write(reassign->sources, reassign->sources_count, &job->row.sources);
}

// The new assignment is in force from here on; its ranks are told so once that is on disk.
static void switch_over(struct dp_core *core, struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    dp_core_flush_steps(core, job, reassign->step);
    take_sources(job);
    dp_core_side_put_in_force(job);
    job->sides->serves = true;
    job->base_step = reassign->step;
    job->ranks_changed = true;
    dp_core_job_changed(job);
    dp_core_note(core, job, NULL, false, "job.switch",
                 "epoch %u takes step %llu from %zu ranks of epoch %u", job->row.epoch,
                 (unsigned long long)reassign->step, reassign->sources_count,
                 job->row.source_epoch);
    dp_core_reassign_phase(core, job, CORE_SWITCHING, prepare_timeout_ns(core));
}

static void switched(struct dp_core *core, struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    int64_t paused_ns = reassign->paused_ns == 0 ? 0 : core->now_ns - reassign->paused_ns;
    uint64_t step = job->row.source_step;
    bool recovered = reassign->failure.cause != DP_CAUSE_NONE, rebalances = reassign->rebalances;
    if (recovered) {
        reassign->recoveries = reassign->recovered_step == step ? reassign->recoveries + 1 : 1;
        reassign->recovered_step = step;
    }
    dp_core_note(core, job, NULL, false, recovered ? "job.recovered" : "job.reassigned",
                 "epoch %u goes on from step %llu after %.3f s on %zu ranks", job->row.epoch,
                 (unsigned long long)step, (double)paused_ns / DP_NS_PER_S, job->ranks_count);
    dp_core_grow_note(core, job);
    dp_core_reassign_stop(job);
    if (paused_ns > 0 && !recovered) {
        core->switch_ns = core->switch_ns == 0 ? paused_ns : (core->switch_ns + paused_ns) / 2;
    }
    reassign->paused_ns = 0;
    reassign->tries = 0;
    reassign->cool_doublings = 0;
    reassign->recent_first = step + 2; // the first one warms up
    reassign->measured_from = step + 2;
    reassign->decision.measured_pause_ns = paused_ns;
    dp_core_decision_set(job, DP_DECISION_RUNNING, "%s", "");
    run_on(core, job);
    if (rebalances) {
        dp_core_rebalance_follow(core, job);
    }
}

// A rank that was started takes its state first, and says that it has it by the step.
static bool all_took(const struct core_job *job)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        if (job->ranks[i].step < job->row.source_step) {
            return false;
        }
    }
    return true;
}

static bool all_hold(const struct core_job *job)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        if (!job->ranks[i].is_held) {
            return false;
        }
    }
    return job->ranks_count > 0;
}

static bool some_finished(const struct core_job *job)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        if (job->ranks[i].phase == DP_RANK_FINISHED && job->ranks[i].ok) {
            return true;
        }
    }
    return false;
}

static bool all_finished(const struct core_job *job)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        if (job->ranks[i].phase != DP_RANK_FINISHED || !job->ranks[i].ok) {
            return false;
        }
    }
    return true;
}

void dp_core_reassign_settle(struct dp_core *core, struct core_job *job)
{
    uint64_t step = 0;
    for (size_t i = 0; i < job->ranks_count; i++) {
        const struct dp_rank_record *rank = &job->ranks[i];
        if (rank->is_held && rank->held.address[0] != '\0' && !dp_rank_record_over(rank) &&
            rank->held.step > step) {
            step = rank->held.step;
        }
    }
    job->reassign.step = step;
    dp_core_reassign_phase(core, job, CORE_SETTLING, dp_core_hold_timeout_ns(core, job));
}

// Reports of the last steps may be behind the levels. What lost ranks had to say is not waited for.
static bool reports_are_in(const struct dp_core *core, const struct core_job *job)
{
    uint64_t step = job->reassign.step;
    bool in = true;
    for (size_t i = 0; i < job->ranks_count && job->row.step < step; i++) {
        const struct dp_rank_record *rank = &job->ranks[i];
        in = in && (rank->step >= step || !dp_core_recover_serves(job, rank, step));
    }
    return in || core->now_ns - job->reassign.since_ns >= core->config.settle_ms * DP_NS_PER_MS;
}

static void settling_advance(struct dp_core *core, struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    if (!dp_core_recover_settled(job, reassign->step)) {
        return;
    }
    if (!reports_are_in(core, job)) {
        dp_core_job_touch(job);
        return; // the timer looks again
    }
    if (reassign->next == NULL) {
        dp_core_recover_ask(core, job);
    } else if (all_reached(reassign->next->ranks, reassign->next->ranks_count, DP_RANK_READY)) {
        switch_over(core, job);
    }
}

static void preparing_advance(struct dp_core *core, struct core_job *job)
{
    struct core_side *next = job->reassign.next;
    if (some_finished(job)) {
        dp_core_reassign_abandon(core, job, "it has come to its last step");
        return;
    }
    // Before the first step there is nothing to take over.
    if (job->row.step > 0 && all_reached(next->ranks, next->ranks_count, DP_RANK_READY)) {
        dp_core_decision_set(job, DP_DECISION_SWITCHING, "%s", "");
        job->reassign.paused_ns = core->now_ns;
        dp_core_reassign_phase(core, job, CORE_PAUSING, dp_core_hold_timeout_ns(core, job));
    }
}

void dp_core_reassign_advance(struct dp_core *core, struct core_job *job)
{
    switch (job->reassign.phase) {
    case CORE_PREPARING:
        preparing_advance(core, job);
        break;
    case CORE_PAUSING:
        if (all_hold(job)) {
            dp_core_reassign_settle(core, job);
            settling_advance(core, job);
        } else if (all_finished(job)) {
            dp_core_reassign_abandon(core, job, "it has come to its last step");
        }
        break;
    case CORE_GATHERING:
        dp_core_recover_gather(core, job, false);
        break;
    case CORE_SETTLING:
        settling_advance(core, job);
        break;
    case CORE_READYING:
        if (all_reached(job->reassign.next->ranks, job->reassign.next->ranks_count,
                        DP_RANK_READY)) {
            switch_over(core, job);
        }
        break;
    case CORE_SWITCHING:
        if (all_reached(job->ranks, job->ranks_count, DP_RANK_RUNNING) && all_took(job)) {
            switched(core, job);
        }
        break;
    default:
        break;
    }
}

static void switching_deadline(struct dp_core *core, struct core_job *job)
{
    char waiting[DP_TEXT_MAX / 2];
    list_waiting(job->ranks, job->ranks_count, DP_RANK_RUNNING, waiting, sizeof(waiting));
    dp_core_reassign_fall(core, job, "not running %u s after the switch: %s",
                          core->config.prepare_timeout_ms / 1000, waiting);
}

void dp_core_reassign_deadline(struct dp_core *core, struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    const struct core_side *next = reassign->next;
    char waiting[DP_TEXT_MAX / 2] = "", why[DP_TEXT_MAX];
    if (next != NULL) {
        list_waiting(next->ranks, next->ranks_count, DP_RANK_READY, waiting, sizeof(waiting));
    }
    switch (reassign->phase) {
    case CORE_PREPARING:
        dp_core_reassign_abandon(core, job, "not ready after %u s: %s",
                                 core->config.prepare_timeout_ms / 1000, waiting);
        break;
    case CORE_PAUSING:
        list_waiting(job->ranks, job->ranks_count, DP_RANK_PHASE_COUNT, waiting, sizeof(waiting));
        snprintf(why, sizeof(why), "told to hold, but %lld s later still at it: %s",
                 (long long)((core->now_ns - reassign->since_ns) / DP_NS_PER_S), waiting);
        if (dp_core_recover_takes(core, job, DP_CAUSE_PEER_LOST, "ReassignFailed", why)) {
            // They had their time: the others go on without them, if they have what is needed.
            dp_core_recover_gather(core, job, true);
        } else {
            dp_core_reassign_fall(core, job, "%s", why);
        }
        break;
    case CORE_GATHERING:
        dp_core_recover_gather(core, job, true);
        break;
    case CORE_SETTLING:
        dp_core_recover_unsettled(core, job);
        break;
    case CORE_ASKING:
        dp_core_recover_ask(core, job);
        break;
    case CORE_READYING:
        snprintf(why, sizeof(why), "not ready after %u s: %s",
                 core->config.prepare_timeout_ms / 1000, waiting);
        dp_core_recover_next_failed(core, job, why);
        break;
    case CORE_SWITCHING:
        switching_deadline(core, job);
        break;
    default:
        break;
    }
}

static bool has_rank(const struct core_job *job, const char *node, bool behind)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        const struct dp_rank_record *rank = &job->ranks[i];
        bool wanted = behind ? rank->is_held && rank->held.step + 1 == job->reassign.step &&
                                   dp_core_recover_serves(job, rank, job->reassign.step)
                             : !rank->is_held;
        if (wanted && !dp_rank_record_over(rank) && strcmp(rank->node, node) == 0) {
            return true;
        }
    }
    return false;
}

dp_order_kind dp_core_reassign_order(const struct core_job *job, const struct core_member *member)
{
    switch (job->reassign.phase) {
    case CORE_PAUSING:
        return has_rank(job, member->node, false) ? DP_ORDER_PAUSE : member->told;
    case CORE_GATHERING:
        // Nothing is known to have failed: some were told to hold by an earlier controller.
        return job->reassign.failure.cause == DP_CAUSE_NONE && has_rank(job, member->node, false)
                   ? DP_ORDER_PAUSE
                   : member->told;
    case CORE_SETTLING:
        return has_rank(job, member->node, true) ? DP_ORDER_SETTLE : member->told;
    case CORE_SWITCHING:
        return DP_ORDER_START;
    default:
        return member->told;
    }
}

void dp_core_reassign_load(struct dp_core *core, struct core_job *job)
{
    struct core_reassign *reassign = &job->reassign;
    job->base_step = job->row.source_step;
    if (job->row.source_epoch == 0) {
        // The new ranks are not in force, and are told to end when they are met. Whether the old
        // ones hold, they say.
        dp_core_job_move(core, job, DP_STATE_RUNNING, "", "%s", "");
        return;
    }
    dp_core_sources_read(&job->row.sources, &reassign->sources, &reassign->sources_count);
    reassign->step = job->row.source_step;
    reassign->paused_ns = core->now_ns;
    for (size_t i = 0; i < job->ranks_count; i++) {
        job->ranks[i].step = 0;
    }
    dp_core_reassign_phase(core, job, CORE_SWITCHING, prepare_timeout_ns(core));
}
