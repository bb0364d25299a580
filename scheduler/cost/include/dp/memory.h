// Bytes of device memory of one rank: what stays for the whole run, and what chunks keep.
//
// Arithmetic only: no state, any thread. Conventions and sources of the formulas stand in
// docs/memory.md.
#pragma once

#include <stdint.h>

#include "dp/profile.h"
#include "dp/spec.h"
#include "dp/strategy.h"

struct dp_price_input;

// Parameters that one rank holds: split over tensor ranks, experts over their group as well.
struct dp_unit_parameters {
    double dense;   // copies on data x context ranks
    double experts; // copies on what is left of the position's ranks
};

// Of one unit (dp_unit) and one micro-batch.
struct dp_unit_bytes {
    struct dp_unit_parameters parameters;
    double after_forward; // kept from F until I or B
    double after_input;   // kept from I until W
    // Beyond what is kept, while an F, or an I or B, is inside this unit (logits, gradients of
    // activations, recomputed activations).
    double during_forward, during_backward;
};
void dp_memory_units(const struct dp_price_input *input, struct dp_unit_bytes *ret_units);

// What fills a rank at its fullest moment.
struct dp_memory_parts {
    double weights, gradients, optimizer;
    double activations; // of chunks between F and B or I
    double deferred;    // of chunks between I and W
    double transient;   // of the running action
    double exchange;    // buffers of the all-to-all and of hops
    double runtime;     // context, libraries, fragmentation
};
double dp_memory_total(const struct dp_memory_parts *parts);

// Fills weights, gradients, optimizer, exchange and runtime of a rank that holds `held` parameters;
// leaves the rest alone. Both directions of a bidirectional pipeline count as held.
void dp_memory_state(const struct dp_price_input *input, const struct dp_unit_parameters *held,
                     struct dp_memory_parts *ret_parts);
