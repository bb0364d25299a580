// What a job file means: defaults, paths, presets, --set, writing.

#include "spec_support.h"

#include <stdlib.h>
#include <unistd.h>

#include "dp/alloc.h"

static void a_minimal_job_gets_the_documented_defaults(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    assert_ok(parse_job(MINIMAL, "/base", &spec, &err), &err);
    assert_string_equal(spec.name, "job");
    assert_string_equal(spec.data.path, "/usr/share/common-licenses/GPL-3");
    assert_int_equal(spec.train.seed, 1);
    assert_int_equal(spec.resources.device, DP_DEVICE_CPU);
    assert_int_equal(spec.resources.threads_per_rank, 1);
    assert_int_equal(spec.parallel.pipeline, 0);
    // A schedule named "auto" is one to be searched for; "any" leaves it to the planner.
    assert_ok(dp_job_spec_set(&spec, "schedule=auto", &err), &err);
    assert_string_equal(spec.parallel.schedule, "auto");
    assert_ok(dp_job_spec_set(&spec, "schedule=any", &err), &err);
    assert_string_equal(spec.parallel.schedule, "");
    assert_string_equal(spec.parallel.schedule, "");
    assert_string_equal(spec.checkpoint.directory, "");
    assert_near(spec.optimizer.beta2, 0.95, 1e-12);
    assert_near(spec.sim.scale, 1, 0);
    assert_int_equal(spec.model.experts, 8);
}

static void keys_beside_a_preset_win(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    assert_ok(parse_job("[model]\nlayers = 4\npreset = \"tiny-moe\"\nhidden = 64\n"
                        "[train]\nsteps = 5\nglobal_batch = 16\nsequence = 128\n",
                        NULL, &spec, &err),
              &err);
    assert_int_equal(spec.model.layers, 4);
    assert_int_equal(spec.model.hidden, 64);
    assert_int_equal(spec.model.experts, 8);
    assert_int_equal(spec.model.head_dim, 32);
}

static void a_model_may_be_spelled_out(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    assert_ok(parse_job("[model]\nlayers = 2\nhidden = 64\nheads = 4\nffn = 128\n"
                        "[train]\nsteps = 5\nglobal_batch = 16\nsequence = 128\n",
                        NULL, &spec, &err),
              &err);
    assert_int_equal(spec.model.kv_heads, 4);
    assert_int_equal(spec.model.head_dim, 16);
    assert_int_equal(spec.model.dense_layers, 2);
    assert_int_equal(spec.model.vocabulary, 256);
    assert_string_equal(spec.model.name, "custom");
}

static void relative_paths_hang_on_the_job_file(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    const char text[] = MINIMAL "[data]\npath = \"text/a.txt\"\n"
                                "[checkpoint]\ndirectory = \"./out\"\nresume = \"/abs/c\"\n";
    assert_ok(parse_job(text, "/home/u/jobs/", &spec, &err), &err);
    assert_string_equal(spec.data.path, "/home/u/jobs/text/a.txt");
    assert_string_equal(spec.checkpoint.directory, "/home/u/jobs/out");
    assert_string_equal(spec.checkpoint.resume, "/abs/c");
    assert_int_equal(parse_job(text, NULL, &spec, &err), DP_INVALID);
    assert_non_null(strstr(err.message, "\"path\" in [data] must be absolute"));
    assert_non_null(strstr(err.message, "\"directory\" in [checkpoint] must be absolute"));
    assert_null(strstr(err.message, "resume"));
}

static void the_examples_are_valid_and_named_after_their_files(void **state)
{
    (void)state;
    struct dp_error err = {0};
    const char *const names[] = {"tiny-moe", "tiny-moe-ep", "deepseek-v3-sim", "own-shape"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct dp_job_spec spec;
        DP_AUTO_FREE char *path = dp_asprintf("%s/examples/%s.toml", DP_SOURCE_DIR, names[i]);
        assert_ok(dp_job_spec_load(path, &spec, &err), &err);
        assert_string_equal(spec.name, names[i]);
    }
}

// The times of the example are a quarter of the published chunk of four layers.
static void the_sim_example_has_the_published_times(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    assert_ok(dp_job_spec_load(DP_SOURCE_DIR "/examples/deepseek-v3-sim.toml", &spec, &err), &err);
    assert_near(4 * spec.sim.forward_s, 97.4e-3, 1e-9);
    assert_near(4 * spec.sim.input_grad_s, 111.7e-3, 1e-9);
    assert_near(4 * spec.sim.weight_grad_s, 35.1e-3, 1e-9);
    assert_near(4 * spec.sim.pair_s, 128.5e-3, 1e-9);
    assert_near(spec.sim.scale, 0.1, 1e-12);
    assert_int_equal(spec.parallel.pipeline, 16);
}

static void a_loaded_job_without_a_name_is_called_after_its_file(void **state)
{
    (void)state;
    struct dp_error err = {0};
    char path[] = "/tmp/dp-spec-XXXXXX.toml";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    close(fd);
    assert_ok(dp_write_file(path, MINIMAL, strlen(MINIMAL), &err), &err);
    struct dp_job_spec spec;
    dp_status status = dp_job_spec_load(path, &spec, &err);
    unlink(path);
    assert_ok(status, &err);
    assert_memory_equal(spec.name, "dp-spec-", 8);
    assert_null(strstr(spec.name, ".toml"));
}

static void hf_config_is_read_beside_the_job_file_and_inlined(void **state)
{
    (void)state;
    struct dp_error err = {0};
    char directory[] = "/tmp/dp-spec-XXXXXX";
    assert_non_null(mkdtemp(directory));
    DP_AUTO_FREE char *config = dp_asprintf("%s/config.json", directory);
    DP_AUTO_FREE char *job = dp_asprintf("%s/j.toml", directory);
    const char json[] = "{\"model_type\":\"mixtral\",\"num_hidden_layers\":4,\"hidden_size\":64,"
                        "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":512,"
                        "\"intermediate_size\":128,\"num_local_experts\":4,"
                        "\"num_experts_per_tok\":2}";
    const char toml[] = "[model]\nhf_config = \"config.json\"\n"
                        "[train]\nsteps = 5\nglobal_batch = 16\nsequence = 128\n";
    assert_ok(dp_write_file(config, json, strlen(json), &err), &err);
    assert_ok(dp_write_file(job, toml, strlen(toml), &err), &err);
    struct dp_job_spec spec, again;
    dp_status status = dp_job_spec_load(job, &spec, &err);
    unlink(config);
    unlink(job);
    rmdir(directory);
    assert_ok(status, &err);
    assert_int_equal(spec.model.experts, 4);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_job_spec_write(&spec, &text);
    assert_null(strstr(text.bytes, "hf_config"));
    assert_ok(parse_job(text.bytes, NULL, &again, &err), &err);
    assert_memory_equal(&spec.model, &again.model, sizeof(spec.model));
}

static void hf_config_is_not_read_from_bytes_that_were_sent(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    assert_refused(parse_job("[model]\nhf_config = \"/etc/passwd\"\n"
                             "[train]\nsteps = 5\nglobal_batch = 16\nsequence = 128\n",
                             "/", &spec, &err),
                   DP_INVALID, &err, "not read here");
}

static void settings_change_one_key(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    assert_ok(parse_job(MINIMAL, NULL, &spec, &err), &err);
    assert_ok(dp_job_spec_set(&spec, "pipeline=4", &err), &err);
    assert_ok(dp_job_spec_set(&spec, "virtual=2", &err), &err);
    assert_ok(dp_job_spec_set(&spec, "schedule=dualpipe", &err), &err);
    assert_ok(dp_job_spec_set(&spec, "train.steps=7", &err), &err);
    assert_ok(dp_job_spec_set(&spec, "optimizer.lr=1e-4", &err), &err);
    assert_ok(dp_job_spec_set(&spec, "name=other", &err), &err);
    assert_ok(dp_job_spec_set(&spec, "data.path=/a=b", &err), &err);
    assert_ok(dp_job_spec_set(&spec, "resources.device=cuda", &err), &err);
    assert_int_equal(spec.parallel.pipeline, 4);
    assert_int_equal(spec.parallel.virtual_stages, 2);
    assert_string_equal(spec.parallel.schedule, "dualpipe");
    assert_int_equal(spec.train.steps, 7);
    assert_near(spec.optimizer.lr, 1e-4, 1e-12);
    assert_string_equal(spec.name, "other");
    assert_string_equal(spec.data.path, "/a=b");
    assert_int_equal(spec.resources.device, DP_DEVICE_CUDA);
    assert_ok(dp_job_spec_set(&spec, "pipeline=auto", &err), &err);
    assert_int_equal(spec.parallel.pipeline, 0);
    assert_ok(dp_job_spec_set(&spec, "model.preset=mixtral-8x7b", &err), &err);
    assert_int_equal(spec.model.layers, 32);
}

static void a_list_is_set_as_in_a_file_or_item_by_item(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    assert_ok(parse_job(MINIMAL, NULL, &spec, &err), &err);
    assert_ok(dp_job_spec_set(&spec, "sim.slow=[\"rank=1:2\", \"all:3@5\"]", &err), &err);
    assert_string_equal(spec.sim.slow, "rank=1:2;all:3@5");
    assert_ok(dp_job_spec_set(&spec, "sim.slow=rank=2:2;rank=3:2", &err), &err);
    assert_string_equal(spec.sim.slow, "rank=2:2;rank=3:2");
    assert_refused(dp_job_spec_set(&spec, "sim.slow=[\"all:2\"", &err), DP_INVALID, &err,
                   "is not a list");
    assert_refused(dp_job_spec_set(&spec, "sim.slow=[2]", &err), DP_INVALID, &err, "string");
    assert_string_equal(spec.sim.slow, "rank=2:2;rank=3:2");
    assert_ok(dp_job_spec_set(&spec, "sim.slow=[]", &err), &err);
    assert_string_equal(spec.sim.slow, "");
}

static void a_refused_setting_changes_nothing(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec, before;
    assert_ok(parse_job(MINIMAL, NULL, &spec, &err), &err);
    before = spec;
    const struct {
        const char *setting, *message;
        dp_status status;
    } table[] = {
        {"pipelin=4", "did you mean \"pipeline\"?", DP_INVALID},
        {"steps=4", "did you mean \"train.steps\"?", DP_INVALID},
        {"zebra=4", "section.key", DP_INVALID},
        {"pipeline=four", "must be an integer, not a string", DP_INVALID},
        {"pipeline=", "must be an integer", DP_INVALID},
        {"pipeline=0", "at least 1", DP_INVALID},
        {"pipeline=99999999999999999999", "at most 256", DP_INVALID},
        {"train.seed=-1", "at least 0", DP_INVALID},
        {"optimizer.lr=nan", "at least 0", DP_INVALID},
        {"resources.device=gpu", "no kind of device", DP_INVALID},
        {"model.hf_config=x", "in a job file only", DP_INVALID},
        {"model.preset=mixtral", "no model is called", DP_NOT_FOUND},
        {"pipeline", "key=value", DP_USAGE},
        {"=4", "key=value", DP_USAGE},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_refused(dp_job_spec_set(&spec, table[i].setting, &err), table[i].status, &err,
                       table[i].message);
        assert_memory_equal(&spec, &before, sizeof(spec));
    }
}

static void rules_hold_after_edits_too(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_job_spec spec;
    assert_ok(parse_job(MINIMAL, NULL, &spec, &err), &err);
    assert_ok(dp_job_spec_check(&spec, &err), &err);
    assert_ok(dp_job_spec_set(&spec, "data=3", &err), &err);
    assert_ok(dp_job_spec_set(&spec, "expert=2", &err), &err);
    assert_refused(dp_job_spec_check(&spec, &err), DP_INVALID, &err,
                   "expert (2) does not divide data (3)");
    struct dp_job_spec empty;
    dp_job_spec_init(&empty);
    assert_refused(dp_job_spec_check(&empty, &err), DP_INVALID, &err, "the model has no shape");
}

static void the_ranks_of_a_job_are_what_its_sizes_need(void **state)
{
    (void)state;
    const struct {
        const char *settings[4];
        int32_t ranks;
        bool fixed;
    } table[] = {
        {{NULL}, 1, false},
        {{"pipeline=4"}, 4, false},
        {{"pipeline=2", "data=3"}, 6, true},
        {{"pipeline=2", "expert=4"}, 8, false}, // expert groups lie inside data
        {{"expert=4"}, 4, false},
        {{"pipeline=2", "expert=2", "data=4"}, 8, true},
        {{"resources.ranks=12", "pipeline=2"}, 12, true},
        {{"pipeline=256", "data=65536"}, DP_RANKS_MAX, true},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_error err = {0};
        struct dp_job_spec spec;
        assert_ok(parse_job(MINIMAL, NULL, &spec, &err), &err);
        for (size_t k = 0; table[i].settings[k] != NULL; k++) {
            assert_ok(dp_job_spec_set(&spec, table[i].settings[k], &err), &err);
        }
        bool fixed = !table[i].fixed;
        assert_int_equal(dp_job_spec_ranks(&spec, &fixed), table[i].ranks);
        assert_int_equal(fixed, table[i].fixed);
        assert_int_equal(dp_job_spec_ranks(&spec, NULL), table[i].ranks);
    }
}

static void the_problems_of_a_file_can_be_listed(void **state)
{
    (void)state;
    char path[] = "/tmp/dp-spec-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    dprintf(fd, "[train]\nsteps = 0\n\n[modell]\n");
    close(fd);
    struct dp_error err = {0};
    struct dp_job_spec spec;
    struct dp_diags problems;
    assert_refused(dp_job_spec_examine(path, &problems, &spec, &err), DP_INVALID, &err, path);
    assert_true(problems.count >= 2);
    assert_int_equal(problems.items[problems.count - 1].line, 4);
    assert_non_null(strstr(problems.items[problems.count - 1].help, "[model]"));
    dp_diags_deinit(&problems);
    unlink(path);
    assert_int_equal(dp_job_spec_examine(path, &problems, &spec, &err), DP_NOT_FOUND);
    assert_int_equal(problems.count, 0);
    dp_diags_deinit(&problems);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_minimal_job_gets_the_documented_defaults),
        cmocka_unit_test(keys_beside_a_preset_win),
        cmocka_unit_test(a_model_may_be_spelled_out),
        cmocka_unit_test(relative_paths_hang_on_the_job_file),
        cmocka_unit_test(the_examples_are_valid_and_named_after_their_files),
        cmocka_unit_test(the_sim_example_has_the_published_times),
        cmocka_unit_test(a_loaded_job_without_a_name_is_called_after_its_file),
        cmocka_unit_test(hf_config_is_read_beside_the_job_file_and_inlined),
        cmocka_unit_test(hf_config_is_not_read_from_bytes_that_were_sent),
        cmocka_unit_test(settings_change_one_key),
        cmocka_unit_test(a_list_is_set_as_in_a_file_or_item_by_item),
        cmocka_unit_test(a_refused_setting_changes_nothing),
        cmocka_unit_test(rules_hold_after_edits_too),
        cmocka_unit_test(the_ranks_of_a_job_are_what_its_sizes_need),
        cmocka_unit_test(the_problems_of_a_file_can_be_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
