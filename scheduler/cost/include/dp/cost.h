// What work costs: operations, bytes and seconds of a stage on a device that was measured.
//
// Everything here is arithmetic: no clock, no state, any thread. Seconds rest on a dp_profile.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/error.h"
#include "dp/profile.h"
#include "dp/spec.h"

// Operations for one token (one multiply-add counts two), forward pass only; the backward pass is
// twice that. Matrix products are 2 per active parameter (input embedding excluded, head included);
// attention adds sequence * heads * (key width + value width) when causal, twice that when not.
struct dp_cost_flops_options {
    bool full_attention; // count the whole square instead of its causal half
    bool with_mtp;       // count multi-token-prediction layers, each with a head
};
double dp_cost_forward_flops_per_token(const struct dp_model_spec *model, int32_t sequence,
                                       const struct dp_cost_flops_options *options);
// Forward and backward together: three times the above (the convention of published TFLOP/s).
double dp_cost_flops_per_token(const struct dp_model_spec *model, int32_t sequence,
                               const struct dp_cost_flops_options *options);
// Of one layer alone, forward (the layer `model->layers` is an MTP layer's block), and of its
// attention's core, where a sliding window of w stands for the sequence as 2w - w^2 / sequence.
double dp_cost_layer_flops(const struct dp_model_spec *model, int32_t layer, int32_t sequence,
                           bool full_attention);
double dp_cost_attention_flops(const struct dp_model_spec *model, int32_t layer, int32_t sequence,
                               bool full_attention);

// A run of layers with what stands before and behind it.
struct dp_cost_stage {
    int32_t layer_begin, layer_end; // [begin, end)
    bool has_embedding, has_head;
    // Multi-token prediction behind the head, with a layer of its own, numbered model->layers.
    // Bytes and parameters count it, seconds do not.
    bool has_mtp;
};

// One micro-batch, and the EP group that shares its experts.
struct dp_cost_batch {
    int32_t samples, sequence;
    int32_t ep_size;
    int32_t ep_nodes;   // nodes that the group spans; 1 = no network between them
    uint32_t recompute; // DP_RECOMPUTE_*: what chunks do not keep
    uint32_t offload;   // DP_OFFLOAD_*: what waits in host memory between F and B or I
    bool save_fp8;      // rows that experts receive are kept in E4M3
    bool fp8;           // products take E4M3 operands, made in room of their own
    int32_t threads;    // of a rank's device; 0 = 1
    double imbalance;   // tokens of the fullest expert rank over their mean, for bytes; 0 = 1
};

// Seconds of one chunk, compute and all-to-all apart.
struct dp_cost_chunk {
    double forward_s, input_s, weight_s;            // compute: F, I, W; B is input + weight
    double forward_exchange_s, backward_exchange_s; // all-to-all of F, and of B or I
};
void dp_cost_chunk(const struct dp_model_spec *model, const struct dp_profile *profile,
                   const struct dp_cost_stage *stage, const struct dp_cost_batch *batch,
                   struct dp_cost_chunk *ret_chunk);
// Seconds of an overlapped pair: a forward of one chunk and a backward (input gradient only when
// !with_weight) of another. Without overlap it is their sum; with it, compute slowed by what the
// exchange takes of the device, against the exchange, plus what stays exposed.
double dp_cost_pair_s(const struct dp_profile *profile, const struct dp_cost_chunk *forward,
                      const struct dp_cost_chunk *backward, bool with_weight);

// Seconds on the sim device, from the job's own times (scaled). Layers of a stage add up; the
// embedding and head times are added to F, and to I and W in the proportion of a layer's.
struct dp_cost_sim_chunk {
    double forward_s, input_s, weight_s;
};
void dp_cost_sim_chunk(const struct dp_sim_spec *sim, const struct dp_cost_stage *stage,
                       struct dp_cost_sim_chunk *ret_chunk);
// A pair takes pair_s for each layer that both chunks have; what one has more runs alone, and
// without its W the pair is shorter by it, but never below the longer of F and I.
double dp_cost_sim_pair_s(const struct dp_sim_spec *sim, const struct dp_cost_stage *forward,
                          const struct dp_cost_stage *backward, bool with_weight);

// Bytes between neighbouring stages for one micro-batch: [samples * sequence, hidden].
double dp_cost_hop_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                         const struct dp_cost_batch *batch);
// Bytes that one rank sends to EP peers in one dispatch or combine of one MoE layer when routing is
// balanced: each of top_k copies leaves with probability (ep - 1) / ep. A profile with
// exchange_by_node sends one copy to each node that a token visits (to each rank, inside a node):
// n (1 - (1 - 1/n)^top_k) of n nodes, or top_groups of them when routing is limited.
double dp_cost_exchange_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                              const struct dp_cost_batch *batch);
// Parameters of a stage held by one EP rank: routed experts are split, the rest is replicated. A
// head with MTP that has no embedding beside it has a copy of it.
struct dp_cost_parameters {
    double shared, experts;
};
void dp_cost_stage_parameters(const struct dp_model_spec *model, const struct dp_cost_stage *stage,
                              int32_t ep_size, struct dp_cost_parameters *ret_parameters);
// Bytes of weights, gradients and optimizer state of a rank that holds `stages`. `data` replicas
// and `ep_size` say how an optimizer is split that is sharded, by choice or by the profile.
double dp_cost_state_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                           const struct dp_cost_stage *stages, int32_t stages_count,
                           int32_t ep_size, int32_t data, bool is_sharded);

// What one chunk keeps between F and I, and between I and W: dp_stage_chunk_bytes of the executor,
// for what this rank's experts received in each layer, that of MTP last (routed NULL = balanced
// routing). At the end of a pass its result is there as well, until it is sent.
struct dp_cost_routed {
    double tokens, rows; // each token once; once for each expert of this rank
    double busiest_rows; // of the expert of this rank that has most; 0 = an equal share
};
struct dp_cost_chunk_bytes {
    double after_forward, after_input;
    double end_of_forward, end_of_input;
};
// Beyond what a chunk keeps, at most, while a pass is inside one layer, or the head or embedding:
// results, rows between experts, what is computed again. Backward is a B whose W follows each I, or
// an I. All of the layer is on the device then: `away` is what of it is not in after_forward, and
// `attention` what its attention keeps. routed NULL = balanced routing.
struct dp_cost_during {
    double forward, backward;
    double away, attention;
};
void dp_cost_layer_during(const struct dp_model_spec *model, const struct dp_profile *profile,
                          const struct dp_cost_batch *batch, bool is_moe,
                          const struct dp_cost_routed *routed, struct dp_cost_during *ret_during);
void dp_cost_ends_during(const struct dp_model_spec *model, const struct dp_profile *profile,
                         const struct dp_cost_batch *batch, bool is_head,
                         struct dp_cost_during *ret_during);
// Likewise of MTP, all of it one unit: `away` is 0, since nothing of it is offloaded.
void dp_cost_mtp_during(const struct dp_model_spec *model, const struct dp_profile *profile,
                        const struct dp_cost_batch *batch, const struct dp_cost_routed *routed,
                        struct dp_cost_during *ret_during);
// Room that the passes of all stages of a rank share, and that of kernels: gradients that leave no
// pass, norms that are not kept, operands in another format.
struct dp_cost_holds {
    bool dense, moe, head, mtp; // layers with a dense FFN, layers with experts (MTP's too), ...
    double busiest_rows;        // of a micro-batch at one expert of this rank; 0 = balanced
};
double dp_cost_room_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                          const struct dp_cost_batch *batch, const struct dp_cost_holds *holds);
// Windows that EP peers write into: room for the worst routing, whatever comes of it (0 without
// peers). Nodes have equal shares of the group.
double dp_cost_windows_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                             const struct dp_cost_batch *batch);
void dp_cost_chunk_bytes(const struct dp_model_spec *model, const struct dp_profile *profile,
                         const struct dp_cost_stage *stage, const struct dp_cost_batch *batch,
                         const struct dp_cost_routed *routed,
                         struct dp_cost_chunk_bytes *ret_bytes);

// Seconds after the last action: a ring sum of `bytes` over `members`, and one optimizer step over
// `parameters`.
double dp_cost_sum_s(const struct dp_link_profile *link, double bytes, int32_t members);
double dp_cost_optimizer_s(const struct dp_profile *profile, double parameters);
