// Measures this machine as ranks will use it: one thread of arithmetic each, by its CPU time, so
// that whatever else runs does not count; every figure is the middle one of several.
#pragma once

#include <stdio.h>

#include "dp/error.h"
#include "dp/profile.h"

// Takes two to four seconds; writes a dp.profile/1 document. Starts and ends threads of its own.
dp_status calibrate(FILE *out, struct dp_error *err);

// Its parts: each fills the figures that it measures. profile->cores is set before.
dp_status calibrate_compute(struct dp_profile *profile, struct dp_error *err);
dp_status calibrate_link(struct dp_profile *profile, struct dp_error *err);
// All-to-all between 2, 4, ... ranks, as many as there are cores and at least 4: each of them sends
// to all others at once, over the transport that ranks use.
dp_status calibrate_exchange(struct dp_profile *profile, struct dp_error *err);

// A line of progress on standard error, for people.
void calibrate_say(const char *what);
// The middle one of the values, and the mean of all but the largest fifth; both sort them.
double calibrate_median(double *values, int count);
double calibrate_mean(double *values, int count);
