// Where jobs stand in the queue.
#pragma once

#include "connect.h"

// "1; ahead: nobody; start about 2026-11-30T17:02:11.000Z".
const char *dpctl_queue_text(char *buffer, size_t size, const Dp__V1__QueuePlace *place);
void dpctl_print_queue(const Dp__V1__ListJobsResponse *jobs, int fits);
