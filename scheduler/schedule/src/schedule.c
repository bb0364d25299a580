#include "dp/schedule.h"

#include <stdlib.h>

#include "dp/action_span.h"
#include "dp/check.h"

static const char *const kind_texts[DP_ACTION_KIND_COUNT] = {
    [DP_ACTION_F] = "F", [DP_ACTION_B] = "B",   [DP_ACTION_I] = "I",
    [DP_ACTION_W] = "W", [DP_ACTION_FB] = "FB",
};

const char *dp_action_kind_text(dp_action_kind kind)
{
    return (unsigned)kind < DP_ACTION_KIND_COUNT ? kind_texts[kind] : "?";
}

const char *dp_span_kind_text(int kind)
{
    static const char *const texts[] = {"wait", "gradient sync", "optimizer", "other",
                                        "evaluation"};
    if (kind >= 0 && kind < DP_ACTION_KIND_COUNT) {
        return kind_texts[kind];
    }
    int index = kind - DP_ACTION_KIND_COUNT;
    return index >= 0 && index < (int)DP_ARRAY_LENGTH(texts) ? texts[index] : "?";
}

void dp_action_format(const struct dp_action *action, struct dp_buf *out)
{
    if (action->kind == DP_ACTION_FB) {
        dp_buf_printf(out, "FB(%u@%u;%s%u@%u)", action->microbatch, action->stage,
                      dp_action_kind_text(action->b_kind), action->b_microbatch, action->b_stage);
    } else {
        dp_buf_printf(out, "%s%u@%u", dp_action_kind_text(action->kind), action->microbatch,
                      action->stage);
    }
}

void dp_schedule_deinit(struct dp_schedule *schedule)
{
    free(schedule->placement);
    free(schedule->actions);
    free(schedule->rank_begin);
    *schedule = (struct dp_schedule){0};
}

int32_t dp_schedule_rank_stages(const struct dp_schedule *schedule, int32_t rank,
                                int32_t ret_stages[DP_RANK_STAGES_MAX])
{
    int32_t count = 0;
    for (int32_t direction = 0; direction < schedule->directions; direction++) {
        for (int32_t stage = 0; stage < schedule->stages; stage++) {
            bool held = schedule->placement[2 * stage + direction] == rank;
            // A rank that holds a stage for both directions holds it once.
            bool listed = direction == 1 && schedule->placement[2 * stage] == rank;
            if (held && !listed && count < DP_RANK_STAGES_MAX) {
                ret_stages[count++] = stage;
            }
        }
    }
    return count;
}

// FNV-1a over the little-endian bytes of 32-bit numbers.
static uint64_t hash_number(uint64_t hash, uint32_t number)
{
    for (int shift = 0; shift < 32; shift += 8) {
        hash = (hash ^ ((number >> shift) & 0xff)) * 0x100000001b3u;
    }
    return hash;
}

uint64_t dp_schedule_hash(const struct dp_schedule *schedule)
{
    uint64_t hash = 0xcbf29ce484222325u;
    hash = hash_number(hash, (uint32_t)schedule->pipeline);
    hash = hash_number(hash, (uint32_t)schedule->microbatches);
    hash = hash_number(hash, (uint32_t)schedule->stages);
    hash = hash_number(hash, (uint32_t)schedule->directions);
    for (int32_t i = 0; i < 2 * schedule->stages; i++) {
        hash = hash_number(hash, (uint32_t)schedule->placement[i]);
    }
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        size_t begin = schedule->rank_begin[rank];
        size_t end = schedule->rank_begin[rank + 1];
        hash = hash_number(hash, (uint32_t)(end - begin));
        for (size_t i = begin; i < end; i++) {
            const struct dp_action *action = &schedule->actions[i];
            bool pair = action->kind == DP_ACTION_FB;
            hash = hash_number(hash, action->kind | (uint32_t)action->stage << 8);
            hash = hash_number(hash, action->microbatch);
            if (pair) {
                hash = hash_number(hash, action->b_kind | (uint32_t)action->b_stage << 8);
                hash = hash_number(hash, action->b_microbatch);
            }
        }
    }
    return hash;
}
