// Bytes of device memory of one rank: what stays for the whole run, and what chunks keep.
//
// Arithmetic only: no state, any thread. Conventions and sources of the formulas stand in
// docs/memory.md.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "dp/profile.h"
#include "dp/spec.h"
#include "dp/strategy.h"

struct dp_price_input;
struct dp_stage_units;

// Parameters that one rank holds: split over tensor ranks, experts over their group as well.
struct dp_unit_parameters {
    double dense;   // copies on data x context ranks
    double experts; // copies on what is left of the position's ranks
    // Of these, one weight of each shape: of a layer's attention, and of the rest of it.
    double attention_shapes, shapes;
    double largest_dense, largest_experts; // of one unit: what FSDP gathers at a time
};

// Of one unit (dp_unit) and one micro-batch.
struct dp_unit_bytes {
    struct dp_unit_parameters parameters;
    double after_forward; // kept from F until I or B
    double after_input;   // kept from I until W
    // Beyond what is kept, while an F, or an I or B, is inside this unit (logits, gradients of
    // activations, recomputed activations).
    double during_forward, during_backward;
    double result; // of a pass that ends with this unit: there until it is sent
};
void dp_memory_units(const struct dp_price_input *input, struct dp_unit_bytes *ret_units);

// One tensor, or tensors of one kind, that a unit keeps for one micro-batch.
struct dp_memory_tensor {
    const char *name;
    double elements; // on this rank
    double bytes;    // of one element, from F until I or B
    double deferred; // of one element, from I until W
    bool recomputed; // the strategy does not keep it after F
};
enum { DP_MEMORY_TENSORS_MAX = 48 };
// Fills at most DP_MEMORY_TENSORS_MAX tensors of a unit of an accelerator and returns how many; 0
// for a profile that is none.
size_t dp_memory_tensors(const struct dp_price_input *input, int unit,
                         struct dp_memory_tensor *ret_tensors);

// Of one chunk: a stage's units together. Peaks count from before the action.
struct dp_chunk_bytes {
    double after_forward, after_input;
    double forward_peak;  // of F; at least after_forward
    double backward_peak; // of B
    double input_peak;    // of I
};
// units[dp_unit] as dp_memory_units gives them.
void dp_memory_chunk(const struct dp_unit_bytes *units, const struct dp_stage_units *stage,
                     struct dp_chunk_bytes *ret_chunk);
// Parameters of a rank that holds `stages`. A tied head and MTP layers need the embedding: a rank
// that has them without it holds a copy.
void dp_memory_held(const struct dp_price_input *input, const struct dp_unit_bytes *units,
                    const struct dp_stage_units *stages, int32_t stages_count,
                    struct dp_unit_parameters *ret_held);

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
// leaves the rest alone. Both directions of a bidirectional pipeline count as held, and `copies` is
// then 2: positions of one pipeline that hold the same parameters; else 1.
void dp_memory_state(const struct dp_price_input *input, const struct dp_unit_parameters *held,
                     int32_t copies, struct dp_memory_parts *ret_parts);
