// Small kernels that show what the emulator sees: right ones, and ones that are wrong on purpose.
#pragma once

#include <stdint.h>

#include "cuda_device.h"

enum probe_kind {
    PROBE_NOTHING,
    PROBE_ORDER,          // out[turn] = thread
    PROBE_COUNT_ATOMIC,   // out[0] += 1 by all threads
    PROBE_COUNT_PLAIN,    // the same without an atomic: a race
    PROBE_REVERSE,        // out = in reversed within a block, through shared memory
    PROBE_REVERSE_RACING, // the same without the barrier
    PROBE_WARPS,          // meetings of lanes
    PROBE_NAMED,          // a warp makes numbers, another takes them, by barriers 1 and 2
    PROBE_SPILLED,        // a store past the end of device memory
    PROBE_SPILLED_SHARED, // past the end of dynamic shared memory
    PROBE_HOST,           // a load of host memory
    PROBE_MISALIGNED,
    PROBE_UNMET_BARRIER, // one warp waits at a barrier for two
    PROBE_UNMET_LANE,    // half of a warp waits for the other half, which does something else
    PROBE_ABSENT_LANE,   // a shuffle from a lane that is not there
    PROBE_LONELY_SPIN,   // waits for a flag that nobody sets
    PROBE_TRAP,
};

struct probe {
    enum probe_kind kind;
    uint32_t *out, *flag;
    const uint32_t *in;
    uint32_t count; // of out
};

// A grid of `blocks` times `threads`.
void probe_launch(struct dp_stream *stream, const struct probe *probe, unsigned blocks,
                  unsigned threads, unsigned shared_bytes);

// Rings of `slots` words, one for each block: a sender's kernel writes 1 to `count`, a receiver's
// adds them up into sums[block]. A careless sender tells of a word by an atomic that releases
// nothing.
struct probe_ring {
    uint32_t *words, *heads, *tails, *sums;
    uint32_t slots, count;
    bool careless;
};
void probe_send(struct dp_stream *stream, const struct probe_ring *ring, unsigned blocks);
void probe_receive(struct dp_stream *stream, const struct probe_ring *ring, unsigned blocks);
