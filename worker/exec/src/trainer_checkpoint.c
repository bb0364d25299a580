#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/checkpoint.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/optim.h"
#include "trainer_internal.h"

#define WAIT_NS DP_NS_PER_S // between two exchanges of ranks that wait for the slowest disk

struct dp_saver *dp_trainer_saver(struct dp_trainer *trainer)
{
    return trainer->saver;
}

static bool seals(const struct dp_trainer *trainer)
{
    return dp_exec_world_rank(trainer->exec) == 0;
}

void dp_trainer_saving_values(struct dp_trainer *trainer, double ret_values[SAVING_VALUES])
{
    ret_values[0] = ret_values[1] = ret_values[2] = 0;
    if (!trainer->is_saving) {
        return;
    }
    dp_saver_phase phase = dp_saver_phase_now(trainer->saver);
    bool is_busy = phase == DP_SAVER_WRITING || phase == DP_SAVER_SEALING;
    ret_values[0] = is_busy;
    ret_values[1] = phase == DP_SAVER_FAILED;
    ret_values[2] = is_busy ? 0 : (double)dp_saver_bytes(trainer->saver);
}

// The words of the lowest rank that failed reach all.
static dp_status share_reason(struct dp_trainer *trainer, struct dp_error *err)
{
    struct dp_group *world = dp_exec_world(trainer->exec);
    bool has_failed = dp_saver_phase_now(trainer->saver) == DP_SAVER_FAILED;
    DP_AUTO_FREE double *failed = dp_new_array(double, (size_t)world->count);
    failed[world->self] = has_failed;
    dp_status status =
        dp_group_sum_scalars(world, trainer_tag(CALL_FAILED), failed, world->count, err);
    if (status != DP_OK) {
        return status;
    }
    int32_t lowest = 0;
    while (failed[lowest] == 0) {
        lowest++;
    }
    if (world->self == lowest) {
        const struct dp_error *why = dp_saver_error(trainer->saver);
        trainer->saved.status = why->status;
        (void)DP_COPY_TEXT(trainer->saved.why, why->message);
    }
    status = dp_group_broadcast(world, trainer_tag(CALL_REASON), lowest, &trainer->saved,
                                sizeof trainer->saved, err);
    trainer->saved.why[sizeof trainer->saved.why - 1] = '\0';
    return status;
}

dp_status dp_trainer_saving_next(struct dp_trainer *trainer, const double sums[SAVING_VALUES],
                                 struct dp_error *err)
{
    if (!trainer->is_saving || sums[0] > 0) {
        return DP_OK;
    }
    struct dp_saver *saver = trainer->saver;
    struct dp_trainer_saved saved = {.step = trainer->saving_step,
                                     .bytes = (uint64_t)llround(sums[2])};
    (void)DP_COPY_TEXT(saved.path, dp_saver_path(saver));
    if (sums[1] == 0 && !trainer->is_sealing) {
        trainer->is_sealing = true;
        if (seals(trainer)) {
            dp_saver_seal(saver, trainer->config.keep_checkpoints);
        }
        return DP_OK;
    }
    trainer->saved = saved;
    dp_status status = sums[1] > 0 ? share_reason(trainer, err) : DP_OK;
    dp_saver_drop(saver, trainer->claim.directory != NULL);
    trainer->is_saving = trainer->is_sealing = false;
    return status;
}

static int32_t checkpoint_stages(struct dp_trainer *trainer,
                                 struct dp_checkpoint_stage ret_stages[DP_RANK_STAGES_MAX])
{
    int32_t count = dp_exec_stage_count(trainer->exec);
    for (int32_t i = 0; i < count; i++) {
        struct dp_checkpoint_stage *stage = &ret_stages[i];
        int32_t index;
        *stage = (struct dp_checkpoint_stage){.stage = dp_exec_stage(trainer->exec, i, &index)};
        dp_optim_owns(trainer->optim, i, &stage->writes_shared, &stage->writes_experts);
    }
    return count;
}

static struct dp_checkpoint_run *checkpoint_runs(struct dp_trainer *trainer, int32_t *ret_count)
{
    int32_t ranges = dp_optim_range_count(trainer->optim);
    struct dp_checkpoint_run *runs = dp_new_array(struct dp_checkpoint_run, (size_t)ranges);
    *ret_count = 0;
    for (int32_t i = 0; i < ranges; i++) {
        struct dp_optim_range range;
        dp_optim_range_at(trainer->optim, i, &range);
        if (range.writes) {
            runs[(*ret_count)++] = (struct dp_checkpoint_run){
                range.stage, range.begin, range.end, range.m, range.v, range.is_bf16};
        }
    }
    return runs;
}

// The directory is there, and no other run's, before any rank writes into it; where it is not, none
// does (*why).
static dp_status make_room(struct dp_trainer *trainer, const char *directory, struct dp_error *why,
                           struct dp_error *err)
{
    if (seals(trainer) && dp_archive_claim(&trainer->claim, directory, why) == DP_OK) {
        DP_AUTO_FREE char *partial =
            dp_asprintf("%s/step-%lld.partial", directory, (long long)trainer->step_done);
        (void)dp_archive_prepare(partial, why);
    }
    int32_t room = (int32_t)why->status;
    dp_status status = dp_group_broadcast(dp_exec_world(trainer->exec), trainer_tag(CALL_SAVE), 0,
                                          &room, sizeof room, err);
    if (status == DP_OK && room != DP_OK && !seals(trainer)) {
        dp_fail(why, DP_UNAVAILABLE, "rank 0 could not make room in %s", directory);
    }
    return status;
}

void dp_trainer_meta(const struct dp_trainer *trainer, struct dp_archive_meta *ret_meta)
{
    const struct dp_exec_config *config = &trainer->config.exec;
    *ret_meta = (struct dp_archive_meta){.model = config->model,
                                         .is_trained = true,
                                         .seed = config->seed,
                                         .step = trainer->step_done,
                                         .next_sample = trainer->next_sample,
                                         .corpus_hash = trainer->config.corpus_hash,
                                         .sequence = config->sequence,
                                         .holdout_samples = config->source.holdout_samples,
                                         .is_shuffled = trainer->config.shuffles};
}

static void start(struct dp_trainer *trainer, const char *directory, struct dp_error *why)
{
    struct dp_archive_meta meta;
    dp_trainer_meta(trainer, &meta);
    struct dp_checkpoint_stage stages[DP_RANK_STAGES_MAX];
    struct dp_checkpoint_state state = {.meta = &meta, .stages = stages};
    state.stage_count = checkpoint_stages(trainer, stages);
    DP_AUTO_FREE struct dp_checkpoint_run *runs = checkpoint_runs(trainer, &state.run_count);
    state.runs = runs;
    if (why->status != DP_OK || dp_saver_begin(trainer->saver, directory, &state, why) != DP_OK) {
        dp_saver_fail(trainer->saver, directory, meta.step, why);
    }
    trainer->is_saving = true;
    trainer->saving_step = meta.step;
}

dp_status dp_trainer_checkpoint_begin(struct dp_trainer *trainer, const char *directory,
                                      struct dp_trainer_saved *ret_earlier, struct dp_error *err)
{
    dp_status status = dp_trainer_checkpoint_finish(trainer, INT64_MAX, ret_earlier, err);
    if (status != DP_OK || trainer->saver == NULL) {
        return status;
    }
    struct dp_error why = {0};
    status = make_room(trainer, directory, &why, err);
    if (status != DP_OK) {
        return dp_trainer_give_up(trainer, "checkpoint", status, err);
    }
    start(trainer, directory, &why);
    return DP_OK;
}

dp_status dp_trainer_checkpoint_finish(struct dp_trainer *trainer, int64_t deadline_ns,
                                       struct dp_trainer_saved *ret_saved, struct dp_error *err)
{
    // Ranks meet every second, so that none is taken for lost while the slowest disk writes.
    bool is_late = false;
    while (trainer->is_saving && !is_late) {
        (void)dp_saver_wait(trainer->saver, dp_clock_monotonic_ns() + WAIT_NS);
        double sums[SAVING_VALUES + 1];
        dp_trainer_saving_values(trainer, sums);
        sums[SAVING_VALUES] = dp_clock_monotonic_ns() >= deadline_ns;
        dp_status status = dp_group_sum_scalars(
            dp_exec_world(trainer->exec), trainer_tag(CALL_FINISH), sums, SAVING_VALUES + 1, err);
        if (status == DP_OK) {
            status = dp_trainer_saving_next(trainer, sums, err);
        }
        if (status != DP_OK) {
            return dp_trainer_give_up(trainer, "checkpoint", status, err);
        }
        is_late = sums[SAVING_VALUES] > 0;
    }
    *ret_saved = trainer->saved;
    trainer->saved = (struct dp_trainer_saved){0};
    return DP_OK;
}

dp_status dp_trainer_checkpoint(struct dp_trainer *trainer, const char *directory,
                                uint64_t *ret_bytes, struct dp_error *err)
{
    *ret_bytes = 0;
    struct dp_trainer_saved saved = {0};
    dp_status status = dp_trainer_checkpoint_begin(trainer, directory, &saved, err);
    if (status == DP_OK) {
        status = dp_trainer_checkpoint_finish(trainer, INT64_MAX, &saved, err);
    }
    if (status == DP_OK && saved.status != DP_OK) {
        status = dp_fail(err, saved.status, "%s", saved.why);
    }
    if (status == DP_OK) {
        *ret_bytes = saved.bytes;
    }
    return status;
}

// Nothing that could be taken for this run's, or is replaced by it, is another's.
static dp_status check_run(const struct dp_trainer *trainer, const char *directory,
                           struct dp_error *err)
{
    const struct dp_exec_config *config = &trainer->config.exec;
    DP_AUTO_FREE char *path = NULL;
    struct dp_archive newest = {0};
    struct dp_error none;
    char why[DP_ERROR_MESSAGE_MAX] = "";
    if (dp_archive_newest(directory, &path, &none) != DP_OK ||
        dp_archive_read_meta(path, &newest.meta, &none) != DP_OK) {
        return DP_OK;
    }
    newest.path = path;
    if (newest.meta.seed != config->seed) {
        snprintf(why, sizeof why, "its seed is %llu, this job's is %llu",
                 (unsigned long long)newest.meta.seed, (unsigned long long)config->seed);
    } else if (newest.meta.corpus_hash != trainer->config.corpus_hash) {
        snprintf(why, sizeof why, "it was trained on another text");
    } else if (dp_archive_check_model(&newest, &config->model, &none) != DP_OK) {
        DP_COPY_TEXT(why, none.message);
    }
    return why[0] == '\0'
               ? DP_OK
               : dp_fail(err, DP_CONFLICT,
                         "[checkpoint] directory: %s is of another run: %s; give this job a "
                         "directory of its own, or remove that one",
                         path, why);
}

dp_status dp_trainer_check_directory(const struct dp_trainer *trainer, const char *directory,
                                     struct dp_error *err)
{
    if (trainer->saver == NULL) {
        return DP_OK;
    }
    dp_status status = dp_make_directories(directory, err);
    if (status == DP_OK && faccessat(AT_FDCWD, directory, W_OK | X_OK, AT_EACCESS) != 0) {
        status = dp_fail_errno(err, errno, "cannot write to %s", directory);
    }
    if (status != DP_OK) {
        return dp_fail_in(err, "[checkpoint] directory");
    }
    return seals(trainer) ? check_run(trainer, directory, err) : DP_OK;
}
