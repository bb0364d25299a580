// Shared by the files that read clusters.
#pragma once

#include "dp/cluster.h"
#include "dp/toml.h"
#include "dp/topology.h"

// A built-in accelerator; members as in struct dp_cluster_spec.
struct dp_cluster_preset_row {
    const char *name, *confidence;
    int32_t ranks_per_node, scale_up_ranks, units;
    double memory_bytes, flops_peak, fp8_flops_peak, memory_bandwidth;
    double scale_up_bandwidth, scale_up_achieved, scale_up_latency_s;
    double scale_out_bandwidth, scale_out_latency_s;
};
// By name or alias, or NULL.
const struct dp_cluster_preset_row *dp_cluster_preset_find(const char *name);
// A name that may have been meant, or NULL.
const char *dp_cluster_preset_near(const char *name);
void dp_cluster_preset_fill(const struct dp_cluster_preset_row *row, struct dp_cluster_spec *spec);

// Rules between keys; root gives the positions.
void dp_cluster_check(const struct dp_cluster_spec *spec, const struct dp_toml_node *root,
                      struct dp_diags *diags);
// Reads "64x16,12" (runs of COUNTxSIZE): hosts of each group, in order. The caller frees
// *ret_sizes.
dp_status dp_cluster_groups_parse(const char *text, int32_t **ret_sizes, size_t *ret_count,
                                  struct dp_error *err);
// The same text from sizes; false when it does not fit into DP_CLUSTER_GROUPS_MAX.
bool dp_cluster_groups_write(const int32_t *sizes, size_t count,
                             char ret_text[DP_CLUSTER_GROUPS_MAX]);
// Takes hosts and groups from a Slurm topology file, all of them or those that spec->hosts names.
void dp_cluster_use_topology(const struct dp_toml_node *key, const char *base_directory,
                             struct dp_diags *diags, struct dp_cluster_spec *spec);
