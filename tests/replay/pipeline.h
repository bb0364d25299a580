// Makes traces of pipelines by carrying out what the workers do, for tests: an independent second
// implementation of the rules that the replay follows, by relaxation until nothing moves.
#pragma once

#include "dp_test.h"

#include "dp/replay.h"

struct pipeline {
    int32_t replicas, stages, chunks, microbatches, steps;
    // Forwards before the first backward: 0 = all of them; 1 = as in 1F1B; 2 = about twice as many.
    // The latter two are for one chunk.
    int32_t eagerness;
    bool overlap; // a chunk's gradients are summed after its last backward, and another sum follows
};

// One operation with its own time, waiting not counted.
struct planned {
    int32_t step, dp_rank, stage, seq, chunk, microbatch;
    dp_replay_kind kind;
    double own;
};

struct plan {
    struct pipeline pipeline;
    struct planned *ops; // owned; of all steps, step by step, replica by replica, the same in each
    size_t count, per_lane;
    int32_t *index; // owned; within a lane, by stage, kind and number; -1 = no such operation
};

// Everything that happens, with own times of zero.
struct plan plan_make(struct pipeline pipeline);
void plan_deinit(struct plan *plan);
// When everything starts and ends, as a trace; rank = dp_rank * stages + stage. ret_step_s gets
// each step's seconds and may be NULL. Caller frees.
struct dp_replay_op *plan_run(const struct plan *plan, double *ret_step_s);
// Mean seconds of a step when operations take `own` instead ([count]).
double plan_step(const struct plan *plan, const double *own);
