// What ranks report: steps, utilisation, evaluations, checkpoints, last words.
#include "core_internal.h"

#include <math.h>
#include <string.h>

#include "dp/alloc.h"

// A number that is none would keep the row from being stored.
static double finite_or_zero(double value)
{
    return isfinite(value) ? value : 0;
}

// Ranks that read different texts would train on both and fail, if at all, without a cause.
static void compare_corpus(struct dp_core *core, struct core_job *job,
                           const struct dp_rank_record *rank, const struct dp_rank_ready *ready)
{
    if (ready->corpus_bytes == 0) {
        return;
    }
    if (job->row.corpus_bytes == 0) {
        job->row.corpus_bytes = ready->corpus_bytes;
        job->row.corpus_tokens = ready->corpus_tokens;
        job->row.unigram_entropy = finite_or_zero(ready->unigram_entropy);
    }
    if (job->corpus_hash == 0) {
        job->corpus_hash = ready->corpus_hash;
        job->corpus_rank = rank->rank;
        return;
    }
    if (ready->corpus_hash != job->corpus_hash || ready->corpus_bytes != job->row.corpus_bytes) {
        const struct dp_rank_record *first = &job->ranks[job->corpus_rank];
        dp_core_job_blame(
            core, job, DP_CAUSE_NODE, "DataDiffers",
            "rank %u on %s and rank %u on %s read different texts (%llu bytes with "
            "hash %016llx, %llu bytes with hash %016llx); give every node the same "
            "file under [data] path",
            first->rank, first->node, rank->rank, rank->node,
            (unsigned long long)job->row.corpus_bytes, (unsigned long long)job->corpus_hash,
            (unsigned long long)ready->corpus_bytes, (unsigned long long)ready->corpus_hash);
    }
}

void dp_core_rank_ready(struct dp_core *core, struct core_job *job, struct dp_rank_record *rank,
                        const struct dp_rank_ready *ready)
{
    DP_COPY_TEXT(rank->address, ready->address);
    rank->parameters = ready->parameters;
    compare_corpus(core, job, rank, ready);
    // Steps of a resumed job count from where the checkpoint was made.
    if (rank->step < ready->resumed_step) {
        rank->step = ready->resumed_step;
    }
    if (job->row.step < ready->resumed_step) {
        job->row.step = ready->resumed_step;
    }
    if (job->row.resumed_step < ready->resumed_step) {
        job->row.resumed_step = ready->resumed_step;
        dp_core_job_changed(job);
    }
}

static void take_holdout(struct core_job *job, double loss)
{
    if (isfinite(loss) && (!job->row.holdout_known || job->row.holdout_loss != loss)) {
        job->row.holdout_loss = loss;
        job->row.holdout_known = true;
        dp_core_job_changed(job);
    }
}

void dp_core_rank_finished(struct dp_core *core, struct core_job *job, struct dp_rank_record *rank,
                           const struct dp_rank_finished *finished)
{
    rank->finished = true;
    rank->ok = finished->ok;
    rank->final_step = finished->step;
    rank->not_finite = finished->not_finite;
    rank->peer_lost = finished->peer_lost;
    rank->node_fault = finished->node_fault;
    if (finished->holdout_known) {
        take_holdout(job, finished->holdout_loss);
    }
    DP_COPY_TEXT(rank->action, finished->action);
    DP_COPY_TEXT(rank->error, finished->error);
    if (!finished->ok || rank->stopped || rank->phase == DP_RANK_DIED) {
        dp_core_blame_rank(core, job, rank);
    }
}

static void flush_step(struct dp_core *core, struct core_job *job)
{
    uint64_t step = job->row.step + 1;
    struct dp_step_record *row = &job->window.rows[step % DP_CORE_STEP_WINDOW];
    job->row.step = step;
    if (row->step != step) {
        return;
    }
    const struct dp_step_record *kept = dp_core_keep(core, row, sizeof(*row));
    dp_core_store(core, DP_RECORD_STEP, kept);
    job->row.step_ns = row->step_ns;
    dp_core_decision_step(core, job, step, row->step_ns);
    if (row->loss_known) {
        job->row.loss = row->loss;
        job->row.loss_known = true;
    }
    if (job->row.first_step_ns == 0) {
        job->row.first_step_ns = row->time_ns;
        dp_core_job_changed(job);
    }
    struct dp_effect *effect = dp_core_effect(core, DP_EFFECT_STEP);
    effect->job = job->row.number;
    effect->step = *row;
    *row = (struct dp_step_record){0};
}

void dp_core_flush_steps(struct dp_core *core, struct core_job *job, uint64_t step)
{
    while (job->window.rows != NULL && job->row.step < step) {
        flush_step(core, job);
    }
    job->row.step = job->row.step < step ? step : job->row.step;
}

// No more than the job's step when some rank has not gone beyond that.
static uint64_t slowest_step(struct core_job *job)
{
    for (size_t i = 0; i < job->ranks_count; i++) {
        size_t at = (job->lacks_step + i) % job->ranks_count;
        if (job->ranks[at].step <= job->row.step) {
            job->lacks_step = at;
            return job->ranks[at].step;
        }
    }
    uint64_t slowest = UINT64_MAX;
    for (size_t i = 0; i < job->ranks_count; i++) {
        slowest = job->ranks[i].step < slowest ? job->ranks[i].step : slowest;
    }
    return slowest;
}

static void merge_step(struct dp_step_record *into, const struct dp_step_record *from)
{
    double lr = finite_or_zero(from->lr), grad_norm = finite_or_zero(from->grad_norm);
    if (from->loss_known && isfinite(from->loss) && !into->loss_known) {
        into->loss = from->loss;
        into->loss_known = true;
    }
    into->step_ns = from->step_ns > into->step_ns ? from->step_ns : into->step_ns;
    into->tokens = from->tokens > into->tokens ? from->tokens : into->tokens;
    into->time_ns = from->time_ns > into->time_ns ? from->time_ns : into->time_ns;
    into->lr = lr > into->lr ? lr : into->lr;
    into->grad_norm = grad_norm > into->grad_norm ? grad_norm : into->grad_norm;
}

static void keep_trace(struct dp_core *core, const struct core_job *job,
                       const struct dp_rank_record *rank, const struct dp_step_report *report)
{
    struct dp_trace_record *trace =
        dp_core_keep(core, &(struct dp_trace_record){0}, sizeof(*trace));
    trace->job = job->row.number;
    trace->step = report->row.step;
    trace->rank = rank->rank;
    trace->spans.bytes = dp_core_keep(core, report->trace, report->trace_length);
    trace->spans.length = report->trace_length;
    dp_core_store(core, DP_RECORD_TRACE, trace);
}

static void note_rebalance(struct dp_core *core, const struct core_job *job, uint64_t step,
                           const struct dp_placement_report *report)
{
    double before = finite_or_zero(report->skew_before), after = finite_or_zero(report->skew_after);
    if (!report->looked) {
        return;
    }
    if (report->moved == 0) {
        dp_core_note(core, job, NULL, false, "job.experts",
                     "step %llu: experts lie as evenly as they can: fullest rank x%.3f of the mean",
                     (unsigned long long)step, before);
        return;
    }
    dp_core_note(core, job, NULL, false, "job.experts",
                 "step %llu: %llu slots in %u of %u layers %s other experts: fullest rank x%.3f -> "
                 "x%.3f of the mean; %llu bytes moved",
                 (unsigned long long)step, (unsigned long long)report->moved, report->moved_layers,
                 report->layers, report->applied ? "got" : "should get", before, after,
                 (unsigned long long)report->bytes);
}

static void take_step(struct dp_core *core, struct core_job *job, struct dp_rank_record *rank,
                      const struct dp_step_report *report)
{
    uint64_t step = report->row.step;
    if (report->trace_length > 0) {
        keep_trace(core, job, rank, report);
    }
    if (step <= rank->step) {
        return; // an agent repeats what it kept after it connects again
    }
    rank->step = step;
    note_rebalance(core, job, step, &report->rebalance);
    dp_core_rebalance_told(job, step, &report->rebalance);
    dp_core_straggler_step(core, job, rank->rank, report);
    rank->load = report->load;
    rank->load.skew = finite_or_zero(rank->load.skew);
    rank->load.rank = finite_or_zero(rank->load.rank);
    // The first one warms up, also after a checkpoint was loaded.
    uint64_t base = job->row.resumed_step > job->base_step ? job->row.resumed_step : job->base_step;
    if (step > base + 1) {
        rank->steps_measured++;
        rank->measured_ns += report->row.step_ns;
        rank->busy_ns += report->busy_ns;
        rank->bubble_ns += report->bubble_ns;
        rank->exchange_ns += report->exchange_ns;
        rank->grad_sync_ns += report->grad_sync_ns;
        rank->optimizer_ns += report->optimizer_ns;
        for (int i = 0; i < DP_RANK_COMM_COUNT; i++) {
            rank->comm[i].total_ns += report->comm[i].total_ns;
            rank->comm[i].exposed_ns += report->comm[i].exposed_ns;
        }
    }
    rank->peak_chunks =
        report->peak_chunks > rank->peak_chunks ? report->peak_chunks : rank->peak_chunks;
    rank->peak_bytes =
        report->peak_bytes > rank->peak_bytes ? report->peak_bytes : rank->peak_bytes;
    rank->memory = report->memory;
    if (step <= job->row.step) {
        return;
    }
    if (job->window.rows == NULL) {
        job->window.rows = dp_new_array(struct dp_step_record, DP_CORE_STEP_WINDOW);
    }
    if (step - job->row.step >= UINT64_C(4) * DP_CORE_STEP_WINDOW) {
        job->row.step = step - 1; // whatever lies between was lost
    }
    while (step - job->row.step >= DP_CORE_STEP_WINDOW) {
        flush_step(core, job);
    }
    struct dp_step_record *row = &job->window.rows[step % DP_CORE_STEP_WINDOW];
    if (row->step != step) {
        *row = (struct dp_step_record){
            .step = step, .job = job->row.number, .attempt = job->row.attempt};
    }
    merge_step(row, &report->row);
    uint64_t slowest = slowest_step(job);
    while (job->row.step < slowest) {
        flush_step(core, job);
    }
}

static void take_usage(struct dp_core *core, struct core_job *job, struct dp_rank_record *rank,
                       const struct dp_usage *usage)
{
    rank->usage = *usage;
    rank->usage.tokens_per_s = finite_or_zero(usage->tokens_per_s);
    dp_usage_add(&rank->total, &rank->usage);
    rank->updated_ns = core->wall_ns;
    job->show = true;
}

static struct dp_rank_record *rank_of(struct dp_core *core, const struct dp_report *report,
                                      struct core_job **ret_job)
{
    struct core_node *node = dp_core_node_session(core, report->session);
    struct core_job *job = dp_core_job_by_id(core, report->fence.job);
    if (node == NULL || job == NULL || dp_job_state_ended(job->row.state) ||
        report->fence.attempt != job->row.attempt || report->fence.epoch != job->row.epoch ||
        report->rank >= job->ranks_count ||
        strcmp(job->ranks[report->rank].node, node->row.name) != 0) {
        return NULL;
    }
    dp_core_node_seen(core, node);
    *ret_job = job;
    return &job->ranks[report->rank];
}

void dp_core_report(struct dp_core *core, const struct dp_report *report)
{
    struct core_job *job = NULL;
    struct dp_rank_record *rank = rank_of(core, report, &job);
    if (rank == NULL) {
        return;
    }
    switch (report->kind) {
    case DP_REPORT_READY:
        dp_core_rank_ready(core, job, rank, &report->ready);
        break;
    case DP_REPORT_USAGE:
        take_usage(core, job, rank, &report->usage);
        break;
    case DP_REPORT_STEP:
        take_step(core, job, rank, &report->step);
        dp_core_job_advance(core, job);
        break;
    case DP_REPORT_EVAL:
        take_holdout(job, report->eval.loss);
        break;
    case DP_REPORT_CHECKPOINT:
        if (report->checkpoint.error != NULL && report->checkpoint.error[0] != '\0') {
            dp_core_job_checkpoint_failed(core, job, report->checkpoint.request,
                                          report->checkpoint.step, report->checkpoint.error);
        } else {
            dp_core_job_checkpoint_done(core, job, report->checkpoint.request,
                                        report->checkpoint.step, report->checkpoint.path);
        }
        break;
    case DP_REPORT_PROBE:
        dp_core_straggler_probed(core, job, rank->rank, report->probe);
        break;
    case DP_REPORT_FINISHED:
        if (!rank->finished) {
            dp_core_rank_finished(core, job, rank, &report->finished);
        }
        break;
    }
}
