// One placement of stages with its costs, laid out for trying many orders.
//
// A lane is a stage of one direction: a queue of micro-batches that all pass in the same order. So
// a rank's list is a string of symbols ("the next F of lane 2"), and the numbers of micro-batches
// follow from counting. Chunks of one lane cost the same, so nothing is lost by that.
#pragma once

#include "dp/simulate.h"

struct lane {
    int32_t rank, stage, direction, slot;
    int32_t first, count;  // micro-batches first .. first + count - 1
    size_t base;           // of its rows in tables of [chunks]
    int32_t next, before;  // lanes of the next and of the previous stage; -1 at the ends
    int32_t up, down;      // links there
    uint64_t bytes, at_i;  // activations of a chunk; of these, released by I
};

struct link {
    double latency;
    double seconds[2];     // on the wire: an activation, a gradient
};

// What a symbol means on its rank.
struct step {
    double seconds;
    int32_t forward, backward, weight;  // lanes of its parts, -1 = none
    uint8_t kind, b_kind;
    uint64_t take, give;   // bytes: at its start, at its end
};

struct field {
    struct dp_schedule shape;   // no actions
    struct dp_sim_costs costs;
    uint64_t *static_bytes;     // [pipeline]
    uint64_t *room;             // [pipeline]: for activations, under the cap
    int32_t pipeline;
    struct lane *lanes;         // by rank
    int32_t *lane_begin;        // [pipeline + 1]
    int32_t lanes_most;         // of one rank
    size_t chunks;              // of all lanes
    struct link *links;
    int32_t links_count;
    struct step *steps;         // [pipeline][symbols]
    int32_t symbols;
    size_t *list_begin;         // [pipeline + 1]: room for each rank's list
    bool is_simple;             // the fast evaluation holds: nobody shares cores or blocks on sends
};

// Takes shape and costs, which fit each other, and static_bytes. cap may be NULL.
void dp_auto_field_init(struct field *ret_field, struct dp_schedule *shape,
                        struct dp_sim_costs *costs, uint64_t *static_bytes, const uint64_t *cap);
void dp_auto_field_deinit(struct field *field);

static inline int32_t field_lane_count(const struct field *field, int32_t rank)
{
    return field->lane_begin[rank + 1] - field->lane_begin[rank];
}

// Symbols of one rank: `local` counts its lanes from 0.
static inline int32_t symbol_of(const struct field *field, dp_action_kind kind, int32_t local)
{
    return (int32_t)kind * field->lanes_most + local;
}

static inline int32_t symbol_of_pair(const struct field *field, int32_t forward, int32_t backward,
                                     dp_action_kind b_kind)
{
    int32_t most = field->lanes_most;
    int32_t of_kind = b_kind == DP_ACTION_I ? most * most : 0;
    return (int32_t)DP_ACTION_FB * most + of_kind + forward * most + backward;
}

static inline const struct step *step_of(const struct field *field, int32_t rank, int32_t symbol)
{
    return &field->steps[rank * field->symbols + symbol];
}
