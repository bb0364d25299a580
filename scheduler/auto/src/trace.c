#include "trace.h"

#include <stdlib.h>

#include "dp/alloc.h"

enum { PATH_MAX_KEPT = 8192 };

void dp_auto_trace_init(struct trace *ret_trace, const struct field *field)
{
    size_t positions = field->list_begin[field->pipeline];
    size_t capacity = positions < PATH_MAX_KEPT ? positions : PATH_MAX_KEPT;
    *ret_trace = (struct trace){.forward_at = dp_new_array(uint32_t, field->chunks),
                                .backward_at = dp_new_array(uint32_t, field->chunks),
                                .forward_chunk = dp_new_array(uint32_t, positions),
                                .backward_chunk = dp_new_array(uint32_t, positions),
                                .path = dp_new_array(struct spot, capacity),
                                .capacity = capacity};
}

void dp_auto_trace_deinit(struct trace *trace)
{
    free(trace->forward_at);
    free(trace->backward_at);
    free(trace->forward_chunk);
    free(trace->backward_chunk);
    free(trace->path);
    *trace = (struct trace){0};
}

static void fill_tables(struct trace *trace, const struct order *order, const struct field *field)
{
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        uint32_t forwards[DP_RANK_STAGES_MAX] = {0}, backwards[DP_RANK_STAGES_MAX] = {0};
        size_t begin = field->list_begin[rank];
        for (uint32_t at = 0; at < order->length[rank]; at++) {
            const struct step *step = step_of(field, rank, order->symbols[begin + at]);
            if (step->forward >= 0) {
                uint32_t chunk = forwards[step->forward - field->lane_begin[rank]]++;
                trace->forward_chunk[begin + at] = chunk;
                trace->forward_at[field->lanes[step->forward].base + chunk] = at;
            }
            if (step->backward >= 0) {
                uint32_t chunk = backwards[step->backward - field->lane_begin[rank]]++;
                trace->backward_chunk[begin + at] = chunk;
                trace->backward_at[field->lanes[step->backward].base + chunk] = at;
            }
        }
    }
}

struct part {
    int32_t lane;
    uint32_t chunk;
};

struct source {
    struct spot spot;
    double arrival; // when its result reaches the action that needs it; < 0 = none
};

static void look_at_source(const struct trace *trace, const struct field *field,
                           const struct clock *clock, struct part part, int way,
                           struct source *source)
{
    const struct lane *lane = &field->lanes[part.lane];
    int32_t from = way == 0 ? lane->before : lane->next;
    if (from < 0) {
        return;
    }
    const struct lane *sender = &field->lanes[from];
    size_t chunk = sender->base + part.chunk;
    uint32_t at = (way == 0 ? trace->forward_at : trace->backward_at)[chunk];
    double arrival = clock->spans[field->list_begin[sender->rank] + at].end +
                     field->links[way == 0 ? sender->up : sender->down].latency;
    if (arrival > source->arrival) {
        *source = (struct source){{sender->rank, at}, arrival};
    }
}

static struct source source_of(const struct trace *trace, const struct order *order,
                               const struct clock *clock, struct spot spot)
{
    const struct field *field = clock->field;
    size_t position = field->list_begin[spot.rank] + spot.at;
    const struct step *step = step_of(field, spot.rank, order->symbols[position]);
    struct source source = {.arrival = -1};
    if (step->forward >= 0) {
        look_at_source(trace, field, clock,
                       (struct part){step->forward, trace->forward_chunk[position]}, 0, &source);
    }
    if (step->backward >= 0) {
        look_at_source(trace, field, clock,
                       (struct part){step->backward, trace->backward_chunk[position]}, 1,
                       &source);
    }
    return source;
}

void dp_auto_trace_run(struct trace *trace, const struct order *order, const struct clock *clock,
                       bool longest_span)
{
    const struct field *field = clock->field;
    fill_tables(trace, order, field);
    int32_t worst = 0;
    double most = -1;
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        double value = clock->end[rank] - (longest_span ? clock->begin[rank] : 0);
        if (value > most && order->length[rank] > 0) {
            most = value;
            worst = rank;
        }
    }
    trace->count = 0;
    struct spot spot = {worst, order->length[worst] - 1};
    while (trace->count < trace->capacity) {
        trace->path[trace->count++] = spot;
        struct source source = source_of(trace, order, clock, spot);
        double free_at =
            spot.at > 0 ? clock->spans[field->list_begin[spot.rank] + spot.at - 1].end : -1;
        if (source.arrival < 0 && free_at < 0) {
            return;
        }
        spot = source.arrival > free_at ? source.spot : (struct spot){spot.rank, spot.at - 1};
    }
}
