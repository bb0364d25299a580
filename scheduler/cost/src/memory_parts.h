// Shared by the files that count bytes on accelerators.
#pragma once

#include <stdbool.h>

#include "dp/memory.h"
#include "dp/price.h"

// What one rank sees of one micro-batch.
struct dp_memory_shape {
    const struct dp_model_spec *model;
    const struct dp_memory_traits *traits;
    uint32_t recompute;
    double tokens;   // of the rank's part of the sequence
    double split;    // of these, where norms and residuals are split over tensor ranks
    double sequence; // that attention looks at
    double rows;     // of routed experts
    double tensor, context, expert_tensor;
    double element; // bytes of an activation
    double operand; // bytes of what a matrix product keeps of its input
    bool eight_bit; // operands are copies in a format of their own
};
struct dp_memory_shape dp_memory_shape_of(const struct dp_price_input *input);

struct dp_memory_list {
    struct dp_memory_tensor tensors[DP_MEMORY_TENSORS_MAX];
    size_t count, ffn_begin; // where the FFN's begin
};
void dp_memory_list_unit(const struct dp_memory_shape *shape, int unit,
                         struct dp_memory_list *ret_list);

// Parameters of a unit on one rank; those that tensor ranks do not split count in full.
void dp_memory_unit_parameters(const struct dp_price_input *input, int unit,
                               struct dp_unit_parameters *ret_parameters);
// Of a profile of CPU cores: dp/cost.h.
void dp_memory_units_of_cpu(const struct dp_price_input *input, struct dp_unit_bytes *ret_units);
