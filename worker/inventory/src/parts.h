// Shared by the files of this module.
#pragma once

#include "dp/inventory.h"

// What can be shown and sent: other bytes become "?".
void dp_inventory_copy(char *target, size_t size, const char *text);

// nvml.c: gpus, driver_version and error; numa_node stays -1.
void dp_inventory_ask_nvml(const char *library, struct dp_inventory *inventory);

// sysfs.c
void dp_inventory_read_ports(const char *root, struct dp_inventory *inventory);
void dp_inventory_read_numa(const char *root, struct dp_inventory *inventory);
// The NUMA node of a PCI device, -1 = unknown.
int32_t dp_inventory_numa_of_device(const char *root, const char *bus_id);
