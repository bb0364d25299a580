// Shared by the files that read Slurm's topology.conf.
#pragma once

#include <stdbool.h>

#include "dp/topology.h"

// A switch, or a block of topology/block, as its line says.
struct dp_topology_switch {
    char *name;           // owned
    struct dp_hosts list; // hosts, or names of switches
    bool is_leaf;         // list holds hosts
    int line, column;     // of its name
    int list_line, list_column;
    // What links.
    size_t parent;                    // index + 1; 0 = none
    size_t first_child, next_sibling; // index + 1; children in the order they are listed
    int32_t level;                    // 0 = only hosts below it
    size_t hosts_below;
};

struct dp_topology_lines {
    struct dp_topology_switch *switches; // owned
    size_t count;
    size_t names; // of hosts and switches, in all lists together
    bool blocks;                                // topology/block
    int32_t block_sizes[DP_CLUSTER_LEVELS_MAX]; // hosts; BlockSizes
    int32_t block_sizes_count;
    int block_sizes_line, block_sizes_column;
};
void dp_topology_lines_deinit(struct dp_topology_lines *lines);
// Reads the text; problems go to diags.
void dp_topology_read_lines(const char *text, size_t length, struct dp_diags *diags,
                            struct dp_topology_lines *ret_lines);
// Links switches by name, and leaves out hosts that are not in `only`.
void dp_topology_link(struct dp_topology_lines *lines, const struct dp_hosts *only,
                      struct dp_diags *diags);
// Hosts and levels of linked switches, or of blocks.
void dp_topology_fill(const struct dp_topology_lines *lines, struct dp_diags *diags,
                      struct dp_topology *ret_topology);
