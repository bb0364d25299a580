// Hugging Face config.json: the names that model families use for the same shape.

#include <math.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/json.h"
#include "spec_internal.h"

struct hf_key {
    size_t offset;
    double max;
    bool required;
    const char *names[4]; // alternatives, the first found counts
};

#define AT(member) offsetof(struct dp_model_spec, member)

static const struct hf_key integer_keys[] = {
    {AT(layers), DP_LAYERS_MAX, true, {"num_hidden_layers", "n_layer"}},
    {AT(hidden), DP_HIDDEN_MAX, true, {"hidden_size", "n_embd"}},
    {AT(heads), 65536, true, {"num_attention_heads", "n_head"}},
    {AT(kv_heads), 65536, false, {"num_key_value_heads"}},
    {AT(head_dim), 65536, false, {"head_dim"}},
    {AT(ffn), DP_HIDDEN_MAX, false, {"intermediate_size"}},
    {AT(experts), DP_EXPERTS_MAX, false, {"n_routed_experts", "num_local_experts", "num_experts"}},
    {AT(top_k), DP_EXPERTS_MAX, false, {"num_experts_per_tok"}},
    {AT(shared_experts), DP_EXPERTS_MAX, false, {"n_shared_experts"}},
    {AT(expert_ffn), DP_HIDDEN_MAX, false, {"moe_intermediate_size"}},
    {AT(dense_layers), DP_LAYERS_MAX, false, {"first_k_dense_replace"}},
    {AT(expert_groups), DP_EXPERTS_MAX, false, {"n_group"}},
    {AT(top_groups), DP_EXPERTS_MAX, false, {"topk_group"}},
    {AT(vocabulary), DP_VOCABULARY_MAX, true, {"vocab_size"}},
    {AT(mtp_layers), DP_LAYERS_MAX, false, {"num_nextn_predict_layers"}},
    {AT(mla_q_rank), DP_HIDDEN_MAX, false, {"q_lora_rank"}},
    {AT(mla_kv_rank), DP_HIDDEN_MAX, false, {"kv_lora_rank"}},
    {AT(mla_nope_dim), 65536, false, {"qk_nope_head_dim"}},
    {AT(mla_rope_dim), 65536, false, {"qk_rope_head_dim"}},
    {AT(mla_v_dim), 65536, false, {"v_head_dim"}},
};

static const json_t *find(const json_t *root, const char *const names[4])
{
    for (size_t i = 0; i < 4 && names[i] != NULL; i++) {
        const json_t *value = json_object_get(root, names[i]);
        if (value != NULL && !json_is_null(value)) {
            return value;
        }
    }
    return NULL;
}

static dp_status read_integers(const json_t *root, const char *name, struct dp_model_spec *model,
                               struct dp_error *err)
{
    for (size_t i = 0; i < sizeof(integer_keys) / sizeof(integer_keys[0]); i++) {
        const struct hf_key *key = &integer_keys[i];
        const json_t *value = find(root, key->names);
        if (value == NULL && key->required) {
            return dp_fail(err, DP_INVALID, "%s: \"%s\" is missing; is it a model's config.json?",
                           name, key->names[0]);
        }
        if (value == NULL) {
            continue;
        }
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            (double)json_integer_value(value) > key->max) {
            return dp_fail(err, DP_INVALID, "%s: \"%s\" must be an integer from 0 to %.0f", name,
                           key->names[0], key->max);
        }
        *(int32_t *)(void *)((char *)model + key->offset) = (int32_t)json_integer_value(value);
    }
    return DP_OK;
}

static double number_or(const json_t *root, const char *key, double otherwise)
{
    const json_t *value = json_object_get(root, key);
    return json_is_number(value) && json_number_value(value) > 0 ? json_number_value(value)
                                                                 : otherwise;
}

// Layouts of layers that dense_layers cannot say.
static dp_status refuse_mixed_layers(const json_t *root, const char *name, struct dp_error *err)
{
    static const char *const periods[] = {"moe_layer_freq", "decoder_sparse_step"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_object_get(root, periods[i]);
        if (json_is_integer(value) && json_integer_value(value) != 1) {
            return dp_fail(err, DP_UNSUPPORTED,
                           "%s: \"%s\" is %lld; only models with experts in every layer after the "
                           "first dense ones are supported",
                           name, periods[i], (long long)json_integer_value(value));
        }
    }
    if (json_array_size(json_object_get(root, "mlp_only_layers")) > 0) {
        return dp_fail(err, DP_UNSUPPORTED,
                       "%s: \"mlp_only_layers\" is set; dense layers may only come first", name);
    }
    return DP_OK;
}

static dp_status complete_experts(const json_t *root, const char *name, struct dp_model_spec *model,
                                  struct dp_error *err)
{
    if (model->experts == 0) {
        return DP_OK;
    }
    if (model->expert_ffn == 0) {
        model->expert_ffn = model->ffn; // Mixtral: every FFN is an expert
    }
    const json_t *shared = json_object_get(root, "shared_expert_intermediate_size");
    if (json_is_integer(shared) && model->expert_ffn > 0) {
        if (json_integer_value(shared) % model->expert_ffn != 0) {
            return dp_fail(err, DP_UNSUPPORTED,
                           "%s: the shared expert's width is not a multiple of an expert's", name);
        }
        model->shared_experts = (int32_t)(json_integer_value(shared) / model->expert_ffn);
    }
    if (model->expert_groups <= 1) {
        model->expert_groups = model->top_groups = 0;
    }
    if (model->dense_layers == 0) {
        model->ffn = 0;
    }
    return DP_OK;
}

dp_status dp_model_from_hf_config(const char *json, size_t length, const char *name,
                                  struct dp_model_spec *ret_model, struct dp_error *err)
{
    DP_AUTO_JSON json_t *root = NULL;
    dp_status status = dp_json_parse(json, length, DP_SPEC_BYTES_MAX, name, &root, err);
    if (status != DP_OK) {
        return status;
    }
    if (!json_is_object(root)) {
        return dp_fail(err, DP_INVALID, "%s: not a JSON object", name);
    }
    struct dp_model_spec model = {0};
    status = read_integers(root, name, &model, err);
    status = status == DP_OK ? refuse_mixed_layers(root, name, err) : status;
    status = status == DP_OK ? complete_experts(root, name, &model, err) : status;
    if (status != DP_OK) {
        return status;
    }
    model.rope_theta = number_or(root, "rope_theta", 10000);
    model.norm_eps = number_or(root, "rms_norm_eps", 1e-6);
    if (model.mla_kv_rank > 0) {
        model.head_dim = model.mla_nope_dim + model.mla_rope_dim;
    }
    const json_t *type = json_object_get(root, "model_type");
    DP_COPY_TEXT(model.name, json_is_string(type) ? json_string_value(type) : "custom");
    dp_model_complete(&model, NULL);
    *ret_model = model;
    return DP_OK;
}
