// Made-up models for the search: costs of any shape, from a seed.
#pragma once

#include "dp/auto.h"

// What a random problem's costs are made of. The same stage on the same rank costs the same every
// time it is asked for.
struct made_model {
    uint64_t seed;
    int32_t batches;
    double b_share;       // B against I + W
    double pair_share;    // a pair against its parts
    double hop;           // most, seconds
    double wire;          // bytes/s of hops; 0 = no time for bytes
    double slow;          // of the last rank
    double head;          // of the last stage, besides its layers
    double cores;         // of the one host that all ranks are on; 0 = enough
    dp_sim_p2p p2p;
    bool has_memory;
    bool whole_numbers;   // seconds and bytes
    int32_t stages_only;  // refuse other numbers of stages; 0 = take all
    int calls;
};

uint64_t made_next(uint64_t *state);
double made_between(uint64_t *state, double low, double high);

void made_model_init(struct made_model *ret_model, uint64_t seed, int32_t batches);
// The costs callback of dp_auto_problem; context = struct made_model.
dp_status made_costs(void *context, const struct dp_schedule *shape,
                     struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                     struct dp_error *err);
