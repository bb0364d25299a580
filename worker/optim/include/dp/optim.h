// AdamW over the stages of a rank, with the sums of gradients that come before it.
//
// A stage may be held by several ranks: by two pipeline positions (directions), and by every data
// replica. Gradients of tensors that all replicas have are summed over all of those ranks, those of
// an expert over the ranks that hold that expert (equal d % EP). Sums are bitwise alike on all, so
// the copies stay alike without ever being compared.
//
// The gradient norm is that of the whole model: each distinct parameter counts once, whatever the
// layout, by the lowest rank that holds it. Weight decay applies to matrices and not to norms
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
};

struct dp_optim_stage {
    struct dp_stage *stage;   // borrowed
    int32_t index;            // of the whole pipeline
    const int32_t *positions; // pipeline positions that hold it, ascending; copied
    int32_t position_count;
};

struct dp_optim;

// group_id_base: group ids from here on, 2 * stages + 1 of them, are the optimizer's; the same on
// all ranks. `steps` is the length of the run, for the learning rate. Moments are zeros.
dp_status dp_optim_new(const struct dp_optim_world *world, const struct dp_optimizer_spec *spec,
                       int64_t steps, const struct dp_optim_stage *stages, int32_t stage_count,
                       uint32_t group_id_base, struct dp_optim **ret_optim, struct dp_error *err);
// Accepts NULL.
void dp_optim_free(struct dp_optim *optim);

// The learning rate of a step, which counts from 1: rises linearly to lr over warmup_steps (lr
// exactly at step warmup_steps), then falls by a half cosine to lr_min at step `steps`.
double dp_optim_lr(const struct dp_optimizer_spec *spec, int64_t steps, int64_t step);

// Gradients of every stage become their sums over the ranks that hold them.
dp_status dp_optim_sum_gradients(struct dp_optim *optim, struct dp_error *err);

struct dp_optim_report {
    double lr;
    double grad_norm;  // before clipping
    double grad_scale; // that gradients were multiplied by: 1, or grad_clip / grad_norm
};
// Norm, clipping, AdamW, and gradients back to zero. `step` counts from 1. A gradient that is NaN
// or infinite stops it before any weight changes, on every rank: DP_JOB_FAILED naming the tensor
// where this rank holds it.
dp_status dp_optim_step(struct dp_optim *optim, int64_t step, struct dp_optim_report *ret_report,
                        struct dp_error *err);

// The moments of the i-th stage given to dp_optim_new: device memory laid out as its weights.
void dp_optim_moments(struct dp_optim *optim, int32_t index, void **ret_m, void **ret_v);
// Whether this rank is the one that stands for the stage's shared tensors and for its experts: it
// counts them in norms and writes them to checkpoints.
void dp_optim_owns(const struct dp_optim *optim, int32_t index, bool *ret_shared,
                   bool *ret_experts);
