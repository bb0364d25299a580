// cluster.toml: reading and writing.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cluster_internal.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "spec_internal.h"

DP_DEFINE_CLEANUP(cleanup_toml, struct dp_toml, dp_toml_free)

#define CLUSTER(member) DP_MEMBER(dp_cluster_spec, member)
#define LEVEL(member) DP_MEMBER(dp_cluster_level, member)
#define REAL_MAX 1e30

static const struct dp_key cluster_keys[] = {
    {"name", DP_KEY_TEXT, CLUSTER(name), 0, 0, false, false, "the cluster's name"},
    {"accelerator", DP_KEY_TEXT, CLUSTER(accelerator), 0, 0, false, false,
     "a built-in accelerator; keys given here win"},
    {"nodes", DP_KEY_INT32, CLUSTER(nodes), 1, DP_NODES_MAX, false, false,
     "hosts; may be left out where ranks, hosts or topology say how many"},
    {"ranks_per_node", DP_KEY_INT32, CLUSTER(ranks_per_node), 1, DP_NODE_SLOTS_MAX, false, true,
     "accelerators, or CPU rank slots, of one host"},
    {"ranks", DP_KEY_INT32, CLUSTER(ranks), 0, DP_RANKS_MAX, false, false,
     "accelerators in all, when the last host is used in part; 0 = all of every host"},
    {"cores_per_node", DP_KEY_INT32, CLUSTER(cores_per_node), 0, 65536, false, false,
     "CPU cores of one host; 0 = as many as ranks"},
    {"memory_bytes", DP_KEY_DOUBLE, CLUSTER(memory_bytes), 1, REAL_MAX, false, true,
     "memory of one rank"},
    {"flops_peak", DP_KEY_DOUBLE, CLUSTER(flops_peak), 1, REAL_MAX, false, true,
     "dense bf16 operations per second of one rank"},
    {"fp8_flops_peak", DP_KEY_DOUBLE, CLUSTER(fp8_flops_peak), 0, REAL_MAX, false, false,
     "dense fp8 operations per second of one rank; 0 = it has no fp8"},
    {"units", DP_KEY_INT32, CLUSTER(units), 0, 65536, false, false,
     "multiprocessors or compute units of one rank; 0 = unknown"},
    {"memory_bandwidth", DP_KEY_DOUBLE, CLUSTER(memory_bandwidth), 1, REAL_MAX, false, true,
     "bytes per second of one rank"},
    {"scale_up_bandwidth", DP_KEY_DOUBLE, CLUSTER(scale_up_bandwidth), 1, REAL_MAX, false, true,
     "bytes per second between ranks of one scale-up domain, per rank and direction"},
    {"scale_up_achieved", DP_KEY_DOUBLE, CLUSTER(scale_up_achieved), 0, REAL_MAX, false, false,
     "what of scale_up_bandwidth was measured; 0 = unknown"},
    {"scale_up_latency_s", DP_KEY_DOUBLE, CLUSTER(scale_up_latency_s), 0, 1e3, false, false,
     "seconds to start a transfer inside a scale-up domain"},
    {"scale_up_ranks", DP_KEY_INT32, CLUSTER(scale_up_ranks), 0, DP_RANKS_MAX, false, false,
     "ranks that one scale-up domain joins, over several hosts (72) or one; 0 = one host"},
    {"scale_out_bandwidth", DP_KEY_DOUBLE, CLUSTER(scale_out_bandwidth), 1, REAL_MAX, false, true,
     "bytes per second between domains, per rank and direction: its share of the host's NICs"},
    {"scale_out_latency_s", DP_KEY_DOUBLE, CLUSTER(scale_out_latency_s), 0, 1e3, false, false,
     "seconds to start a transfer between domains"},
    {"confidence", DP_KEY_TEXT, CLUSTER(confidence), 0, 0, false, false,
     "how sure these figures are, for people; plans repeat it as a warning"},
    {"hosts", DP_KEY_TEXT, CLUSTER(hosts), 0, 0, false, false,
     "names as a Slurm host list, \"node[001-128]\"; with topology, those of its hosts to use"},
    {"topology", DP_KEY_SPECIAL, 0, 0, 0, 0, false, false,
     "a Slurm topology.conf beside this file, which says what hosts share which switch"},
    {"level", DP_KEY_SPECIAL, 0, 0, 0, 0, false, false,
     "[[level]] tables, from inner to outer: what lies beyond the scale-up domain"},
};

static const struct dp_section cluster_section = {"", cluster_keys, DP_ARRAY_LENGTH(cluster_keys)};

static const struct dp_key level_keys[] = {
    {"name", DP_KEY_TEXT, LEVEL(name), 0, 0, false, false, "what it is called: leaf, rail, spine"},
    {"ranks", DP_KEY_INT32, LEVEL(ranks), 0, DP_RANKS_MAX, false, false,
     "ranks that one group of it joins; 0 = all, as the outermost level must"},
    {"nodes", DP_KEY_SPECIAL, 0, 0, 0, 0, false, false, "the same in hosts"},
    {"groups", DP_KEY_TEXT, LEVEL(groups), 0, 0, false, false,
     "hosts of each group where they differ: \"64x16,12\" is 64 groups of 16 and one of 12"},
    {"bandwidth", DP_KEY_DOUBLE, LEVEL(bandwidth), 1, REAL_MAX, false, false,
     "bytes per second, per rank and direction, as installed; scale_out_bandwidth when absent"},
    {"oversubscription", DP_KEY_DOUBLE, LEVEL(oversubscription), 1, 1e4, false, false,
     "by which bandwidth is divided when all talk at once; 1 when absent"},
    {"latency_s", DP_KEY_DOUBLE, LEVEL(latency_s), 0, 1e3, false, false,
     "seconds to start a transfer over it; scale_out_latency_s when absent"},
};

static const struct dp_section level_section = {"[level]", level_keys, DP_ARRAY_LENGTH(level_keys)};

// Starts from a preset; any other name is fine when the file gives the figures itself.
static void use_accelerator(const struct dp_toml_node *node, struct dp_diags *diags,
                            struct dp_cluster_spec *spec)
{
    if (node->type != DP_TOML_STRING) {
        return; // reported when the keys are read
    }
    const struct dp_cluster_preset_row *preset = dp_cluster_preset_find(node->value.string);
    const char *near = dp_cluster_preset_near(node->value.string);
    if (preset != NULL) {
        dp_cluster_preset_fill(preset, spec);
    } else if (near != NULL) {
        DP_AUTO_FREE char *help = dp_asprintf("did you mean \"%s\"?", near);
        dp_diags_add(diags, node->line, node->column, help, "no accelerator is called \"%s\"",
                     node->value.string);
    }
}

// The same size in hosts.
static void read_level_nodes(const struct dp_toml_node *table, struct dp_diags *diags,
                             const struct dp_cluster_spec *spec, struct dp_cluster_level *level)
{
    const struct dp_toml_node *nodes = dp_toml_get(table, "nodes");
    if (nodes == NULL) {
        return;
    }
    int64_t ranks = nodes->type == DP_TOML_INTEGER && nodes->value.integer > 0 &&
                            nodes->value.integer <= DP_NODES_MAX
                        ? nodes->value.integer * spec->ranks_per_node
                        : 0;
    if (dp_toml_get(table, "ranks") != NULL) {
        dp_diags_add(diags, nodes->key_line, nodes->key_column, NULL,
                     "a level has either \"ranks\" or \"nodes\"");
    } else if (ranks < 1) {
        dp_diags_add(diags, nodes->line, nodes->column, NULL,
                     "\"nodes\" of a level must be an integer from 1 to %d", DP_NODES_MAX);
    } else {
        level->ranks = ranks <= DP_RANKS_MAX ? (int32_t)ranks : DP_RANKS_MAX;
    }
}

// What a level joins at most, where its groups are listed.
static void read_level_groups(const struct dp_toml_node *table, struct dp_diags *diags,
                              const struct dp_cluster_spec *spec, struct dp_cluster_level *level)
{
    const struct dp_toml_node *key = dp_toml_get(table, "groups");
    DP_AUTO_FREE int32_t *sizes = NULL;
    size_t count = 0;
    if (level->groups[0] == '\0') {
        return;
    }
    if (level->ranks > 0) {
        dp_diags_add(diags, key->key_line, key->key_column, NULL,
                     "a level has either \"groups\" or one size, \"ranks\" or \"nodes\"");
    } else if (dp_cluster_groups_parse(level->groups, &sizes, &count, NULL) == DP_OK) {
        int64_t largest = 0;
        for (size_t i = 0; i < count; i++) {
            largest = sizes[i] > largest ? sizes[i] : largest;
        }
        largest *= spec->ranks_per_node;
        level->ranks = largest < DP_RANKS_MAX ? (int32_t)largest : DP_RANKS_MAX;
    } // else: reported when the rules are checked
}

static void read_level(const struct dp_toml_node *table, struct dp_diags *diags,
                       struct dp_cluster_spec *spec)
{
    if (table->type != DP_TOML_TABLE) {
        dp_diags_add(diags, table->line, table->column, "write [[level]] above its keys",
                     "a level must be a table, not %s", dp_toml_type_text(table->type));
        return;
    }
    if (spec->levels_count == DP_CLUSTER_LEVELS_MAX) {
        dp_diags_add(diags, table->line, table->column, NULL, "more than %d levels",
                     DP_CLUSTER_LEVELS_MAX);
        return;
    }
    struct dp_cluster_level *level = &spec->levels[spec->levels_count++];
    level->oversubscription = 1;
    level->bandwidth = spec->scale_out_bandwidth;
    level->latency_s = spec->scale_out_latency_s;
    dp_keys_read(&level_section, NULL, table, NULL, diags, level);
    read_level_nodes(table, diags, spec, level);
    read_level_groups(table, diags, spec, level);
    if (level->oversubscription > 0) {
        level->bandwidth /= level->oversubscription;
    }
    if (level->name[0] == '\0') {
        snprintf(level->name, sizeof(level->name), "level-%d", spec->levels_count);
    }
}

static void read_levels(const struct dp_toml_node *root, struct dp_diags *diags,
                        struct dp_cluster_spec *spec)
{
    const struct dp_toml_node *levels = dp_toml_get(root, "level");
    if (levels != NULL && levels->type != DP_TOML_ARRAY) {
        dp_diags_add(diags, levels->key_line, levels->key_column, NULL,
                     "levels are a list: write [[level]] with two brackets");
        return;
    }
    for (size_t i = 0; levels != NULL && i < levels->children_count; i++) {
        read_level(&levels->children[i], diags, spec);
    }
}

// Names of hosts in their shortest form, and how many nodes the file means when it does not say.
static void complete_nodes(const struct dp_toml_node *root, struct dp_diags *diags,
                           struct dp_cluster_spec *spec)
{
    const struct dp_toml_node *key = dp_toml_get(root, "hosts");
    int32_t named = 0;
    if (spec->hosts[0] != '\0') {
        DP_CLEANUP(dp_hosts_deinit) struct dp_hosts hosts = {0};
        struct dp_error err = {0};
        int column = 0;
        if (dp_hosts_expand(spec->hosts, &hosts, &column, &err) != DP_OK) {
            dp_diags_add(diags, key == NULL ? 0 : key->line, key == NULL ? 0 : key->column + column,
                         NULL, "%s in \"hosts\"", err.message);
            return;
        }
        named = (int32_t)hosts.count;
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dp_hosts_write(&hosts, &text);
        memset(spec->hosts, 0, sizeof(spec->hosts));
        if (!DP_COPY_TEXT(spec->hosts, text.bytes)) {
            dp_diags_add(diags, key == NULL ? 0 : key->line, key == NULL ? 0 : key->column, NULL,
                         "the names of %d hosts take more than %d bytes", named,
                         DP_CLUSTER_HOSTS_MAX - 1);
        }
    }
    if (spec->nodes == 0 && named > 0) {
        spec->nodes = named;
    } else if (spec->nodes == 0 && spec->ranks > 0 && spec->ranks_per_node > 0) {
        spec->nodes = (spec->ranks + spec->ranks_per_node - 1) / spec->ranks_per_node;
    }
    if (spec->ranks == (int64_t)spec->nodes * spec->ranks_per_node) {
        spec->ranks = 0; // as if it had not been said
    }
}

static int compare_positions(const void *a, const void *b)
{
    const struct dp_diag *one = a, *two = b;
    return one->line != two->line ? (one->line > two->line) - (one->line < two->line)
                                  : (one->column > two->column) - (one->column < two->column);
}

static void read_sections(const struct dp_toml_node *root, const char *base_directory,
                          struct dp_diags *diags, struct dp_cluster_spec *spec)
{
    const struct dp_toml_node *accelerator = dp_toml_get(root, "accelerator");
    if (accelerator != NULL) {
        use_accelerator(accelerator, diags, spec);
    } else {
        DP_COPY_TEXT(spec->accelerator, "custom");
    }
    for (size_t i = 0; i < root->children_count; i++) {
        const struct dp_toml_node *node = &root->children[i];
        if (node->type == DP_TOML_TABLE &&
            dp_section_find_key(&cluster_section, node->key) == NULL) {
            dp_diags_add(diags, node->key_line, node->key_column,
                         "a cluster's keys stand at the top level, its levels in [[level]]",
                         "unknown section [%s]", node->key);
        }
    }
    dp_keys_read(&cluster_section, NULL, root, NULL, diags, spec);
    const char *preset = dp_cluster_preset_name(spec->accelerator);
    if (preset != NULL) {
        memset(spec->accelerator, 0, sizeof(spec->accelerator));
        DP_COPY_TEXT(spec->accelerator, preset);
    }
    read_levels(root, diags, spec);
    const struct dp_toml_node *topology = dp_toml_get(root, "topology");
    if (topology != NULL && diags->count == 0) {
        dp_cluster_use_topology(topology, base_directory, diags, spec);
    }
    complete_nodes(root, diags, spec);
    dp_keys_require(&cluster_section, root, diags, spec);
    if (spec->nodes == 0 && dp_toml_get(root, "nodes") == NULL) {
        dp_diags_add(diags, root->key_line, root->key_column, "nodes: hosts, or give \"ranks\"",
                     "\"nodes\" is missing in the top level");
    }
}

dp_status dp_cluster_spec_parse_at(const char *text, size_t length, const char *base_directory,
                                   struct dp_diags *diags, struct dp_cluster_spec *ret_spec,
                                   struct dp_error *err)
{
    DP_CLEANUP(cleanup_toml) struct dp_toml *toml = NULL;
    dp_status status = dp_toml_parse(text, length, diags, &toml, err);
    if (status != DP_OK) {
        return status;
    }
    const struct dp_toml_node *root = dp_toml_root(toml);
    DP_AUTO_FREE struct dp_cluster_spec *spec = dp_new(struct dp_cluster_spec);
    DP_COPY_TEXT(spec->name, "cluster");
    read_sections(root, base_directory, diags, spec);
    if (diags->count == 0) {
        dp_cluster_check(spec, root, diags);
    }
    if (diags->count > 0) {
        qsort(diags->items, diags->count, sizeof(diags->items[0]), compare_positions);
        return dp_diags_status(diags, err);
    }
    memcpy(ret_spec, spec, sizeof(*spec)); // with what lies between members
    return DP_OK;
}

dp_status dp_cluster_spec_parse(const char *text, size_t length, struct dp_diags *diags,
                                struct dp_cluster_spec *ret_spec, struct dp_error *err)
{
    return dp_cluster_spec_parse_at(text, length, NULL, diags, ret_spec, err);
}

// A file of Slurm's in place of one that names it: its lines are no TOML.
static bool is_topology(const struct dp_buf *text)
{
    const char *at = text->length > 0 ? text->bytes : "";
    while (at[strspn(at, " \t\r\n")] == '#') {
        at = strchrnul(at + strspn(at, " \t\r\n"), '\n');
    }
    at += strspn(at, " \t\r\n");
    return strncasecmp(at, "SwitchName=", 11) == 0 || strncasecmp(at, "BlockName=", 10) == 0 ||
           strncasecmp(at, "BlockSizes=", 11) == 0;
}

dp_status dp_cluster_spec_load(const char *path, struct dp_cluster_spec *ret_spec,
                               struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_read_file(path, DP_SPEC_BYTES_MAX, &text, err);
    if (status != DP_OK) {
        return status;
    }
    if (is_topology(&text)) {
        return dp_fail(err, DP_INVALID,
                       "%s is a Slurm topology, which knows no accelerators; write a cluster file "
                       "beside it: accelerator = \"h100\" and topology = \"%s\"",
                       path, strrchr(path, '/') == NULL ? path : strrchr(path, '/') + 1);
    }
    bool is_stdin = strcmp(path, "-") == 0;
    const char *slash = is_stdin ? NULL : strrchr(path, '/');
    DP_AUTO_FREE char *directory =
        slash == NULL ? dp_strdup(".") : dp_strndup(path, (size_t)(slash - path) + (slash == path));
    DP_CLEANUP(dp_diags_deinit) struct dp_diags diags;
    dp_diags_init(&diags, is_stdin ? "standard input" : path, text.bytes, text.length);
    return dp_cluster_spec_parse_at(text.bytes, text.length, directory, &diags, ret_spec, err);
}

void dp_cluster_spec_write(const struct dp_cluster_spec *spec, struct dp_buf *out)
{
    dp_keys_write(&cluster_section, spec, out);
    const struct dp_cluster_preset_row *preset = dp_cluster_preset_find(spec->accelerator);
    if (preset != NULL && preset->confidence[0] != '\0' && spec->confidence[0] == '\0') {
        dp_buf_puts(out, "confidence = \"\"\n"); // else the preset's would come back
    }
    struct dp_section section = level_section;
    section.name = ""; // the heading is written here
    for (int32_t i = 0; i < spec->levels_count; i++) {
        DP_AUTO_FREE struct dp_cluster_level *level =
            dp_memdup(&spec->levels[i], sizeof(spec->levels[i]));
        level->bandwidth *= level->oversubscription; // the quotient comes back, bit for bit
        if (level->groups[0] != '\0') {
            level->ranks = 0; // follows from them
        }
        dp_buf_puts(out, "\n[[level]]\n");
        dp_keys_write(&section, level, out);
    }
}
