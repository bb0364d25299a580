// config.json files as they are published (their keys and figures), and ones that nobody should
// publish.

#include "spec_support.h"

#include "dp/alloc.h"

#define HF DP_SOURCE_DIR "/tests/fixtures/hf/"

static dp_status from_text(const char *json, struct dp_model_spec *ret_model, struct dp_error *err)
{
    return dp_model_from_hf_config(json, strlen(json), "config.json", ret_model, err);
}

static dp_status from_file(const char *name, struct dp_model_spec *ret_model, struct dp_error *err)
{
    DP_AUTO_FREE char *path = dp_asprintf(HF "%s.json", name);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    assert_ok(dp_read_file(path, DP_SPEC_BYTES_MAX, &text, err), err);
    return dp_model_from_hf_config(text.bytes, text.length, path, ret_model, err);
}

static void published_configurations_give_the_presets(void **state)
{
    (void)state;
    static const char *const names[] = {
        "deepseek-v3",  "deepseek-v2",     "deepseek-v2-lite",  "deepseek-moe-16b", "kimi-k2",
        "mixtral-8x7b", "qwen3-235b-a22b", "qwen3-30b-a3b",     "glm-4.5",          "gpt-oss-120b",
        "llama-2-7b",   "llama-3.1-405b",  "qwen1.5-moe-a2.7b",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct dp_model_spec imported, preset;
        struct dp_error err = {0};
        assert_ok(from_file(names[i], &imported, &err), &err);
        assert_ok(dp_model_preset(names[i], &preset, &err), &err);
        memcpy(imported.name, preset.name, sizeof(preset.name));
        if (strcmp(names[i], "kimi-k2") == 0) {
            // Stored in fp8, trained in bf16 (arXiv 2507.20534, 2.4).
            assert_int_equal(imported.format, DP_FORMAT_FP8_BLOCK);
            imported.format = DP_FORMAT_AUTO;
        }
        if (memcmp(&imported, &preset, sizeof(preset)) != 0) {
            fail_msg("%s: the imported shape differs from the preset", names[i]);
        }
    }
}

// Hugging Face's counts of models without a preset.
static void published_configurations_give_the_published_totals(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t total;
    } table[] = {
        {"gpt2", 124439808},
        {"qwen3-0.6b", 596049920}, // one table for embedding and head
        {"qwen2-7b", 7615616512},
        {"mistral-7b", 7241732096},
        {"mistral3-24b", 23572403200}, // the language model inside a multimodal one
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_model_spec model;
        struct dp_error err = {0};
        assert_ok(from_file(table[i].name, &model, &err), &err);
        if (dp_model_parameters(&model) != table[i].total) {
            fail_msg("%s: %lld", table[i].name, (long long)dp_model_parameters(&model));
        }
    }
}

// Small models to which keys are added.
#define SIZES                                                                                      \
    "\"hidden_size\":64,\"intermediate_size\":128,\"num_attention_heads\":4,"                      \
    "\"num_hidden_layers\":8,\"vocab_size\":256"
#define MOE(type) "{\"model_type\":\"" type "\"," SIZES ",\"moe_intermediate_size\":32"
#define QWEN2                                                                                      \
    "{\"model_type\":\"qwen2\"," SIZES ",\"sliding_window\":32,\"use_sliding_window\":true"
#define QWEN_MOE                                                                                   \
    MOE("qwen2_moe")                                                                               \
    ",\"num_experts\":16,\"num_experts_per_tok\":2,\"shared_expert_intermediate_size\":64"
#define QWEN3_MOE MOE("qwen3_moe") ",\"num_experts\":16,\"num_experts_per_tok\":2"
#define GLM MOE("glm4_moe") ",\"n_routed_experts\":16,\"num_experts_per_tok\":2"
#define LATENT_OF(type)                                                                            \
    MOE(type)                                                                                      \
    ",\"n_routed_experts\":16,\"num_experts_per_tok\":2,\"kv_lora_rank\":16,"                      \
    "\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":4,\"v_head_dim\":8"
#define LATENT LATENT_OF("deepseek_v3")
#define LATENT_2 LATENT_OF("deepseek_v2")
#define GPT2                                                                                       \
    "{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_head\":4,\"n_layer\":2,\"n_positions\":128,"       \
    "\"vocab_size\":256"

// A small model with one member replaced or added.
static char *altered(const char *key, const char *value)
{
    static const char *const members[][2] = {
        {"model_type", "\"deepseek_v3\""},
        {"num_hidden_layers", "8"},
        {"hidden_size", "64"},
        {"num_attention_heads", "4"},
        {"vocab_size", "256"},
        {"intermediate_size", "128"},
        {"moe_intermediate_size", "32"},
        {"n_routed_experts", "16"},
        {"num_experts_per_tok", "2"},
        {"n_shared_experts", "1"},
        {"first_k_dense_replace", "1"},
        {"kv_lora_rank", "16"},
        {"q_lora_rank", "null"},
        {"qk_nope_head_dim", "8"},
        {"qk_rope_head_dim", "4"},
        {"v_head_dim", "8"},
    };
    struct dp_buf text = {0};
    bool found = false;
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        bool is_key = strcmp(members[i][0], key) == 0;
        found = found || is_key;
        dp_buf_printf(&text, "%s\"%s\":%s", i == 0 ? "{" : ",", members[i][0],
                      is_key ? value : members[i][1]);
    }
    if (!found) {
        dp_buf_printf(&text, ",\"%s\":%s", key, value);
    }
    dp_buf_puts(&text, "}");
    return dp_buf_take(&text);
}

static void windows_are_taken_only_where_they_are_used(void **state)
{
    (void)state;
    struct dp_model_spec model;
    struct dp_error err = {0};
    assert_ok(from_file("mistral-7b", &model, &err), &err);
    assert_int_equal(model.window, 4096);
    assert_int_equal(model.window_layers, 32);
    assert_ok(from_file("qwen2-7b", &model, &err), &err); // "use_sliding_window": false
    assert_int_equal(model.window, 0);
    assert_int_equal(model.window_layers, 0);
    assert_ok(from_file("gpt-oss-120b", &model, &err), &err);
    assert_int_equal(model.window_layers, 18);
    assert_ok(from_text(QWEN2 ",\"max_window_layers\":6}", &model, &err), &err);
    assert_int_equal(model.window, 32);
    assert_int_equal(model.window_layers, 2); // layers 6 and 7
    for (int32_t layer = 0; layer < 8; layer++) {
        assert_int_equal(dp_model_layer_window(&model, layer), layer < 6 ? 0 : 32);
    }
    assert_ok(from_text(QWEN2 ",\"max_window_layers\":8}", &model, &err), &err);
    assert_int_equal(model.window, 0);
    assert_ok(from_text(QWEN2 "}", &model, &err), &err); // the class says 28
    assert_int_equal(model.window, 0);
    assert_refused(from_text(QWEN2 ",\"layer_types\":[\"full_attention\"]}", &model, &err),
                   DP_INVALID, &err, "\"layer_types\" is a list; it must be a list with one name");
    assert_refused(from_text("{\"model_type\":\"llama\",\"hidden_size\":64,\"vocab_size\":9,"
                             "\"intermediate_size\":128,\"num_attention_heads\":4,"
                             "\"num_hidden_layers\":1,\"layer_types\":[\"linear_attention\"]}",
                             &model, &err),
                   DP_UNSUPPORTED, &err, "\"layer_types\" has \"linear_attention\"");
}

// Windows in some layers, as one letter for each: s slides, f does not.
static dp_status with_windows(const char *pattern, struct dp_model_spec *ret_model,
                              struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_puts(&text, QWEN2 ",\"layer_types\":[");
    for (const char *at = pattern; *at != '\0'; at++) {
        dp_buf_printf(&text, "%s\"%s_attention\"", at == pattern ? "" : ",",
                      *at == 's' ? "sliding" : "full");
    }
    dp_buf_puts(&text, "]}");
    return from_text(text.bytes, ret_model, err);
}

static void windows_are_in_the_layers_that_the_list_names(void **state)
{
    (void)state;
    struct dp_error err = {0};
    static const char *const patterns[] = {"sfsfsfsf", "ssssssss", "ffffffff", "fffffsss",
                                           "sssfsssf", "ffsfsfsf", "sfffffff", "fffffffs"};
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        struct dp_model_spec model;
        assert_ok(with_windows(patterns[i], &model, &err), &err);
        for (int32_t layer = 0; layer < 8; layer++) {
            int32_t wanted = patterns[i][layer] == 's' ? 32 : 0;
            if (dp_model_layer_window(&model, layer) != wanted) {
                fail_msg("%s: layer %d", patterns[i], layer);
            }
        }
    }
    struct dp_model_spec model;
    assert_refused(with_windows("sssfffff", &model, &err), DP_UNSUPPORTED, &err,
                   "\"layer_types\" has windows in 3 of 8 layers in an order that is not known");
    // Versions of these classes put their windows into different layers.
    assert_refused(
        from_text(QWEN_MOE ",\"sliding_window\":32,\"use_sliding_window\":true}", &model, &err),
        DP_UNSUPPORTED, &err, "\"use_sliding_window\" is true");
}

static void parts_of_heads_turn_where_the_file_or_its_class_says_so(void **state)
{
    (void)state;
    struct dp_model_spec model;
    struct dp_error err = {0};
    assert_ok(from_file("glm-4.5", &model, &err), &err);
    assert_int_equal(model.rotary_dim, 64);
    static const struct {
        const char *keys;
        int32_t rotary_dim;
    } table[] = {
        {"", 8}, // half of 16: the default of the class
        {",\"partial_rotary_factor\":1.0", 0},
        {",\"partial_rotary_factor\":0.25", 4},
        {",\"rope_parameters\":{\"rope_theta\":1e4,\"partial_rotary_factor\":0.25}", 4},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        DP_AUTO_FREE char *json = dp_asprintf(GLM "%s}", table[i].keys);
        assert_ok(from_text(json, &model, &err), &err);
        assert_int_equal(model.rotary_dim, table[i].rotary_dim);
    }
    assert_ok(from_text(QWEN2 ",\"partial_rotary_factor\":0.5}", &model, &err), &err);
    assert_int_equal(model.rotary_dim, 8);
    assert_refused(from_text(GLM ",\"partial_rotary_factor\":0.2}", &model, &err), DP_UNSUPPORTED,
                   &err, "\"partial_rotary_factor\" is 0.2, which turns 3 of 16");
    DP_AUTO_FREE char *latent = altered("partial_rotary_factor", "0.5");
    assert_refused(from_text(latent, &model, &err), DP_UNSUPPORTED, &err,
                   "\"partial_rotary_factor\" is 0.5");
}

// Keys that change what a model computes, and are not read: refused unless they say what is
// computed anyway.
static const struct {
    const char *start, *key, *value;
    bool is_fine;
} changing[] = {
    {QWEN2, "hidden_act", "\"silu\"", true},
    {QWEN2, "hidden_act", "\"gelu\"", false},
    {QWEN2, "hidden_act", "7", false},
    {QWEN2, "attention_dropout", "0.0", true},
    {QWEN2, "attention_dropout", "0", true},
    {QWEN2, "attention_dropout", "0.1", false},
    {QWEN2, "attn_logit_softcapping", "null", true},
    {QWEN2, "attn_logit_softcapping", "50.0", false},
    {QWEN2, "final_logit_softcapping", "30.0", false},
    {QWEN2, "residual_multiplier", "0.22", false},
    {QWEN2, "embedding_multiplier", "12.0", false},
    {QWEN2, "logits_scaling", "8.0", false},
    {QWEN2, "clip_qkv", "8.0", false},
    {QWEN2, "use_qk_norm", "true", false},
    {QWEN2, "use_qk_norm", "false", true},
    {QWEN2, "no_rope_layers", "[0,1]", false},
    {QWEN2, "no_rope_layers", "[]", true},
    {QWEN2, "use_parallel_residual", "true", false},
    {QWEN2, "rope_interleave", "true", false},
    {QWEN2, "qkv_bias", "false", false},
    {QWEN2, "qkv_bias", "true", true},
    {QWEN2, "rope_scaling", "\"yarn\"", false},
    {QWEN2, "rope_scaling", "{\"type\":\"linear\",\"factor\":2.0,\"alpha\":3}", false},
    {QWEN2, "rope_scaling", "{\"type\":\"linear\",\"factor\":2.0}", true},
    {QWEN2, "rope_scaling", "{\"type\":\"linear\"}", false},
    {QWEN2, "rope_scaling", "{\"type\":\"linear\",\"factor\":0.5}", false},
    {QWEN2, "rope_scaling", "{\"type\":\"yarn\",\"factor\":2}", false}, // of which sequence?
    {QWEN2, "rope_scaling",
     "{\"type\":\"llama3\",\"factor\":2,\"low_freq_factor\":4,\"high_freq_factor\":4,"
     "\"original_max_position_embeddings\":64}",
     false},
    {QWEN2, "rope_parameters", "{\"full_attention\":{\"rope_theta\":1e6}}", false},
    {QWEN2, "pretraining_tp", "2", true},
    {QWEN2, "tokenizer_class", "\"Qwen2Tokenizer\"", true},
    {QWEN2, "_attn_implementation", "\"sdpa\"", true},
    {QWEN2, "use_flash_attention", "true", true},
    {QWEN2, "router_aux_loss_coef", "0.1", true},
    {QWEN3_MOE, "use_qk_norm", "true", true},
    {QWEN3_MOE, "use_qk_norm", "false", false},
    {QWEN3_MOE, "qkv_bias", "false", true},
    {QWEN3_MOE, "shared_expert_intermediate_size", "0", true},
    {QWEN3_MOE, "router_jitter_noise", "0.01", false},
    {QWEN3_MOE, "router_jitter_noise", "0.0", true},
    {QWEN3_MOE, "expert_capacity_factor", "1.25", false},
    {LATENT, "rope_interleave", "true", true},
    {LATENT, "rope_interleave", "false", false},
    {LATENT, "topk_method", "\"noaux_tc\"", true},
    {LATENT, "topk_method", "\"soft\"", false},
    {GPT2, "activation_function", "\"gelu_new\"", true},
    {GPT2, "activation_function", "\"relu\"", false},
    {GPT2, "scale_attn_weights", "true", true},
    {GPT2, "scale_attn_weights", "false", false},
    {GPT2, "scale_attn_by_inverse_layer_idx", "true", false},
    {GPT2, "add_cross_attention", "true", false},
    {GPT2, "attn_pdrop", "0.1", true}, // only planned with
};

static void keys_that_change_the_model_are_read_or_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(changing) / sizeof(changing[0]); i++) {
        struct dp_model_spec model;
        struct dp_error err = {0};
        DP_AUTO_FREE char *json =
            dp_asprintf("%s,\"%s\":%s}", changing[i].start, changing[i].key, changing[i].value);
        dp_status status = from_text(json, &model, &err);
        bool is_named = strstr(err.message, changing[i].key) != NULL;
        if (changing[i].is_fine ? status != DP_OK : status == DP_OK || !is_named) {
            fail_msg("%s = %s: %s", changing[i].key, changing[i].value, err.message);
        }
    }
}

static void groups_count_only_under_methods_that_take_them(void **state)
{
    (void)state;
    struct dp_model_spec model;
    struct dp_error err = {0};
    static const struct {
        const char *keys;
        int32_t groups;
    } table[] = {
        {"", 0}, // greedy: the default of the class
        {",\"topk_method\":\"greedy\"", 0},
        {",\"topk_method\":\"group_limited_greedy\"", 4},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        DP_AUTO_FREE char *json =
            dp_asprintf(LATENT_2 ",\"n_group\":4,\"topk_group\":2%s}", table[i].keys);
        assert_ok(from_text(json, &model, &err), &err);
        assert_int_equal(model.expert_groups, table[i].groups);
    }
}

static void formats_follow_the_quantization(void **state)
{
    (void)state;
    static const struct {
        const char *quantization;
        dp_format format;
    } table[] = {
        {"null", DP_FORMAT_AUTO},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}", DP_FORMAT_FP8_BLOCK},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":null}", DP_FORMAT_FP8},
        {"{\"quant_method\":\"mxfp4\"}", DP_FORMAT_AUTO},
        {"{\"quant_method\":\"compressed-tensors\"}", DP_FORMAT_AUTO},
        {"{\"quant_method\":7}", DP_FORMAT_AUTO},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_model_spec model;
        struct dp_error err = {0};
        DP_AUTO_FREE char *json =
            dp_asprintf(QWEN2 ",\"quantization_config\":%s}", table[i].quantization);
        assert_ok(from_text(json, &model, &err), &err);
        assert_int_equal(model.format, table[i].format);
    }
}

static void unknown_architectures_are_refused_by_name_with_the_nearest(void **state)
{
    (void)state;
    static const struct {
        const char *name, *parts[3];
    } files[] = {
        {"qwen3-next-80b-a3b",
         {"Qwen3NextForCausalLM: gated delta-net layers are not known", "qwen3_moe", NULL}},
        {"nemotron-h-8b", {"NemotronHForCausalLM: Mamba layers", "nearest supported is", NULL}},
        {"llama4-scout", {"experts in every other layer", "mixtral", "llama4"}},
    };
    struct dp_model_spec model;
    struct dp_error err = {0};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        for (size_t j = 0; j < 3 && files[i].parts[j] != NULL; j++) {
            assert_refused(from_file(files[i].name, &model, &err), DP_UNSUPPORTED, &err,
                           files[i].parts[j]);
        }
    }
    static const struct {
        const char *json, *part;
    } texts[] = {
        {"{\"model_type\":\"deepseek_v4\",\"kv_lora_rank\":512}",
         "nearest supported is deepseek_v3"},
        {"{\"model_type\":\"deepseek_v32\"}", "deepseek_v32: the indexer of its sparse attention"},
        {"{\"model_type\":\"brand_new\",\"kv_lora_rank\":512}", "nearest supported is deepseek_v3"},
        {"{\"model_type\":\"brand_new\",\"moe_intermediate_size\":9}", "supported is qwen3_moe"},
        {"{\"model_type\":\"brand_new\",\"num_local_experts\":9}", "supported is mixtral"},
        {"{\"architectures\":[\"BrandNewForCausalLM\"]}", "BrandNewForCausalLM: this architecture"},
        {"{\"model_type\":\"qwen3moe\"}", "nearest supported is qwen3_moe"},
        {"{\"model_type\":\"a\\u001b[31m\\\"b\"}", "config.json: a??31m?b: "},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_refused(from_text(texts[i].json, &model, &err), DP_UNSUPPORTED, &err, texts[i].part);
    }
    // Known by its class alone.
    assert_ok(from_text("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,"
                        "\"intermediate_size\":128,\"num_attention_heads\":4.0,"
                        "\"num_hidden_layers\":2e0,\"vocab_size\":256}",
                        &model, &err),
              &err);
    assert_int_equal(model.layers, 2);
}

static struct dp_model_spec read_altered(const char *key, const char *value)
{
    struct dp_model_spec model;
    struct dp_error err = {0};
    DP_AUTO_FREE char *json = altered(key, value);
    assert_ok(from_text(json, &model, &err), &err);
    return model;
}

static void layouts_with_dense_layers_first_are_read(void **state)
{
    (void)state;
    assert_int_equal(read_altered("moe_layer_freq", "[0,0,0,1,1,1,1,1]").dense_layers, 3);
    assert_int_equal(read_altered("mlp_only_layers", "[0,1]").dense_layers, 2);
    assert_int_equal(read_altered("mlp_only_layers", "[]").dense_layers, 1);
    static const char types[] = "[\"dense\",\"dense\",\"sparse\",\"sparse\",\"sparse\",\"sparse\","
                                "\"sparse\",\"sparse\"]";
    assert_int_equal(read_altered("mlp_layer_types", types).dense_layers, 2);
    assert_int_equal(read_altered("decoder_sparse_step", "1").dense_layers, 1);
    struct dp_model_spec model = read_altered("first_k_dense_replace", "0");
    assert_int_equal(model.dense_layers, 0);
    assert_int_equal(model.ffn, 0); // nobody has it
    assert_int_equal(read_altered("num_experts_per_tok", "2.0").top_k, 2);
    assert_int_equal(read_altered("q_lora_rank", "24").mla_q_rank, 24);
}

// Keys that newer files moved, and those that stand at a wrapper.
static void keys_are_found_where_newer_files_have_them(void **state)
{
    (void)state;
    struct dp_model_spec model = read_altered("rope_parameters", "{\"rope_theta\":5e5}");
    assert_near(model.rope_theta, 5e5, 0);
    assert_near(read_altered("rope_theta", "1e6").rope_theta, 1e6, 0);
    struct dp_error err = {0};
    DP_AUTO_FREE char *inner = altered("vocab_size", "512");
    DP_AUTO_FREE char *json =
        dp_asprintf("{\"model_type\":\"kimi_vl\",\"tie_word_embeddings\":true,"
                    "\"quantization_config\":{\"quant_method\":\"fp8\"},\"text_config\":%s}",
                    inner);
    assert_ok(from_text(json, &model, &err), &err);
    assert_int_equal(model.vocabulary, 512);
    assert_int_equal(model.tied_embedding, 1);
    assert_int_equal(model.format, DP_FORMAT_FP8);
    assert_string_equal(model.name, "deepseek_v3");
    // gpt-oss by what its class does when the file says nothing.
    assert_ok(from_text("{\"model_type\":\"gpt_oss\",\"hidden_size\":64,\"vocab_size\":256,"
                        "\"intermediate_size\":64,\"num_attention_heads\":4,"
                        "\"num_hidden_layers\":5,\"num_local_experts\":4,"
                        "\"experts_per_token\":2,\"sliding_window\":128}",
                        &model, &err),
              &err);
    assert_int_equal(model.window_layers, 3);
    assert_int_equal(model.biases, DP_BIAS_QKV | DP_BIAS_OUTPUT | DP_BIAS_ROUTER | DP_BIAS_EXPERT);
    assert_int_equal(model.top_k, 2);
}

// Each names the key and what it may be.
static void wrong_values_are_refused_with_the_key_and_its_range(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
        dp_status status;
        const char *part;
    } table[] = {
        {"n_routed_experts", "0", DP_INVALID,
         "\"n_routed_experts\" is 0; it must be a whole "
         "number from 1 to 4096"},
        {"num_experts_per_tok", "17", DP_INVALID, "at most 16 can be visited"},
        {"num_experts_per_tok", "0", DP_INVALID, "\"num_experts_per_tok\" is 0"},
        {"num_experts_per_tok", "null", DP_INVALID, "\"num_experts_per_tok\" is missing"},
        {"num_hidden_layers", "-1", DP_INVALID, "from 1 to 1024"},
        {"num_hidden_layers", "0", DP_INVALID, "\"num_hidden_layers\" is 0"},
        {"num_hidden_layers", "99999999999", DP_INVALID, "\"num_hidden_layers\" is 99999999999"},
        {"hidden_size", "\"64\"", DP_INVALID, "\"hidden_size\" is \"64\"; it must be a whole"},
        {"hidden_size", "64.5", DP_INVALID, "\"hidden_size\" is 64.5"},
        {"hidden_size", "true", DP_INVALID, "\"hidden_size\" is true"},
        {"hidden_size", "[64]", DP_INVALID, "\"hidden_size\" is a list"},
        {"hidden_size", "{}", DP_INVALID, "\"hidden_size\" is an object"},
        {"hidden_size", "1e300", DP_INVALID, "\"hidden_size\" is 1"},
        {"hidden_size", "1e999", DP_INVALID, "config.json:1:"},
        {"hidden_size", "NaN", DP_INVALID, "config.json:1:"},
        {"vocab_size", "null", DP_INVALID, "\"vocab_size\" is missing"},
        {"first_k_dense_replace", "9", DP_INVALID,
         "9 dense layers come first, but "
         "\"num_hidden_layers\" is 8"},
        {"moe_intermediate_size", "null", DP_INVALID, "\"moe_intermediate_size\""},
        {"intermediate_size", "null", DP_INVALID, "\"intermediate_size\""},
        {"kv_lora_rank", "null", DP_INVALID, "\"kv_lora_rank\" is missing"},
        {"kv_lora_rank", "0", DP_INVALID, "\"kv_lora_rank\" is 0"},
        {"qk_nope_head_dim", "65536", DP_INVALID, "65540 together"},
        {"qk_rope_head_dim", "3", DP_INVALID, "\"qk_rope_head_dim\" is 3; it must be an even"},
        {"n_group", "3", DP_INVALID, "\"n_group\" is 3"},
        {"moe_layer_freq", "2", DP_UNSUPPORTED, "\"moe_layer_freq\" is 2"},
        {"moe_layer_freq", "[0,1,0,1,1,1,1,1]", DP_UNSUPPORTED, "\"moe_layer_freq\" mixes"},
        {"moe_layer_freq", "[0,2,1,1,1,1,1,1]", DP_UNSUPPORTED, "\"moe_layer_freq\" mixes"},
        {"moe_layer_freq", "[0,-1,1,1,1,1,1,1]", DP_UNSUPPORTED, "\"moe_layer_freq\" mixes"},
        {"moe_layer_freq", "[0,1]", DP_UNSUPPORTED, "\"moe_layer_freq\" mixes"},
        {"mlp_layer_types", "[\"odd\"]", DP_UNSUPPORTED, "\"mlp_layer_types\" mixes"},
        {"mlp_only_layers", "3", DP_INVALID, "\"mlp_only_layers\" is 3; it must be a list"},
        {"mlp_only_layers", "[3]", DP_UNSUPPORTED, "\"mlp_only_layers\" is not 0, 1"},
        {"index_topk", "2048", DP_UNSUPPORTED, "\"index_topk\": the indexer"},
        {"rope_theta", "\"big\"", DP_INVALID, "\"rope_theta\" is \"big\"; it must be a number"},
        {"rope_theta", "-1", DP_INVALID, "\"rope_theta\" is -1"},
        {"rms_norm_eps", "2", DP_INVALID, "\"rms_norm_eps\" is 2"},
        {"attention_bias", "1", DP_INVALID, "\"attention_bias\" is 1; it must be true or false"},
        {"tie_word_embeddings", "\"no\"", DP_INVALID, "\"tie_word_embeddings\" is \"no\""},
        {"quantization_config", "\"fp8\"", DP_INVALID, "\"quantization_config\" is \"fp8\""},
        {"model_type", "null", DP_INVALID, "\"model_type\" is missing"},
        {"model_type", "7", DP_INVALID, "\"model_type\" is missing"},
        {"hidden_size\":64,\"hidden_size", "64", DP_INVALID, "duplicate object key"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_model_spec model;
        struct dp_error err = {0};
        DP_AUTO_FREE char *json = altered(table[i].key, table[i].value);
        assert_refused(from_text(json, &model, &err), table[i].status, &err, table[i].part);
    }
}

static void plain_attention_needs_heads_that_share_evenly(void **state)
{
    (void)state;
#define LLAMA "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"vocab_size\":9,"
    static const struct {
        const char *json, *part;
    } table[] = {
        {LLAMA "\"hidden_size\":64,\"num_attention_heads\":32,\"num_key_value_heads\":3,"
               "\"intermediate_size\":8}",
         "does not divide \"num_attention_heads\" (32); the next smaller that does is 2"},
        {LLAMA "\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":8,"
               "\"intermediate_size\":8}",
         "the next smaller that does is 4"},
        {LLAMA "\"hidden_size\":64,\"num_attention_heads\":7,\"intermediate_size\":8}",
         "\"head_dim\" is missing"},
        {LLAMA "\"hidden_size\":64,\"num_attention_heads\":4,\"head_dim\":5,"
               "\"intermediate_size\":8}",
         "5 wide"},
        {LLAMA "\"hidden_size\":1048576,\"num_attention_heads\":1,\"intermediate_size\":8}",
         "1048576 wide"},
        {LLAMA "\"hidden_size\":64,\"num_attention_heads\":4}", "\"intermediate_size\""},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_model_spec model;
        struct dp_error err = {0};
        assert_refused(from_text(table[i].json, &model, &err), DP_INVALID, &err, table[i].part);
    }
}

static void sizes_within_their_ranges_cannot_overflow_the_count(void **state)
{
    (void)state;
    struct dp_model_spec model;
    struct dp_error err = {0};
    const char *json =
        "{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":1024,\"hidden_size\":1048576,"
        "\"num_attention_heads\":65536,\"vocab_size\":16777216,\"intermediate_size\":1048576,"
        "\"moe_intermediate_size\":1048576,\"n_routed_experts\":4096,\"num_experts_per_tok\":4096,"
        "\"n_shared_experts\":4096,\"first_k_dense_replace\":0,\"kv_lora_rank\":1048576,"
        "\"q_lora_rank\":1048576,\"qk_nope_head_dim\":32768,\"qk_rope_head_dim\":32768,"
        "\"v_head_dim\":65536,\"num_nextn_predict_layers\":1024}";
    assert_refused(from_text(json, &model, &err), DP_INVALID, &err, "the limit is 1e+15");
}

static void what_is_no_configuration_is_refused(void **state)
{
    (void)state;
    struct dp_model_spec model;
    struct dp_error err = {0};
    assert_refused(from_text("{}", &model, &err), DP_INVALID, &err, "\"model_type\" is missing");
    assert_refused(from_text("[1]", &model, &err), DP_INVALID, &err, "not a JSON object");
    assert_refused(from_text("", &model, &err), DP_INVALID, &err, "config.json:1:");
    assert_refused(from_text("{", &model, &err), DP_INVALID, &err, "config.json:1:");
    assert_refused(from_text("{\"model_type\":\"llama\"}", &model, &err), DP_INVALID, &err,
                   "\"num_hidden_layers\" is missing, which llama models have");
    assert_refused(from_text("{\"text_config\":7,\"model_type\":\"llama\"}", &model, &err),
                   DP_INVALID, &err, "\"num_hidden_layers\" is missing");
    enum { DEPTH = 100000 };
    DP_AUTO_FREE char *deep = dp_alloc(DEPTH + 1, 1);
    memset(deep, '[', DEPTH);
    deep[DEPTH] = '\0';
    assert_refused(from_text(deep, &model, &err), DP_INVALID, &err, "depth");
}

// What is read makes a job that is valid for accelerators, and survives the way to the controller.
static void what_is_read_makes_a_valid_job(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2", "qwen3-0.6b", "mistral3-24b", "deepseek-v2-lite"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct dp_job_spec spec, back;
        struct dp_error err = {0};
        dp_job_spec_init(&spec);
        spec.train = (struct dp_train_spec){.steps = 1, .global_batch = 8, .sequence = 64};
        spec.resources.device = DP_DEVICE_CUDA;
        assert_ok(from_file(names[i], &spec.model, &err), &err);
        assert_ok(dp_job_spec_check(&spec, &err), &err);
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dp_job_spec_write(&spec, &text);
        assert_ok(parse_job(text.bytes, NULL, &back, &err), &err);
        assert_memory_equal(&spec.model, &back.model, sizeof(spec.model));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_configurations_give_the_presets),
        cmocka_unit_test(published_configurations_give_the_published_totals),
        cmocka_unit_test(windows_are_taken_only_where_they_are_used),
        cmocka_unit_test(windows_are_in_the_layers_that_the_list_names),
        cmocka_unit_test(parts_of_heads_turn_where_the_file_or_its_class_says_so),
        cmocka_unit_test(keys_that_change_the_model_are_read_or_refused),
        cmocka_unit_test(groups_count_only_under_methods_that_take_them),
        cmocka_unit_test(formats_follow_the_quantization),
        cmocka_unit_test(unknown_architectures_are_refused_by_name_with_the_nearest),
        cmocka_unit_test(layouts_with_dense_layers_first_are_read),
        cmocka_unit_test(keys_are_found_where_newer_files_have_them),
        cmocka_unit_test(wrong_values_are_refused_with_the_key_and_its_range),
        cmocka_unit_test(plain_attention_needs_heads_that_share_evenly),
        cmocka_unit_test(sizes_within_their_ranges_cannot_overflow_the_count),
        cmocka_unit_test(what_is_no_configuration_is_refused),
        cmocka_unit_test(what_is_read_makes_a_valid_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
