#include "peak.h"

#include <math.h>

#include "dp/planner.h"

double dp_planner_peak_running(const struct dp_chunk_bytes *chunks, int kind, int b_kind,
                               int32_t slot, int32_t b_slot)
{
    switch (kind) {
    case DP_ACTION_F:
        return chunks[slot].forward_peak;
    case DP_ACTION_B:
        return chunks[slot].backward_peak;
    case DP_ACTION_I:
        return chunks[slot].input_peak;
    case DP_ACTION_FB:
        return chunks[slot].forward_peak + dp_planner_peak_running(chunks, b_kind, 0, b_slot, 0);
    default:
        return 0; // W only gives back
    }
}

void dp_planner_peak_fragments(const struct dp_profile *profile, struct dp_memory_parts *parts)
{
    if (profile->is_accelerator) {
        double allocated = dp_memory_total(parts) - parts->runtime - parts->exchange;
        parts->runtime += profile->memory.fragmentation_share * allocated;
    }
}

// Bytes and chunks alive between the actions of one rank.
struct walk {
    const struct dp_chunk_bytes *chunks;
    int32_t slot_of[DP_STAGES_MAX];
    double activations, deferred;
    int32_t kept_count, deferred_count;
};

static void walk_init(struct walk *walk, const struct dp_schedule *schedule, int32_t rank,
                      const struct dp_chunk_bytes *chunks)
{
    *walk = (struct walk){.chunks = chunks};
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
    for (int32_t slot = 0; slot < count; slot++) {
        walk->slot_of[stages[slot]] = slot;
    }
}

static double running(const struct walk *walk, const struct dp_action *action)
{
    int32_t b_slot = action->kind == DP_ACTION_FB ? walk->slot_of[action->b_stage] : 0;
    return dp_planner_peak_running(walk->chunks, action->kind, action->b_kind,
                                   walk->slot_of[action->stage], b_slot);
}

static void forward_done(struct walk *walk, int32_t stage)
{
    walk->activations += walk->chunks[walk->slot_of[stage]].after_forward;
    walk->kept_count++;
}

static void backward_done(struct walk *walk, int kind, int32_t stage)
{
    const struct dp_chunk_bytes *chunk = &walk->chunks[walk->slot_of[stage]];
    walk->activations -= chunk->after_forward;
    walk->kept_count--;
    if (kind == DP_ACTION_I) {
        walk->deferred += chunk->after_input;
        walk->deferred_count++;
    }
}

static void step(struct walk *walk, const struct dp_action *action)
{
    switch (action->kind) {
    case DP_ACTION_F:
        forward_done(walk, action->stage);
        break;
    case DP_ACTION_W:
        walk->deferred -= walk->chunks[walk->slot_of[action->stage]].after_input;
        walk->deferred_count--;
        break;
    case DP_ACTION_FB:
        forward_done(walk, action->stage);
        backward_done(walk, action->b_kind, action->b_stage);
        break;
    default:
        backward_done(walk, action->kind, action->stage);
        break;
    }
}

void dp_planner_peak_walk(const struct dp_schedule *schedule, int32_t rank,
                          const struct dp_chunk_bytes *chunks, struct peak *ret_peak)
{
    struct walk walk;
    walk_init(&walk, schedule, rank, chunks);
    struct peak peak = {.action = schedule->rank_begin[rank]};
    double most = -1;
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const struct dp_action *action = &schedule->actions[i];
        double during = running(&walk, action);
        // Sums and differences of bytes leave a rounding error behind.
        if (walk.activations + walk.deferred + during > most * (1 + 1e-12)) {
            most = walk.activations + walk.deferred + during;
            peak = (struct peak){walk.activations, walk.deferred, during, i};
        }
        step(&walk, action);
    }
    *ret_peak = peak;
}

void dp_planner_peak_alive(const struct dp_schedule *schedule, int32_t rank, size_t action,
                           int32_t *ret_kept, int32_t *ret_deferred)
{
    const struct dp_chunk_bytes none[DP_RANK_STAGES_MAX] = {{0}};
    struct walk walk;
    walk_init(&walk, schedule, rank, none);
    for (size_t i = schedule->rank_begin[rank]; i < action; i++) {
        step(&walk, &schedule->actions[i]);
    }
    *ret_kept = walk.kept_count;
    *ret_deferred = walk.deferred_count;
}

double dp_planner_peak_bytes(const struct dp_schedule *schedule, int32_t rank,
                             const struct dp_cost_chunk_bytes *bytes)
{
    struct dp_chunk_bytes chunks[DP_RANK_STAGES_MAX];
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(schedule, rank, stages);
    for (int32_t slot = 0; slot < count; slot++) {
        const struct dp_cost_chunk_bytes *from = &bytes[slot];
        chunks[slot] =
            (struct dp_chunk_bytes){.after_forward = from->after_forward,
                                    .after_input = from->after_input,
                                    .forward_peak = from->end_of_forward,
                                    .input_peak = from->end_of_input - from->after_forward};
    }
    struct peak peak;
    dp_planner_peak_walk(schedule, rank, chunks, &peak);
    return peak.activations + peak.deferred + peak.transient;
}
