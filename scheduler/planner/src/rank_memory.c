#include "dp/rank_memory.h"

#include <math.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

// One step through a stage: its embedding, a layer, its head.
struct unit {
    double kept, deferred, attention, away, forward, backward;
};

static struct dp_cost_stage stage_of(const struct dp_rank_memory *memory, int32_t stage)
{
    return (struct dp_cost_stage){.layer_begin = memory->layer_begin[stage],
                                  .layer_end = memory->layer_begin[stage + 1],
                                  .has_embedding = stage == 0,
                                  .has_head = stage == memory->schedule->stages - 1};
}

// Kinds of unit, each priced once.
enum { EMBEDDING, DENSE, MOE, HEAD, KINDS };

struct units {
    const struct dp_rank_memory *memory;
    struct unit kinds[KINDS];
    double hop;
};

static struct unit unit_of(const struct dp_rank_memory *memory, int kind)
{
    const struct dp_model_spec *m = memory->model;
    int32_t layer = kind == MOE ? m->layers - 1 : 0;
    bool is_layer = kind == DENSE || kind == MOE;
    const struct dp_cost_stage stage = {layer, layer + is_layer, kind == EMBEDDING, kind == HEAD};
    struct dp_cost_chunk_bytes bytes;
    struct dp_cost_during during;
    dp_cost_chunk_bytes(m, memory->profile, &stage, &memory->batch, NULL, &bytes);
    if (is_layer) {
        dp_cost_layer_during(m, memory->profile, &memory->batch, kind == MOE, &during);
    } else {
        dp_cost_ends_during(m, memory->profile, &memory->batch, kind == HEAD, &during);
    }
    return (struct unit){bytes.after_forward, bytes.after_input, during.attention,
                         during.away,         during.forward,    during.backward};
}

static void units_init(struct units *units, const struct dp_rank_memory *memory)
{
    *units = (struct units){.memory = memory};
    units->hop = dp_cost_hop_bytes(memory->model, memory->profile, &memory->batch);
    for (int kind = 0; kind < KINDS; kind++) {
        bool is_there = kind == DENSE ? !dp_model_layer_is_moe(memory->model, 0)
                        : kind == MOE
                            ? dp_model_layer_is_moe(memory->model, memory->model->layers - 1)
                            : true;
        if (is_there) {
            units->kinds[kind] = unit_of(memory, kind);
        }
    }
}

// A stage as a row of units.
struct row {
    const struct units *units;
    struct dp_cost_stage stage;
    int32_t count;
};

static struct row row_of(const struct units *units, int32_t stage)
{
    struct row row = {.units = units, .stage = stage_of(units->memory, stage)};
    row.count =
        row.stage.layer_end - row.stage.layer_begin + row.stage.has_embedding + row.stage.has_head;
    return row;
}

static const struct unit *unit_at(const struct row *row, int32_t i)
{
    if (row->stage.has_embedding && i == 0) {
        return &row->units->kinds[EMBEDDING];
    }
    if (row->stage.has_head && i == row->count - 1) {
        return &row->units->kinds[HEAD];
    }
    int32_t layer = row->stage.layer_begin + i - row->stage.has_embedding;
    return &row->units
                ->kinds[dp_model_layer_is_moe(row->units->memory->model, layer) ? MOE : DENSE];
}

static double away_at(const struct row *row, int32_t i)
{
    return i >= 0 && i < row->count ? unit_at(row, i)->away : 0;
}

struct totals {
    double kept, deferred;
};

static struct totals totals_of(const struct row *row)
{
    struct totals totals = {0, 0};
    for (int32_t i = 0; i < row->count; i++) {
        totals.kept += unit_at(row, i)->kept;
        totals.deferred += unit_at(row, i)->deferred;
    }
    return totals;
}

// The most that a chunk holds in a pass, all of it. What the unit before has sent away is there
// until this one is through; what the next one back needs is there before it starts.
static double forward_level(const struct row *row)
{
    double kept = 0, most = 0;
    for (int32_t i = 0; i < row->count; i++) {
        const struct unit *unit = unit_at(row, i);
        kept += unit->kept;
        most = fmax(most, kept + unit->away + unit->forward + away_at(row, i - 1));
    }
    return fmax(most, kept + (row->stage.has_head ? 0 : row->units->hop));
}

static double backward_level(const struct row *row, bool defers)
{
    double kept = totals_of(row).kept, deferred = 0, most = 0;
    for (int32_t i = row->count - 1; i >= 0; i--) {
        const struct unit *unit = unit_at(row, i);
        double level = kept + deferred + unit->away + unit->backward + away_at(row, i - 1);
        most = fmax(most, level);
        kept -= unit->kept;
        deferred += defers ? unit->deferred : 0;
    }
    return fmax(most, deferred + (row->stage.has_embedding ? 0 : row->units->hop));
}

// Rows that are kept as codes are there in full while their experts' weight gradients read them.
static double weight_level(const struct row *row)
{
    const struct dp_rank_memory *memory = row->units->memory;
    double rows = 0;
    if (memory->batch.save_fp8 && dp_model_layer_is_moe(memory->model, row->stage.layer_end - 1)) {
        rows = memory->model->top_k * row->units->hop;
    }
    return totals_of(row).deferred + rows;
}

// A pair goes through both chunks a layer at a time: attention forward and experts backward, then
// experts forward while the backward chunk has the gradients of its layer alone.
static double pair_level(const struct row *forward, const struct row *backward, bool defers)
{
    double waits = 0, ahead = 0, back = totals_of(backward).kept, most = 0;
    int32_t fi = 0, bi = backward->count - 1;
    while (fi < forward->count || bi >= 0) {
        const struct unit *f = fi < forward->count ? unit_at(forward, fi) : NULL;
        const struct unit *b = bi >= 0 ? unit_at(backward, bi) : NULL;
        double begun =
            f == NULL ? 0 : fmin(f->attention + forward->units->hop, f->kept + f->forward);
        if (b != NULL) {
            most = fmax(most, ahead + begun + back + waits + b->away + b->backward +
                                  away_at(backward, bi - 1) + away_at(forward, fi - 1));
        }
        if (f != NULL) {
            double left = b == NULL ? 0 : fmin(b->kept, b->attention + 2 * backward->units->hop);
            double rest = b == NULL ? back : back - b->kept + left;
            most = fmax(most, ahead + f->kept + f->away + f->forward + rest + waits +
                                  (b != NULL && defers ? b->deferred - left : 0) +
                                  away_at(forward, fi - 1));
            ahead += f->kept;
        }
        if (b != NULL) {
            back -= b->kept;
            waits += defers ? b->deferred : 0;
        }
        fi++;
        bi--;
    }
    double results = (forward->stage.has_head ? 0 : forward->units->hop) +
                     (backward->stage.has_embedding ? 0 : backward->units->hop);
    return fmax(most, ahead + waits + results);
}

static double sequence_level(const struct row *forward, const struct row *backward, bool defers)
{
    double result = forward->stage.has_head ? 0 : forward->units->hop;
    return fmax(forward_level(forward) + totals_of(backward).kept,
                totals_of(forward).kept + result + backward_level(backward, defers));
}

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
    units_init(&walk->units, memory);
    walk->kept = walk->deferred = 0;
    int32_t count = dp_schedule_rank_stages(memory->schedule, position, stages);
    for (int32_t slot = 0; slot < count; slot++) {
        walk->rows[slot] = row_of(&walk->units, stages[slot]);
        walk->totals[slot] = totals_of(&walk->rows[slot]);
        walk->slot_of[stages[slot]] = slot;
    }
}

// Of what runs, and what its chunks held before.
static double running(const struct walk *walk, const struct dp_action *action, double *ret_before)
{
    int32_t slot = walk->slot_of[action->stage];
    const struct row *row = &walk->rows[slot];
    *ret_before = action->kind == DP_ACTION_F ? 0 : walk->totals[slot].kept;
    switch (action->kind) {
    case DP_ACTION_F:
        return forward_level(row);
    case DP_ACTION_W:
        *ret_before = walk->totals[slot].deferred;
        return weight_level(row);
    case DP_ACTION_FB: {
        int32_t b_slot = walk->slot_of[action->b_stage];
        *ret_before = walk->totals[b_slot].kept;
        return (walk->units.memory->no_overlap ? sequence_level : pair_level)(
            row, &walk->rows[b_slot], action->b_kind == DP_ACTION_I);
    }
    default:
        return backward_level(row, action->kind == DP_ACTION_I);
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
    double most = -1;
    for (size_t i = schedule->rank_begin[position]; i < schedule->rank_begin[position + 1]; i++) {
        const struct dp_action *action = &schedule->actions[i];
        double before, level = running(walk, action, &before);
        double all = walk->kept + walk->deferred + level - before;
        // Sums and differences of bytes leave a rounding error behind.
        if (all > most * (1 + 1e-12)) {
            most = all;
            parts->activations = walk->kept;
            parts->deferred = walk->deferred;
            parts->transient = level - before;
            *ret_action = i;
        }
        step(walk, action);
    }
}

// Ranks that hold a stage share its moments: all replicas, at both ends where there are two.
static void add_state(const struct dp_rank_memory *memory, int32_t stage,
                      struct dp_memory_parts *parts)
{
    const struct dp_schedule *schedule = memory->schedule;
    const struct dp_profile *profile = memory->profile;
    const struct dp_cost_stage shape = stage_of(memory, stage);
    struct dp_cost_parameters count;
    dp_cost_stage_parameters(memory->model, &shape, memory->batch.ep_size, &count);
    if (memory->expert_copies > 0 && memory->batch.ep_size > 1) {
        double share = (double)memory->model->experts / memory->batch.ep_size;
        count.experts *= (share + memory->expert_copies) / share;
    }
    bool is_twice = schedule->placement[2 * stage] != schedule->placement[2 * stage + 1];
    bool is_sharded = memory->is_sharded || profile->optimizer_sharded;
    double holders = is_sharded ? memory->data * (is_twice ? 2.0 : 1.0) : 1;
    double expert_holders = is_sharded ? fmax(holders / memory->batch.ep_size, 1) : 1;
    double held = count.shared + count.experts;
    parts->weights += held * profile->weight_bytes;
    parts->gradients += held * profile->gradient_bytes;
    parts->optimizer +=
        profile->optimizer_bytes * (count.shared / holders + count.experts / expert_holders);
    // The angles of positions.
    const struct dp_model_spec *m = memory->model;
    double turned = m->mla_kv_rank > 0 ? m->mla_rope_dim : m->head_dim;
    parts->weights += memory->batch.sequence * turned * fmax(profile->element_bytes, 4);
}

void dp_rank_memory_still(const struct dp_rank_memory *memory, int32_t position,
                          struct dp_memory_parts *ret_parts)
{
    struct dp_memory_parts parts = {0};
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t count = dp_schedule_rank_stages(memory->schedule, position, stages);
    struct dp_cost_holds holds = {false, false, false};
    for (int32_t i = 0; i < count; i++) {
        add_state(memory, stages[i], &parts);
        const struct dp_cost_stage shape = stage_of(memory, stages[i]);
        holds.head = holds.head || shape.has_head;
        holds.dense = holds.dense || !dp_model_layer_is_moe(memory->model, shape.layer_begin);
        holds.moe = holds.moe || dp_model_layer_is_moe(memory->model, shape.layer_end - 1);
    }
    parts.exchange = dp_cost_room_bytes(memory->model, memory->profile, &memory->batch, &holds);
    if (holds.moe) {
        parts.exchange += dp_cost_windows_bytes(memory->model, memory->profile, &memory->batch);
    }
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
    units_init(&units, memory);
    const struct row row = row_of(&units, stage);
    const struct totals totals = totals_of(&row);
    *ret_chunk = (struct dp_rank_chunk){.kept = totals.kept,
                                        .deferred = totals.deferred,
                                        .forward = forward_level(&row),
                                        .backward = backward_level(&row, false),
                                        .input = backward_level(&row, true)};
}
