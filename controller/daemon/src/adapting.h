// Answers to the core's ADAPT: another layout for a job that runs.
#pragma once

#include "daemon.h"

// The answer goes to the core, as ADAPT_DONE or ADAPT_FAILED.
void adapting_start(struct daemon *daemon, const struct dp_effect *effect);
