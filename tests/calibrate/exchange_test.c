// All-to-all that was measured as such, and what prices make of it.
#include <math.h>
#include <string.h>

#include "dp/cleanup.h"
#include "dp/cost.h"
#include "dp/profile.h"
#include "dp_test.h"

static void assert_near(double value, double wanted)
{
    if (!(fabs(value / wanted - 1) < 1e-9)) {
        fail_msg("%.12g is not %.12g", value, wanted);
    }
}

static void two_points(struct dp_profile *profile)
{
    dp_profile_default_cpu(profile);
    profile->exchanges[0] = (struct dp_exchange_point){2, 1e-4, 1e9};
    profile->exchanges[1] = (struct dp_exchange_point){8, 3e-4, 2.5e8};
    profile->exchanges_count = 2;
}

static void between_measured_sizes_rates_follow_the_logarithm_of_ranks(void **state)
{
    (void)state;
    struct dp_profile profile;
    two_points(&profile);
    // 4 is half way from 2 to 8: the geometric mean of the rates, the mean of the latencies.
    assert_near(dp_profile_exchange(&profile, 4).bytes_per_s, 5e8);
    assert_near(dp_profile_exchange(&profile, 4).latency_s, 2e-4);
    assert_near(dp_profile_exchange(&profile, 2).bytes_per_s, 1e9);
    assert_near(dp_profile_exchange(&profile, 8).latency_s, 3e-4);
    assert_near(dp_profile_exchange(&profile, 64).bytes_per_s, 2.5e8);
    profile.exchanges_count = 0;
    assert_near(dp_profile_exchange(&profile, 4).bytes_per_s, profile.local.bytes_per_s);
}

static void a_slower_exchange_is_a_dearer_one_and_hops_stay(void **state)
{
    (void)state;
    struct dp_profile profile;
    struct dp_model_spec model;
    struct dp_error err = {0};
    two_points(&profile);
    profile.routing_spread = 0;
    assert_ok(dp_model_preset("tiny-moe", &model, &err), &err);
    struct dp_cost_stage stage = {0, model.layers, false, false, false};
    struct dp_cost_batch batch = {.samples = 1, .sequence = 128, .ep_size = 4, .ep_nodes = 1};
    struct dp_cost_chunk fast, slow;
    dp_cost_chunk(&model, &profile, &stage, &batch, &fast);
    for (int i = 0; i < 2; i++) {
        profile.exchanges[i].bytes_per_s /= 2;
        profile.exchanges[i].latency_s *= 2;
    }
    dp_cost_chunk(&model, &profile, &stage, &batch, &slow);
    assert_true(fast.forward_exchange_s > 0);
    assert_near(slow.forward_exchange_s, 2 * fast.forward_exchange_s);
    assert_near(slow.backward_exchange_s, 2 * fast.backward_exchange_s);
    assert_near(slow.forward_s, fast.forward_s);
    // Between nodes nothing was measured in this way.
    batch.ep_nodes = 2;
    dp_cost_chunk(&model, &profile, &stage, &batch, &fast);
    profile.exchanges_count = 0;
    dp_cost_chunk(&model, &profile, &stage, &batch, &slow);
    assert_near(slow.forward_exchange_s, fast.forward_exchange_s);
}

static void the_form_keeps_them_and_refuses_wrong_ones(void **state)
{
    (void)state;
    struct dp_profile profile, read;
    struct dp_error err = {0};
    two_points(&profile);
    DP_AUTO_JSON json_t *json = dp_profile_to_json(&profile);
    assert_ok(dp_profile_from_json(json, &read, &err), &err);
    assert_int_equal(read.exchanges_count, 2);
    assert_memory_equal(read.exchanges, profile.exchanges, sizeof(profile.exchanges));
    static const char *const wrong[] = {
        "3",
        "[1]",
        "[{\"ranks\": 2, \"latency_s\": 0}]",
        "[{\"ranks\": 1, \"latency_s\": 0, \"bytes_per_s\": 1}]",
        "[{\"ranks\": 2, \"latency_s\": -1, \"bytes_per_s\": 1}]",
        "[{\"ranks\": 2, \"latency_s\": 0, \"bytes_per_s\": 0}]",
        "[{\"ranks\": 4, \"latency_s\": 0, \"bytes_per_s\": 1},"
        " {\"ranks\": 2, \"latency_s\": 0, \"bytes_per_s\": 1}]",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        json_object_set_new(json, "exchanges", json_loads(wrong[i], JSON_DECODE_ANY, NULL));
        assert_refused(dp_profile_from_json(json, &read, &err), DP_INVALID, &err, "exchanges");
    }
    // Profiles of before have none.
    json_object_del(json, "exchanges");
    assert_ok(dp_profile_from_json(json, &read, &err), &err);
    assert_int_equal(read.exchanges_count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(between_measured_sizes_rates_follow_the_logarithm_of_ranks),
        cmocka_unit_test(a_slower_exchange_is_a_dearer_one_and_hops_stay),
        cmocka_unit_test(the_form_keeps_them_and_refuses_wrong_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
