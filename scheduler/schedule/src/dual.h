// The order of work that DualPipe and DualPipeV share. Each rank has two slots: A is the stream
// that entered at the nearer end, Z the other one. (deepseek-ai/DualPipe, dualpipe.py and
// dualpipev.py: both follow these eight steps.)
#pragma once

#include "build.h"

struct dual {
    int32_t half;         // H: ranks from the entry to the turn; P/2 for DualPipe, P for DualPipeV
    int32_t microbatches; // N: micro-batches per slot
    int32_t depth;        // h: this rank's distance from the entry, 0 to H-1
    int32_t stage[2];     // of slots A and Z
    int32_t first[2];     // micro-batch with which the slot's stream starts
    bool full_cool_down;  // steps 6 to 8 run full backwards instead of I and W
};

enum { DUAL_A = 0, DUAL_Z = 1 };

// Actions of one rank: 2N forwards, 2N backwards of which 2H-h-1 are split, less the pairs.
size_t dp_schedule_dual_actions_max(int32_t half, int32_t microbatches);
// Adds the rank's actions. Needs N >= 2H-1.
void dp_schedule_dual_add_rank(struct build *build, const struct dual *dual);
