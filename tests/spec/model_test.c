// Shapes against the totals that the models' authors publish.

#include "spec_support.h"

#include <math.h>

struct published {
    const char *preset;
    double total, active, mtp; // billions, from the shapes; 0 = none
    double announced_total, announced_active;
};

// Totals counted tensor by tensor from the published configurations, and what was announced.
static const struct published published[] = {
    {"deepseek-v3", 671.03, 36.63, 11.61, 671, 37},
    {"deepseek-v2", 235.74, 20.85, 0, 236, 21},
    {"deepseek-v2-lite", 15.71, 2.45, 0, 15.7, 2.4},
    {"deepseek-moe-16b", 16.38, 2.62, 0, 16.4, 2.8},
    {"mixtral-8x7b", 46.70, 12.75, 0, 46.7, 12.9},
    {"mixtral-8x22b", 140.63, 38.96, 0, 141, 39},
    {"qwen3-235b-a22b", 235.09, 21.57, 0, 235, 22},
    {"qwen3-30b-a3b", 30.53, 3.04, 0, 30.5, 3.3},
    {"kimi-k2", 1026.4, 31.69, 0, 1040, 32.6},
    {"glm-4.5", 352.8, 32.86, 0, 355, 32},
    {"llama-3-70b", 70.55, 69.50, 0, 70.6, 70.6},
    {"llama-3.1-405b", 405.85, 403.75, 0, 405, 405},
};

static void parameters_equal_the_published_totals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++) {
        const struct published *p = &published[i];
        struct dp_model_spec model;
        struct dp_error err = {0};
        assert_ok(dp_model_preset(p->preset, &model, &err), &err);
        double total = (double)dp_model_parameters(&model) / 1e9;
        double active = (double)dp_model_active_parameters(&model) / 1e9;
        assert_near(total, p->total, 0.0003 * p->total + 0.005);
        assert_near(active, p->active, 0.006);
        assert_true(fabs(total / p->announced_total - 1) < 0.02);
        assert_true(fabs(active / p->announced_active - 1) < 0.1);
        if (p->mtp > 0) {
            assert_near((double)dp_model_mtp_parameters(&model) / 1e9, p->mtp, 0.005);
        }
    }
}

// Counted by hand: tables 2 x 256 x 128; attention 128 x (128 + 64 + 64) + 128 x 128 and two norms;
// dense 3 x 128 x 512; MoE router 128 x 8, (8 + 1) x 3 x 128 x 256; the last norm.
static void the_tiny_model_has_about_seven_million_parameters(void **state)
{
    (void)state;
    struct dp_model_spec model;
    struct dp_error err = {0};
    assert_ok(dp_model_preset("tiny-moe", &model, &err), &err);
    int64_t attention = 128 * 256 + 128 * 128 + 2 * 128;
    int64_t dense = attention + 3 * 128 * 512;
    int64_t moe = attention + 128 * 8 + 9 * 3 * 128 * 256;
    assert_true(dp_model_layer_parameters(&model, 0) == dense);
    assert_true(dp_model_layer_parameters(&model, 7) == moe);
    assert_true(dp_model_parameters(&model) == 2 * 256 * 128 + dense + 7 * moe + 128);
    assert_true(dp_model_parameters(&model) > 6500000 && dp_model_parameters(&model) < 7500000);
}

static void every_preset_makes_a_valid_job(void **state)
{
    (void)state;
    for (const char *const *name = dp_model_preset_names(); *name != NULL; name++) {
        struct dp_error err = {0};
        struct dp_job_spec spec;
        dp_job_spec_init(&spec);
        assert_ok(dp_model_preset(*name, &spec.model, &err), &err);
        spec.train = (struct dp_train_spec){.steps = 1, .global_batch = 8, .sequence = 64};
        spec.resources.device = DP_DEVICE_CUDA;
        assert_ok(dp_job_spec_check(&spec, &err), &err);
        assert_string_equal(spec.model.name, *name);
    }
}

static void an_unknown_preset_lists_the_known_ones(void **state)
{
    (void)state;
    struct dp_model_spec model;
    struct dp_error err = {0};
    assert_refused(dp_model_preset("gpt-5", &model, &err), DP_NOT_FOUND, &err, "kimi-k2");
}

static dp_status from_hf(const char *json, struct dp_model_spec *ret_model, struct dp_error *err)
{
    return dp_model_from_hf_config(json, strlen(json), "config.json", ret_model, err);
}

// The keys of the configurations that the families publish.
static const char deepseek_v3[] =
    "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\","
    "\"first_k_dense_replace\":3,\"hidden_size\":7168,\"intermediate_size\":18432,"
    "\"kv_lora_rank\":512,\"moe_intermediate_size\":2048,\"moe_layer_freq\":1,\"n_group\":8,"
    "\"n_routed_experts\":256,\"n_shared_experts\":1,\"num_attention_heads\":128,"
    "\"num_experts_per_tok\":8,\"num_hidden_layers\":61,\"num_key_value_heads\":128,"
    "\"num_nextn_predict_layers\":1,\"q_lora_rank\":1536,\"qk_nope_head_dim\":128,"
    "\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,\"rope_theta\":10000,\"topk_group\":4,"
    "\"v_head_dim\":128,\"vocab_size\":129280}";
static const char deepseek_v2_lite[] =
    "{\"model_type\":\"deepseek_v2\",\"first_k_dense_replace\":1,\"hidden_size\":2048,"
    "\"intermediate_size\":10944,\"kv_lora_rank\":512,\"moe_intermediate_size\":1408,"
    "\"moe_layer_freq\":1,\"n_group\":1,\"n_routed_experts\":64,\"n_shared_experts\":2,"
    "\"num_attention_heads\":16,\"num_experts_per_tok\":6,\"num_hidden_layers\":27,"
    "\"num_key_value_heads\":16,\"q_lora_rank\":null,\"qk_nope_head_dim\":128,"
    "\"qk_rope_head_dim\":64,\"rms_norm_eps\":1e-06,\"rope_theta\":10000,\"topk_group\":1,"
    "\"v_head_dim\":128,\"vocab_size\":102400}";
static const char mixtral[] =
    "{\"model_type\":\"mixtral\",\"hidden_size\":4096,\"intermediate_size\":14336,"
    "\"num_attention_heads\":32,\"num_experts_per_tok\":2,\"num_hidden_layers\":32,"
    "\"num_key_value_heads\":8,\"num_local_experts\":8,\"rms_norm_eps\":1e-05,"
    "\"rope_theta\":1000000.0,\"vocab_size\":32000}";
static const char qwen3_moe[] =
    "{\"model_type\":\"qwen3_moe\",\"decoder_sparse_step\":1,\"head_dim\":128,\"hidden_size\":2048,"
    "\"intermediate_size\":6144,\"mlp_only_layers\":[],\"moe_intermediate_size\":768,"
    "\"num_attention_heads\":32,\"num_experts\":128,\"num_experts_per_tok\":8,"
    "\"num_hidden_layers\":48,\"num_key_value_heads\":4,\"rms_norm_eps\":1e-06,"
    "\"rope_theta\":1000000.0,\"vocab_size\":151936}";
static const char llama[] =
    "{\"model_type\":\"llama\",\"hidden_size\":8192,\"intermediate_size\":28672,"
    "\"num_attention_heads\":64,\"num_hidden_layers\":80,\"num_key_value_heads\":8,"
    "\"rms_norm_eps\":1e-05,\"rope_theta\":500000.0,\"vocab_size\":128256}";

static void hugging_face_configurations_give_the_presets(void **state)
{
    (void)state;
    const struct {
        const char *json, *preset;
    } table[] = {{deepseek_v3, "deepseek-v3"},
                 {deepseek_v2_lite, "deepseek-v2-lite"},
                 {mixtral, "mixtral-8x7b"},
                 {qwen3_moe, "qwen3-30b-a3b"},
                 {llama, "llama-3-70b"}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_model_spec imported, preset;
        struct dp_error err = {0};
        assert_ok(from_hf(table[i].json, &imported, &err), &err);
        assert_ok(dp_model_preset(table[i].preset, &preset, &err), &err);
        memcpy(preset.name, imported.name, sizeof(preset.name));
        assert_memory_equal(&imported, &preset, sizeof(preset));
    }
}

static void configurations_that_cannot_be_told_are_refused(void **state)
{
    (void)state;
    struct dp_model_spec model;
    struct dp_error err = {0};
    assert_refused(from_hf("{}", &model, &err), DP_INVALID, &err, "\"num_hidden_layers\"");
    assert_refused(from_hf("[1]", &model, &err), DP_INVALID, &err, "not a JSON object");
    assert_refused(from_hf("{", &model, &err), DP_INVALID, &err, "config.json:1:");
    assert_refused(from_hf("{\"num_hidden_layers\":\"4\"}", &model, &err), DP_INVALID, &err,
                   "must be an integer");
    assert_refused(from_hf("{\"num_hidden_layers\":99999999999}", &model, &err), DP_INVALID, &err,
                   "must be an integer");
    assert_refused(from_hf("{\"num_hidden_layers\":-1}", &model, &err), DP_INVALID, &err,
                   "must be an integer");
    assert_refused(from_hf("{\"num_hidden_layers\":4,\"hidden_size\":64,\"num_attention_heads\":4,"
                           "\"vocab_size\":10,\"num_experts\":4,\"decoder_sparse_step\":2}",
                           &model, &err),
                   DP_UNSUPPORTED, &err, "decoder_sparse_step");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_equal_the_published_totals),
        cmocka_unit_test(the_tiny_model_has_about_seven_million_parameters),
        cmocka_unit_test(every_preset_makes_a_valid_job),
        cmocka_unit_test(an_unknown_preset_lists_the_known_ones),
        cmocka_unit_test(hugging_face_configurations_give_the_presets),
        cmocka_unit_test(configurations_that_cannot_be_told_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
