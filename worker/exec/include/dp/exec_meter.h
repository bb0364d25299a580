// What a rank shows of itself while it runs: one record per action, and a few levels.
//
// One thread (the executor) writes, one other thread reads; neither ever waits for the other.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/action_span.h"

struct dp_exec_record {
    struct dp_action_span span; // wall clock, UTC nanoseconds
    // Before the span began, since the end of what the rank did last:
    int64_t idle_ns;     // the input had not been sent yet
    int64_t comm_ns;     // the input was on its way
    int64_t exchange_ns; // inside the span: waiting for expert-parallel peers
    // Parts of actions that come later may run while this one would have to wait.
    int64_t filled_ns; // inside the span: for later actions
    int64_t early_ns;  // before the span: for this one, inside earlier ones
    // Of the forward chunk, all layers: what this rank's experts received, as in struct dp_routed.
    int64_t routed_rows, routed_tokens;
    int64_t worked_rows; // of both chunks, the forward and the backward one: rows as above
};

struct dp_exec_levels {
    uint32_t live_chunks, peak_chunks; // between the start of F and the end of B or I
    // What chunks keep between their actions, and the most that they hold at the end of one: of the
    // running chunks with the result that is not sent yet, or for a B what it held before.
    uint64_t live_bytes, peak_bytes;
    int64_t step; // completed
};

struct dp_exec_meter;

// Room for `records` that have not been read; rounded up to a power of two.
struct dp_exec_meter *dp_exec_meter_new(size_t records);
// Accepts NULL.
void dp_exec_meter_free(struct dp_exec_meter *meter);

// Writer. A record that finds no room is counted and dropped.
void dp_exec_meter_push(struct dp_exec_meter *meter, const struct dp_exec_record *record);
void dp_exec_meter_set_levels(struct dp_exec_meter *meter, const struct dp_exec_levels *levels);

// Reader. Takes up to `max` records in order; returns how many.
size_t dp_exec_meter_pop(struct dp_exec_meter *meter, struct dp_exec_record *ret_records,
                         size_t max);
// Each value is whole, but they may be of different moments.
void dp_exec_meter_levels(struct dp_exec_meter *meter, struct dp_exec_levels *ret_levels);
uint64_t dp_exec_meter_dropped(struct dp_exec_meter *meter);
