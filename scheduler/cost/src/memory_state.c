// Bytes that stay for a whole run: parameters with what belongs to them, and buffers.

#include <math.h>

#include "dp/cost.h"
#include "memory_parts.h"

// Weights of a layer that tensor ranks do not split: norms, the router, and latent attention's
// projections down (Megatron-LM replicates them).
static double replicated(const struct dp_model_spec *m, const struct dp_layer_parts *parts)
{
    double down = 0;
    if (m->mla_kv_rank > 0) {
        down = (double)m->hidden * ((double)m->mla_q_rank + m->mla_kv_rank + m->mla_rope_dim);
    }
    return (double)(parts->norms + parts->router + parts->router_biases) + down;
}

static void layer_parameters(const struct dp_price_input *input, int32_t layer,
                             struct dp_unit_parameters *ret)
{
    const struct dp_strategy *s = input->strategy;
    struct dp_layer_parts parts;
    dp_model_layer_parts(input->model, layer, &parts);
    double common = (double)dp_layer_parts_common(&parts);
    double experts = (double)dp_layer_parts_total(&parts) - common;
    double whole = s->tensor > 1 ? replicated(input->model, &parts) : 0;
    ret->dense = whole + (common - whole) / s->tensor;
    ret->experts = experts / ((double)s->expert * s->expert_tensor);
    double attention = (double)parts.attention / s->tensor;
    ret->shapes = ret->dense - attention + (double)parts.expert_each / s->expert_tensor;
    ret->attention_shapes = attention;
}

static double table(const struct dp_price_input *input)
{
    return (double)input->model->hidden * input->model->vocabulary / input->strategy->tensor;
}

void dp_memory_unit_parameters(const struct dp_price_input *input, int unit,
                               struct dp_unit_parameters *ret_parameters)
{
    const struct dp_model_spec *m = input->model;
    double split = 1 - 1.0 / input->strategy->tensor;
    double matrix = (double)m->hidden * m->vocabulary;
    struct dp_unit_parameters count = {0};
    switch (unit) {
    case DP_UNIT_DENSE:
        layer_parameters(input, 0, &count);
        break;
    case DP_UNIT_MOE:
        layer_parameters(input, m->layers - 1, &count);
        break;
    case DP_UNIT_EMBEDDING:
        count.dense = (double)dp_model_embedding_parameters(m) - matrix * split;
        break;
    case DP_UNIT_HEAD:
        count.dense = (double)dp_model_head_parameters(m) - matrix * split;
        count.dense -= m->tied_embedding > 0 ? table(input) : 0;
        break;
    default: {
        layer_parameters(input, m->layers, &count);
        // The projection of two states to one; the rest are norms.
        double projection = 2.0 * m->hidden * m->hidden;
        double layer = (double)dp_model_layer_parameters(m, m->layers);
        double more = (double)dp_model_mtp_parameters(m) / m->mtp_layers - layer;
        count.dense += more - projection * split;
        count.shapes += projection / input->strategy->tensor;
        break;
    }
    }
    count.largest_dense = count.dense;
    count.largest_experts = count.experts;
    *ret_parameters = count;
}

// What a kind of unit adds once, however many of it a rank holds. Layers of all kinds have the same
// attention.
static void add_kind(const struct dp_unit_parameters *one, struct dp_unit_parameters *held)
{
    held->shapes += one->shapes;
    held->attention_shapes = fmax(held->attention_shapes, one->attention_shapes);
    held->largest_dense = fmax(held->largest_dense, one->largest_dense);
    held->largest_experts = fmax(held->largest_experts, one->largest_experts);
}

void dp_memory_held(const struct dp_price_input *input, const struct dp_unit_bytes *units,
                    const struct dp_stage_units *stages, int32_t stages_count,
                    struct dp_unit_parameters *ret_held)
{
    struct dp_unit_parameters held = {0};
    bool has_unit[DP_UNIT_COUNT] = {false};
    bool needs_embedding = false;
    for (int32_t i = 0; i < stages_count; i++) {
        for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
            const struct dp_unit_parameters *one = &units[unit].parameters;
            held.dense += stages[i].count[unit] * one->dense;
            held.experts += stages[i].count[unit] * one->experts;
            has_unit[unit] = has_unit[unit] || stages[i].count[unit] > 0;
        }
        needs_embedding = needs_embedding || stages[i].count[DP_UNIT_MTP] > 0 ||
                          (input->model->tied_embedding > 0 && stages[i].count[DP_UNIT_HEAD] > 0);
    }
    for (int unit = 0; unit < DP_UNIT_COUNT; unit++) {
        if (has_unit[unit]) {
            add_kind(&units[unit].parameters, &held);
        }
    }
    held.dense += needs_embedding && !has_unit[DP_UNIT_EMBEDDING] ? table(input) : 0;
    *ret_held = held;
}

// Of one parameter. An 8-bit product takes the weight and its transpose; both copies stay from one
// step to the next (Transformer Engine), beside the weight itself in bf16.
struct per_parameter {
    double weight, copies, gradient, optimizer;
};

static struct per_parameter per_parameter(const struct dp_price_input *input)
{
    const struct dp_profile *profile = input->profile;
    if (!profile->is_accelerator) {
        return (struct per_parameter){.weight = profile->weight_bytes,
                                      .gradient = profile->gradient_bytes,
                                      .optimizer = profile->optimizer_bytes};
    }
    const struct dp_memory_traits *traits = &profile->memory;
    double moment = traits->moment_bytes > 0 ? traits->moment_bytes : 4;
    double master = traits->master_bytes > 0 ? traits->master_bytes : 4;
    double gradient = traits->gradient_bytes > 0 ? traits->gradient_bytes : 4;
    dp_format format = input->strategy->format;
    if (format == DP_FORMAT_FP32) {
        return (struct per_parameter){.weight = 4, .gradient = gradient, .optimizer = 2 * moment};
    }
    // A scale for each tensor or 128 x 128 weights weighs nothing.
    double copies = format == DP_FORMAT_NVFP4   ? 2 * (0.5 + 1.0 / 16)
                    : format == DP_FORMAT_MXFP8 ? 2 * (1 + 1.0 / 32)
                                                : 2;
    bool has_copies = format != DP_FORMAT_BF16 && format != DP_FORMAT_AUTO;
    double weight = has_copies && traits->weights_as_operands ? 0 : 2;
    return (struct per_parameter){weight, has_copies ? copies : 0, gradient, master + 2 * moment};
}

// Replicas that share the state of dense parameters and of experts.
static double shards_of(const struct dp_price_input *input, bool experts, int32_t copies)
{
    const struct dp_strategy *s = input->strategy;
    if (!input->profile->is_accelerator) {
        double shards = experts ? (double)s->data / s->expert : s->data;
        bool sharded = input->profile->optimizer_sharded || s->shard == DP_SHARD_ZERO1;
        return sharded ? shards : 1;
    }
    if (s->shard == DP_SHARD_NONE) {
        return 1;
    }
    double replicas = (double)s->data * s->context;
    if (experts) {
        replicas = replicas * s->tensor / ((double)s->expert * s->expert_tensor);
    }
    return fmax(replicas * copies, 1);
}

// FSDP gathers a unit at a time, the next one while this one computes: working copies of the two
// largest, and one unit's gradients before they are reduced.
static void add_parameters(const struct dp_price_input *input, double held, double largest,
                           double shards, struct dp_memory_parts *parts)
{
    struct per_parameter bytes = per_parameter(input);
    bool fsdp = input->profile->is_accelerator && input->strategy->shard == DP_SHARD_FSDP;
    double resident = fsdp ? held / shards : held;
    double gathered = fsdp && shards > 1 ? fmin(2 * largest, held) : 0;
    double reduced = fsdp && shards > 1 ? fmin(largest, held) : 0;
    parts->weights +=
        resident * bytes.weight + gathered * bytes.weight + (fsdp ? gathered : held) * bytes.copies;
    parts->gradients += (resident + reduced) * bytes.gradient;
    parts->optimizer += held * bytes.optimizer / shards;
}

// Groups that a rank is a member of, and buffers that hops and the expert exchange arrive in.
static double exchange_bytes(const struct dp_price_input *input)
{
    const struct dp_strategy *s = input->strategy;
    const struct dp_memory_traits *traits = &input->profile->memory;
    struct dp_memory_shape shape = dp_memory_shape_of(input);
    double hidden = input->model->hidden * shape.element;
    bool exchanges = input->model->experts > 0 && s->expert > 1;
    int groups = (s->pipeline > 1) + (s->tensor > 1) + (s->context > 1) + exchanges +
                 (s->data * s->context > 1);
    double bytes = groups * traits->group_bytes;
    bytes += s->pipeline > 1 ? 2 * shape.split * hidden : 0;
    bytes += exchanges ? traits->exchange_rows * shape.rows * hidden : 0;
    return bytes;
}

void dp_memory_state(const struct dp_price_input *input, const struct dp_unit_parameters *held,
                     int32_t copies, struct dp_memory_parts *ret_parts)
{
    struct dp_memory_parts parts = *ret_parts;
    parts.weights = parts.gradients = parts.optimizer = parts.exchange = parts.runtime = 0;
    add_parameters(input, held->dense, held->largest_dense, shards_of(input, false, copies),
                   &parts);
    add_parameters(input, held->experts, held->largest_experts, shards_of(input, true, copies),
                   &parts);
    if (input->profile->is_accelerator) {
        bool scratch = input->profile->memory.scratch_gradients;
        parts.gradients += scratch ? 2 * (held->shapes + held->attention_shapes) : 0;
        parts.exchange = exchange_bytes(input);
        parts.runtime = input->profile->memory.runtime_bytes;
    }
    *ret_parts = parts;
}
