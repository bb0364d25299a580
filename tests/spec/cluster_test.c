// cluster.toml and accelerators by name.

#include "spec_support.h"

static dp_status parse(const char *text, struct dp_cluster_spec *ret_spec, struct dp_error *err)
{
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, "c.toml", text, strlen(text));
    return dp_cluster_spec_parse(text, strlen(text), &diags, ret_spec, err);
}

// Vendors' data sheets, and DeepSeek's figure for the H800 (arXiv 2412.19437, 3.2.2).
static void accelerators_have_their_published_figures(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_cluster_spec cluster;
    assert_ok(dp_cluster_preset("h800", 2048, &cluster, &err), &err);
    assert_int_equal(cluster.nodes, 256);
    assert_int_equal(cluster.ranks_per_node, 8);
    assert_near(cluster.flops_peak / 1e12, 989, 1);
    assert_near(cluster.scale_up_bandwidth / 1e9, 160, 0.5);
    assert_near(cluster.scale_out_bandwidth / 1e9, 50, 0.5);
    assert_ok(dp_cluster_preset("h200", 4, &cluster, &err), &err);
    assert_int_equal(cluster.nodes, 1);
    assert_int_equal(cluster.ranks_per_node, 4);
    assert_near(cluster.memory_bytes / 1e9, 141, 0.5);
    assert_ok(dp_cluster_preset("gb200", 144, &cluster, &err), &err);
    assert_int_equal(cluster.nodes, 2);
    assert_int_equal(cluster.ranks_per_node, 72);
}

static void sizes_that_do_not_fill_nodes_name_the_nearest(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_cluster_spec cluster;
    assert_refused(dp_cluster_preset("h100", 12, &cluster, &err), DP_INVALID, &err, "8 and 16");
    assert_refused(dp_cluster_preset("h100", 0, &cluster, &err), DP_INVALID, &err, "1 to");
    assert_refused(dp_cluster_preset("h1000", 8, &cluster, &err), DP_NOT_FOUND, &err, "mi300x");
}

static void a_file_starts_from_a_preset_and_changes_keys(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_cluster_spec cluster;
    assert_ok(parse("name = \"lab\"\naccelerator = \"h100\"\nnodes = 3\n"
                    "scale_out_bandwidth = 25e9\n",
                    &cluster, &err),
              &err);
    assert_string_equal(cluster.name, "lab");
    assert_int_equal(cluster.nodes, 3);
    assert_int_equal(cluster.ranks_per_node, 8);
    assert_near(cluster.scale_out_bandwidth, 25e9, 1);
    assert_near(cluster.scale_up_bandwidth, 450e9, 1);
}

static void mistakes_in_a_cluster_file_are_named(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_cluster_spec cluster;
    assert_refused(parse("accelerator = \"h100\"\n", &cluster, &err), DP_INVALID, &err,
                   "\"nodes\" is missing");
    assert_refused(parse("accelerator = \"h10\"\nnodes = 1\n", &cluster, &err), DP_INVALID, &err,
                   "did you mean \"h100\"?");
    assert_refused(parse("accelerator = 5\nnodes = 1\n", &cluster, &err), DP_INVALID, &err,
                   "c.toml:1:15");
    assert_refused(parse("accelerator = \"h100\"\nnodes = 0\n", &cluster, &err), DP_INVALID, &err,
                   "c.toml:2:9");
    assert_refused(parse("accelerator = \"h100\"\nnodes = 1\nnode = 2\n", &cluster, &err),
                   DP_INVALID, &err, "did you mean \"nodes\"?");
    assert_refused(parse("accelerator = \"h100\"\nnodes = 1\n[nic]\n", &cluster, &err), DP_INVALID,
                   &err, "unknown section [nic]");
    assert_refused(parse("nodes = 1\n", &cluster, &err), DP_INVALID, &err,
                   "\"flops_peak\" is missing");
    assert_refused(dp_cluster_spec_load("/nonexistent", &cluster, &err), DP_NOT_FOUND, &err,
                   "/nonexistent");
}

static void what_is_written_reads_back(void **state)
{
    (void)state;
    for (const char *const *name = dp_cluster_preset_names(); *name != NULL; name++) {
        struct dp_error err = {0};
        struct dp_cluster_spec cluster, again;
        assert_ok(dp_cluster_preset(*name, 1, &cluster, &err), &err);
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dp_cluster_spec_write(&cluster, &text);
        assert_ok(parse(text.bytes, &again, &err), &err);
        assert_memory_equal(&cluster, &again, sizeof(cluster));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accelerators_have_their_published_figures),
        cmocka_unit_test(sizes_that_do_not_fill_nodes_name_the_nearest),
        cmocka_unit_test(a_file_starts_from_a_preset_and_changes_keys),
        cmocka_unit_test(mistakes_in_a_cluster_file_are_named),
        cmocka_unit_test(what_is_written_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
