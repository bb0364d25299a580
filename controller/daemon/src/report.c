// GetReport: what was measured beside what was predicted.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon.h"
#include "decisions.h"
#include "dp/cleanup.h"
#include "dp/planner.h"
#include "dp/spec.h"
#include "lessons.h"
#include "machines.h"

#define STEPS_MAX 2000
#define NOTES_MAX 64
#define EVENTS_MAX 1000
#define LOAD_NOTES_MAX 4
#define LOAD_SHARE 0.03 // of the planned memory, that the model is held to
#define MIB 1048576.0

static double mean_s(int64_t sum_ns, uint64_t count)
{
    return count == 0 ? 0 : (double)sum_ns / 1e9 / (double)count;
}

static void add_comm(const struct dp_rank_record *from, struct dp_arena *arena,
                     Dp__V1__RankResult *rank)
{
    rank->comm = arena_take(arena, DP_RANK_COMM_COUNT * sizeof(void *));
    for (int kind = 0; kind < DP_RANK_COMM_COUNT; kind++) {
        if (from->comm[kind].total_ns > 0) {
            Dp__V1__CommResult *comm = arena_take(arena, sizeof(*comm));
            dp__v1__comm_result__init(comm);
            comm->kind = (char *)dp_rank_comm_kind_text((dp_rank_comm_kind)kind);
            comm->total_s = mean_s(from->comm[kind].total_ns, from->steps_measured);
            comm->exposed_s = mean_s(from->comm[kind].exposed_ns, from->steps_measured);
            rank->comm[rank->n_comm++] = comm;
        }
    }
}

static void add_memory(const struct dp_rank_memory_parts *from, const Dp__V1__Plan *plan,
                       struct dp_arena *arena, Dp__V1__RankResult *rank)
{
    if (from->weights == 0) {
        return; // a rank without a device
    }
    Dp__V1__MemoryParts *memory = arena_take(arena, sizeof(*memory));
    dp__v1__memory_parts__init(memory);
    memory->weights = (double)from->weights;
    memory->gradients = (double)from->gradients;
    memory->optimizer = (double)from->optimizer;
    memory->activations = (double)from->activations;
    memory->exchange = (double)from->exchange;
    rank->measured_memory = memory;
    rank->measured_peak_bytes = memory->weights + memory->gradients + memory->optimizer +
                                memory->activations + memory->exchange;
    if (plan != NULL && rank->rank < plan->n_ranks && plan->n_positions > 0) {
        rank->predicted_memory = plan->positions[rank->rank % plan->n_positions]->memory;
        rank->predicted_peak_bytes = plan->ranks[rank->rank]->memory_bytes;
    }
}

static void add_rank(const struct dp_rank_record *from, const Dp__V1__Plan *plan,
                     struct dp_arena *arena, Dp__V1__JobReport *report)
{
    Dp__V1__RankResult *rank = arena_take(arena, sizeof(*rank));
    dp__v1__rank_result__init(rank);
    rank->rank = from->rank;
    rank->node = (char *)from->node;
    rank->measured_busy_s = mean_s(from->busy_ns, from->steps_measured);
    rank->measured_bubble_s = mean_s(from->bubble_ns, from->steps_measured);
    rank->measured_exchange_s = mean_s(from->exchange_ns, from->steps_measured);
    rank->measured_grad_sync_s = mean_s(from->grad_sync_ns, from->steps_measured);
    rank->measured_optimizer_s = mean_s(from->optimizer_ns, from->steps_measured);
    rank->measured_peak_chunks = from->peak_chunks;
    rank->measured_peak_bytes = (double)from->peak_bytes;
    rank->total = message_usage(&from->total, arena);
    add_comm(from, arena, rank);
    rank->load = message_load(&from->load, arena);
    if (plan != NULL && from->rank < plan->n_ranks) {
        const Dp__V1__RankPlan *planned = plan->ranks[from->rank];
        rank->predicted_busy_s = planned->busy_s;
        rank->predicted_bubble_s = planned->bubble_s;
        rank->predicted_peak_chunks = planned->peak_chunks;
        rank->predicted_peak_bytes = planned->peak_activation_bytes;
        rank->predicted_grad_sync_s = plan->grad_sync_s;
        rank->predicted_optimizer_s = plan->optimizer_s;
    }
    add_memory(&from->memory, plan, arena, rank);
    report->ranks[report->n_ranks++] = rank;
}

static void add_steps(const struct dp_step_record *steps, size_t count, struct dp_arena *arena,
                      Dp__V1__JobReport *report)
{
    report->steps = arena_take(arena, count * sizeof(void *));
    for (size_t i = 0; i < count; i++) {
        report->steps[report->n_steps++] = message_step(&steps[i], arena);
    }
}

static void add_note(Dp__V1__JobReport *report, char *note)
{
    if (report->n_notes < NOTES_MAX) {
        report->notes[report->n_notes++] = note;
    }
}

static void note_cores(struct daemon *daemon, const struct job_view *view, struct dp_arena *arena,
                       Dp__V1__JobReport *report)
{
    const struct machine *machines = NULL;
    size_t found = view_machines(daemon, view, arena, &machines);
    for (size_t i = 0; i < found; i++) {
        uint32_t cores = machines[i].node->cores;
        if (cores > 0 && machines[i].ranks > cores) {
            add_note(report,
                     dp_arena_printf(arena,
                                     "%u ranks share %u cores on the machine of %s, so their "
                                     "times include waiting for a core",
                                     machines[i].ranks, cores, machines[i].node->name));
        }
    }
}

static void note_causes(const struct job_view *view, struct dp_arena *arena,
                        Dp__V1__JobReport *report)
{
    const struct dp_job_record *job = view->job;
    if (strcmp(job->device, "sim") == 0) {
        // They only wait, so it does not matter how many share a core.
        add_note(report, dp_arena_printf(arena, "sim device: ranks took their planned time and "
                                                "computed nothing"));
    }
    if (!dp_job_state_ended(job->state)) {
        add_note(report,
                 dp_arena_printf(arena, "%s is still %s", job->id, dp_job_state_text(job->state)));
    }
}

// How far what came to a rank's experts explains that it held something else than planned.
static void note_load(const Dp__V1__RankResult *rank, const struct dp_rank_load *load,
                      const struct dp_job_spec *spec, const struct dp_plan *plan,
                      struct dp_arena *arena, Dp__V1__JobReport *report)
{
    double planned = rank->predicted_peak_bytes, measured = rank->measured_peak_bytes;
    struct dp_memory_parts parts;
    if (rank->predicted_memory == NULL || load->rank <= 0 ||
        fabs(measured - planned) < LOAD_SHARE * planned ||
        dp_planner_memory(spec, plan, (int32_t)rank->rank % plan->pipeline, load->rank, &parts,
                          NULL) != DP_OK) {
        return;
    }
    add_note(report,
             dp_arena_printf(arena,
                             "rank %u held %.1f MiB, planned were %.1f; with %.2f x the mean "
                             "tokens it is %.1f",
                             rank->rank, measured / MIB, planned / MIB, load->rank,
                             dp_memory_total(&parts) / MIB));
}

static void note_loads(const struct job_view *view, struct dp_arena *arena,
                       Dp__V1__JobReport *report)
{
    const struct dp_job_record *job = view->job;
    struct dp_job_spec spec;
    DP_CLEANUP(dp_plan_deinit) struct dp_plan plan = {0};
    if (report->job->plan == NULL || report->job->plan->expert <= 1 ||
        planning_parse(job->job_toml.bytes, job->job_toml.length, job->id, &spec, NULL) != DP_OK ||
        dp_wire_plan_from_proto(report->job->plan, &plan, NULL) != DP_OK) {
        return;
    }
    size_t notes = report->n_notes;
    for (size_t i = 0; i < view->ranks_count && report->n_notes < notes + LOAD_NOTES_MAX; i++) {
        note_load(report->ranks[i], &view->ranks[i].load, &spec, &plan, arena, report);
    }
}

// The model's parameters, whatever copies the layout holds.
static void add_model(const struct dp_job_record *job, Dp__V1__JobReport *report)
{
    struct dp_job_spec spec;
    if (planning_parse(job->job_toml.bytes, job->job_toml.length, job->id, &spec, NULL) == DP_OK) {
        report->parameters = (uint64_t)dp_model_parameters(&spec.model);
    }
}

// Of the slowest rank, over the same steps as the parts of each rank's step.
static double measured_step_s(const struct job_view *view, const struct dp_step_summary *summary)
{
    double slowest_s = 0;
    for (size_t i = 0; i < view->ranks_count; i++) {
        const struct dp_rank_record *rank = &view->ranks[i];
        double step_s = mean_s(rank->measured_ns, rank->steps_measured);
        slowest_s = step_s > slowest_s ? step_s : slowest_s;
    }
    return slowest_s > 0 ? slowest_s : (double)summary->mean_step_ns / 1e9;
}

static void fill(struct daemon *daemon, const struct job_view *view,
                 const struct dp_step_summary *summary, struct dp_arena *arena,
                 Dp__V1__JobReport *report)
{
    const struct dp_job_record *job = view->job;
    report->job = message_job(view, JOB_FULL, arena);
    decisions_show(daemon, job->number, report->job, arena);
    report->unigram_entropy = job->unigram_entropy;
    report->corpus_bytes = job->corpus_bytes;
    report->corpus_of_tokens = job->corpus_tokens > 0;
    report->holdout_loss = job->holdout_known ? job->holdout_loss : 0;
    report->holdout_known = job->holdout_known;
    report->tokens_per_step = job->tokens_per_step;
    report->first_loss = summary->first_loss;
    report->last_loss = summary->last_loss;
    report->first_step_seen = summary->first_loss_step;
    report->averaged_steps = summary->averaged;
    report->resumed_step = job->resumed_step;
    report->measured_step_s = measured_step_s(view, summary);
    if (report->measured_step_s > 0) {
        report->measured_tokens_per_s = (double)job->tokens_per_step / report->measured_step_s;
    }
    if (report->job->plan != NULL) {
        report->predicted_step_s = report->job->plan->step_s;
    }
    if (job->first_step_ns > 0) {
        report->submit_to_first_step_s = (double)(job->first_step_ns - job->submitted_ns) / 1e9;
    }
    report->ranks = arena_take(arena, view->ranks_count * sizeof(void *));
    for (size_t i = 0; i < view->ranks_count; i++) {
        add_rank(&view->ranks[i], report->job->plan, arena, report);
    }
    report->notes = arena_take(arena, NOTES_MAX * sizeof(char *));
    if (strcmp(job->device, "sim") != 0) {
        note_cores(daemon, view, arena, report);
    }
    note_causes(view, arena, report);
    note_loads(view, arena, report);
    add_model(job, report);
    report->lesson = lessons_message(daemon, job->number, arena);
}

// The step that the job began from; its attempts may have begun later.
static dp_status find_first(struct daemon *daemon, const struct dp_job_record *job,
                            uint64_t *ret_first, struct dp_error *err)
{
    DP_AUTO_FREE struct dp_attempt_record *attempts = NULL;
    size_t count = 0;
    dp_status status = dp_store_load_attempts(daemon->store, job->number, &attempts, &count, err);
    if (status == DP_OK) {
        *ret_first = count > 0 ? attempts[0].first_step : job->resumed_step;
    }
    return status;
}

// What ranks told of steps is lost with them where they could not be heard in time, and rows are
// where the disk stays full. Of a job that runs, those of the newest steps may be on their way.
static dp_status note_missing(struct daemon *daemon, const struct dp_job_record *job,
                              const struct dp_step_summary *summary, struct dp_arena *arena,
                              Dp__V1__JobReport *report, struct dp_error *err)
{
    uint64_t first = 0, last = dp_job_state_ended(job->state) ? job->step : summary->steps;
    dp_status status = find_first(daemon, job, &first, err);
    if (status == DP_OK && last > first && last - first > summary->rows) {
        unsigned long long steps = last - first, missing = steps - summary->rows;
        add_note(report,
                 dp_arena_printf(arena,
                                 "of %llu of %llu steps nothing is known: what ranks told of them "
                                 "was lost with a node that could not be heard, or on a full disk",
                                 missing, steps));
    }
    return status;
}

// The newest word on where the job's experts lie.
static dp_status note_experts(struct daemon *daemon, const struct job_view *view,
                              struct dp_arena *arena, Dp__V1__JobReport *report,
                              struct dp_error *err)
{
    DP_AUTO_FREE struct dp_event_record *events = NULL;
    size_t count = 0;
    dp_status status =
        dp_store_load_events(daemon->store, view->job->id, 0, EVENTS_MAX, &events, &count, err);
    for (size_t i = count; status == DP_OK && i > 0; i--) {
        if (strcmp(events[i - 1].kind, "job.experts") == 0) {
            add_note(report, dp_arena_printf(arena, "%s", events[i - 1].message));
            break;
        }
    }
    return status;
}

void report_answer(struct daemon *daemon, uint64_t call, const char *key)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    DP_CLEANUP(view_deinit) struct job_view view = {0};
    DP_AUTO_FREE struct dp_step_record *steps = NULL;
    struct dp_step_summary summary = {0};
    size_t count = 0;
    struct dp_error err = {0};
    dp_status status = view_find(daemon, key, &view, &err);
    if (status == DP_OK) {
        status = dp_store_summarise_steps(daemon->store, view.job->number, &summary, &err);
    }
    uint64_t stride = summary.steps / STEPS_MAX + 1;
    if (status == DP_OK) {
        status = dp_store_load_steps(daemon->store, view.job->number, 0, stride, 0, &steps, &count,
                                     &err);
    }
    Dp__V1__JobReport report = DP__V1__JOB_REPORT__INIT;
    if (status == DP_OK) {
        fill(daemon, &view, &summary, &arena, &report);
        status = note_experts(daemon, &view, &arena, &report, &err);
    }
    if (status == DP_OK) {
        status = note_missing(daemon, view.job, &summary, &arena, &report, &err);
    }
    if (status != DP_OK) {
        call_fail_error(daemon, call, &err);
        return;
    }
    add_steps(steps, count, &arena, &report);
    call_reply(daemon, call, &report.base);
}
