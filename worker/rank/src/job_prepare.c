#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/planner.h"
#include "dp/wire.h"
#include "job.h"

// The meter's reader comes at least twice a second and after every step.
#define METER_STEPS 4
// Without a word from a peer for this many planned steps it counts as lost.
#define STEPS_WAITED 10
#define METER_RECORDS_MIN 4096

void job_deinit(struct job *job)
{
    job_disconnect(job);
    dp_trainer_free(job->trainer);
    dp_alltoall_free(job->alltoall);
    dp_transport_free(job->transport);
    if (job->device != NULL) {
        dp_device_close(job->device);
    }
    dp_corpus_close(job->corpus);
    dp_exec_meter_free(job->meter);
    dp_sim_costs_deinit(&job->costs);
    dp_sim_pace_free(job->pace);
    if (job->schedule.actions != NULL) {
        dp_schedule_deinit(&job->schedule);
    }
    dp_plan_deinit(&job->plan);
}

static bool is_sim(const struct job *job)
{
    return job->spec.resources.device == DP_DEVICE_SIM;
}

static dp_status read_spec(struct job *job, const Dp__V1__RankPrepare *prepare,
                           struct dp_error *err)
{
    const char *text = (const char *)prepare->job_toml.data;
    struct dp_diags diags;
    dp_diags_init(&diags, "job.toml", text, prepare->job_toml.len);
    dp_status status =
        dp_job_spec_parse(text, prepare->job_toml.len, NULL, &diags, &job->spec, err);
    if (status == DP_INVALID) {
        dp_diags_status(&diags, err);
    }
    dp_diags_deinit(&diags);
    return status;
}

static int32_t replica_of(const struct job *job)
{
    return (int32_t)job->rank / job->plan.pipeline;
}

static dp_status read_plan(struct job *job, const Dp__V1__RankPrepare *prepare,
                           struct dp_error *err)
{
    if (prepare->plan == NULL || prepare->fence == NULL) {
        return dp_fail(err, DP_INVALID, "the order has no plan or no fence");
    }
    dp_status status = dp_wire_plan_from_proto(prepare->plan, &job->plan, err);
    if (status == DP_OK) {
        status = read_spec(job, prepare, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (prepare->rank != job->rank || (int32_t)job->rank >= dp_plan_world(&job->plan)) {
        return dp_fail(err, DP_INVALID, "the order is for rank %u of %d; this is rank %u",
                       prepare->rank, dp_plan_world(&job->plan), job->rank);
    }
    status = dp_plan_replica_schedule(&job->plan, replica_of(job), &job->schedule, err);
    if (status != DP_OK) {
        return status;
    }
    job->attempt = prepare->fence->attempt;
    job->token = prepare->token;
    job->takes_state = prepare->takes_state;
    DP_COPY_TEXT(job->host, prepare->bind_host);
    const char *directory = job->spec.checkpoint.directory;
    DP_COPY_TEXT(job->directory, directory[0] != '\0' ? directory : prepare->checkpoint_directory);
    double every = job->plan.step_s > 0 ? ceil(1.0 / job->plan.step_s) : 1;
    job->trace_every = every < 1e6 ? (int64_t)every : 1000000;
    return DP_OK;
}

static dp_status fill(void *context, bool holdout, int64_t first, int32_t count,
                      int32_t *ret_tokens, int32_t *ret_targets, struct dp_error *err)
{
    return (holdout ? dp_corpus_fill_holdout : dp_corpus_fill_train)(context, first, count,
                                                                     ret_tokens, ret_targets, err);
}

// What [parallel] precision makes of the device; fp8 is a way to multiply, not to keep.
static dp_status element_of(const struct job *job, dp_element *ret_element, bool *ret_fp8,
                            struct dp_error *err)
{
    const char *precision = job->spec.parallel.precision;
    dp_format format = DP_FORMAT_FP32;
    dp_status status = precision[0] == '\0' ? DP_OK : dp_format_parse(precision, &format, err);
    if (status != DP_OK) {
        return status;
    }
    switch (format) {
    case DP_FORMAT_AUTO:
    case DP_FORMAT_FP32:
        *ret_element = DP_F32;
        break;
    case DP_FORMAT_BF16:
    case DP_FORMAT_FP8_BLOCK:
        *ret_element = DP_BF16;
        break;
    default:
        return dp_fail(err, DP_UNSUPPORTED,
                       "[parallel] precision = \"%s\": the cpu device runs fp32, bf16 and "
                       "fp8-block",
                       precision);
    }
    *ret_fp8 = format == DP_FORMAT_FP8_BLOCK;
    return DP_OK;
}

static dp_status open_sim(struct job *job, struct dp_error *err)
{
    const int32_t world = dp_plan_world(&job->plan);
    DP_AUTO_FREE struct dp_sim_place *places = dp_new_array(struct dp_sim_place, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        places[i] = (struct dp_sim_place){
            .rank = i, .node = job->plan.ranks[i].node, .slot = job->plan.ranks[i].slot};
    }
    const struct dp_sim_pace_config config = {.spec = &job->spec.sim,
                                              .places = places,
                                              .world = world,
                                              .rank = (int32_t)job->rank,
                                              .seed = job->spec.train.seed};
    dp_status status = dp_sim_pace_new(&config, &job->pace, err);
    if (status != DP_OK) {
        return status;
    }
    return dp_planner_costs(&job->spec, &job->plan, NULL, (int32_t)job->rank / job->plan.pipeline,
                            &job->schedule, &job->costs, err);
}

static dp_status open_device(struct job *job, struct dp_error *err)
{
    if (is_sim(job)) {
        return open_sim(job, err);
    }
    if (job->spec.resources.device != DP_DEVICE_CPU) {
        return dp_fail(err, DP_UNSUPPORTED, "this program runs the devices cpu and sim, not %s",
                       dp_device_kind_text(job->spec.resources.device));
    }
    dp_element element = DP_F32;
    dp_status status = element_of(job, &element, &job->fp8, err);
    if (status == DP_OK) {
        status = dp_device_open_cpu(element, &job->device, err);
    }
    if (status == DP_OK && job->spec.resources.threads_per_rank > 0) {
        status = dp_device_set_threads(job->device, job->spec.resources.threads_per_rank, err);
    }
    if (status == DP_OK) {
        status =
            dp_corpus_open(&job->spec.data, job->spec.train.sequence, job->spec.model.vocabulary,
                           job->spec.train.seed, &job->corpus, err);
    }
    return status;
}

int32_t job_expert_slots(const struct job *job)
{
    return job->spec.model.experts + job->spec.parallel.expert_copies * job->plan.expert;
}

// When and how experts are placed by their loads.
static dp_status plan_rebalances(const struct job *job, struct dp_trainer_config *config,
                                 struct dp_error *err)
{
    dp_expert_placement placement = DP_EXPERT_PLACEMENT_OFF;
    dp_status status =
        dp_expert_placement_parse(job->spec.parallel.expert_placement, &placement, err);
    if (status != DP_OK || placement == DP_EXPERT_PLACEMENT_OFF || job->plan.expert == 1) {
        return status;
    }
    const int64_t every = job->spec.parallel.rebalance_every;
    config->rebalance_every = every > 0 ? every : DP_REBALANCE_STEPS;
    config->rebalance.apply = placement == DP_EXPERT_PLACEMENT_AUTO;
    return DP_OK;
}

// From a checkpoint, unless ranks that hold theirs will give it.
static dp_status resume(struct job *job, const char *ordered, struct dp_error *err)
{
    const char *path = ordered[0] != '\0' ? ordered : job->spec.checkpoint.resume;
    if (path[0] == '\0' || job->takes_state) {
        return DP_OK;
    }
    dp_status status = dp_trainer_resume(job->trainer, path, err);
    return status == DP_OK ? DP_OK : dp_fail_in(err, "[checkpoint] resume");
}

static dp_status make_trainer(struct job *job, struct dp_error *err)
{
    int32_t position = (int32_t)job->rank % job->plan.pipeline;
    size_t actions = job->schedule.rank_begin[position + 1] - job->schedule.rank_begin[position];
    job->meter = dp_exec_meter_new(METER_RECORDS_MIN + METER_STEPS * actions);
    const char *wanted = job->spec.parallel.offload;
    uint32_t offload = 0;
    dp_status status = wanted[0] == '\0' ? DP_OK : dp_offload_parse(wanted, &offload, err);
    if (status != DP_OK) {
        return status;
    }
    struct dp_trainer_config config = {
        .exec = {.schedule = &job->schedule,
                 .position = position,
                 .replica = replica_of(job),
                 .data = job->plan.data,
                 .expert = job->plan.expert,
                 .first_microbatch = dp_plan_first_microbatch(&job->plan, replica_of(job)),
                 .step_microbatches = dp_plan_step_microbatches(&job->plan),
                 .transport = job->transport,
                 .meter = job->meter,
                 .device = job->device,
                 .model = job->spec.model,
                 .layer_begin = job->plan.layer_begin,
                 .micro_batch_size = job->plan.micro_batch_size,
                 .sequence = job->spec.train.sequence,
                 .expert_slots = job_expert_slots(job),
                 .seed = job->spec.train.seed,
                 .recompute = job->plan.recompute,
                 .fp8 = job->fp8,
                 .save_fp8 = job->spec.parallel.save_fp8 > 0,
                 .offload = offload,
                 .no_overlap = job->spec.parallel.overlap < 0,
                 .costs = is_sim(job) ? &job->costs : NULL,
                 .pace = job->pace},
        .optimizer = job->spec.optimizer,
        .shard = job->plan.shard,
        .steps = job->spec.train.steps,
        .keep_checkpoints = job->spec.checkpoint.keep};
    if (job->corpus != NULL) {
        config.exec.source =
            (struct dp_exec_source){.fill = fill,
                                    .context = job->corpus,
                                    .holdout_samples = dp_corpus_holdout_samples(job->corpus)};
        config.corpus_hash = dp_corpus_hash(job->corpus);
        config.shuffles = job->spec.data.shuffle > 0;
    }
    status = plan_rebalances(job, &config, err);
    return status == DP_OK ? dp_trainer_new(&config, &job->trainer, err) : status;
}

// A peer that computes for long is not a lost one.
static void set_patience(struct job *job)
{
    double wanted_ms = 1e3 * job->spec.parallel.peer_timeout_s;
    double planned_ms = STEPS_WAITED * 1e3 * job->plan.step_s;
    if (wanted_ms == 0 && planned_ms > DP_TRANSPORT_BLOCKED_MS_MAX) {
        wanted_ms = fmin(planned_ms, DP_TRANSPORT_PLANNED_MS_MAX);
    }
    if (wanted_ms > 0) {
        job->blocked_ms = (int64_t)fmax(wanted_ms, 1);
        dp_transport_set_blocked_ms(job->transport, job->blocked_ms);
    }
}

static dp_status open_transport(struct job *job, const Dp__V1__RankPrepare *prepare,
                                struct dp_error *err)
{
    struct dp_transport_config config = {.host = prepare->bind_host,
                                         .rank = (int32_t)job->rank,
                                         .world = dp_plan_world(&job->plan),
                                         .token = prepare->token};
    dp_status status = dp_transport_kind_parse(job->spec.parallel.transport, &config.kind, err);
    return status == DP_OK ? dp_transport_open(&config, job->address, &job->transport, err)
                           : status;
}

dp_status job_prepare(struct job *job, const Dp__V1__RankPrepare *prepare, struct dp_error *err)
{
    dp_status status = read_plan(job, prepare, err);
    if (status == DP_OK) {
        status = open_device(job, err);
    }
    if (status == DP_OK) {
        status = open_transport(job, prepare, err);
        job->lacks_transport = status != DP_OK && status != DP_INVALID;
    }
    if (status == DP_OK) {
        set_patience(job);
        status = make_trainer(job, err);
    }
    if (status == DP_OK) {
        status = resume(job, prepare->resume, err);
    }
    if (status == DP_OK) {
        status = dp_trainer_check_directory(job->trainer, job->directory, err);
    }
    return status;
}

void job_report_ready(struct job *job)
{
    Dp__V1__RankReady ready = DP__V1__RANK_READY__INIT;
    ready.address = job->address;
    ready.resumed_step = (uint64_t)dp_trainer_step_done(job->trainer);
    if (job->corpus != NULL) {
        ready.corpus_bytes = (uint64_t)dp_corpus_bytes(job->corpus);
        ready.corpus_hash = dp_corpus_hash(job->corpus);
        if (dp_corpus_format(job->corpus) != DP_DATA_BYTES) {
            ready.corpus_tokens = (uint64_t)dp_corpus_tokens(job->corpus);
        }
        ready.unigram_entropy = dp_corpus_unigram_entropy(job->corpus);
        ready.train_samples = (uint64_t)dp_corpus_train_samples(job->corpus);
        ready.holdout_samples = (uint64_t)dp_corpus_holdout_samples(job->corpus);
    }
    struct dp_exec *exec = dp_trainer_exec(job->trainer);
    for (int32_t i = 0; i < dp_exec_stage_count(exec); i++) {
        int32_t index;
        ready.parameters += (uint64_t)dp_stage_parameter_count(dp_exec_stage(exec, i, &index));
    }
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    report.report_case = DP__V1__RANK_REPORT__REPORT_READY;
    report.ready = &ready;
    control_report(job->control, DP_LINK_SLOT_READY, &report);
}
