// Copies in host memory of what one rank writes into one checkpoint.
#pragma once

#include "dp/checkpoint.h"

struct part {
    struct dp_saved_part saved; // its name is owned, its values are in the copies
    const void *from;           // device memory
    size_t bytes;
};

struct part_list {
    struct part *items; // owned
    int64_t count, room;
};

struct snapshot {
    struct part_list weights, moments;
    size_t bytes; // of both
    char *copies; // staging memory of the device
};

// Lists what is to be copied and allocates; DP_TOO_LARGE past the device's limit.
dp_status dp_snapshot_init(struct snapshot *snapshot, struct dp_device *device,
                           const struct dp_checkpoint_state *state, struct dp_error *err);
// Puts the copies into the stream's queue.
void dp_snapshot_copy(struct snapshot *snapshot, struct dp_device *device,
                      struct dp_stream *stream);
// Accepts zeros.
void dp_snapshot_deinit(struct snapshot *snapshot, struct dp_device *device);
