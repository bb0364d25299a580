#include "dp/optim.h"

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

struct held_stage {
    struct dp_stage *stage;
    struct dp_device *device;
    int32_t index;
    struct dp_group shared;  // ranks that hold the stage
    struct dp_group experts; // those among them that hold the same experts
    void *m, *v;
};

struct dp_optim {
    struct dp_optimizer_spec spec;
    int64_t steps;
    struct dp_group world;
    struct held_stage *held;      // as given
    struct held_stage **in_order; // by index: every rank sums in the same order of stages
    int32_t count;
};

// What tells the calls of the optimizer apart, in tags.
enum { CALL_SHARED = 1, CALL_EXPERTS, CALL_NORM };

static uint64_t call_tag(uint32_t call, int32_t stage)
{
    return dp_transport_tag(0, (uint32_t)stage, 0, 0, call);
}

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

static dp_status make_moments(struct held_stage *held, struct dp_error *err)
{
    const struct dp_device_ops *ops = held->device->ops;
    size_t bytes =
        (size_t)dp_stage_parameter_count(held->stage) * dp_element_bytes(held->device->element);
    dp_status status = ops->alloc(held->device, DP_MEMORY_MOMENTS, bytes, &held->m, err);
    if (status == DP_OK) {
        status = ops->alloc(held->device, DP_MEMORY_MOMENTS, bytes, &held->v, err);
    }
    if (status == DP_OK) {
        ops->fill(held->device->stream, held->m, 0, bytes);
        ops->fill(held->device->stream, held->v, 0, bytes);
    }
    return status;
}

static dp_status hold(struct held_stage *held, const struct dp_optim_world *world,
                      const struct dp_optim_stage *given, uint32_t group_id_base,
                      struct dp_error *err)
{
    held->stage = given->stage;
    held->device = dp_stage_device(given->stage);
    held->index = given->index;
    uint32_t id = group_id_base + 1 + 2 * (uint32_t)given->index;
    int32_t replica = dp_transport_rank(world->transport) / world->pipeline;
    dp_status status =
        open_group(&held->shared, world, id, given->positions, given->position_count, 0, 1, err);
    if (status == DP_OK) {
        status = open_group(&held->experts, world, id + 1, given->positions, given->position_count,
                            replica % world->expert, world->expert, err);
    }
    return status == DP_OK ? make_moments(held, err) : status;
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

dp_status dp_optim_new(const struct dp_optim_world *world, const struct dp_optimizer_spec *spec,
                       int64_t steps, const struct dp_optim_stage *stages, int32_t stage_count,
                       uint32_t group_id_base, struct dp_optim **ret_optim, struct dp_error *err)
{
    struct dp_optim *optim = dp_new(struct dp_optim);
    optim->spec = *spec;
    optim->steps = steps;
    optim->count = stage_count;
    optim->held = dp_new_array(struct held_stage, (size_t)stage_count);
    optim->in_order = dp_new_array(struct held_stage *, (size_t)stage_count);
    dp_status status = open_world(optim, world, group_id_base, err);
    for (int32_t i = 0; i < stage_count && status == DP_OK; i++) {
        status = hold(&optim->held[i], world, &stages[i], group_id_base, err);
        optim->in_order[i] = &optim->held[i];
    }
    if (status != DP_OK) {
        dp_optim_free(optim);
        return status;
    }
    qsort(optim->in_order, (size_t)stage_count, sizeof optim->in_order[0], by_index);
    *ret_optim = optim;
    return DP_OK;
}

void dp_optim_free(struct dp_optim *optim)
{
    if (optim == NULL) {
        return;
    }
    for (int32_t i = 0; i < optim->count; i++) {
        struct held_stage *held = &optim->held[i];
        dp_group_deinit(&held->shared);
        dp_group_deinit(&held->experts);
        if (held->device != NULL) {
            held->device->ops->free(held->device, held->m);
            held->device->ops->free(held->device, held->v);
        }
    }
    dp_group_deinit(&optim->world);
    free(optim->held);
    free(optim->in_order);
    free(optim);
}

double dp_optim_lr(const struct dp_optimizer_spec *spec, int64_t steps, int64_t step)
{
    if (step < spec->warmup_steps) {
        return spec->lr * (double)step / (double)spec->warmup_steps;
    }
    int64_t decay_steps = steps - spec->warmup_steps;
    if (decay_steps <= 0) {
        return spec->lr;
    }
    double share = (double)(step - spec->warmup_steps) / (double)decay_steps;
    share = share > 1 ? 1 : share;
    return spec->lr_min + (spec->lr - spec->lr_min) * 0.5 * (1 + cos(M_PI * share));
}

static char *element_at(void *buffer, int64_t index, dp_element element)
{
    return (char *)buffer + (size_t)index * dp_element_bytes(element);
}

dp_status dp_optim_sum_gradients(struct dp_optim *optim, struct dp_error *err)
{
    for (int32_t i = 0; i < optim->count; i++) {
        struct held_stage *held = optim->in_order[i];
        dp_element element = held->device->element;
        dp_status status = held->device->ops->stream_sync(held->device->stream, err);
        void *gradients = dp_stage_gradients(held->stage);
        int64_t count = dp_stage_parameter_count(held->stage);
        // With one kind of replica, everything goes in one sum.
        bool is_one = held->experts.count == held->shared.count;
        int64_t shared = is_one ? count : dp_stage_expert_offset(held->stage);
        if (status == DP_OK) {
            status = dp_group_sum(&held->shared, call_tag(CALL_SHARED, held->index), element,
                                  gradients, shared, err);
        }
        if (status == DP_OK && !is_one) {
            status = dp_group_sum(&held->experts, call_tag(CALL_EXPERTS, held->index), element,
                                  element_at(gradients, shared, element), count - shared, err);
        }
        if (status != DP_OK) {
            dp_fail_in(err, "gradients of stage %d", held->index);
            return status;
        }
    }
    return DP_OK;
}

static double sum_squares(const struct held_stage *held, int64_t begin, int64_t end)
{
    double sum = 0;
    void *gradients = dp_stage_gradients(held->stage);
    held->device->ops->sum_squares(held->device->stream, end - begin, DP_OPERAND_REAL,
                                   element_at(gradients, begin, held->device->element), &sum);
    return sum;
}

// Of the tensors that this rank stands for.
static double own_sum_squares(const struct dp_optim *optim)
{
    double sum = 0;
    for (int32_t i = 0; i < optim->count; i++) {
        const struct held_stage *held = optim->in_order[i];
        int64_t shared = dp_stage_expert_offset(held->stage);
        if (held->shared.self == 0) {
            sum += sum_squares(held, 0, shared);
        }
        if (held->experts.self == 0) {
            sum += sum_squares(held, shared, dp_stage_parameter_count(held->stage));
        }
    }
    return sum;
}

static dp_status fail_not_finite(const struct dp_optim *optim, int64_t step, struct dp_error *err)
{
    for (int32_t i = 0; i < optim->count; i++) {
        const struct held_stage *held = optim->in_order[i];
        int32_t count;
        const struct dp_tensor *tensors = dp_stage_tensors(held->stage, &count);
        for (int32_t t = 0; t < count; t++) {
            const struct dp_tensor *tensor = &tensors[t];
            if (!isfinite(sum_squares(held, tensor->offset, tensor->offset + tensor->count))) {
                return dp_fail(err, DP_JOB_FAILED,
                               "step %lld: the gradient of %s (stage %d) is NaN or infinite: a "
                               "smaller optimizer.lr or a longer warm-up may help",
                               (long long)step, tensor->name, held->index);
            }
        }
    }
    return dp_fail(err, DP_JOB_FAILED,
                   "step %lld: a gradient that other ranks hold is NaN or infinite",
                   (long long)step);
}

// Neighbours in the table with the same decay are updated in one go.
static void update_stage(struct held_stage *held, struct dp_adamw *adamw, double weight_decay)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(held->stage, &count);
    dp_element element = held->device->element;
    for (int32_t first = 0, next; first < count; first = next) {
        int64_t end = tensors[first].offset + tensors[first].count;
        for (next = first + 1; next < count && tensors[next].decays == tensors[first].decays &&
                               tensors[next].offset == end;
             next++) {
            end += tensors[next].count;
        }
        int64_t begin = tensors[first].offset;
        adamw->weight_decay = tensors[first].decays ? weight_decay : 0;
        held->device->ops->adamw(held->device->stream, adamw, end - begin,
                                 element_at(dp_stage_gradients(held->stage), begin, element),
                                 element_at(dp_stage_weights(held->stage), begin, element),
                                 element_at(held->m, begin, element),
                                 element_at(held->v, begin, element));
    }
}

dp_status dp_optim_step(struct dp_optim *optim, int64_t step, struct dp_optim_report *ret_report,
                        struct dp_error *err)
{
    DP_CHECK(step > 0);
    const struct dp_optimizer_spec *spec = &optim->spec;
    double squares = own_sum_squares(optim);
    dp_status status =
        dp_group_sum_scalars(&optim->world, call_tag(CALL_NORM, 0), &squares, 1, err);
    if (status != DP_OK) {
        dp_fail_in(err, "gradient norm");
        return status;
    }
    if (!isfinite(squares)) {
        return fail_not_finite(optim, step, err);
    }
    struct dp_optim_report report = {
        .lr = dp_optim_lr(spec, optim->steps, step), .grad_norm = sqrt(squares), .grad_scale = 1};
    if (spec->grad_clip > 0 && report.grad_norm > spec->grad_clip) {
        report.grad_scale = spec->grad_clip / report.grad_norm;
    }
    struct dp_adamw adamw = {.lr = report.lr,
                             .beta1 = spec->beta1,
                             .beta2 = spec->beta2,
                             .eps = spec->eps,
                             .step = step,
                             .grad_scale = report.grad_scale};
    for (int32_t i = 0; i < optim->count; i++) {
        struct held_stage *held = optim->in_order[i];
        update_stage(held, &adamw, spec->weight_decay);
        dp_stage_zero_gradients(held->stage);
        status = held->device->ops->stream_sync(held->device->stream, err);
        if (status != DP_OK) {
            dp_fail_in(err, "update of stage %d", held->index);
            return status;
        }
    }
    *ret_report = report;
    return DP_OK;
}

void dp_optim_moments(struct dp_optim *optim, int32_t index, void **ret_m, void **ret_v)
{
    DP_CHECK(index >= 0 && index < optim->count);
    *ret_m = optim->held[index].m;
    *ret_v = optim->held[index].v;
}

void dp_optim_owns(const struct dp_optim *optim, int32_t index, bool *ret_shared, bool *ret_experts)
{
    DP_CHECK(index >= 0 && index < optim->count);
    *ret_shared = optim->held[index].shared.self == 0;
    *ret_experts = optim->held[index].experts.self == 0;
}
