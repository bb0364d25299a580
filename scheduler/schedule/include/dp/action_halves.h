// An action seen as the one or two chunks of work in it, and what each of them needs. Pure.
#pragma once

#include "dp/schedule.h"

struct dp_half {
    dp_action_kind kind;  // F, B, I or W
    int32_t stage;
    uint32_t microbatch;
};

// Returns how many halves there are; a pair's forward comes first.
static inline int dp_action_halves(const struct dp_action *action, struct dp_half ret_halves[2])
{
    bool pair = action->kind == DP_ACTION_FB;
    dp_action_kind kind = pair ? DP_ACTION_F : (dp_action_kind)action->kind;
    ret_halves[0] = (struct dp_half){kind, action->stage, action->microbatch};
    ret_halves[1] = (struct dp_half){(dp_action_kind)action->b_kind, action->b_stage,
                                     action->b_microbatch};
    return pair ? 2 : 1;
}

// +1 for forwards, whose result goes to the next stage; -1 for backwards; 0 for W.
static inline int32_t dp_half_step(const struct dp_half *half)
{
    return half->kind == DP_ACTION_F ? 1 : half->kind == DP_ACTION_W ? 0 : -1;
}

// The stage whose result the half needs, or -1.
static inline int32_t dp_half_source(const struct dp_schedule *schedule, const struct dp_half *half)
{
    int32_t step = dp_half_step(half);
    int32_t source = half->stage - step;
    return step == 0 || source < 0 || source >= schedule->stages ? -1 : source;
}

// The stage that needs the half's result, or -1.
static inline int32_t dp_half_target(const struct dp_schedule *schedule, const struct dp_half *half)
{
    int32_t step = dp_half_step(half);
    int32_t target = half->stage + step;
    return step == 0 || target < 0 || target >= schedule->stages ? -1 : target;
}
