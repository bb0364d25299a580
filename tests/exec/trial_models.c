#include "exec_harness.h"

const struct dp_model_spec trial_latent = {
    .name = "latent",
    .layers = TRIAL_LAYERS,
    .dense_layers = 1,
    .hidden = 32,
    .heads = 4,
    .kv_heads = 4,
    .head_dim = 12,
    .mla_q_rank = 16,
    .mla_kv_rank = 16,
    .mla_nope_dim = 8,
    .mla_rope_dim = 4,
    .mla_v_dim = 8,
    .ffn = 64,
    .experts = 4,
    .top_k = 2,
    .shared_experts = 1,
    .expert_ffn = 24,
    .router = DP_MODEL_SIGMOID,
    .route_scale = 2.5,
    .vocabulary = 256,
    .mtp_layers = 1,
    .rope_theta = 10000,
    .norm_eps = 1e-6,
    .bias_update = 0.05,
};

const struct dp_model_spec trial_tied = {
    .name = "tied",
    .layers = TRIAL_LAYERS,
    .dense_layers = 1,
    .hidden = 32,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 8,
    .ffn = 64,
    .experts = 4,
    .top_k = 2,
    .shared_experts = 1,
    .shared_gate = 1,
    .expert_ffn = 24,
    .raw_weights = 1,
    .vocabulary = 256,
    .rope_theta = 10000,
    .norm_eps = 1e-6,
    .tied_embedding = 1,
    .qk_norm = 1,
    .biases = DP_BIAS_QKV,
};

struct dp_model_spec trial_latent_groups(void)
{
    struct dp_model_spec model = trial_latent;
    model.expert_groups = 2;
    model.top_groups = 1;
    model.aux_loss_weight = 0.001;
    model.bias_update = 0.001;
    return model;
}
