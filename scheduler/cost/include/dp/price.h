// What one micro-batch costs on the parts that stages are made of, for one way of dividing a model.
//
// Prices are taken once for (model, profile, strategy, spans) and added up for any split of layers
// into stages: a planner prices thousands of splits and schedules with a few dozen of these calls.
// Arithmetic only: no clock, no state, any thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/limits.h"
#include "dp/memory.h"
#include "dp/profile.h"
#include "dp/spec.h"
#include "dp/strategy.h"

// How a group of ranks that talk to each other stands on the fabric.
struct dp_span {
    int32_t ranks;  // members
    int32_t inside; // members that share one scale-up domain, where they are most: 1 to ranks
    int32_t level;  // outermost level it crosses: 0 scale-up only, 1 scale-out, 2.. the cluster's
                    // levels beyond
};

struct dp_spans {
    struct dp_span tensor, context, expert;
    struct dp_span data;        // holders of the same dense parameters (data x context ranks)
    struct dp_span expert_data; // holders of the same experts
    struct dp_span hop;         // neighbours in the pipeline: 2 ranks
};
// Ranks in the order tensor, context, expert and data, pipeline (innermost first) on domains of
// `domain` accelerators: what a cluster without better placement gives.
void dp_spans_default(const struct dp_strategy *strategy, int32_t domain,
                      struct dp_spans *ret_spans);

struct dp_price_input {
    const struct dp_model_spec *model; // borrowed, as is all of this
    const struct dp_profile *profile;
    const struct dp_strategy *strategy;
    struct dp_spans spans;
    int32_t sequence; // tokens per sample, over all context ranks
};

// Parts of stages.
typedef enum dp_unit {
    DP_UNIT_DENSE, // a layer with a dense FFN
    DP_UNIT_MOE,   // a layer with experts
    DP_UNIT_EMBEDDING,
    DP_UNIT_HEAD, // final norm, logits and loss
    DP_UNIT_MTP,  // one multi-token-prediction layer with its own pass through the head
    DP_UNIT_COUNT
} dp_unit;

// Seconds of one micro-batch on one rank.
struct dp_unit_price {
    // Compute on the whole device with what starts it; recomputation is in input_s.
    double forward_s, input_s, weight_s;
    // Collectives of tensor, sequence and context parallelism and gathers of FSDP that compute
    // waits for, in a forward and in a backward pass.
    double forward_wait_s, backward_wait_s;
    // All-to-all of the experts alone on the fabric: dispatch and combine, and of a backward pass.
    double forward_exchange_s, backward_exchange_s;
    double flops; // of a forward pass, for what the bounds and MFU need
};

// Of a chunk: the sum over its stage's units, and what every action costs besides.
struct dp_chunk_price {
    double forward_s, input_s, weight_s;
    double forward_wait_s, backward_wait_s;
    double forward_exchange_s, backward_exchange_s;
};

struct dp_stage_units {
    int32_t count[DP_UNIT_COUNT];
};
// Layers [begin, end) of `stages`: the first has the embedding, the last head and MTP layers.
struct dp_stage_units dp_stage_units_of(const struct dp_model_spec *model, int32_t layer_begin,
                                        int32_t layer_end, bool is_first, bool is_last);

// Of an FB: what the exchange takes of the device, how much longer it takes beside compute, and
// the share of it that nothing can hide.
struct dp_pair_mode {
    int32_t units;
    double device_share, exchange_factor, exposed_share;
    // What both results of an FB, on their way to other stages, add to the exchange on its link.
    double hops_s;
};

struct dp_price {
    struct dp_unit_price units[DP_UNIT_COUNT];
    struct dp_unit_bytes bytes[DP_UNIT_COUNT];
    double action_overhead_s;
    // Seconds of one hop between neighbouring stages, and its bytes per rank.
    double hop_s, hop_bytes;
    int32_t comm_units; // multiprocessors that FB leaves to communication: given, or the best for
                        // a pair of MoE layers; 0 = none are set apart
    // How an FB may run; the first is that of comm_units. A pair runs in the best of them.
    struct dp_pair_mode pair_modes[DP_PAIR_MODES_MAX];
    int32_t pair_modes_count;
};
void dp_price_units(const struct dp_price_input *input, struct dp_price *ret_price);

void dp_price_chunk(const struct dp_price *price, const struct dp_stage_units *stage,
                    struct dp_chunk_price *ret_chunk);
// An F, I, W or B alone: what the rank is busy for.
double dp_price_forward_s(const struct dp_chunk_price *chunk);
double dp_price_input_s(const struct dp_chunk_price *chunk);
double dp_price_weight_s(const struct dp_chunk_price *chunk);
// An overlapped pair; ret_exposed_s (may be NULL): what of it is communication that compute waits
// for. Never less than the longer of its compute and its exchange.
double dp_price_pair_s(const struct dp_price *price, const struct dp_chunk_price *forward,
                       const struct dp_chunk_price *backward, bool with_weight,
                       double *ret_exposed_s);

// After the last action of a step, of a rank that holds these parameters: what of the gradients'
// reduction (and the weights' gather) is exposed, and the optimizer's update.
struct dp_step_end {
    double gradient_s, optimizer_s;
};
// `copies` positions of a pipeline hold the same (2 where it has two directions, as in
// dp_memory_state), and all of what a rank holds is reduced over all holders.
void dp_price_step_end(const struct dp_price_input *input, const struct dp_unit_parameters *held,
                       int32_t copies, struct dp_step_end *ret_end);

// Rows of the fullest expert rank over their mean that prices count with: the strategy's, or what
// the profile's routing_spread makes of it.
double dp_price_imbalance(const struct dp_price_input *input);

// Error of the step to expect, as a share: the profile's for this kind of model, and in quadrature
// what each kind of extrapolation adds (those that dp_price_warnings tells of).
double dp_price_error_share(const struct dp_price_input *input);

// Lines for people, appended to `out`: the figures that these prices rest on, by their source; and
// where the question lies beyond what they were fitted on, or on what is assumed.
void dp_price_provenance(const struct dp_price_input *input, struct dp_buf *out);
void dp_price_warnings(const struct dp_price_input *input, struct dp_buf *out);
