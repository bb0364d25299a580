// The parts of the search that dp_auto_search puts together.
#pragma once

#include "dp/auto.h"
#include "rules.h"
#include "trace.h"

// One placement under search.
struct entry {
    struct field field;
    struct dp_schedule family;       // the best family's schedule on this placement, or none
    struct score family_score;       // infinite when there is none
    double bound;                    // of the objective
    // What searching takes; allocated by dp_auto_entry_open.
    bool is_open;
    struct outlook outlook;
    struct clock clock, trial_clock; // with the times of `walk`, and of what is tried
    struct order order, walk, trial; // the best so far, where the local search is, what is tried
    struct rules rules, trial_rules; // of the best list so far
    struct trace trace;              // of `walk`
    struct score score, walk_score, rules_score; // infinite before anything was found
    int64_t found_at;                // the move that found `order`
};

// Takes shape, costs and static_bytes, as dp_auto_field_init.
struct entry *dp_auto_entry_new(struct dp_schedule *shape, struct dp_sim_costs *costs,
                                uint64_t *static_bytes, const struct dp_auto_problem *problem);
void dp_auto_entry_free(struct entry *entry);
// Readies the entry for searching, from its family's order or, without one, from a safe one.
void dp_auto_entry_open(struct entry *entry, bool longest_span);
// Keeps entry->trial where it is better than entry->order. Returns whether.
bool dp_auto_entry_offer(struct entry *entry, struct score score, int64_t move);
// Bytes that the rank needs at least beyond its static ones: one micro-batch on all its stages.
uint64_t dp_auto_entry_least_bytes(const struct entry *entry, int32_t rank);
// Actions of an order, about: what a move costs.
double dp_auto_entry_size(const struct entry *entry);

// A lower bound of the objective over all orders of the field.
double dp_auto_bound(const struct field *field, bool longest_span);

// A walk of the local search: begins at entry->order, takes moves numbered first ..
// first + count - 1, and accepts what is worse than the best by no more than `slack`, which shrinks
// to nothing until the end; what it finds that is better becomes entry->order.
struct walk {
    int64_t first;
    int32_t count;
    double slack;
    bool longest_span;
};
void dp_auto_walk_begin(struct entry *entry, const struct walk *walk);
void dp_auto_walk_step(struct entry *entry, const struct walk *walk, int32_t number,
                       struct dice *dice);
void dp_auto_walk_end(struct entry *entry);

// Shape number `index` of those that the problem allows; false when there are no more.
bool dp_auto_shape(const struct dp_auto_problem *problem, int index,
                   struct dp_schedule *ret_shape);
bool dp_auto_shape_is_wanted(const struct dp_auto_problem *problem,
                             const struct dp_schedule *shape);
bool dp_auto_shape_equal(const struct dp_schedule *a, const struct dp_schedule *b);
void dp_auto_shape_copy(const struct dp_schedule *shape, struct dp_schedule *ret_shape);

// Placements under search; those of families beyond these are left out.
enum { AUTO_ENTRIES_MAX = 64 };
// Placements that only families have are searched when they are among the best so many, and their
// families not much slower than the best.
enum { AUTO_BORROWED_MOST = 2 };

struct search {
    const struct dp_auto_problem *problem;
    const struct dp_auto_options *options;
    struct entry *entries[AUTO_ENTRIES_MAX];
    int32_t count, own;      // the first ones are the problem's own placements
    int32_t left_out;        // families that are too large to be tried, by number of chunks
    // The best fixed family: its name, parameter, objective and placement (-1 = none fits).
    char family[DP_NAME_MAX];
    int32_t family_virtual_stages, family_entry;
    double family_value;
    struct dice dice;
    int64_t moves;
    double work, work_max;   // actions looked at; the default budget
    bool is_stopped;
    struct dp_error refused; // why a placement was left out, the last one
    struct dp_error tight;   // the placement that comes closest to its caps
    uint64_t least_excess;
};

bool dp_auto_search_stops(struct search *search);
// Makes the entries: the problem's own placements and those of families, with every family that is
// legal, wanted and fits tried. DP_INVALID when nothing is possible, DP_INTERRUPTED when stopped.
dp_status dp_auto_search_start(struct search *search, struct dp_error *err);
