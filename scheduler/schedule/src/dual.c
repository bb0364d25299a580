#include "dual.h"

#include "dp/check.h"

struct run {
    struct build *build;
    const struct dual *dual;
    int32_t forwards[2], backwards[2]; // done per slot
    // Weight gradients that wait, first in first out: at most h+1, H on the innermost rank.
    struct dp_action waiting[DP_PIPELINE_MAX + 1];
    int32_t waiting_first, waiting_count;
};

size_t dp_schedule_dual_actions_max(int32_t half, int32_t microbatches)
{
    return 4 * (size_t)microbatches + 2 * (size_t)half;
}

static struct dp_action next(const struct run *run, dp_action_kind kind, int slot, int32_t count)
{
    return build_single(kind, run->dual->stage[slot], run->dual->first[slot] + count);
}

static void add_forward(struct run *run, int slot)
{
    dp_schedule_build_add(run->build, next(run, DP_ACTION_F, slot, run->forwards[slot]++));
}

static void add_backward(struct run *run, int slot)
{
    dp_schedule_build_add(run->build, next(run, DP_ACTION_B, slot, run->backwards[slot]++));
}

// Input gradients now, weight gradients later.
static void add_input_backward(struct run *run, int slot)
{
    struct dp_action action = next(run, DP_ACTION_I, slot, run->backwards[slot]++);
    dp_schedule_build_add(run->build, action);
    action.kind = DP_ACTION_W;
    DP_CHECK(run->waiting_count < (int32_t)DP_ARRAY_LENGTH(run->waiting));
    int32_t last = (run->waiting_first + run->waiting_count++) % (DP_PIPELINE_MAX + 1);
    run->waiting[last] = action;
}

static void add_weight_backward(struct run *run)
{
    DP_CHECK(run->waiting_count > 0);
    dp_schedule_build_add(run->build, run->waiting[run->waiting_first]);
    run->waiting_first = (run->waiting_first + 1) % (DP_PIPELINE_MAX + 1);
    run->waiting_count--;
}

// The forward of one slot overlapped with the backward of the other.
static void add_pair(struct run *run, int forward_slot)
{
    int backward_slot = 1 - forward_slot;
    struct dp_action action = next(run, DP_ACTION_FB, forward_slot, run->forwards[forward_slot]++);
    struct dp_action backward =
        next(run, DP_ACTION_B, backward_slot, run->backwards[backward_slot]++);
    action.b_kind = DP_ACTION_B;
    action.b_stage = backward.stage;
    action.b_microbatch = backward.microbatch;
    dp_schedule_build_add(run->build, action);
}

// Steps 1 to 3: fill, and the first input gradients of the far stream.
static void add_warm_up(struct run *run)
{
    int32_t half = run->dual->half;
    int32_t depth = run->dual->depth;
    for (int32_t i = 0; i < 2 * (half - depth - 1); i++) {
        add_forward(run, DUAL_A);
    }
    for (int32_t i = 0; i < depth + 1; i++) {
        add_forward(run, DUAL_A);
        add_forward(run, DUAL_Z);
    }
    for (int32_t i = 0; i < half - depth - 1; i++) {
        add_input_backward(run, DUAL_Z);
        add_weight_backward(run);
        add_forward(run, DUAL_Z);
    }
}

// Steps 4 and 5: overlapped pairs.
static void add_steady(struct run *run)
{
    int32_t half = run->dual->half;
    int32_t depth = run->dual->depth;
    for (int32_t i = 0; i < run->dual->microbatches - 2 * half + depth + 1; i++) {
        if (i == 0 && depth == half - 1) {
            // At the turn the backward needs the forward before it, so the first is no pair.
            add_forward(run, DUAL_A);
            add_backward(run, DUAL_Z);
        } else {
            add_pair(run, DUAL_A);
        }
        add_pair(run, DUAL_Z);
    }
    for (int32_t i = 0; i < half - depth - 1; i++) {
        add_backward(run, DUAL_Z);
        add_pair(run, DUAL_Z);
    }
}

// Steps 6 to 8: drain; weight gradients fill the gaps between the last input gradients.
static void add_cool_down(struct run *run)
{
    int32_t half = run->dual->half;
    int32_t depth = run->dual->depth;
    for (int32_t i = 0; i < 2 * (depth + 1); i++) {
        int slot = i % 2 == 0 ? DUAL_Z : DUAL_A;
        if (i < depth + 1 || run->dual->full_cool_down) {
            add_backward(run, slot);
        } else {
            add_input_backward(run, slot);
        }
    }
    for (int32_t i = 0; i < half - depth - 1; i++) {
        if (run->dual->full_cool_down) {
            add_backward(run, DUAL_A);
        } else {
            add_weight_backward(run);
            add_input_backward(run, DUAL_A);
        }
    }
    while (run->waiting_count > 0) {
        add_weight_backward(run);
    }
}

void dp_schedule_dual_add_rank(struct build *build, const struct dual *dual)
{
    struct run run = {.build = build, .dual = dual};
    add_warm_up(&run);
    add_steady(&run);
    add_cool_down(&run);
    dp_schedule_build_end_rank(build);
}
