// Times and sizes as people read them.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/schedule.h"

// The unit in which a length of time is best read: "s", "ms", "us" or "ns".
struct scale_unit {
    double seconds;
    const char *name;
};
struct scale_unit dp_render_time_unit(double seconds);

// Nanoseconds of a simulated time, at least 0: the most there are where it is longer (292 years).
int64_t dp_render_ns(double seconds);

// Whether a step of this length has a picture: an attosecond or more, and within what the
// arithmetic of axes holds exactly enough (1e30 s).
bool dp_render_is_drawable(double makespan);

// The smallest of 1, 2, 5, 10, ... (times a power of ten) that is at least `least`.
double dp_render_round_step(double least);

// "17 B", "4.5 KiB", "1.25 GiB".
void dp_render_bytes(uint64_t bytes, struct dp_buf *out);

// Decimal digits of a number that is not negative.
int32_t dp_render_digits(int64_t number);

// Most stages that one rank holds.
int32_t dp_render_stages_per_rank(const struct dp_schedule *schedule);
