// What `dpctl top` remembers of a job's ranks: a few figures of each, refresh by refresh.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/v1/controller.pb-c.h"

typedef enum top_metric {
    TOP_BUSY,  // share of the last second that it computed
    TOP_COMM,  // in communication that was not hidden
    TOP_IDLE,  // in neither
    TOP_SPEED, // as fast as ranks that do the same (1 = yes)
    TOP_METRIC_COUNT
} top_metric;

// "busy"; static.
const char *top_metric_text(top_metric metric);
// Whether more of it is better.
bool top_metric_is_good(top_metric metric);

#define TOP_UNKNOWN (-1.0F)

struct top_history {
    size_t ranks, columns; // room
    size_t filled;         // columns that hold something
    size_t next;           // where the next one goes
    float *cells;          // [metric][rank][column]
};

void top_history_deinit(struct top_history *history);
// Adds a column; a job with another number of ranks begins anew.
void top_history_add(struct top_history *history, const Dp__V1__Job *job);
// `age` columns ago, 0 = the newest; TOP_UNKNOWN where nothing is known. Others are in [0, 1].
float top_history_at(const struct top_history *history, top_metric metric, size_t rank, size_t age);

// Of the rank (or a link that ends there), what its straggler verdict is; NULL = none.
const Dp__V1__StragglerVerdict *top_verdict_of(const Dp__V1__Job *job, uint32_t rank);
