// When everything happens in an order: what dp_simulate finds, and bit for bit the same, but on
// symbols and without anything that searches do not ask for.
#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "order.h"

void dp_auto_clock_init(struct clock *ret_clock, const struct field *field)
{
    size_t ranks = (size_t)field->pipeline;
    size_t lanes = (size_t)field->lane_begin[ranks];
    *ret_clock = (struct clock){
        .field = field,
        .forward_in = dp_new_array(double, field->chunks),
        .backward_in = dp_new_array(double, field->chunks),
        .forwards = dp_new_array(int32_t, lanes),
        .backwards = dp_new_array(int32_t, lanes),
        .link_free = dp_new_array(double, (size_t)field->links_count),
        .begin = dp_new_array(double, ranks),
        .end = dp_new_array(double, ranks),
        .at = dp_new_array(size_t, ranks),
        .missing = (const double **)dp_alloc(ranks, sizeof(double *)),
        .ready = dp_new_array(int32_t, ranks),
        .spans = dp_new_array(struct dp_sim_span, field->list_begin[ranks]),
    };
}

void dp_auto_clock_deinit(struct clock *clock)
{
    free(clock->forward_in);
    free(clock->backward_in);
    free(clock->forwards);
    free(clock->backwards);
    free(clock->link_free);
    free(clock->begin);
    free(clock->end);
    free(clock->at);
    free((void *)clock->missing);
    free(clock->ready);
    free(clock->spans);
    *clock = (struct clock){0};
}

void dp_auto_clock_reset(struct clock *clock)
{
    const struct field *field = clock->field;
    int32_t lanes = field->lane_begin[field->pipeline];
    for (size_t i = 0; i < field->chunks; i++) {
        clock->forward_in[i] = clock->backward_in[i] = -1;
    }
    for (int32_t i = 0; i < lanes; i++) {
        const struct lane *lane = &field->lanes[i];
        clock->forwards[i] = clock->backwards[i] = 0;
        for (size_t m = 0; lane->before < 0 && m < (size_t)lane->count; m++) {
            clock->forward_in[lane->base + m] = 0;
        }
        for (size_t m = 0; lane->next < 0 && m < (size_t)lane->count; m++) {
            clock->backward_in[lane->base + m] = 0;
        }
    }
    for (int32_t i = 0; i < field->links_count; i++) {
        clock->link_free[i] = 0;
    }
    clock->ready_count = 0;
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        clock->begin[rank] = clock->end[rank] = 0;
        clock->at[rank] = 0;
        clock->missing[rank] = NULL;
        clock->ready[clock->ready_count++] = field->pipeline - 1 - rank;
    }
}

static inline void give(struct clock *clock, int32_t link, int32_t target, int way, int32_t index,
                        double end)
{
    const struct lane *lane = &clock->field->lanes[target];
    const double *arrival = clock_send(clock, link, target, way, index, end);
    if (clock->missing[lane->rank] == arrival) {
        clock->missing[lane->rank] = NULL;
        clock->ready[clock->ready_count++] = lane->rank;
    }
}

// Whether the input has arrived or will; *ready is then no earlier.
static inline bool take(struct clock *clock, int32_t rank, const double *arrival, double *ready)
{
    if (*arrival < 0) {
        clock->missing[rank] = arrival;
        return false;
    }
    *ready = *arrival > *ready ? *arrival : *ready;
    return true;
}

static inline void run_rank(struct clock *clock, const struct order *order, int32_t rank,
                            bool with_spans)
{
    const struct field *field = clock->field;
    const struct step *steps = step_of(field, rank, 0);
    const uint16_t *symbols = order->symbols + field->list_begin[rank];
    struct dp_sim_span *spans = clock->spans + field->list_begin[rank];
    size_t at = clock->at[rank], count = order->length[rank];
    double time = clock->end[rank];
    for (; at < count; at++) {
        const struct step *step = &steps[symbols[at]];
        double start = time;
        int32_t f = step->forward, b = step->backward;
        if (f >= 0 && !take(clock, rank,
                            &clock->forward_in[field->lanes[f].base + clock->forwards[f]],
                            &start)) {
            break;
        }
        if (b >= 0 && !take(clock, rank,
                            &clock->backward_in[field->lanes[b].base + clock->backwards[b]],
                            &start)) {
            break;
        }
        time = start + step->seconds;
        clock->begin[rank] = at == 0 ? start : clock->begin[rank];
        if (with_spans) {
            spans[at] = (struct dp_sim_span){start, time};
        }
        if (f >= 0) {
            int32_t index = clock->forwards[f]++;
            if (field->lanes[f].next >= 0) {
                give(clock, field->lanes[f].up, field->lanes[f].next, 0, index, time);
            }
        }
        if (b >= 0) {
            int32_t index = clock->backwards[b]++;
            if (field->lanes[b].before >= 0) {
                give(clock, field->lanes[b].down, field->lanes[b].before, 1, index, time);
            }
        }
    }
    clock->at[rank] = at;
    clock->end[rank] = time;
}

// Ranks that share cores or block on messages: as dp_simulate has it.
static bool simulate(struct clock *clock, const struct order *order)
{
    const struct field *field = clock->field;
    DP_CLEANUP(dp_schedule_deinit) struct dp_schedule schedule = {0};
    dp_auto_order_write(order, field, &schedule);
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result result = {0};
    if (dp_simulate(&schedule, &field->costs, true, &result, NULL) != DP_OK) {
        return false;
    }
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        clock->begin[rank] = result.ranks[rank].begin;
        clock->end[rank] = result.ranks[rank].end;
        size_t begin = schedule.rank_begin[rank];
        for (uint32_t i = 0; i < order->length[rank]; i++) {
            clock->spans[field->list_begin[rank] + i] = result.spans[begin + i];
        }
    }
    return true;
}

static bool run(struct clock *clock, const struct order *order, bool with_spans)
{
    dp_auto_clock_reset(clock);
    while (clock->ready_count > 0) {
        run_rank(clock, order, clock->ready[--clock->ready_count], with_spans);
    }
    for (int32_t rank = 0; rank < clock->field->pipeline; rank++) {
        if (clock->at[rank] < order->length[rank]) {
            return false;
        }
    }
    // Only what can finish may be simulated.
    return clock->field->is_simple || simulate(clock, order);
}

struct score dp_auto_clock_run(struct clock *clock, const struct order *order, bool longest_span,
                               bool with_spans)
{
    if (!run(clock, order, with_spans)) {
        return (struct score){INFINITY, INFINITY};
    }
    struct score score = {0, 0};
    for (int32_t rank = 0; rank < clock->field->pipeline; rank++) {
        double value = clock->end[rank] - (longest_span ? clock->begin[rank] : 0);
        score.value = value > score.value ? value : score.value;
        score.sum += value;
    }
    return score;
}
