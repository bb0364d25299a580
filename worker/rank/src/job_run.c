#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/log.h"
#include "job.h"
#include "job_times.h"

#define PAUSE_SAVES_NS (5 * DP_NS_PER_S) // and as much again, and more, where ranks hold

static bool speaks_for_all(const struct job *job)
{
    return job->rank == 0;
}

// Rank 0's orders are what counts: all ranks then see the same wish at the same step, although the
// orders reach them at different moments.
static struct dp_trainer_wish wish_of(const struct job *job, struct control_wish *ret_control)
{
    control_peek_wish(job->control, ret_control);
    if (!speaks_for_all(job)) {
        return (struct dp_trainer_wish){0};
    }
    return (struct dp_trainer_wish){.stop = ret_control->stop,
                                    .checkpoint = ret_control->checkpoint,
                                    .pause = ret_control->pause,
                                    .probe = ret_control->probe,
                                    .rebalance = ret_control->rebalance};
}

static uint64_t sum_of(const int64_t *values, int32_t count)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < count; i++) {
        sum += values[i];
    }
    return (uint64_t)sum;
}

// The layer whose fullest expert is furthest above the mean.
static void take_skew(const struct dp_expert_load *load, Dp__V1__StepDone *done)
{
    int32_t fullest = 0;
    for (int32_t e = 1; e < load->experts; e++) {
        fullest = load->tokens[e] > load->tokens[fullest] ? e : fullest;
    }
    double sum = (double)sum_of(load->tokens, load->experts);
    double skew = sum > 0 ? (double)load->tokens[fullest] * load->experts / sum : 0;
    if (skew > done->expert_skew) {
        done->expert_skew = skew;
        done->skew_layer = (uint32_t)load->layer;
        done->skew_expert = (uint32_t)fullest;
    }
}

// What a step's report says of the layers with experts; owns what it points to.
struct load_report {
    uint64_t *tokens; // of this rank's slots, one layer after the other
    size_t tokens_count;
    Dp__V1__LayerLoad *layers; // that the rank stands for
    Dp__V1__LayerLoad **list;
    size_t count;
};

static void load_report_deinit(struct load_report *report)
{
    for (size_t i = 0; i < report->count; i++) {
        free(report->layers[i].chosen);
        free(report->layers[i].slot_experts);
    }
    free(report->tokens);
    free(report->layers);
    free(report->list);
}

static void add_layer(const struct dp_expert_load *load, struct load_report *report)
{
    Dp__V1__LayerLoad *layer = &report->layers[report->count];
    report->list[report->count++] = layer;
    dp__v1__layer_load__init(layer);
    layer->layer = (uint32_t)load->layer;
    layer->ep_ranks = (uint32_t)load->group_ranks;
    layer->n_chosen = (size_t)load->experts;
    layer->chosen = dp_new_array(uint64_t, layer->n_chosen);
    for (size_t e = 0; e < layer->n_chosen; e++) {
        layer->chosen[e] = (uint64_t)load->tokens[e];
    }
    layer->n_slot_experts = (size_t)load->slots;
    layer->slot_experts = dp_new_array(uint32_t, layer->n_slot_experts);
    for (size_t s = 0; s < layer->n_slot_experts; s++) {
        layer->slot_experts[s] = (uint32_t)load->placed[s];
    }
}

static void report_loads(const struct job *job, struct load_report *report, Dp__V1__StepDone *done)
{
    const struct dp_optim *optim = dp_trainer_optim(job->trainer);
    int32_t count = optim == NULL ? 0 : dp_optim_load_count(optim);
    report->layers = dp_new_array(Dp__V1__LayerLoad, (size_t)count);
    report->list = dp_new_array(Dp__V1__LayerLoad *, (size_t)count);
    double own = 0, mean = 0;
    for (int32_t i = 0; i < count; i++) {
        struct dp_expert_load load;
        dp_optim_load_at(optim, i, &load);
        take_skew(&load, done);
        own += (double)sum_of(load.own, load.count);
        mean += (double)load.group / load.group_ranks;
        report->tokens =
            dp_realloc(report->tokens, report->tokens_count + (size_t)load.count, sizeof(uint64_t));
        for (int32_t e = 0; e < load.count; e++) {
            report->tokens[report->tokens_count++] = (uint64_t)load.own[e];
        }
        if (load.reports) {
            add_layer(&load, report);
        }
    }
    done->rank_load = mean > 0 ? own / mean : 0;
}

// What there was of each kind.
static size_t list_comm(const struct dp_trainer_report *step, Dp__V1__StepComm *ret_comm,
                        Dp__V1__StepComm **ret_list)
{
    size_t count = 0;
    for (int i = 0; i < DP_EXEC_COMM_KIND_COUNT; i++) {
        const struct dp_exec_comm *from = &step->comm[i];
        if (from->count > 0) {
            Dp__V1__StepComm *to = &ret_comm[count];
            dp__v1__step_comm__init(to);
            to->kind = (char *)dp_exec_comm_kind_text((dp_exec_comm_kind)i);
            to->count = (uint64_t)from->count;
            to->total_ns = from->total_ns;
            to->exposed_ns = from->exposed_ns;
            ret_list[count++] = to;
        }
    }
    return count;
}

static void tell_rebalance(const struct dp_trainer_report *step, Dp__V1__Rebalance *ret_rebalance)
{
    const struct dp_rebalance_report *from = &step->rebalance;
    dp__v1__rebalance__init(ret_rebalance);
    // What did not move is advice.
    ret_rebalance->applied = from->applied;
    ret_rebalance->layers = (uint32_t)from->layers;
    ret_rebalance->moved_layers = (uint32_t)from->moved_layers;
    ret_rebalance->moved = (uint64_t)from->moved;
    ret_rebalance->bytes = (uint64_t)from->bytes;
    ret_rebalance->skew_before = from->skew_before;
    ret_rebalance->skew_after = from->skew_after;
    dp_log_info("rank.experts",
                "step=%lld applied=%d slots=%lld layers=%d bytes=%lld skew=%.3f->%.3f",
                (long long)step->step, ret_rebalance->applied, (long long)from->moved,
                from->moved_layers, (long long)from->bytes, from->skew_before, from->skew_after);
}

static Dp__V1__MemoryParts memory_parts(const struct dp_device_memory *from)
{
    Dp__V1__MemoryParts parts = DP__V1__MEMORY_PARTS__INIT;
    parts.weights = (double)from->at_peak[DP_MEMORY_WEIGHTS];
    parts.gradients = (double)from->at_peak[DP_MEMORY_GRADIENTS];
    parts.optimizer = (double)from->at_peak[DP_MEMORY_MOMENTS];
    parts.activations = (double)from->at_peak[DP_MEMORY_ACTIVATIONS];
    parts.exchange = (double)(from->at_peak[DP_MEMORY_SCRATCH] + from->at_peak[DP_MEMORY_WINDOWS]);
    return parts;
}

// The lowest one, which the rank's mirror has, too.
static uint32_t first_stage(const struct job *job)
{
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t position = (int32_t)job->rank % job->plan.pipeline;
    int32_t count = dp_schedule_rank_stages(&job->schedule, position, stages);
    int32_t first = stages[0];
    for (int32_t i = 1; i < count; i++) {
        first = stages[i] < first ? stages[i] : first;
    }
    return (uint32_t)first;
}

static void report_step(struct job *job, const struct dp_trainer_report *step)
{
    Dp__V1__StepDone done = DP__V1__STEP_DONE__INIT;
    done.step = (uint64_t)step->step;
    done.step_ns = step->step_ns;
    if (step->has_loss) {
        done.loss_known_case = DP__V1__STEP_DONE__LOSS_KNOWN_LOSS;
        done.loss = step->loss;
    }
    done.grad_norm = step->grad_norm;
    done.lr = step->lr;
    done.start_ns = step->start_ns;
    done.tokens = step->tokens;
    done.busy_ns = step->busy_ns;
    done.bubble_ns = step->bubble_ns;
    done.exchange_ns = step->exchange_ns;
    done.grad_sync_ns = step->grad_sync_ns;
    done.optimizer_ns = step->optimizer_ns;
    Dp__V1__StepComm comm[DP_EXEC_COMM_KIND_COUNT];
    Dp__V1__StepComm *comm_list[DP_EXEC_COMM_KIND_COUNT];
    done.comm = comm_list;
    done.n_comm = list_comm(step, comm, comm_list);
    Dp__V1__MemoryParts memory = memory_parts(&step->memory);
    done.memory = step->memory.peak > 0 ? &memory : NULL;
    done.peak_chunks = step->peak_chunks;
    done.peak_bytes = step->peak_bytes;
    bool last = step->step == job->spec.train.steps || step->agreed.stop;
    bool traced = last || step->step % job->trace_every == 0;
    if (traced && speaks_for_all(job)) {
        dp_log_info("rank.step", "step=%lld loss=%.6g grad_norm=%.6g step_ms=%.3f",
                    (long long)step->step, step->has_loss ? step->loss : 0.0, step->grad_norm,
                    (double)step->step_ns / 1e6);
    }
    Dp__V1__Rebalance rebalance;
    if (step->has_rebalanced && speaks_for_all(job)) {
        tell_rebalance(step, &rebalance);
        done.rebalance = &rebalance;
    }
    DP_CLEANUP(load_report_deinit) struct load_report loads = {0};
    report_loads(job, &loads, &done);
    done.expert_tokens = loads.tokens;
    done.n_expert_tokens = traced ? loads.tokens_count : 0;
    done.layers = loads.list;
    done.n_layers = traced ? loads.count : 0;
    DP_CLEANUP(job_times_deinit) struct job_times times = {0};
    job_times_tell(step, first_stage(job), &times, &done);
    control_report_step(job->control, &done, traced);
}

static void report_saved(struct job *job, const struct dp_trainer_saved *saved)
{
    if (saved->step == 0 || !speaks_for_all(job)) {
        return;
    }
    Dp__V1__CheckpointDone done = DP__V1__CHECKPOINT_DONE__INIT;
    done.step = (uint64_t)saved->step;
    done.path = (char *)saved->path;
    done.request = job->save_request;
    done.bytes = saved->bytes;
    done.error = (char *)saved->why;
    if (saved->status == DP_OK) {
        dp_log_info("rank.checkpoint", "step=%lld bytes=%llu", (long long)saved->step,
                    (unsigned long long)saved->bytes);
    } else {
        dp_log_warn("rank.checkpoint", "step=%lld error=\"%s\"", (long long)saved->step,
                    saved->why);
    }
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    report.report_case = DP__V1__RANK_REPORT__REPORT_CHECKPOINT;
    report.checkpoint = &done;
    control_report(job->control, DP_LINK_SLOT_CHECKPOINT, &report);
}

static dp_status save(struct job *job, uint64_t request, struct dp_error *err)
{
    struct dp_trainer_saved earlier = {0};
    dp_status status = dp_trainer_checkpoint_begin(job->trainer, job->directory, &earlier, err);
    if (status == DP_OK) {
        report_saved(job, &earlier);
        job->save_request = request;
    }
    return status;
}

// Waits for the checkpoint that is under way. The last of a run is what it was for; of one that
// others go on with it is not, and they do not wait for a slow disk.
static dp_status finish_saving(struct job *job, bool is_last, struct dp_error *err)
{
    struct dp_trainer_saved saved = {0};
    const int64_t deadline_ns = is_last ? INT64_MAX : dp_clock_monotonic_ns() + PAUSE_SAVES_NS;
    dp_status status = dp_trainer_checkpoint_finish(job->trainer, deadline_ns, &saved, err);
    if (status != DP_OK) {
        return status;
    }
    report_saved(job, &saved);
    // A disk that is out of reach is no lost peer.
    return saved.status == DP_OK || !is_last ? DP_OK : dp_fail(err, DP_IO, "%s", saved.why);
}

static dp_status evaluate(struct job *job, struct dp_error *err)
{
    double loss = 0;
    uint64_t tokens = 0;
    dp_status status = dp_trainer_evaluate(job->trainer, &loss, &tokens, err);
    if (status != DP_OK || tokens == 0 || !speaks_for_all(job)) {
        return status;
    }
    job->holdout_loss = loss;
    job->holdout_known = true;
    Dp__V1__EvalDone done = DP__V1__EVAL_DONE__INIT;
    done.step = (uint64_t)dp_trainer_step_done(job->trainer);
    done.loss = loss;
    done.tokens = tokens;
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    report.report_case = DP__V1__RANK_REPORT__REPORT_EVAL;
    report.eval = &done;
    control_report(job->control, DP_LINK_SLOT_EVALUATION, &report);
    return DP_OK;
}

// What a step ended with.
struct outcome {
    bool stops, pauses, saved;
};

static dp_status run_step(struct job *job, struct outcome *ret_outcome, struct dp_error *err)
{
    struct control_wish ordered;
    struct dp_trainer_wish wish = wish_of(job, &ordered);
    struct dp_trainer_report report;
    dp_status status = dp_trainer_step(job->trainer, &wish, &report, err);
    if (status != DP_OK) {
        return status;
    }
    report_step(job, &report);
    control_take_rebalance(job->control, report.agreed.rebalance);
    report_saved(job, &report.saved);
    int64_t every = job->spec.checkpoint.every_steps;
    int64_t evaluate_every = job->spec.train.evaluate_every;
    bool is_last = report.step == job->spec.train.steps;
    if (evaluate_every > 0 && report.step % evaluate_every == 0 && !is_last) {
        status = evaluate(job, err);
        if (status != DP_OK) {
            return status;
        }
    }
    *ret_outcome = (struct outcome){
        .stops = report.agreed.stop,
        .pauses = report.agreed.pause && !report.agreed.stop && !is_last,
        .saved = report.agreed.checkpoint || (every > 0 && report.step % every == 0)};
    if (report.agreed.probe > 0) {
        control_take_probe(job->control, report.agreed.probe);
        // One that comes too late has nobody left to compare.
        bool goes_on = !ret_outcome->stops && !ret_outcome->pauses && !is_last;
        status = goes_on ? job_probe(job, report.agreed.probe, report.step, err) : DP_OK;
    }
    if (status != DP_OK || !ret_outcome->saved) {
        return status;
    }
    status = save(job, ordered.request, err);
    if (report.agreed.checkpoint) {
        control_take_checkpoint(job->control, ordered.request);
    }
    return status;
}

static dp_status train(struct job *job, struct outcome *ret_outcome, struct dp_error *err)
{
    control_set_meter(job->control, job->meter, job->plan.pipeline);
    struct outcome outcome = {0};
    while (!outcome.stops && !outcome.pauses &&
           dp_trainer_step_done(job->trainer) < job->spec.train.steps) {
        dp_status status = run_step(job, &outcome, err);
        if (status != DP_OK) {
            return status;
        }
    }
    *ret_outcome = outcome;
    if (outcome.stops || outcome.pauses) {
        return finish_saving(job, outcome.stops, err);
    }
    dp_status status = outcome.saved ? DP_OK : save(job, 0, err);
    if (status == DP_OK) {
        status = evaluate(job, err);
    }
    return status == DP_OK ? finish_saving(job, true, err) : status;
}

dp_status job_run(struct job *job, struct dp_error *err)
{
    struct outcome outcome = {0};
    dp_status status = train(job, &outcome, err);
    if (status != DP_OK && job->alltoall != NULL) {
        dp_alltoall_abort(job->alltoall, status, err->message);
    }
    if (status == DP_OK && outcome.pauses) {
        return job_hold(job, "", err);
    }
    if (status != DP_OK && job_may_hold(job, status)) {
        job->has_lost_peer = true;
        struct dp_error why = *err;
        return job_hold(job, why.message, err);
    }
    return status;
}

// What another machine may do better: it has no room in memory, no such transport, no port. Files
// are those that the job names, as often as not on a disk that all machines share.
static bool is_nodes_fault(const struct job *job, dp_status status)
{
    return status == DP_UNSCHEDULABLE || job->lacks_transport;
}

void job_report_finished(struct job *job, dp_status status, const struct dp_error *err)
{
    Dp__V1__RankFinished finished = DP__V1__RANK_FINISHED__INIT;
    finished.ok = status == DP_OK;
    finished.holdout_loss = job->holdout_loss;
    finished.holdout_known = job->holdout_known;
    if (job->trainer != NULL) {
        finished.step = (uint64_t)dp_trainer_step_done(job->trainer);
    }
    if (status != DP_OK) {
        finished.error = (char *)err->message;
        finished.peer_lost = status == DP_UNAVAILABLE || status == DP_TIMEOUT;
        finished.node_fault = !finished.peer_lost && is_nodes_fault(job, status);
    }
    if (status != DP_OK && job->trainer != NULL) {
        const struct dp_exec_failure *failure = dp_trainer_failure(job->trainer);
        finished.action = (char *)failure->action;
        finished.not_finite = failure->not_finite;
    }
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    report.report_case = DP__V1__RANK_REPORT__REPORT_FINISHED;
    report.finished = &finished;
    control_report(job->control, DP_LINK_SLOT_FINISHED, &report);
}
