// Shared by the files of placement.
#pragma once

#include "place.h"

// Runs of children that are alike.
struct dp_fabric_run {
    int32_t class_index, count;
};
// A host (no runs), or a block of blocks. The last class is the whole fabric.
struct dp_fabric_class {
    int32_t kind;               // of block
    int32_t slots;              // in all
    struct dp_fabric_run *runs; // owned
    int32_t runs_count;
};

// Dimensions as a mixed radix, innermost first: numbers of ranks in order of placement.
enum { PLACE_DIMS = 2 + DP_PLACE_DIM_COUNT };
struct dp_place_radix {
    // Tensor, context, expert's part of the replicas, the rest of them, position.
    int32_t tensor, context, expert, replica, pipeline;
    int64_t tensor_stride, context_stride, expert_stride, replica_stride, pipeline_stride;
    int64_t ranks;
};
void dp_place_radix_of(const struct dp_place_sizes *sizes, const struct dp_place_order *order,
                       struct dp_place_radix *ret_radix);

// Runs of consecutive ranks that are kept whole in each kind of block.
struct dp_place_units {
    int32_t whole[DP_FABRIC_BLOCKS_MAX + 1]; // the last one used: the whole fabric, 1
};
void dp_place_units_of(const struct dp_fabric *fabric, const struct dp_place_sizes *sizes,
                       const struct dp_place_order *order, struct dp_place_units *ret_units);
// Ranks that stand in a block of a class at most; `usable` is [classes_count].
void dp_place_usable(const struct dp_fabric *fabric, const struct dp_place_units *units,
                     int32_t *ret_usable);
