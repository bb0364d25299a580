// What was decided about jobs' ranks, as people are shown it.
#pragma once

#include "daemon.h"

// ListDecisions and ReassignJob.
extern const struct dp_rpc_handler decision_handlers[2];

Dp__V1__Decision *decision_message(const struct dp_decision_record *from, bool document,
                                   struct dp_arena *arena);
// The newest few of a job, with it. What cannot be read is logged and left out.
void decisions_show(struct daemon *daemon, uint64_t number, Dp__V1__Job *job,
                    struct dp_arena *arena);
// Those of a job that are on disk, the oldest first; of them the `newest`, 0 = all. Returns how
// many; err is set when they cannot be read.
size_t decisions_of(struct daemon *daemon, uint64_t job, uint32_t newest, bool documents,
                    struct dp_arena *arena, Dp__V1__Decision ***ret_decisions,
                    struct dp_error *err);
