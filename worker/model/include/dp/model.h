// A stage of the model as a list of components, and chunks: one micro-batch in flight through it.
//
// A stage holds the weights and gradients of a run of layers. Its components are, in order:
//   EMBEDDING                                     (first stage)
//   ATTENTION, FFN                                (each dense layer)
//   ATTENTION, DISPATCH, EXPERTS, COMBINE         (each MoE layer)
//   HEAD                                          (last stage)
//   MTP                                           (last stage, of a model with mtp_layers)
// ATTENTION has its norm and residual; DISPATCH has the FFN norm, the router and the way of rows to
// their experts; EXPERTS has the routed experts and the shared one; COMBINE is the way back and the
// residual. Each runs in three passes: FORWARD, then INPUT (input gradient, from the last component
// to the first), then WEIGHT (adds to the stage's gradients; from the last component to the first,
// at any time after the component's INPUT, other chunks in between or not).
//
// There is no transport here. DISPATCH and COMBINE hand the rows to the stage's exchanger
// (dp/exchanger.h): `begin` of FORWARD and INPUT posts the move and returns, `end` waits for it and
// finishes the pass:
//
//   dp_chunk_begin(chunk, pass, component, err);
//   anything else, dp_chunk_ready(chunk, pass, component) says whether end would wait
//   dp_chunk_end(chunk, pass, component, err);
//
// Other components of other chunks, and other moves, may run between begin and end. All EP peers
// begin the same passes of the same components in the same order, also those whose experts get no
// token. With an EP size of 1 nothing leaves the stage and end never waits.
//
// A stage and its chunks belong to one thread at a time. Ranks that are threads have a device each.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/device.h"
#include "dp/error.h"
#include "dp/exchanger.h"
#include "dp/spec.h"
#include "dp/strategy.h"

typedef enum dp_component_kind {
    DP_COMPONENT_EMBEDDING,
    DP_COMPONENT_ATTENTION,
    DP_COMPONENT_FFN,
    DP_COMPONENT_DISPATCH,
    DP_COMPONENT_EXPERTS,
    DP_COMPONENT_COMBINE,
    DP_COMPONENT_HEAD,
    DP_COMPONENT_MTP,
} dp_component_kind;

typedef enum dp_pass { DP_PASS_FORWARD, DP_PASS_INPUT, DP_PASS_WEIGHT } dp_pass;

struct dp_component {
    dp_component_kind kind;
    int32_t layer; // of the whole model; -1 for EMBEDDING, HEAD and MTP
};

// One parameter tensor, at the same place in the weights and in the gradients. Names are of the
// whole model: "embedding", "layers.3.attention.q", "layers.3.router", "layers.3.experts.5.gate",
// "layers.3.shared.down", "head.norm", "head.output", ...
struct dp_tensor {
    char name[DP_NAME_MAX];
    int64_t offset, count; // elements
    int64_t rows, cols;    // [output, input]; norms are [1, hidden]
    bool is_expert;        // held by one EP rank: summed over the expert-data group only
    bool decays;           // weight decay applies (norms: no)
    // Another slot of the EP group stands for the same expert: not written, and not counted again.
    // Names of experts and this change with dp_stage_set_placement.
    bool is_copy;
    bool is_tied;          // the same parameters lie in another stage as well: one sum over both
};

// Memory that the stages of one rank hand each other: activations that are free, and the room that
// passes work in. Its stages belong to one thread, have the same `poison`, and are freed before it.
struct dp_workspace;
struct dp_workspace *dp_workspace_new(struct dp_device *device, bool poison); // device: borrowed
void dp_workspace_free(struct dp_workspace *workspace);                       // NULL is none
// Bytes of device memory that chunks and running passes have of it, and the most they had since the
// last call.
void dp_workspace_bytes(struct dp_workspace *workspace, int64_t *ret_now, int64_t *ret_most);

struct dp_stage_config {
    struct dp_model_spec model;
    int32_t layer_begin, layer_end; // [begin, end) of the whole model
    bool has_embedding, has_head;
    int32_t ep_rank, ep_size; // this rank holds slots [ep_rank, ep_rank + 1) * slots / ep_size
    // Of a layer over the EP group, one an expert or more; 0 = E. EP sizes above 1.
    int32_t expert_slots;
    int32_t sequence;         // tokens per sample
    uint64_t seed;            // of the initial weights
    // What INPUT computes again instead of keeping it: DP_RECOMPUTE_* of dp/strategy.h. Results are
    // the same bits whatever it is.
    uint32_t recompute;
    // Rows that experts receive are kept in E4M3 with a scale for each 128 of a row, and the
    // experts read what that leaves of them, FORWARD as well.
    bool save_fp8;
    // DP_OFFLOAD_* of dp/strategy.h: copied out when a layer's FORWARD is over, and back while the
    // layer behind it goes backward, by a stream of its own. What waits in host memory is not live.
    uint32_t offload;
    // Products of attention's projections and of FFNs take E4M3 operands with scales, forward and
    // backward (fp8 block recipe of DeepSeek-V3, arXiv 2412.19437); rows go to other ranks' experts
    // as such. Devices of bf16 or fp32.
    bool fp8;
    // Moves rows between EP peers; borrowed, outlives the stage's chunks. NULL: an EP size of 1, or
    // a stage whose MoE layers are never run.
    struct dp_exchanger *exchanger;
    struct dp_workspace *workspace; // borrowed; NULL: the stage has one of its own
    // Tests: new activation buffers are filled with NaN.
    bool poison;
};

struct dp_stage;

// Weights are drawn from (seed, tensor name): normal with deviation 0.02, divided by
// sqrt(2 * layers) where the output joins the residual; norms are 1. Gradients start as zeros.
// Refuses with the reason: DP_UNSUPPORTED, what is not run (several layers of multi-token
// prediction, fp8 products of double); DP_INVALID, shapes that do not fit (heads that kv_heads does
// not divide, an EP size that does not divide the experts, a top_k above what the groups hold, no
// layers). The device's errors are those of its memory. The device is borrowed and outlives the
// stage.
dp_status dp_stage_new(struct dp_device *device, const struct dp_stage_config *config,
                       struct dp_stage **ret_stage, struct dp_error *err);
// After all its chunks are freed.
void dp_stage_free(struct dp_stage *stage);

const struct dp_stage_config *dp_stage_config(const struct dp_stage *stage);
struct dp_device *dp_stage_device(const struct dp_stage *stage);
int32_t dp_stage_component_count(const struct dp_stage *stage);
const struct dp_component *dp_stage_component(const struct dp_stage *stage, int32_t index);
const char *dp_component_kind_text(dp_component_kind kind);

// The table of tensors, those that every EP rank has first, then this rank's experts.
const struct dp_tensor *dp_stage_tensors(const struct dp_stage *stage, int32_t *ret_count);
// Elements in all, and where the expert tensors start: [0, expert_offset) is summed over all
// replicas, [expert_offset, count) over the expert-data group.
int64_t dp_stage_parameter_count(const struct dp_stage *stage);
int64_t dp_stage_expert_offset(const struct dp_stage *stage);
// One flat buffer each, in device memory, of the device's reals; owned by the stage. These are the
// master weights: on a device whose elements are shorter, products read rounded copies.
void *dp_stage_weights(struct dp_stage *stage);
void *dp_stage_gradients(struct dp_stage *stage);
void dp_stage_zero_gradients(struct dp_stage *stage);
// The weights have changed: whoever writes them calls it before the next FORWARD, with no chunk in
// flight. Rounds the copies anew, those in E4M3 too.
void dp_stage_refresh(struct dp_stage *stage);

// Routers are balanced without a loss by a bias of each expert's score, which moves against its
// load after each step (Wang et al., arXiv 2408.15664). Layers are of the whole model. The bias:
// reals [experts] in device memory, zeros at first; NULL for dense layers and where the model has
// neither a bias_update nor DP_BIAS_ROUTER, with which it stays as it was loaded.
void *dp_stage_router_bias(struct dp_stage *stage, int32_t layer);
// How many of this rank's tokens chose each expert of the whole model [experts], in FORWARDs since
// the caller last set it to 0; chunks with a loss_scale of 0 and what is computed again do not
// count. Host memory; NULL for dense layers.
int64_t *dp_stage_expert_counts(struct dp_stage *stage, int32_t layer);

// Experts lie in slots, the EP ranks' equal shares in order. At first slot s holds expert s % E.
// A token's n-th choice of an expert that has copies goes to one after the other in turn: copies of
// an expert have the same weights, which whoever updates them sees to (dp/optim.h).
int32_t dp_stage_slots(const struct dp_stage *stage);
// The expert in each slot; NULL for dense layers. Layers are of the whole model.
const int32_t *dp_stage_placement(const struct dp_stage *stage, int32_t layer);
// Where the parameters of this rank's i-th slot begin, gate, up and down of as many elements in
// all; the same on all EP peers.
int64_t dp_stage_slot_offset(const struct dp_stage *stage, int32_t layer, int32_t i);
int64_t dp_stage_slot_elements(const struct dp_stage *stage);
// Between steps, with no chunk in flight, by all EP peers alike; EP sizes above 1. Every expert has
// a slot. Renames this rank's expert tensors and moves no weights: the caller does.
void dp_stage_set_placement(struct dp_stage *stage, int32_t layer, const int32_t *expert);
// As dp_stage_expert_counts, by slot [slots].
int64_t *dp_stage_slot_counts(struct dp_stage *stage, int32_t layer);

struct dp_chunk;

// A micro-batch of `samples` sequences. loss_scale multiplies the gradient of the summed
// cross-entropy (1 / tokens of the global batch) and, times the sequence, the balance loss. Cheap:
// buffers come from a pool that the stage keeps.
struct dp_chunk *dp_chunk_new(struct dp_stage *stage, int32_t samples, double loss_scale);
// At any point; what is in flight is dropped.
void dp_chunk_free(struct dp_chunk *chunk);

// Names the chunk's routings to the exchanger: that of layer l of the whole model is tagged
// tag + l * layer_step. Both are 0 unless set.
void dp_chunk_set_tag(struct dp_chunk *chunk, uint64_t tag, uint64_t layer_step);
// What the passes need from outside, once per chunk. Host arrays of samples * sequence values are
// copied; values outside the vocabulary are refused. Tokens for has_embedding, targets for
// has_head.
dp_status dp_chunk_set_tokens(struct dp_chunk *chunk, const int32_t *tokens, struct dp_error *err);
dp_status dp_chunk_set_targets(struct dp_chunk *chunk, const int32_t *targets,
                               struct dp_error *err);
// Activations and their gradients pass between stages as [samples * sequence, hidden] in device
// memory, dp_chunk_hidden_bytes long.
size_t dp_chunk_hidden_bytes(const struct dp_chunk *chunk);
// Makes the buffer that the previous stage's activation goes into, before FORWARD of component 0.
dp_status dp_chunk_make_input(struct dp_chunk *chunk, void **ret_input, struct dp_error *err);
// The activation for the next stage after FORWARD of the last component; drop it when sent.
const void *dp_chunk_output(const struct dp_chunk *chunk);
void dp_chunk_drop_output(struct dp_chunk *chunk);
// Makes the buffer that the next stage's gradient goes into, before INPUT of the last component.
dp_status dp_chunk_make_output_grad(struct dp_chunk *chunk, void **ret_grad, struct dp_error *err);
// The gradient for the previous stage after INPUT of component 0; drop it when sent.
const void *dp_chunk_input_grad(const struct dp_chunk *chunk);
void dp_chunk_drop_input_grad(struct dp_chunk *chunk);
// Sum of the tokens' cross-entropies in nats, after FORWARD of HEAD (the balance loss is not in
// it); NaN before.
double dp_chunk_loss_sum(const struct dp_chunk *chunk);
// The same of multi-token prediction, after FORWARD of MTP, without its weight; the last token of a
// sample has no target there. 0 before and without it.
double dp_chunk_mtp_loss_sum(const struct dp_chunk *chunk);

// Runs a pass of a component, up to what it has to wait for.
dp_status dp_chunk_begin(struct dp_chunk *chunk, dp_pass pass, int32_t component,
                         struct dp_error *err);
// Whether end of a component that has begun would not wait.
bool dp_chunk_ready(const struct dp_chunk *chunk, dp_pass pass, int32_t component);
// Finishes the pass with what was received. Does nothing for components without exchange.
dp_status dp_chunk_end(struct dp_chunk *chunk, dp_pass pass, int32_t component,
                       struct dp_error *err);
// begin, then end.
dp_status dp_chunk_run(struct dp_chunk *chunk, dp_pass pass, int32_t component,
                       struct dp_error *err);
// The whole pass: components in order for FORWARD, in reverse for INPUT and WEIGHT.
dp_status dp_chunk_run_all(struct dp_chunk *chunk, dp_pass pass, struct dp_error *err);

// Bytes that the chunk holds now: saved activations, kept gradients, input and output buffers.
// Scratch inside a pass is not counted.
int64_t dp_chunk_live_bytes(const struct dp_chunk *chunk);
// The sum over the stage's chunks, and the most it has been at the end of a pass of a component.
int64_t dp_stage_live_bytes(const struct dp_stage *stage);
int64_t dp_stage_peak_bytes(const struct dp_stage *stage);
// What this rank's experts received in one layer of the stage; zeros for dense layers.
struct dp_routed {
    int64_t tokens; // that arrived, each once
    int64_t rows;   // one for each expert of this rank that a token goes to
};
// [layers of the stage], known after DISPATCH forward.
const struct dp_routed *dp_chunk_routed(const struct dp_chunk *chunk);

typedef enum dp_chunk_phase {
    DP_CHUNK_FORWARD_DONE, // all FORWARD ran, output dropped
    DP_CHUNK_INPUT_DONE,   // all INPUT ran, input gradient dropped, no WEIGHT yet
} dp_chunk_phase;
// Closed form of dp_chunk_live_bytes: what a chunk holds in a phase, from the model's shapes and
// what each layer received (as dp_chunk_routed). After WEIGHT of all it is 0.
int64_t dp_stage_chunk_bytes(const struct dp_stage *stage, int32_t samples,
                             const struct dp_routed *routed, dp_chunk_phase phase);
