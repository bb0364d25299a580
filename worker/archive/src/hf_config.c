// The config.json that goes with the weights.
#include <math.h>
#include <string.h>

#include "dp/check.h"
#include "dp/hf_names.h"
#include "dp/json.h"

#define POSITIONS 32768 // where nothing says for how long a sequence the model was trained

typedef enum family_trait {
    EXPERTS_ROUTED = 1 << 0, // DeepSeek's keys: n_routed_experts, ...
    EXPERTS_LOCAL = 1 << 1,  // Mixtral's
    EXPERTS_QWEN = 1 << 2,   // Qwen's: num_experts, ...
    LATENT = 1 << 3,
} family_trait;

static const struct family {
    const char *type, *architecture;
    uint32_t traits;
} families[] = {
    {"llama", "LlamaForCausalLM", 0},
    {"mistral", "MistralForCausalLM", 0},
    {"qwen2", "Qwen2ForCausalLM", 0},
    {"qwen3", "Qwen3ForCausalLM", 0},
    {"mixtral", "MixtralForCausalLM", EXPERTS_LOCAL},
    {"qwen2_moe", "Qwen2MoeForCausalLM", EXPERTS_QWEN},
    {"qwen3_moe", "Qwen3MoeForCausalLM", EXPERTS_QWEN},
    {"glm4_moe", "Glm4MoeForCausalLM", EXPERTS_ROUTED},
    {"deepseek", "DeepseekForCausalLM", EXPERTS_ROUTED},
    {"deepseek_v2", "DeepseekV2ForCausalLM", EXPERTS_ROUTED | LATENT},
    {"deepseek_v3", "DeepseekV3ForCausalLM", EXPERTS_ROUTED | LATENT},
};

static const char *dense_family(const struct dp_model_spec *model)
{
    if (model->qk_norm > 0) {
        return "qwen3";
    }
    if ((model->biases & (DP_BIAS_QKV | DP_BIAS_OUTPUT)) == DP_BIAS_QKV) {
        return "qwen2";
    }
    return model->window > 0 ? "mistral" : "llama";
}

const char *dp_hf_family(const struct dp_model_spec *model)
{
    bool is_sigmoid = model->router == DP_MODEL_SIGMOID;
    if (model->mla_kv_rank > 0) {
        return is_sigmoid ? "deepseek_v3" : "deepseek_v2";
    }
    if (model->experts == 0) {
        return dense_family(model);
    }
    if (is_sigmoid) {
        return "glm4_moe";
    }
    if (model->shared_gate > 0) {
        return "qwen2_moe";
    }
    if (model->shared_experts == 0 && model->qk_norm > 0) {
        return "qwen3_moe";
    }
    bool is_plain = model->shared_experts == 0 && model->dense_layers == 0 &&
                    model->raw_weights == 0 && model->qk_norm == 0;
    return is_plain ? "mixtral" : "deepseek";
}

dp_hf_style dp_hf_style_of(const struct dp_model_spec *model)
{
    if (model->mla_kv_rank > 0) {
        return DP_HF_STYLE_LATENT;
    }
    const char *family = dp_hf_family(model);
    return strcmp(family, "mixtral") == 0     ? DP_HF_STYLE_MIXTRAL
           : strcmp(family, "qwen2_moe") == 0 ? DP_HF_STYLE_QWEN2
                                              : DP_HF_STYLE_PLAIN;
}

static void put_integer(json_t *json, const char *key, int64_t value)
{
    json_object_set_new(json, key, json_integer(value));
}

static void put_switch(json_t *json, const char *key, bool is_on)
{
    json_object_set_new(json, key, json_boolean(is_on));
}

static void put_real(json_t *json, const char *key, double value)
{
    json_object_set_new(json, key, json_real(value));
}

static void put_text(json_t *json, const char *key, const char *text)
{
    json_object_set_new(json, key, json_string(text));
}

static void put_shapes(json_t *json, const struct dp_model_spec *model, uint32_t traits)
{
    put_integer(json, "num_hidden_layers", model->layers);
    put_integer(json, "hidden_size", model->hidden);
    put_integer(json, "num_attention_heads", model->heads);
    put_integer(json, "num_key_value_heads",
                (traits & LATENT) != 0 ? model->heads : model->kv_heads);
    // Of a latent key it is what turns that counts.
    put_integer(json, "head_dim", (traits & LATENT) != 0 ? model->mla_rope_dim : model->head_dim);
    put_integer(json, "intermediate_size",
                (traits & EXPERTS_LOCAL) != 0 ? model->expert_ffn : model->ffn);
    put_integer(json, "vocab_size", model->vocabulary);
    put_integer(json, "max_position_embeddings",
                model->rope.original > 0 ? model->rope.original : POSITIONS);
    put_text(json, "hidden_act", "silu");
    put_real(json, "rms_norm_eps", model->norm_eps);
    put_switch(json, "tie_word_embeddings", model->tied_embedding > 0);
    put_switch(json, "attention_bias", (model->biases & DP_BIAS_QKV) != 0);
}

static void put_nonzero(json_t *json, const char *key, double value)
{
    if (value != 0) {
        put_real(json, key, value);
    }
}

static void put_angles(json_t *json, const struct dp_model_spec *model)
{
    const struct dp_rope_scaling *rope = &model->rope;
    put_real(json, "rope_theta", model->rope_theta);
    if (model->mla_kv_rank == 0) {
        const int32_t turned = model->rotary_dim > 0 ? model->rotary_dim : model->head_dim;
        // Rounded up: who reads it cuts the product off.
        put_real(json, "partial_rotary_factor", ceil(1e9 * turned / model->head_dim) / 1e9);
    }
    if (rope->kind == DP_ROPE_PLAIN) {
        return;
    }
    json_t *scaling = json_object();
    put_text(scaling, "rope_type", dp_rope_kind_text(rope->kind));
    put_nonzero(scaling, "factor", rope->factor);
    if (rope->kind == DP_ROPE_LLAMA3) {
        put_real(scaling, "low_freq_factor", rope->low_factor > 0 ? rope->low_factor : 1);
        put_real(scaling, "high_freq_factor", rope->high_factor > 0 ? rope->high_factor : 4);
    }
    put_nonzero(scaling, "beta_fast", rope->beta_fast);
    put_nonzero(scaling, "beta_slow", rope->beta_slow);
    put_nonzero(scaling, "mscale", rope->mscale);
    put_nonzero(scaling, "mscale_all_dim", rope->mscale_all);
    put_nonzero(scaling, "attention_factor", rope->attention_factor);
    if (rope->original > 0) {
        put_integer(scaling, "original_max_position_embeddings", rope->original);
    }
    if (rope->untruncated != 0) {
        put_switch(scaling, "truncate", false);
    }
    json_object_set_new(json, "rope_scaling", scaling);
}

// Windows in the layers that dp_model_layer_window says have one.
static void put_windows(json_t *json, const struct dp_model_spec *model)
{
    if (model->window == 0) {
        json_object_set_new(json, "sliding_window", json_null());
        return;
    }
    put_integer(json, "sliding_window", model->window);
    put_switch(json, "use_sliding_window", true);
    json_t *types = json_array();
    for (int32_t layer = 0; layer < model->layers; layer++) {
        bool slides = dp_model_layer_window(model, layer) > 0;
        json_array_append_new(types, json_string(slides ? "sliding_attention" : "full_attention"));
    }
    json_object_set_new(json, "layer_types", types);
}

static void put_latent(json_t *json, const struct dp_model_spec *model)
{
    if (model->mla_q_rank > 0) {
        put_integer(json, "q_lora_rank", model->mla_q_rank);
    } else {
        json_object_set_new(json, "q_lora_rank", json_null());
    }
    put_integer(json, "kv_lora_rank", model->mla_kv_rank);
    put_integer(json, "qk_nope_head_dim", model->mla_nope_dim);
    put_integer(json, "qk_rope_head_dim", model->mla_rope_dim);
    put_integer(json, "v_head_dim", model->mla_v_dim);
    put_switch(json, "rope_interleave", true);
}

static void put_routed(json_t *json, const struct dp_model_spec *model, uint32_t traits)
{
    bool is_sigmoid = model->router == DP_MODEL_SIGMOID;
    bool is_grouped = model->expert_groups > 1;
    put_integer(json, "n_routed_experts", model->experts);
    put_integer(json, "n_shared_experts", model->shared_experts);
    put_integer(json, "moe_intermediate_size", model->expert_ffn);
    put_integer(json, "first_k_dense_replace", model->dense_layers);
    put_integer(json, "moe_layer_freq", 1);
    put_integer(json, "n_group", is_grouped ? model->expert_groups : 1);
    put_integer(json, "topk_group", is_grouped ? model->top_groups : 1);
    put_real(json, "routed_scaling_factor", model->route_scale > 0 ? model->route_scale : 1);
    put_text(json, "scoring_func", dp_router_kind_text(model->router));
    put_text(json, "topk_method",
             is_sigmoid   ? "noaux_tc"
             : is_grouped ? "group_limited_greedy"
                          : "greedy");
    put_integer(json, "num_nextn_predict_layers", model->mtp_layers);
    if ((traits & LATENT) == 0) {
        put_switch(json, "use_qk_norm", model->qk_norm > 0);
    }
}

static void put_qwen(json_t *json, const struct dp_model_spec *model)
{
    put_integer(json, "num_experts", model->experts);
    put_integer(json, "moe_intermediate_size", model->expert_ffn);
    put_integer(json, "decoder_sparse_step", 1);
    if (model->shared_experts > 0) {
        put_integer(json, "shared_expert_intermediate_size",
                    (int64_t)model->shared_experts * model->expert_ffn);
    }
    json_t *dense = json_array();
    for (int32_t layer = 0; layer < model->dense_layers; layer++) {
        json_array_append_new(dense, json_integer(layer));
    }
    json_object_set_new(json, "mlp_only_layers", dense);
}

static void put_experts(json_t *json, const struct dp_model_spec *model, uint32_t traits)
{
    put_integer(json, "num_experts_per_tok", model->top_k);
    put_switch(json, "norm_topk_prob", model->raw_weights == 0);
    if ((traits & EXPERTS_LOCAL) != 0) {
        put_integer(json, "num_local_experts", model->experts);
    } else if ((traits & EXPERTS_QWEN) != 0) {
        put_qwen(json, model);
    } else {
        put_routed(json, model, traits);
    }
}

void dp_hf_config_write(const struct dp_model_spec *model, struct dp_buf *out)
{
    const char *type = dp_hf_family(model);
    const struct family *family = families;
    while (strcmp(family->type, type) != 0) {
        family++;
        DP_CHECK(family < families + DP_ARRAY_LENGTH(families));
    }
    DP_AUTO_JSON json_t *json = json_pack("{s:[s], s:s}", "architectures", family->architecture,
                                          "model_type", family->type);
    put_shapes(json, model, family->traits);
    put_angles(json, model);
    put_windows(json, model);
    if ((family->traits & LATENT) != 0) {
        put_latent(json, model);
    }
    if (model->experts > 0) {
        put_experts(json, model, family->traits);
    }
    put_text(json, "torch_dtype", "float32");
    dp_json_write(json, 2, out);
}
