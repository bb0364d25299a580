// Who sums and keeps what: groups, segments and their moments.
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "optim_internal.h"

DP_DEFINE_CLEANUP(cleanup_optim, struct dp_optim, dp_optim_free)

// What the calls of the optimizer are for, in tags.
enum { CALL_SHARED = 1, CALL_EXPERTS, CALL_TIED };

// Segments of one stage: in front of a tied tensor, behind it, experts.
enum { SEGMENTS_MAX = 3 };

// Global ranks of the given positions over replicas first, first + stride, ...
static dp_status open_group(struct dp_group *group, const struct dp_optim_world *world, uint32_t id,
                            const int32_t *positions, int32_t position_count, int32_t first,
                            int32_t stride, struct dp_error *err)
{
    int32_t count = 0;
    DP_AUTO_FREE int32_t *ranks =
        dp_new_array(int32_t, (size_t)world->data * (size_t)position_count);
    for (int32_t d = first; d < world->data; d += stride) {
        for (int32_t i = 0; i < position_count; i++) {
            ranks[count++] = d * world->pipeline + positions[i];
        }
    }
    return dp_group_init(group, world->transport, id, ranks, count, err);
}

static bool has_copies(const struct dp_stage *stage)
{
    return dp_stage_slots(stage) > dp_stage_config(stage)->model.experts;
}

static dp_status hold(struct held_stage *held, const struct dp_optim_world *world,
                      const struct dp_optim_stage *given, uint32_t group_id_base,
                      struct dp_error *err)
{
    held->stage = given->stage;
    held->device = dp_stage_device(given->stage);
    held->index = given->index;
    uint32_t id = group_id_base + 2 + 3 * (uint32_t)given->index;
    int32_t rank = dp_transport_rank(world->transport), position = rank % world->pipeline;
    int32_t replica = rank / world->pipeline;
    dp_status status =
        open_group(&held->shared, world, id, given->positions, given->position_count, 0, 1, err);
    if (status == DP_OK) {
        status = open_group(&held->experts, world, id + 1, given->positions, given->position_count,
                            replica % world->expert, world->expert, err);
    }
    if (status == DP_OK && has_copies(given->stage)) {
        struct dp_optim_world block = *world;
        int32_t first = replica / world->expert * world->expert;
        block.data = first + world->expert;
        status = open_group(&held->peers, &block, id + 2, &position, 1, first, 1, err);
    }
    return status;
}

static int by_index(const void *a, const void *b)
{
    const struct held_stage *const *left = a, *const *right = b;
    return (*left)->index - (*right)->index;
}

static dp_status open_world(struct dp_optim *optim, const struct dp_optim_world *world, uint32_t id,
                            struct dp_error *err)
{
    int32_t count = dp_transport_world(world->transport);
    if (world->pipeline <= 0 || world->data <= 0 || world->expert <= 0 ||
        world->pipeline * world->data != count || world->data % world->expert != 0) {
        return dp_fail(err, DP_INVALID,
                       "pipeline %d x data %d with expert %d does not make a world of %d ranks",
                       world->pipeline, world->data, world->expert, count);
    }
    DP_AUTO_FREE int32_t *ranks = dp_new_array(int32_t, (size_t)count);
    for (int32_t i = 0; i < count; i++) {
        ranks[i] = i;
    }
    return dp_group_init(&optim->world, world->transport, id, ranks, count, err);
}

// The tensor of the stage that lies in another one as well, or NULL.
static const struct dp_tensor *tied_tensor(const struct held_stage *held)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(held->stage, &count);
    for (int32_t i = 0; i < count; i++) {
        if (tensors[i].is_tied) {
            return &tensors[i];
        }
    }
    return NULL;
}

static struct segment *add_segment(struct dp_optim *optim, struct held_stage *held,
                                   struct dp_group *group, uint32_t call, int64_t begin,
                                   int64_t end)
{
    if (begin == end) {
        return NULL;
    }
    struct segment *segment = &optim->segments[optim->segment_count++];
    *segment = (struct segment){
        .group = group,
        .tag = dp_transport_tag(0, (uint32_t)held->index, (uint32_t)optim->segment_count, 0, call),
        .held = held,
        .begin = begin,
        .count = end - begin,
        .part_begin = begin + dp_group_share_begin(end - begin, group->count, group->self),
        .part_end = begin + dp_group_share_begin(end - begin, group->count, group->self + 1)};
    segment->kept_begin = optim->is_sharded ? segment->part_begin : begin;
    segment->kept_end = optim->is_sharded ? segment->part_end : end;
    return segment;
}

static void cut_stage(struct dp_optim *optim, struct held_stage *held)
{
    const struct dp_tensor *tied = tied_tensor(held);
    int64_t count = dp_stage_parameter_count(held->stage);
    // With one kind of replica, everything goes in one sum.
    bool is_one = held->experts.count == held->shared.count;
    int64_t shared = is_one ? count : dp_stage_expert_offset(held->stage);
    int64_t from = 0;
    if (tied != NULL) {
        add_segment(optim, held, &held->shared, CALL_SHARED, 0, tied->offset);
        from = tied->offset + tied->count;
    }
    add_segment(optim, held, &held->shared, CALL_SHARED, from, shared);
    add_segment(optim, held, &held->experts, CALL_EXPERTS, shared, count);
}

// One segment for what is tied, however many stages of this rank have it.
static void cut_tied(struct dp_optim *optim)
{
    struct segment *segment = NULL;
    for (int32_t i = 0; i < optim->count; i++) {
        struct held_stage *held = optim->in_order[i];
        const struct dp_tensor *tied = tied_tensor(held);
        if (tied == NULL) {
            continue;
        }
        if (segment == NULL) {
            segment = add_segment(optim, held, &optim->tied, CALL_TIED, tied->offset,
                                  tied->offset + tied->count);
            // Members know it by stages of different numbers.
            segment->tag = dp_transport_tag(0, 0, 0, 0, CALL_TIED);
        } else {
            DP_CHECK(segment->twin == NULL && segment->count == tied->count);
            segment->twin = held;
            segment->twin_begin = tied->offset;
        }
    }
}

size_t dp_optim_moment_width(const struct dp_optim *optim, const struct held_stage *held)
{
    return optim->is_bf16 ? sizeof(uint16_t) : dp_device_real_bytes(held->device);
}

static dp_status make_moments(struct dp_optim *optim, struct segment *segment, struct dp_error *err)
{
    struct dp_device *device = segment->held->device;
    const struct dp_device_ops *ops = device->ops;
    size_t bytes = (size_t)(segment->kept_end - segment->kept_begin) *
                   dp_optim_moment_width(optim, segment->held);
    dp_status status = ops->alloc(device, DP_MEMORY_MOMENTS, bytes, &segment->m, err);
    if (status == DP_OK) {
        status = ops->alloc(device, DP_MEMORY_MOMENTS, bytes, &segment->v, err);
    }
    if (status == DP_OK) {
        ops->fill(device->stream, segment->m, 0, bytes);
        ops->fill(device->stream, segment->v, 0, bytes);
    }
    return status;
}

static dp_status cut(struct dp_optim *optim, struct dp_error *err)
{
    qsort(optim->in_order, (size_t)optim->count, sizeof optim->in_order[0], by_index);
    optim->segments = dp_new_array(struct segment, (size_t)optim->count * SEGMENTS_MAX + 1);
    for (int32_t i = 0; i < optim->count; i++) {
        cut_stage(optim, optim->in_order[i]);
    }
    cut_tied(optim);
    dp_status status = DP_OK;
    for (int32_t i = 0; i < optim->segment_count && status == DP_OK; i++) {
        status = make_moments(optim, &optim->segments[i], err);
    }
    return status;
}

static dp_status read_spec(struct dp_optim *optim, const struct dp_optim_world *world,
                           struct dp_error *err)
{
    dp_moments moments = DP_MOMENTS_FP32;
    dp_lr_schedule schedule;
    dp_status status = dp_moments_parse(optim->spec.moments, &moments, err);
    if (status == DP_OK) {
        status = dp_lr_schedule_parse(optim->spec.schedule, &schedule, err);
    }
    if (status == DP_OK && world->shard == DP_SHARD_FSDP) {
        status = dp_fail(err, DP_UNSUPPORTED,
                         "[parallel] shard = \"fsdp\" is planned, but not run; set zero1 or none");
    }
    optim->is_bf16 = moments == DP_MOMENTS_BF16;
    optim->is_sharded = world->shard == DP_SHARD_ZERO1;
    optim->pipeline = world->pipeline;
    optim->expert = world->expert;
    return status;
}

dp_status dp_optim_new(const struct dp_optim_world *world, const struct dp_optimizer_spec *spec,
                       int64_t steps, const struct dp_optim_stage *stages, int32_t stage_count,
                       uint32_t group_id_base, struct dp_optim **ret_optim, struct dp_error *err)
{
    DP_CLEANUP(cleanup_optim) struct dp_optim *optim = dp_new(struct dp_optim);
    optim->spec = *spec;
    optim->steps = steps;
    optim->count = stage_count;
    optim->held = dp_new_array(struct held_stage, (size_t)stage_count);
    optim->in_order = dp_new_array(struct held_stage *, (size_t)stage_count);
    dp_status status = read_spec(optim, world, err);
    if (status == DP_OK) {
        status = open_world(optim, world, group_id_base, err);
    }
    for (int32_t i = 0; i < stage_count && status == DP_OK; i++) {
        status = hold(&optim->held[i], world, &stages[i], group_id_base, err);
        optim->in_order[i] = &optim->held[i];
        if (status == DP_OK && optim->tied.count == 0 && tied_tensor(&optim->held[i]) != NULL) {
            DP_CHECK(stages[i].tied_position_count > 0);
            status = open_group(&optim->tied, world, group_id_base + 1, stages[i].tied_positions,
                                stages[i].tied_position_count, 0, 1, err);
        }
    }
    if (status == DP_OK) {
        status = cut(optim, err);
    }
    if (status == DP_OK) {
        *ret_optim = dp_steal(optim);
    }
    return status;
}

void dp_optim_free(struct dp_optim *optim)
{
    if (optim == NULL) {
        return;
    }
    for (int32_t i = 0; i < optim->segment_count; i++) {
        struct dp_device *device = optim->segments[i].held->device;
        device->ops->free(device, optim->segments[i].m);
        device->ops->free(device, optim->segments[i].v);
    }
    for (int32_t i = 0; i < optim->count; i++) {
        dp_group_deinit(&optim->held[i].shared);
        dp_group_deinit(&optim->held[i].experts);
        dp_group_deinit(&optim->held[i].peers);
    }
    dp_group_deinit(&optim->world);
    dp_group_deinit(&optim->tied);
    dp_optim_free_loads(optim);
    free(optim->since);
    free(optim->segments);
    free(optim->held);
    free(optim->in_order);
    free(optim);
}

int32_t dp_optim_range_count(const struct dp_optim *optim)
{
    return optim->segment_count;
}

void dp_optim_range_at(const struct dp_optim *optim, int32_t index,
                       struct dp_optim_range *ret_range)
{
    DP_CHECK(index >= 0 && index < optim->segment_count);
    const struct segment *segment = &optim->segments[index];
    *ret_range = (struct dp_optim_range){.stage = (int32_t)(segment->held - optim->held),
                                         .begin = segment->kept_begin,
                                         .end = segment->kept_end,
                                         .m = segment->m,
                                         .v = segment->v,
                                         .is_bf16 = optim->is_bf16,
                                         .writes = optim->is_sharded || segment->group->self == 0};
}

int64_t dp_optim_moment_bytes(const struct dp_optim *optim)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < optim->segment_count; i++) {
        const struct segment *segment = &optim->segments[i];
        bytes += 2 * (segment->kept_end - segment->kept_begin) *
                 (int64_t)dp_optim_moment_width(optim, segment->held);
    }
    return bytes;
}

void dp_optim_owns(const struct dp_optim *optim, int32_t index, bool *ret_shared, bool *ret_experts)
{
    DP_CHECK(index >= 0 && index < optim->count);
    *ret_shared = optim->held[index].shared.self == 0;
    *ret_experts = optim->held[index].experts.self == 0;
}
