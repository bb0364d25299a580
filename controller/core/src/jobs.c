// The life of one job: moves, orders to its nodes, its end.
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"

static void free_checkpoints(struct core_job *job)
{
    while (job->checkpoints != NULL) {
        struct core_checkpoint *next = job->checkpoints->next;
        free(job->checkpoints);
        job->checkpoints = next;
    }
}

void dp_core_job_remove(struct core_job *job)
{
    dp_core_job_unlink(job);
    dp_core_members_clear(job);
    while (job->replies != NULL) {
        struct core_reply *next = job->replies->next;
        free(job->replies->text);
        free(job->replies);
        job->replies = next;
    }
    free_checkpoints(job);
    dp_core_sides_free(job);
    dp_core_straggler_deinit(job);
    dp_core_pasts_stored(job, UINT64_MAX);
    dp_job_record_deinit(&job->row);
    free(job->ranks);
    free(job->window.rows);
    free(job);
}

struct dp_fence dp_core_job_fence(const struct core_job *job)
{
    struct dp_fence fence = {.attempt = job->row.attempt, .epoch = job->row.epoch};
    DP_COPY_TEXT(fence.job, job->row.id);
    return fence;
}

bool dp_core_job_clean(const struct core_job *job)
{
    return !job->changed && !job->ranks_changed && job->dirty_token <= job->stored_token;
}

bool dp_core_job_unheard(const struct core_job *job)
{
    return job->row.state == DP_STATE_SUBMITTED && job->stored_token == 0;
}

void dp_core_job_changed(struct core_job *job)
{
    job->changed = true;
    job->show = true;
    dp_core_job_touch(job);
}

void dp_core_job_move(struct dp_core *core, struct core_job *job, dp_job_state state,
                      const char *reason, const char *format, ...)
{
    DP_CHECK(dp_job_state_may_move(job->row.state, state));
    job->row.state = state;
    core->index++;
    dp_core_queue_remove(core, job);
    if (state == DP_STATE_QUEUED) {
        dp_core_queue_add(core, job);
    } else if (state != DP_STATE_SUBMITTED) {
        dp_core_reschedule(core);
    }
    DP_COPY_TEXT(job->row.reason, reason);
    va_list args;
    va_start(args, format);
    vsnprintf(job->row.message, sizeof(job->row.message), format, args);
    va_end(args);
    job->deadline_ns = 0;
    if (dp_job_state_ended(state)) {
        job->row.ended_ns = core->wall_ns;
        dp_core_decision_end(job);
        job->ranks_changed = true;
    }
    dp_core_job_changed(job);
    dp_core_job_recount(job);
    bool bad = state == DP_STATE_FAILED || state == DP_STATE_LOST;
    dp_core_note(core, job, NULL, bad, "job.state", "%s%s%s%s%s", dp_job_state_text(state),
                 reason[0] == '\0' ? "" : " ", reason, job->row.message[0] == '\0' ? "" : ": ",
                 job->row.message);
}

// Whether every rank is at least in `phase`.
static bool all_reached(struct core_job *job, dp_rank_phase phase)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        size_t at = (job->lacks_phase + i) % job->ranks_count;
        if (job->ranks[at].phase < phase) {
            job->lacks_phase = at;
            return false;
        }
    }
    return true;
}

static dp_order_kind wanted_order(const struct dp_core *core, struct core_job *job,
                                  const struct core_member *member)
{
    switch (job->row.state) {
    case DP_STATE_ASSIGNING:
        if (member->told == DP_ORDER_NONE) {
            return DP_ORDER_PREPARE;
        }
        return all_reached(job, DP_RANK_READY) ? DP_ORDER_START : member->told;
    case DP_STATE_REASSIGNING:
        return dp_core_reassign_order(job, member);
    case DP_STATE_STOPPING:
        return core->now_ns >= job->stop_ns ? DP_ORDER_STOP : member->told;
    case DP_STATE_COMPLETED:
    case DP_STATE_FAILED:
    case DP_STATE_CANCELLED:
        return dp_core_job_over(job, member->node) ? DP_ORDER_RELEASE : DP_ORDER_STOP;
    default:
        return member->told;
    }
}

void dp_core_job_drive(struct dp_core *core, struct core_job *job)
{
    if (!dp_core_job_clean(job)) {
        return;
    }
    struct dp_fence fence = dp_core_job_fence(job);
    for (size_t i = 0; i < job->members_count; i++) {
        struct core_member *member = &job->members[i];
        dp_order_kind order = wanted_order(core, job, member);
        const struct core_node *node = member->at;
        if (order == member->told || node == NULL || node->session == 0) {
            continue;
        }
        member->told = order;
        member->told_ns = core->now_ns;
        member->reached = true;
        dp_core_send(core, node, order, &fence, job->row.message);
        if (order == DP_ORDER_STOP && job->stop_checkpoint) {
            struct dp_effect *effect = &core->effects->items[core->effects->count - 1];
            effect->checkpoint = true;
            effect->grace_ms += core->config.preempt_ms;
        }
        if (order == DP_ORDER_SETTLE) {
            struct dp_effect *effect = &core->effects->items[core->effects->count - 1];
            effect->request = job->reassign.step;
            effect->grad_norm = dp_core_recover_norm(job, job->reassign.step);
        }
    }
    dp_core_sides_drive(core, job);
}

// A failed job ends when all is over that can be heard of; one that somebody cancelled is promised
// to be over altogether.
static bool may_end(const struct core_job *job)
{
    bool again = dp_core_job_goes_on(job);
    // Before that is on disk, a controller that starts would have the ranks begin where others run.
    if (again && (!job->gives_back || !dp_core_attempt_dead(job))) {
        return false;
    }
    for (size_t i = 0; i < job->members_count; i++) {
        const struct core_node *node = job->members[i].at;
        bool silent = node == NULL || node->state == DP_NODE_LOST;
        if (!dp_core_job_over(job, job->members[i].node) &&
            (job->row.outcome == DP_STATE_CANCELLED || !silent)) {
            return false;
        }
    }
    return again ? dp_core_sides_may_end(job) : dp_core_job_alone(job);
}

// What ranks said of their last steps may have been lost; their last words were not.
static void take_final_step(struct core_job *job)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < job->ranks_count; i++) {
        least = job->ranks[i].final_step < least ? job->ranks[i].final_step : least;
    }
    if (job->ranks_count > 0 && least > job->row.step) {
        job->row.step = least;
    }
}

static void finish(struct dp_core *core, struct core_job *job)
{
    for (struct core_checkpoint *c = job->checkpoints; c != NULL; c = c->next) {
        dp_core_job_changed(job);
        dp_core_refuse_stored(core, c->reply, job, DP_CONFLICT,
                              "%s ended before the checkpoint was written", job->row.id);
    }
    free_checkpoints(job);
    if (dp_core_job_goes_on(job)) {
        dp_core_job_begin_again(core, job);
        return;
    }
    if (job->row.state == DP_STATE_RUNNING) {
        char left[DP_TEXT_MAX / 2];
        take_final_step(job);
        dp_core_job_describe_remains(job, left, sizeof(left));
        dp_core_job_move(core, job, DP_STATE_COMPLETED, "", "all %zu ranks finished%s%s",
                         job->ranks_count, left[0] == '\0' ? "" : "; ", left);
        dp_core_job_archive(core, job);
        return;
    }
    dp_core_job_explain_end(job);
    char reason[DP_NAME_MAX], message[DP_TEXT_MAX];
    DP_COPY_TEXT(reason, job->row.reason);
    DP_COPY_TEXT(message, job->why[0] == '\0' ? job->row.message : job->why);
    dp_core_job_move(core, job, job->row.outcome, reason, "%s", message);
    dp_core_job_archive(core, job);
}

static bool all_ok(struct core_job *job)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        size_t at = (job->lacks_ok + i) % job->ranks_count;
        const struct dp_rank_record *rank = &job->ranks[at];
        if (rank->phase != DP_RANK_FINISHED || !rank->ok || rank->stopped) {
            job->lacks_ok = at;
            return false;
        }
    }
    return job->ranks_count > 0;
}

// The levels of ranks can be faster than the reports of their last steps; after a restart, last
// words are told again.
static bool is_settled(const struct core_job *job)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        if (!job->ranks[i].finished || job->ranks[i].step < job->ranks[i].final_step) {
            return false;
        }
    }
    return true;
}

// Whether the reports that are lacking are lost. Not while a node is silent that was stopped or cut
// off as its ranks ended: it says what it has to say when it comes back, so a wait begins anew
// then.
static bool is_quiet(const struct dp_core *core, struct core_job *job)
{
    int64_t settle_ns = core->config.settle_ms * DP_NS_PER_MS;
    if (job->words_ns != 0 && core->now_ns < job->words_ns + settle_ns) {
        return false;
    }
    bool heard = job->words_ns != 0;
    for (size_t i = 0; i < job->members_count && heard; i++) {
        const struct core_node *node = job->members[i].at;
        heard = node == NULL || node->seen_ns >= job->words_ns;
    }
    bool quiet = heard && job->words_heard;
    job->words_heard = heard;
    job->words_ns = core->now_ns;
    return quiet;
}

bool dp_core_job_complete(struct dp_core *core, struct core_job *job)
{
    bool done = job->row.state == DP_STATE_RUNNING && job->done_ns != 0;
    if (done) {
        finish(core, job);
    }
    return done;
}

// All ranks have done their work. Those of earlier epochs end by themselves soon, or else never.
static void end_well(struct dp_core *core, struct core_job *job)
{
    job->done_ns = job->done_ns == 0 ? core->now_ns : job->done_ns;
    int64_t waited_ms = (core->now_ns - job->done_ns) / DP_NS_PER_MS;
    bool late = waited_ms >= core->config.stop_timeout_ms;
    bool settled = is_settled(job) || late || is_quiet(core, job);
    bool alone = dp_core_job_alone(job) || late;
    if (settled && alone) {
        finish(core, job);
        return;
    }
    job->deadline_ns = settled ? job->done_ns + core->config.stop_timeout_ms * DP_NS_PER_MS
                               : job->words_ns + core->config.settle_ms * DP_NS_PER_MS;
    if (settled && job->row.message[0] == '\0') {
        char left[DP_TEXT_MAX / 2];
        dp_core_job_describe_remains(job, left, sizeof(left));
        snprintf(job->row.message, sizeof(job->row.message), "all ranks have finished; %s", left);
        dp_core_job_changed(job);
    }
}

void dp_core_job_advance(struct dp_core *core, struct core_job *job)
{
    if (job->row.state == DP_STATE_LOST) {
        dp_core_job_return(core, job);
    }
    if (job->row.state == DP_STATE_ASSIGNING && all_reached(job, DP_RANK_RUNNING)) {
        job->row.started_ns = core->wall_ns;
        job->start_ns = job->assigned_ns == 0 ? 0 : core->now_ns - job->assigned_ns;
        job->ranks_changed = true;
        job->save_ns = core->now_ns + core->config.save_ms * DP_NS_PER_MS;
        dp_core_job_move(core, job, DP_STATE_RUNNING, "", "%s", "");
        dp_core_restart_runs(core, job);
    }
    if (job->row.state == DP_STATE_REASSIGNING) {
        dp_core_reassign_advance(core, job);
    }
    if (job->row.state == DP_STATE_RUNNING && all_ok(job)) {
        end_well(core, job);
    }
    if (job->row.state == DP_STATE_STOPPING && may_end(job)) {
        // What its ranks wrote last is told by reports, which can be slower than their ends.
        if (job->stop_checkpoint && !job->stop_saved && job->settle_ns == 0) {
            job->settle_ns = core->now_ns + core->config.settle_ms * DP_NS_PER_MS;
        } else if (job->settle_ns == 0 || job->stop_saved || core->now_ns >= job->settle_ns) {
            finish(core, job);
        }
    }
}

// The ranks that are not in `phase` yet, or not over (phase FINISHED).
static void list_waiting(const struct core_job *job, dp_rank_phase phase, char *text, size_t size)
{
    size_t length = 0;
    text[0] = '\0';
    for (size_t i = 0; i < job->ranks_count && length + 1 < size; i++) {
        const struct dp_rank_record *rank = &job->ranks[i];
        if (rank->phase < phase && !rank->gone) {
            int written = snprintf(text + length, size - length, "%srank %u on %s (%s)",
                                   length == 0 ? "" : ", ", rank->rank, rank->node,
                                   rank->phase == DP_RANK_UNKNOWN ? "not heard of"
                                                                  : dp_rank_record_text(rank));
            length += written > 0 ? (size_t)written : 0;
        }
    }
}

static void save_totals(struct dp_core *core, struct core_job *job)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        dp_core_store(core, DP_RECORD_RANK, &job->ranks[i]);
    }
    job->save_ns = core->now_ns + core->config.save_ms * DP_NS_PER_MS;
}

static void expire_checkpoints(struct dp_core *core, struct core_job *job)
{
    struct core_checkpoint **link = &job->checkpoints;
    while (*link != NULL) {
        struct core_checkpoint *checkpoint = *link;
        if (core->now_ns < checkpoint->deadline_ns) {
            link = &checkpoint->next;
            continue;
        }
        dp_core_reply_error(core, checkpoint->reply, DP_TIMEOUT,
                            "%s wrote no checkpoint within %u s", job->row.id,
                            core->config.checkpoint_timeout_ms / 1000);
        *link = checkpoint->next;
        free(checkpoint);
    }
}

// Ranks that were told to stop and are still there keep their slots, so the job has not ended.
static void insist(struct dp_core *core, struct core_job *job)
{
    char waiting[DP_TEXT_MAX / 2], left[DP_TEXT_MAX / 4], text[DP_TEXT_MAX];
    list_waiting(job, DP_RANK_FINISHED, waiting, sizeof(waiting));
    dp_core_job_describe_remains(job, left, sizeof(left));
    snprintf(text, sizeof(text), "told to stop, but %u s later still there: %s%s%s",
             core->config.stop_timeout_ms / 1000, waiting,
             waiting[0] == '\0' || left[0] == '\0' ? "" : "; ", left);
    dp_core_note(core, job, NULL, true, "job.stopping", "%s", text);
    dp_core_job_explain_wait(job, text);
    for (size_t i = 0; i < job->members_count; i++) {
        if (!dp_core_job_over(job, job->members[i].node)) {
            job->members[i].told = DP_ORDER_START;
        }
    }
    dp_core_sides_insist(job);
    job->deadline_ns = core->now_ns + core->config.stop_timeout_ms * DP_NS_PER_MS;
}

void dp_core_job_deadline(struct dp_core *core, struct core_job *job)
{
    char waiting[DP_TEXT_MAX / 2];
    expire_checkpoints(core, job);
    if (job->backoff_ns != 0 && core->now_ns >= job->backoff_ns) {
        job->backoff_ns = 0;
        dp_core_queue_freshen(core, job);
        dp_core_reschedule(core);
    }
    if (job->settle_ns != 0 && core->now_ns >= job->settle_ns) {
        dp_core_job_advance(core, job);
    }
    if (dp_core_job_trains(job) && job->save_ns != 0 && core->now_ns >= job->save_ns) {
        save_totals(core, job);
    }
    dp_core_ask_deadline(core, job);
    if (job->reassign.phase == CORE_SETTLING) {
        dp_core_job_advance(core, job);
    }
    if (job->deadline_ns == 0 || core->now_ns < job->deadline_ns) {
        return;
    }
    job->deadline_ns = 0;
    if (job->row.state == DP_STATE_ASSIGNING) {
        bool started = all_reached(job, DP_RANK_READY);
        list_waiting(job, started ? DP_RANK_RUNNING : DP_RANK_READY, waiting, sizeof(waiting));
        DP_COPY_TEXT(job->around, job->ranks[job->lacks_phase].node); // the first of them
        dp_core_job_blame(core, job, DP_CAUSE_TIMEOUT, "PrepareTimeout", "not %s after %u s: %s",
                          started ? "running" : "ready", core->config.prepare_timeout_ms / 1000,
                          waiting);
        dp_core_job_advance(core, job);
    } else if (job->row.state == DP_STATE_RUNNING) {
        end_well(core, job);
    } else if (job->row.state == DP_STATE_REASSIGNING) {
        dp_core_reassign_deadline(core, job);
    } else if (job->row.state == DP_STATE_STOPPING) {
        insist(core, job);
    }
}

// The core lets go of jobs that have ended.
void dp_core_refuse_absent(struct dp_core *core, uint64_t reply, const char *job)
{
    if (dp_core_has_ended(core, dp_core_number_of(job))) {
        dp_core_reply_error(core, reply, DP_CONFLICT, "%s has ended already", job);
    } else {
        dp_core_reply_error(core, reply, DP_NOT_FOUND, "no job \"%s\"", job);
    }
}

static void stop_for_cancel(struct dp_core *core, struct core_job *job, const char *why)
{
    char silent[DP_TEXT_MAX];
    dp_core_job_describe_lost(core, job, silent, sizeof(silent));
    dp_core_job_stop(core, job, DP_STATE_CANCELLED);
    DP_COPY_TEXT(job->row.reason, "Cancelled");
    DP_COPY_TEXT(job->row.message, why);
    dp_core_job_explain_wait(job, silent);
    job->stop_ns = core->now_ns;
    dp_core_job_advance(core, job);
}

// It was to begin again; now it will not.
static void stay_cancelled(struct dp_core *core, struct core_job *job, const char *why)
{
    char silent[DP_TEXT_MAX];
    dp_core_job_describe_lost(core, job, silent, sizeof(silent));
    job->row.outcome = DP_STATE_CANCELLED;
    DP_COPY_TEXT(job->row.reason, "Cancelled");
    DP_COPY_TEXT(job->row.message, why);
    job->why[0] = '\0';
    job->stop_ns = core->now_ns;
    dp_core_job_explain_wait(job, silent);
    dp_core_job_changed(job);
    dp_core_job_advance(core, job);
}

void dp_core_job_cancel(struct dp_core *core, const struct dp_ask *ask)
{
    struct core_job *job = dp_core_job_by_id(core, ask->job);
    if (job == NULL) {
        dp_core_refuse_absent(core, ask->reply, ask->job);
        return;
    }
    char left[DP_TEXT_MAX / 4];
    const char *why = ask->reason[0] == '\0' ? "cancelled" : ask->reason;
    switch (job->row.state) {
    case DP_STATE_SUBMITTED:
    case DP_STATE_QUEUED:
    case DP_STATE_PLANNED:
        dp_core_job_describe_remains(job, left, sizeof(left));
        dp_core_job_move(core, job, DP_STATE_CANCELLED, "Cancelled", "%s%s%s", why,
                         left[0] == '\0' ? "" : "; ", left);
        break;
    case DP_STATE_ASSIGNING:
    case DP_STATE_RUNNING:
    case DP_STATE_REASSIGNING:
    case DP_STATE_LOST:
        stop_for_cancel(core, job, why);
        break;
    case DP_STATE_STOPPING:
        if (dp_core_job_goes_on(job)) {
            stay_cancelled(core, job, why);
        } else {
            // Whatever better reason for its failure is found: it does not begin again.
            job->row.recovery = DP_JOB_RECOVERY_OFF;
            dp_core_job_changed(job);
        }
        break;
    default:
        dp_core_refuse_stored(core, ask->reply, job, DP_CONFLICT, "%s has ended already: %s",
                              job->row.id, dp_job_state_text(job->row.state));
        return;
    }
    dp_core_reply_stored(core, ask->reply, job);
}

void dp_core_job_checkpoint(struct dp_core *core, const struct dp_ask *ask)
{
    struct core_job *job = dp_core_job_by_id(core, ask->job);
    if (job == NULL) {
        dp_core_refuse_absent(core, ask->reply, ask->job);
        return;
    }
    if (!dp_core_job_trains(job)) {
        dp_core_refuse_stored(core, ask->reply, job, DP_CONFLICT,
                              "%s is %s: only a running job can write a checkpoint", ask->job,
                              dp_job_state_text(job->row.state));
        return;
    }
    if (strcmp(job->row.device, "sim") == 0) {
        dp_core_reply_error(core, ask->reply, DP_UNSUPPORTED,
                            "%s runs on the sim device, which has nothing to save", job->row.id);
        return;
    }
    struct core_checkpoint *checkpoint = dp_new(struct core_checkpoint);
    *checkpoint = (struct core_checkpoint){
        .request = core->next_request++,
        .reply = ask->reply,
        .deadline_ns = core->now_ns + core->config.checkpoint_timeout_ms * DP_NS_PER_MS,
        .next = job->checkpoints,
    };
    job->checkpoints = checkpoint;
    struct dp_fence fence = dp_core_job_fence(job);
    for (size_t i = 0; i < job->members_count; i++) {
        const struct core_node *node = job->members[i].at;
        if (node != NULL && node->session != 0) {
            dp_core_send(core, node, DP_ORDER_CHECKPOINT, &fence, NULL);
            core->effects->items[core->effects->count - 1].request = checkpoint->request;
        }
    }
}

// A rank that was asked several times meanwhile writes one checkpoint for all of them. `error` is
// NULL when it stands.
static void answer_checkpoints(struct dp_core *core, struct core_job *job, uint64_t request,
                               uint64_t step, const char *path, const char *error)
{
    struct core_checkpoint **link = &job->checkpoints;
    while (*link != NULL) {
        struct core_checkpoint *checkpoint = *link;
        if (checkpoint->request > request) {
            link = &checkpoint->next;
            continue;
        }
        if (error != NULL) {
            dp_core_reply_error(core, checkpoint->reply, DP_IO, "%s", error);
        } else {
            dp_core_reply_checkpoint(core, checkpoint->reply, job, step, path);
        }
        *link = checkpoint->next;
        free(checkpoint);
    }
}

void dp_core_job_checkpoint_done(struct dp_core *core, struct core_job *job, uint64_t request,
                                 uint64_t step, const char *path)
{
    job->stop_saved = job->stop_wrote = job->row.state == DP_STATE_STOPPING;
    if (strcmp(job->row.checkpoint, path) != 0) {
        DP_COPY_TEXT(job->row.checkpoint, path);
        job->row.checkpoint_step = step;
        // Others were taken meanwhile.
        int64_t steps = job->row.step > step ? (int64_t)(job->row.step - step) + 1 : 1;
        job->write_ns = steps * dp_core_recent_step_ns(job, CORE_NOW_STEPS);
        dp_core_job_changed(job);
        dp_core_note(core, job, NULL, false, "job.checkpoint", "step %llu in %s",
                     (unsigned long long)step, path);
    }
    answer_checkpoints(core, job, request, step, path, NULL);
    dp_core_job_advance(core, job);
}

void dp_core_job_checkpoint_failed(struct dp_core *core, struct core_job *job, uint64_t request,
                                   uint64_t step, const char *why)
{
    dp_core_note(core, job, NULL, true, "job.checkpoint_failed", "step %llu: %s; %s%s",
                 (unsigned long long)step, why,
                 job->row.checkpoint[0] != '\0' ? "what stands is " : "no checkpoint stands",
                 job->row.checkpoint);
    answer_checkpoints(core, job, request, step, NULL, why);
    job->stop_saved = job->row.state == DP_STATE_STOPPING;
    dp_core_job_advance(core, job);
}
