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
        dp_optim_owns(trainer->optim, i, &stage->writes_shared, &stage->writes_experts);
    }
    return count;
}

static void free_moments(struct dp_checkpoint_stage *stages, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        struct dp_device *device = dp_stage_device(stages[i].stage);
        device->ops->free(device, stages[i].m);
        device->ops->free(device, stages[i].v);
    }
}

static dp_status save(struct dp_trainer *trainer, const char *directory, uint64_t *ret_bytes,
                      struct dp_error *err)
{
    const struct dp_exec_config *config = &trainer->config.exec;
    struct dp_checkpoint_meta meta = {.model = config->model,
                                      .seed = config->seed,
                                      .step = trainer->step_done,
                                      .next_sample = trainer->next_sample,
                                      .corpus_hash = trainer->config.corpus_hash};
    struct dp_checkpoint_stage stages[DP_RANK_STAGES_MAX];
    int32_t count = checkpoint_stages(trainer, stages);
    void *m[DP_RANK_STAGES_MAX], *v[DP_RANK_STAGES_MAX];
    dp_status status = dp_optim_gather_moments(trainer->optim, m, v, err);
    if (status != DP_OK) {
        return status;
    }
    for (int32_t i = 0; i < count; i++) {
        stages[i].m = m[i];
        stages[i].v = v[i];
    }
    struct dp_checkpoint_sync sync = {.agree = agree, .context = dp_exec_world(trainer->exec)};
    status = dp_checkpoint_save(directory, dp_exec_world_rank(trainer->exec), &meta, stages, count,
                                &sync, ret_bytes, err);
    free_moments(stages, count);
    return status;
}

dp_status dp_trainer_checkpoint(struct dp_trainer *trainer, const char *directory,
                                uint64_t *ret_bytes, struct dp_error *err)
{
    *ret_bytes = 0;
    if (trainer->optim == NULL) {
        return DP_OK;
    }
    uint64_t bytes = 0;
    dp_status status = save(trainer, directory, &bytes, err);
    double sum = (double)bytes;
    if (status == DP_OK) {
        status = dp_group_sum_scalars(dp_exec_world(trainer->exec), trainer_tag(CALL_BYTES), &sum,
                                      1, err);
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
    if (meta->step > trainer->config.steps) {
        return dp_fail(err, DP_INVALID, "%s has %lld steps; [train] steps = %lld is fewer", path,
                       (long long)meta->step, (long long)trainer->config.steps);
    }
    return dp_checkpoint_check_model(checkpoint, &config->model, err);
}

static dp_status load_stage(struct dp_trainer *trainer, struct dp_checkpoint *checkpoint,
                            int32_t index, struct dp_checkpoint_stage *stage, struct dp_error *err)
{
    struct dp_device *device = dp_stage_device(stage->stage);
    size_t bytes = (size_t)dp_stage_parameter_count(stage->stage) * dp_device_real_bytes(device);
    dp_status status = device->ops->alloc(device, DP_MEMORY_STAGING, bytes, &stage->m, err);
    if (status == DP_OK) {
        status = device->ops->alloc(device, DP_MEMORY_STAGING, bytes, &stage->v, err);
    }
    if (status == DP_OK) {
        status = dp_checkpoint_load_stage(checkpoint, stage, err);
    }
    if (status == DP_OK) {
        dp_optim_set_moments(trainer->optim, index, stage->m, stage->v);
    }
    free_moments(stage, 1);
    return status;
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
        status = load_stage(trainer, checkpoint, i, &stages[i], err);
    }
    if (status == DP_OK) {
        status = dp_optim_refresh(trainer->optim, err);
    }
    if (status == DP_OK) {
        const struct dp_checkpoint_meta *meta = dp_checkpoint_meta(checkpoint);
        trainer->step_done = meta->step;
        trainer->next_sample = meta->next_sample;
        dp_exec_set_samples(trainer->exec, meta->step + 1, meta->next_sample);
    }
    return status;
}
