// "What if": texts and files that people write, applied to the costs of a schedule.
//
// Pure: text in, costs out. `name` is what errors call the text ("--slow"). DP_INVALID lists every
// problem with its column and, where one is near, the word that was meant; costs are then
// untouched.
#pragma once

#include <stddef.h>

#include "dp/buf.h"
#include "dp/error.h"
#include "dp/schedule.h"
#include "dp/simulate.h"

// "F=1,I=1,W=1[,B=2][,FB=2.5][,FI=1.5]": seconds, or any unit that all of them share. F is needed,
// and enough of B, I, W: B = I + W; of B and one of the others the third is the rest; B alone is
// split in halves. Pairs: FB = F + B when absent (nothing overlaps); FI = FB - B + I, and at least
// the longer of F and I. The hop stays zero.
dp_status dp_what_if_parse_cost(const char *name, const char *text,
                                struct dp_sim_uniform *ret_uniform, struct dp_error *err);

// "rank=3:1.5[,stage=2:1.3][,rank=3:F=1.5]": everything that a rank does, or every copy of a
// stage, takes 1.5 times as long; with a letter F, B, I or W that kind alone. Factors multiply, and
// one under 1 makes faster. A pair keeps the share of its parts that overlap hides, and takes at
// least as long as its longer part.
dp_status dp_what_if_slow(const char *name, const char *text, const struct dp_schedule *schedule,
                          struct dp_sim_costs *costs, struct dp_error *err);

// "2-3:4x[,2>3:+0.5]": between ranks 2 and 3, both ways ('-') or one way ('>'), messages take 4
// times as long (latency times 4, bandwidth over 4), or 0.5 seconds longer; the x may be left out.
// A direction may be there once with a factor and once with seconds, applied in the order given.
// Calls add up; a latency over DP_COST_SECONDS_MAX and a bandwidth under DP_COST_BYTES_PER_S_MIN
// are refused. What had no effect
// (a link that costs nothing yet; one that carries nothing) is said in `notes`, a line each; NULL
// when not wanted.
dp_status dp_what_if_slow_link(const char *name, const char *text,
                               const struct dp_schedule *schedule, struct dp_sim_costs *costs,
                               struct dp_buf *notes, struct dp_error *err);

// A table of costs per stage: docs/what-if.md has the format. Replaces the seconds of every chunk
// and pair that the schedule has (a chunk without a row is a problem of the file) and the bytes
// where the file has them; links and the rest stay. costs must have the schedule's shape
// (dp_sim_costs_init or _init_uniform). At most DP_STAGE_COSTS_BYTES_MAX.
dp_status dp_what_if_stage_costs(const char *file, const char *text, size_t length,
                                 const struct dp_schedule *schedule, struct dp_sim_costs *costs,
                                 struct dp_error *err);
