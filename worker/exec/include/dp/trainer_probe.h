// An active probe between two steps: what a rank's products and links can do while nothing else
// runs. One call takes a tenth of a second and a few messages for each neighbour.
#pragma once

#include <stdint.h>

#include "dp/error.h"
#include "dp/trainer.h"

#define DP_PROBE_LINKS_MAX 64

struct dp_probe_link {
    int32_t peer;       // world rank
    int64_t latency_ns; // one way, of a short message: half of the quickest round trip of a few
    double bytes_per_s; // of one long message, there and back
};

struct dp_probe {
    int64_t product_ns;          // of one product, over so many that a processor's quota shows
    int64_t product_off_core_ns; // of it, the thread was on no core; sim, accelerators: 0
    double product_flops;        // of one
    struct dp_probe_link links[DP_PROBE_LINKS_MAX];
    int32_t links_count;
};

// Every rank of the world calls it between the same two steps; `step` is the one just done. All
// time their products at once, as they compute at once; then neighbours in the pipeline measure
// their links, each rank one at a time. A sim rank says what its plan and its slowness
// (dp/sim_pace.h) would make of it. Both ends of a link say the same.
// Fails like a step when a peer is gone: the transport is aborted.
dp_status dp_trainer_probe(struct dp_trainer *trainer, int64_t step, struct dp_probe *ret_probe,
                           struct dp_error *err);
