// The order in which an action runs the components of its one or two chunks.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/model.h"

// One pass of one component.
struct program_op {
    bool backward; // of the chunk that goes backward
    uint8_t pass;  // dp_pass
    int32_t component;
};

struct program {
    struct program_op *ops; // owned
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

// Replaces what `program` holds. Either stage may be NULL. With both, their layers are paired from
// the first on (of the backward chunk: from its last), each pair interleaved; layers that only one
// of them has run alone. Each chunk sees the same order of its own passes as when it runs alone, so
// the results are the same bit for bit.
void dp_exec_program_build(struct program *program, const struct program_stage *forward,
                           const struct program_stage *backward, int backward_passes);
void dp_exec_program_deinit(struct program *program);
