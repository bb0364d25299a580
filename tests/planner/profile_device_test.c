// Accelerators' profiles: the built-in ones, and the form in which others give theirs.

#include "price_support.h"

static json_t *parse(const char *text)
{
    json_t *json = NULL;
    struct dp_error err = {0};
    assert_ok(dp_json_parse(text, strlen(text), DP_PROFILE_BYTES_MAX, "text", &json, &err), &err);
    return json;
}

static void every_builtin_figure_says_where_it_comes_from(void **state)
{
    (void)state;
    struct dp_profile *profile = dp_new(struct dp_profile);
    char name[DP_NAME_MAX];
    size_t count = 0;
    for (; dp_profile_builtin_name(count, name); count++) {
        load_profile(name, profile);
        assert_true(profile->provenance[0] != '\0');
        assert_true(profile->error_share > 0);
        for (int i = 0; profile->is_accelerator && i < DP_DEVICE_FIGURE_COUNT; i++) {
            uint8_t source = profile->sources.source[i];
            if (source == 0 || strlen(profile->sources.texts[source - 1]) < 7) {
                fail_msg("%s: %s has no source", name, dp_device_figure_text((dp_device_figure)i));
            }
        }
    }
    assert_true(count > 15);
    free(profile);
}

// A device is priced from its published figures: the table of hardware that clusters have as well.
static void builtin_devices_have_their_clusters_figures(void **state)
{
    (void)state;
    struct dp_profile *profile = dp_new(struct dp_profile);
    for (const char *const *name = dp_cluster_preset_names(); *name != NULL; name++) {
        struct dp_cluster_spec cluster;
        struct dp_error err = {0};
        assert_ok(dp_cluster_preset(*name, 72, &cluster, &err), &err);
        if (strcmp(*name, "cpu") == 0) {
            continue;
        }
        load_profile(*name, profile);
        const struct dp_device_figures *d = &profile->device;
        assert_within(d->bf16_flops_peak, cluster.flops_peak, 1e-9);
        assert_within(d->fp8_flops_peak, cluster.fp8_flops_peak, 1e-9);
        assert_within(d->memory_bytes_per_s, cluster.memory_bandwidth, 1e-9);
        assert_within(d->up_bytes_per_s, cluster.scale_up_bandwidth, 1e-9);
        assert_within(d->out_bytes_per_s, cluster.scale_out_bandwidth, 1e-9);
        assert_int_equal(d->units, cluster.units);
    }
    free(profile);
}

// What comes later stands on what came before, and only what is named is put together.
static void software_stands_on_a_device(void **state)
{
    (void)state;
    struct dp_profile *device = dp_new(struct dp_profile);
    struct dp_profile *both = dp_new(struct dp_profile);
    struct dp_profile *more = dp_new(struct dp_profile);
    load_profile("gb200", device);
    load_profile("gb200@megatron-bridge-26.02", both);
    load_profile("gb200@megatron-bridge-26.02+full-graphs+overlap", more);
    assert_string_equal(more->name, "gb200@megatron-bridge-26.02+full-graphs+overlap");
    assert_within(both->device.bf16_flops_peak, device->device.bf16_flops_peak, 0);
    assert_within(both->device.nvfp4_gemm_share, device->device.nvfp4_gemm_share, 0);
    assert_string_equal(both->fitted_on, device->fitted_on);
    assert_true(both->memory.loss_fused && more->memory.loss_fused);
    assert_true(more->device.host_moe_s < both->device.host_moe_s);
    assert_true(more->device.exchange_shown_share < both->device.exchange_shown_share);
    // The base that both have counts once, so that it does not undo the device.
    assert_true(both->device.memory_bytes_per_s > 7e12);
    struct dp_error err = {0};
    assert_int_equal(dp_profile_builtin("gb200@megatron-bridge-26.02+full-graph", more, &err),
                     DP_NOT_FOUND);
    assert_true(strstr(err.message, "full-graph\"") != NULL);
    assert_int_equal(dp_profile_builtin("@megatron-bridge-26.02", more, &err), DP_NOT_FOUND);
    free(device);
    free(both);
    free(more);
}

static void a_cluster_puts_its_own_peaks_and_links_in(void **state)
{
    (void)state;
    struct dp_cluster_spec cluster;
    struct dp_error err = {0};
    assert_ok(dp_cluster_preset("h100", 64, &cluster, &err), &err);
    cluster.scale_out_bandwidth = 25e9;
    cluster.memory_bandwidth = 4e12;
    cluster.levels_count = 1;
    cluster.levels[0] = (struct dp_cluster_level){.bandwidth = 5e9, .latency_s = 9e-6};
    struct dp_profile *profile = dp_new(struct dp_profile);
    dp_profile_from_cluster(&cluster, profile);
    assert_true(strncmp(profile->name, "h100@megatron-bridge-", 21) == 0);
    assert_within(profile->device.out_bytes_per_s, 25e9, 0);
    assert_within(profile->device.memory_bytes_per_s, 4e12, 0);
    assert_int_equal(profile->levels_count, 1);
    assert_within(profile->levels[0].bytes_per_s, 5e9, 0);
    // An accelerator that nobody knows has common shares and these figures.
    DP_COPY_TEXT(cluster.accelerator, "x9000");
    dp_profile_from_cluster(&cluster, profile);
    assert_string_equal(profile->name, "x9000");
    assert_true(profile->is_accelerator);
    assert_within(profile->device.bf16_flops_peak, 989.4e12, 1e-9);
    free(profile);
}

static void a_profile_builds_on_a_builtin_one(void **state)
{
    (void)state;
    DP_AUTO_JSON json_t *json = parse(
        "{\"schema\": \"dp.profile/1\", \"name\": \"mine\", \"base\": \"h100\", \"error_share\": "
        "0.1,"
        " \"fitted_formats\": [\"bf16\"], \"fitted_on\": [\"a run\", \"another\"], \"figures\": "
        "{\"bf16_gemm_share\": {\"value\": 0.8, \"source\": \"measured here\"}, \"units\": 120}}");
    struct dp_profile *profile = dp_new(struct dp_profile);
    struct dp_error err = {0};
    assert_ok(dp_profile_from_json(json, profile, &err), &err);
    assert_string_equal(profile->name, "mine");
    assert_within(profile->device.bf16_gemm_share, 0.8, 0);
    assert_within(profile->device.units, 120, 0);
    assert_within(profile->device.memory_bytes_per_s, 3.35e12, 1e-9); // the base's
    assert_string_equal(profile->fitted_on, "a run; another");
    assert_int_equal(profile->fitted_formats, 1 << DP_FORMAT_BF16);
    uint8_t source = profile->sources.source[DP_DEVICE_bf16_gemm_share];
    assert_string_equal(profile->sources.texts[source - 1], "measured here");
    free(profile);
}

static void every_builtin_reads_back_as_written(void **state)
{
    (void)state;
    struct dp_profile *profile = dp_new(struct dp_profile);
    struct dp_profile *again = dp_new(struct dp_profile);
    char name[DP_NAME_MAX];
    for (size_t i = 0; dp_profile_builtin_name(i, name); i++) {
        load_profile(name, profile);
        profile->levels_count = profile->is_accelerator ? 1 : 0;
        profile->levels[0] = (struct dp_device_level){1e9, 1e-6};
        DP_CLEANUP(dp_buf_deinit) struct dp_buf first = {0}, second = {0};
        DP_AUTO_JSON json_t *json = dp_profile_to_json(profile);
        struct dp_error err = {0};
        assert_ok(dp_profile_from_json(json, again, &err), &err);
        DP_AUTO_JSON json_t *json_again = dp_profile_to_json(again);
        dp_json_write(json, 0, &first);
        dp_json_write(json_again, 0, &second);
        assert_string_equal(first.bytes, second.bytes);
        assert_memory_equal(&again->device, &profile->device, sizeof(profile->device));
    }
    free(profile);
    free(again);
}

static void what_is_wrong_in_a_profile_is_named(void **state)
{
    (void)state;
    const struct {
        const char *members, *message;
    } table[] = {
        {"\"base\": \"h999\"", "no built-in profile is called \"h999\""},
        {"\"base\": \"cpu\"", "must be an accelerator"},
        {"\"base\": 3", "\"base\" must be a text"},
        {"\"base\": \"h100\", \"figurs\": {}", "did you mean \"figures\""},
        {"\"base\": \"h100\", \"figures\": []", "\"figures\" must be an object"},
        {"\"base\": \"h100\", \"figures\": {\"memory_shar\": 1}", "did you mean \"memory_share\""},
        {"\"base\": \"h100\", \"figures\": {\"memory_share\": 1.5}", "from 0.01 to 1"},
        {"\"base\": \"h100\", \"figures\": {\"memory_share\": \"x\"}", "must be a number"},
        {"\"base\": \"h100\", \"figures\": {\"units\": -1}", "\"units\" must be a number"},
        {"\"base\": \"h100\", \"memory\": {\"dropout\": 1}", "must be true or false"},
        {"\"base\": \"h100\", \"memory\": {\"colour\": 1}", "\"memory\" has no \"colour\""},
        {"\"base\": \"h100\", \"memory\": {\"moment_byte\": 1}", "did you mean \"moment_bytes\""},
        {"\"base\": \"h100\", \"memory\": {\"score_kept\": 1}", "did you mean \"scores_kept\""},
        {"\"base\": \"h100\", \"fitted_formats\": [\"fp9\"]", "fitted_formats"},
        {"\"base\": \"h100\", \"fitted_on\": [1]", "must be a list of texts"},
        {"\"base\": \"h100\", \"levels\": [{\"bytes_per_s\": 0}]", "\"bytes_per_s\""},
        {"\"base\": \"h100\", \"levels\": [1, 2, 3, 4, 5]", "more than 4"},
        {"\"base\": \"h100\", \"error_share\": -1", "out of range"},
        {"\"figures\": {\"units\": 132}", "\"figures\" lacks"},
    };
    struct dp_profile *profile = dp_new(struct dp_profile);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(table); i++) {
        DP_AUTO_FREE char *text =
            dp_asprintf("{\"schema\": \"dp.profile/1\", \"name\": \"mine\", %s}", table[i].members);
        DP_AUTO_JSON json_t *json = parse(text);
        struct dp_error err = {0};
        dp_status status = dp_profile_from_json(json, profile, &err);
        assert_true(status == DP_INVALID || status == DP_NOT_FOUND);
        assert_refused(status, status, &err, table[i].message);
    }
    free(profile);
}

static void sources_are_bounded(void **state)
{
    (void)state;
    DP_AUTO_JSON json_t *json = parse("{\"schema\": \"dp.profile/1\", \"name\": \"mine\", "
                                      "\"base\": \"h100\", \"figures\": {}}");
    json_t *figures = json_object_get(json, "figures");
    for (int i = 0; i < DP_DEVICE_FIGURE_COUNT; i++) {
        DP_AUTO_FREE char *source = dp_asprintf("source %d", i);
        json_object_set_new(figures, dp_device_figure_text((dp_device_figure)i),
                            json_pack("{s:f, s:s}", "value", 1.0, "source", source));
    }
    struct dp_profile *profile = dp_new(struct dp_profile);
    struct dp_error err = {0};
    assert_refused(dp_profile_from_json(json, profile, &err), DP_INVALID, &err,
                   "different sources");
    DP_AUTO_FREE char *text = dp_asprintf("%0*d", DP_DEVICE_SOURCE_MAX, 0);
    json_object_clear(figures);
    json_object_set_new(figures, "units", json_pack("{s:f, s:s}", "value", 1.0, "source", text));
    assert_refused(dp_profile_from_json(json, profile, &err), DP_INVALID, &err, "is longer than");
    free(profile);
}

static void unknown_names_list_what_there_is(void **state)
{
    (void)state;
    struct dp_profile *profile = dp_new(struct dp_profile);
    struct dp_error err = {0};
    assert_refused(dp_profile_builtin("h101", profile, &err), DP_NOT_FOUND, &err, "h100, h200");
    assert_ok(dp_profile_builtin("H800", profile, &err), &err);
    assert_string_equal(profile->name, "h800");
    assert_ok(dp_profile_builtin("cpu", profile, &err), &err);
    assert_false(profile->is_accelerator);
    free(profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_builtin_figure_says_where_it_comes_from),
        cmocka_unit_test(builtin_devices_have_their_clusters_figures),
        cmocka_unit_test(software_stands_on_a_device),
        cmocka_unit_test(a_cluster_puts_its_own_peaks_and_links_in),
        cmocka_unit_test(a_profile_builds_on_a_builtin_one),
        cmocka_unit_test(every_builtin_reads_back_as_written),
        cmocka_unit_test(what_is_wrong_in_a_profile_is_named),
        cmocka_unit_test(sources_are_bounded),
        cmocka_unit_test(unknown_names_list_what_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
