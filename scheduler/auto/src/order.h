// Orders: each rank's list as symbols of a field; to and from schedules; their times and memory.
#pragma once

#include "field.h"

struct order {
    uint16_t *symbols;   // rank r's list starts at field->list_begin[r]
    uint32_t *length;    // [pipeline]
};

// How good an order is: the objective first; where that is equal, the sum over ranks.
struct score {
    double value, sum;
};

static inline bool score_is_less(struct score a, struct score b)
{
    return a.value < b.value || (a.value <= b.value && a.sum < b.sum);
}

void dp_auto_order_init(struct order *ret_order, const struct field *field);
void dp_auto_order_copy(struct order *to, const struct order *from, const struct field *field);
void dp_auto_order_deinit(struct order *order);

// False when the schedule has micro-batches out of order in some lane; *order is then worthless.
bool dp_auto_order_read(struct order *order, const struct field *field,
                        const struct dp_schedule *schedule);
// The caller deinits *ret_schedule, which is named "auto".
void dp_auto_order_write(const struct order *order, const struct field *field,
                         struct dp_schedule *ret_schedule);

// Whether the rank's list makes sense by itself: no backward before its forward, no W before its I,
// and no more bytes alive than there is room for.
bool dp_auto_order_fits(const struct order *order, const struct field *field, int32_t rank);

// Memory that evaluations of one field reuse.
struct clock {
    const struct field *field;
    double *forward_in, *backward_in; // [chunks]: arrival of each chunk's input; < 0 = unknown
    int32_t *forwards, *backwards;    // [lanes]: done
    double *link_free;                // [links]
    double *begin, *end;              // [pipeline]: of the first and last action
    size_t *at;                       // [pipeline]
    const double **missing;           // [pipeline]: the arrival that a stopped rank waits for
    int32_t *ready;
    int32_t ready_count;
    // Per list position, when asked for.
    struct dp_sim_span *spans;        // as field->list_begin
};

void dp_auto_clock_init(struct clock *ret_clock, const struct field *field);
void dp_auto_clock_deinit(struct clock *clock);

// Back to the start of the step, every rank ready.
void dp_auto_clock_reset(struct clock *clock);

// Hands a result that is ready at `end` to chunk `index` of the lane that needs it; returns where
// its arrival is noted.
static inline const double *clock_send(struct clock *clock, int32_t link_index, int32_t target,
                                       int way, int32_t index, double end)
{
    const struct link *link = &clock->field->links[link_index];
    double *wire = &clock->link_free[link_index];
    double *arrival = (way == 0 ? clock->forward_in : clock->backward_in) +
                      clock->field->lanes[target].base + index;
    *wire = (end > *wire ? end : *wire) + link->seconds[way];
    *arrival = *wire + link->latency;
    return arrival;
}

// The order's score: infinite when ranks wait for each other. longest_span = the objective is that,
// not the makespan; with_spans = fill clock->spans.
struct score dp_auto_clock_run(struct clock *clock, const struct order *order, bool longest_span,
                               bool with_spans);
