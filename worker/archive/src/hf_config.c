// The config.json that goes with the weights.
#include <math.h>
#include <string.h>

#include "archive_internal.h"
#include "dp/check.h"
#include "hf_kind.h"

#define POSITIONS 32768 // where nothing says for how long a sequence the model was trained

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
                (traits & EXPERTS_LOCAL) != 0 || model->ffn == 0 ? model->expert_ffn : model->ffn);
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

// Windows in the layers that dp_model_layer_window says have one; families in which all have it do
// not list them.
static void put_windows(json_t *json, const struct dp_model_spec *model, uint32_t traits)
{
    if (model->window == 0) {
        json_object_set_new(json, "sliding_window", json_null());
        return;
    }
    put_integer(json, "sliding_window", model->window);
    if ((traits & WINDOW) != 0) {
        return;
    }
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
    if ((traits & QK_NORM_KEY) != 0) {
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

// What nobody else reads is said in our own words.
static void put_own(json_t *json, const struct dp_model_spec *model)
{
    json_object_set_new(json, DP_HF_OWN_MODEL, dp_model_to_json(model));
}

static void put_family(json_t *json, const struct dp_model_spec *model, uint32_t traits)
{
    put_shapes(json, model, traits);
    put_angles(json, model);
    put_windows(json, model, traits);
    if ((traits & LATENT) != 0) {
        put_latent(json, model);
    }
    if (model->experts > 0) {
        put_experts(json, model, traits);
    }
}

void dp_hf_config_write(const struct dp_model_spec *model, dp_dtype dtype, struct dp_buf *out)
{
    const struct dp_hf_kind *family = dp_hf_kind_of(model);
    DP_AUTO_JSON json_t *json = json_pack("{s:[s], s:s}", "architectures", family->architecture,
                                          "model_type", family->type);
    if (strcmp(family->type, DP_HF_OWN) == 0) {
        put_own(json, model);
    } else {
        put_family(json, model, family->traits);
    }
    put_text(json, "torch_dtype",
             dtype == DP_DTYPE_BF16  ? "bfloat16"
             : dtype == DP_DTYPE_F64 ? "float64"
                                     : "float32");
    dp_json_write(json, 2, out);
}
