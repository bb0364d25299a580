// What a trace says of the layers that it shows: how long F, I, W, a pair of F and B, and the
// all-to-all take, what of it overlaps, and the figures of a profile that follow from it.
//
// Pure; any thread. `busy` is the union of kernels on one stream; a phase's `span` runs
// from its first kernel's start to its last one's end.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/json.h"
#include "dp/profile.h"
#include "dp/spec.h"
#include "dp/trace_read.h"

// The parts of an MoE layer, by the names of DeepSeek's profile-data: a range of a trace is one of
// these when its name ends so ("attn(F)", "layer 3 attn(F)").
typedef enum dp_phase {
    DP_PHASE_ATTN_F,
    DP_PHASE_DISPATCH_F,
    DP_PHASE_MLP_F,
    DP_PHASE_COMBINE_F,
    DP_PHASE_COMBINE_B, // sends as a dispatch does
    DP_PHASE_MLP_B,
    DP_PHASE_DISPATCH_B, // sends as a combine does
    DP_PHASE_MLP_W,
    DP_PHASE_ATTN_B,
    DP_PHASE_ATTN_W,
    DP_PHASE_COUNT
} dp_phase;
const char *dp_phase_text(dp_phase phase);
// DP_PHASE_COUNT when it is none.
dp_phase dp_phase_of(const char *range_name);

// Seconds of one layer: means over its occurrences.
struct dp_phase_fit {
    int32_t count; // occurrences; 0 = the trace has none
    double span_s;
    double busy_s;                          // compute on the stream that has most of it
    double auxiliary_s;                     // compute on other streams meanwhile
    double compute_s;                       // at least one stream computes
    double exchange_s;                      // communication kernels
    double data_s;                          // of these, what moves data: without waits for peers
    double by_kind_s[DP_KERNEL_KIND_COUNT]; // kernels; those of compute make up compute_s
};

typedef enum dp_pass { DP_PASS_FORWARD, DP_PASS_INPUT, DP_PASS_WEIGHT, DP_PASS_COUNT } dp_pass;

struct dp_trace_fit {
    struct dp_phase_fit phases[DP_PHASE_COUNT];
    int32_t layers; // pairs of a forward and a backward layer that the figures are means of
    bool annotated; // F, I and W are told apart by ranges; else by kernels' names
    bool paired;    // forward and backward layers overlap: pair_s is known

    double wall_s;         // from the first kernel that counts to the last
    double compute_busy_s; // at least one stream computes
    double exchange_busy_s;
    double exposed_s;    // wall without compute
    double hidden_share; // of exchange_busy_s: while something computes

    // Seconds of one layer, compute alone, on its main stream. Without ranges input_s is the whole
    // backward pass and weight_s 0; without ranges and paired, forward_s is all of a pair.
    double forward_s, input_s, weight_s;
    double weight_wall_s;                // of W, its other streams counted as well
    double pair_s;                       // wall time of an overlapped pair of layers; 0 = not known
    double forward_data_s, input_data_s; // all-to-all data of a forward and a backward layer
    double forward_wait_s, input_wait_s; // and what the all-to-all's kernels wait for peers
    double by_kind_s[DP_PASS_COUNT][DP_KERNEL_KIND_COUNT]; // of one layer
    int32_t exchange_units; // multiprocessors of the all-to-all, by its grid; 0 = unknown
};

// DP_INVALID when the trace has nothing of a layer in it, with what it has instead.
dp_status dp_trace_fit(const struct dp_trace *trace, struct dp_trace_fit *ret_fit,
                       struct dp_error *err);
// The form "dp.trace_fit/1", and for people.
json_t *dp_trace_fit_to_json(const struct dp_trace_fit *fit);
void dp_trace_fit_render(const struct dp_trace_fit *fit, struct dp_buf *out);

// What was run while the trace was made.
struct dp_trace_run {
    const struct dp_model_spec *model;
    int32_t sequence, samples; // of a micro-batch on this rank
    int32_t tensor, expert;    // sizes of their groups
    int32_t domain;            // ranks of one scale-up domain
    dp_format format;          // of the products
    uint32_t recompute;        // what the backward pass computes again
};
// What became of one figure.
struct dp_trace_change {
    char figure[DP_NAME_MAX];
    double before, after;
};
enum { DP_TRACE_CHANGES_MAX = 16 };
// Turns the fit into the figures of `base`, so that pricing one MoE layer of this run gives what
// was measured: rates of products by format, of the attention core, of elementwise work, of the
// exchange, its share of the device and its slowdown beside compute. What the trace does not show
// stays as it is. *ret_changes: [DP_TRACE_CHANGES_MAX].
dp_status dp_trace_profile(const struct dp_trace_fit *fit, const struct dp_trace_run *run,
                           const struct dp_profile *base, struct dp_profile *ret_profile,
                           struct dp_trace_change *ret_changes, int32_t *ret_count,
                           struct dp_error *err);
