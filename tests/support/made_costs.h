// Costs that tests and benches make up.
#pragma once

#include "dp/simulate.h"

// fb = F + B and fi = F + I for every pair of slots: what a rank without overlap does.
static inline void costs_add_pairs(struct dp_sim_costs *costs)
{
    for (int32_t rank = 0; rank < costs->pipeline; rank++) {
        for (int32_t f = 0; f < costs->slots; f++) {
            for (int32_t b = 0; b < costs->slots; b++) {
                const double *forward = dp_sim_chunk_at(costs, rank, f)->seconds;
                const double *backward = dp_sim_chunk_at(costs, rank, b)->seconds;
                size_t pair = dp_sim_pair_index(costs, rank, f, b);
                costs->fb[pair] = forward[DP_ACTION_F] + backward[DP_ACTION_B];
                costs->fi[pair] = forward[DP_ACTION_F] + backward[DP_ACTION_I];
            }
        }
    }
}

// Every duration of one rank times `factor` (1.5 = half as slow again).
static inline void costs_slow_rank(struct dp_sim_costs *costs, int32_t rank, double factor)
{
    for (int32_t slot = 0; slot < costs->slots; slot++) {
        for (int kind = 0; kind < DP_ACTION_FB; kind++) {
            dp_sim_chunk_at(costs, rank, slot)->seconds[kind] *= factor;
        }
        for (int32_t other = 0; other < costs->slots; other++) {
            size_t pair = dp_sim_pair_index(costs, rank, slot, other);
            costs->fb[pair] *= factor;
            costs->fi[pair] *= factor;
        }
    }
}
