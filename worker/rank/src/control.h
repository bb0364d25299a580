// The rank's thread that talks to its keeper: takes orders, sends reports, samples the meter.
//
// The main thread never waits for the keeper: its reports are queued.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/arena.h"
#include "dp/error.h"
#include "dp/exec_meter.h"
#include "dp/link.h"
#include "dp/v1/rank.pb-c.h"

struct control;

// Takes fd and starts the thread.
struct control *control_new(int fd, uint32_t rank);
// Sends what is queued, ends the thread and closes the connection. Accepts NULL.
void control_free(struct control *control);

// Waits for the order of that kind; it is unpacked into `arena`. DP_INTERRUPTED: a stop came first.
dp_status control_wait_order(struct control *control, Dp__V1__RankOrder__OrderCase kind,
                             struct dp_arena *arena, Dp__V1__RankOrder **ret_order,
                             struct dp_error *err);
// From here on orders must carry this fence, others are refused, and reports do.
void control_set_fence(struct control *control, const Dp__V1__Fence *fence);
// From here on utilisation is reported. The meter is borrowed; `pipeline` is the number of ranks of
// one replica.
void control_set_meter(struct control *control, struct dp_exec_meter *meter, int32_t pipeline);

// What has been ordered and not yet been taken.
struct control_wish {
    bool stop;
    bool checkpoint;
    uint64_t request;   // of the newest checkpoint order
    uint64_t probe;     // of the newest order to probe; 0 = none
    uint64_t rebalance; // of the newest order to place experts; 0 = none
    bool pause;
};
void control_peek_wish(struct control *control, struct control_wish *ret_wish);
// The checkpoint that was asked for is made.
void control_take_checkpoint(struct control *control, uint64_t request);

// Of a rank that holds: waits for an order to settle (true), or to stop (false).
struct control_settle {
    int64_t step;
    double grad_norm;
};
bool control_wait_settle(struct control *control, struct control_settle *ret_settle);

// The probe that was asked for is made.
void control_take_probe(struct control *control, uint64_t request);
// Experts were placed.
void control_take_rebalance(struct control *control, uint64_t request);

// Queues a report; fence and rank are filled in.
void control_report(struct control *control, dp_link_slot slot, Dp__V1__RankReport *report);
// The same for a completed step, whose spans are added from the meter when `with_spans`. Its
// expert_tokens and layers are copied.
void control_report_step(struct control *control, const Dp__V1__StepDone *step, bool with_spans);
