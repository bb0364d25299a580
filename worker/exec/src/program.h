// The order in which an action runs the components of its one or two chunks.
//
// A component that exchanges rows with expert-parallel peers runs in two halves: POST hands the
// rows over and does not wait, WAIT takes what has come and finishes the pass. What lies between is
// what hides the exchange. POSTs are in the same order on every peer, since they follow from the
// stages and the schedule alone.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/model.h"

typedef enum program_half {
    PROGRAM_OPEN, // the chunk's input, or the gradient of its output, comes in; no component
    PROGRAM_RUN,  // a whole pass of a component
    PROGRAM_POST,
    PROGRAM_WAIT,
} program_half;

struct program_op {
    uint8_t half;      // program_half
    uint8_t pass;      // dp_pass
    bool backward;     // of the chunk that goes backward
    int32_t component; // -1 for OPEN
};

struct program {
    struct program_op *ops; // owned
    // [count] of the executor, owned: the most memory that was in use while the op ran, beyond what
    // was before the action; -1 = it has not run in its turn yet.
    int64_t *most;
    size_t count, capacity;
};

// What a stage is made of.
struct program_stage {
    const struct dp_component *components;
    int32_t count;
    int32_t layer_begin, layer_end;
};

// Which passes of the backward chunk take part.
#define PROGRAM_INPUT 1
#define PROGRAM_WEIGHT 2

// Whether the pass exchanges rows, and so has halves.
bool dp_exec_program_exchanges(const struct dp_component *component, dp_pass pass);

// Replaces what `program` holds. Either stage may be NULL. With both, their layers are paired from
// the first on (of the backward chunk: from its last), each pair interleaved; layers that only one
// of them has run alone. Each chunk sees the same order of its own passes as when it runs alone, so
// the results are the same bit for bit.
void dp_exec_program_build(struct program *program, const struct program_stage *forward,
                           const struct program_stage *backward, int backward_passes);
// The same with nothing hidden: the forward chunk first, and every WAIT right behind its POST.
void dp_exec_program_build_sequential(struct program *program, const struct program_stage *forward,
                                      const struct program_stage *backward, int backward_passes);
void dp_exec_program_deinit(struct program *program);
