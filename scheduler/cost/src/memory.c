// Bytes of units, chunks and held parameters.

#include "memory_parts.h"
#include "price_internal.h"

#include <math.h>
#include <string.h>

struct dp_memory_shape dp_memory_shape_of(const struct dp_price_input *input)
{
    const struct dp_strategy *strategy = input->strategy;
    double tokens = (double)strategy->micro_batch_size * input->sequence / strategy->context;
    double tensor = strategy->tensor;
    double operand = dp_format_bytes(strategy->format);
    // Tensor ranks of an expert gather each other's rows, so that a row is on all of them.
    double rows = tokens * input->model->top_k * fmax(strategy->imbalance, 1) *
                  strategy->expert_tensor / tensor;
    return (struct dp_memory_shape){
        .model = input->model,
        .traits = &input->profile->memory,
        .recompute = strategy->recompute,
        .tokens = tokens,
        .split = strategy->sequence_parallel ? tokens / tensor : tokens,
        .sequence = input->sequence,
        .rows = rows,
        .tensor = tensor,
        .context = strategy->context,
        .expert_tensor = strategy->expert_tensor,
        .element = strategy->format == DP_FORMAT_FP32 ? 4 : 2,
        .operand = operand,
        .eight_bit = operand < 2,
    };
}

static double sum_kept(const struct dp_memory_list *list, size_t begin, size_t end, bool recomputed)
{
    double bytes = 0;
    for (size_t i = begin; i < end; i++) {
        const struct dp_memory_tensor *tensor = &list->tensors[i];
        bytes += tensor->recomputed == recomputed ? tensor->elements * tensor->bytes : 0;
    }
    return bytes;
}

// Rows that tensor ranks gather before a product and scatter after it.
static double gathered(const struct dp_memory_shape *s)
{
    return s->split < s->tokens ? s->tokens : 0;
}

// Gradients while a backward pass is inside a layer, beyond the activations that they replace: of
// the FFN's activation and of its first product, and of the residual; of an expert's output.
static double layer_gradients(const struct dp_memory_shape *s, bool is_moe)
{
    const struct dp_model_spec *m = s->model;
    double gates = m->ffn_matrices == 2 ? 1 : 2;
    double residual = 2 * (s->split + gathered(s)) * m->hidden * s->element;
    if (!is_moe) {
        return residual + s->tokens * gates * m->ffn / s->tensor * s->element;
    }
    double width = fmax(m->hidden, gates * m->expert_ffn / s->expert_tensor);
    return residual + s->rows * (width + m->expert_ffn / s->expert_tensor) * s->element;
}

// Rows that leave and arrive, and an expert's output before it is added up.
static double layer_forward(const struct dp_memory_shape *s, bool is_moe)
{
    double rows = gathered(s) + (is_moe ? 2 * s->rows : 0);
    return rows * s->model->hidden * s->element;
}

// Logits in bf16 beside the fp32 copy that the loss takes, and their gradient; the gradient of the
// last output, and of the weight where one is made before it is added to the others.
static void head_transients(const struct dp_memory_shape *s, struct dp_unit_bytes *unit)
{
    double width = s->model->vocabulary / s->tensor;
    double logits = s->traits->loss_fused ? 0 : 2 * s->tokens * width;
    double rows = s->tokens + gathered(s);
    double weight = s->traits->scratch_gradients ? 2 * width : 0;
    double backward = logits + s->model->hidden * (rows * s->element + weight);
    unit->during_forward = fmax(unit->during_forward, logits);
    unit->during_backward = fmax(unit->during_backward, backward);
}

static void add_transients(const struct dp_memory_shape *s, int unit,
                           const struct dp_memory_list *list, struct dp_unit_bytes *ret)
{
    bool last_is_moe = dp_model_layer_is_moe(s->model, s->model->layers - 1);
    bool is_moe = unit == DP_UNIT_MOE || (unit == DP_UNIT_MTP && last_is_moe);
    if (unit != DP_UNIT_EMBEDDING && unit != DP_UNIT_HEAD) {
        double again = sum_kept(list, 0, list->count, true);
        double attention = sum_kept(list, 0, list->ffn_begin, true);
        ret->during_forward = layer_forward(s, is_moe) + fmax(attention, again - attention);
        ret->during_backward = layer_gradients(s, is_moe) + again;
    }
    if (unit == DP_UNIT_HEAD || unit == DP_UNIT_MTP) {
        head_transients(s, ret);
    }
}

static void unit_bytes(const struct dp_price_input *input, const struct dp_memory_shape *shape,
                       int unit, struct dp_unit_bytes *ret)
{
    struct dp_memory_list list;
    dp_memory_list_unit(shape, unit, &list);
    struct dp_unit_bytes bytes = {.after_forward = sum_kept(&list, 0, list.count, false)};
    for (size_t i = 0; i < list.count; i++) {
        bytes.after_input += list.tensors[i].elements * list.tensors[i].deferred;
    }
    add_transients(shape, unit, &list, &bytes);
    bytes.result = shape->split * shape->model->hidden * shape->element;
    dp_memory_unit_parameters(input, unit, &bytes.parameters);
    *ret = bytes;
}

static bool has_unit(const struct dp_model_spec *m, int unit)
{
    switch (unit) {
    case DP_UNIT_DENSE:
        return m->experts == 0 || m->dense_layers > 0;
    case DP_UNIT_MOE:
        return m->experts > 0 && m->dense_layers < m->layers;
    case DP_UNIT_MTP:
        return m->mtp_layers > 0;
    default:
        return true;
    }
}

void dp_memory_units(const struct dp_price_input *input, struct dp_unit_bytes *ret_units)
{
    if (!input->profile->is_accelerator) {
        dp_memory_units_of_cpu(input, ret_units);
        return;
    }
    struct dp_memory_shape shape = dp_memory_shape_of(input);
    for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
        ret_units[unit] = (struct dp_unit_bytes){0};
        if (has_unit(input->model, unit)) {
            unit_bytes(input, &shape, unit, &ret_units[unit]);
        }
    }
}

size_t dp_memory_tensors(const struct dp_price_input *input, int unit,
                         struct dp_memory_tensor *ret_tensors)
{
    if (!input->profile->is_accelerator || !has_unit(input->model, unit)) {
        return 0;
    }
    struct dp_memory_shape shape = dp_memory_shape_of(input);
    struct dp_memory_list list;
    dp_memory_list_unit(&shape, unit, &list);
    memcpy(ret_tensors, list.tensors, list.count * sizeof(list.tensors[0]));
    return list.count;
}

// Units in the order of a forward pass.
static const int in_order[] = {DP_UNIT_EMBEDDING, DP_UNIT_DENSE, DP_UNIT_MOE, DP_UNIT_HEAD,
                               DP_UNIT_MTP};

// Highest levels inside a chunk's passes, from none of it kept: layers one after another, forward
// with all before it kept; backward from the last, where what comes after it is gone or, in I,
// waits for W. Among equal units a level is highest at one of the two ends.
void dp_memory_chunk(const struct dp_unit_bytes *units, const struct dp_stage_units *stage,
                     struct dp_chunk_bytes *ret_chunk)
{
    double kept = 0, deferred = 0, forward = 0, backward = 0, input = 0;
    bool is_last = stage->count[DP_UNIT_HEAD] > 0, is_first = stage->count[DP_UNIT_EMBEDDING] > 0;
    double result = 0, all_deferred = 0;
    for (size_t i = 0; i < DP_UNIT_COUNT; i++) {
        all_deferred += stage->count[in_order[i]] * units[in_order[i]].after_input;
    }
    for (size_t i = 0; i < DP_UNIT_COUNT; i++) {
        const struct dp_unit_bytes *unit = &units[in_order[i]];
        int32_t count = stage->count[in_order[i]];
        if (count == 0) {
            continue;
        }
        double first_kept = kept + unit->after_forward;
        double first_waiting = all_deferred - deferred - unit->after_input;
        kept += count * unit->after_forward;
        deferred += count * unit->after_input;
        forward = fmax(forward, kept + unit->during_forward);
        backward = fmax(backward, kept + unit->during_backward);
        input = fmax(input, unit->during_backward +
                                fmax(kept + all_deferred - deferred, first_kept + first_waiting));
        result = unit->result;
    }
    *ret_chunk = (struct dp_chunk_bytes){
        .after_forward = kept,
        .after_input = deferred,
        .forward_peak = fmax(forward, kept + (is_last ? 0 : result)),
        .backward_peak = fmax(backward - kept, 0),
        .input_peak = fmax(fmax(input, deferred + (is_first ? 0 : result)) - kept, 0),
    };
}

double dp_memory_total(const struct dp_memory_parts *parts)
{
    return parts->weights + parts->gradients + parts->optimizer + parts->activations +
           parts->deferred + parts->transient + parts->exchange + parts->runtime;
}
