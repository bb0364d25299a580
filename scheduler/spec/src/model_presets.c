// Built-in shapes: the models' published configurations (config.json or the technical report).

#include <ctype.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "spec_internal.h"

// Every parameter that a bias can have (GPT-2 and its kin).
#define ALL_BIASES (DP_BIAS_QKV | DP_BIAS_OUTPUT | DP_BIAS_FFN | DP_BIAS_NORM)

// Sliding windows in every other layer, a sink per head, biases wherever there is a matrix.
#define GPT_OSS(windowed)                                                                          \
    .window = 128, .window_layers = (windowed), .sinks = 1,                                        \
    .rope = {.kind = DP_ROPE_YARN,                                                                 \
             .original = 4096,                                                                     \
             .factor = 32,                                                                         \
             .beta_fast = 32,                                                                      \
             .beta_slow = 1,                                                                       \
             .untruncated = 1},                                                                    \
    .biases = DP_BIAS_QKV | DP_BIAS_OUTPUT | DP_BIAS_ROUTER | DP_BIAS_EXPERT

// GPT-2's layer at another size: LayerNorm, GELU of 4 times the width, learned positions, one
// table.
#define GPT(title, depth, count, width, words, places)                                             \
    {                                                                                              \
        .name = title, .layers = (depth), .dense_layers = (depth), .hidden = (width),              \
        .heads = (count), .kv_heads = (count), .head_dim = (width) / (count), .ffn = 4 * (width),  \
        .vocabulary = (words), .rope_theta = 10000, .norm_eps = 1e-5, .ffn_matrices = 2,           \
        .tied_embedding = 1, .positions = (places), .biases = ALL_BIASES                           \
    }

// Stretched from 4096 tokens; scores grow as the table does, which then cancels out.
#define DEEPSEEK_YARN(times, fast, scale)                                                          \
    .rope = {.kind = DP_ROPE_YARN,                                                                 \
             .original = 4096,                                                                     \
             .factor = (times),                                                                    \
             .beta_fast = (fast),                                                                  \
             .beta_slow = 1,                                                                       \
             .mscale = (scale),                                                                    \
             .mscale_all = (scale)}

#define DEEPSEEK_MLA(q_rank)                                                                       \
    .mla_q_rank = (q_rank), .mla_kv_rank = 512, .mla_nope_dim = 128, .mla_rope_dim = 64,           \
    .mla_v_dim = 128, .head_dim = 192

static const struct dp_model_spec presets[] = {
    {.name = "tiny-moe",
     .layers = 8,
     .dense_layers = 1,
     .hidden = 128,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 32,
     .ffn = 512,
     .experts = 8,
     .top_k = 2,
     .shared_experts = 1,
     .expert_ffn = 256,
     .vocabulary = 256,
     .rope_theta = 10000,
     .norm_eps = 1e-6,
     .aux_loss_weight = 1e-4},
    {.name = "tiny-mla",
     .layers = 4,
     .dense_layers = 1,
     .hidden = 96,
     .heads = 4,
     .kv_heads = 4,
     .mla_q_rank = 48,
     .mla_kv_rank = 32,
     .mla_nope_dim = 24,
     .mla_rope_dim = 8,
     .mla_v_dim = 24,
     .head_dim = 32,
     .ffn = 256,
     .experts = 8,
     .top_k = 2,
     .shared_experts = 1,
     .expert_ffn = 96,
     .expert_groups = 4,
     .top_groups = 2,
     .router = DP_MODEL_SIGMOID,
     .route_scale = 2.5,
     .vocabulary = 256,
     .mtp_layers = 1,
     .rope_theta = 10000,
     .norm_eps = 1e-6,
     .aux_loss_weight = 1e-4,
     .bias_update = 0.001},
    {.name = "tiny-tied",
     .layers = 4,
     .dense_layers = 4,
     .hidden = 96,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 24,
     .ffn = 256,
     .vocabulary = 256,
     .rope_theta = 10000,
     .norm_eps = 1e-6,
     .tied_embedding = 1,
     .qk_norm = 1},
    {.name = "deepseek-v3",
     DEEPSEEK_YARN(40, 32, 1),
     .router = DP_MODEL_SIGMOID,
     .route_scale = 2.5,
     .bias_update = 0.001,
     .layers = 61,
     .dense_layers = 3,
     .hidden = 7168,
     .heads = 128,
     .kv_heads = 128,
     DEEPSEEK_MLA(1536),
     .ffn = 18432,
     .experts = 256,
     .top_k = 8,
     .shared_experts = 1,
     .expert_ffn = 2048,
     .expert_groups = 8,
     .top_groups = 4,
     .vocabulary = 129280,
     .mtp_layers = 1,
     .rope_theta = 10000,
     .norm_eps = 1e-6,
     .format = DP_FORMAT_FP8_BLOCK,
     .biases = DP_BIAS_ROUTER},
    {.name = "deepseek-v2",
     DEEPSEEK_YARN(40, 32, 0.707),
     .raw_weights = 1,
     .route_scale = 16,
     .layers = 60,
     .dense_layers = 1,
     .hidden = 5120,
     .heads = 128,
     .kv_heads = 128,
     DEEPSEEK_MLA(1536),
     .ffn = 12288,
     .experts = 160,
     .top_k = 6,
     .shared_experts = 2,
     .expert_ffn = 1536,
     .expert_groups = 8,
     .top_groups = 3,
     .vocabulary = 102400,
     .rope_theta = 10000,
     .norm_eps = 1e-6},
    {.name = "deepseek-v2-lite",
     DEEPSEEK_YARN(40, 32, 0.707),
     .raw_weights = 1,
     .route_scale = 1,
     .layers = 27,
     .dense_layers = 1,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 16,
     DEEPSEEK_MLA(0),
     .ffn = 10944,
     .experts = 64,
     .top_k = 6,
     .shared_experts = 2,
     .expert_ffn = 1408,
     .vocabulary = 102400,
     .rope_theta = 10000,
     .norm_eps = 1e-6},
    {.name = "deepseek-moe-16b",
     .raw_weights = 1,
     .layers = 28,
     .dense_layers = 1,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 16,
     .head_dim = 128,
     .ffn = 10944,
     .experts = 64,
     .top_k = 6,
     .shared_experts = 2,
     .expert_ffn = 1408,
     .vocabulary = 102400,
     .rope_theta = 10000,
     .norm_eps = 1e-6},
    {.name = "mixtral-8x7b",
     .layers = 32,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .experts = 8,
     .top_k = 2,
     .expert_ffn = 14336,
     .vocabulary = 32000,
     .rope_theta = 1e6,
     .norm_eps = 1e-5},
    {.name = "mixtral-8x22b",
     .layers = 56,
     .hidden = 6144,
     .heads = 48,
     .kv_heads = 8,
     .head_dim = 128,
     .experts = 8,
     .top_k = 2,
     .expert_ffn = 16384,
     .vocabulary = 32768,
     .rope_theta = 1e6,
     .norm_eps = 1e-5},
    // Upcycled for arXiv 2504.14960: experts cut to an eighth, and Llama's FFN eight times.
    {.name = "mixtral-8x22b-g8t8",
     .layers = 56,
     .hidden = 6144,
     .heads = 48,
     .kv_heads = 8,
     .head_dim = 128,
     .experts = 64,
     .top_k = 8,
     .expert_ffn = 2048,
     .vocabulary = 32768,
     .rope_theta = 1e6,
     .norm_eps = 1e-5},
    {.name = "llama-3-8x70b",
     .layers = 80,
     .hidden = 8192,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 128,
     .experts = 8,
     .top_k = 2,
     .expert_ffn = 28672,
     .vocabulary = 128256,
     .rope_theta = 500000,
     .norm_eps = 1e-5},
    {.name = "qwen3-235b-a22b",
     .layers = 94,
     .hidden = 4096,
     .heads = 64,
     .kv_heads = 4,
     .head_dim = 128,
     .experts = 128,
     .top_k = 8,
     .expert_ffn = 1536,
     .vocabulary = 151936,
     .rope_theta = 1e6,
     .norm_eps = 1e-6,
     .qk_norm = 1},
    {.name = "qwen3-30b-a3b",
     .layers = 48,
     .hidden = 2048,
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 128,
     .experts = 128,
     .top_k = 8,
     .expert_ffn = 768,
     .vocabulary = 151936,
     .rope_theta = 1e6,
     .norm_eps = 1e-6,
     .qk_norm = 1},
    {.name = "kimi-k2",
     DEEPSEEK_YARN(32, 1, 1),
     .router = DP_MODEL_SIGMOID,
     .route_scale = 2.827,
     .bias_update = 0.001,
     .layers = 61,
     .dense_layers = 1,
     .hidden = 7168,
     .heads = 64,
     .kv_heads = 64,
     DEEPSEEK_MLA(1536),
     .ffn = 18432,
     .experts = 384,
     .top_k = 8,
     .shared_experts = 1,
     .expert_ffn = 2048,
     .vocabulary = 163840,
     .rope_theta = 50000,
     .norm_eps = 1e-6,
     .biases = DP_BIAS_ROUTER},
    {.name = "glm-4.5",
     .router = DP_MODEL_SIGMOID,
     .route_scale = 2.5,
     .bias_update = 0.001,
     .layers = 92,
     .dense_layers = 3,
     .hidden = 5120,
     .heads = 96,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 12288,
     .experts = 160,
     .top_k = 8,
     .shared_experts = 1,
     .expert_ffn = 1536,
     .vocabulary = 151552,
     .mtp_layers = 1,
     .rope_theta = 1e6,
     .rotary_dim = 64,
     .norm_eps = 1e-5,
     .qk_norm = 1,
     .biases = DP_BIAS_QKV | DP_BIAS_ROUTER},
    {.name = "glm-4.5-air",
     .router = DP_MODEL_SIGMOID,
     .route_scale = 1,
     .bias_update = 0.001,
     .layers = 46,
     .dense_layers = 1,
     .hidden = 4096,
     .heads = 96,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 10944,
     .experts = 128,
     .top_k = 8,
     .shared_experts = 1,
     .expert_ffn = 1408,
     .vocabulary = 151552,
     .mtp_layers = 1,
     .rope_theta = 1e6,
     .rotary_dim = 64,
     .norm_eps = 1e-5,
     .biases = DP_BIAS_QKV | DP_BIAS_ROUTER},
    {.name = "gpt-oss-120b",
     .layers = 36,
     .hidden = 2880,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .experts = 128,
     .top_k = 4,
     .expert_ffn = 2880,
     .vocabulary = 201088,
     .rope_theta = 150000,
     .norm_eps = 1e-5,
     GPT_OSS(18)},
    {.name = "gpt-oss-20b",
     .layers = 24,
     .hidden = 2880,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .experts = 32,
     .top_k = 4,
     .expert_ffn = 2880,
     .vocabulary = 201088,
     .rope_theta = 150000,
     .norm_eps = 1e-5,
     GPT_OSS(12)},
    {.name = "qwen2-57b-a14b",
     .raw_weights = 1,
     .layers = 28,
     .hidden = 3584,
     .heads = 28,
     .kv_heads = 4,
     .head_dim = 128,
     .experts = 64,
     .top_k = 8,
     .shared_experts = 8,
     .expert_ffn = 2560,
     .vocabulary = 151936,
     .rope_theta = 1e6,
     .norm_eps = 1e-6,
     .biases = DP_BIAS_QKV,
     .shared_gate = 1},
    {.name = "qwen1.5-moe-a2.7b",
     .raw_weights = 1,
     .layers = 24,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 16,
     .head_dim = 128,
     .experts = 60,
     .top_k = 4,
     .shared_experts = 4,
     .expert_ffn = 1408,
     .vocabulary = 151936,
     .rope_theta = 1e6,
     .norm_eps = 1e-6,
     .biases = DP_BIAS_QKV,
     .shared_gate = 1},
    {.name = "llama-2-7b",
     .layers = 32,
     .dense_layers = 32,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 32,
     .head_dim = 128,
     .ffn = 11008,
     .vocabulary = 32000,
     .rope_theta = 10000,
     .norm_eps = 1e-5},
    {.name = "llama-2-70b",
     .layers = 80,
     .dense_layers = 80,
     .hidden = 8192,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 28672,
     .vocabulary = 32000,
     .rope_theta = 10000,
     .norm_eps = 1e-5},
    {.name = "llama-3-8b",
     .layers = 32,
     .dense_layers = 32,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 14336,
     .vocabulary = 128256,
     .rope_theta = 500000,
     .norm_eps = 1e-5},
    {.name = "llama-3-70b",
     .layers = 80,
     .dense_layers = 80,
     .hidden = 8192,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 28672,
     .vocabulary = 128256,
     .rope_theta = 500000,
     .norm_eps = 1e-5},
    {.name = "llama-3.1-405b",
     .rope =
         {.kind = DP_ROPE_LLAMA3, .original = 8192, .factor = 8, .low_factor = 1, .high_factor = 4},
     .layers = 126,
     .dense_layers = 126,
     .hidden = 16384,
     .heads = 128,
     .kv_heads = 8,
     .head_dim = 128,
     .ffn = 53248,
     .vocabulary = 128256,
     .rope_theta = 500000,
     .norm_eps = 1e-5},
    // arXiv 2401.10241, table 3. Its text gives no vocabulary; beside their layers, all four names
    // are right only with a table of 26.5 to 34.5 thousand words counted once.
    GPT("gpt-1.5b", 22, 24, 2304, 32000, 1024),
    GPT("gpt-6.2b", 30, 32, 4096, 32000, 1024),
    GPT("gpt-14.6b", 46, 40, 5120, 32000, 1024),
    GPT("gpt-28.3b", 62, 48, 6144, 32000, 1024),
    // arXiv 2205.05198, table 3 (22B, 175B, 530B, 1T).
    GPT("gpt-22b", 48, 64, 6144, 51200, 2048),
    GPT("gpt-175b", 96, 96, 12288, 51200, 2048),
    GPT("gpt-530b", 105, 128, 20480, 51200, 2048),
    GPT("gpt-1t", 128, 160, 25600, 51200, 2048),
};

enum { PRESETS = sizeof(presets) / sizeof(presets[0]) };

// What people and tables call the same models, as normalize() leaves it.
static const struct alias {
    const char *spelling, *preset;
} aliases[] = {
    {"deepseekr1", "deepseek-v3"},
    {"deepseekv3r1", "deepseek-v3"},
    {"deepseekv31", "deepseek-v3"},
    {"deepseekcoderv2", "deepseek-v2"},
    {"deepseekcoderv2lite", "deepseek-v2-lite"},
    {"coderv2lite", "deepseek-v2-lite"},
    {"deepseekv2litecoderv2lite", "deepseek-v2-lite"},
    {"kimik2instruct", "kimi-k2"},
    {"glm46", "glm-4.5"},
    {"glm47", "glm-4.5"},
    {"llama38b", "llama-3-8b"},
    {"llama318b", "llama-3-8b"},
    {"metallama38b", "llama-3-8b"},
    {"llama3170b", "llama-3-70b"},
    {"llama3370b", "llama-3-70b"},
    {"metallama370b", "llama-3-70b"},
    {"llama3405b", "llama-3.1-405b"},
    {"qwen15moea27b", "qwen1.5-moe-a2.7b"},
    {"qwen3235b", "qwen3-235b-a22b"},
    {"qwen330b", "qwen3-30b-a3b"},
    {"qwen257b", "qwen2-57b-a14b"},
    {"gpt3175b", "gpt-175b"},
    {"gpt3", "gpt-175b"},
    {"megatron22b", "gpt-22b"},
    {"megatron175b", "gpt-175b"},
    {"megatron530b", "gpt-530b"},
    {"megatron1t", "gpt-1t"},
};

const char *const *dp_model_preset_names(void)
{
    // Written with the same values by whoever comes first.
    static const char *names[PRESETS + 1];
    for (size_t i = 0; i < PRESETS; i++) {
        __atomic_store_n(&names[i], presets[i].name, __ATOMIC_RELAXED);
    }
    return names;
}

// Lower case, without what people write between the words of a name. False: too long for one.
static bool normalize(const char *name, char ret_text[DP_NAME_MAX])
{
    size_t used = 0;
    for (; *name != '\0'; name++) {
        if (strchr(" _.-/", *name) != NULL) {
            continue;
        }
        if (used == DP_NAME_MAX - 1) {
            return false;
        }
        ret_text[used++] = (char)tolower((unsigned char)*name);
    }
    ret_text[used] = '\0';
    return used > 0;
}

static const struct dp_model_spec *find_preset(const char *name)
{
    char wanted[DP_NAME_MAX], spelling[DP_NAME_MAX];
    if (!normalize(name, wanted)) {
        return NULL;
    }
    for (size_t i = 0; i < PRESETS; i++) {
        if (normalize(presets[i].name, spelling) && strcmp(spelling, wanted) == 0) {
            return &presets[i];
        }
    }
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++) {
        if (strcmp(aliases[i].spelling, wanted) == 0) {
            return find_preset(aliases[i].preset);
        }
    }
    return NULL;
}

dp_status dp_model_preset(const char *name, struct dp_model_spec *ret_model, struct dp_error *err)
{
    const struct dp_model_spec *preset = find_preset(name);
    if (preset != NULL) {
        *ret_model = *preset;
        return DP_OK;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf names = {0};
    for (size_t i = 0; i < PRESETS; i++) {
        dp_buf_printf(&names, "%s%s", i == 0 ? "" : ", ", presets[i].name);
    }
    return dp_fail(err, DP_NOT_FOUND, "no model is called \"%s\"; the built-in ones are %s", name,
                   names.bytes);
}
