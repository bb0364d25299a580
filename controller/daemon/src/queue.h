// The queue as people see and change it.
#pragma once

#include "daemon.h"

// UpdateJob.
extern const struct dp_rpc_handler update_handler;

void queue_stop(struct daemon *daemon);
// ListJobs with `queued`: in the order in which they go.
void queue_list(struct daemon *daemon, uint64_t call, const Dp__V1__ListJobsRequest *request,
                uint32_t limit, struct dp_arena *arena);
// Where a job that waits stands. Of a long queue both are as of a moment ago, when it may not have
// been there: it is without a place then.
void queue_show(struct daemon *daemon, uint64_t number, Dp__V1__Job *job, struct dp_arena *arena);
