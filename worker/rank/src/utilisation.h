// Sums the meter's records up to samples, and keeps those of recent steps for timelines.
#pragma once

#include "dp/exec_meter.h"
#include "dp/v1/rank.pb-c.h"

struct utilisation {
    struct dp_exec_meter *meter; // borrowed, NULL = none yet
    int64_t until_ns;            // wall clock up to which time has been reported
    int64_t last_end_ns;         // of the newest record
    int64_t cpu_ns;              // of the process, at the last sample
    Dp__V1__Utilisation sums;    // since the last sample
    int64_t step_ns;             // of the newest whole step
    uint64_t step_tokens;
    struct dp_exec_record *records; // of steps not yet reported; owned
    size_t count, capacity;
};

void utilisation_start(struct utilisation *self, struct dp_exec_meter *meter);
void utilisation_deinit(struct utilisation *self);
// Takes what the meter has.
void utilisation_drain(struct utilisation *self);
// The sample; starts the next one.
void utilisation_sample(struct utilisation *self, Dp__V1__Utilisation *ret_sample);
// The records of one step as spans (caller frees *ret_spans, one block), at most `max`; forgets all
// up to that step. `pipeline` is the number of ranks of one replica. ret_spans may be NULL.
size_t utilisation_take_step(struct utilisation *self, int64_t step, int32_t pipeline, size_t max,
                             Dp__V1__Span **ret_spans);
