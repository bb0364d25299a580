// The cuda device's kernels as a device whose memory and threads the emulator makes up. No matrix
// products, no streams but its own; a failure of the emulator is a failure of the stream.
#pragma once

#include <stdbool.h>

#include "dp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dp_device *emulated_device_open(dp_element element);
void emulated_device_close(struct dp_device *device);

// How threads take turns from now on (emulate.h).
void emulated_device_schedule(uint64_t seed, bool weak_stores);

#ifdef __cplusplus
}
#endif
