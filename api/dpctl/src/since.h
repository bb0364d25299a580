// A point of time on a command line.
#pragma once

#include "dpctl.h"

// "90s", "30m", "2h", "7d" ago, or "2026-11-30", "2026-11-30T10:00:00Z" (UTC): nanoseconds of the
// wall clock. A usage error otherwise.
int64_t dpctl_since(struct argp_state *state, const char *text);
