// Ranks as threads over verbs on fake devices, each with a configuration of its own.
#pragma once

#include "cluster.h"
#include "fake_verbs.h"

// Starts the fake with one device for each rank. NULL = no faults, plain devices, defaults.
void verbs_world_open(int32_t world, const struct fake_faults *faults,
                      const struct fake_device *devices, const struct dp_verbs_config *config,
                      struct dp_transport **ret_ends);
// Bytes that a key tells, and whether they are those.
void verbs_fill(unsigned char *bytes, size_t length, uint64_t key);
bool verbs_is_filled(const unsigned char *bytes, size_t length, uint64_t key);
