#include "dp/exec.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "exec_internal.h"

DP_DEFINE_CLEANUP(cleanup_exec, struct dp_exec, dp_exec_free)

static dp_status check_config(const struct dp_exec_config *config, struct dp_error *err)
{
    const struct dp_schedule *schedule = config->schedule;
    int32_t world = dp_transport_world(config->transport);
    if (config->data < 1 || config->expert < 1 || config->data % config->expert != 0) {
        return dp_fail(err, DP_INVALID, "expert = %d does not divide data = %d", config->expert,
                       config->data);
    }
    if (world != schedule->pipeline * config->data) {
        return dp_fail(err, DP_INVALID, "%d ranks are connected; pipeline %d times data %d is %d",
                       world, schedule->pipeline, config->data, schedule->pipeline * config->data);
    }
    DP_CHECK(config->position >= 0 && config->position < schedule->pipeline);
    DP_CHECK(config->replica >= 0 && config->replica < config->data);
    if (config->step_microbatches > 0 &&
        (config->first_microbatch < 0 ||
         config->first_microbatch + schedule->microbatches > config->step_microbatches)) {
        return dp_fail(err, DP_INVALID,
                       "replica %d runs micro-batches %lld to %lld of a step that has %lld",
                       config->replica, (long long)config->first_microbatch,
                       (long long)config->first_microbatch + schedule->microbatches - 1,
                       (long long)config->step_microbatches);
    }
    if (config->device == NULL) {
        return dp_sim_costs_check(config->costs, schedule, err);
    }
    if (config->layer_begin[schedule->stages] != config->model.layers) {
        return dp_fail(err, DP_INVALID, "the stages end at layer %d; the model has %d layers",
                       config->layer_begin[schedule->stages], config->model.layers);
    }
    return DP_OK;
}

static dp_status make_groups(struct dp_exec *exec, struct dp_error *err)
{
    const struct dp_exec_config *config = &exec->config;
    int32_t pipeline = config->schedule->pipeline;
    int32_t world = pipeline * config->data;
    DP_AUTO_FREE int32_t *ranks = dp_new_array(int32_t, (size_t)world);
    for (int32_t i = 0; i < world; i++) {
        ranks[i] = i;
    }
    dp_status status = dp_group_init(&exec->world, config->transport, 0, ranks, world, err);
    if (status != DP_OK) {
        return status;
    }
    int32_t block = config->replica / config->expert;
    for (int32_t i = 0; i < config->expert; i++) {
        ranks[i] = (block * config->expert + i) * pipeline + config->position;
    }
    int32_t blocks = config->data / config->expert;
    exec->group_id_end = (uint32_t)(1 + pipeline * blocks);
    uint32_t id = (uint32_t)(1 + config->position * blocks + block);
    return dp_group_init(&exec->peers, config->transport, id, ranks, config->expert, err);
}

static dp_status make_stage(struct dp_exec *exec, struct slot *slot, struct dp_error *err)
{
    const struct dp_exec_config *config = &exec->config;
    struct dp_stage_config stage = {
        .model = config->model,
        .layer_begin = config->layer_begin[slot->index],
        .layer_end = config->layer_begin[slot->index + 1],
        .has_embedding = slot->index == 0,
        .has_head = slot->index == config->schedule->stages - 1,
        .ep_rank = config->replica % config->expert,
        .ep_size = config->expert,
        .expert_slots = config->expert > 1 ? config->expert_slots : 0,
        .sequence = config->sequence,
        .seed = config->seed,
        .recompute = config->recompute,
        .fp8 = config->fp8,
        .save_fp8 = config->save_fp8,
        .offload = config->offload,
        .exchanger = exec->moves == NULL ? NULL : dp_exec_moves_exchanger(exec->moves),
        .workspace = exec->workspace,
        .poison = config->poison};
    dp_status status = dp_stage_new(config->device, &stage, &slot->stage, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "stage %d", slot->index);
    }
    int32_t count = dp_stage_component_count(slot->stage);
    slot->components = dp_new_array(struct dp_component, (size_t)count);
    for (int32_t i = 0; i < count; i++) {
        slot->components[i] = *dp_stage_component(slot->stage, i);
    }
    slot->program = (struct program_stage){.components = slot->components,
                                           .count = count,
                                           .layer_begin = stage.layer_begin,
                                           .layer_end = stage.layer_end};
    return DP_OK;
}

// A model without experts, or with some that do not divide, is the stages' to refuse.
static void make_exchanger(struct dp_exec *exec)
{
    const struct dp_exec_config *config = &exec->config;
    if (config->expert == 1 || config->model.experts == 0 ||
        config->model.experts % config->expert != 0) {
        return;
    }
    exec->moves = dp_exec_moves_new();
    if (config->exchanger != NULL) {
        dp_exec_moves_set_inner(exec->moves, config->exchanger);
        return;
    }
    const struct dp_group_exchanger_config exchanger = {
        .group = &exec->peers,
        .device = config->device,
        .hidden = config->model.hidden,
        .top_k = config->model.top_k,
        .experts = config->expert_slots > 0 ? config->expert_slots : config->model.experts};
    exec->exchanger = dp_group_exchanger_new(&exchanger);
    dp_exec_moves_set_inner(exec->moves, dp_group_exchanger_interface(exec->exchanger));
}

void dp_exec_set_exchanger(struct dp_exec *exec, const struct dp_exchanger *exchanger)
{
    if (exec->moves != NULL) {
        dp_exec_moves_set_inner(exec->moves, exchanger);
    }
}

// The position that runs a stage for the micro-batch, this rank's own too, or NO_PEER.
static int32_t peer_at(const struct dp_schedule *schedule, int32_t stage, int32_t microbatch)
{
    bool exists = stage >= 0 && stage < schedule->stages;
    return exists ? dp_schedule_rank_of(schedule, stage, (uint32_t)microbatch) : NO_PEER;
}

// Messages have tags and wait for whoever asks for them, so no order is needed beyond that of the
// actions: who the peers are is all that is taken of the lowered form.
static void make_cells(struct dp_exec *exec)
{
    const struct dp_schedule *schedule = exec->config.schedule;
    size_t microbatches = (size_t)schedule->microbatches;
    exec->cells = dp_new_array(struct cell, (size_t)exec->slot_count * microbatches);
    for (int32_t i = 0; i < exec->slot_count; i++) {
        for (int32_t m = 0; m < schedule->microbatches; m++) {
            int32_t *peer = exec->cells[(size_t)i * microbatches + (size_t)m].peer;
            int32_t stage = exec->slots[i].index;
            peer[DP_RECV_F] = peer[DP_SEND_B] = peer_at(schedule, stage - 1, m);
            peer[DP_SEND_F] = peer[DP_RECV_B] = peer_at(schedule, stage + 1, m);
        }
    }
}

// Spans of different ranks stand beside each other, so being held up between the two clocks must
// not shift them: the reading that took the least time counts.
static int64_t measure_wall_offset_ns(void)
{
    int64_t least_ns = INT64_MAX, offset_ns = 0;
    for (int i = 0; i < 16; i++) {
        int64_t before_ns = dp_clock_monotonic_ns();
        int64_t wall_ns = dp_clock_realtime_ns();
        int64_t took_ns = dp_clock_monotonic_ns() - before_ns;
        if (took_ns < least_ns) {
            least_ns = took_ns;
            offset_ns = wall_ns - before_ns - took_ns / 2;
        }
    }
    return offset_ns;
}

dp_status dp_exec_new(const struct dp_exec_config *config, struct dp_exec **ret_exec,
                      struct dp_error *err)
{
    dp_status status = check_config(config, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_schedule *schedule = config->schedule;
    DP_CLEANUP(cleanup_exec) struct dp_exec *exec = dp_new(struct dp_exec);
    exec->config = *config;
    exec->config.layer_begin = NULL;
    exec->wall_offset_ns = measure_wall_offset_ns();
    int32_t stages[DP_RANK_STAGES_MAX];
    exec->slot_count = dp_schedule_rank_stages(schedule, config->position, stages);
    for (int32_t i = 0; i < exec->slot_count; i++) {
        exec->slots[i].index = stages[i];
        exec->slots[i].early_bytes[0] = exec->slots[i].early_bytes[1] = -1;
        exec->slots[i].full_bytes = exec->slots[i].input_bytes = -1;
    }
    dp_exec_set_samples(exec, 1, 0);
    exec->times = dp_exec_times_new();
    make_cells(exec);
    status = make_groups(exec, err);
    if (status == DP_OK && config->device != NULL) {
        exec->config.layer_begin = dp_memdup(config->layer_begin, ((size_t)schedule->stages + 1) *
                                                                      sizeof(*config->layer_begin));
        size_t tokens = (size_t)config->micro_batch_size * (size_t)config->sequence;
        exec->tokens = dp_new_array(int32_t, tokens);
        exec->targets = dp_new_array(int32_t, tokens);
        make_exchanger(exec);
        exec->workspace = dp_workspace_new(config->device, config->poison);
        for (int32_t i = 0; status == DP_OK && i < exec->slot_count; i++) {
            status = make_stage(exec, &exec->slots[i], err);
        }
    }
    if (status == DP_OK) {
        dp_exec_list_make(exec);
        *ret_exec = dp_steal(exec);
    }
    return status;
}

void dp_exec_free(struct dp_exec *exec)
{
    if (exec == NULL) {
        return;
    }
    size_t microbatches = (size_t)exec->config.schedule->microbatches;
    for (size_t i = 0; exec->cells != NULL && i < (size_t)exec->slot_count * microbatches; i++) {
        if (exec->cells[i].chunk != NULL) {
            dp_chunk_free(exec->cells[i].chunk);
        }
    }
    for (int32_t i = 0; i < exec->slot_count; i++) {
        if (exec->slots[i].stage != NULL) {
            dp_stage_free(exec->slots[i].stage);
        }
        free(exec->slots[i].components);
    }
    dp_workspace_free(exec->workspace);
    dp_exec_moves_free(exec->moves);
    dp_exec_times_free(exec->times);
    dp_group_exchanger_free(exec->exchanger);
    dp_group_deinit(&exec->peers);
    dp_group_deinit(&exec->world);
    dp_exec_list_free(exec);
    free(exec->cells);
    free(exec->tokens);
    free(exec->targets);
    free((void *)exec->config.layer_begin);
    free(exec);
}

int32_t dp_exec_world_rank(const struct dp_exec *exec)
{
    return exec_rank_of(exec, exec->config.position);
}

struct dp_group *dp_exec_world(struct dp_exec *exec)
{
    return &exec->world;
}

uint32_t dp_exec_group_id_end(const struct dp_exec *exec)
{
    return exec->group_id_end;
}

int32_t dp_exec_stage_count(const struct dp_exec *exec)
{
    return exec->config.device == NULL ? 0 : exec->slot_count;
}

struct dp_stage *dp_exec_stage(struct dp_exec *exec, int32_t slot, int32_t *ret_index)
{
    *ret_index = exec->slots[slot].index;
    return exec->slots[slot].stage;
}

int64_t dp_exec_global_batch(const struct dp_exec *exec)
{
    const struct dp_exec_config *config = &exec->config;
    const int64_t microbatches = config->step_microbatches > 0
                                     ? config->step_microbatches
                                     : (int64_t)config->data * config->schedule->microbatches;
    return microbatches * config->micro_batch_size;
}

void dp_exec_set_samples(struct dp_exec *exec, int64_t step, int64_t sample)
{
    exec->sample_origin = sample - step * dp_exec_global_batch(exec);
    exec->levels.step = step - 1;
    if (exec->config.meter != NULL) {
        dp_exec_meter_set_levels(exec->config.meter, &exec->levels);
    }
}

const struct dp_exec_failure *dp_exec_failure(const struct dp_exec *exec)
{
    return &exec->failure;
}

const char *dp_exec_comm_kind_text(dp_exec_comm_kind kind)
{
    static const char *const texts[DP_EXEC_COMM_KIND_COUNT] = {
        [DP_EXEC_COMM_DISPATCH_F] = "dispatch(F)", [DP_EXEC_COMM_COMBINE_F] = "combine(F)",
        [DP_EXEC_COMM_COMBINE_B] = "combine(B)",   [DP_EXEC_COMM_DISPATCH_B] = "dispatch(B)",
        [DP_EXEC_COMM_HOP_F] = "hop(F)",           [DP_EXEC_COMM_HOP_B] = "hop(B)"};
    return texts[kind];
}

int64_t dp_exec_now_ns(const struct dp_exec *exec)
{
    return dp_clock_monotonic_ns() + exec->wall_offset_ns;
}

void dp_exec_record(struct dp_exec *exec, int kind, int64_t step, int64_t start_ns)
{
    struct dp_exec_record record = {.span = {.rank = exec->config.position,
                                             .replica = exec->config.replica,
                                             .kind = (uint8_t)kind,
                                             .step = step,
                                             .start_ns = start_ns,
                                             .end_ns = dp_exec_now_ns(exec)}};
    exec->last_end_ns = record.span.end_ns;
    if (exec->config.meter != NULL) {
        dp_exec_meter_push(exec->config.meter, &record);
    }
}
