// What the two backward passes and the path share. Slack is carried backwards from the last action:
// what comes later leaves so much room, plus the time that the later one waited for something else.
// Along whatever waited for nothing else the room stays exactly 0, since the times that are
// compared are the very sums that the engines made.
#pragma once

#include "dp/sim_analysis.h"
#include "sim.h"

// The message before on the wire in a backward pass: the one that follows.
struct follower {
    double slack; // of its leaving
    double base;  // when it went on the wire
};

struct analysis {
    const struct dp_schedule *schedule;
    const struct dp_sim_costs *costs;
    const struct dp_sim_span *spans;
    double makespan;
    double *slack;              // [actions]
    struct link *links;         // [pipeline][pipeline]
    struct follower *followers; // [pipeline][pipeline]
    // Free-running: the action that needs each result, by the needing stage: [FORWARD, BACKWARD]
    // [stages][microbatches].
    uint32_t *consumer;
    // When each gradient goes on the wire: [stages][microbatches]; NULL where wires take no time.
    // That of an activation is where the slack of the action that makes it comes later.
    double *base;
    // Blocking batches: the messages, found by dp_sim_slack_blocking unless they are there, and by
    // message: when both its ends were posted, when it went on the wire, and
    // the slack that its ends leave, then of its leaving.
    struct dp_lowered lowered;
    double *met, *wired, *room;
};

#define NO_ACTION UINT32_MAX

// A result of an action: for stage `target` of rank `peer`.
struct output {
    int way;
    int32_t target, peer;
    uint32_t microbatch;
};

// Both fill analysis->slack and what the path needs. DP_INVALID when the spans do not fit.
dp_status dp_sim_slack_free(struct analysis *analysis, struct dp_error *err);
dp_status dp_sim_slack_blocking(struct analysis *analysis, struct dp_error *err);
// The action that the end of `action` holds back and that has no slack; NO_ACTION when there is
// none.
size_t dp_sim_path_next_free(const struct analysis *analysis, int32_t rank, size_t action,
                             int32_t *ret_rank);
size_t dp_sim_path_next_blocking(const struct analysis *analysis, int32_t rank, size_t action,
                                 int32_t *ret_rank);

// Results that somebody needs, in the order in which they are sent; returns how many.
static inline int outputs_of(const struct dp_schedule *schedule, const struct dp_action *action,
                             struct output ret_outputs[2])
{
    bool pair = action->kind == DP_ACTION_FB;
    int count = 0;
    if ((action->kind == DP_ACTION_F || pair) && action->stage + 1 < schedule->stages) {
        int32_t target = action->stage + 1;
        ret_outputs[count++] =
            (struct output){FORWARD, target,
                            dp_schedule_rank_of(schedule, target, action->microbatch),
                            action->microbatch};
    }
    int32_t stage = pair ? action->b_stage : action->stage;
    uint32_t microbatch = pair ? action->b_microbatch : action->microbatch;
    if (action->kind != DP_ACTION_F && action->kind != DP_ACTION_W && stage > 0) {
        ret_outputs[count++] =
            (struct output){BACKWARD, stage - 1,
                            dp_schedule_rank_of(schedule, stage - 1, microbatch), microbatch};
    }
    return count;
}

static inline double least(double a, double b)
{
    return a < b ? a : b;
}

static inline bool is_last(const struct analysis *analysis, int32_t rank, size_t action)
{
    return action + 1 == analysis->schedule->rank_begin[rank + 1];
}

// Whether the action starts at `time` and may not start later.
static inline bool is_bound(const struct analysis *analysis, size_t action, double time)
{
    return analysis->spans[action].start == time && analysis->slack[action] == 0;
}

static inline struct link *link_between(const struct analysis *analysis, int32_t from, int32_t to)
{
    return &analysis->links[from * analysis->schedule->pipeline + to];
}

// Spans that no run of the model gives: something starts before what it needs.
dp_status dp_sim_refuse_spans(const struct analysis *analysis, int32_t rank, struct dp_error *err);
