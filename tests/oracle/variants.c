#include "variants.h"

#include "dp/check.h"

// Three layers of width 32; the first is dense where there are experts.
#define SMALL(title)                                                                               \
    .name = title, .layers = 3, .dense_layers = 3, .hidden = 32, .heads = 4, .kv_heads = 2,        \
    .head_dim = 8, .ffn = 48, .vocabulary = 64, .rope_theta = 10000, .norm_eps = 1e-6
#define SMALL_MOE(title)                                                                           \
    .name = title, .layers = 3, .dense_layers = 1, .hidden = 32, .heads = 4, .kv_heads = 2,        \
    .head_dim = 8, .ffn = 48, .experts = 8, .top_k = 2, .expert_ffn = 24, .vocabulary = 64,        \
    .rope_theta = 10000, .norm_eps = 1e-6
#define LATENT(q_rank)                                                                             \
    .mla_q_rank = (q_rank), .mla_kv_rank = 12, .mla_nope_dim = 6, .mla_rope_dim = 4, .mla_v_dim = 5
#define DEEPSEEK                                                                                   \
    .shared_experts = 2, .expert_groups = 4, .top_groups = 2, .router = DP_MODEL_SIGMOID,          \
    .route_scale = 2.5, .bias_update = 0.001, .aux_loss_weight = 0.05
#define YARN                                                                                       \
    .rope = {.kind = DP_ROPE_YARN, .original = 16, .factor = 4, .mscale = 1, .mscale_all = 0.7}

const struct variant variants[] = {
    {{.name = "moe-f32",
      .layers = 4,
      .dense_layers = 1,
      .hidden = 32,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 8,
      .ffn = 48,
      .experts = 4,
      .top_k = 2,
      .shared_experts = 1,
      .expert_ffn = 24,
      .vocabulary = 64,
      .rope_theta = 10000,
      .norm_eps = 1e-6,
      .aux_loss_weight = 0.05},
     DP_F32,
     10,
     0,
     false},
    {{SMALL("dense")}, DP_F64, 3, 0, true},
    {{SMALL("dense-tied-qk-norm"), .tied_embedding = 1, .qk_norm = 1}, DP_F64, 3, 0, true},
    {{SMALL("dense-biases"), .biases = DP_BIAS_QKV | DP_BIAS_OUTPUT}, DP_F64, 3, 0, true},
    {{SMALL("dense-windows-sinks"), .window = 5, .window_layers = 2, .sinks = 1},
     DP_F64,
     3,
     0,
     true},
    {{SMALL("dense-late-window"), .window = 5, .window_layers = 1, .window_from = 2},
     DP_F64,
     3,
     0,
     true},
    {{SMALL("dense-half-turned"), .rotary_dim = 4, .qk_norm = 1}, DP_F64, 3, 0, true},
    {{SMALL("dense-windows"), .window = 5, .window_layers = 3}, DP_F64, 3, 0, true},
    {{SMALL("dense-qkv-biases"), .biases = DP_BIAS_QKV}, DP_F64, 3, 0, true},
    {{SMALL("dense-linear"), .rope = {.kind = DP_ROPE_LINEAR, .factor = 3}}, DP_F64, 3, 0, true},
    {{SMALL("dense-llama3"), .rope = {.kind = DP_ROPE_LLAMA3, .original = 24, .factor = 8}},
     DP_F64,
     3,
     0,
     true},
    {{SMALL("dense-yarn"),
      .rope = {.kind = DP_ROPE_YARN, .original = 16, .factor = 4, .untruncated = 1}},
     DP_F64,
     3,
     0,
     true},
    {{SMALL("dense-yarn-whole"), .rope = {.kind = DP_ROPE_YARN, .original = 64, .factor = 4}},
     DP_F64,
     3,
     0,
     true},
    {{SMALL_MOE("moe-softmax"), .shared_experts = 1, .aux_loss_weight = 0.05}, DP_F64, 3, 0, true},
    {{.name = "moe-alone",
      .layers = 3,
      .hidden = 32,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 8,
      .experts = 8,
      .top_k = 2,
      .expert_ffn = 24,
      .vocabulary = 64,
      .rope_theta = 10000,
      .norm_eps = 1e-5,
      .aux_loss_weight = 0.05},
     DP_F64,
     3,
     0,
     true},
    {{SMALL_MOE("moe-qk-norm"), .qk_norm = 1, .raw_weights = 1}, DP_F64, 3, 0, true},
    {{SMALL_MOE("moe-raw-groups"), .raw_weights = 1, .route_scale = 4, .expert_groups = 4,
      .top_groups = 2},
     DP_F64,
     3,
     0,
     true},
    {{SMALL_MOE("moe-shared-gate"), .shared_experts = 2, .shared_gate = 1, .raw_weights = 1,
      .biases = DP_BIAS_QKV},
     DP_F64,
     3,
     0,
     true},
    {{SMALL_MOE("moe-sigmoid"), DEEPSEEK}, DP_F64, 3, 0, true},
    {{SMALL("mla-dense"), LATENT(0), YARN}, DP_F64, 3, 0, true},
    {{SMALL_MOE("mla-softmax"), LATENT(0), .shared_experts = 2, .raw_weights = 1, .route_scale = 16,
      .expert_groups = 4, .top_groups = 2},
     DP_F64,
     3,
     0,
     true},
    {{SMALL("mla-biases"), LATENT(16), .biases = DP_BIAS_QKV | DP_BIAS_OUTPUT}, DP_F64, 3, 0, true},
    {{SMALL_MOE("mla-moe"), LATENT(16), DEEPSEEK, YARN}, DP_F64, 3, 0, true},
    {{SMALL_MOE("mla-mtp"), LATENT(16), DEEPSEEK, .mtp_layers = 1, .mtp_loss_weight = 0.4},
     DP_F64,
     3,
     0,
     true},
    {{SMALL_MOE("mla-mtp-again"), LATENT(16), DEEPSEEK, .mtp_layers = 1, .tied_embedding = 1},
     DP_F64,
     3,
     DP_RECOMPUTE_FULL,
     true},
};
const size_t variants_count = sizeof(variants) / sizeof(variants[0]);

void variant_write_model(const struct variant *variant, struct dp_buf *out)
{
    const struct dp_model_spec *m = &variant->model;
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        {"layers", m->layers},
        {"dense_layers", m->dense_layers},
        {"hidden", m->hidden},
        {"heads", m->heads},
        {"kv_heads", m->kv_heads},
        {"head_dim", m->head_dim},
        {"experts", m->experts},
        {"top_k", m->top_k},
        {"shared_experts", m->shared_experts},
        {"groups", m->expert_groups},
        {"top_groups", m->top_groups},
        {"is_sigmoid", m->router == DP_MODEL_SIGMOID},
        {"raw_weights", m->raw_weights},
        {"route_scale", m->route_scale > 0 ? m->route_scale : 1},
        {"vocabulary", m->vocabulary},
        {"mtp_layers", m->mtp_layers},
        {"mtp_loss_weight", m->mtp_loss_weight > 0 ? m->mtp_loss_weight : 0.3},
        {"q_rank", m->mla_q_rank},
        {"kv_rank", m->mla_kv_rank},
        {"nope_dim", m->mla_nope_dim},
        {"rope_dim", m->mla_rope_dim},
        {"v_dim", m->mla_v_dim},
        {"rotary_dim", m->rotary_dim},
        {"rope_theta", m->rope_theta},
        {"rope_kind", m->rope.kind},
        {"rope_original", m->rope.original},
        {"rope_factor", m->rope.factor},
        {"rope_mscale", m->rope.mscale},
        {"rope_mscale_all", m->rope.mscale_all},
        {"rope_untruncated", m->rope.untruncated},
        {"norm_eps", m->norm_eps},
        {"aux_loss_weight", m->aux_loss_weight},
        {"tied", m->tied_embedding},
        {"qk_norm", m->qk_norm},
        {"sinks", m->sinks},
        {"shared_gate", m->shared_gate},
    };
    for (size_t i = 0; i < DP_ARRAY_LENGTH(numbers); i++) {
        dp_buf_printf(out, "\"%s\":%.17g,", numbers[i].name, numbers[i].value);
    }
    dp_buf_puts(out, "\"windows\":[");
    for (int32_t layer = 0; layer <= m->layers; layer++) {
        dp_buf_printf(out, "%s%d", layer == 0 ? "" : ",", dp_model_layer_window(m, layer));
    }
    dp_buf_puts(out, "]");
}
