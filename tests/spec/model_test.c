// Shapes against the totals that the models' authors publish.

#include "spec_support.h"

#include <math.h>

#include "dp/alloc.h"
#include "dp/rand.h"

static struct dp_model_spec preset(const char *name)
{
    struct dp_model_spec model;
    struct dp_error err = {0};
    assert_ok(dp_model_preset(name, &model, &err), &err);
    return model;
}

// Parameters as Hugging Face counts the published tensors, to the last one. Repositories with MTP
// weights store copies of embedding and head with them; scales of quantized weights do not count.
static void totals_are_the_published_ones_to_the_last_parameter(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        int64_t total, with_mtp;
    } table[] = {
        {"deepseek-v3", 671026419200, 684489845504},
        {"deepseek-v2", 235741434880, 0},
        {"deepseek-v2-lite", 15706484224, 0},
        {"deepseek-moe-16b", 16375728128, 0},
        {"kimi-k2", 1026408232448, 0},
        {"glm-4.5", 352797829024, 358337791296},
        {"glm-4.5-air", 0, 110468824832},
        {"mixtral-8x7b", 46702792704, 0},
        {"mixtral-8x22b", 140630071296, 0},
        {"qwen3-235b-a22b", 235093634560, 0},
        {"qwen3-30b-a3b", 30532122624, 0},
        {"qwen1.5-moe-a2.7b", 14315784192, 0},
        {"gpt-oss-120b", 116829156672, 0},
        {"gpt-oss-20b", 20914757184, 0},
        {"llama-2-7b", 6738415616, 0},
        {"llama-2-70b", 68976648192, 0},
        {"llama-3-8b", 8030261248, 0},
        {"llama-3-70b", 70553706496, 0},
        {"llama-3.1-405b", 405853388800, 0},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_model_spec model = preset(table[i].preset);
        int64_t total = dp_model_parameters(&model);
        int64_t tables = 2 * (int64_t)model.hidden * model.vocabulary;
        int64_t stored = total + dp_model_mtp_parameters(&model) + tables;
        if (table[i].total != 0 && total != table[i].total) {
            fail_msg("%s: %lld", table[i].preset, (long long)total);
        }
        if (table[i].with_mtp != 0 && stored != table[i].with_mtp) {
            fail_msg("%s with MTP: %lld", table[i].preset, (long long)stored);
        }
    }
}

// Billions, in all and per token (without the input embedding, with the head), counted from the
// published shapes by others; and what was announced.
static void active_parameters_are_the_published_ones(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        double total, active, announced_total, announced_active;
    } table[] = {
        {"deepseek-v3", 671.026, 36.626, 671, 37},
        {"deepseek-v2", 235.741, 20.852, 236, 21},
        {"deepseek-v2-lite", 15.706, 2.451, 15.7, 2.4},
        {"deepseek-moe-16b", 16.376, 2.619, 16.4, 2.8},
        {"mixtral-8x7b", 46.703, 12.749, 46.7, 12.9},
        {"mixtral-8x22b", 140.630, 38.960, 141, 39},
        {"qwen3-235b-a22b", 235.094, 21.568, 235, 22},
        {"qwen3-30b-a3b", 30.532, 3.042, 30.5, 3.3},
        {"kimi-k2", 1026.408, 31.687, 1040, 32.6},
        {"glm-4.5", 352.798, 32.856, 355, 32},
        {"llama-3-70b", 70.554, 69.503, 70.6, 70.6},
        {"llama-3.1-405b", 405.853, 403.752, 405, 405},
        {"gpt-oss-120b", 116.829, 5.133, 116.8, 5.1},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_model_spec model = preset(table[i].preset);
        double total = (double)dp_model_parameters(&model) / 1e9;
        double active = (double)dp_model_active_parameters(&model) / 1e9;
        assert_near(total, table[i].total, 0.0006);
        assert_near(active, table[i].active, 0.0006);
        assert_true(fabs(total / table[i].announced_total - 1) < 0.02);
        assert_true(fabs(active / table[i].announced_active - 1) < 0.1);
    }
}

// P = 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h)), arXiv 2104.04473, which leaves out the last
// LayerNorm (2 h).
static void gpt_shapes_have_the_published_closed_form(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        double announced, digits; // billions, half of the last digit
    } table[] = {
        {"gpt-1.5b", 1.5, 0.05},   {"gpt-6.2b", 6.2, 0.05}, {"gpt-14.6b", 14.6, 0.05},
        {"gpt-28.3b", 28.3, 0.05}, {"gpt-22b", 22, 0.5},    {"gpt-175b", 175, 0.5},
        {"gpt-530b", 530, 0.5},    {"gpt-1t", 1008, 0.5},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_model_spec m = preset(table[i].preset);
        double h = m.hidden, l = m.layers, words = (double)m.vocabulary + m.positions;
        double wanted = 12 * l * h * h * (1 + 13 / (12 * h) + words / (12 * l * h));
        double got = (double)dp_model_parameters(&m);
        assert_near(got, wanted + 2 * h, 1e-6 * wanted);
        assert_near(got / 1e9, table[i].announced, table[i].digits);
        // A tied head still works on every token.
        double tables = (double)m.hidden * m.positions;
        assert_near((double)dp_model_active_parameters(&m), got - tables, 0.5);
    }
}

// DeepSeek-V3, part by part. By hand: MLA projects 7168 to 1536 and on to 128 heads of 192, to
// 512 + 64, 512 to 128 heads of 256, and 128 x 128 back.
static void the_parts_of_a_layer_are_those_of_its_tensors(void **state)
{
    (void)state;
    struct dp_model_spec m = preset("deepseek-v3");
    struct dp_layer_parts dense, moe;
    dp_model_layer_parts(&m, 2, &dense);
    dp_model_layer_parts(&m, 3, &moe);
    int64_t attention =
        7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + (int64_t)128 * 128 * 7168;
    assert_true(attention == 187105280);
    assert_true(dense.attention == attention && moe.attention == attention);
    assert_true(dense.norms == 2 * 7168 + 1536 + 512 && moe.norms == dense.norms);
    assert_true(dense.shared == 3 * 7168 * 18432 && dense.router == 0 && dense.experts == 0);
    assert_true(moe.shared == 3 * 7168 * 2048 && moe.expert_each == moe.shared);
    assert_true(moe.router == 7168 * 256 && moe.router_biases == 256);
    assert_true(moe.experts == 256 && moe.visited == 8);
    assert_true(dp_layer_parts_total(&moe) - dp_layer_parts_active(&moe) == 248 * moe.expert_each);
    assert_true(dp_layer_parts_common(&dense) == dp_layer_parts_total(&dense));
    // 11.5 billion of its own in the MTP module, 0.9 in embedding and in head (its README).
    assert_near((double)dp_model_mtp_parameters(&m) / 1e9, 11.61, 0.005);
    assert_near((double)dp_model_embedding_parameters(&m) / 1e9, 0.93, 0.005);
    assert_near((double)dp_model_head_parameters(&m) / 1e9, 0.93, 0.005);
}

// gpt-oss: one expert has 24,891,840 parameters (gate and up in one matrix of 5760), every third
// part has its biases, every head its sink.
static void biases_and_sinks_are_counted_where_they_are(void **state)
{
    (void)state;
    struct dp_model_spec m = preset("gpt-oss-120b");
    struct dp_layer_parts parts;
    dp_model_layer_parts(&m, 0, &parts);
    assert_true(parts.expert_each == 3 * 2880 * 2880);
    assert_true(parts.expert_biases_each == 5760 + 2880);
    assert_true(parts.attention_biases == 4096 + 2 * 512 + 2880 + 64);
    assert_true(parts.router_biases == 128 && parts.shared_biases == 0);
    // 14.3 G of the A2.7B model: its shared experts are gated by one number per layer.
    m = preset("qwen1.5-moe-a2.7b");
    dp_model_layer_parts(&m, 0, &parts);
    assert_true(parts.shared == 3 * 2048 * 5632 + 2048);
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

static void presets_go_by_the_names_that_people_write(void **state)
{
    (void)state;
    static const struct {
        const char *name, *preset;
    } table[] = {
        {"DeepSeek-V3/R1", "deepseek-v3"},
        {"deepseekv3", "deepseek-v3"},
        {"DEEPSEEK_V3", "deepseek-v3"},
        {"deepseek-r1", "deepseek-v3"},
        {"DeepSeek V3.1", "deepseek-v3"},
        {"Qwen3_235B_a22B", "qwen3-235b-a22b"},
        {"Qwen3_30B_a3B", "qwen3-30b-a3b"},
        {"GPT OSS 120B", "gpt-oss-120b"},
        {"LLAMA3.1_405B", "llama-3.1-405b"},
        {"LLAMA3_70B", "llama-3-70b"},
        {"LLAMA3_8B", "llama-3-8b"},
        {"Llama2-7B", "llama-2-7b"},
        {"Kimi-K2", "kimi-k2"},
        {"GLM-4.5", "glm-4.5"},
        {"Mixtral-8x22B", "mixtral-8x22b"},
        {"DeepSeekMoE-16B", "deepseek-moe-16b"},
        {"DeepSeek-V2-Lite / Coder-V2-Lite", "deepseek-v2-lite"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_model_spec model = preset(table[i].name);
        assert_string_equal(model.name, table[i].preset);
    }
    struct dp_model_spec model;
    struct dp_error err = {0};
    static const char *const wrong[] = {"", "-", "deepseek", "deepseek-v3x",
                                        "deepseek-v3-deepseek-v3-deepseek-v3-deepseek-v3-deepseek-v"
                                        "3-deepseek-v3"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_refused(dp_model_preset(wrong[i], &model, &err), DP_NOT_FOUND, &err, "kimi-k2");
    }
}

// No two names mean the same but for spelling.
static void every_preset_is_found_under_its_own_name(void **state)
{
    (void)state;
    for (const char *const *name = dp_model_preset_names(); *name != NULL; name++) {
        struct dp_model_spec model = preset(*name);
        assert_string_equal(model.name, *name);
    }
}

static void windows_are_spread_evenly_from_the_first_layer_on(void **state)
{
    (void)state;
    struct dp_model_spec m = preset("gpt-oss-120b");
    for (int32_t layer = 0; layer < m.layers; layer++) {
        assert_int_equal(dp_model_layer_window(&m, layer), layer % 2 == 0 ? 128 : 0);
    }
    m.layers = 6; // five with a window, then one without
    m.window_layers = 5;
    for (int32_t layer = 0; layer < m.layers; layer++) {
        assert_int_equal(dp_model_layer_window(&m, layer), layer < 5 ? 128 : 0);
    }
    m.window_from = 3; // of layers 3, 4 and 5 two
    m.window_layers = 2;
    for (int32_t layer = 0; layer < m.layers; layer++) {
        assert_int_equal(dp_model_layer_window(&m, layer), layer == 3 || layer == 4 ? 128 : 0);
    }
    struct dp_rand rand;
    dp_rand_init(&rand, 7);
    for (long run = 0; run < dp_fuzz_runs(200); run++) {
        m.layers = 1 + (int32_t)dp_rand_below(&rand, DP_LAYERS_MAX);
        m.window_from = (int32_t)dp_rand_below(&rand, (uint64_t)m.layers);
        m.window_layers = (int32_t)dp_rand_below(&rand, (uint64_t)(m.layers - m.window_from) + 1);
        int32_t count = 0;
        for (int32_t layer = 0; layer < m.layers; layer++) {
            count += dp_model_layer_window(&m, layer) > 0;
        }
        assert_int_equal(count, m.window_layers);
        assert_int_equal(dp_model_layer_window(&m, m.layers), 0); // an MTP layer
    }
}

static void biases_are_named_in_any_order(void **state)
{
    (void)state;
    struct dp_error err = {0};
    for (int32_t biases = 0; biases < 64; biases++) {
        char text[DP_NAME_MAX];
        int32_t back = -1;
        dp_biases_text(biases, text);
        assert_ok(dp_biases_parse(text, &back, &err), &err);
        assert_int_equal(back, biases);
    }
    int32_t biases = -1;
    assert_ok(dp_biases_parse("router,qkv", &biases, &err), &err);
    assert_int_equal(biases, DP_BIAS_QKV | DP_BIAS_ROUTER);
    assert_refused(dp_biases_parse("none+qkv", &biases, &err), DP_INVALID, &err, "stands alone");
    assert_refused(dp_biases_parse("q", &biases, &err), DP_INVALID, &err, "qkv");
    assert_refused(dp_biases_parse("", &biases, &err), DP_INVALID, &err, "they are qkv, output");
}

// A shape written by hand is the preset that has it.
static void a_job_file_can_say_what_presets_have(void **state)
{
    (void)state;
    static const char toml[] =
        "[model]\nname = \"gpt-oss-120b\"\nlayers = 36\nhidden = 2880\nheads = 64\nkv_heads = 8\n"
        "head_dim = 64\nexperts = 128\ntop_k = 4\nexpert_ffn = 2880\nvocabulary = 201088\n"
        "rope_theta = 150000\nrope_scaling = \"yarn\"\nrope_factor = 32\nrope_original = 4096\n"
        "rope_beta_fast = 32\nrope_beta_slow = 1\nrope_untruncated = 1\nnorm_eps = 1e-5\nwindow = "
        "128\nwindow_layers = 18\nsinks = 1\n"
        "biases = \"qkv+output+router+expert\"\n"
        "[train]\nsteps = 5\nglobal_batch = 16\nsequence = 128\n[resources]\ndevice = \"cuda\"\n";
    struct dp_job_spec spec, again;
    struct dp_error err = {0};
    assert_ok(parse_job(toml, NULL, &spec, &err), &err);
    struct dp_model_spec wanted = preset("gpt-oss-120b");
    assert_memory_equal(&spec.model, &wanted, sizeof(wanted));
    // Every member comes back from what submit sends.
    spec.model = preset("gpt-22b");
    spec.model.format = DP_FORMAT_FP8_BLOCK;
    spec.model.qk_norm = 1;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_job_spec_write(&spec, &text);
    assert_ok(parse_job(text.bytes, NULL, &again, &err), &err);
    assert_memory_equal(&spec, &again, sizeof(spec));
}

static void what_the_cpu_device_does_not_run_is_refused_by_key(void **state)
{
    (void)state;
    static const struct {
        const char *line, *part;
    } table[] = {
        {"ffn_matrices = 2", "plain FFNs"},
        {"mtp_layers = 2", "more than one layer of multi-token"},
        {"positions = 256", "learned positions"},
        {"biases = \"ffn\"", "biases"},
        {"biases = \"router\"", "biases"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_job_spec spec;
        struct dp_error err = {0};
        DP_AUTO_FREE char *text =
            dp_asprintf("[model]\npreset = \"tiny-moe\"\n%s\n[train]\nsteps = 5\n"
                        "global_batch = 16\nsequence = 128\n",
                        table[i].line);
        assert_refused(parse_job(text, NULL, &spec, &err), DP_INVALID, &err, table[i].part);
        assert_non_null(strstr(err.message, "job.toml:3:")); // its line
        DP_AUTO_FREE char *cuda = dp_asprintf("%s[resources]\ndevice = \"cuda\"\n", text);
        assert_ok(parse_job(cuda, NULL, &spec, &err), &err);
    }
}

static void what_the_cpu_device_runs_is_read(void **state)
{
    (void)state;
    static const char toml[] =
        "[model]\npreset = \"tiny-moe\"\nwindow = 64\nqk_norm = 1\nsinks = 1\nshared_gate = 1\n"
        "tied_embedding = 1\nbiases = \"qkv+output\"\nrouter = \"sigmoid\"\nraw_weights = "
        "1\nroute_scale = 2.5\n"
        "[train]\nsteps = 5\nglobal_batch = 16\nsequence = 128\n";
    struct dp_job_spec spec;
    struct dp_error err = {0};
    assert_ok(parse_job(toml, NULL, &spec, &err), &err);
    assert_int_equal(spec.model.window_layers, 8); // all of them
    assert_int_equal(spec.model.router, DP_MODEL_SIGMOID);
    assert_true(spec.model.raw_weights == 1 && spec.model.route_scale == 2.5);
    static const char wrong[] = "[model]\npreset = \"tiny-moe\"\nrouter = \"sigmod\"\n"
                                "[train]\nsteps = 5\nglobal_batch = 16\nsequence = 128\n";
    assert_refused(parse_job(wrong, NULL, &spec, &err), DP_INVALID, &err, "\"sigmoid\"");
}

static void variants_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *lines, *part;
    } table[] = {
        {"ffn_matrices = 1", "set 3 (gated) or 2 (plain)"},
        {"window = 64\nwindow_layers = 9", "window_layers is 9, but there are 8 layers"},
        {"window_layers = 2", "set window, or leave window_layers out"},
        {"window = 64\nwindow_from = 7\nwindow_layers = 2", "1 layers from window_from on"},
        {"window = 64\nwindow_from = 8", "windows begin with layer 8, but there are 8 layers"},
        {"window_from = 2", "set window, or leave window_from out"},
        {"rotary_dim = 3", "rotary_dim is 3, of heads that are"},
        {"rotary_dim = 4096", "rotary_dim is 4096, of heads that are"},
        {"mla_kv_rank = 8\nmla_nope_dim = 8\nmla_rope_dim = 4\nmla_v_dim = 8\nrotary_dim = 2",
         "mla_rope_dim says it"},
        {"shared_gate = 1\nshared_experts = 0", "set shared_experts"},
        {"positions = 64", "the sequence has 128 tokens, but the model only 64"},
        {"format = \"fp9\"", "did you mean \"fp8\"?"},
        {"biases = \"qvk\"", "\"biases\" in [model]: no bias is called \"qvk\""},
        {"biases = 3", "must be a string"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_job_spec spec;
        struct dp_error err = {0};
        DP_AUTO_FREE char *text =
            dp_asprintf("[model]\npreset = \"tiny-moe\"\n%s\n[train]\nsteps = 5\n"
                        "global_batch = 16\nsequence = 128\n[resources]\ndevice = \"cuda\"\n",
                        table[i].lines);
        assert_refused(parse_job(text, NULL, &spec, &err), DP_INVALID, &err, table[i].part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(totals_are_the_published_ones_to_the_last_parameter),
        cmocka_unit_test(active_parameters_are_the_published_ones),
        cmocka_unit_test(gpt_shapes_have_the_published_closed_form),
        cmocka_unit_test(the_parts_of_a_layer_are_those_of_its_tensors),
        cmocka_unit_test(biases_and_sinks_are_counted_where_they_are),
        cmocka_unit_test(the_tiny_model_has_about_seven_million_parameters),
        cmocka_unit_test(every_preset_makes_a_valid_job),
        cmocka_unit_test(an_unknown_preset_lists_the_known_ones),
        cmocka_unit_test(presets_go_by_the_names_that_people_write),
        cmocka_unit_test(every_preset_is_found_under_its_own_name),
        cmocka_unit_test(windows_are_spread_evenly_from_the_first_layer_on),
        cmocka_unit_test(biases_are_named_in_any_order),
        cmocka_unit_test(a_job_file_can_say_what_presets_have),
        cmocka_unit_test(what_the_cpu_device_does_not_run_is_refused_by_key),
        cmocka_unit_test(what_the_cpu_device_runs_is_read),
        cmocka_unit_test(variants_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
