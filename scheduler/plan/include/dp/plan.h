// A plan: how one job runs on given nodes, as plain data. Determined by spec, resources and
// profile.
//
// Global rank = data replica * pipeline + pipeline position. Seconds are of one step.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/json.h"
#include "dp/limits.h"
#include "dp/schedule.h"

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

// What one other choice would have cost. `reason` says why it lost, or which rule it breaks.
struct dp_plan_candidate {
    int32_t pipeline, expert, data, microbatches, micro_batch_size;
    char schedule[DP_NAME_MAX];
    int32_t virtual_stages;  // chunks per rank that the family was asked for; 0 = its default
    bool legal; // the figures below are known
    bool chosen;
    double step_s;
    double memory_max_bytes; // of the fullest rank
    char *reason;            // owned
};

struct dp_plan {
    int32_t pipeline, expert, data; // P, EP, D
    int32_t microbatches;           // M, per step and replica
    int32_t micro_batch_size;       // samples
    char schedule[DP_NAME_MAX];     // family
    int32_t virtual_stages;         // its parameter, 0 = the family's default
    uint64_t schedule_hash;         // dp_schedule_hash of what it expands to
    // An irregular order as the dp.schedule/1 document (owned); NULL for a family's own.
    char *schedule_json;
    int32_t stages;             // S
    int32_t *layer_begin;       // [stages + 1]: stage s runs layers [s] to [s + 1] - 1; owned
    struct dp_plan_rank *ranks; // [pipeline * data] by global rank; owned

    double step_s;      // the sum of the five parts
    double compute_s;   // actions of the busiest rank, without its waits
    double bubble_s;    // its waits: warm-up, dependencies, cool-down
    double comm_s;      // exposed: hops on the way, all-to-all inside actions
    double grad_sync_s; // summing gradients, after the last action
    double optimizer_s;
    double tokens_per_s;
    double error_share;  // expected error of step_s, as a share of it
    bool cores_exceeded; // some node has more ranks than cores
    char *provenance;    // where the figures come from, lines; owned, never NULL
    char *explanation;   // why this plan, lines; owned, never NULL

    struct dp_plan_candidate *candidates; // the chosen one first, then by step time; owned
    size_t candidates_count;
};

static inline int32_t dp_plan_world(const struct dp_plan *plan)
{
    return plan->pipeline * plan->data;
}

// Zero-initialised plans may be deinited too.
void dp_plan_deinit(struct dp_plan *plan);
void dp_plan_copy(struct dp_plan *ret_plan, const struct dp_plan *plan);
// Refuses sizes out of range, layers that do not cover the model in order, and figures that are not
// finite: what a plan from outside must satisfy.
dp_status dp_plan_check(const struct dp_plan *plan, struct dp_error *err);

// Expands the schedule and compares its hash: DP_CONFLICT when this build makes another order of
// the same name. The caller deinits *ret_schedule.
dp_status dp_plan_schedule(const struct dp_plan *plan, struct dp_schedule *ret_schedule,
                           struct dp_error *err);

// The form "dp.plan/1". from_json checks; the caller deinits *ret_plan.
json_t *dp_plan_to_json(const struct dp_plan *plan);
dp_status dp_plan_from_json(const json_t *json, struct dp_plan *ret_plan, struct dp_error *err);

// For people: the choice, the step and its parts, one line per rank, the runners-up and why they
// lost (at most `candidates_max`, 0 = all).
void dp_plan_render(const struct dp_plan *plan, size_t candidates_max, struct dp_buf *out);
