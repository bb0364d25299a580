// What becomes of a job whose attempt is over: it ends, or begins again from its newest checkpoint.
#include "core_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/clock.h"
#include "dp/rand.h"

#define DOUBLINGS_MAX 20

// Whose fault the end of an attempt is.
typedef enum fault {
    FAULT_FINAL, // another attempt would end the same way
    FAULT_OWN,   // the job's: it has [retry] max of them
    FAULT_OTHER, // of nodes, links, or people
} fault;

static fault fault_of(const struct core_job *job)
{
    static const struct {
        const char *reason;
        fault fault;
    } faults[] = {
        {"NotFinite", FAULT_FINAL},      {"DataDiffers", FAULT_FINAL},
        {"PrepareFailed", FAULT_OTHER},  {"RankFailed", FAULT_OWN},
        {"RankDied", FAULT_OWN},         {"PeerLost", FAULT_OTHER},
        {"NodeLost", FAULT_OTHER},       {"NodeFailed", FAULT_OTHER},
        {"KeeperLost", FAULT_OTHER},     {"AssignmentLost", FAULT_OTHER},
        {"ReassignFailed", FAULT_OTHER}, {"PrepareTimeout", FAULT_OTHER},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(faults); i++) {
        if (strcmp(job->row.reason, faults[i].reason) == 0) {
            // What a rank says before it has trained is about its input.
            bool said = strcmp(job->row.reason, "RankFailed") == 0 && job->row.started_ns == 0;
            return said ? FAULT_FINAL : faults[i].fault;
        }
    }
    return FAULT_FINAL;
}

// Attempts in a row, with this one, that failed without a newer checkpoint.
static uint32_t stalled_with_this(const struct core_job *job)
{
    return job->row.checkpoint_step > job->row.resumed_step ? 0 : job->row.stalled + 1;
}

static bool is_stalled(const struct core_job *job)
{
    return job->row.no_progress_max > 0 && stalled_with_this(job) >= job->row.no_progress_max;
}

bool dp_core_job_goes_on(const struct core_job *job)
{
    if (job->row.state != DP_STATE_STOPPING) {
        return false;
    }
    if (job->row.outcome != DP_STATE_FAILED) {
        return job->row.outcome == DP_STATE_QUEUED;
    }
    fault whose = fault_of(job);
    return job->row.recovery != DP_JOB_RECOVERY_OFF && whose != FAULT_FINAL && !is_stalled(job) &&
           (whose != FAULT_OWN || job->row.faults < job->row.retry_max);
}

void dp_core_job_explain_end(struct core_job *job)
{
    if (job->row.outcome != DP_STATE_FAILED || job->row.recovery == DP_JOB_RECOVERY_OFF) {
        return;
    }
    char before[DP_TEXT_MAX];
    DP_COPY_TEXT(before, job->row.message);
    fault whose = fault_of(job);
    uint32_t stalled = stalled_with_this(job), last = job->row.attempt;
    if (whose == FAULT_OWN && job->row.faults >= job->row.retry_max && job->row.faults > 0) {
        snprintf(job->row.message, sizeof(job->row.message),
                 "%.*s; it was fault %u, and [retry] max = %u", DP_TEXT_MAX / 2, before,
                 job->row.faults + 1, job->row.retry_max);
    } else if (whose != FAULT_FINAL && is_stalled(job) && stalled > 1) {
        char reason[DP_NAME_MAX];
        DP_COPY_TEXT(reason, job->row.reason);
        DP_COPY_TEXT(job->row.reason, "NoProgress");
        snprintf(job->row.message, sizeof(job->row.message),
                 "attempts %u to %u ended without a checkpoint newer than that of step %llu; the "
                 "last one by %s: %.*s",
                 last + 1 - stalled, last, (unsigned long long)job->row.checkpoint_step, reason,
                 DP_TEXT_MAX / 2, before);
    }
}

// Doubles with each attempt that brought nothing; jobs that fell together do not rise together.
static int64_t backoff_ns(const struct dp_core *core, const struct core_job *job)
{
    uint32_t doublings = job->row.stalled > 1 ? job->row.stalled - 1 : 0;
    doublings = doublings < DOUBLINGS_MAX ? doublings : DOUBLINGS_MAX;
    int64_t base_ms = (int64_t)job->row.retry_backoff_s * 1000;
    int64_t most_ms = core->config.backoff_max_ms;
    most_ms = most_ms > base_ms ? most_ms : base_ms;
    int64_t wait_ms = base_ms << doublings;
    wait_ms = wait_ms < most_ms ? wait_ms : most_ms;
    uint64_t drawn = dp_hash64(&job->row.number, sizeof(job->row.number), job->row.attempt);
    // Up to a quarter more or less.
    return wait_ms * DP_NS_PER_MS / 4 * 3 + (int64_t)(drawn % 1000) * wait_ms * 500;
}

// That an attempt is over is kept, whatever the job does then.
void dp_core_job_archive(struct dp_core *core, struct core_job *job)
{
    struct core_past *past = dp_new(struct core_past);
    past->row = (struct dp_attempt_record){
        .job = job->row.number,
        .attempt = job->row.attempt,
        .started_ns = job->row.started_ns,
        .ended_ns = core->wall_ns,
        .first_step = job->row.resumed_step,
        .last_step = job->row.step,
        .checkpoint_step = job->row.checkpoint_step,
    };
    DP_COPY_TEXT(past->row.reason, job->row.reason);
    DP_COPY_TEXT(past->row.message, job->row.message);
    past->next = job->pasts;
    job->pasts = past;
}

void dp_core_pasts_store(struct dp_core *core, struct core_job *job)
{
    for (struct core_past *past = job->pasts; past != NULL; past = past->next) {
        dp_core_store(core, DP_RECORD_ATTEMPT, &past->row);
        past->token = dp_core_token(core);
    }
}

void dp_core_pasts_stored(struct core_job *job, uint64_t stored)
{
    struct core_past **link = &job->pasts;
    while (*link != NULL) {
        struct core_past *past = *link;
        if (past->token > stored || (past->token == 0 && stored != UINT64_MAX)) {
            link = &past->next;
            continue;
        }
        *link = past->next;
        free(past);
    }
}

// Steps are counted anew, and ranks lie elsewhere.
static void forget_changes(struct core_reassign *reassign)
{
    reassign->recoveries = 0;
    reassign->recovered_step = 0;
    reassign->recent_first = 0;
    reassign->again_step = 0;
    reassign->cool_doublings = 0;
    reassign->paused_ns = 0;
    reassign->tries = 0;
    memset(reassign->recent_ns, 0, sizeof(reassign->recent_ns));
}

// Nothing of the attempt is left but its number and its checkpoint.
static void clear_attempt(struct core_job *job)
{
    struct dp_job_record *row = &job->row;
    // What may still run on a silent node keeps its slots until it is over.
    dp_core_job_retire(job);
    forget_changes(&job->reassign);
    free(job->window.rows);
    job->window.rows = NULL;
    dp_buf_clear(&row->plan);
    row->ranks_count = 0;
    // Beyond those that were begun after a database which was put back had been written.
    row->attempt = (row->attempt > job->attempt_seen ? row->attempt : job->attempt_seen) + 1;
    row->epoch = row->epoch_used = 0;
    row->source_epoch = 0;
    row->source_step = 0;
    dp_buf_clear(&row->sources);
    row->cause_weight = DP_CAUSE_NONE;
    row->outcome = DP_STATE_UNKNOWN;
    row->started_ns = 0;
    row->step = row->checkpoint[0] == '\0' ? 0 : row->checkpoint_step;
    row->resumed_step = row->step;
    row->loss_known = false; // of a step that is to be taken again
    job->why[0] = '\0';
    job->stop_ns = job->save_ns = job->passed_ns = 0;
    job->way_for = 0;
    job->gives_back = false;
    job->stop_checkpoint = job->stop_saved = job->stop_wrote = job->offer_all = false;
    job->settle_ns = job->done_ns = job->words_ns = 0;
    job->words_heard = false;
    job->corpus_hash = 0;
}

// From its newest checkpoint, or the beginning.
static void describe_rest(const struct core_job *job, char *text, size_t size)
{
    const char *missed = job->stop_checkpoint && !job->stop_wrote
                             ? "the checkpoint that it was to write is not known to stand: "
                             : "";
    if (job->row.checkpoint[0] == '\0') {
        snprintf(text, size, "%s%s", missed,
                 missed[0] == '\0' ? "there is no checkpoint: it begins anew" : "it begins anew");
    } else {
        snprintf(text, size, "%sit goes on from step %llu", missed,
                 (unsigned long long)job->row.checkpoint_step);
    }
}

void dp_core_job_begin_again(struct dp_core *core, struct core_job *job)
{
    struct dp_job_record *row = &job->row;
    bool failed = row->outcome == DP_STATE_FAILED;
    char reason[DP_NAME_MAX], why[DP_TEXT_MAX], rest[128];
    DP_COPY_TEXT(reason, row->reason);
    DP_COPY_TEXT(why, job->why[0] == '\0' ? row->message : job->why);
    dp_core_job_archive(core, job);
    if (failed) {
        row->faults += fault_of(job) == FAULT_OWN;
        row->stalled = stalled_with_this(job);
    } else {
        row->preemptions += strcmp(reason, "Preempted") == 0;
    }
    describe_rest(job, rest, sizeof(rest));
    if (!dp_core_restart_awaited(job)) {
        dp_core_decision_set(job, DP_DECISION_FELL_BACK,
                             "attempt %u ended before enough steps were measured", row->attempt);
    }
    clear_attempt(job);
    row->queued_ns = core->wall_ns;
    int64_t wait_ns = failed ? backoff_ns(core, job) : 0;
    row->retry_at_ns = wait_ns == 0 ? 0 : core->wall_ns + wait_ns;
    job->backoff_ns = wait_ns == 0 ? 0 : core->now_ns + wait_ns;
    job->ranks_changed = true;
    dp_core_job_move(core, job, DP_STATE_QUEUED, reason, "attempt %u ended: %.*s; %s",
                     row->attempt - 1, DP_TEXT_MAX / 2, why, rest);
}

// One that was told to end did so before its last step, as a rule.
static bool has_done_its_work(const struct core_job *job, const struct dp_rank_record *rank)
{
    return rank->phase == DP_RANK_FINISHED && rank->ok &&
           (!rank->stopped || rank->final_step >= job->row.steps_total);
}

// Whether the attempt can take no step any more: every rank of it has surely ended, or one has, and
// had not done its work; the others lack it in the next sum of gradients.
bool dp_core_attempt_dead(const struct core_job *job)
{
    bool broken = false, over = true;
    for (size_t i = 0; i < job->ranks_count; i++) {
        const struct dp_rank_record *rank = &job->ranks[i];
        bool ended = dp_rank_record_over(rank);
        over = over && ended;
        broken = broken || (ended && !has_done_its_work(job, rank));
    }
    return over || broken;
}

void dp_core_job_make_way(struct dp_core *core, struct core_job *job, const char *reason,
                          const char *why)
{
    if (dp_core_job_complete(core, job)) {
        return;
    }
    bool trains = job->row.state == DP_STATE_RUNNING || job->row.state == DP_STATE_REASSIGNING;
    // The sim device has nothing to save.
    job->stop_checkpoint = trains && strcmp(job->row.device, "sim") != 0;
    dp_core_job_stop(core, job, DP_STATE_QUEUED);
    DP_COPY_TEXT(job->row.reason, reason);
    DP_COPY_TEXT(job->row.message, why);
    job->stop_ns = core->now_ns;
    if (job->stop_checkpoint) {
        job->deadline_ns += core->config.preempt_ms * DP_NS_PER_MS;
    }
    dp_core_note(core, job, NULL, false, "job.makes_way", "%s: %s", reason, why);
    dp_core_job_advance(core, job);
}

// After a start of the controller: what is left of the wait.
void dp_core_job_resume_wait(struct dp_core *core, struct core_job *job)
{
    int64_t left_ns = job->row.retry_at_ns - core->wall_ns;
    int64_t most_ns = backoff_ns(core, job); // clocks of the wall jump
    if (job->row.retry_at_ns != 0 && left_ns > 0) {
        job->backoff_ns = core->now_ns + (left_ns < most_ns ? left_ns : most_ns);
    }
}
