// The parts of the newest steps of running jobs, rank by rank, in memory.
#pragma once

#include "dp/core.h"
#include "dp/correction.h"

struct lesson_steps; // of all jobs
void lesson_steps_free(struct lesson_steps *steps);
// The first step that a rank reports warms up and is left out, as are steps told twice.
void lesson_steps_add(struct lesson_steps **steps, const struct dp_report *report);
// Their hops are all waits between actions: what of them is no bubble, a plan tells.
//
// Medians over the steps kept of each of `ranks` ranks, and how much the slowest rank's steps
// differ. Returns how many steps there are of the rank that has the fewest.
int64_t lesson_steps_medians(const struct lesson_steps *steps, const char *job, size_t ranks,
                             struct dp_part_times *ret_times, double *ret_step_s,
                             double *ret_spread);
void lesson_steps_forget(struct lesson_steps **steps, const char *job);
