// Layouts of one job and what they take, inside the module.
#pragma once

#include "dp/adapt.h"

// Where a rank stands or could stand: those of the plan's ranks first, by global rank, then spares.
struct place {
    const char *name; // of its node; borrowed
    int32_t slot;
    int32_t node; // equal for places of one node
    double slow;
    double memory_bytes; // 0 = the plan's limit for the position
};

// The order that a replica runs, expanded once for each number of micro-batches.
struct order {
    int32_t microbatches;
    bool is_legal;
    struct dp_schedule schedule;
    uint64_t hash;
    int32_t *peak; // [pipeline]: chunks whose activations are kept, at most
    char *refusal; // why it is not legal
};

// What the searches change. Blocks are runs of coupled replicas, from the first one on.
struct layout {
    int32_t *place;       // [world]
    int32_t *layer_begin; // [stages + 1]
    int32_t *count;       // [blocks]: micro-batches of each of its replicas
    struct order **own;   // [blocks]: an order that is no family's; NULL = by the count; borrowed
    bool moves_experts;   // experts lie anew
};

struct memo {
    uint64_t key;
    double step;
};

// One question. Everything that is asked twice is kept here.
struct adapt {
    const struct dp_adapt_input *input;
    const struct dp_plan *plan;
    int32_t pipeline, stages, world, shards, coupled, blocks;
    struct place *places;
    int32_t places_count;
    struct order **orders; // of the plan's family by number; owned
    size_t orders_count;
    struct order **owns; // orders of their own; owned
    size_t owns_count;
    double (*prefix)[DP_ADAPT_KINDS]; // [layers + 1]: of layers before
    // [world]: what the rows of its experts make of a rank's time, over that of a mean rank: as
    // they lie, and re-placed. NULL = nothing.
    double *load_now, *load_after;
    struct layout base; // as it runs
    struct dp_sim_scratch *scratch;
    struct memo *memo;
    size_t memo_count, memo_room;
    int64_t moves;       // simulations
    int64_t actions;     // in them
    int64_t actions_end; // where the searches for an answer end
    bool ignores_slowness;
    bool is_stopped;
};

// Actions that are simulated for one answer: a second or two.
enum { DP_ADAPT_ACTIONS_MAX = 40000000 };

// ground.c
dp_status dp_adapt_ground(struct adapt *adapt, const struct dp_adapt_input *input,
                          struct dp_error *err);
void dp_adapt_ground_deinit(struct adapt *adapt);
// The plan's order for so many micro-batches; not legal where the family has none. Borrowed.
struct order *dp_adapt_order_of(struct adapt *adapt, int32_t microbatches);
// Takes the schedule over.
struct order *dp_adapt_order_add(struct adapt *adapt, struct dp_schedule *schedule);

// layout.c
// Whether ranks hold weights, moments and chunks: the sim device's do not.
bool dp_adapt_has_state(const struct adapt *adapt);
void dp_adapt_layout_copy(const struct adapt *adapt, const struct layout *from,
                          struct layout *ret_layout);
void dp_adapt_layout_deinit(struct layout *layout);
struct order *dp_adapt_block_order(struct adapt *adapt, const struct layout *layout, int32_t block);
// Which parts differ from what runs: bits 1 << dp_adapt_kind.
unsigned dp_adapt_layout_parts(const struct adapt *adapt, const struct layout *layout);
// Whether every rank's memory takes it, as far as the plan's figures tell.
bool dp_adapt_layout_fits(struct adapt *adapt, const struct layout *layout);
int32_t dp_adapt_layers_at(const struct adapt *adapt, const struct layout *layout,
                           const struct dp_schedule *schedule, int32_t position);

// step.c: the simulated step of a layout; infinite where some block has no legal order.
double dp_adapt_layout_step(struct adapt *adapt, const struct layout *layout);
double dp_adapt_block_step(struct adapt *adapt, const struct layout *layout, int32_t block);
// Costs of one block in its order; the caller deinits.
void dp_adapt_block_costs(struct adapt *adapt, const struct layout *layout, int32_t block,
                          const struct dp_schedule *schedule, struct dp_sim_costs *ret_costs);
// Whether a search has used up what it may, or was stopped.
bool dp_adapt_is_over(struct adapt *adapt);

// The searches: each makes a layout better and says whether it did. `ret_why` (at most
// DP_ADAPT_WHY_MAX bytes) says why there is none.
enum { DP_ADAPT_WHY_MAX = 256 };
bool dp_adapt_shift(struct adapt *adapt, struct layout *layout, char *ret_why);
bool dp_adapt_layers(struct adapt *adapt, struct layout *layout, char *ret_why);
bool dp_adapt_order(struct adapt *adapt, struct layout *layout, char *ret_why);
bool dp_adapt_swap(struct adapt *adapt, struct layout *layout, char *ret_why);
bool dp_adapt_spares(struct adapt *adapt, struct layout *layout, char *ret_why);
bool dp_adapt_experts_part(struct adapt *adapt, struct layout *layout, char *ret_why);
bool dp_adapt_combine(struct adapt *adapt, struct layout *layout, char *ret_why);
// experts.c: what loads make of each rank, now and re-placed.
dp_status dp_adapt_experts_fill(struct adapt *adapt, struct dp_error *err);

// plan_of.c: the plan of a layout with its predictions. The caller deinits.
dp_status dp_adapt_plan_of(struct adapt *adapt, const struct layout *layout, double step_s,
                           struct dp_plan *ret_plan, struct dp_error *err);
// What changes, in words; owned by the caller.
char *dp_adapt_words_of(const struct adapt *adapt, const struct layout *layout, unsigned parts);

// restart.c
dp_status dp_adapt_restart(struct adapt *adapt, double scale, struct dp_adapt_answer *answer,
                           char *ret_why, struct dp_error *err);

// grow.c
dp_status dp_adapt_grow(struct adapt *adapt, double scale, struct dp_adapt_answer *answer,
                        char *ret_why, struct dp_error *err);

// weigh.c: seconds that a change to the layout stands still for; then the choice among answers.
double dp_adapt_cost_of(const struct adapt *adapt, const struct layout *layout, unsigned parts);
void dp_adapt_weigh(const struct adapt *adapt, struct dp_adapt_answers *answers);
