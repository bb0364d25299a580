#include "order.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

void dp_auto_order_init(struct order *ret_order, const struct field *field)
{
    size_t ranks = (size_t)field->pipeline;
    *ret_order = (struct order){dp_new_array(uint16_t, field->list_begin[ranks]),
                                dp_new_array(uint32_t, ranks)};
}

void dp_auto_order_copy(struct order *to, const struct order *from, const struct field *field)
{
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        size_t begin = field->list_begin[rank];
        memcpy(to->symbols + begin, from->symbols + begin,
               from->length[rank] * sizeof(*to->symbols));
        to->length[rank] = from->length[rank];
    }
}

void dp_auto_order_deinit(struct order *order)
{
    free(order->symbols);
    free(order->length);
    *order = (struct order){0};
}

// What reading a schedule keeps: per lane how many chunks have passed.
struct reader {
    const struct field *field;
    int32_t rank;
    int32_t *forwards, *backwards; // [lanes]
    uint8_t *split;                // [chunks]: the backward was an I, and its W is to come
    int32_t *weights;              // [lanes]: first chunk whose W may come
};

static int32_t lane_of(const struct reader *reader, int32_t stage, uint32_t microbatch)
{
    const struct field *field = reader->field;
    for (int32_t i = field->lane_begin[reader->rank]; i < field->lane_begin[reader->rank + 1];
         i++) {
        const struct lane *lane = &field->lanes[i];
        if (lane->stage == stage && (int32_t)microbatch >= lane->first &&
            (int32_t)microbatch < lane->first + lane->count) {
            return i;
        }
    }
    return -1;
}

// Takes one part of an action; returns its lane, -1 when it is not the next one there.
static int32_t pass(struct reader *reader, dp_action_kind kind, int32_t stage, uint32_t microbatch)
{
    int32_t at = lane_of(reader, stage, microbatch);
    if (at < 0) {
        return -1;
    }
    const struct lane *lane = &reader->field->lanes[at];
    int32_t index = (int32_t)microbatch - lane->first;
    int32_t *next = kind == DP_ACTION_F ? &reader->forwards[at] : &reader->backwards[at];
    if (kind == DP_ACTION_W) {
        next = &reader->weights[at];
        while (*next < reader->backwards[at] && !reader->split[lane->base + (size_t)*next]) {
            (*next)++;
        }
    } else if (kind == DP_ACTION_I) {
        reader->split[lane->base + (size_t)index] = 1;
    }
    return index == (*next)++ ? at : -1;
}

static int32_t read_action(struct reader *reader, const struct dp_action *action)
{
    int32_t begin = reader->field->lane_begin[reader->rank];
    bool pair = action->kind == DP_ACTION_FB;
    dp_action_kind kind = pair ? DP_ACTION_F : (dp_action_kind)action->kind;
    int32_t first = pass(reader, kind, action->stage, action->microbatch);
    if (first < 0) {
        return -1;
    }
    if (!pair) {
        return symbol_of(reader->field, kind, first - begin);
    }
    dp_action_kind b_kind = (dp_action_kind)action->b_kind;
    int32_t second = pass(reader, b_kind, action->b_stage, action->b_microbatch);
    return second < 0 ? -1
                      : symbol_of_pair(reader->field, first - begin, second - begin, b_kind);
}

bool dp_auto_order_read(struct order *order, const struct field *field,
                        const struct dp_schedule *schedule)
{
    size_t lanes = (size_t)field->lane_begin[field->pipeline];
    DP_AUTO_FREE int32_t *counts = dp_new_array(int32_t, 3 * lanes);
    DP_AUTO_FREE uint8_t *split = dp_new_array(uint8_t, field->chunks);
    struct reader reader = {.field = field,
                            .forwards = counts,
                            .backwards = counts + lanes,
                            .weights = counts + 2 * lanes,
                            .split = split};
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        reader.rank = rank;
        size_t begin = schedule->rank_begin[rank], count = schedule->rank_begin[rank + 1] - begin;
        if (count > field->list_begin[rank + 1] - field->list_begin[rank]) {
            return false;
        }
        for (size_t i = 0; i < count; i++) {
            int32_t symbol = read_action(&reader, &schedule->actions[begin + i]);
            if (symbol < 0) {
                return false;
            }
            order->symbols[field->list_begin[rank] + i] = (uint16_t)symbol;
        }
        order->length[rank] = (uint32_t)count;
    }
    return true;
}

// What writing one rank's list keeps, by lane of the rank.
struct writer {
    const struct field *field;
    int32_t forwards[DP_RANK_STAGES_MAX], backwards[DP_RANK_STAGES_MAX];
    uint32_t *waiting[DP_RANK_STAGES_MAX]; // micro-batches whose W is to come, first in first out
    int32_t waiting_first[DP_RANK_STAGES_MAX], waiting_end[DP_RANK_STAGES_MAX];
};

static struct dp_action make_action(struct writer *writer, int32_t rank, const struct step *step)
{
    const struct field *field = writer->field;
    int32_t begin = field->lane_begin[rank];
    struct dp_action action = {.kind = step->kind};
    if (step->weight >= 0) {
        int32_t lane = step->weight - begin;
        action.stage = (uint16_t)field->lanes[step->weight].stage;
        action.microbatch = writer->waiting[lane][writer->waiting_first[lane]++];
        return action;
    }
    if (step->forward >= 0) {
        const struct lane *lane = &field->lanes[step->forward];
        action.stage = (uint16_t)lane->stage;
        action.microbatch = (uint32_t)(lane->first + writer->forwards[step->forward - begin]++);
    }
    if (step->backward < 0) {
        return action;
    }
    int32_t local = step->backward - begin;
    const struct lane *lane = &field->lanes[step->backward];
    uint32_t microbatch = (uint32_t)(lane->first + writer->backwards[local]++);
    if (step->b_kind == DP_ACTION_I) {
        writer->waiting[local][writer->waiting_end[local]++] = microbatch;
    }
    if (step->kind == DP_ACTION_FB) {
        action.b_kind = step->b_kind;
        action.b_stage = (uint16_t)lane->stage;
        action.b_microbatch = microbatch;
    } else {
        action.stage = (uint16_t)lane->stage;
        action.microbatch = microbatch;
    }
    return action;
}

static void write_rank(const struct order *order, const struct field *field, int32_t rank,
                       struct dp_action *ret_actions)
{
    struct writer writer = {.field = field};
    int32_t count = field_lane_count(field, rank);
    for (int32_t i = 0; i < count; i++) {
        writer.waiting[i] =
            dp_new_array(uint32_t, (size_t)field->lanes[field->lane_begin[rank] + i].count);
    }
    for (uint32_t i = 0; i < order->length[rank]; i++) {
        int32_t symbol = order->symbols[field->list_begin[rank] + i];
        ret_actions[i] = make_action(&writer, rank, step_of(field, rank, symbol));
    }
    for (int32_t i = 0; i < count; i++) {
        free(writer.waiting[i]);
    }
}

void dp_auto_order_write(const struct order *order, const struct field *field,
                         struct dp_schedule *ret_schedule)
{
    size_t ranks = (size_t)field->pipeline, count = 0;
    for (size_t rank = 0; rank < ranks; rank++) {
        count += order->length[rank];
    }
    struct dp_schedule schedule = field->shape;
    DP_COPY_TEXT(schedule.name, "auto");
    schedule.placement =
        dp_memdup(schedule.placement, 2 * (size_t)schedule.stages * sizeof(int32_t));
    schedule.actions = dp_new_array(struct dp_action, count);
    schedule.rank_begin = dp_new_array(size_t, ranks + 1);
    for (size_t rank = 0; rank < ranks; rank++) {
        size_t begin = schedule.rank_begin[rank];
        write_rank(order, field, (int32_t)rank, schedule.actions + begin);
        schedule.rank_begin[rank + 1] = begin + order->length[rank];
    }
    *ret_schedule = schedule;
}

bool dp_auto_order_fits(const struct order *order, const struct field *field, int32_t rank)
{
    int32_t begin = field->lane_begin[rank];
    // Chunks past their F, I or B; W outstanding.
    int32_t forwards[DP_RANK_STAGES_MAX] = {0}, backwards[DP_RANK_STAGES_MAX] = {0};
    int32_t weights[DP_RANK_STAGES_MAX] = {0};
    uint64_t bytes = 0;
    const uint16_t *symbols = order->symbols + field->list_begin[rank];
    for (uint32_t i = 0; i < order->length[rank]; i++) {
        const struct step *step = step_of(field, rank, symbols[i]);
        if (step->backward >= 0) {
            int32_t local = step->backward - begin;
            if (++backwards[local] > forwards[local]) {
                return false;
            }
            weights[local] += step->b_kind == DP_ACTION_I;
        }
        if (step->forward >= 0) {
            forwards[step->forward - begin]++;
        }
        if (step->weight >= 0 && --weights[step->weight - begin] < 0) {
            return false;
        }
        bytes += step->take;
        if (bytes > field->room[rank]) {
            return false;
        }
        bytes -= step->give;
    }
    return true;
}
