// Shared by the files of this module.
#pragma once

#include <stddef.h>

#include "dp/memory.h"
#include "dp/planner.h"
#include "dp/rank_memory.h"

// Sizes under consideration, without where they run.
struct choice {
    int32_t pipeline, expert, data, microbatches, micro_batch_size, virtual_stages, stages;
    const struct dp_schedule_family *family;
    // Of accelerators; the sizes are 1 elsewhere.
    int32_t tensor, context, expert_tensor;
    int32_t mesh;       // index of the explorer's sizes and order of placement
    uint32_t recompute; // DP_RECOMPUTE_*
    dp_shard shard;
    int32_t split;  // rule by which layers are cut
    double bound_s; // no schedule of these sizes is faster
};

// Where one rank stands.
struct place {
    int32_t node, slot;
};

// Everything needed to price a choice. Arrays are owned.
struct layout {
    struct choice choice;
    int32_t *layer_begin; // [stages + 1]
    struct place *places; // [pipeline * data]
    int32_t ep_nodes;     // nodes that an EP group spans, at most
    double slowdown;      // of compute, by other ranks that use the machine's other cores
};
void dp_planner_layout_deinit(struct layout *layout);

// The input, with defaults filled in.
struct problem {
    const struct dp_job_spec *spec;
    const struct dp_planner_node *nodes;
    size_t nodes_count;
    const struct dp_profile *profile;
    bool is_sim;    // seconds come from [sim]
    bool is_fabric; // ranks are accelerators
    // Of the cpu device, as in dp_cost_batch.
    uint32_t offload;
    bool save_fp8, fp8;
    int32_t set_stages;          // of layers_per_stage; 0 = not set
    int64_t slots;               // of all nodes
    int64_t cores;               // of all machines; 0 = enough
    bool (*stop)(void *context); // asked while an order is searched; NULL = never
    void *stop_context;
};

static inline bool dp_planner_is_stopped(const struct problem *problem)
{
    return problem->stop != NULL && problem->stop(problem->stop_context);
}

// Fills a layout: layers split by their cost, ranks placed. Needs enough slots.
void dp_planner_layout_init(struct layout *ret_layout, const struct problem *problem,
                            const struct choice *choice, const struct dp_schedule *schedule);

// Splits layers into runs: the smallest largest cost first, then the least sum of squares. cost[l]
// is of layer l; first_s and last_s are added to the first and last run. ret_begin: [runs + 1].
void dp_planner_split_layers(const double *cost, int32_t layers, int32_t runs, double first_s,
                             double last_s, int32_t *ret_begin);
// Replica after replica on consecutive slots; whole replicas inside nodes where that suffices.
// Needs pipeline * data free slots.
void dp_planner_place_ranks(const struct problem *problem, const struct choice *choice,
                            struct place *ret_places);
// Nodes that the widest EP group of these places spans.
int32_t dp_planner_ep_group_nodes(const struct choice *choice, const struct place *places);
// Ranks of the job on the machine that `node` belongs to, and its cores (0 = enough).
int32_t dp_planner_ranks_on_host(const struct problem *problem, const struct layout *layout,
                                 int32_t node);
int32_t dp_planner_host_cores(const struct problem *problem, int32_t node);
// Cores of all machines, 0 when some machine has enough.
int64_t dp_planner_all_cores(const struct problem *problem);
bool dp_planner_same_host(const struct problem *problem, int32_t a, int32_t b);
// How many ranks share a core of the machine that `node` belongs to, at least 1.
double dp_planner_ranks_per_core(const struct problem *problem, const struct layout *layout,
                                 int32_t node);
// The most that cores which compute at the same time slow each other down on any machine.
double dp_planner_compute_slowdown(const struct problem *problem, const struct layout *layout);

struct dp_cost_stage dp_planner_stage_of(const struct problem *problem, const struct layout *layout,
                                         int32_t stage);
struct dp_cost_batch dp_planner_batch_of(const struct problem *problem,
                                         const struct layout *layout);
// What one micro-batch takes on a stage in an action that overlaps nothing: (compute, exchange).
void dp_planner_layout_costs(const struct problem *problem, const struct layout *layout,
                             int32_t replica, const struct dp_schedule *schedule,
                             struct dp_sim_costs *ret_costs);
// Exchange that is exposed inside the actions of one pipeline rank, seconds.
double dp_planner_exposed_exchange_s(const struct problem *problem, const struct layout *layout,
                                     const struct dp_schedule *schedule,
                                     const struct dp_sim_costs *costs, int32_t rank);
struct dp_rank_memory dp_planner_memory_of(const struct problem *problem,
                                           const struct layout *layout,
                                           const struct dp_schedule *schedule);
// What fills one pipeline rank at its fullest moment; the sim device counts as what it stands for.
void dp_planner_rank_memory(const struct problem *problem, const struct layout *layout,
                            const struct dp_schedule *schedule, int32_t rank,
                            struct dp_memory_parts *ret_parts);
// Of the seconds that a rank is busy with whole backwards, those of their weight gradients: by what
// the costs say of each half.
double dp_planner_backward_weight_s(const struct dp_schedule *schedule,
                                    const struct dp_sim_costs *costs, int32_t rank,
                                    double backward_s);
double dp_planner_choice_bound_s(const struct problem *problem, const struct choice *choice);

// All choices that the spec and the ranks at hand leave open, those that break a rule with it.
struct refusal {
    struct choice choice;
    char *reason; // owned
};
struct choices {
    struct choice *legal;
    size_t legal_count;
    struct refusal *refused; // at most REFUSED_MAX
    size_t refused_count, refused_total;
};
enum { REFUSED_MAX = 32 };
// schedule = "auto": ways to place stages, as families that are in no table.
const struct dp_schedule_family *dp_planner_order_rows(size_t *ret_count);
bool dp_planner_is_auto(const struct dp_schedule_family *family);
unsigned dp_planner_order_placement(const struct dp_schedule_family *row); // dp_auto_placement
// DP_TOO_LARGE: a plan cannot carry a list of so many bytes.
dp_status dp_planner_order_is_too_long(size_t actions, size_t bytes, struct dp_error *err);
// The order as a plan carries it; the caller frees *ret_list.
dp_status dp_planner_order_write(const struct dp_schedule *schedule, char **ret_list,
                                 struct dp_error *err);
struct dp_auto_result;
// A line that says how a found order compares; the caller frees it.
char *dp_planner_order_describe(const struct dp_auto_result *result,
                                const struct dp_schedule_family *row);
// Searches for the best order of a choice of such a family, and says in a line how it compares. The
// caller owns both. DP_INVALID when nothing fits, DP_INTERRUPTED when stopped.
dp_status dp_planner_order_find(const struct problem *problem, const struct choice *choice,
                                struct dp_schedule *ret_schedule, char **ret_note,
                                struct dp_error *err);
dp_status dp_planner_enumerate_choices(const struct problem *problem, struct choices *ret_choices,
                                       struct dp_error *err);
void dp_planner_choices_deinit(struct choices *choices);
