// Device profiles: rates between measured points, and the file form.

#include <unistd.h>

#include "planner_support.h"

#include "dp/buf.h"

static struct dp_profile two_points(void)
{
    struct dp_profile profile;
    dp_profile_default_cpu(&profile);
    profile.gemms_count = 2;
    profile.gemms[0] = (struct dp_gemm_point){DP_GEMM_NT, 64, 64, 64, 10e9};
    profile.gemms[1] = (struct dp_gemm_point){DP_GEMM_NT, 1024, 1024, 1024, 90e9};
    return profile;
}

static void a_measured_shape_has_its_measured_rate(void **state)
{
    (void)state;
    struct dp_profile profile = two_points();
    assert_near(dp_profile_gemm_flops_per_s(&profile, DP_GEMM_NT, 64, 64, 64), 10e9, 1e3);
    assert_near(dp_profile_gemm_flops_per_s(&profile, DP_GEMM_NT, 1024, 1024, 1024), 90e9, 1e3);
}

static void rates_between_points_lie_between_and_rise(void **state)
{
    (void)state;
    struct dp_profile profile = two_points();
    double last = 10e9;
    for (double size = 80; size < 1024; size *= 1.3) {
        double rate = dp_profile_gemm_flops_per_s(&profile, DP_GEMM_NT, size, size, size);
        assert_true(rate > last && rate < 90e9);
        last = rate;
    }
    // Half way in powers of two: the geometric mean.
    assert_near(dp_profile_gemm_flops_per_s(&profile, DP_GEMM_NT, 256, 256, 256), 30e9, 1e3);
}

static void a_kind_without_points_has_the_general_rate(void **state)
{
    (void)state;
    struct dp_profile profile = two_points();
    assert_near(dp_profile_gemm_flops_per_s(&profile, DP_GEMM_TN, 64, 64, 64),
                profile.gemm_flops_per_s, 0);
}

static void a_profile_reads_back_as_written(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_cluster_spec cluster;
    struct dp_profile profiles[2], again;
    dp_profile_default_cpu(&profiles[0]);
    profiles[0].measured_at_s = 1700000000;
    profiles[0].cores = 2;
    assert_ok(dp_cluster_preset("h200", 8, &cluster, &err), &err);
    dp_profile_from_cluster(&cluster, &profiles[1]);
    for (size_t i = 0; i < 2; i++) {
        DP_AUTO_JSON json_t *json = dp_profile_to_json(&profiles[i]);
        DP_CLEANUP(dp_buf_deinit) struct dp_buf first = {0}, second = {0};
        dp_json_write(json, 0, &first);
        assert_ok(dp_profile_from_json(json, &again, &err), &err);
        DP_AUTO_JSON json_t *json_again = dp_profile_to_json(&again);
        dp_json_write(json_again, 0, &second);
        assert_string_equal(first.bytes, second.bytes);
        assert_int_equal(again.gemms_count, profiles[i].gemms_count);
        assert_int_equal(again.measured_at_s, profiles[i].measured_at_s);
        assert_int_equal(again.exchange_by_node, profiles[i].exchange_by_node);
    }
}

static void a_profile_with_a_bad_figure_is_refused(void **state)
{
    (void)state;
    struct dp_profile profile, again;
    dp_profile_default_cpu(&profile);
    const struct {
        const char *key;
        json_t *value;
        const char *message;
    } table[] = {
        {"schema", json_string("dp.profile/2"), "dp.profile/1"},
        {"gemm_flops_per_s", json_real(0), "\"gemm_flops_per_s\" must be a number above 0"},
        {"op_overhead_s", json_real(-1), "of at least 0"},
        {"memory_bytes_per_s", json_string("fast"), "\"memory_bytes_per_s\""},
        {"exchange_hidden_share", json_real(1.5), "share is above 1"},
        {"busy_slowdown", json_real(0.9), "\"busy_slowdown\" is below 1"},
        {"local_sum_bytes_per_s", json_real(0), "\"local_sum_bytes_per_s\""},
        {"element_bytes", json_integer(0), "element_bytes"},
        {"gemms", json_object(), "\"gemms\" must be an array"},
        {"gemms", json_pack("[{s:s}]", "kind", "nt"), "needs kind, m, k, n"},
        {"gemms",
         json_pack("[{s:s, s:i, s:i, s:i, s:f}]", "kind", "xy", "m", 1, "k", 1, "n", 1,
                   "flops_per_s", 1.0),
         "out of range"},
        {"name", json_null(), "profile:"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct dp_error err = {0};
        DP_AUTO_JSON json_t *json = dp_profile_to_json(&profile);
        json_object_set_new(json, table[i].key, table[i].value);
        assert_refused(dp_profile_from_json(json, &again, &err), DP_INVALID, &err,
                       table[i].message);
    }
    struct dp_error err = {0};
    assert_refused(dp_profile_load("/nonexistent", &again, &err), DP_NOT_FOUND, &err,
                   "/nonexistent");
    char path[] = "/tmp/dp-profile-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_ok(dp_write_file(path, "{}", 2, &err), &err);
    assert_refused(dp_profile_load(path, &again, &err), DP_INVALID, &err, path);
    unlink(path);
}

// As a profile that an earlier version measured: whoever keeps it measures again.
static void a_profile_without_a_figure_is_refused(void **state)
{
    (void)state;
    const char *const keys[] = {"activation_elements_per_s", "attention_gradient_flops_per_s",
                                "busy_slowdown", "routing_spread", "network_sum_bytes_per_s"};
    struct dp_profile profile, again;
    dp_profile_default_cpu(&profile);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct dp_error err = {0};
        DP_AUTO_JSON json_t *json = dp_profile_to_json(&profile);
        assert_int_equal(json_object_del(json, keys[i]), 0);
        assert_refused(dp_profile_from_json(json, &again, &err), DP_INVALID, &err, keys[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_measured_shape_has_its_measured_rate),
        cmocka_unit_test(rates_between_points_lie_between_and_rise),
        cmocka_unit_test(a_kind_without_points_has_the_general_rate),
        cmocka_unit_test(a_profile_reads_back_as_written),
        cmocka_unit_test(a_profile_with_a_bad_figure_is_refused),
        cmocka_unit_test(a_profile_without_a_figure_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
