// A cluster as plain data: cluster.toml, built-in accelerators, Slurm's topology.conf.
//
// A spec is parsed, checked and completed with defaults in one call; every problem is reported at
// once with its position. All structs are plain data and may be copied; equal specs have equal
// bytes.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/diag.h"
#include "dp/error.h"
#include "dp/limits.h"

// Links of one level of the fabric, per rank and direction, after its oversubscription. Hosts of
// one group reach each other without any other level; the outermost level joins all (ranks 0).
struct dp_cluster_level {
    char name[DP_NAME_MAX]; // "leaf", "spine"
    int32_t ranks;          // accelerators of one group, the largest; 0 = the whole cluster
    double bandwidth;       // bytes per second
    double latency_s;
    double oversubscription; // what was already divided into bandwidth; 1 = none
    // Hosts of each group in order where they are not all alike, as runs: "64x16,12" = 64 groups of
    // 16 hosts and one of 12. "" = all have `ranks`, the last one what is left.
    char groups[DP_CLUSTER_GROUPS_MAX];
};

// One kind of node, `nodes` times.
struct dp_cluster_spec {
    char name[DP_NAME_MAX];
    char accelerator[DP_NAME_MAX]; // preset name ("h800") or "cpu"
    int32_t nodes;
    int32_t ranks_per_node;                          // accelerators, or CPU rank slots
    int32_t cores_per_node;                          // 0 = as many as ranks
    double memory_bytes;                             // per rank
    double flops_peak;                               // dense bf16, per second and rank
    double memory_bandwidth;                         // bytes per second and rank
    double scale_up_bandwidth, scale_up_latency_s;   // inside a domain, per rank and direction
    double scale_out_bandwidth, scale_out_latency_s; // between domains: a rank's share of the NICs
    int32_t ranks;            // in all; 0 = nodes * ranks_per_node, else the last node has the rest
    int32_t scale_up_ranks;   // that the scale-up fabric joins (72 on NVL72); 0 = ranks_per_node
    double scale_up_achieved; // what was measured of scale_up_bandwidth; 0 = not published
    double fp8_flops_peak;    // dense; 0 = the device has no fp8
    int32_t units;            // multiprocessors or compute units; 0 = unknown
    // How sure the figures are, for people: "" = a data sheet; else what is inferred or recalled.
    char confidence[2 * DP_NAME_MAX];
    // Beyond the scale-up domain, from inner to outer; none = one flat scale-out fabric.
    struct dp_cluster_level levels[DP_CLUSTER_LEVELS_MAX];
    int32_t levels_count;
    char hosts[DP_CLUSTER_HOSTS_MAX]; // names as a host list, in order; "" = node-0, node-1, ...
};

// `base_directory` is what topology = "FILE" hangs on; NULL refuses the key (dpctl inlines it
// before it sends a spec: the written form has the groups themselves). On DP_INVALID every problem
// is in diags (which the caller inits with the text and deinits).
dp_status dp_cluster_spec_parse_at(const char *text, size_t length, const char *base_directory,
                                   struct dp_diags *diags, struct dp_cluster_spec *ret_spec,
                                   struct dp_error *err);
// The same with base_directory NULL.
dp_status dp_cluster_spec_parse(const char *text, size_t length, struct dp_diags *diags,
                                struct dp_cluster_spec *ret_spec, struct dp_error *err);
// Reads and parses a file ("-" = standard input); err holds the rendered problems.
dp_status dp_cluster_spec_load(const char *path, struct dp_cluster_spec *ret_spec,
                               struct dp_error *err);
// Canonical TOML that parses back to the same spec.
void dp_cluster_spec_write(const struct dp_cluster_spec *spec, struct dp_buf *out);
// What is legal but odd, or not certain, one line each; nothing when all is well.
void dp_cluster_spec_warnings(const struct dp_cluster_spec *spec, struct dp_buf *out);
// What differs, a line for each key: "nodes: 128 -> 256", "level[0].bandwidth: 5e10 -> (none)".
void dp_cluster_spec_changes(const struct dp_cluster_spec *before,
                             const struct dp_cluster_spec *after, struct dp_buf *out);
// Accelerators in all, and those that one scale-up domain joins.
int32_t dp_cluster_ranks(const struct dp_cluster_spec *spec);
int32_t dp_cluster_domain_ranks(const struct dp_cluster_spec *spec);

// A cluster of `ranks` accelerators of one preset ("h800", "h100", ...; upper case and the names of
// data sheets such as H800-SXM or GB200-NVL72 are understood): whole hosts, the last one partly
// used when ranks say so. DP_NOT_FOUND lists the names.
dp_status dp_cluster_preset(const char *accelerator, int32_t ranks, struct dp_cluster_spec *ret,
                            struct dp_error *err);
const char *const *dp_cluster_preset_names(void); // ends with NULL
// The preset that a name or alias means, or NULL. ("H800-SXM" is "h800".)
const char *dp_cluster_preset_name(const char *name);
// The preset that a device's own name means ("NVIDIA H100 80GB HBM3"), or NULL.
const char *dp_cluster_preset_of_device(const char *device);

// Where one host stands. Domains and groups count from 1.
struct dp_cluster_node {
    char name[DP_NAME_MAX];
    int32_t ranks;                        // accelerators of it that are part of the cluster
    int32_t domain;                       // of the scale-up fabric
    int32_t group[DP_CLUSTER_LEVELS_MAX]; // of each level; 0 beyond levels_count
};
// Hosts in order: those of one group follow each other. Where the hosts do not fill whole scale-up
// domains, equal ones are used in part, by three quarters or more (64 of each of 16 NVL72 make
// 1024); where there are no such, as few as possible, of equal sizes but for one host. The caller
// frees *ret_nodes ([spec->nodes]).
void dp_cluster_nodes(const struct dp_cluster_spec *spec, struct dp_cluster_node **ret_nodes);
