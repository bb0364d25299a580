#include <math.h>

#include "dp/checkpoint.h"
#include "dp/optim.h"
#include "trainer_internal.h"

DP_DEFINE_CLEANUP(cleanup_checkpoint, struct dp_checkpoint, dp_checkpoint_close)

static dp_status agree(void *context, dp_status mine, struct dp_error *err)
{
    return dp_group_agree(context, trainer_tag(CALL_SAVE), mine, err);
}

static int32_t checkpoint_stages(struct dp_trainer *trainer,
                                 struct dp_checkpoint_stage ret_stages[DP_RANK_STAGES_MAX])
{
    int32_t count = dp_exec_stage_count(trainer->exec);
    for (int32_t i = 0; i < count; i++) {
        struct dp_checkpoint_stage *stage = &ret_stages[i];
        int32_t index;
        *stage = (struct dp_checkpoint_stage){.stage = dp_exec_stage(trainer->exec, i, &index)};
        dp_optim_moments(trainer->optim, i, &stage->m, &stage->v);
        dp_optim_owns(trainer->optim, i, &stage->writes_shared, &stage->writes_experts);
    }
    return count;
}

dp_status dp_trainer_checkpoint(struct dp_trainer *trainer, const char *directory,
                                uint64_t *ret_bytes, struct dp_error *err)
{
    *ret_bytes = 0;
    if (trainer->optim == NULL) {
        return DP_OK;
    }
    const struct dp_exec_config *config = &trainer->config.exec;
    struct dp_checkpoint_meta meta = {.model = config->model,
                                      .seed = config->seed,
                                      .step = trainer->step_done,
                                      .next_sample =
                                          trainer->step_done * dp_exec_global_batch(trainer->exec),
                                      .corpus_hash = trainer->config.corpus_hash};
    struct dp_checkpoint_stage stages[DP_RANK_STAGES_MAX];
    int32_t count = checkpoint_stages(trainer, stages);
    struct dp_group *world = dp_exec_world(trainer->exec);
    struct dp_checkpoint_sync sync = {.agree = agree, .context = world};
    uint64_t bytes = 0;
    dp_status status = dp_checkpoint_save(directory, dp_exec_world_rank(trainer->exec), &meta,
                                          stages, count, &sync, &bytes, err);
    double sum = (double)bytes;
    if (status == DP_OK) {
        status = dp_group_sum_scalars(world, trainer_tag(CALL_BYTES), &sum, 1, err);
    }
    if (status != DP_OK) {
        return dp_trainer_give_up(trainer, "checkpoint", status, err);
    }
    *ret_bytes = (uint64_t)llround(sum);
    return DP_OK;
}

static dp_status check(const struct dp_trainer *trainer, const struct dp_checkpoint *checkpoint,
                       struct dp_error *err)
{
    const struct dp_exec_config *config = &trainer->config.exec;
    const struct dp_checkpoint_meta *meta = dp_checkpoint_meta(checkpoint);
    const char *path = dp_checkpoint_path(checkpoint);
    if (meta->corpus_hash != trainer->config.corpus_hash || meta->seed != config->seed) {
        return dp_fail(err, DP_INVALID,
                       "%s was trained with another %s; give the same [data] and [train] seed, or "
                       "remove [checkpoint] resume",
                       path, meta->seed != config->seed ? "seed" : "text");
    }
    int64_t batch = dp_exec_global_batch(trainer->exec);
    if (meta->next_sample != meta->step * batch) {
        return dp_fail(err, DP_INVALID,
                       "%s has seen %lld samples in %lld steps; resume it with that global_batch, "
                       "not %lld",
                       path, (long long)meta->next_sample, (long long)meta->step, (long long)batch);
    }
    if (meta->step > trainer->config.steps) {
        return dp_fail(err, DP_INVALID, "%s has %lld steps; [train] steps = %lld is fewer", path,
                       (long long)meta->step, (long long)trainer->config.steps);
    }
    return dp_checkpoint_check_model(checkpoint, &config->model, err);
}

dp_status dp_trainer_resume(struct dp_trainer *trainer, const char *path, struct dp_error *err)
{
    if (trainer->optim == NULL) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "the sim device has no weights; remove [checkpoint] resume");
    }
    DP_CLEANUP(cleanup_checkpoint) struct dp_checkpoint *checkpoint = NULL;
    dp_status status = dp_checkpoint_open(path, &checkpoint, err);
    if (status == DP_OK) {
        status = check(trainer, checkpoint, err);
    }
    struct dp_checkpoint_stage stages[DP_RANK_STAGES_MAX];
    int32_t count = checkpoint_stages(trainer, stages);
    for (int32_t i = 0; status == DP_OK && i < count; i++) {
        status = dp_checkpoint_load_stage(checkpoint, &stages[i], err);
    }
    if (status == DP_OK) {
        trainer->step_done = dp_checkpoint_meta(checkpoint)->step;
    }
    return status;
}
