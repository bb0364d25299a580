// AdamW over the stages of a rank, with the sums of gradients that come before it.
//
// A stage may be held by several ranks: by two pipeline positions (directions), and by every data
// replica. Gradients of tensors that all replicas have are summed over all of those ranks, those of
// an expert over the ranks that hold that expert (equal d % EP), those of a tensor that is tied
// over the ranks that hold any stage with it. Sums are bitwise alike on all, so the copies stay
// alike without ever being compared.
//
// A segment is a run of a stage's parameters with one such group. Its group's members share it out
// in equal parts, in order. With DP_SHARD_ZERO1 (Rajbhandari et al., arXiv 1910.02054, section 5.1)
// a member gets the sums of its own part only, keeps moments for it alone and updates it; then the
// parts of the weights are gathered. What comes out is bitwise what DP_SHARD_NONE gives.
//
// The gradient norm is that of the whole model: each distinct parameter counts once, whatever the
// layout, by the member whose part it lies in. Weight decay applies to matrices and not to norms
// (struct dp_tensor.decays).
//
// One thread at a time. Every rank of the world calls the same functions in the same order.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/collective.h"
#include "dp/model.h"
#include "dp/spec.h"

// Where a rank stands in the world: g = d * pipeline + p.
struct dp_optim_world {
    struct dp_transport *transport; // borrowed
    int32_t pipeline, data, expert;
    dp_shard shard; // NONE or ZERO1; AUTO = NONE
};

struct dp_optim_stage {
    struct dp_stage *stage;   // borrowed
    int32_t index;            // of the whole pipeline
    const int32_t *positions; // pipeline positions that hold it, ascending; copied
    int32_t position_count;
    // Positions that hold any stage with the tied tensor, ascending; 0 where nothing is tied.
    const int32_t *tied_positions;
    int32_t tied_position_count;
};

struct dp_optim;

// group_id_base: group ids from here on, DP_OPTIM_GROUPS of them, are the optimizer's; the same on
// all ranks. `steps` is the length of the run, for the learning rate. Moments are zeros.
#define DP_OPTIM_GROUPS(stages) (3u * (stages) + 2u)
dp_status dp_optim_new(const struct dp_optim_world *world, const struct dp_optimizer_spec *spec,
                       int64_t steps, const struct dp_optim_stage *stages, int32_t stage_count,
                       uint32_t group_id_base, struct dp_optim **ret_optim, struct dp_error *err);
// Accepts NULL.
void dp_optim_free(struct dp_optim *optim);

// The learning rate of a step, which counts from 1: rises linearly to lr over warmup_steps (lr
// exactly at step warmup_steps). Then, by spec->schedule: "cosine" falls by a half cosine to lr_min
// at step `steps`; "wsd" stays until decay_steps before the end and falls linearly to lr_min at
// step `steps` (Hu et al., arXiv 2404.06395; linear as in Haegele et al., arXiv 2405.18392);
// "constant" stays.
double dp_optim_lr(const struct dp_optimizer_spec *spec, int64_t steps, int64_t step);

// Gradients of every stage become their sums over the ranks that hold them; with ZERO1 only those
// of the own parts do, and the rest is undefined.
dp_status dp_optim_sum_gradients(struct dp_optim *optim, struct dp_error *err);

struct dp_optim_report {
    double lr;
    double grad_norm;  // before clipping
    double grad_scale; // that gradients were multiplied by: 1, or grad_clip / grad_norm
};
// Norm, clipping, AdamW, weights everywhere, and gradients back to zero. `step` counts from 1. A
// gradient that is NaN or infinite stops it before any weight changes, on every rank: DP_JOB_FAILED
// naming the tensor where it lies in this rank's parts.
dp_status dp_optim_step(struct dp_optim *optim, int64_t step, struct dp_optim_report *ret_report,
                        struct dp_error *err);
// Its parts, of which the middle one needs no peer: so a rank has the update whole or not at all.
// The norm of all gradients; a rank that gets it knows that every rank has all its gradients.
dp_status dp_optim_norm(struct dp_optim *optim, int64_t step, double *ret_norm,
                        struct dp_error *err);
// Updates weights and moments of what this rank keeps moments of, by the norm that all ranks have.
void dp_optim_apply(struct dp_optim *optim, int64_t step, double norm,
                    struct dp_optim_report *ret_report);
// With ZERO1 the parts of the weights reach all; then everything is ready for the next step. When
// it fails, weights and moments of this rank's ranges (dp_optim_range_at) are those after the
// update; weights outside of them may not be.
dp_status dp_optim_spread(struct dp_optim *optim, struct dp_error *err);

// A run of parameters that this rank keeps moments of; what checkpoints are made from.
struct dp_optim_range {
    int32_t stage;      // the i-th given to dp_optim_new
    int64_t begin, end; // elements of the stage's weights
    // Device memory, end - begin values each: bfloat16 when is_bf16, else reals.
    void *m, *v;
    bool is_bf16;
    // Of all ranks that keep moments of these parameters this is the one that stands for them: it
    // writes moments and weights of [begin, end). Over all ranks, such ranges cover each distinct
    // parameter once. Without ZERO1 that is the lowest rank of the group, for all of the segment.
    // A range may be empty.
    bool writes;
};
int32_t dp_optim_range_count(const struct dp_optim *optim);
void dp_optim_range_at(const struct dp_optim *optim, int32_t index,
                       struct dp_optim_range *ret_range);
// After weights were written from outside (a loaded checkpoint): what products read follows the
// master weights.
dp_status dp_optim_refresh(struct dp_optim *optim, struct dp_error *err);

// The moments of all stages given to dp_optim_new, whole and as reals, laid out as their weights:
// ret_m[i] and ret_v[i] of the i-th, device memory that the caller frees. Every rank of the world
// calls it; on failure nothing is left to free.
dp_status dp_optim_gather_moments(struct dp_optim *optim, void **ret_m, void **ret_v,
                                  struct dp_error *err);
// The other way round: takes what this rank keeps out of whole moments of the i-th stage.
void dp_optim_set_moments(struct dp_optim *optim, int32_t index, const void *m, const void *v);
// Bytes of moments that this rank keeps.
int64_t dp_optim_moment_bytes(const struct dp_optim *optim);
// Whether this rank is the one that stands for the stage's shared tensors and for its experts, as a
// whole: the lowest that holds them.
void dp_optim_owns(const struct dp_optim *optim, int32_t index, bool *ret_shared,
                   bool *ret_experts);

// What came to the experts of one layer in the last step.
struct dp_expert_load {
    int32_t layer;         // of the whole model
    int32_t experts;       // of the layer
    const int64_t *tokens; // [experts] that visited each, over the whole job; dp_optim_sum_loads'
    int32_t slots;         // of the layer: dp_stage_slots
    const int32_t *placed; // [slots] the expert in each in that step
    int32_t first, count;  // this rank's own slots
    const int64_t *own;    // [count] tokens that came to this rank's slots
    int64_t group;         // that came to all ranks of its EP group
    int32_t group_ranks;   // EP
    bool reports;          // this rank stands for the layer: the lowest that holds its stage
};
// After a step: sums, over all ranks that hold a layer, the tokens that each of its experts was
// chosen for since the last call, and moves the bias that the router adds to its scores by
// model.bias_update towards balance: up where an expert had fewer than the mean, down where it had
// more (Wang et al., arXiv 2408.15664, algorithm 1). Every rank of the world calls it.
dp_status dp_optim_balance(struct dp_optim *optim, struct dp_error *err);
// Its halves: the sums, which are also what the loads below are; then the biases, without peers.
dp_status dp_optim_sum_loads(struct dp_optim *optim, struct dp_error *err);
void dp_optim_move_biases(struct dp_optim *optim);
// Layers with experts that this rank holds; none before the first call.
int32_t dp_optim_load_count(const struct dp_optim *optim);
void dp_optim_load_at(const struct dp_optim *optim, int32_t index, struct dp_expert_load *ret_load);

// Experts lie where dp_stage_placement says; loads make other places better (dp/experts.h).
struct dp_rebalance {
    bool apply;    // otherwise what would be done is told alone
    int32_t nodes; // that an EP group sits on in equal shares, in order; 0 = 1
};
struct dp_rebalance_report {
    bool applied; // or told alone
    int32_t layers, moved_layers; // with experts, of the model; that were (or would be) changed
    int64_t moved;                // slots that got another expert, of one EP group
    int64_t bytes;                // that crossed between ranks
    // Load of the fullest rank of a layer over the mean, all layers together, by the loads since
    // the last call: as experts lay, and as they lie after.
    double skew_before, skew_after;
};
// After dp_optim_balance, between steps: experts of layers whose fullest rank gets clearly less to
// do move to other ranks, with weights and moments; there are no gradients then. What is computed
// from then on differs by the order of sums alone. Names of tensors follow their experts. Every
// rank of the world calls it.
dp_status dp_optim_rebalance(struct dp_optim *optim, const struct dp_rebalance *how,
                             struct dp_rebalance_report *ret_report, struct dp_error *err);
