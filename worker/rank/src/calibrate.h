// Measures this machine as one rank of many will use it: one thread of arithmetic at a time.
#pragma once

#include <stdio.h>

#include "dp/error.h"
#include "dp/profile.h"

// Takes two to four seconds; writes a dp.profile/1 document. Starts and ends threads of its own.
dp_status calibrate(FILE *out, struct dp_error *err);

// Its parts: each fills the figures that it measures.
dp_status calibrate_compute(struct dp_profile *profile, struct dp_error *err);
dp_status calibrate_link(struct dp_profile *profile, struct dp_error *err);
