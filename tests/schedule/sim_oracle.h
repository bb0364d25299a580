// A second simulator, for small schedules. It knows no order of events: it raises starting times
// until every rule of the model holds, and takes the seconds of each action one by one.
#pragma once

#include "dp/rand.h"
#include "dp/schedule.h"
#include "dp/simulate.h"

// Whole seconds of `least` to `most`, so that sums are exact.
double random_seconds(struct dp_rand *rand, uint32_t least, uint32_t most);
// Fills costs of any shape with whole seconds: actions 1 to 6, latency 0 to `latency_most`, bytes
// 0 to `wire_most` on the wire.
void random_whole_costs(struct dp_rand *rand, struct dp_sim_costs *costs, uint32_t latency_most,
                        uint32_t wire_most);

// What one action gives to another.
struct oracle_message {
    size_t from, to;         // actions
    int32_t sender, receiver;  // ranks; the same for a local hand-over
    int way;                 // 0 = activation, 1 = gradient
    size_t number;           // the order of messages of blocking batches
    size_t send_batch, receive_batch;  // of the ranks
};

struct oracle {
    const struct dp_schedule *schedule;
    const struct dp_sim_costs *costs;
    size_t actions, messages;
    double *seconds;         // [actions], from the costs; tests change them
    struct oracle_message *message;  // in an order in which each pair of ranks sends them
    struct dp_sim_span *spans;  // of the last oracle_run
};

void oracle_init(struct oracle *oracle, const struct dp_schedule *schedule,
                 const struct dp_sim_costs *costs);
void oracle_deinit(struct oracle *oracle);
// Fills oracle->spans; returns the makespan.
double oracle_run(struct oracle *oracle);
int32_t oracle_rank_of(const struct oracle *oracle, size_t action);
double oracle_wire_seconds(const struct oracle *oracle, const struct oracle_message *message);
