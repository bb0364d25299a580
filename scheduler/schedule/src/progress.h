// Runs a schedule without time: whether all ranks get to the end of their lists.
#pragma once

#include "dp/schedule.h"

// Needs lists whose actions are in range and on the right rank, each (stage, micro-batch) once
// forward and once backward. DP_INVALID describes the ring of ranks that wait for each other.
dp_status dp_schedule_progress_check(const struct dp_schedule *schedule, struct dp_error *err);
