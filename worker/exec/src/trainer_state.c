// A training state from elsewhere, and as others read it: from a checkpoint, from ranks that hold
// it, to ranks of a new assignment.
#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/checkpoint.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/optim.h"
#include "dp/state.h"
#include "trainer_internal.h"

#define MEET_NS DP_NS_PER_S               // between two words of a rank that takes its state
#define SAVING_ENDS_NS (10 * DP_NS_PER_S) // a checkpoint that a lost peer leaves behind

static dp_status fail_field(const char *path, const char *what, const char *key,
                            unsigned long long theirs, unsigned long long ours,
                            struct dp_error *err)
{
    return dp_fail(err, DP_INVALID,
                   "%s was trained with %s %llu, this job has %llu; set %s, or go on from its "
                   "weights alone, which dpctl checkpoint export makes",
                   path, what, theirs, ours, key);
}

// What the numbers of samples stand for.
static dp_status check_samples(const struct dp_trainer *trainer, const struct dp_archive *archive,
                               struct dp_error *err)
{
    const struct dp_exec_config *config = &trainer->config.exec;
    const struct dp_archive_meta *meta = &archive->meta;
    if (meta->seed != config->seed) {
        return fail_field(archive->path, "a seed of", "[train] seed", meta->seed, config->seed,
                          err);
    }
    if (meta->corpus_hash != trainer->config.corpus_hash) {
        return dp_fail(err, DP_INVALID,
                       "%s was trained with another text (its hash is %016llx, that of [data] path "
                       "is %016llx); set [data] path, or go on from its weights alone, which dpctl "
                       "checkpoint export makes",
                       archive->path, (unsigned long long)meta->corpus_hash,
                       (unsigned long long)trainer->config.corpus_hash);
    }
    if (meta->sequence == 0) {
        return DP_OK; // of an earlier version
    }
    if (meta->sequence != config->sequence) {
        return fail_field(archive->path, "a sequence of", "[train] sequence",
                          (unsigned long long)meta->sequence, (unsigned long long)config->sequence,
                          err);
    }
    if (meta->holdout_samples != config->source.holdout_samples) {
        return fail_field(archive->path, "held-out samples:", "[data] holdout",
                          (unsigned long long)meta->holdout_samples,
                          (unsigned long long)config->source.holdout_samples, err);
    }
    return meta->is_shuffled == trainer->config.shuffles
               ? DP_OK
               : fail_field(archive->path, "shuffle =", "[data] shuffle", meta->is_shuffled,
                            trainer->config.shuffles, err);
}

static dp_status check(const struct dp_trainer *trainer, const struct dp_archive *archive,
                       struct dp_error *err)
{
    const struct dp_exec_config *config = &trainer->config.exec;
    const struct dp_archive_meta *meta = &archive->meta;
    const char *path = archive->path;
    if (!meta->is_trained) {
        return dp_archive_check_model(archive, &config->model, err);
    }
    dp_status status = check_samples(trainer, archive, err);
    if (status != DP_OK) {
        return status;
    }
    if (meta->step > trainer->config.steps) {
        return dp_fail(err, DP_INVALID, "%s has %lld steps; [train] steps = %lld is fewer", path,
                       (long long)meta->step, (long long)trainer->config.steps);
    }
    return dp_archive_check_model(archive, &config->model, err);
}

static dp_status load_stage(struct dp_trainer *trainer, const struct dp_tensor_source *source,
                            int32_t index, struct dp_error *err)
{
    int32_t position;
    struct dp_stage *stage = dp_exec_stage(trainer->exec, index, &position);
    if (!source->has_moments) {
        return dp_checkpoint_fill_stage(source, stage, NULL, NULL, err);
    }
    struct dp_device *device = dp_stage_device(stage);
    size_t bytes = (size_t)dp_stage_parameter_count(stage) * dp_device_real_bytes(device);
    void *m = NULL, *v = NULL;
    dp_status status = device->ops->alloc(device, DP_MEMORY_STAGING, bytes, &m, err);
    if (status == DP_OK) {
        status = device->ops->alloc(device, DP_MEMORY_STAGING, bytes, &v, err);
    }
    if (status == DP_OK) {
        status = dp_checkpoint_fill_stage(source, stage, m, v, err);
    }
    if (status == DP_OK) {
        dp_optim_set_moments(trainer->optim, index, m, v);
    }
    device->ops->free(device, m);
    device->ops->free(device, v);
    return status;
}

static void set_place(struct dp_trainer *trainer, const struct dp_archive_meta *meta)
{
    trainer->step_done = meta->step;
    trainer->next_sample = meta->next_sample;
    trainer->has_gradients = trainer->has_norm = trainer->is_in_parts = false;
    dp_exec_set_samples(trainer->exec, trainer->step_done + 1, trainer->next_sample);
}

static dp_status load(struct dp_trainer *trainer, const struct dp_tensor_source *source,
                      const struct dp_archive_meta *meta, struct dp_error *err)
{
    struct dp_stage *stages[DP_RANK_STAGES_MAX];
    const int32_t count = dp_exec_stage_count(trainer->exec);
    for (int32_t i = 0; i < count; i++) {
        int32_t position;
        stages[i] = dp_exec_stage(trainer->exec, i, &position);
    }
    dp_status status = dp_checkpoint_check(source, stages, count, err);
    for (int32_t i = 0; status == DP_OK && i < count; i++) {
        status = load_stage(trainer, source, i, err);
    }
    if (status == DP_OK) {
        status = dp_optim_refresh(trainer->optim, err);
    }
    if (status == DP_OK) {
        set_place(trainer, meta);
    }
    return status;
}

dp_status dp_trainer_resume(struct dp_trainer *trainer, const char *path, struct dp_error *err)
{
    if (trainer->optim == NULL) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "the sim device has no weights; remove [checkpoint] resume");
    }
    DP_CLEANUP(dp_archive_close) struct dp_archive archive = {0};
    dp_status status = dp_archive_open(path, &archive, err);
    if (status == DP_OK) {
        status = check(trainer, &archive, err);
    }
    if (status == DP_OK) {
        const struct dp_tensor_source source = dp_checkpoint_source(&archive);
        status = load(trainer, &source, &archive.meta, err);
    }
    return status;
}

// A source that lets the other ranks know, once a second, that this one is still at it.
struct heard_source {
    struct dp_tensor_source inner;
    struct dp_trainer *trainer;
    int64_t met_ns;
};

// *ret_busy: how many ranks are not done.
static dp_status meet(struct dp_trainer *trainer, bool is_busy, double *ret_busy,
                      struct dp_error *err)
{
    *ret_busy = is_busy;
    return dp_group_sum_scalars(dp_exec_world(trainer->exec), trainer_tag(CALL_TAKE), ret_busy, 1,
                                err);
}

static dp_status be_heard(struct heard_source *source, struct dp_error *err)
{
    double busy;
    if (dp_clock_monotonic_ns() - source->met_ns < MEET_NS) {
        return DP_OK;
    }
    dp_status status = meet(source->trainer, true, &busy, err);
    source->met_ns = dp_clock_monotonic_ns();
    return status;
}

static bool heard_has(void *context, const char *own, dp_archive_kind kind, int64_t count)
{
    const struct heard_source *source = context;
    return source->inner.has(source->inner.context, own, kind, count);
}

static dp_status heard_weight(void *context, const char *own, int64_t rows, int64_t cols,
                              dp_dtype to, void *ret_values, struct dp_error *err)
{
    struct heard_source *source = context;
    dp_status status =
        source->inner.read_weight(source->inner.context, own, rows, cols, to, ret_values, err);
    return status == DP_OK ? be_heard(source, err) : status;
}

static dp_status heard_moments(void *context, const char *own, dp_archive_kind kind, int64_t count,
                               dp_dtype to, void *ret_values, struct dp_error *err)
{
    struct heard_source *source = context;
    dp_status status =
        source->inner.read_moments(source->inner.context, own, kind, count, to, ret_values, err);
    return status == DP_OK ? be_heard(source, err) : status;
}

static dp_status take(struct dp_trainer *trainer, const struct dp_tensor_source *source,
                      const struct dp_archive_meta *meta, struct dp_error *err)
{
    if (trainer->optim == NULL) {
        set_place(trainer, meta);
        return DP_OK;
    }
    const struct dp_archive archive = {.path = (char *)(uintptr_t)source->name, .meta = *meta};
    struct heard_source heard = {*source, trainer, dp_clock_monotonic_ns()};
    struct dp_tensor_source whole = *source;
    whole.context = &heard;
    whole.has = heard_has;
    whole.read_weight = heard_weight;
    whole.read_moments = heard_moments;
    dp_status status = check(trainer, &archive, err);
    return status == DP_OK ? load(trainer, &whole, meta, err) : status;
}

dp_status dp_trainer_take(struct dp_trainer *trainer, const struct dp_tensor_source *source,
                          const struct dp_archive_meta *meta, struct dp_error *err)
{
    dp_status status = take(trainer, source, meta, err);
    double busy = 1;
    while (status == DP_OK && busy > 0) {
        status = meet(trainer, false, &busy, err);
    }
    return status == DP_OK ? DP_OK : dp_trainer_give_up(trainer, "taking the state", status, err);
}

void dp_trainer_count_step(struct dp_trainer *trainer, int64_t step)
{
    trainer->step_done = step;
    trainer->next_sample += dp_exec_global_batch(trainer->exec);
    trainer->has_gradients = false;
}

void dp_trainer_apply(struct dp_trainer *trainer, int64_t step, double norm,
                      struct dp_optim_report *ret_optim)
{
    dp_optim_apply(trainer->optim, step, norm, ret_optim);
    dp_optim_move_biases(trainer->optim);
    dp_trainer_count_step(trainer, step);
    trainer->has_norm = true;
    trainer->norm = norm;
}

// One that all ranks were to finish together is not finished any more: it stands if it is sealed.
static void drop_checkpoint(struct dp_trainer *trainer)
{
    if (trainer->is_saving) {
        const dp_saver_phase phase =
            dp_saver_wait(trainer->saver, dp_clock_monotonic_ns() + SAVING_ENDS_NS);
        if (phase == DP_SAVER_WRITING || phase == DP_SAVER_SEALING) {
            return; // a slow disk; whoever joins the saver waits for it
        }
        dp_saver_drop(trainer->saver, trainer->claim.directory != NULL);
        trainer->is_saving = trainer->is_sealing = false;
    }
    dp_archive_unclaim(&trainer->claim);
}

void dp_trainer_hold(struct dp_trainer *trainer, struct dp_trainer_held *ret_held)
{
    const bool is_sim = trainer->optim == NULL;
    drop_checkpoint(trainer);
    *ret_held = (struct dp_trainer_held){.step = trainer->step_done,
                                         .has_gradients = is_sim || trainer->has_gradients,
                                         .has_norm = is_sim || trainer->has_norm,
                                         .norm = trainer->norm};
}

dp_status dp_trainer_settle(struct dp_trainer *trainer, int64_t step, double norm,
                            struct dp_error *err)
{
    if (step == trainer->step_done) {
        return DP_OK;
    }
    const bool is_next = step == trainer->step_done + 1;
    if (is_next && trainer->optim == NULL) {
        dp_trainer_count_step(trainer, step);
        return DP_OK;
    }
    if (!is_next || !trainer->has_gradients || !(norm >= 0) || !isfinite(norm)) {
        return dp_fail(err, DP_CONFLICT,
                       "rank %d holds step %lld %s; it cannot come to step %lld by a norm of %g",
                       dp_exec_world_rank(trainer->exec), (long long)trainer->step_done,
                       trainer->has_gradients ? "and the next one's gradients" : "alone",
                       (long long)step, norm);
    }
    struct dp_optim_report optim;
    dp_saver_settle(trainer->saver);
    dp_trainer_apply(trainer, step, norm, &optim);
    if (trainer->config.shard == DP_SHARD_ZERO1) {
        trainer->is_in_parts = true; // the others' parts of the weights do not come any more
        return DP_OK;
    }
    return dp_optim_spread(trainer->optim, err);
}

static void add_ranges(const struct dp_trainer *trainer, struct dp_state *state)
{
    for (int32_t i = 0; i < dp_optim_range_count(trainer->optim); i++) {
        struct dp_optim_range range;
        dp_optim_range_at(trainer->optim, i, &range);
        int32_t position;
        struct dp_stage *stage = dp_exec_stage(trainer->exec, range.stage, &position);
        const struct dp_checkpoint_run run = {range.stage, range.begin, range.end,
                                              range.m,     range.v,     range.is_bf16};
        dp_state_add_moments(state, stage, &run);
        if (trainer->is_in_parts) {
            dp_state_add_weights(state, stage, range.begin, range.end);
        }
    }
}

void dp_trainer_state(const struct dp_trainer *trainer, struct dp_state *ret_state)
{
    struct dp_state state = {0};
    dp_trainer_meta(trainer, &state.meta);
    const int32_t count = dp_exec_stage_count(trainer->exec);
    for (int32_t i = 0; i < count; i++) {
        int32_t position;
        struct dp_stage *stage = dp_exec_stage(trainer->exec, i, &position);
        if (!trainer->is_in_parts) {
            dp_state_add_weights(&state, stage, 0, dp_stage_parameter_count(stage));
        }
        dp_state_add_biases(&state, stage);
    }
    if (trainer->optim != NULL) {
        add_ranges(trainer, &state);
    }
    *ret_state = state;
}
