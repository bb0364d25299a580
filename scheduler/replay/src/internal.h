// The rooms of the replay: table (who did what, by position), graph (what waits for what), engine
// (what follows when times change).
#pragma once

#include "dp/replay.h"

// The operations of one replica's step have the same positions in every step of every replica. A
// lane is one step of one replica: lane = step * replicas + replica.
struct replay_table {
    int32_t replicas, stages;
    size_t positions, steps, lanes;
    int32_t *first;                   // [stages * kinds + 1]: position of (stage, kind, 0)
    int32_t *kind, *stage, *mc, *gmc; // [positions]
    double *start, *duration;         // [positions][lanes]
    int32_t *step;                    // [steps]: its number
    int32_t *rank;                    // [replicas][stages]
    int32_t chunks;                   // model chunks on one stage
    size_t steps_left_out;
    int32_t left_out;
};

// DP_INVALID when the operations do not fit together.
dp_status dp_replay_table_init(struct replay_table *ret_table, const struct dp_replay_op *ops,
                               size_t count, struct dp_error *err);
void dp_replay_table_deinit(struct replay_table *table);

// How many operations of a kind a stage has in one step.
static inline int32_t replay_count(const struct replay_table *table, int32_t stage,
                                   dp_replay_kind kind)
{
    const int32_t *first = &table->first[stage * DP_REPLAY_KIND_COUNT + (int32_t)kind];
    return first[1] - first[0];
}

static inline int32_t replay_position(const struct replay_table *table, int32_t stage,
                                      dp_replay_kind kind, int32_t seq)
{
    return table->first[stage * DP_REPLAY_KIND_COUNT + (int32_t)kind] + seq;
}

static inline int32_t replay_seq(const struct replay_table *table, int32_t position)
{
    return position -
           replay_position(table, table->stage[position], (dp_replay_kind)table->kind[position], 0);
}

// The lane that shows what follows what: the first replica in the first step.
static inline double replay_first_start(const struct replay_table *table, int32_t position)
{
    return table->start[(size_t)position * table->lanes];
}

static inline double replay_first_end(const struct replay_table *table, int32_t position)
{
    return replay_first_start(table, position) + table->duration[(size_t)position * table->lanes];
}

// Operations that end together form a node: one operation, the two ends of a transfer, all who take
// part in a collective. Nodes stand in an order in which each comes after what it waits for.
struct replay_graph {
    size_t nodes;
    int32_t *member_begin, *members; // [nodes + 1]; positions
    int32_t *wait_begin, *waits;     // [nodes + 1]; positions that must have ended
    bool *joint;                     // [nodes]: its own time counts from its last participant
    bool *across;                    // [nodes]: all replicas take part
};

struct replay_edge {
    int32_t before, after; // positions
};

// What a graph is built from.
struct replay_links {
    struct replay_edge *edges;
    size_t count, capacity;
    int32_t *node;        // [positions]: one number per node: that of a member
    bool *joint, *across; // [positions]
};

dp_status dp_replay_links_init(struct replay_links *ret_links, const struct replay_table *table,
                               struct dp_error *err);
void dp_replay_links_deinit(struct replay_links *links);
void dp_replay_link(struct replay_links *links, int32_t before, int32_t after);
// Pairs sends with receives and both with the compute whose data they move.
dp_status dp_replay_match(const struct replay_table *table, struct replay_links *links,
                          struct dp_error *err);
// DP_INVALID names an operation that waits for itself.
dp_status dp_replay_graph_init(struct replay_graph *ret_graph, const struct replay_table *table,
                               struct dp_error *err);
void dp_replay_graph_deinit(struct replay_graph *graph);
// The positions of two kinds on a stage, in the order in which they started. Caller frees.
int32_t *dp_replay_in_order(const struct replay_table *table, int32_t stage, dp_replay_kind a,
                            dp_replay_kind b, size_t *ret_count);

// Each operation's own time, waiting taken out: [positions][lanes].
void dp_replay_own_times(const struct replay_table *table, const struct replay_graph *graph,
                         double *ret_times);
// Seconds of each step when operations take `times`: [positions][lanes] to [lanes / together].
// Lanes that stand together, `together` of them, do what is across replicas with one another.
void dp_replay_run(const struct replay_table *table, const struct replay_graph *graph,
                   const double *times, size_t lanes, size_t together, double *scratch,
                   double *ret_steps);
