// Threads that share the ranges of one operation with their caller.
//
// A crew has one user at a time; its threads sleep between operations after a short wait for the
// next one.
#pragma once

#include <stdint.h>

#include "dp/error.h"

struct dp_crew;

// `threads` counts the caller's, >= 2. DP_IO when the host has no more threads.
dp_status dp_crew_new(int32_t threads, struct dp_crew **ret_crew, struct dp_error *err);
void dp_crew_free(struct dp_crew *crew); // joins; NULL does nothing
int32_t dp_crew_threads(const struct dp_crew *crew);

// Calls work(part, context) for every part below `parts` <= threads, part 0 in the caller's thread;
// returns when all have returned.
void dp_crew_run(struct dp_crew *crew, int32_t parts, void (*work)(int32_t part, void *context),
                 void *context);
