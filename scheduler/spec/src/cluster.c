// Clusters: cluster.toml and accelerators by name.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "spec_internal.h"

DP_DEFINE_CLEANUP(cleanup_toml, struct dp_toml, dp_toml_free)

#define CLUSTER(member) DP_MEMBER(dp_cluster_spec, member)
#define REAL_MAX 1e30

static const struct dp_key cluster_keys[] = {
    {"name", DP_KEY_TEXT, CLUSTER(name), 0, 0, false, false, "the cluster's name"},
    {"accelerator", DP_KEY_TEXT, CLUSTER(accelerator), 0, 0, false, false,
     "a built-in accelerator; keys given here win"},
    {"nodes", DP_KEY_INT32, CLUSTER(nodes), 1, DP_NODES_MAX, false, true, "hosts"},
    {"ranks_per_node", DP_KEY_INT32, CLUSTER(ranks_per_node), 1, DP_NODE_SLOTS_MAX, false, true,
     "accelerators, or CPU rank slots, of one host"},
    {"cores_per_node", DP_KEY_INT32, CLUSTER(cores_per_node), 0, 65536, false, false,
     "CPU cores of one host; 0 = as many as ranks"},
    {"memory_bytes", DP_KEY_DOUBLE, CLUSTER(memory_bytes), 1, REAL_MAX, false, true,
     "memory of one rank"},
    {"flops_peak", DP_KEY_DOUBLE, CLUSTER(flops_peak), 1, REAL_MAX, false, true,
     "dense bf16 operations per second of one rank"},
    {"memory_bandwidth", DP_KEY_DOUBLE, CLUSTER(memory_bandwidth), 1, REAL_MAX, false, true,
     "bytes per second of one rank"},
    {"scale_up_bandwidth", DP_KEY_DOUBLE, CLUSTER(scale_up_bandwidth), 1, REAL_MAX, false, true,
     "bytes per second between ranks of one host, per rank and direction"},
    {"scale_up_latency_s", DP_KEY_DOUBLE, CLUSTER(scale_up_latency_s), 0, 1e3, false, false,
     "seconds to start a transfer inside a host"},
    {"scale_out_bandwidth", DP_KEY_DOUBLE, CLUSTER(scale_out_bandwidth), 1, REAL_MAX, false, true,
     "bytes per second between hosts, per rank and direction"},
    {"scale_out_latency_s", DP_KEY_DOUBLE, CLUSTER(scale_out_latency_s), 0, 1e3, false, false,
     "seconds to start a transfer between hosts"},
};

static const struct dp_section cluster_section = {"", cluster_keys,
                                                  sizeof(cluster_keys) / sizeof(cluster_keys[0])};

// Vendors' dense figures; bandwidths per direction. H800's scale-up is the achieved one of
// arXiv 2412.19437, 3.2.2; latencies are arXiv 2505.09343, table 5 (NVLink, InfiniBand one hop).
#define GPU(label, domain, flops, memory, bandwidth, scale_up, scale_out)                          \
    {                                                                                              \
        .name = label, .accelerator = label, .nodes = 1, .ranks_per_node = (domain),               \
        .flops_peak = (flops), .memory_bytes = (memory), .memory_bandwidth = (bandwidth),          \
        .scale_up_bandwidth = (scale_up), .scale_up_latency_s = 3.33e-6,                           \
        .scale_out_bandwidth = (scale_out), .scale_out_latency_s = 3.7e-6                          \
    }

static const struct dp_cluster_spec presets[] = {
    GPU("a100-40gb", 8, 312e12, 40e9, 1.555e12, 300e9, 25e9),
    GPU("a100-80gb", 8, 312e12, 80e9, 2.039e12, 300e9, 25e9),
    GPU("h100", 8, 989.4e12, 80e9, 3.35e12, 450e9, 50e9),
    GPU("h800", 8, 989.4e12, 80e9, 3.35e12, 160e9, 50e9),
    GPU("h20", 8, 148e12, 96e9, 4.0e12, 450e9, 50e9),
    GPU("h200", 8, 989.4e12, 141e9, 4.8e12, 450e9, 50e9),
    GPU("b200", 8, 2250e12, 180e9, 7.7e12, 900e9, 50e9),
    GPU("gb200", 72, 2500e12, 186e9, 8.0e12, 900e9, 50e9),
    GPU("gb300", 72, 2500e12, 288e9, 8.0e12, 900e9, 100e9),
    GPU("mi300x", 8, 1307e12, 192e9, 5.3e12, 448e9, 50e9),
    GPU("mtt-s4000", 8, 100e12, 48e9, 0.768e12, 120e9, 25e9),
    // One core of a common server: OpenBLAS sgemm and a scale-copy, loopback TCP.
    {.name = "cpu",
     .accelerator = "cpu",
     .nodes = 1,
     .ranks_per_node = 8,
     .flops_peak = 70e9,
     .memory_bytes = 4e9,
     .memory_bandwidth = 13e9,
     .scale_up_bandwidth = 2.5e9,
     .scale_up_latency_s = 30e-6,
     .scale_out_bandwidth = 1.2e9,
     .scale_out_latency_s = 60e-6},
};

enum { PRESETS = sizeof(presets) / sizeof(presets[0]) };

const char *const *dp_cluster_preset_names(void)
{
    // Written with the same values by whoever comes first.
    static const char *names[PRESETS + 1];
    for (size_t i = 0; i < PRESETS; i++) {
        __atomic_store_n(&names[i], presets[i].name, __ATOMIC_RELAXED);
    }
    return names;
}

static const struct dp_cluster_spec *find_preset(const char *name)
{
    for (size_t i = 0; i < PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            return &presets[i];
        }
    }
    return NULL;
}

static dp_status fail_unknown(const char *name, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf names = {0};
    for (size_t i = 0; i < PRESETS; i++) {
        dp_buf_printf(&names, "%s%s", i == 0 ? "" : ", ", presets[i].name);
    }
    return dp_fail(err, DP_NOT_FOUND, "no accelerator is called \"%s\"; the built-in ones are %s",
                   name, names.bytes);
}

dp_status dp_cluster_preset(const char *accelerator, int32_t ranks, struct dp_cluster_spec *ret,
                            struct dp_error *err)
{
    const struct dp_cluster_spec *preset = find_preset(accelerator);
    if (preset == NULL) {
        return fail_unknown(accelerator, err);
    }
    if (ranks < 1 || ranks > DP_RANKS_MAX) {
        return dp_fail(err, DP_INVALID, "a cluster of %d ranks; it must be 1 to %d", ranks,
                       DP_RANKS_MAX);
    }
    int32_t domain = preset->ranks_per_node;
    if (ranks > domain && ranks % domain != 0) {
        int32_t below = ranks / domain * domain;
        return dp_fail(err, DP_INVALID,
                       "%d ranks of %s do not fill nodes of %d; the nearest are %d and %d", ranks,
                       accelerator, domain, below, below + domain);
    }
    *ret = *preset;
    ret->ranks_per_node = ranks < domain ? ranks : domain;
    ret->nodes = ranks < domain ? 1 : ranks / domain;
    return DP_OK;
}

// Starts from a preset; any other name is fine when the file gives the figures itself.
static void use_accelerator(const struct dp_toml_node *node, struct dp_diags *diags,
                            struct dp_cluster_spec *spec)
{
    if (node->type != DP_TOML_STRING) {
        return; // reported when the keys are read
    }
    const struct dp_cluster_spec *preset = find_preset(node->value.string);
    const char *near = dp_suggest(node->value.string, dp_cluster_preset_names());
    if (preset != NULL) {
        *spec = *preset;
        spec->nodes = 0; // how many there are is for the file to say
    } else if (near != NULL) {
        DP_AUTO_FREE char *help = dp_asprintf("did you mean \"%s\"?", near);
        dp_diags_add(diags, node->line, node->column, help, "no accelerator is called \"%s\"",
                     node->value.string);
    }
}

dp_status dp_cluster_spec_parse(const char *text, size_t length, struct dp_diags *diags,
                                struct dp_cluster_spec *ret_spec, struct dp_error *err)
{
    DP_CLEANUP(cleanup_toml) struct dp_toml *toml = NULL;
    dp_status status = dp_toml_parse(text, length, diags, &toml, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_toml_node *root = dp_toml_root(toml);
    struct dp_cluster_spec spec = {.name = "cluster"};
    const struct dp_toml_node *accelerator = dp_toml_get(root, "accelerator");
    if (accelerator != NULL) {
        use_accelerator(accelerator, diags, &spec);
    } else {
        DP_COPY_TEXT(spec.accelerator, "custom");
    }
    for (size_t i = 0; i < root->children_count; i++) {
        const struct dp_toml_node *node = &root->children[i];
        if (node->type == DP_TOML_TABLE &&
            dp_section_find_key(&cluster_section, node->key) == NULL) {
            dp_diags_add(diags, node->key_line, node->key_column,
                         "a cluster's keys stand at the top level", "unknown section [%s]",
                         node->key);
        }
    }
    dp_keys_read(&cluster_section, NULL, root, NULL, diags, &spec);
    dp_keys_require(&cluster_section, root, diags, &spec);
    if (diags->count > 0) {
        return dp_diags_status(diags, err);
    }
    *ret_spec = spec;
    return DP_OK;
}

dp_status dp_cluster_spec_load(const char *path, struct dp_cluster_spec *ret_spec,
                               struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_read_file(path, DP_SPEC_BYTES_MAX, &text, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, strcmp(path, "-") == 0 ? "standard input" : path, text.bytes,
                  text.length);
    return dp_cluster_spec_parse(text.bytes, text.length, &diags, ret_spec, err);
}

void dp_cluster_spec_write(const struct dp_cluster_spec *spec, struct dp_buf *out)
{
    dp_keys_write(&cluster_section, spec, out);
}
