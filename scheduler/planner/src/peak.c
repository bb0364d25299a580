#include <math.h>

#include "internal.h"

struct walk {
    const struct dp_cost_chunk_bytes *bytes;
    int32_t slot_of[DP_STAGES_MAX];
    double live, peak;
};

static void forward(struct walk *walk, int32_t stage, double *during)
{
    const struct dp_cost_chunk_bytes *bytes = &walk->bytes[walk->slot_of[stage]];
    *during += bytes->end_of_forward;
    walk->live += bytes->after_forward;
}

// B gives back each component's bytes right after its gradients; I keeps them for W, and the
// input's gradient besides until it is sent.
static void backward(struct walk *walk, int32_t stage, dp_action_kind kind, double *during)
{
    const struct dp_cost_chunk_bytes *bytes = &walk->bytes[walk->slot_of[stage]];
    walk->live -= bytes->after_forward;
    if (kind == DP_ACTION_I) {
        *during += bytes->end_of_input - bytes->after_forward;
        walk->live += bytes->after_input;
    }
}

double dp_planner_peak_bytes(const struct dp_schedule *schedule, int32_t rank,
                             const struct dp_cost_chunk_bytes *bytes)
{
    struct walk walk = {.bytes = bytes};
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
    for (int32_t slot = 0; slot < count; slot++) {
        walk.slot_of[stages[slot]] = slot;
    }
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const struct dp_action *action = &schedule->actions[i];
        double during = walk.live;
        if (action->kind == DP_ACTION_F || action->kind == DP_ACTION_FB) {
            forward(&walk, action->stage, &during);
        }
        if (action->kind == DP_ACTION_B || action->kind == DP_ACTION_I) {
            backward(&walk, action->stage, action->kind, &during);
        } else if (action->kind == DP_ACTION_FB) {
            backward(&walk, action->b_stage, action->b_kind, &during);
        } else if (action->kind == DP_ACTION_W) {
            walk.live -= bytes[walk.slot_of[action->stage]].after_input;
        }
        walk.peak = fmax(walk.peak, during);
    }
    return walk.peak;
}
