// Keys of a config.json that change what a model computes and that nothing here reads. A key is
// told by its name: what looks as if it belonged to the arithmetic of a layer, and says anything,
// is refused rather than left out in silence.
#include <string.h>

#include "dp/alloc.h"
#include "hf_config.h"

// Keys with the values that say what is computed anyway, of families that have one of the traits,
// or (`without`) none of them.
static const struct {
    const char *key;
    uint32_t traits;
    bool without;
    const char *takes[4];
} fixed[] = {
    {"hidden_act", DP_HF_PLAIN, true, {"silu", "swish"}},
    {"activation_function", DP_HF_PLAIN, false, {"gelu_new", "gelu", "gelu_pytorch_tanh"}},
    {"use_qk_norm", DP_HF_QK_NORM, false, {"true"}},
    {"use_qk_norm", DP_HF_QK_NORM_KEY, false, {"true", "false"}},
    {"rope_interleave", DP_HF_MLA, false, {"true"}},
    {"scale_attn_weights", DP_HF_PLAIN, false, {"true"}},
};

// Keys that are read, or change nothing that is computed here: sizes of contexts, dropout of a
// family that is only planned with, losses that [model] names itself.
static const char *const known[] = {"activation_function",
                                    "attention_bias",
                                    "attn_implementation",
                                    "attn_pdrop",
                                    "aux_loss_alpha",
                                    "decoder_sparse_step",
                                    "dual_chunk_attention_config",
                                    "embd_pdrop",
                                    "experts_per_token",
                                    "first_k_dense_replace",
                                    "head_dim",
                                    "hidden_act",
                                    "initial_context_length",
                                    "kv_lora_rank",
                                    "layer_norm_epsilon",
                                    "layer_types",
                                    "max_position_embeddings",
                                    "max_window_layers",
                                    "mlp_bias",
                                    "mlp_layer_types",
                                    "mlp_only_layers",
                                    "moe_intermediate_size",
                                    "moe_layer_freq",
                                    "n_head",
                                    "n_layer",
                                    "n_positions",
                                    "n_routed_experts",
                                    "n_shared_experts",
                                    "norm_topk_prob",
                                    "num_attention_heads",
                                    "num_experts",
                                    "num_experts_per_tok",
                                    "num_hidden_layers",
                                    "num_key_value_heads",
                                    "num_local_experts",
                                    "num_nextn_predict_layers",
                                    "original_max_position_embeddings",
                                    "output_attentions",
                                    "output_router_logits",
                                    "partial_rotary_factor",
                                    "qk_head_dim",
                                    "qk_nope_head_dim",
                                    "qk_rope_head_dim",
                                    "reorder_and_upcast_attn",
                                    "resid_pdrop",
                                    "rms_norm_eps",
                                    "rope_parameters",
                                    "rope_scaling",
                                    "rope_theta",
                                    "routed_scaling_factor",
                                    "router_aux_loss_coef",
                                    "shared_expert_intermediate_size",
                                    "sliding_window",
                                    "swiglu_limit",
                                    "tie_word_embeddings",
                                    "use_sliding_window",
                                    "v_head_dim"};

// Parts of names that belong to the arithmetic of a model.
static const char *const parts[] = {
    "activation", "alibi",    "attention", "attn",  "bias",   "clip",   "conv",       "dropout",
    "embed",      "expert",   "ffn",       "gate",  "gating", "head",   "jitter",     "layer",
    "linear_",    "logit",    "mamba",     "mlp",   "moe",    "mtp",    "multiplier", "nextn",
    "norm",       "position", "residual",  "rope",  "rotary", "routed", "router",     "scale",
    "scaling",    "softcap",  "ssm",       "window"};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static bool is_among(const char *key, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], key) == 0) {
            return true;
        }
    }
    return false;
}

// Of attention's implementation, of a classifier's summary, or of the package alone.
static bool is_beside_the_model(const char *key)
{
    return key[0] == '_' || strstr(key, "flash") != NULL || strncmp(key, "summary_", 8) == 0;
}

static bool is_arithmetic(const char *key)
{
    for (size_t i = 0; i < COUNT(parts); i++) {
        if (strstr(key, parts[i]) != NULL) {
            return true;
        }
    }
    return false;
}

static bool says(const json_t *value, const char *text)
{
    return json_is_boolean(value)
               ? strcmp(text, json_is_true(value) ? "true" : "false") == 0
               : json_is_string(value) && strcmp(text, json_string_value(value)) == 0;
}

static dp_status check_fixed(const struct dp_hf *hf, size_t i, const json_t *value)
{
    struct dp_buf takes = {0};
    for (size_t j = 0; j < COUNT(fixed[i].takes) && fixed[i].takes[j] != NULL; j++) {
        if (says(value, fixed[i].takes[j])) {
            dp_buf_deinit(&takes);
            return DP_OK;
        }
        dp_buf_printf(&takes, "%s%s", j == 0 ? "" : " or ", fixed[i].takes[j]);
    }
    dp_status status = dp_hf_unsupported(hf, fixed[i].key, value, takes.bytes);
    dp_buf_deinit(&takes);
    return status;
}

static dp_status check_key(const struct dp_hf *hf, const char *key, const json_t *value)
{
    for (size_t i = 0; i < COUNT(fixed); i++) {
        if (strcmp(fixed[i].key, key) == 0 && dp_hf_has(hf, fixed[i].traits) != fixed[i].without) {
            return check_fixed(hf, i, value);
        }
    }
    if (strcmp(key, "qkv_bias") == 0 && (hf->family->biases & DP_BIAS_QKV) != 0) {
        return says(value, "true") ? DP_OK : dp_hf_unsupported(hf, key, value, "true");
    }
    if (dp_hf_is_neutral(value) || is_among(key, known, COUNT(known)) || is_beside_the_model(key) ||
        !is_arithmetic(key)) {
        return DP_OK;
    }
    return dp_hf_unsupported(hf, key, value,
                             "a file without the key, where the model is meant without it");
}

dp_status dp_hf_check_unread(const struct dp_hf *hf)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)hf->root, key, value)
    {
        dp_status status = json_is_null(value) ? DP_OK : check_key(hf, key, value);
        if (status != DP_OK) {
            return status;
        }
    }
    return DP_OK;
}
