// Architectures by the names that config.json files give them.

#include "hf_config.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/diag.h"

#define QKV DP_BIAS_QKV
#define OUTPUT DP_BIAS_OUTPUT
#define ROUTER DP_BIAS_ROUTER
#define EXPERT DP_BIAS_EXPERT

static const struct dp_hf_family families[] = {
    {"llama", "LlamaForCausalLM", 0, 0, QKV | OUTPUT},
    {"mistral", "MistralForCausalLM", DP_HF_WINDOW, 0, 0},
    {"qwen2", "Qwen2ForCausalLM", DP_HF_WINDOW_IF_USED, QKV, 0},
    {"qwen2_5_vl_text", NULL, DP_HF_WINDOW_IF_USED, QKV, 0},
    {"qwen3", "Qwen3ForCausalLM", DP_HF_WINDOW_IF_USED | DP_HF_QK_NORM, 0, QKV | OUTPUT},
    {"qwen3_vl_text", NULL, DP_HF_QK_NORM, 0, QKV | OUTPUT},
    {"mixtral", "MixtralForCausalLM", DP_HF_EXPERTS | DP_HF_FFN_IS_EXPERT | DP_HF_WINDOW, 0, 0},
    {"qwen2_moe", "Qwen2MoeForCausalLM",
     DP_HF_EXPERTS | DP_HF_WINDOW_IF_USED | DP_HF_WINDOW_UNCLEAR | DP_HF_SHARED_GATE |
         DP_HF_RAW_WEIGHTS,
     QKV, 0},
    {"qwen3_moe", "Qwen3MoeForCausalLM",
     DP_HF_EXPERTS | DP_HF_WINDOW_IF_USED | DP_HF_WINDOW_UNCLEAR | DP_HF_QK_NORM |
         DP_HF_RAW_WEIGHTS,
     0, QKV | OUTPUT},
    {"qwen3_vl_moe_text", NULL, DP_HF_EXPERTS | DP_HF_QK_NORM, 0, QKV | OUTPUT},
    {"deepseek", "DeepseekForCausalLM", DP_HF_EXPERTS | DP_HF_RAW_WEIGHTS, 0, QKV | OUTPUT},
    {"deepseek_v2", "DeepseekV2ForCausalLM",
     DP_HF_EXPERTS | DP_HF_MLA | DP_HF_RAW_WEIGHTS | DP_HF_GREEDY, 0, QKV | OUTPUT},
    {"deepseek_v3", "DeepseekV3ForCausalLM", DP_HF_EXPERTS | DP_HF_MLA | DP_HF_SIGMOID, ROUTER,
     QKV | OUTPUT},
    {"kimi_k2", "DeepseekV3ForCausalLM", DP_HF_EXPERTS | DP_HF_MLA | DP_HF_SIGMOID, ROUTER,
     QKV | OUTPUT},
    {"glm4_moe", "Glm4MoeForCausalLM",
     DP_HF_EXPERTS | DP_HF_QK_NORM_KEY | DP_HF_SIGMOID | DP_HF_HALF_TURNS, ROUTER, QKV},
    {"glm4v_moe_text", NULL, DP_HF_EXPERTS | DP_HF_QK_NORM_KEY | DP_HF_SIGMOID | DP_HF_HALF_TURNS,
     ROUTER, QKV},
    {"gpt_oss", "GptOssForCausalLM",
     DP_HF_EXPERTS | DP_HF_FFN_IS_EXPERT | DP_HF_SINKS | DP_HF_WINDOW | DP_HF_WINDOW_ALTERNATES,
     ROUTER | EXPERT, QKV | OUTPUT},
    {"gpt2", "GPT2LMHeadModel", DP_HF_PLAIN, QKV | OUTPUT | DP_BIAS_FFN | DP_BIAS_NORM, 0},
};

enum { FAMILIES = sizeof(families) / sizeof(families[0]), NAME_SHOWN_MAX = 60 };

static const struct unsupported {
    const char *type, *architecture;
    const char *why, *nearest;
} unsupported[] = {
    {"qwen3_next", "Qwen3NextForCausalLM", "gated delta-net layers are not known", "qwen3_moe"},
    {"qwen3_5", "Qwen3_5ForConditionalGeneration", "gated delta-net layers are not known", "qwen3"},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "gated delta-net layers are not known",
     "qwen3_moe"},
    {"kimi_linear", "KimiLinearForCausalLM", "linear attention (KDA) layers are not known",
     "kimi_k2"},
    {"nemotron_h", "NemotronHForCausalLM", "Mamba layers are not known", "mixtral"},
    {"jamba", "JambaForCausalLM", "Mamba layers are not known", "mixtral"},
    {"bamba", "BambaForCausalLM", "Mamba layers are not known", "llama"},
    {"mamba", "MambaForCausalLM", "Mamba layers are not known", "llama"},
    {"mamba2", "Mamba2ForCausalLM", "Mamba layers are not known", "llama"},
    {"falcon_h1", "FalconH1ForCausalLM", "Mamba heads beside attention are not known", "llama"},
    {"granitemoehybrid", "GraniteMoeHybridForCausalLM", "Mamba layers are not known", "mixtral"},
    {"deepseek_v32", "DeepseekV32ForCausalLM", "the indexer of its sparse attention is not known",
     "deepseek_v3"},
    {"deepseek_v4", "DeepseekV4ForCausalLM",
     "compressed sparse attention and hyper-connections are not known", "deepseek_v3"},
    {"glm_moe_dsa", "GlmMoeDsaForCausalLM", "the indexer of its sparse attention is not known",
     "deepseek_v3"},
    {"llama4", "Llama4ForConditionalGeneration",
     "experts in every other layer and chunked attention are not known", "mixtral"},
    {"llama4_text", "Llama4ForCausalLM",
     "experts in every other layer and chunked attention are not known", "mixtral"},
    {"minimax", "MiniMaxForCausalLM", "lightning attention layers are not known", "mixtral"},
    {"minimax_text_01", "MiniMaxText01ForCausalLM", "lightning attention layers are not known",
     "mixtral"},
    {"minimax_m1", "MiniMaxM1ForCausalLM", "lightning attention layers are not known", "mixtral"},
    {"minimax_m2", "MiniMaxM2ForCausalLM", "norms over all heads at once are not known",
     "qwen3_moe"},
    {"olmoe", "OlmoeForCausalLM", "norms over all heads at once are not known", "qwen3_moe"},
    {"longcat_flash", "LongcatFlashForCausalLM", "experts that compute nothing are not known",
     "deepseek_v3"},
    {"step3_text", "Step3TextModel", "multi-matrix factorized attention is not known",
     "deepseek_v3"},
    {"arctic", "ArcticForCausalLM", "a dense FFN beside the experts is not known", "mixtral"},
    {"gemma2", "Gemma2ForCausalLM", "four norms in a layer are not known", "llama"},
    {"gemma3", "Gemma3ForConditionalGeneration", "four norms in a layer are not known", "llama"},
    {"gemma3_text", "Gemma3ForCausalLM", "four norms in a layer are not known", "llama"},
    {"t5", "T5ForConditionalGeneration", "encoders are not known", "llama"},
    {"bert", "BertForMaskedLM", "encoders are not known", "gpt2"},
};

static const char *text_of(const json_t *value)
{
    return json_is_string(value) ? json_string_value(value) : "";
}

static const struct dp_hf_family *find_type(const char *type)
{
    for (size_t i = 0; i < FAMILIES; i++) {
        if (strcmp(families[i].type, type) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

static const struct dp_hf_family *find_architecture(const char *architecture)
{
    for (size_t i = 0; i < FAMILIES; i++) {
        if (families[i].architecture != NULL &&
            strcmp(families[i].architecture, architecture) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

// A name out of the file as it may stand in a message.
static void show_name(const char *text, char ret_shown[NAME_SHOWN_MAX])
{
    size_t used = 0;
    for (; *text != '\0' && used < NAME_SHOWN_MAX - 1; text++) {
        bool plain = isalnum((unsigned char)*text) || strchr("_.-", *text) != NULL;
        ret_shown[used++] = plain ? *text : '?';
    }
    ret_shown[used] = '\0';
}

static dp_status refuse(const char *name, const char *title, const char *why, const char *nearest,
                        struct dp_error *err)
{
    char shown[NAME_SHOWN_MAX];
    show_name(title, shown);
    return dp_fail(err, DP_UNSUPPORTED,
                   "%s: %s: %s; the nearest supported is %s, and any other shape can be described "
                   "in [model]",
                   name, shown, why, nearest);
}

// The family that shares most with an architecture nobody has heard of.
static const char *nearest_family(const json_t *root, const char *type)
{
    const char *types[FAMILIES + 1] = {0};
    for (size_t i = 0; i < FAMILIES; i++) {
        types[i] = families[i].type;
    }
    const char *near = dp_suggest(type, types);
    if (near != NULL) {
        return near;
    }
    if (json_object_get(root, "kv_lora_rank") != NULL) {
        return "deepseek_v3";
    }
    if (json_object_get(root, "moe_intermediate_size") != NULL) {
        return "qwen3_moe";
    }
    bool has_experts = json_object_get(root, "num_local_experts") != NULL ||
                       json_object_get(root, "num_experts") != NULL;
    return has_experts ? "mixtral" : "llama";
}

static void list_families(struct dp_buf *out)
{
    const char *before = "";
    for (size_t i = 0; i < FAMILIES; i++) {
        if (families[i].architecture != NULL) {
            dp_buf_printf(out, "%s%s", before, families[i].type);
            before = ", ";
        }
    }
}

dp_status dp_hf_family_find(const json_t *root, const char *name,
                            const struct dp_hf_family **ret_family, struct dp_error *err)
{
    const char *type = text_of(json_object_get(root, "model_type"));
    const char *architecture = text_of(json_array_get(json_object_get(root, "architectures"), 0));
    for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
        const struct unsupported *u = &unsupported[i];
        if (strcmp(u->type, type) == 0 || strcmp(u->architecture, architecture) == 0) {
            return refuse(name, architecture[0] != '\0' ? architecture : type, u->why, u->nearest,
                          err);
        }
    }
    const struct dp_hf_family *family = find_type(type);
    family = family != NULL ? family : find_architecture(architecture);
    if (family != NULL) {
        *ret_family = family;
        return DP_OK;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf list = {0};
    list_families(&list);
    if (type[0] == '\0' && architecture[0] == '\0') {
        return dp_fail(err, DP_INVALID,
                       "%s: \"model_type\" is missing; is it a model's config.json? Known ones "
                       "are %s",
                       name, list.bytes);
    }
    DP_AUTO_FREE char *why =
        dp_asprintf("this architecture is not known (known are %s)", list.bytes);
    return refuse(name, architecture[0] != '\0' ? architecture : type, why,
                  nearest_family(root, type), err);
}
