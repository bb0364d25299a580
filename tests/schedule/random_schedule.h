// Valid schedules without any regularity: random placements, and orders in which at every step some
// rank takes something that is ready.
#pragma once

#include "dp/rand.h"
#include "dp/schedule.h"

// The caller deinits it.
struct dp_schedule make_random_schedule(struct dp_rand *rand);
