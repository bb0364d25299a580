// What is not as planned on the sim device: slow ranks, links and hosts, in the words of [sim].
//
//   WHERE:VALUE[@FIRST[-LAST]]     WHERE = all, rank=R, node=NAME, slot=NAME/SLOT
//   LINK:VALUE[@FIRST[-LAST]]      LINK = R-R of two ranks, NAME~NAME of two nodes
//
// Steps count from 1, and both ends of a range belong to it; without one it is always so. A rank is
// meant by its number, wherever it runs; a node or slot is a place: a rank that is moved away from
// it is as fast as others. Values of items that hold at once are multiplied, or for gaps added up.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/error.h"
#include "dp/limits.h"

typedef enum dp_sim_where {
    DP_SIM_ALL,
    DP_SIM_RANK,
    DP_SIM_NODE,
    DP_SIM_SLOT,
} dp_sim_where;

// Of a link, both ends are of one kind: ranks or nodes.
struct dp_sim_end {
    int32_t rank;
    char node[DP_NAME_MAX];
    int32_t slot;
};

struct dp_sim_item {
    dp_sim_where where;
    struct dp_sim_end ends[2]; // of a link both, else the first
    double value;
    int64_t first_step, last_step;
};

typedef enum dp_sim_list {
    DP_SIM_SLOW,      // factors, over 0
    DP_SIM_SLOW_LINK, // the same, of links
    DP_SIM_GAP,       // seconds
} dp_sim_list;

// Reads a list with ';' between its items into ret_items, which has room for DP_SIM_ITEMS_MAX.
// DP_INVALID names the item and what is wrong with it.
dp_status dp_sim_items_parse(const char *text, dp_sim_list list, struct dp_sim_item *ret_items,
                             size_t *ret_count, struct dp_error *err);

// Where a rank runs.
struct dp_sim_place {
    int32_t rank;
    const char *node; // borrowed
    int32_t slot;
};
// The factor of a place at a step: 1 when nothing holds.
double dp_sim_items_factor(const struct dp_sim_item *items, size_t count,
                           const struct dp_sim_place *place, int64_t step);
double dp_sim_items_link_factor(const struct dp_sim_item *items, size_t count,
                                const struct dp_sim_place *a, const struct dp_sim_place *b,
                                int64_t step);
// Seconds: 0 when nothing holds.
double dp_sim_items_gap(const struct dp_sim_item *items, size_t count,
                        const struct dp_sim_place *place, int64_t step);
