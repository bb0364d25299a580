#include "stage.h"

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

static const struct {
    dp_component_kind kind;
    const char *text;
} kind_texts[] = {
    {DP_COMPONENT_EMBEDDING, "embedding"},
    {DP_COMPONENT_ATTENTION, "attention"},
    {DP_COMPONENT_FFN, "ffn"},
    {DP_COMPONENT_DISPATCH, "dispatch"},
    {DP_COMPONENT_EXPERTS, "experts"},
    {DP_COMPONENT_COMBINE, "combine"},
    {DP_COMPONENT_HEAD, "head"},
    {DP_COMPONENT_MTP, "mtp"},
};

const char *dp_component_kind_text(dp_component_kind kind)
{
    DP_CHECK(kind_texts[kind].kind == kind);
    return kind_texts[kind].text;
}

static bool layer_is_dense(const struct dp_model_spec *model, int32_t layer)
{
    return model->experts == 0 || layer < model->dense_layers;
}

static dp_status check_kind(const struct dp_model_spec *model, struct dp_error *err)
{
    if (model->mtp_layers > 1) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "model %s: of %d layers of multi-token prediction one is run; set "
                       "mtp_layers to 1",
                       model->name, model->mtp_layers);
    }
    if (model->mla_kv_rank > 0 &&
        (model->mla_nope_dim < 1 || model->mla_rope_dim < 2 || model->mla_v_dim < 1 ||
         model->mla_rope_dim % 2 != 0 || model->qk_norm > 0)) {
        return dp_fail(err, DP_INVALID,
                       "model %s: heads of latent attention are %d + %d wide with values of %d; "
                       "all must be positive, the second even for rotary pairs, and there are no "
                       "norms of queries and keys",
                       model->name, model->mla_nope_dim, model->mla_rope_dim, model->mla_v_dim);
    }
    return DP_OK;
}

static dp_status check_shapes(const struct dp_model_spec *model, struct dp_error *err)
{
    if (model->hidden < 1 || model->vocabulary < 1 || model->heads < 1 || model->kv_heads < 1 ||
        model->heads % model->kv_heads != 0) {
        return dp_fail(err, DP_INVALID,
                       "model %s: hidden %d, vocabulary %d and heads %d must be positive, and "
                       "kv_heads %d must divide heads",
                       model->name, model->hidden, model->vocabulary, model->heads,
                       model->kv_heads);
    }
    if (model->head_dim < 2 || model->head_dim % 2 != 0) {
        return dp_fail(err, DP_INVALID, "model %s: head_dim %d must be even, for rotary pairs",
                       model->name, model->head_dim);
    }
    if (model->rotary_dim < 0 || model->rotary_dim > model->head_dim ||
        model->rotary_dim % 2 != 0) {
        return dp_fail(err, DP_INVALID,
                       "model %s: rotary_dim %d must be even and at most head_dim, %d", model->name,
                       model->rotary_dim, model->head_dim);
    }
    if (model->experts > 0 &&
        (model->top_k < 1 || model->top_k > model->experts || model->expert_ffn < 1)) {
        return dp_fail(err, DP_INVALID,
                       "model %s: top_k %d must be between 1 and experts %d, and expert_ffn %d "
                       "positive",
                       model->name, model->top_k, model->experts, model->expert_ffn);
    }
    if (model->experts > 0 && model->expert_groups > 1 &&
        (model->experts % model->expert_groups != 0 || model->top_groups < 1 ||
         model->top_groups > model->expert_groups ||
         model->top_k > model->experts / model->expert_groups * model->top_groups)) {
        return dp_fail(err, DP_INVALID,
                       "model %s: %d expert groups must divide the %d experts, and top_k %d "
                       "must fit into top_groups %d of them",
                       model->name, model->expert_groups, model->experts, model->top_k,
                       model->top_groups);
    }
    return DP_OK;
}

static dp_status check_config(const struct dp_device *device, const struct dp_stage_config *config,
                              struct dp_error *err)
{
    const struct dp_model_spec *model = &config->model;
    dp_status status = check_kind(model, err);
    if (status == DP_OK) {
        status = check_shapes(model, err);
    }
    if (status != DP_OK) {
        return status;
    }
    if (config->layer_begin < 0 || config->layer_begin >= config->layer_end ||
        config->layer_end > model->layers) {
        return dp_fail(err, DP_INVALID, "a stage of layers [%d, %d) does not lie in the %d layers",
                       config->layer_begin, config->layer_end, model->layers);
    }
    if (config->ep_size < 1 || config->ep_rank < 0 || config->ep_rank >= config->ep_size ||
        (model->experts > 0 && model->experts % config->ep_size != 0)) {
        return dp_fail(err, DP_INVALID,
                       "expert parallel rank %d of %d: the size must divide the %d experts",
                       config->ep_rank, config->ep_size, model->experts);
    }
    if (config->expert_slots != 0 &&
        (config->expert_slots < model->experts || config->expert_slots > DP_EXPERT_SLOTS_MAX ||
         config->expert_slots % config->ep_size != 0)) {
        return dp_fail(err, DP_INVALID,
                       "%d slots hold no copy of each of %d experts in equal shares of %d ranks",
                       config->expert_slots, model->experts, config->ep_size);
    }
    if (config->expert_slots > model->experts && config->ep_size == 1) {
        return dp_fail(err, DP_INVALID,
                       "%d slots for %d experts on one rank: copies are for other ranks",
                       config->expert_slots, model->experts);
    }
    if (config->fp8 && dp_element_real(device->element) != DP_F32) {
        return dp_fail(err, DP_UNSUPPORTED, "fp8 products are run on devices of bf16 or fp32");
    }
    if (config->sequence < 1 || config->sequence > DP_SEQUENCE_MAX) {
        return dp_fail(err, DP_INVALID, "a sequence of %d tokens", config->sequence);
    }
    return DP_OK;
}

bool dp_stage_predicts(const struct dp_stage_config *config)
{
    return config->has_head && config->model.mtp_layers > 0;
}

static void add_component(struct dp_stage *stage, dp_component_kind kind, int32_t layer)
{
    stage->components[stage->component_count++] = (struct dp_component){kind, layer};
}

static void list_components(struct dp_stage *stage)
{
    const struct dp_stage_config *config = &stage->config;
    stage->components = dp_new_array(struct dp_component, (size_t)stage->layer_count * 4 + 3);
    if (config->has_embedding) {
        add_component(stage, DP_COMPONENT_EMBEDDING, -1);
    }
    for (int32_t layer = config->layer_begin; layer < config->layer_end; layer++) {
        bool dense = layer_is_dense(&config->model, layer);
        stage->layers[layer - config->layer_begin].dense = dense;
        add_component(stage, DP_COMPONENT_ATTENTION, layer);
        if (dense) {
            add_component(stage, DP_COMPONENT_FFN, layer);
        } else {
            add_component(stage, DP_COMPONENT_DISPATCH, layer);
            add_component(stage, DP_COMPONENT_EXPERTS, layer);
            add_component(stage, DP_COMPONENT_COMBINE, layer);
        }
    }
    if (config->has_head) {
        add_component(stage, DP_COMPONENT_HEAD, -1);
    }
    if (dp_stage_predicts(config)) {
        stage->layers[stage->layer_count - 1].dense =
            layer_is_dense(&config->model, config->layer_end);
        add_component(stage, DP_COMPONENT_MTP, -1);
    }
}

static dp_status alloc_buffers(struct dp_stage *stage, struct dp_error *err)
{
    struct dp_device *device = stage->device;
    const size_t count = (size_t)stage->parameter_count, bytes = count * stage->real_bytes;
    dp_status status = device->ops->alloc(device, DP_MEMORY_WEIGHTS, bytes, &stage->weights, err);
    if (status == DP_OK) {
        status = device->ops->alloc(device, DP_MEMORY_GRADIENTS, bytes, &stage->gradients, err);
    }
    if (status == DP_OK) {
        status = dp_stage_make_angles(stage, err);
    }
    if (status == DP_OK && device->element != dp_element_real(device->element)) {
        status = device->ops->alloc(device, DP_MEMORY_WEIGHTS, count * stage->element_bytes,
                                    &stage->element_weights, err);
    }
    stage->gemm_weights = stage->element_weights != NULL ? stage->element_weights : stage->weights;
    return status;
}

static void measure_attention(struct dp_stage *stage)
{
    const struct dp_model_spec *m = &stage->config.model;
    if (m->mla_kv_rank > 0) {
        stage->q_width = m->heads * m->mla_v_dim;
        stage->qkv_width = m->heads * (m->mla_nope_dim + m->mla_rope_dim);
    } else {
        stage->q_width = m->heads * m->head_dim;
        stage->qkv_width = (m->heads + 2 * m->kv_heads) * m->head_dim;
    }
}

DP_DEFINE_CLEANUP(cleanup_stage, struct dp_stage, dp_stage_free)

dp_status dp_stage_new(struct dp_device *device, const struct dp_stage_config *config,
                       struct dp_stage **ret_stage, struct dp_error *err)
{
    dp_status status = check_config(device, config, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_model_spec *model = &config->model;
    DP_CLEANUP(cleanup_stage) struct dp_stage *stage = dp_new(struct dp_stage);
    stage->config = *config;
    stage->device = device;
    stage->element_bytes = dp_element_bytes(device->element);
    stage->real_bytes = dp_device_real_bytes(device);
    stage->local = dp_local_exchanger(stage);
    if (config->exchanger == NULL && config->ep_size == 1) {
        stage->config.exchanger = &stage->local;
    }
    stage->layer_count =
        config->layer_end - config->layer_begin + (dp_stage_predicts(config) ? 1 : 0);
    stage->layers = dp_new_array(struct dp_layer_tensors, (size_t)stage->layer_count);
    stage->shared_width = model->shared_experts * model->expert_ffn;
    measure_attention(stage);
    stage->workspace = config->workspace;
    if (stage->workspace == NULL) {
        stage->workspace = stage->own_workspace = dp_workspace_new(device, config->poison);
    }
    list_components(stage);
    dp_stage_make_placement(stage);
    dp_stage_lay_out_tensors(stage);
    status = alloc_buffers(stage, err);
    if (status == DP_OK) {
        status = dp_stage_make_balance(stage, err);
    }
    if (status == DP_OK) {
        status = dp_stage_make_fp8(stage, err);
    }
    if (status == DP_OK && config->offload != 0) {
        status = device->ops->stream_open(device, &stage->copies, err);
    }
    if (status != DP_OK) {
        return status;
    }
    dp_stage_draw_weights(stage);
    dp_stage_refresh(stage);
    dp_stage_zero_gradients(stage);
    *ret_stage = dp_steal(stage);
    return DP_OK;
}

void dp_stage_free(struct dp_stage *stage)
{
    if (stage == NULL) {
        return;
    }
    DP_CHECK(stage->live_bytes == 0);
    struct dp_device *device = stage->device;
    device->ops->stream_close(stage->copies);
    dp_workspace_free(stage->own_workspace);
    device->ops->free(device, stage->weights);
    device->ops->free(device, stage->element_weights);
    device->ops->free(device, stage->gradients);
    device->ops->free(device, stage->rope_table);
    dp_stage_free_balance(stage);
    dp_stage_free_placement(stage);
    dp_stage_free_fp8(stage);
    free(stage->components);
    free(stage->tensors);
    free(stage->layers);
    free(stage);
}

const struct dp_stage_config *dp_stage_config(const struct dp_stage *stage)
{
    return &stage->config;
}

struct dp_device *dp_stage_device(const struct dp_stage *stage)
{
    return stage->device;
}

int32_t dp_stage_component_count(const struct dp_stage *stage)
{
    return stage->component_count;
}

const struct dp_component *dp_stage_component(const struct dp_stage *stage, int32_t index)
{
    DP_CHECK(index >= 0 && index < stage->component_count);
    return &stage->components[index];
}

const struct dp_tensor *dp_stage_tensors(const struct dp_stage *stage, int32_t *ret_count)
{
    *ret_count = stage->tensor_count;
    return stage->tensors;
}

int64_t dp_stage_parameter_count(const struct dp_stage *stage)
{
    return stage->parameter_count;
}

int64_t dp_stage_expert_offset(const struct dp_stage *stage)
{
    return stage->expert_offset;
}

void *dp_stage_weights(struct dp_stage *stage)
{
    return stage->weights;
}

void *dp_stage_gradients(struct dp_stage *stage)
{
    return stage->gradients;
}

void dp_stage_zero_gradients(struct dp_stage *stage)
{
    stage->device->ops->fill(stage->device->stream, stage->gradients, 0,
                             (size_t)stage->parameter_count * stage->real_bytes);
}

void dp_stage_refresh(struct dp_stage *stage)
{
    if (stage->element_weights != NULL) {
        stage->device->ops->convert(stage->device->stream, stage->parameter_count, DP_OPERAND_REAL,
                                    stage->weights, DP_OPERAND_ELEMENT, stage->element_weights);
    }
    dp_stage_refresh_fp8(stage);
}

int64_t dp_stage_live_bytes(const struct dp_stage *stage)
{
    return stage->live_bytes;
}

int64_t dp_stage_peak_bytes(const struct dp_stage *stage)
{
    return stage->peak_bytes;
}
