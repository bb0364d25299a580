// What a node has inside: accelerators as NVIDIA's management library (NVML) describes them,
// InfiniBand and RoCE ports and NUMA nodes as the kernel does.
//
// Nothing is linked: NVML is loaded when it is there, and every one of its functions may be missing
// or fail. What cannot be asked is left empty and said in `error`; it never makes the rest fail. A
// driver may take seconds: any thread, not one that others wait for.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/limits.h"

#define DP_INVENTORY_NVML "libnvidia-ml.so.1"

struct dp_inventory_gpu {
    uint32_t index;
    char name[DP_NAME_MAX]; // "NVIDIA H100 80GB HBM3"
    char uuid[DP_NAME_MAX];
    char bus_id[DP_NAME_MAX]; // of PCI: "00000000:1b:00.0"
    uint64_t memory_bytes;
    int32_t numa_node;                    // -1 = unknown
    char compute_capability[DP_NAME_MAX]; // "9.0"
    bool mig;                             // split into instances
    uint32_t mig_instances;
    uint32_t links; // of NVLink that are up
    // Accelerators with the same fabric and clique are joined by NVLink; "" = unknown or alone.
    char fabric[DP_NAME_MAX];
    uint32_t clique;
    char error[DP_INVENTORY_TEXT_MAX]; // what could not be asked; "" = nothing
};

struct dp_inventory_port {
    char adapter[DP_NAME_MAX]; // "mlx5_0"
    uint32_t port;
    char state[DP_NAME_MAX], physical_state[DP_NAME_MAX]; // "ACTIVE", "LinkUp"
    char rate[DP_NAME_MAX];                               // "400 Gb/sec (4X NDR)"
    double bytes_per_s;                                   // nominal, one direction; 0 = unknown
    char link_layer[DP_NAME_MAX];                         // "InfiniBand", "Ethernet"
    int32_t numa_node;                                    // -1 = unknown
};

struct dp_inventory_numa {
    uint32_t id;
    char cpus[DP_INVENTORY_TEXT_MAX]; // "0-55,112-167"
    uint64_t memory_bytes;
};

struct dp_inventory {
    struct dp_inventory_gpu *gpus; // owned, as the others
    size_t gpus_count;
    struct dp_inventory_port *ports;
    size_t ports_count;
    struct dp_inventory_numa *numa;
    size_t numa_count;
    char driver_version[DP_NAME_MAX];
    // Why no accelerators are listed although NVML is there; "" = they are, or there is no NVML.
    char error[DP_INVENTORY_TEXT_MAX];
};

// Reads everything. root: "" for this machine, else a directory that holds its sys/. library: NVML
// under another name or path; NULL = DP_INVENTORY_NVML. A driver may take its time, or hang: call
// it from a thread that can wait. The caller deinits *ret_inventory.
void dp_inventory_read(const char *root, const char *library, struct dp_inventory *ret_inventory);
void dp_inventory_deinit(struct dp_inventory *inventory);
