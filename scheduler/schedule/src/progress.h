// Runs a schedule without time: whether all ranks get to the end of their lists.
#pragma once

#include "problems.h"

// Needs lists whose actions are in range and on the right rank, each (stage, micro-batch) once
// forward and once backward. Notes each ring of ranks that wait for each other; returns whether
// there was none.
bool dp_schedule_find_rings(const struct dp_schedule *schedule, const struct dp_problem_sink *sink);
