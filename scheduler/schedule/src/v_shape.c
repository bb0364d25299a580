#include "v_shape.h"

#include <string.h>

#include "build.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

// What a rank does with a micro-batch, in the order in which it meets them.
typedef enum v_kind { V_F0, V_F1, V_I1, V_I0, V_W1, V_W0, V_KIND_COUNT } v_kind;
enum { PERIOD = V_KIND_COUNT };

struct kind {
    int32_t first; // slot of micro-batch 0 in the plan
    int32_t due;   // slot of the next one
    int32_t done;  // micro-batches
};

struct rank {
    struct kind kinds[V_KIND_COUNT];
    uint8_t kind_at[PERIOD]; // v_kind by slot modulo PERIOD
    int32_t held;            // chunks between F and W
    int32_t picked;          // v_kind in this slot, or -1
    size_t count;            // actions so far
};

struct run {
    int32_t ranks, microbatches, chunks_max;
    int32_t weight_delay; // v_shape's, or NEVER
    struct rank *rank;
    struct dp_action *actions; // [ranks][PERIOD * microbatches]
};

// Later than any slot of any plan; a sum of both stays in range.
enum { NEVER = 1 << 30 };

static int32_t next_slot(int32_t after, int32_t residue)
{
    int32_t slot = after + 1;
    return slot + ((residue - slot) % PERIOD + PERIOD) % PERIOD;
}

static void plan_kind(struct rank *rank, v_kind kind, int32_t slot)
{
    uint8_t *at = &rank->kind_at[slot % PERIOD];
    DP_CHECK(*at == V_KIND_COUNT);
    *at = (uint8_t)kind;
    rank->kinds[kind] = (struct kind){.first = slot, .due = slot};
}

// The weight gradients get the two slots that are left, the first one after I1 going to W1.
static void plan_weights(struct rank *rank)
{
    int32_t free_slots[2] = {0};
    int32_t count = 0;
    for (int32_t slot = rank->kinds[V_I1].first + 1; count < 2; slot++) {
        if (rank->kind_at[slot % PERIOD] == V_KIND_COUNT) {
            free_slots[count++] = slot;
        }
    }
    plan_kind(rank, V_W1, free_slots[0]);
    plan_kind(rank, V_W0, next_slot(rank->kinds[V_I0].first, free_slots[1] % PERIOD));
}

static void plan(struct run *run, const struct v_shape *shape)
{
    int32_t last = run->ranks - 1;
    int32_t up = last * shape->forward_down + shape->forward_turn;
    int32_t down = next_slot(up + last * shape->forward_up, shape->backward_slot);
    int32_t home = down + last * shape->backward_down + shape->backward_turn;
    for (int32_t r = 0; r < run->ranks; r++) {
        struct rank *rank = &run->rank[r];
        *rank = (struct rank){0};
        for (int i = 0; i < PERIOD; i++) {
            rank->kind_at[i] = V_KIND_COUNT;
        }
        plan_kind(rank, V_F0, r * shape->forward_down);
        plan_kind(rank, V_F1, up + (last - r) * shape->forward_up);
        plan_kind(rank, V_I1, down + r * shape->backward_down);
        plan_kind(rank, V_I0, home + (last - r) * shape->backward_up);
        plan_weights(rank);
    }
}

// Whether the input of the rank's next micro-batch of this kind was there when the slot began.
static bool is_ready(const struct run *run, int32_t r, v_kind kind)
{
    const struct kind *own = run->rank[r].kinds;
    if (kind >= V_W1) {
        return own[kind - 2].done > own[kind].done;
    }
    int32_t from = kind == V_F0 || kind == V_I1 ? r - 1 : r + 1;
    if (from >= 0 && from < run->ranks) {
        return run->rank[from].kinds[kind].done > own[kind].done;
    }
    return kind == V_F0 || own[kind - 1].done > own[kind].done;
}

// What it adds to the chunks that its rank holds.
static int32_t held_by(v_kind kind)
{
    return kind <= V_F1 ? 1 : kind >= V_W1 ? -1 : 0;
}

// Whether a forward may run now, ahead of what else is due from slot `earliest` on: the rank holds
// one chunk more from here up to the forward's own slot.
static bool has_room(const struct run *run, const struct rank *rank, v_kind kind, int32_t earliest)
{
    int32_t held = rank->held + 1;
    for (int32_t slot = earliest; slot < rank->kinds[kind].due; slot++) {
        if (held > run->chunks_max) {
            return false;
        }
        v_kind planned = rank->kind_at[slot % PERIOD];
        const struct kind *other = &rank->kinds[planned];
        if (slot >= other->due && slot < other->first + PERIOD * run->microbatches) {
            held += held_by(planned);
        }
    }
    return held <= run->chunks_max;
}

// The first in the plan among those that can run; a weight gradient, which nobody waits for, stands
// back a little, and wholly when only backwards are left.
static int32_t pick(const struct run *run, int32_t r)
{
    const struct rank *rank = &run->rank[r];
    int32_t all = run->microbatches;
    bool drains = rank->kinds[V_F0].done == all && rank->kinds[V_F1].done == all;
    int32_t earliest = NEVER;
    for (int kind = 0; kind < V_KIND_COUNT; kind++) {
        if (rank->kinds[kind].done < all && rank->kinds[kind].due < earliest) {
            earliest = rank->kinds[kind].due;
        }
    }
    int32_t picked = -1;
    int32_t best = INT32_MAX;
    for (int kind = 0; kind < V_KIND_COUNT; kind++) {
        const struct kind *next = &rank->kinds[kind];
        int32_t due = next->due;
        if (kind >= V_W1) {
            due += drains ? NEVER : run->weight_delay;
        }
        if (next->done == all || due >= best || !is_ready(run, r, (v_kind)kind)) {
            continue;
        }
        if (kind <= V_F1 && !has_room(run, rank, (v_kind)kind, earliest)) {
            continue;
        }
        picked = kind;
        best = due;
    }
    return picked;
}

static void add_action(struct run *run, int32_t r, v_kind kind)
{
    static const dp_action_kind kinds[V_KIND_COUNT] = {DP_ACTION_F, DP_ACTION_F, DP_ACTION_I,
                                                       DP_ACTION_I, DP_ACTION_W, DP_ACTION_W};
    struct rank *rank = &run->rank[r];
    bool goes_up = kind == V_F1 || kind == V_I1 || kind == V_W1;
    int32_t stage = goes_up ? 2 * run->ranks - 1 - r : r;
    size_t begin = (size_t)r * PERIOD * (size_t)run->microbatches;
    run->actions[begin + rank->count++] = build_single(kinds[kind], stage, rank->kinds[kind].done);
    rank->kinds[kind].done++;
    rank->kinds[kind].due += PERIOD;
    rank->held += held_by(kind);
}

// Runs everything, each action in one slot, and returns the number of slots.
static int32_t run_all(struct run *run, const struct v_shape *shape, int32_t weight_delay)
{
    plan(run, shape);
    run->weight_delay = weight_delay;
    size_t left = (size_t)run->ranks * PERIOD * (size_t)run->microbatches;
    int32_t slots = 0;
    for (; left > 0; slots++) {
        size_t before = left;
        for (int32_t r = 0; r < run->ranks; r++) {
            run->rank[r].picked = pick(run, r);
        }
        for (int32_t r = 0; r < run->ranks; r++) {
            if (run->rank[r].picked >= 0) {
                add_action(run, r, (v_kind)run->rank[r].picked);
                left--;
            }
        }
        DP_CHECK(left < before);
    }
    return slots;
}

void dp_schedule_v_build(const struct dp_schedule_params *params, const struct v_shape *shape,
                         struct dp_schedule *schedule)
{
    int32_t ranks = params->pipeline;
    size_t per_rank = PERIOD * (size_t)params->microbatches;
    size_t count = (size_t)ranks * per_rank;
    struct build build;
    dp_schedule_build_begin(&build, schedule, params, 2 * ranks, 1, count);
    for (int32_t r = 0; r < ranks; r++) {
        dp_schedule_build_place(&build, r, 0, r);
        dp_schedule_build_place(&build, 2 * ranks - 1 - r, 0, r);
        schedule->rank_begin[r + 1] = (size_t)(r + 1) * per_rank;
    }
    DP_AUTO_FREE struct rank *rank = dp_new_array(struct rank, (size_t)ranks);
    struct run run = {.ranks = ranks,
                      .microbatches = params->microbatches,
                      .chunks_max = shape->chunks_max,
                      .rank = rank,
                      .actions = schedule->actions};
    int32_t slots = run_all(&run, shape, shape->weight_delay);
    // When few micro-batches leave gaps everywhere, weight gradients may be best left to the gaps.
    if (params->microbatches < 2 * ranks) {
        DP_AUTO_FREE struct dp_action *other = dp_new_array(struct dp_action, count);
        run.actions = other;
        if (run_all(&run, shape, NEVER) < slots) {
            memcpy(schedule->actions, other, count * sizeof(*other));
        }
    }
}
