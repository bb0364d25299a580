#include "messages.h"

#include <stdlib.h>

#include "dp/action_halves.h"
#include "dp/alloc.h"

static uint32_t *where_at(const struct render_where *where, int32_t stage, uint32_t microbatch,
                          bool backward)
{
    size_t row = (size_t)stage * (size_t)where->microbatches + microbatch;
    return &where->at[row][backward];
}

void dp_render_where_init(struct render_where *ret_where, const struct dp_schedule *schedule)
{
    size_t rows = (size_t)schedule->stages * (size_t)schedule->microbatches;
    ret_where->microbatches = schedule->microbatches;
    ret_where->at = dp_alloc(rows, sizeof(*ret_where->at));
    for (size_t i = 0; i < rows; i++) {
        ret_where->at[i][0] = DP_RENDER_NO_ACTION;
        ret_where->at[i][1] = DP_RENDER_NO_ACTION;
    }
    uint32_t count = (uint32_t)dp_schedule_action_count(schedule);
    for (uint32_t i = 0; i < count; i++) {
        struct dp_half halves[2];
        int parts = dp_action_halves(&schedule->actions[i], halves);
        for (int k = 0; k < parts; k++) {
            if (halves[k].kind != DP_ACTION_W) {
                *where_at(ret_where, halves[k].stage, halves[k].microbatch,
                          halves[k].kind != DP_ACTION_F) = i;
            }
        }
    }
}

void dp_render_where_deinit(struct render_where *where)
{
    free(where->at);
    *where = (struct render_where){0};
}

int dp_render_handovers(const struct dp_schedule *schedule, const struct render_where *where,
                        uint32_t index, struct render_handover ret_handovers[2])
{
    struct dp_half halves[2];
    int parts = dp_action_halves(&schedule->actions[index], halves);
    int count = 0;
    for (int k = 0; k < parts; k++) {
        const struct dp_half *half = &halves[k];
        bool forward = half->kind == DP_ACTION_F;
        int32_t target = dp_half_target(schedule, half);
        if (target < 0) {
            continue;
        }
        ret_handovers[count++] =
            (struct render_handover){.from = index,
                                     .to = *where_at(where, target, half->microbatch, !forward),
                                     .stage = half->stage,
                                     .to_stage = target,
                                     .microbatch = half->microbatch,
                                     .forward = forward};
    }
    return count;
}

int dp_render_sources(const struct dp_schedule *schedule, const struct render_where *where,
                      uint32_t index, uint32_t ret_sources[2])
{
    struct dp_half halves[2];
    int parts = dp_action_halves(&schedule->actions[index], halves);
    int count = 0;
    for (int k = 0; k < parts; k++) {
        int32_t source = dp_half_source(schedule, &halves[k]);
        if (source >= 0) {
            ret_sources[count++] =
                *where_at(where, source, halves[k].microbatch, halves[k].kind != DP_ACTION_F);
        }
    }
    return count;
}

void dp_render_messages(const struct dp_schedule *schedule, const struct render_where *where,
                        struct render_message **ret_messages, size_t *ret_count)
{
    struct render_message *messages = NULL;
    size_t count = 0;
    size_t capacity = 0;
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            struct render_handover handovers[2];
            int parts = dp_render_handovers(schedule, where, (uint32_t)i, handovers);
            for (int k = 0; k < parts; k++) {
                int32_t peer =
                    dp_schedule_rank_of(schedule, handovers[k].to_stage, handovers[k].microbatch);
                if (peer == rank || handovers[k].to == DP_RENDER_NO_ACTION) {
                    continue;
                }
                if (count == capacity) {
                    capacity = capacity == 0 ? 256 : 2 * capacity;
                    messages = dp_realloc(messages, capacity, sizeof(*messages));
                }
                messages[count++] = (struct render_message){handovers[k], rank, peer};
            }
        }
    }
    *ret_messages = messages;
    *ret_count = count;
}
