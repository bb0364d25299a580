// Which family a model is of, by what it has.
#include "hf_kind.h"

#include <math.h>
#include <string.h>

#define EXPERTS (EXPERTS_ROUTED | EXPERTS_LOCAL | EXPERTS_QWEN)

// The first that has what the model has.
static const struct dp_hf_kind families[] = {
    {"llama", "LlamaForCausalLM", BIAS_ALL},
    {"mistral", "MistralForCausalLM", WINDOW},
    {"qwen2", "Qwen2ForCausalLM", BIAS_QKV | WINDOWS},
    {"qwen3", "Qwen3ForCausalLM", QK_NORM | BIAS_ALL | WINDOWS},
    {"mixtral", "MixtralForCausalLM", EXPERTS_LOCAL | WINDOW},
    {"qwen2_moe", "Qwen2MoeForCausalLM", EXPERTS_QWEN | GATED | DENSE | RAW | BIAS_QKV},
    {"qwen3_moe", "Qwen3MoeForCausalLM", EXPERTS_QWEN | QK_NORM | DENSE | RAW | BIAS_ALL},
    {"glm4_moe", "Glm4MoeForCausalLM",
     EXPERTS_ROUTED | SIGMOID | SHARED | DENSE | RAW | GROUPS | QK_NORM_KEY | PARTLY_TURNED |
         AHEAD | BIAS_SOME},
    {"deepseek", "DeepseekForCausalLM", EXPERTS_ROUTED | SHARED | DENSE | RAW | BIAS_ALL},
    {"deepseek_v2", "DeepseekV2ForCausalLM",
     EXPERTS_ROUTED | LATENT | SHARED | DENSE | RAW | GROUPS | BIAS_ALL},
    {"deepseek_v3", "DeepseekV3ForCausalLM",
     EXPERTS_ROUTED | LATENT | SIGMOID | SHARED | DENSE | RAW | GROUPS | AHEAD | BIAS_ALL},
    {DP_HF_OWN, "DpForCausalLM", EXPERTS_ROUTED},
};

static bool has_windows(const struct dp_model_spec *model, bool *ret_all)
{
    int32_t count = 0;
    for (int32_t layer = 0; layer < model->layers; layer++) {
        count += dp_model_layer_window(model, layer) > 0;
    }
    *ret_all = count == model->layers;
    return count > 0;
}

static bool has_attention(const struct dp_model_spec *model, uint32_t traits)
{
    const bool is_latent = model->mla_kv_rank > 0;
    const int32_t biases = model->biases & (DP_BIAS_QKV | DP_BIAS_OUTPUT);
    const bool is_biased = (traits & BIAS_QKV) != 0    ? biases == DP_BIAS_QKV
                           : (traits & BIAS_SOME) != 0 ? (biases & DP_BIAS_OUTPUT) == 0
                           : (traits & BIAS_ALL) != 0
                               ? biases == 0 || biases == (DP_BIAS_QKV | DP_BIAS_OUTPUT)
                               : biases == 0;
    bool all;
    const bool windows = has_windows(model, &all);
    const bool is_windowed = !windows || (traits & WINDOWS) != 0 || ((traits & WINDOW) != 0 && all);
    const bool is_partly =
        !is_latent && model->rotary_dim > 0 && model->rotary_dim != model->head_dim;
    const bool has_norm =
        (traits & QK_NORM_KEY) != 0 || (model->qk_norm > 0) == ((traits & QK_NORM) != 0);
    return is_latent == ((traits & LATENT) != 0) && is_biased && is_windowed && has_norm &&
           (!is_partly || (traits & PARTLY_TURNED) != 0) && model->sinks == 0;
}

static bool has_experts(const struct dp_model_spec *model, uint32_t traits)
{
    if (model->experts == 0) {
        return (traits & EXPERTS) == 0;
    }
    const bool is_sigmoid = model->router == DP_MODEL_SIGMOID;
    const bool is_balanced = model->bias_update > 0 || (model->biases & DP_BIAS_ROUTER) != 0;
    const bool is_gated = model->shared_experts > 0 && model->shared_gate > 0;
    const bool is_shared = model->shared_experts > 0 && model->shared_gate == 0;
    const bool is_scaled = model->route_scale > 0 && fabs(model->route_scale - 1) > 0;
    return (traits & EXPERTS) != 0 && is_sigmoid == ((traits & SIGMOID) != 0) &&
           (is_sigmoid || !is_balanced) && is_gated == ((traits & GATED) != 0) &&
           (!is_shared || (traits & SHARED) != 0) &&
           (model->dense_layers == 0 || (traits & DENSE) != 0) &&
           (model->raw_weights == 0 || (traits & RAW) != 0) &&
           ((model->expert_groups <= 1 && !is_scaled) || (traits & GROUPS) != 0);
}

static bool has_all(const struct dp_model_spec *model, uint32_t traits)
{
    const int32_t known = DP_BIAS_QKV | DP_BIAS_OUTPUT | DP_BIAS_ROUTER;
    return (model->biases & ~known) == 0 && model->ffn_matrices != 2 && model->positions == 0 &&
           (model->mtp_layers == 0 || (traits & AHEAD) != 0) && has_attention(model, traits) &&
           has_experts(model, traits);
}

const struct dp_hf_kind *dp_hf_kind_of(const struct dp_model_spec *model)
{
    const struct dp_hf_kind *family = families;
    while (strcmp(family->type, DP_HF_OWN) != 0 && !has_all(model, family->traits)) {
        family++;
    }
    return family;
}

const char *dp_hf_family(const struct dp_model_spec *model)
{
    return dp_hf_kind_of(model)->type;
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
