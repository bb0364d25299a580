// The space of plans for accelerators, and what is known of it so far.
//
// A mesh is one way to divide ranks among pipeline, data, tensor, context and experts and to place
// them. A division is a mesh with a micro-batch size, a recomputation and a way to shard; its price
// does not know the schedule yet. A candidate is a division with a schedule and a cut of layers.
#pragma once

#include "dp/price.h"
#include "internal.h"
#include "place.h"
#include "shape.h"
#include "splits.h"

struct mesh {
    struct dp_place_sizes sizes;
    struct dp_place_order order;
    struct dp_spans spans;
};

// Prices of the units of a division.
struct price_entry {
    struct dp_price price;
    // Least seconds of all passes of one micro-batch through a unit, overlapped or one after the
    // other.
    double least_s[2][DP_UNIT_COUNT]; // [1] where the schedule has pairs
};

struct division {
    struct choice choice; // family NULL; split = 1 where families with pairs are meant
    double bytes;         // that its fullest rank needs at least
};

struct price_memo; // by everything that prices of units depend on
struct shape_memo; // by family and sizes

struct explorer {
    const struct problem *problem;
    struct dp_fabric fabric;
    int32_t domain; // ranks of the largest scale-up domain
    dp_format format;
    double memory_limit; // bytes of the smallest rank; 0 = no limit
    int64_t world;       // the most ranks that some division uses
    bool has_pairs[64];  // by family: whether it overlaps
    struct mesh *meshes;
    size_t meshes_count;
    struct division *divisions;
    size_t divisions_count;
    struct cuts *cuts;
    struct price_memo *prices;
    struct shape_memo *shapes;
    struct scorer *scorer;
    int64_t scored;
    int64_t work, asked_at; // about so many candidates' worth of it; when the caller was asked
    bool is_stopped;
};

dp_status dp_planner_explorer_init(struct explorer *ret_explorer, const struct problem *problem,
                                   struct dp_error *err);
void dp_planner_explorer_deinit(struct explorer *explorer);

// Counts work, and asks the caller every few milliseconds of it whether to stop.
bool dp_planner_explorer_works(struct explorer *explorer, int64_t work);
// Work of a schedule's actions.
static inline int64_t explorer_work_of(size_t actions)
{
    return 1 + (int64_t)(actions / 100);
}
// What is said when the caller stopped it.
dp_status dp_planner_explorer_fail_stopped(const struct explorer *explorer, struct dp_error *err);

// The sizes that spec and ranks leave open on the most ranks. DP_INVALID when there are none.
dp_status dp_planner_space_init(struct explorer *explorer, struct dp_error *err);
// Adds the divisions of exactly so many ranks whose bound is not above best_s (INFINITY = all).
dp_status dp_planner_space_open(struct explorer *explorer, int64_t world, double best_s,
                                struct dp_error *err);
// The next smaller number of ranks that is looked at; 0 = none.
int64_t dp_planner_space_smaller(const struct explorer *explorer, int64_t world);
// The most ranks, of the `tries` largest numbers of them, that some choice uses exactly; 0 = none.
int64_t dp_planner_space_world(const struct explorer *explorer, int64_t tries);
// Why the schedule that the spec sets takes none of the sizes that the ranks leave open; "" when no
// sizes are left.
void dp_planner_space_refusal(const struct explorer *explorer, struct dp_error *ret_why);
// Calls `visit` for every family and number of chunks that the spec allows for a division and that
// is legal for it.
typedef void visit_family(void *context, const struct choice *choice);
void dp_planner_space_families(const struct explorer *explorer, const struct choice *division,
                               visit_family *visit, void *context);

void dp_planner_strategy_of(const struct explorer *explorer, const struct choice *choice,
                            struct dp_strategy *ret_strategy);
// strategy and what it points to are borrowed.
struct dp_price_input dp_planner_price_input(const struct explorer *explorer,
                                             const struct choice *choice,
                                             const struct dp_strategy *strategy);

struct price_memo *dp_planner_prices_new(void);
void dp_planner_prices_free(struct price_memo *memo);
// Borrowed until the memo is freed.
const struct price_entry *dp_planner_prices_get(struct explorer *explorer,
                                                const struct choice *choice);

struct shape_memo *dp_planner_shapes_new(void);
void dp_planner_shapes_free(struct shape_memo *memo);
// Borrowed until the memo is freed.
const struct shape *dp_planner_shapes_get(struct explorer *explorer, const struct choice *choice);

// No candidate of the division steps faster; its fullest rank needs no less memory.
double dp_planner_division_bound_s(struct explorer *explorer, const struct choice *division);
double dp_planner_division_bytes(struct explorer *explorer, const struct choice *division);
// The same by compute alone, which does not depend on where ranks stand.
double dp_planner_compute_bound_s(struct explorer *explorer, const struct choice *division);

// A candidate's bound and memory, exactly as its simulation and its plan have them.
struct score {
    double bound_s;
    double bytes; // of the fullest rank
    int32_t position;
};
struct scorer *dp_planner_scorer_new(void);
void dp_planner_scorer_free(struct scorer *scorer);
void dp_planner_score(struct explorer *explorer, const struct choice *choice,
                      struct score *ret_score);
