// One thing that a rank did, with its time: what the executor records and what drawings show.
#pragma once

#include <stdint.h>

#include "dp/schedule.h"

// Kinds of span beyond dp_action_kind.
typedef enum dp_span_kind {
    DP_SPAN_WAIT = DP_ACTION_KIND_COUNT,  // waiting for a message of another pipeline rank
    DP_SPAN_GRADIENT_SYNC,                // gradient sums at the end of the step
    DP_SPAN_OPTIMIZER,
    DP_SPAN_OTHER,
    DP_SPAN_EVALUATION,                   // of held-out samples, between steps
    DP_SPAN_KIND_COUNT
} dp_span_kind;

// "F", "B", ..., "wait", "gradient sync", "optimizer", "other",
// "evaluation"; static.
const char *dp_span_kind_text(int kind);

struct dp_action_span {
    int32_t rank;             // pipeline rank p
    int32_t replica;          // data replica d
    uint8_t kind;             // dp_action_kind or dp_span_kind
    uint8_t b_kind;           // FB: DP_ACTION_B or DP_ACTION_I
    uint16_t stage;           // FB: of the forward part
    uint32_t microbatch;
    uint16_t b_stage;         // FB: of the backward part
    uint16_t reserved;
    uint32_t b_microbatch;
    int64_t step;
    int64_t start_ns, end_ns;  // of one clock for all spans that are drawn together
    // What it took to compute: without waits for expert-parallel peers and parts of later actions
    // that filled waits, with its own parts that ran inside earlier ones. 0 = not known.
    int64_t own_ns;
};
