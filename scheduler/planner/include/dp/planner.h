// Chooses how a job runs: of what is legal the fastest that fits into memory.
//
// Every candidate gets a bound on its step and its memory; the simulator sees them in the order of
// their bounds until none left can win. For accelerators the choice is among pipeline, data,
// tensor, context and expert sizes, micro-batches, schedules, cuts of layers, recomputation,
// sharding and orders of placement at once; of what is looked at (docs/planner.md, "What is not
// looked at") nothing but bounds prunes, and no alternative depends on how fast or large anything
// is, so that a better cluster never gives a slower plan.
// Pure: the same input gives the same plan, bit for bit; the budget counts simulations.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/cost.h"
#include "dp/error.h"
#include "dp/memory.h"
#include "dp/plan.h"
#include "dp/simulate.h"
#include "dp/spec.h"

// A node with room for ranks.
struct dp_planner_node {
    char name[DP_NAME_MAX];
    char host[DP_NAME_MAX]; // nodes of one machine share its cores (a boot id); "" = its own
    int32_t slots;          // free rank slots
    int32_t first_slot;     // number of the first free one
    int32_t cores;          // of the machine; 0 = as many as ranks need
    double memory_bytes;    // for each rank; 0 = unlimited
    // Which scale-up domain, then which group of each level of the fabric it belongs to, from 1;
    // 0 = a domain of its own on a flat fabric.
    int32_t domain;
    int32_t group[DP_CLUSTER_LEVELS_MAX];
};

struct dp_planner_resources {
    const struct dp_planner_node *nodes; // borrowed, in the order of placement
    size_t nodes_count;
    // Of all nodes. NULL = the built-in figures of a CPU core; borrowed.
    const struct dp_profile *profile;
};

struct dp_planner_options {
    int64_t moves_max;           // simulations; 0 = the default
    bool (*stop)(void *context); // asked every few milliseconds of work; NULL = never
    void *context;
};

// Sizes that the job sets are obeyed, or refused with the reason: DP_UNSCHEDULABLE when ranks or
// memory do not suffice (how many are needed and how many there are), DP_INVALID when no legal
// choice exists (the rule broken and the nearest legal values). DP_INTERRUPTED when stopped.
// options may be NULL. The caller deinits *ret_plan.
dp_status dp_planner_plan(const struct dp_job_spec *spec,
                          const struct dp_planner_resources *resources,
                          const struct dp_planner_options *options, struct dp_plan *ret_plan,
                          struct dp_error *err);

// As dp_planner_plan, but its candidates are those that no other beats in both step and memory of
// the fullest rank, by step: what less memory costs, up to three times the best step.
dp_status dp_planner_pareto(const struct dp_job_spec *spec,
                            const struct dp_planner_resources *resources,
                            const struct dp_planner_options *options, struct dp_plan *ret_plan,
                            struct dp_error *err);

// Whether the job's schedule is one that there is; DP_INVALID with the nearest name. What a job's
// check cannot know, since job files know nothing of schedules.
dp_status dp_planner_check_schedule(const struct dp_job_spec *spec, struct dp_error *err);

// Nodes of a cluster that nothing else uses; the caller frees *ret_nodes.
void dp_planner_cluster_nodes(const struct dp_cluster_spec *cluster,
                              struct dp_planner_node **ret_nodes, size_t *ret_count);

// The costs that the plan's prediction rests on, for simulate, what-if and timelines: of one
// replica, whose ranks stand where the plan puts those of `replica`. resources NULL = the plan's
// nodes with cores for all and the built-in profile. The caller deinits *ret_costs.
dp_status dp_planner_costs(const struct dp_job_spec *spec, const struct dp_plan *plan,
                           const struct dp_planner_resources *resources, int32_t replica,
                           const struct dp_schedule *schedule, struct dp_sim_costs *ret_costs,
                           struct dp_error *err);

// What a rank of a pipeline position of this project's own executor holds at its fullest moment,
// when `load` times an equal share of the tokens comes to its experts, in every layer. The plan's
// own figures are of the load that the job says.
dp_status dp_planner_memory(const struct dp_job_spec *spec, const struct dp_plan *plan,
                            int32_t position, double load, struct dp_memory_parts *ret_parts,
                            struct dp_error *err);

// The most that the chunks of one pipeline rank hold at a time when it runs its list, as the
// executor counts them: what is kept of each live chunk, and of a running F or I what it holds at
// its end. bytes[slot] is of the rank's stages in the order of dp_schedule_rank_stages.
double dp_planner_peak_bytes(const struct dp_schedule *schedule, int32_t rank,
                             const struct dp_cost_chunk_bytes *bytes);
