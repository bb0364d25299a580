#include "shade.h"

#include <ctype.h>

// Grounds of the 256-colour table: first stream, second stream (lighter).
static const struct {
    char letter;
    int ground[2];
} looks[DP_ACTION_KIND_COUNT] = {
    [DP_ACTION_F] = {'F', {75, 153}},   [DP_ACTION_B] = {'B', {71, 157}},
    [DP_ACTION_I] = {'I', {37, 159}},   [DP_ACTION_W] = {'W', {178, 229}},
    [DP_ACTION_FB] = {'X', {170, 219}},
};

void dp_render_shade_rank_init(struct shade_rank *rank, const struct dp_schedule *schedule,
                               int32_t index)
{
    rank->schedule = schedule;
    rank->count = dp_schedule_rank_stages(schedule, index, rank->stages);
}

bool dp_render_shade_is_second(const struct shade_rank *rank, const struct dp_action *action)
{
    if (rank->schedule->directions == 2) {
        return dp_schedule_direction(rank->schedule, action->microbatch) == 1;
    }
    for (int32_t slot = 0; slot < rank->count; slot++) {
        if (rank->stages[slot] == action->stage) {
            return slot % 2 == 1;
        }
    }
    return false;
}

char dp_render_shade_letter(int kind, bool second)
{
    char letter = looks[kind].letter;
    return second ? (char)tolower(letter) : letter;
}

void dp_render_shade_begin(int kind, bool second, struct dp_buf *out)
{
    dp_buf_printf(out, "\033[30;48;5;%dm", looks[kind].ground[second]);
}

void dp_render_shade_end(struct dp_buf *out)
{
    dp_buf_puts(out, "\033[0m");
}
