// Models to config.json and back: whatever a model has, the directory that is written says it, in
// the words of a family that has all of it or in our own.
#include "dp_test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/archive.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"
#include "temporary.h"

#define HF DP_SOURCE_DIR "/tests/fixtures/hf/"

static char directory[TEMPORARY_MAX];

static int make_directory(void **state)
{
    (void)state;
    temporary_make(directory);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    temporary_remove(directory);
    return 0;
}

// One tensor with as many values as the model has, which take no room: shapes are what is read.
static void put_weights(const struct dp_model_spec *model)
{
    struct dp_model_spec without = *model;
    without.biases &= ~DP_BIAS_ROUTER;
    const long long count = dp_model_parameters(&without);
    DP_AUTO_FREE char *path = dp_asprintf("%s/model.safetensors", directory);
    DP_AUTO_FREE char *header = dp_asprintf("{\"model.embed_tokens.weight\":{\"dtype\":\"BF16\","
                                            "\"shape\":[%lld],\"data_offsets\":[0,%lld]}}",
                                            count, 2 * count);
    const uint64_t length = strlen(header);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, sizeof length, 1, file), 1);
    assert_int_equal(fwrite(header, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(truncate(path, (off_t)(sizeof length + length) + 2 * count), 0);
}

static void put_config(const char *bytes, size_t length)
{
    DP_AUTO_FREE char *config = dp_asprintf("%s/config.json", directory);
    FILE *file = fopen(config, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static void expect_same_after(const struct dp_model_spec *model, const char *label)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_hf_config_write(model, DP_DTYPE_BF16, &text);
    put_config(text.bytes, text.length);
    put_weights(model);
    DP_CLEANUP(dp_archive_close) struct dp_archive archive = {0};
    struct dp_error err = {0};
    if (dp_archive_open(directory, &archive, &err) != DP_OK ||
        dp_archive_check_model(&archive, model, &err) != DP_OK ||
        strcmp(dp_hf_family(&archive.meta.model), dp_hf_family(model)) != 0) {
        fail_msg("%s, a %s: %s\n%s", label, dp_hf_family(model), err.message, text.bytes);
    }
}

static void published_models_are_of_their_family_and_come_back(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"llama-2-7b", "llama"},         {"llama-3.1-405b", "llama"},
        {"mistral-7b", "mistral"},       {"qwen2-7b", "qwen2"},
        {"qwen3-0.6b", "qwen3"},         {"mixtral-8x7b", "mixtral"},
        {"glm-4.5", "glm4_moe"},         {"qwen1.5-moe-a2.7b", "qwen2_moe"},
        {"qwen3-30b-a3b", "qwen3_moe"},  {"qwen3-235b-a22b", "qwen3_moe"},
        {"deepseek-v2", "deepseek_v2"},  {"deepseek-v2-lite", "deepseek_v2"},
        {"deepseek-v3", "deepseek_v3"},  {"kimi-k2", "deepseek_v3"},
        {"deepseek-moe-16b", "deepseek"}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(names); i++) {
        DP_AUTO_FREE char *path = dp_asprintf(HF "%s.json", names[i][0]);
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        struct dp_model_spec model;
        struct dp_error err = {0};
        assert_ok(dp_read_file(path, DP_SPEC_BYTES_MAX, &text, &err), &err);
        assert_ok(dp_model_from_hf_config(text.bytes, text.length, path, &model, &err), &err);
        if (strcmp(dp_hf_family(&model), names[i][1]) != 0) {
            fail_msg("%s is a %s, not a %s", names[i][0], names[i][1], dp_hf_family(&model));
        }
        expect_same_after(&model, names[i][0]);
    }
}

static void families_that_nothing_here_trains_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const names[][2] = {{"gpt-oss-120b", "gpt_oss"},
                                           {"gpt2", "gpt2"},
                                           {"llama4-scout", "llama4_text"},
                                           {"nemotron-h-8b", "NemotronH"},
                                           {"qwen3-next-80b-a3b", "Qwen3Next"}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(names); i++) {
        DP_AUTO_FREE char *path = dp_asprintf(HF "%s.json", names[i][0]);
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        struct dp_error err = {0};
        assert_ok(dp_read_file(path, DP_SPEC_BYTES_MAX, &text, &err), &err);
        put_config(text.bytes, text.length);
        struct dp_archive archive;
        assert_refused(dp_archive_open(directory, &archive, &err), DP_UNSUPPORTED, &err,
                       names[i][1]);
    }
}

static bool coin(struct dp_rand *rand)
{
    return dp_rand_below(rand, 2) == 0;
}

static void draw_rope(struct dp_rand *rand, struct dp_model_spec *model)
{
    struct dp_rope_scaling *rope = &model->rope;
    *rope = (struct dp_rope_scaling){.kind = (dp_rope_kind)dp_rand_below(rand, 4)};
    if (rope->kind == DP_ROPE_PLAIN) {
        return;
    }
    rope->factor = 4;
    rope->original = 4096;
    if (rope->kind == DP_ROPE_LLAMA3 && coin(rand)) {
        rope->low_factor = 1;
        rope->high_factor = 4;
    }
    if (rope->kind == DP_ROPE_YARN && coin(rand)) {
        rope->beta_fast = 32;
        rope->mscale = rope->mscale_all = coin(rand) ? 0.7 : 0;
        rope->attention_factor = coin(rand) ? 1.25 : 0;
        rope->untruncated = coin(rand);
    }
}

static void draw_attention(struct dp_rand *rand, struct dp_model_spec *model)
{
    static const int32_t biases[] = {0, 0, DP_BIAS_QKV, DP_BIAS_QKV | DP_BIAS_OUTPUT,
                                     DP_BIAS_OUTPUT};
    model->biases = biases[dp_rand_below(rand, DP_ARRAY_LENGTH(biases))];
    if (dp_rand_below(rand, 3) == 0) {
        model->mla_q_rank = coin(rand) ? 16 : 0;
        model->mla_kv_rank = 12;
        model->mla_nope_dim = 6;
        model->mla_rope_dim = 4;
        model->mla_v_dim = 5;
        return;
    }
    model->qk_norm = coin(rand);
    model->sinks = dp_rand_below(rand, 8) == 0;
    model->rotary_dim = dp_rand_below(rand, 4) == 0 ? 8 : 0;
    if (dp_rand_below(rand, 3) == 0) {
        model->window = 16;
        model->window_from = (int32_t)dp_rand_below(rand, 3);
        model->window_layers =
            1 + (int32_t)dp_rand_below(rand, (uint64_t)(model->layers - model->window_from));
    }
}

static void draw_experts(struct dp_rand *rand, struct dp_model_spec *model)
{
    model->experts = 8;
    model->top_k = 2;
    model->expert_ffn = 32;
    model->dense_layers = (int32_t)dp_rand_below(rand, 3);
    model->shared_experts = (int32_t)dp_rand_below(rand, 3);
    model->shared_gate = model->shared_experts > 0 && dp_rand_below(rand, 3) == 0;
    model->raw_weights = coin(rand);
    model->router = coin(rand) ? DP_MODEL_SIGMOID : DP_MODEL_SOFTMAX;
    model->route_scale = dp_rand_below(rand, 3) == 0 ? 2.5 : coin(rand);
    if (dp_rand_below(rand, 3) == 0) {
        model->expert_groups = 4;
        model->top_groups = 2;
    }
    model->bias_update = dp_rand_below(rand, 3) == 0 ? 0.01 : 0;
    model->mtp_layers = dp_rand_below(rand, 4) == 0;
}

// Of all combinations, also of those that nobody has published.
static void any_model_comes_back_from_its_directory(void **state)
{
    (void)state;
    struct dp_rand rand;
    dp_rand_init(&rand, 31);
    long runs = dp_fuzz_runs(1500);
    for (long run = 0; run < runs; run++) {
        struct dp_model_spec model = {.layers = 4,
                                      .hidden = 64,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .head_dim = 16,
                                      .ffn = 96,
                                      .vocabulary = 100,
                                      .rope_theta = 10000,
                                      .norm_eps = 1e-6};
        model.tied_embedding = coin(&rand);
        draw_rope(&rand, &model);
        draw_attention(&rand, &model);
        if (dp_rand_below(&rand, 3) > 0) {
            draw_experts(&rand, &model);
        }
        DP_AUTO_FREE char *label = dp_asprintf("model %ld", run);
        expect_same_after(&model, label);
    }
}

// What decides how others compute never goes with the name of a family that lacks it.
static void what_a_family_lacks_takes_its_name_away(void **state)
{
    (void)state;
    const struct dp_model_spec mixtral = {.layers = 2,
                                          .hidden = 64,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = 16,
                                          .experts = 8,
                                          .top_k = 2,
                                          .expert_ffn = 32,
                                          .vocabulary = 100,
                                          .rope_theta = 10000,
                                          .norm_eps = 1e-6};
    assert_string_equal(dp_hf_family(&mixtral), "mixtral");
    struct dp_model_spec other = mixtral;
    other.bias_update = 0.001; // the bias would be left out
    assert_string_equal(dp_hf_family(&other), "dp");
    other = mixtral;
    other.sinks = 1;
    assert_string_equal(dp_hf_family(&other), "dp");
    other = mixtral;
    other.expert_groups = 4;
    other.top_groups = 1;
    assert_string_equal(dp_hf_family(&other), "dp");
    other = mixtral;
    other.shared_experts = 1;
    assert_string_equal(dp_hf_family(&other), "deepseek");
    other.shared_gate = 1;
    assert_string_equal(dp_hf_family(&other), "dp"); // Qwen2-MoE has biases in attention
    other.biases = DP_BIAS_QKV;
    assert_string_equal(dp_hf_family(&other), "qwen2_moe");
}

// A job's own defaults and a file's are the same model; weights alone may come without those that
// predict further tokens, never the other way round.
static void the_same_model_in_other_words_is_not_another_one(void **state)
{
    (void)state;
    const char text[] = "{\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 2, "
                        "\"hidden_size\": 64, \"num_attention_heads\": 4, "
                        "\"intermediate_size\": 96, \"vocab_size\": 100, \"kv_lora_rank\": 12, "
                        "\"q_lora_rank\": null, \"qk_nope_head_dim\": 6, \"qk_rope_head_dim\": 4, "
                        "\"v_head_dim\": 5, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, "
                        "\"moe_intermediate_size\": 32, \"first_k_dense_replace\": 1, "
                        "\"n_shared_experts\": 1, \"n_group\": 1, \"topk_group\": 1, "
                        "\"routed_scaling_factor\": 1.0, \"num_nextn_predict_layers\": 1, "
                        "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000}";
    put_config(text, strlen(text));
    struct dp_model_spec model;
    struct dp_error err = {0};
    assert_ok(dp_model_from_hf_config(text, strlen(text), "text", &model, &err), &err);
    put_weights(&model);
    DP_CLEANUP(dp_archive_close) struct dp_archive archive = {0};
    assert_ok(dp_archive_open(directory, &archive, &err), &err);
    struct dp_model_spec job = {.layers = 2,
                                .dense_layers = 1,
                                .hidden = 64,
                                .heads = 4,
                                .ffn = 96,
                                .experts = 8,
                                .top_k = 2,
                                .shared_experts = 1,
                                .expert_ffn = 32,
                                .router = DP_MODEL_SIGMOID,
                                .mla_kv_rank = 12,
                                .mla_nope_dim = 6,
                                .mla_rope_dim = 4,
                                .mla_v_dim = 5,
                                .vocabulary = 100,
                                .rope_theta = 10000,
                                .norm_eps = 1e-6};
    assert_ok(dp_archive_check_model(&archive, &job, &err), &err);
    job.mtp_layers = 1;
    assert_ok(dp_archive_check_model(&archive, &job, &err), &err);
    archive.meta.model.mtp_layers = 0;
    assert_refused(dp_archive_check_model(&archive, &job, &err), DP_INVALID, &err, "mtp_layers");
}

static dp_status open_now(struct dp_error *err)
{
    DP_CLEANUP(dp_archive_close) struct dp_archive archive = {0};
    return dp_archive_open(directory, &archive, err);
}

static void put_file(const char *name, const char *text)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

// What lies in a directory from elsewhere is looked at before it is called whole.
static void weights_that_do_not_belong_together_are_told(void **state)
{
    (void)state;
    struct dp_model_spec model = {.layers = 2,
                                  .hidden = 64,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 16,
                                  .ffn = 96,
                                  .vocabulary = 100,
                                  .rope_theta = 10000,
                                  .norm_eps = 1e-6};
    struct dp_error err = {0};
    expect_same_after(&model, "dense");
    model.layers = 3;
    put_weights(&model);
    assert_refused(open_now(&err), DP_INVALID, &err, "parameters, the model of its config.json");
    model.layers = 1; // what is missing is told by name where it is loaded
    put_weights(&model);
    {
        DP_CLEANUP(dp_archive_close) struct dp_archive archive = {0};
        uint64_t bytes;
        assert_ok(dp_archive_open(directory, &archive, &err), &err);
        assert_refused(dp_archive_verify(&archive, &bytes, &err), DP_INVALID, &err, "parameters");
    }
    model.layers = 2;
    put_weights(&model);
    put_file("model.safetensors.index.json", "{}");
    assert_refused(open_now(&err), DP_INVALID, &err, "weight_map");
    put_file("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"b.safetensors\"}}");
    assert_refused(open_now(&err), DP_INVALID, &err, "its file b.safetensors is not there");
    DP_AUTO_FREE char *index = dp_asprintf("%s/model.safetensors.index.json", directory);
    assert_int_equal(unlink(index), 0);
    assert_ok(open_now(&err), &err);
    put_file("optimizer-00001-of-00001.safetensors", "");
    assert_refused(open_now(&err), DP_INVALID, &err, "half a checkpoint");
}

// Nobody waits for the other end of a pipe.
static void a_pipe_is_no_file(void **state)
{
    (void)state;
    static const char *const names[] = {"manifest.json", "model.safetensors.index.json",
                                        "model.safetensors", "config.json"};
    const struct dp_model_spec model = {.layers = 2,
                                        .hidden = 64,
                                        .heads = 4,
                                        .kv_heads = 4,
                                        .head_dim = 16,
                                        .ffn = 96,
                                        .vocabulary = 100,
                                        .rope_theta = 10000,
                                        .norm_eps = 1e-6};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(names); i++) {
        expect_same_after(&model, "dense");
        DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, names[i]);
        unlink(path);
        assert_int_equal(mkfifo(path, 0600), 0);
        struct dp_error err = {0};
        assert_refused(open_now(&err), DP_INVALID, &err, "regular file");
        assert_refused(open_now(&err), DP_INVALID, &err, names[i]);
        assert_int_equal(unlink(path), 0);
    }
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(published_models_are_of_their_family_and_come_back),
        TEST(families_that_nothing_here_trains_are_refused_by_name),
        TEST(any_model_comes_back_from_its_directory),
        TEST(what_a_family_lacks_takes_its_name_away),
        TEST(the_same_model_in_other_words_is_not_another_one),
        TEST(weights_that_do_not_belong_together_are_told),
        TEST(a_pipe_is_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
