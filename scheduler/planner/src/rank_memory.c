#include "dp/rank_memory.h"

#include <math.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "rank_units.h"

// A rank's list: what its chunks hold between actions.
struct walk {
    struct units units;
    struct row rows[DP_RANK_STAGES_MAX];
    struct totals totals[DP_RANK_STAGES_MAX];
    int32_t slot_of[DP_STAGES_MAX];
    double kept, deferred;
};

static void walk_init(struct walk *walk, const struct dp_rank_memory *memory, int32_t position)
{
    int32_t stages[DP_RANK_STAGES_MAX];
    dp_units_init(&walk->units, memory);
    walk->kept = walk->deferred = 0;
    int32_t count = dp_schedule_rank_stages(memory->schedule, position, stages);
    for (int32_t slot = 0; slot < count; slot++) {
        walk->rows[slot] = dp_row_of(&walk->units, stages[slot]);
        walk->totals[slot] = dp_row_totals(&walk->rows[slot]);
        walk->slot_of[stages[slot]] = slot;
    }
}

// Whether the backward part of the action is of the chunk of this W.
static bool is_of(const struct dp_action *w, const struct dp_action *action)
{
    if (action->kind == DP_ACTION_FB) {
        return w->stage == action->b_stage && w->microbatch == action->b_microbatch;
    }
    return w->stage == action->stage && w->microbatch == action->microbatch;
}

// Weight gradients that the list puts right behind the action, as far as they can run in its waits:
// what those of other chunks give back, and whether its own are among them, which need waits inside
// the action, for EP peers.
static double run_early(const struct walk *walk, size_t index, size_t end, bool *ret_own)
{
    const struct dp_rank_memory *memory = walk->units.memory;
    const struct dp_action *actions = memory->schedule->actions;
    double bytes = 0;
    *ret_own = false;
    for (size_t i = index + 1; i < end && actions[i].kind == DP_ACTION_W; i++) {
        bool is_own = is_of(&actions[i], &actions[index]);
        *ret_own = *ret_own || (is_own && memory->batch.ep_size > 1);
        bytes += is_own ? 0 : walk->totals[walk->slot_of[actions[i].stage]].deferred;
    }
    return bytes;
}

// Whether the W may be over by its turn, in waits of the action that it stands behind.
static bool may_be_over(const struct walk *walk, size_t begin, size_t index)
{
    const struct dp_rank_memory *memory = walk->units.memory;
    const struct dp_action *actions = memory->schedule->actions;
    size_t at = index;
    while (at > begin && actions[at].kind == DP_ACTION_W) {
        at--;
    }
    return memory->batch.ep_size > 1 || !is_of(&actions[index], &actions[at]);
}

// Of what runs, and what its chunks held before.
static double running(const struct walk *walk, const struct dp_action *action, bool own_weights,
                      double *ret_before)
{
    int32_t slot = walk->slot_of[action->stage];
    const struct row *row = &walk->rows[slot];
    *ret_before = action->kind == DP_ACTION_F ? 0 : walk->totals[slot].kept;
    switch (action->kind) {
    case DP_ACTION_F:
        return dp_row_forward(row);
    case DP_ACTION_W:
        *ret_before = walk->totals[slot].deferred;
        return dp_row_weight(row);
    case DP_ACTION_FB: {
        int32_t b_slot = walk->slot_of[action->b_stage];
        *ret_before = walk->totals[b_slot].kept;
        return (walk->units.memory->no_overlap ? dp_rows_sequence : dp_rows_pair)(
            row, &walk->rows[b_slot], action->b_kind == DP_ACTION_I && !own_weights);
    }
    default:
        return dp_row_backward(row, action->kind == DP_ACTION_I && !own_weights);
    }
}

static void step(struct walk *walk, const struct dp_action *action)
{
    const struct totals *totals = &walk->totals[walk->slot_of[action->stage]];
    int kind = action->kind;
    if (kind == DP_ACTION_F || kind == DP_ACTION_FB) {
        walk->kept += totals->kept;
    }
    if (kind == DP_ACTION_FB) {
        totals = &walk->totals[walk->slot_of[action->b_stage]];
        kind = action->b_kind;
    }
    if (kind == DP_ACTION_W) {
        walk->deferred -= totals->deferred;
    } else if (kind != DP_ACTION_F) {
        walk->kept -= totals->kept;
        walk->deferred += kind == DP_ACTION_I ? totals->deferred : 0;
    }
}

static void walk_list(const struct dp_rank_memory *memory, int32_t position,
                      struct dp_memory_parts *parts, size_t *ret_action)
{
    const struct dp_schedule *schedule = memory->schedule;
    DP_AUTO_FREE struct walk *walk = dp_new(struct walk);
    walk_init(walk, memory, position);
    const size_t begin = schedule->rank_begin[position], end = schedule->rank_begin[position + 1];
    double most = -1;
    for (size_t i = begin; i < end; i++) {
        const struct dp_action *action = &schedule->actions[i];
        bool own = false, is_early = memory->least && !memory->no_overlap;
        double early = is_early ? run_early(walk, i, end, &own) : 0;
        if (is_early && action->kind == DP_ACTION_W && may_be_over(walk, begin, i)) {
            step(walk, action);
            continue;
        }
        double before, level = running(walk, action, own, &before);
        double all = walk->kept + walk->deferred - early + level - before;
        // Sums and differences of bytes leave a rounding error behind.
        if (all > most * (1 + 1e-12)) {
            most = all;
            parts->activations = walk->kept;
            parts->deferred = walk->deferred - early;
            parts->transient = level - before;
            *ret_action = i;
        }
        step(walk, action);
    }
    dp_units_deinit(&walk->units);
}

// A table that stages at both ends of the model have, the embedding: the tied head, or what MTP
// reads. 0 for other stages, and for one that is both ends.
static double shared_table(const struct dp_model_spec *m, const struct dp_cost_stage *stage)
{
    bool is_shared = m->tied_embedding > 0 || m->mtp_layers > 0;
    bool is_one_end = stage->has_embedding != stage->has_head;
    return is_shared && is_one_end ? (double)m->hidden * m->vocabulary : 0;
}

// Positions that hold the first stage or the last.
static int32_t ends_count(const struct dp_schedule *schedule)
{
    const int32_t *at = schedule->placement;
    const int32_t last = 2 * (schedule->stages - 1);
    const int32_t positions[] = {at[0], at[1], at[last], at[last + 1]};
    int32_t count = 0;
    for (int i = 0; i < 4; i++) {
        bool is_new = true;
        for (int j = 0; j < i; j++) {
            is_new = is_new && positions[j] != positions[i];
        }
        count += is_new;
    }
    return count;
}

// Ranks that hold a stage share its moments: all replicas, at both ends where there are two.
static double moments_of(const struct dp_rank_memory *memory, int32_t stage,
                         const struct dp_cost_parameters *count)
{
    const struct dp_schedule *schedule = memory->schedule;
    bool is_twice = schedule->placement[2 * stage] != schedule->placement[2 * stage + 1];
    bool is_sharded = memory->is_sharded || memory->profile->optimizer_sharded;
    double holders = is_sharded ? memory->data * (is_twice ? 2.0 : 1.0) : 1;
    double expert_holders = is_sharded ? fmax(holders / memory->batch.ep_size, 1) : 1;
    return count->shared / holders + count->experts / expert_holders;
}

// A rank with both ends keeps the moments of their table once, and all holders of either share it.
static double table_moments(const struct dp_rank_memory *memory, double table)
{
    bool is_sharded = memory->is_sharded || memory->profile->optimizer_sharded;
    return is_sharded ? table / (memory->data * ends_count(memory->schedule)) : table;
}

// Experts of a rank without copies.
static double slots_of_share(const struct dp_rank_memory *memory)
{
    return (double)memory->model->experts / memory->batch.ep_size;
}

static void add_state(const struct dp_rank_memory *memory, int32_t stage,
                      struct dp_memory_parts *parts)
{
    const struct dp_profile *profile = memory->profile;
    const struct dp_cost_stage shape = dp_units_stage(memory, stage);
    struct dp_cost_parameters count;
    dp_cost_stage_parameters(memory->model, &shape, memory->batch.ep_size, &count);
    if (memory->expert_copies > 0 && memory->batch.ep_size > 1) {
        double share = slots_of_share(memory);
        count.experts *= (share + memory->expert_copies) / share;
    }
    double held = count.shared + count.experts;
    parts->weights += held * profile->weight_bytes;
    parts->gradients += held * profile->gradient_bytes;
    count.shared -= shared_table(memory->model, &shape);
    parts->optimizer += profile->optimizer_bytes * moments_of(memory, stage, &count);
    // The angles of positions; biases of routers.
    const struct dp_model_spec *m = memory->model;
    double turned = m->mla_kv_rank > 0 ? m->mla_rope_dim : m->head_dim;
    double layers = shape.layer_end - shape.layer_begin + shape.has_mtp;
    double reals = memory->batch.sequence * turned;
    bool has_biases = m->bias_update > 0 || (m->biases & DP_BIAS_ROUTER) != 0;
    reals += has_biases ? layers * m->experts : 0;
    parts->weights += reals * fmax(profile->element_bytes, 4);
}

static bool any_layer(const struct dp_rank_memory *memory, const struct dp_cost_stage *stage,
                      bool is_moe)
{
    const struct dp_model_spec *m = memory->model;
    bool any = stage->has_mtp && dp_model_layer_is_moe(m, m->layers) == is_moe;
    for (int32_t layer = stage->layer_begin; layer < stage->layer_end; layer++) {
        any = any || dp_model_layer_is_moe(m, layer) == is_moe;
    }
    return any;
}

static double busiest_rows(const struct dp_rank_memory *memory, const struct dp_cost_stage *stage)
{
    double rows = 0;
    for (int32_t i = stage->layer_begin; memory->routed != NULL && i < stage->layer_end; i++) {
        rows = fmax(rows, memory->routed[i].busiest_rows);
    }
    bool has_more = memory->routed != NULL && stage->has_mtp;
    return has_more ? fmax(rows, memory->routed[memory->model->layers].busiest_rows) : rows;
}

void dp_rank_memory_still(const struct dp_rank_memory *memory, int32_t position,
                          struct dp_memory_parts *ret_parts)
{
    struct dp_memory_parts parts = {0};
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(memory->schedule, position, stages);
    struct dp_cost_holds holds = {0};
    double table = 0;
    for (int32_t i = 0; i < count; i++) {
        add_state(memory, stages[i], &parts);
        const struct dp_cost_stage shape = dp_units_stage(memory, stages[i]);
        table = fmax(table, shared_table(memory->model, &shape));
        holds.head = holds.head || shape.has_head;
        holds.mtp = holds.mtp || shape.has_mtp;
        holds.dense = holds.dense || any_layer(memory, &shape, false);
        holds.moe = holds.moe || any_layer(memory, &shape, true);
        holds.busiest_rows = fmax(holds.busiest_rows, busiest_rows(memory, &shape));
    }
    if (holds.busiest_rows <= 0 && memory->expert_copies > 0 && memory->batch.ep_size > 1) {
        double rows = (double)memory->batch.samples * memory->batch.sequence * memory->model->top_k;
        holds.busiest_rows = rows / (slots_of_share(memory) + memory->expert_copies);
    }
    parts.optimizer += memory->profile->optimizer_bytes * table_moments(memory, table);
    parts.exchange = dp_cost_room_bytes(memory->model, memory->profile, &memory->batch, &holds);
    // All ranks open them, with experts or not.
    parts.exchange += dp_cost_windows_bytes(memory->model, memory->profile, &memory->batch);
    *ret_parts = parts;
}

void dp_rank_memory_parts(const struct dp_rank_memory *memory, int32_t position,
                          struct dp_memory_parts *ret_parts, size_t *ret_action)
{
    struct dp_memory_parts parts;
    size_t action = memory->schedule->rank_begin[position];
    dp_rank_memory_still(memory, position, &parts);
    walk_list(memory, position, &parts, &action);
    *ret_parts = parts;
    if (ret_action != NULL) {
        *ret_action = action;
    }
}

void dp_rank_memory_chunk(const struct dp_rank_memory *memory, int32_t stage,
                          struct dp_rank_chunk *ret_chunk)
{
    struct units units;
    dp_units_init(&units, memory);
    const struct row row = dp_row_of(&units, stage);
    const struct totals totals = dp_row_totals(&row);
    *ret_chunk = (struct dp_rank_chunk){.kept = totals.kept,
                                        .deferred = totals.deferred,
                                        .forward = dp_row_forward(&row),
                                        .backward = dp_row_backward(&row, false),
                                        .input = dp_row_backward(&row, true)};
    dp_units_deinit(&units);
}
