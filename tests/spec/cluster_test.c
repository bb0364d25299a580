// cluster.toml and accelerators by name.

#include "spec_support.h"

#include "dp/alloc.h"

static dp_status parse(const char *text, struct dp_cluster_spec *ret_spec, struct dp_error *err)
{
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, "c.toml", text, strlen(text));
    return dp_cluster_spec_parse(text, strlen(text), &diags, ret_spec, err);
}

// Data sheets; DeepSeek's figure for the H800 (arXiv 2412.19437, 3.2.2), DeepEP's for the B200; an
// NVL72 joins 18 hosts of four.
static void accelerators_have_their_published_figures(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_cluster_spec cluster;
    assert_ok(dp_cluster_preset("h800", 2048, &cluster, &err), &err);
    assert_int_equal(cluster.nodes, 256);
    assert_int_equal(cluster.ranks_per_node, 8);
    assert_int_equal(cluster.units, 132);
    assert_near(cluster.flops_peak / 1e12, 989, 1);
    assert_near(cluster.fp8_flops_peak / 1e12, 1979, 1);
    assert_near(cluster.scale_up_bandwidth / 1e9, 200, 0.5);
    assert_near(cluster.scale_up_achieved / 1e9, 160, 0.5);
    assert_near(cluster.scale_out_bandwidth / 1e9, 50, 0.5);
    assert_ok(dp_cluster_preset("h200", 4, &cluster, &err), &err);
    assert_int_equal(cluster.nodes, 1);
    assert_int_equal(cluster.ranks_per_node, 4);
    assert_near(cluster.memory_bytes / 1e9, 141, 0.5);
    assert_ok(dp_cluster_preset("gb200", 144, &cluster, &err), &err);
    assert_int_equal(cluster.nodes, 36);
    assert_int_equal(cluster.ranks_per_node, 4);
    assert_int_equal(cluster.scale_up_ranks, 72);
    assert_ok(dp_cluster_preset("b200", 8, &cluster, &err), &err);
    assert_near(cluster.scale_up_achieved / 1e9, 726, 0.5);
    assert_ok(dp_cluster_preset("a100", 8, &cluster, &err), &err);
    assert_near(cluster.fp8_flops_peak, 0, 0);
}

// hardware_specs.csv of the published rows that plans are validated on.
static void accelerators_agree_with_the_table_handed_over(void **state)
{
    (void)state;
    const char *shared = getenv("DP_SHARED");
    char path[DP_PATH_MAX];
    if (shared != NULL) {
        snprintf(path, sizeof(path), "%s/validation/hardware_specs.csv", shared);
    } else { // beside the source tree
        snprintf(path, sizeof(path), "%.*s../../../shared/validation/hardware_specs.csv",
                 (int)(strrchr(__FILE__, '/') + 1 - __FILE__), __FILE__);
    }
    if (access(path, R_OK) != 0) {
        print_message("skipped: no %s\n", path);
        skip();
    }
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    assert_ok(dp_read_file(path, 1 << 20, &text, &err), &err);
    int rows = 0;
    for (char *rest = text.bytes, *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *name = strsep(&line, ","), *field[9];
        for (size_t i = 0; i < 9; i++) {
            field[i] = line == NULL ? "" : strsep(&line, ",");
        }
        if (strcmp(name, "gpu") == 0 || name[0] == '\0' || field[0][0] == '"') {
            continue; // a bf16 figure in words has a comma in it: tested below
        }
        struct dp_cluster_spec cluster;
        assert_ok(dp_cluster_preset(name, 1, &cluster, &err), &err);
        assert_near(cluster.flops_peak / 1e12, strtod(field[0], NULL), 1e-9);
        assert_near(cluster.fp8_flops_peak / 1e12, strtod(field[1], NULL), 1e-9);
        assert_near(cluster.memory_bytes / 1e9, strtod(field[2], NULL), 1e-9);
        assert_near(cluster.memory_bandwidth / 1e12, strtod(field[3], NULL), 1e-9);
        assert_near(cluster.scale_up_bandwidth / 1e9, strtod(field[4], NULL), 1e-9);
        assert_near(cluster.scale_up_achieved / 1e9, strtod(field[5], NULL), 1e-9);
        assert_near(cluster.units, strtod(field[6], NULL), 1e-9);
        assert_true(dp_cluster_domain_ranks(&cluster) == 1 ||
                    dp_cluster_domain_ranks(&cluster) == atoi(field[7]));
        rows++;
    }
    assert_true(rows >= 11);
}

static void names_of_data_sheets_mean_the_same_accelerator(void **state)
{
    (void)state;
    static const char *const same[][2] = {
        {"H800-SXM", "h800"},       {"b200-hgx", "b200"},         {"GB200-NVL72", "gb200"},
        {"DGX-GB300", "gb300"},     {"A100-SXM-80", "a100-80gb"}, {"A100-SXM-40", "a100-40gb"},
        {"MTT-S5000", "mtt-s5000"}, {"DGX-B300", "b300"},         {"Mi355X", "mi355x"}};
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        assert_string_equal(dp_cluster_preset_name(same[i][0]), same[i][1]);
    }
    assert_null(dp_cluster_preset_name("tpu"));
    assert_string_equal(dp_cluster_preset_of_device("NVIDIA H100 80GB HBM3"), "h100");
    assert_string_equal(dp_cluster_preset_of_device("NVIDIA A100-SXM4-40GB"), "a100-40gb");
    assert_string_equal(dp_cluster_preset_of_device("NVIDIA GB200"), "gb200");
    assert_null(dp_cluster_preset_of_device("NVIDIA H100 PCIe"));
    assert_null(dp_cluster_preset_of_device("NVIDIA GeForce RTX 4090"));
}

static void inferred_figures_say_so(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_cluster_spec cluster;
    assert_ok(dp_cluster_preset("MTT-S5000", 8, &cluster, &err), &err);
    assert_near(cluster.flops_peak / 1e12, 500, 1);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_cluster_spec_warnings(&cluster, &text);
    assert_non_null(strstr(text.bytes, "low: bf16 inferred"));
    assert_ok(dp_cluster_preset("h800", 8, &cluster, &err), &err);
    dp_buf_clear(&text);
    dp_cluster_spec_warnings(&cluster, &text);
    assert_int_equal(text.length, 0);
}

static void any_count_of_accelerators_makes_a_cluster(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int32_t ranks, nodes, last, domains;
    } cases[] = {{"h100", 3, 1, 3, 1},        {"h100", 12, 2, 4, 2},
                 {"h100", 2047, 256, 7, 256}, {"gb200", 256, 64, 4, 4},
                 {"gb200", 72, 18, 4, 1},     {"gb200", 73, 19, 1, 2},
                 {"gb300", 5, 2, 1, 1},       {"h800", 65536, 8192, 8, 8192}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_error err = {0};
        struct dp_cluster_spec cluster;
        assert_ok(dp_cluster_preset(cases[i].name, cases[i].ranks, &cluster, &err), &err);
        assert_int_equal(cluster.nodes, cases[i].nodes);
        assert_int_equal(dp_cluster_ranks(&cluster), cases[i].ranks);
        DP_AUTO_FREE struct dp_cluster_node *nodes = NULL;
        dp_cluster_nodes(&cluster, &nodes);
        int32_t sum = 0;
        for (int32_t n = 0; n < cluster.nodes; n++) {
            sum += nodes[n].ranks;
        }
        assert_int_equal(sum, cases[i].ranks);
        assert_int_equal(nodes[cluster.nodes - 1].ranks, cases[i].last);
        assert_int_equal(nodes[cluster.nodes - 1].domain, cases[i].domains);
    }
}

// Racks of which 64 accelerators are used each, as such clusters are run; where a count does not
// divide, as few racks as can be.
static void hosts_that_do_not_fill_domains_are_spread_evenly(void **state)
{
    (void)state;
    static const struct {
        int32_t ranks, hosts_of_first, domains;
    } cases[] = {{256, 16, 4},   {1024, 16, 16}, {16384, 16, 256}, {144, 18, 2},
                 {1000, 18, 14}, {420, 15, 7},   {76, 10, 2}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct dp_error err = {0};
        struct dp_cluster_spec cluster;
        assert_ok(dp_cluster_preset("gb200", cases[i].ranks, &cluster, &err), &err);
        DP_AUTO_FREE struct dp_cluster_node *nodes = NULL;
        dp_cluster_nodes(&cluster, &nodes);
        int32_t first = 0;
        while (first < cluster.nodes && nodes[first].domain == 1) {
            first++;
        }
        assert_int_equal(first, cases[i].hosts_of_first);
        assert_int_equal(nodes[cluster.nodes - 1].domain, cases[i].domains);
    }
}

static void impossible_presets_are_refused(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_cluster_spec cluster;
    assert_refused(dp_cluster_preset("h100", 0, &cluster, &err), DP_INVALID, &err, "1 to");
    assert_refused(dp_cluster_preset("h100", DP_RANKS_MAX + 1, &cluster, &err), DP_INVALID, &err,
                   "1 to");
    assert_refused(dp_cluster_preset("h1000", 8, &cluster, &err), DP_NOT_FOUND, &err,
                   "did you mean \"h100\"?");
    assert_refused(dp_cluster_preset("tpu-v5", 8, &cluster, &err), DP_NOT_FOUND, &err, "mi300x");
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

// Two leaves of four hosts below an oversubscribed spine.
#define LEVELS                                                                                     \
    "accelerator = \"h100\"\nnodes = 8\n"                                                          \
    "[[level]]\nname = \"leaf\"\nnodes = 4\n"                                                      \
    "[[level]]\nname = \"spine\"\nbandwidth = 50e9\noversubscription = 4\nlatency_s = 5e-6\n"

static void levels_say_what_lies_beyond_the_scale_up_domain(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_cluster_spec cluster;
    assert_ok(parse(LEVELS, &cluster, &err), &err);
    assert_int_equal(cluster.levels_count, 2);
    assert_int_equal(cluster.levels[0].ranks, 32);
    assert_near(cluster.levels[0].bandwidth, 50e9, 1); // as scale-out
    assert_near(cluster.levels[0].latency_s, 3.7e-6, 1e-12);
    assert_int_equal(cluster.levels[1].ranks, 0);
    assert_near(cluster.levels[1].bandwidth, 12.5e9, 1);
    DP_AUTO_FREE struct dp_cluster_node *nodes = NULL;
    dp_cluster_nodes(&cluster, &nodes);
    for (int32_t n = 0; n < 8; n++) {
        assert_int_equal(nodes[n].domain, n + 1);
        assert_int_equal(nodes[n].group[0], n / 4 + 1);
        assert_int_equal(nodes[n].group[1], 1);
    }
}

static void groups_may_be_uneven_and_hosts_have_names(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_cluster_spec cluster;
    assert_ok(
        parse("accelerator = \"gb200\"\nhosts = \"r1n[01-16],r2n[01-18]\"\n"
              "[[level]]\nname = \"block\"\ngroups = \"16,18\"\n[[level]]\nname = \"spine\"\n",
              &cluster, &err),
        &err);
    assert_int_equal(cluster.nodes, 34);
    DP_AUTO_FREE struct dp_cluster_node *nodes = NULL;
    dp_cluster_nodes(&cluster, &nodes);
    assert_string_equal(nodes[16].name, "r2n01");
    // A domain of 72 is cut where its block ends.
    assert_int_equal(nodes[15].domain, 1);
    assert_int_equal(nodes[16].domain, 2);
    assert_int_equal(nodes[33].domain, 2);
    assert_int_equal(nodes[33].group[0], 2);
}

static void inconsistent_levels_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } wrong[] = {
        {"[[level]]\nranks = 12\n",
         "c.toml:4:9: level \"level-1\" joins 12 ranks: not whole hosts"},
        {"scale_up_ranks = 16\n[[level]]\nranks = 8\n", "fewer than the 16 of a scale-up domain"},
        {"scale_up_ranks = 16\n[[level]]\nnodes = 3\n", "not whole scale-up domains of 16"},
        {"[[level]]\nnodes = 4\n[[level]]\nnodes = 2\n", "joins fewer than level \"level-1\""},
        {"[[level]]\nnodes = 4\n[[level]]\nnodes = 6\n[[level]]\n", "do not hold whole groups"},
        {"[[level]]\nnodes = 4\n", "leaves 2 parts that nothing joins"},
        {"[[level]]\nname = \"a\"\nnodes = 4\n[[level]]\nname = \"a\"\n", "the same name"},
        {"[[level]]\nnodes = 4\nranks = 32\n[[level]]\n", "either \"ranks\" or \"nodes\""},
        {"[[level]]\ngroups = \"4,3\"\n[[level]]\n", "groups of 7 hosts in all; there are 8"},
        {"[[level]]\ngroups = \"4,x\"\n[[level]]\n", "column 4 is not"},
        {"[[level]]\nbandwith = 1e9\n", "did you mean \"bandwidth\"?"},
        {"[[level]]\noversubscription = 0.5\n", "at least 1"},
        {"[level]\nnodes = 4\n", "write [[level]] with two brackets"},
        {"level = [1]\n", "a level must be a table"},
        {"scale_up_ranks = 12\n", "does not join whole hosts of 8"},
        {"scale_up_achieved = 451e9\n", "more was achieved"},
        {"ranks = 70\n[[level]]\n", "70 ranks on 8 hosts of 8"},
        {"ranks = 56\n", "57 to 64 fill them all but the last"},
        {"hosts = \"n[1-7]\"\n", "7 hosts have names, nodes says 8"},
        {"hosts = \"n[1-7],n3\"\n", "host \"n3\" is named twice"},
        {"hosts = \"n[1-7\"\n", "c.toml:3:15: a bracket is not closed"},
        {"topology = \"t.conf\"\n", "not at hand here"},
        {"topology = 5\n", "must be the name of a file"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct dp_error err = {0};
        struct dp_cluster_spec cluster;
        DP_AUTO_FREE char *text =
            dp_asprintf("accelerator = \"h100\"\nnodes = 8\n%s", wrong[i].text);
        assert_refused(parse(text, &cluster, &err), DP_INVALID, &err, wrong[i].part);
    }
}

static void odd_levels_are_warned_of(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_cluster_spec cluster;
    assert_ok(parse("accelerator = \"h100\"\nnodes = 8\nfp8_flops_peak = 1e12\n"
                    "[[level]]\nname = \"leaf\"\nnodes = 4\nbandwidth = 25e9\n"
                    "[[level]]\nname = \"spine\"\nbandwidth = 50e9\n",
                    &cluster, &err),
              &err);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_cluster_spec_warnings(&cluster, &text);
    assert_non_null(strstr(text.bytes, "level \"spine\" is faster than leaf inside it"));
    assert_non_null(strstr(text.bytes, "fp8_flops_peak is below flops_peak"));
}

static void changes_name_keys_with_both_values(void **state)
{
    (void)state;
    struct dp_error err = {0};
    struct dp_cluster_spec before, after;
    assert_ok(parse(LEVELS, &before, &err), &err);
    assert_ok(parse("accelerator = \"h100\"\nnodes = 8\n[[level]]\nname = \"leaf\"\nnodes = 8\n",
                    &after, &err),
              &err);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_cluster_spec_changes(&before, &before, &text);
    assert_int_equal(text.length, 0);
    dp_cluster_spec_changes(&before, &after, &text);
    assert_non_null(strstr(text.bytes, "level[0].ranks: 32 -> 64\n"));
    assert_non_null(strstr(text.bytes, "level[1].name: \"spine\" -> (none)\n"));
}

static void write_file(const char *directory, const char *name, const char *text)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, name);
    struct dp_error err = {0};
    assert_ok(dp_write_file(path, text, strlen(text), &err), &err);
}

static void a_topology_gives_hosts_and_levels_and_is_inlined(void **state)
{
    (void)state;
    char directory[] = "/tmp/dp-cluster-XXXXXX";
    assert_non_null(mkdtemp(directory));
    write_file(directory, "t.conf",
               "SwitchName=l1 Nodes=n[1-4]\nSwitchName=l2 Nodes=n[5-7]\n"
               "SwitchName=top Switches=l[1-2]\n");
    write_file(directory, "c.toml", "accelerator = \"h100\"\ntopology = \"t.conf\"\n");
    write_file(directory, "two.toml",
               "accelerator = \"h100\"\ntopology = \"t.conf\"\n[[level]]\nname = \"rail\"\n"
               "[[level]]\nname = \"spine\"\noversubscription = 2\n");
    write_file(directory, "some.toml",
               "accelerator = \"h100\"\ntopology = \"t.conf\"\nhosts = \"n[5-6]\"\n");
    write_file(directory, "bad.toml",
               "accelerator = \"h100\"\ntopology = \"t.conf\"\n[[level]]\nranks = 8\n");
    write_file(directory, "gone.toml",
               "accelerator = \"h100\"\ntopology = \"t.conf\"\nhosts = \"n[5-9]\"\n");
    struct dp_error err = {0};
    struct dp_cluster_spec cluster, again;
    DP_AUTO_FREE char *path = dp_asprintf("%s/c.toml", directory);
    assert_ok(dp_cluster_spec_load(path, &cluster, &err), &err);
    assert_int_equal(cluster.nodes, 7);
    assert_string_equal(cluster.hosts, "n[1-7]");
    assert_int_equal(cluster.levels_count, 2);
    assert_string_equal(cluster.levels[0].name, "leaf");
    assert_string_equal(cluster.levels[0].groups, "4,3");
    assert_int_equal(cluster.levels[0].ranks, 32);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_cluster_spec_write(&cluster, &text);
    assert_ok(parse(text.bytes, &again, &err), &err); // needs no file any more
    assert_memory_equal(&cluster, &again, sizeof(cluster));
    DP_AUTO_FREE char *two = dp_asprintf("%s/two.toml", directory);
    assert_ok(dp_cluster_spec_load(two, &cluster, &err), &err);
    assert_string_equal(cluster.levels[0].name, "rail");
    assert_near(cluster.levels[1].bandwidth, 25e9, 1);
    DP_AUTO_FREE char *some = dp_asprintf("%s/some.toml", directory);
    assert_ok(dp_cluster_spec_load(some, &cluster, &err), &err);
    assert_int_equal(cluster.nodes, 2);
    assert_int_equal(cluster.levels_count, 0); // one switch joins them
    DP_AUTO_FREE char *bad = dp_asprintf("%s/bad.toml", directory);
    assert_refused(dp_cluster_spec_load(bad, &cluster, &err), DP_INVALID, &err,
                   "has 1 [[level]], its topology has 2");
    DP_AUTO_FREE char *gone = dp_asprintf("%s/gone.toml", directory);
    assert_refused(dp_cluster_spec_load(gone, &cluster, &err), DP_INVALID, &err,
                   "joins 3 of the 5 hosts");
    write_file(directory, "t.conf", "SwitchName=l1 Nodes=n[1-4]\nSwitchName=l1 Nodes=m\n");
    assert_refused(dp_cluster_spec_load(path, &cluster, &err), DP_INVALID, &err,
                   "t.conf:2:12: switch \"l1\" has been described before");
    DP_AUTO_FREE char *itself = dp_asprintf("%s/t.conf", directory);
    assert_refused(dp_cluster_spec_load(itself, &cluster, &err), DP_INVALID, &err,
                   "topology = \"t.conf\"");
    DP_AUTO_FREE char *command = dp_asprintf("rm -rf %s", directory);
    assert_int_equal(system(command), 0);
}

static void written_levels_read_back_to_the_same_bytes(void **state)
{
    (void)state;
    uint64_t random = 5;
    for (long run = 0; run < dp_fuzz_runs(500); run++) {
        // Rates and factors whose product and quotient have to be rounded.
        random = random * 6364136223846793005u + 1442695040888963407u;
        double bandwidth = 1e9 * (1 + (double)(random >> 40) / 977.0);
        double factor = 1 + (double)(random >> 52) / 331.0;
        DP_AUTO_FREE char *text =
            dp_asprintf("accelerator = \"gb300\"\nranks = %d\n[[level]]\nbandwidth = %.17g\n"
                        "oversubscription = %.17g\n",
                        (int)(1 + (random >> 33) % 5000), bandwidth, factor);
        struct dp_error err = {0};
        struct dp_cluster_spec cluster, again;
        assert_ok(parse(text, &cluster, &err), &err);
        DP_CLEANUP(dp_buf_deinit) struct dp_buf written = {0};
        dp_cluster_spec_write(&cluster, &written);
        assert_ok(parse(written.bytes, &again, &err), &err);
        assert_memory_equal(&cluster, &again, sizeof(cluster));
    }
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
        cmocka_unit_test(accelerators_agree_with_the_table_handed_over),
        cmocka_unit_test(names_of_data_sheets_mean_the_same_accelerator),
        cmocka_unit_test(inferred_figures_say_so),
        cmocka_unit_test(any_count_of_accelerators_makes_a_cluster),
        cmocka_unit_test(hosts_that_do_not_fill_domains_are_spread_evenly),
        cmocka_unit_test(impossible_presets_are_refused),
        cmocka_unit_test(a_file_starts_from_a_preset_and_changes_keys),
        cmocka_unit_test(mistakes_in_a_cluster_file_are_named),
        cmocka_unit_test(levels_say_what_lies_beyond_the_scale_up_domain),
        cmocka_unit_test(groups_may_be_uneven_and_hosts_have_names),
        cmocka_unit_test(inconsistent_levels_are_named),
        cmocka_unit_test(odd_levels_are_warned_of),
        cmocka_unit_test(changes_name_keys_with_both_values),
        cmocka_unit_test(a_topology_gives_hosts_and_levels_and_is_inlined),
        cmocka_unit_test(written_levels_read_back_to_the_same_bytes),
        cmocka_unit_test(what_is_written_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
