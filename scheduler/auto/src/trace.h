// The critical path of an order: the actions that its end waits for.
#pragma once

#include "order.h"

struct spot {
    int32_t rank;
    uint32_t at; // position in the rank's list
};

struct trace {
    uint32_t *forward_at, *backward_at;       // [chunks]: where their parts stand in their list
    uint32_t *forward_chunk, *backward_chunk; // by list position: which chunk its parts work on
    struct spot *path;                        // from the end to the start
    size_t count, capacity;
};

void dp_auto_trace_init(struct trace *ret_trace, const struct field *field);
void dp_auto_trace_deinit(struct trace *trace);
// Follows the order back from the end of the worst rank; `clock` has its spans.
void dp_auto_trace_run(struct trace *trace, const struct order *order, const struct clock *clock,
                       bool longest_span);
