#include "shade.h"

#include <ctype.h>

#include "scale.h"

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

int32_t dp_render_shade_slot(const struct shade_rank *rank, int32_t stage)
{
    for (int32_t slot = 0; slot < rank->count; slot++) {
        if (rank->stages[slot] == stage) {
            return slot;
        }
    }
    return 0;
}

bool dp_render_shade_is_second(const struct shade_rank *rank, const struct dp_action *action)
{
    if (rank->schedule->directions == 2) {
        return dp_schedule_direction(rank->schedule, action->microbatch) == 1;
    }
    return dp_render_shade_slot(rank, action->stage) % 2 == 1;
}

const char *dp_render_kind_name(int kind)
{
    static const char *const names[DP_ACTION_KIND_COUNT] = {[DP_ACTION_F] = "forward",
                                                            [DP_ACTION_B] = "backward",
                                                            [DP_ACTION_I] = "input gradient",
                                                            [DP_ACTION_W] = "weight gradient",
                                                            [DP_ACTION_FB] = "overlapped pair"};
    return names[kind];
}

const char *dp_render_second_stream(const struct dp_schedule *schedule)
{
    if (schedule->directions == 2) {
        return "lower case: from the last rank";
    }
    int32_t stages = dp_render_stages_per_rank(schedule);
    return stages > 2    ? "lower case: every other chunk"
           : stages == 2 ? "lower case: second chunk"
                         : NULL;
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
