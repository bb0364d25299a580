// topology = "FILE" of a cluster file: hosts and groups from Slurm's description of the switches.

#include <stdlib.h>
#include <string.h>

#include "cluster_internal.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "spec_internal.h"

static void report(const struct dp_toml_node *key, struct dp_diags *diags, const char *message)
{
    dp_diags_add(diags, key->line, key->column, NULL, "%s", message);
}

// Problems of the other file, each under its own name and position.
static void report_all(const struct dp_toml_node *key, const struct dp_diags *problems,
                       struct dp_diags *diags)
{
    for (size_t i = 0; i < problems->count; i++) {
        const struct dp_diag *problem = &problems->items[i];
        if (problem->line > 0) {
            dp_diags_add(diags, key->line, key->column, problem->help, "%s:%d:%d: %s",
                         problems->file, problem->line, problem->column, problem->message);
        } else {
            dp_diags_add(diags, key->line, key->column, problem->help, "%s: %s", problems->file,
                         problem->message);
        }
    }
}

static void take_level(const struct dp_toml_node *key, const struct dp_topology_level *found,
                       bool described, struct dp_diags *diags, const struct dp_cluster_spec *spec,
                       struct dp_cluster_level *level)
{
    if (!described) {
        DP_COPY_TEXT(level->name, found->name);
        level->bandwidth = spec->scale_out_bandwidth;
        level->latency_s = spec->scale_out_latency_s;
        level->oversubscription = 1;
    } else if (level->ranks > 0 || level->groups[0] != '\0') {
        report(key, diags,
               "topology says what each level joins; leave \"ranks\", \"nodes\" and "
               "\"groups\" out of [[level]]");
    }
    if (found->count == 1) {
        level->ranks = 0;
        return;
    }
    int32_t largest = 0;
    for (size_t i = 0; i < found->count; i++) {
        largest = found->sizes[i] > largest ? found->sizes[i] : largest;
    }
    level->ranks = largest * spec->ranks_per_node;
    if (!dp_cluster_groups_write(found->sizes, found->count, level->groups)) {
        DP_AUTO_FREE char *text =
            dp_asprintf("the groups of level \"%s\" are too uneven: their sizes take more than %d "
                        "bytes",
                        level->name, DP_CLUSTER_GROUPS_MAX - 1);
        report(key, diags, text);
    }
}

static void take_topology(const struct dp_toml_node *key, const struct dp_topology *topology,
                          struct dp_diags *diags, struct dp_cluster_spec *spec)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf hosts = {0};
    dp_hosts_write(&topology->hosts, &hosts);
    memset(spec->hosts, 0, sizeof(spec->hosts));
    if (!DP_COPY_TEXT(spec->hosts, hosts.bytes)) {
        DP_AUTO_FREE char *text = dp_asprintf("the names of %zu hosts take more than %d bytes",
                                              topology->hosts.count, DP_CLUSTER_HOSTS_MAX - 1);
        report(key, diags, text);
    }
    if (spec->nodes == 0) {
        spec->nodes = (int32_t)topology->hosts.count;
    }
    bool described = spec->levels_count > 0;
    if (described && spec->levels_count != topology->levels_count) {
        DP_AUTO_FREE char *text = dp_asprintf("the file has %d [[level]], its topology has %d",
                                              spec->levels_count, topology->levels_count);
        report(key, diags, text);
        return;
    }
    // One switch that joins all is a flat fabric.
    bool flat = topology->levels_count == 1 && topology->levels[0].count == 1 && !described;
    spec->levels_count = flat ? 0 : topology->levels_count;
    for (int32_t i = 0; i < spec->levels_count; i++) {
        take_level(key, &topology->levels[i], described, diags, spec, &spec->levels[i]);
    }
}

static bool expand_only(const struct dp_toml_node *key, struct dp_diags *diags,
                        const struct dp_cluster_spec *spec, struct dp_hosts *only)
{
    struct dp_error err = {0};
    if (spec->hosts[0] == '\0' || dp_hosts_expand(spec->hosts, only, NULL, &err) == DP_OK) {
        return true;
    }
    DP_AUTO_FREE char *text = dp_asprintf("%s in \"hosts\"", err.message);
    report(key, diags, text);
    return false;
}

void dp_cluster_use_topology(const struct dp_toml_node *key, const char *base_directory,
                             struct dp_diags *diags, struct dp_cluster_spec *spec)
{
    if (key->type != DP_TOML_STRING || key->value.string[0] == '\0' ||
        strlen(key->value.string) != key->string_length) {
        report(key, diags, "\"topology\" must be the name of a file");
        return;
    }
    if (base_directory == NULL) {
        report(key, diags,
               "\"topology\" needs a file, which is not at hand here; dpctl cluster "
               "apply puts what it says into what it sends");
        return;
    }
    const char *name = key->value.string;
    DP_AUTO_FREE char *path = name[0] == '/' ? dp_strdup(name) : dp_path_join(base_directory, name);
    struct dp_error err = {0};
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (dp_read_file(path, DP_TOPOLOGY_BYTES_MAX, &text, &err) != DP_OK) {
        report(key, diags, err.message);
        return;
    }
    DP_CLEANUP(dp_hosts_deinit) struct dp_hosts only = {0};
    if (!expand_only(key, diags, spec, &only)) {
        return;
    }
    DP_CLEANUP(dp_diags_deinit) struct dp_diags problems;
    dp_diags_init(&problems, path, NULL, 0);
    DP_CLEANUP(dp_topology_deinit) struct dp_topology topology = {0};
    dp_status status = dp_topology_parse(text.bytes == NULL ? "" : text.bytes, text.length,
                                         only.count > 0 ? &only : NULL, &problems, &topology, &err);
    if (status != DP_OK && problems.count == 0) {
        report(key, diags, err.message);
    }
    report_all(key, &problems, diags);
    if (status == DP_OK && only.count > 0 && topology.hosts.count != only.count) {
        DP_AUTO_FREE char *missing = dp_asprintf("%s joins %zu of the %zu hosts in \"hosts\"", path,
                                                 topology.hosts.count, only.count);
        report(key, diags, missing);
    } else if (status == DP_OK) {
        take_topology(key, &topology, diags, spec);
    }
}
