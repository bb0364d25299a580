// What travels between ranks, as pairs of actions.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/schedule.h"

#define DP_RENDER_NO_ACTION UINT32_MAX

// Finds the action that runs a chunk: F in [0], B or I in [1]. An array by stage and micro-batch.
struct render_where {
    int32_t microbatches;
    uint32_t (*at)[2];
};

void dp_render_where_init(struct render_where *ret_where, const struct dp_schedule *schedule);
void dp_render_where_deinit(struct render_where *where);

// What one chunk's F, B or I (a pair has two) hands over, and to which action; `to` is
// DP_RENDER_NO_ACTION when nothing needs it.
struct render_handover {
    uint32_t from, to; // indices into schedule->actions
    int32_t stage, to_stage;
    uint32_t microbatch;
    bool forward;
};

// The results of the action at `index`: at most 2; returns how many. A pair's forward comes first.
int dp_render_handovers(const struct dp_schedule *schedule, const struct render_where *where,
                        uint32_t index, struct render_handover ret_handovers[2]);

// The actions whose results the action at `index` needs, at most 2; returns how many.
// DP_RENDER_NO_ACTION stands for one that is missing.
int dp_render_sources(const struct dp_schedule *schedule, const struct render_where *where,
                      uint32_t index, uint32_t ret_sources[2]);

// All messages between different ranks, by `from`. The caller frees *ret_messages.
struct render_message {
    struct render_handover what;
    int32_t from_rank, to_rank;
};
void dp_render_messages(const struct dp_schedule *schedule, const struct render_where *where,
                        struct render_message **ret_messages, size_t *ret_count);
