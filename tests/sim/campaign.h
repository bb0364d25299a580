// Many worlds, on some processes, and what is told of the first that fails.
#pragma once

#include "sim.h"

// Runs seeds first, first + 1, ...; false when one failed, of which all is told on stderr: the
// rule, the faults that matter, the last events, the command that repeats it. `ret_tally` sums up
// those that passed.
bool sim_campaign(uint64_t first, uint64_t runs, uint32_t workers, struct sim_tally *ret_tally);
// Names each failure in a line on stdout; `all`: goes on after one. False when there was one.
bool sim_survey(uint64_t first, uint64_t runs, bool all);
// Tells all of one world on stdout.
bool sim_show(uint64_t seed);
// `seconds` 0: without how fast it went.
void sim_tally_print(const struct sim_tally *tally, double seconds);
