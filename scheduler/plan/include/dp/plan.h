// A plan: how one job runs on given nodes, as plain data. Determined by spec, resources and
// profile.
//
// Global rank = ((data replica * pipeline + pipeline position) * context + context rank) * tensor +
// tensor rank. Seconds are of one step.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/json.h"
#include "dp/limits.h"
#include "dp/memory.h"
#include "dp/schedule.h"
#include "dp/strategy.h"

// One global rank: where it runs, and what is predicted for it.
struct dp_plan_rank {
    char node[DP_NAME_MAX];
    int32_t slot;                 // on its node, from 0
    double busy_s;                // in actions
    double bubble_s;              // waiting between the step's first and the slowest rank's last
    int32_t peak_chunks;          // live at once, of all its stages
    double peak_activation_bytes; // of these chunks
    double memory_bytes;          // weights, gradients, optimizer and activations
};

// One pipeline position: where the step's time and the memory of its ranks go. The times of the
// slowest replica; they add up to the step but for rounding.
struct dp_plan_position {
    double forward_s, backward_s, input_s, weight_s; // F, B, I and W alone
    double backward_weight_s;                        // of backward_s: its weight gradients
    double overlapped_s;                             // FB
    double bubble_s;                                 // waiting for other ranks and for hops
    double gradient_s, optimizer_s;                  // after the last action; exposed part
    double hop_s;                   // of bubble_s: inputs that were there but still travelled
    double wait_s;                  // inside actions: collectives that compute waits for
    double exchange_s;              // inside actions: expert traffic that nothing hides
    double compute_s;               // inside actions: the rest
    double hidden_s;                // expert traffic beside compute: in none of the sums above
    struct dp_memory_parts memory;  // at the fullest moment
    double memory_at_s;             // when that is
    double memory_limit_bytes;      // of its ranks' nodes, the least; 0 = no limit
    struct dp_unit_parameters held; // by one rank; both stages' of a bidirectional pipeline
};

// One more unit of a resource, and the step that the same strategy would take with it.
struct dp_plan_gain {
    char resource[DP_NAME_MAX]; // "compute", "memory bandwidth", "scale-up", "scale-out", ...
    double more_share;          // how much more, as a share of what there is
    double step_s;
};
enum { DP_PLAN_GAINS_MAX = 8 };

// What one other choice would have cost. `reason` says why it lost, or which rule it breaks; what
// is NULL before dp_plan_explain is written there from the figures.
struct dp_plan_candidate {
    int32_t pipeline, expert, data, microbatches, micro_batch_size;
    char schedule[DP_NAME_MAX];
    int32_t virtual_stages; // chunks per rank that the family was asked for; 0 = its default
    int32_t tensor, context, expert_tensor;
    uint32_t recompute;
    bool legal; // the figures below are known
    bool chosen;
    bool tied; // with the chosen one, inside the error bar
    double step_s;
    // The parts of it on the rank that bounds it, as those of dp_plan_position; 0 = unknown.
    double compute_s, bubble_s, hop_s, wait_s, exchange_s, gradient_s, optimizer_s;
    double memory_max_bytes;   // of the fullest rank
    double memory_limit_bytes; // what that rank's node has; 0 = no limit
    int32_t memory_position;   // where in the pipeline it is
    char *reason;              // owned
};

// One data-parallel replica of a plan whose replicas differ: its share of the step's micro-batches
// and the order that it runs them in. All replicas have the same stages on the same positions.
struct dp_plan_replica {
    int32_t microbatches;   // at least 1
    uint64_t schedule_hash; // of its order
    // An order of its own as the dp.schedule/1 document (owned). NULL: the plan's order with as
    // many micro-batches as the plan's, else the order that the family makes of its own.
    char *schedule_json;
};

struct dp_plan {
    char model[DP_NAME_MAX]; // what it is for, and the accelerator: may be empty
    char device[DP_NAME_MAX];
    int32_t pipeline, expert, data; // P, EP, D
    int32_t microbatches;           // M, per step and replica; the most where replicas differ
    int32_t micro_batch_size;       // samples
    char schedule[DP_NAME_MAX];     // family
    int32_t virtual_stages;         // its parameter, 0 = the family's default
    uint64_t schedule_hash;         // dp_schedule_hash of what it expands to
    // An irregular order as the dp.schedule/1 document (owned); NULL for a family's own.
    char *schedule_json;
    int32_t stages;                         // S
    int32_t tensor, context, expert_tensor; // T, C, ETP; 0 counts as 1
    bool sequence_parallel;
    dp_format format;
    dp_shard shard;
    uint32_t recompute;
    int32_t comm_units;
    double imbalance;
    int32_t *layer_begin;       // [stages + 1]: stage s runs layers [s] to [s + 1] - 1; owned
    struct dp_plan_rank *ranks; // [dp_plan_world] by global rank; owned
    struct dp_plan_position *positions; // [pipeline]; NULL in plans of older versions; owned
    struct dp_plan_replica *replicas;   // [data]; NULL = all run M in the plan's order; owned

    double step_s;      // the sum of the five parts
    double compute_s;   // actions of the busiest rank, without its waits
    double bubble_s;    // its waits: warm-up, dependencies, cool-down
    double comm_s;      // exposed: hops on the way, all-to-all inside actions
    double grad_sync_s; // summing gradients, after the last action
    double optimizer_s;
    double tokens_per_s;
    double error_share;   // expected error of step_s, as a share of it
    double ranking_share; // of the ratio of two plans' steps; 0 = unknown: as error_share
    double mfu_causal, mfu_noncausal;     // of the device's bf16 peak; 0 = the peak is unknown
    double flops_causal, flops_noncausal; // of the model per token, as MFU counts; 0 = unknown
    double baseline_step_s;               // 1F1B on the same sizes; 0 = not comparable
    double baseline_memory_bytes;         // of its fullest rank; 0 = unknown
    int64_t searched;                     // candidates whose time and memory were computed
    double search_s;                      // by the clock of who asked; 0 = unknown
    struct dp_plan_gain gains[DP_PLAN_GAINS_MAX]; // the binding resource first
    int32_t gains_count;
    char *warnings;      // what the figures extrapolate from, when DualPipe is wrong; lines; owned
    bool cores_exceeded; // some node has more ranks than cores
    char *provenance;    // where the figures come from, lines; owned, never NULL
    char *explanation;   // why this plan, lines; owned, never NULL

    struct dp_plan_candidate *candidates; // the chosen one first, then by step time; owned
    size_t candidates_count;
};

// Ranks of one pipeline position and replica.
static inline int32_t dp_plan_shards(const struct dp_plan *plan)
{
    return (plan->tensor > 1 ? plan->tensor : 1) * (plan->context > 1 ? plan->context : 1);
}

static inline int32_t dp_plan_world(const struct dp_plan *plan)
{
    return plan->pipeline * plan->data * dp_plan_shards(plan);
}

static inline int32_t dp_plan_rank_position(const struct dp_plan *plan, int32_t rank)
{
    return rank / dp_plan_shards(plan) % plan->pipeline;
}

// What a global rank is in each dimension; `expert` is its number in its expert group.
struct dp_plan_coordinates {
    int32_t pipeline, data, context, tensor, expert;
};
struct dp_plan_coordinates dp_plan_rank_coordinates(const struct dp_plan *plan, int32_t rank);

// The position whose ranks have the least bubble: what they do bounds the step.
int32_t dp_plan_critical_position(const struct dp_plan *plan);
// Bytes on the ranks of a position at their fullest moment, the most of its replicas.
double dp_plan_position_bytes(const struct dp_plan *plan, int32_t position);
int32_t dp_plan_fullest_position(const struct dp_plan *plan); // with the least room
// GPU-hours of `tokens` tokens when a step takes step_s; 0 when the plan's speed is unknown.
double dp_plan_gpu_hours(const struct dp_plan *plan, double step_s, double tokens);

// The share within which another plan's step is no different from this one's.
double dp_plan_tie_share(const struct dp_plan *plan);
// Whether 1F1B on the same sizes fits the memory of the ranks, as far as that is known.
bool dp_plan_baseline_fits(const struct dp_plan *plan);
// The fastest candidate of a schedule that is legal and fits; NULL = none is known. Borrowed.
const struct dp_plan_candidate *dp_plan_best_of(const struct dp_plan *plan, const char *schedule);

// Completes what follows from the plan's own figures: which candidates are tied with the chosen
// one, the reasons that are NULL, and lines at the end of `warnings` where its schedule is the
// wrong one to take (or a bidirectional one is close to what needs half its parameters); with a
// model of NULL no such lines.
void dp_plan_explain(struct dp_plan *plan, const struct dp_model_spec *model);

// Zero-initialised plans may be deinited too.
void dp_plan_deinit(struct dp_plan *plan);
void dp_plan_copy(struct dp_plan *ret_plan, const struct dp_plan *plan);
// Puts lines ("" = none; NULL too) behind the warnings there are.
void dp_plan_add_warnings(struct dp_plan *plan, const char *lines);
// Refuses sizes out of range, layers that do not cover the model in order, and figures that are not
// finite: what a plan from outside must satisfy.
dp_status dp_plan_check(const struct dp_plan *plan, struct dp_error *err);

// Expands the schedule and compares its hash: DP_CONFLICT when this build makes another order of
// the same name. The caller deinits *ret_schedule.
dp_status dp_plan_schedule(const struct dp_plan *plan, struct dp_schedule *ret_schedule,
                           struct dp_error *err);

// Micro-batches of a replica in one step, of all replicas before it, and of the whole step. Micro-
// batch m of replica d takes the step's samples from (first + m) * micro_batch_size on, whatever
// the shares are, and the loss is the mean over the tokens of the whole step.
int32_t dp_plan_replica_microbatches(const struct dp_plan *plan, int32_t replica);
int64_t dp_plan_first_microbatch(const struct dp_plan *plan, int32_t replica);
int64_t dp_plan_step_microbatches(const struct dp_plan *plan);
// Replicas d that have the same d / this run the same actions at the same time, since their ranks
// exchange rows of experts in each of them: the replicas that an expert group reaches over; 1 =
// each is free.
int32_t dp_plan_coupled_replicas(const struct dp_plan *plan);
// As dp_plan_schedule, of one replica's ranks: with its own micro-batches in its own order.
dp_status dp_plan_replica_schedule(const struct dp_plan *plan, int32_t replica,
                                   struct dp_schedule *ret_schedule, struct dp_error *err);
// Gives the replicas these shares, counts[data], each in the order that the plan's family makes of
// so many; equal shares make it a plan without `replicas`. DP_INVALID when the family cannot run
// one of them (with its rule and the nearest legal numbers), when expert groups couple replicas
// with different shares, or when an irregular order has another number. The plan stays as it was
// then. The caller sees to the sum, which is the step's batch, and to the predictions.
dp_status dp_plan_share_microbatches(struct dp_plan *plan, const int32_t *counts,
                                     struct dp_error *err);

// The form "dp.plan/1". from_json checks; the caller deinits *ret_plan.
json_t *dp_plan_to_json(const struct dp_plan *plan);
dp_status dp_plan_from_json(const json_t *json, struct dp_plan *ret_plan, struct dp_error *err);

// For people: the choice, the step and its parts, memory, what binds, the runners-up and why they
// lost, what the figures rest on. One screen of 40 lines and 100 columns, or everything.
void dp_plan_render(const struct dp_plan *plan, bool all, struct dp_buf *out);
// Which rank stands on which node and slot: equal nodes on one line.
void dp_plan_render_map(const struct dp_plan *plan, struct dp_buf *out);
// One line per rank in order: rank, node, slot and its coordinates, between tabs; a line of names
// in front, with "#".
void dp_plan_render_rank_file(const struct dp_plan *plan, struct dp_buf *out);
