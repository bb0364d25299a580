// How an action looks in text: letter, colour and shade.
#pragma once

#include <stdbool.h>

#include "dp/buf.h"
#include "dp/schedule.h"

struct shade_rank {
    const struct dp_schedule *schedule;
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count;
};

void dp_render_shade_rank_init(struct shade_rank *rank, const struct dp_schedule *schedule,
                               int32_t index);
// The action's (of a pair: its forward's) index among the stages that the rank holds.
int32_t dp_render_shade_slot(const struct shade_rank *rank, int32_t stage);
// Whether the action belongs to the second stream: direction 1, or every other chunk of the rank.
bool dp_render_shade_is_second(const struct shade_rank *rank, const struct dp_action *action);
// F, B, I, W or X (an overlapped pair); lower case for the second stream.
char dp_render_shade_letter(int kind, bool second);
// "forward", "backward", "input gradient", "weight gradient" or "overlapped pair".
const char *dp_render_kind_name(int kind);
// What lower case stands for, as an item of a legend; NULL when there is one stream.
const char *dp_render_second_stream(const struct dp_schedule *schedule);
// Starts the colour of the kind (black on a coloured ground) and ends it.
void dp_render_shade_begin(int kind, bool second, struct dp_buf *out);
void dp_render_shade_end(struct dp_buf *out);
