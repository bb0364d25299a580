// A step: sums, norm, clipping, AdamW.
#include <math.h>

#include "dp/check.h"
#include "optim_internal.h"

enum { CALL_NORM = 8 };

static dp_status sum_segment(struct dp_optim *optim, const struct segment *segment,
                             struct dp_error *err)
{
    struct dp_device *device = segment->held->device;
    char *gradients =
        real_at(segment->held, dp_stage_gradients(segment->held->stage), segment->begin);
    if (segment->twin != NULL) {
        device->ops->add(
            device->stream, segment->count, DP_OPERAND_REAL,
            real_at(segment->twin, dp_stage_gradients(segment->twin->stage), segment->twin_begin),
            DP_OPERAND_REAL, gradients);
    }
    dp_status status = device->ops->stream_sync(device->stream, err);
    if (status != DP_OK) {
        return status;
    }
    dp_element real = dp_element_real(device->element);
    return (optim->is_sharded ? dp_group_reduce_scatter : dp_group_sum)(
        segment->group, segment->tag, real, gradients, segment->count, err);
}

dp_status dp_optim_sum_gradients(struct dp_optim *optim, struct dp_error *err)
{
    for (int32_t i = 0; i < optim->count; i++) {
        struct held_stage *held = optim->in_order[i];
        dp_status status = held->peers.count > 0 ? dp_optim_sum_copies(held, err) : DP_OK;
        if (status != DP_OK) {
            dp_fail_in(err, "gradients of stage %d", held->index);
            return status;
        }
    }
    for (int32_t i = 0; i < optim->segment_count; i++) {
        dp_status status = sum_segment(optim, &optim->segments[i], err);
        if (status != DP_OK) {
            dp_fail_in(err, "gradients of stage %d", optim->segments[i].held->index);
            return status;
        }
    }
    return DP_OK;
}

static double sum_squares(const struct held_stage *held, int64_t begin, int64_t end)
{
    double sum = 0;
    held->device->ops->sum_squares(held->device->stream, end - begin, DP_OPERAND_REAL,
                                   real_at(held, dp_stage_gradients(held->stage), begin), &sum);
    return sum;
}

// An expert counts once, however many slots it lies in.
static double squares_without_copies(const struct segment *segment)
{
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(segment->held->stage, &count);
    double sum = 0;
    for (int32_t t = 0; t < count; t++) {
        int64_t begin = tensors[t].offset, end = begin + tensors[t].count;
        begin = begin > segment->part_begin ? begin : segment->part_begin;
        end = end < segment->part_end ? end : segment->part_end;
        if (!tensors[t].is_copy && begin < end) {
            sum += sum_squares(segment->held, begin, end);
        }
    }
    return sum;
}

// Of this rank's parts, also where it has the sums of more: so the norm has the same bits whether
// moments are sharded or not.
static double own_sum_squares(const struct dp_optim *optim)
{
    double sum = 0;
    for (int32_t i = 0; i < optim->segment_count; i++) {
        const struct segment *segment = &optim->segments[i];
        sum += segment->held->peers.count > 0
                   ? squares_without_copies(segment)
                   : sum_squares(segment->held, segment->part_begin, segment->part_end);
    }
    return sum;
}

// [*begin, *end) becomes what of the tensor the segment has moments for.
static bool overlap(const struct segment *segment, const struct dp_tensor *tensor, int64_t *begin,
                    int64_t *end)
{
    int64_t last = tensor->offset + tensor->count;
    *begin = tensor->offset > segment->kept_begin ? tensor->offset : segment->kept_begin;
    *end = last < segment->kept_end ? last : segment->kept_end;
    return *begin < *end;
}

static dp_status fail_not_finite(const struct dp_optim *optim, int64_t step, struct dp_error *err)
{
    for (int32_t i = 0; i < optim->segment_count; i++) {
        const struct segment *segment = &optim->segments[i];
        int32_t count;
        const struct dp_tensor *tensors = dp_stage_tensors(segment->held->stage, &count);
        for (int32_t t = 0; t < count; t++) {
            int64_t begin, end;
            if (overlap(segment, &tensors[t], &begin, &end) &&
                !isfinite(sum_squares(segment->held, begin, end))) {
                return dp_fail(err, DP_JOB_FAILED,
                               "step %lld: the gradient of %s (stage %d) is NaN or infinite: a "
                               "smaller optimizer.lr or a longer warm-up may help",
                               (long long)step, tensors[t].name, segment->held->index);
            }
        }
    }
    return dp_fail(err, DP_JOB_FAILED,
                   "step %lld: a gradient that other ranks hold is NaN or infinite",
                   (long long)step);
}

// Of the segment's moments, the i-th value.
static char *moment_at(const struct dp_optim *optim, const struct segment *segment, void *moments,
                       int64_t index)
{
    return (char *)moments +
           (size_t)(index - segment->kept_begin) * dp_optim_moment_width(optim, segment->held);
}

// Neighbours in the table with the same decay are updated in one go.
static void update_kept(const struct dp_optim *optim, const struct segment *segment,
                        struct dp_adamw *adamw)
{
    const struct held_stage *held = segment->held;
    int32_t count;
    const struct dp_tensor *tensors = dp_stage_tensors(held->stage, &count);
    for (int32_t t = 0; t < count;) {
        int64_t begin, end;
        if (!overlap(segment, &tensors[t], &begin, &end)) {
            t++;
            continue;
        }
        bool decays = tensors[t].decays;
        int64_t next_begin, next_end;
        for (t++; t < count && tensors[t].decays == decays &&
                  overlap(segment, &tensors[t], &next_begin, &next_end) && next_begin == end;
             t++) {
            end = next_end;
        }
        adamw->weight_decay = decays ? optim->spec.weight_decay : 0;
        held->device->ops->adamw(held->device->stream, adamw, end - begin,
                                 real_at(held, dp_stage_gradients(held->stage), begin),
                                 real_at(held, dp_stage_weights(held->stage), begin),
                                 moment_at(optim, segment, segment->m, begin),
                                 moment_at(optim, segment, segment->v, begin));
    }
}

// Every member's part of the weights becomes known to all, in all copies of this rank.
static dp_status spread(const struct dp_optim *optim, const struct segment *segment,
                        struct dp_error *err)
{
    struct held_stage *held = segment->held;
    struct dp_device *device = held->device;
    char *weights = real_at(held, dp_stage_weights(held->stage), segment->begin);
    dp_status status = device->ops->stream_sync(device->stream, err);
    if (status == DP_OK && optim->is_sharded) {
        status = dp_group_all_gather(segment->group, segment->tag, dp_device_real_bytes(device),
                                     weights, segment->count, err);
    }
    if (status == DP_OK && segment->twin != NULL) {
        device->ops->copy(
            device->stream,
            real_at(segment->twin, dp_stage_weights(segment->twin->stage), segment->twin_begin),
            weights, (size_t)segment->count * dp_device_real_bytes(device));
    }
    return status;
}

dp_status dp_optim_refresh(struct dp_optim *optim, struct dp_error *err)
{
    for (int32_t i = 0; i < optim->count; i++) {
        struct held_stage *held = optim->in_order[i];
        dp_stage_refresh(held->stage);
        dp_status status = held->device->ops->stream_sync(held->device->stream, err);
        if (status != DP_OK) {
            dp_fail_in(err, "weights of stage %d", held->index);
            return status;
        }
    }
    return DP_OK;
}

dp_status dp_optim_norm(struct dp_optim *optim, int64_t step, double *ret_norm,
                        struct dp_error *err)
{
    double squares = own_sum_squares(optim);
    dp_status status = dp_group_sum_scalars(&optim->world, dp_transport_tag(0, 0, 0, 0, CALL_NORM),
                                            &squares, 1, err);
    if (status != DP_OK) {
        dp_fail_in(err, "gradient norm");
        return status;
    }
    if (!isfinite(squares)) {
        return fail_not_finite(optim, step, err);
    }
    *ret_norm = sqrt(squares);
    return DP_OK;
}

void dp_optim_apply(struct dp_optim *optim, int64_t step, double norm,
                    struct dp_optim_report *ret_report)
{
    DP_CHECK(step > 0);
    const struct dp_optimizer_spec *spec = &optim->spec;
    struct dp_optim_report report = {
        .lr = dp_optim_lr(spec, optim->steps, step), .grad_norm = norm, .grad_scale = 1};
    if (spec->grad_clip > 0 && report.grad_norm > spec->grad_clip) {
        report.grad_scale = spec->grad_clip / report.grad_norm;
    }
    struct dp_adamw adamw = {.lr = report.lr,
                             .beta1 = spec->beta1,
                             .beta2 = spec->beta2,
                             .eps = spec->eps,
                             .step = step,
                             .grad_scale = report.grad_scale,
                             .bf16_moments = optim->is_bf16};
    for (int32_t i = 0; i < optim->segment_count; i++) {
        update_kept(optim, &optim->segments[i], &adamw);
    }
    *ret_report = report;
}

dp_status dp_optim_spread(struct dp_optim *optim, struct dp_error *err)
{
    for (int32_t i = 0; i < optim->segment_count; i++) {
        const struct segment *segment = &optim->segments[i];
        dp_status status = spread(optim, segment, err);
        if (status != DP_OK) {
            dp_fail_in(err, "update of stage %d", segment->held->index);
            return status;
        }
    }
    for (int32_t i = 0; i < optim->count; i++) {
        dp_stage_zero_gradients(optim->in_order[i]->stage);
    }
    return dp_optim_refresh(optim, err);
}

dp_status dp_optim_step(struct dp_optim *optim, int64_t step, struct dp_optim_report *ret_report,
                        struct dp_error *err)
{
    double norm;
    struct dp_optim_report report;
    dp_status status = dp_optim_norm(optim, step, &norm, err);
    if (status == DP_OK) {
        dp_optim_apply(optim, step, norm, &report);
        status = dp_optim_spread(optim, err);
    }
    if (status == DP_OK) {
        *ret_report = report;
    }
    return status;
}
