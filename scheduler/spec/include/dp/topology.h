// Names of hosts as Slurm writes them, and the switches that its topology.conf describes.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/diag.h"
#include "dp/error.h"
#include "dp/limits.h"

// Names in order; owned.
struct dp_hosts {
    char **names;
    size_t count;
};
void dp_hosts_deinit(struct dp_hosts *hosts);
// Appends what a host list means: "a,node[001-016,020],r[1-2]n[01-04]-ib". The numbers of a range
// have at least as many digits as its first one; of several brackets the last counts fastest.
// Refuses lists that are malformed and more than DP_NODES_MAX names in all, before it allocates.
// *ret_column (may be NULL): where the problem is, from 1.
dp_status dp_hosts_expand(const char *text, struct dp_hosts *hosts, int *ret_column,
                          struct dp_error *err);
// A host list that means exactly these names in this order, with ranges where numbers follow each
// other.
void dp_hosts_write(const struct dp_hosts *hosts, struct dp_buf *out);
// Whether a name stands in it twice; appends "host NAME is named twice" if so.
bool dp_hosts_find_twice(const struct dp_hosts *hosts, struct dp_buf *out);

// A level of switches, from the hosts up: how many hosts each group has, in the order of the hosts.
struct dp_topology_level {
    char name[DP_NAME_MAX]; // "leaf", "spine", "core"; "block"
    int32_t *sizes;         // owned
    size_t count;
};
// Hosts in the order of the tree. The outermost level joins all of them.
struct dp_topology {
    struct dp_hosts hosts;
    struct dp_topology_level levels[DP_CLUSTER_LEVELS_MAX];
    int32_t levels_count;
};
void dp_topology_deinit(struct dp_topology *topology);
// Reads SwitchName=, Nodes=, Switches= (topology/tree) or BlockName=, Nodes=, BlockSizes=
// (topology/block); other keys of these lines are ignored. `only` (may be NULL) leaves out all
// other hosts, and switches without any. On DP_INVALID every problem is in diags: cycles, switches
// that do not exist, hosts below two switches, hosts that no switch joins, lists that are malformed
// or too long.
dp_status dp_topology_parse(const char *text, size_t length, const struct dp_hosts *only,
                            struct dp_diags *diags, struct dp_topology *ret_topology,
                            struct dp_error *err);
