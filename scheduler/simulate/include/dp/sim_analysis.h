// What lies behind a simulated step: the chain of actions that makes it as long as it is, how much
// later each action could end for nothing, and memory over time.
//
// All of it follows from the times of the actions, which must be those that dp_simulate gave for
// the same schedule and costs. Where ranks share cores, the actions' durations are taken as they
// came out: what a change would do to the sharing is left aside.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "dp/simulate.h"

// Why an action did not start earlier.
typedef enum dp_sim_cause {
    DP_SIM_CAUSE_START,       // it is the first of all
    DP_SIM_CAUSE_ORDER,       // its rank was busy with the action before
    DP_SIM_CAUSE_DEPENDENCY,  // an input was computed just then
    DP_SIM_CAUSE_COMM,        // an input travelled until then, or waited for the wire
} dp_sim_cause;

const char *dp_sim_cause_text(dp_sim_cause cause);  // "start", "order", "dependency", "comm"

struct dp_sim_path_step {
    int32_t rank;
    dp_sim_cause cause;
    size_t action;      // index into schedule->actions
    double start, end;
};

struct dp_sim_analysis {
    // How much later each action may end while the step (its last action) ends as it does; never
    // negative, and exactly 0 on the path. Parallel to schedule->actions. It reckons with the order
    // of each rank, with data, latency and the wire (messages that follow each other on it), and
    // with batches that block.
    double *slack;
    // One critical path, from time 0 to the makespan. A step starts exactly when the one before it
    // ends, except after DP_SIM_CAUSE_COMM: there the time between is the message's.
    struct dp_sim_path_step *path;
    size_t path_count;
};

// DP_INVALID when spans are not those of the schedule with these costs. The caller deinits
// *ret_analysis. Needs 4 bytes per message besides the result, 8 more where messages take time on
// the wire; with blocking batches the lowered form and 24 bytes per message.
dp_status dp_sim_analyze(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                         const struct dp_sim_span *spans, struct dp_sim_analysis *ret_analysis,
                         struct dp_error *err);
// dp_simulate with spans and dp_sim_analyze of them, in less time with blocking batches, whose
// messages are found once. The caller deinits both.
dp_status dp_simulate_analyzed(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                               struct dp_sim_result *ret_result,
                               struct dp_sim_analysis *ret_analysis, struct dp_error *err);
void dp_sim_analysis_deinit(struct dp_sim_analysis *analysis);

// What a rank keeps from `time` until the next point.
struct dp_sim_memory_point {
    double time;
    uint64_t bytes;     // activations, as peak_bytes of dp_sim_rank counts them
    uint32_t chunks;    // as held_peak_chunks counts them
};

// The rank's memory from time 0 on, one point for each change, in order of time; of points with the
// same time the last one holds. The first is {0, 0, 0}; a complete schedule ends with nothing kept.
// The caller frees *ret_points.
void dp_sim_memory_over_time(const struct dp_schedule *schedule, const struct dp_sim_costs *costs,
                             const struct dp_sim_span *spans, int32_t rank,
                             struct dp_sim_memory_point **ret_points, size_t *ret_count);
