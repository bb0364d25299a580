// Work that an opened stream's thread does in the order in which it was put there.
#pragma once

#include <stddef.h>

#include "dp/device.h"

struct dp_queue;

typedef void (*dp_task)(struct dp_stream *stream, void *arguments);

// Starts the thread that calls tasks with `stream`.
dp_status dp_queue_open(struct dp_stream *stream, struct dp_queue **ret_queue,
                        struct dp_error *err);
void dp_queue_close(struct dp_queue *queue); // waits for what is in it
// Copies `bytes` of arguments.
void dp_queue_put(struct dp_queue *queue, dp_task task, const void *arguments, size_t bytes);
void dp_queue_drain(struct dp_queue *queue);
