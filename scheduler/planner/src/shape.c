#include "shape.h"

#include <string.h>

#include "dp/action_halves.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"

enum { TERMS_MAX = 8 * DP_RANK_STAGES_MAX };

// What actions of one kind found alive, one after the other.
struct run {
    int32_t length; // 0, 1, or more
    int32_t last[2 * DP_RANK_STAGES_MAX], step[2 * DP_RANK_STAGES_MAX];
};

// One rank's list while it is read.
struct reader {
    const struct dp_schedule *schedule;
    struct shape *shape;
    struct shape_rank *rank;
    const struct dp_action *actions;
    size_t count;
    struct shape_term terms[TERMS_MAX];
    int32_t terms_count;
    int16_t slot_of[DP_STAGES_MAX];
    int16_t term_of[DP_ACTION_KIND_COUNT][2][DP_RANK_STAGES_MAX][DP_RANK_STAGES_MAX]; // + 1
    int32_t chunks[2 * DP_RANK_STAGES_MAX];                                           // alive now
    struct shape_live *live; // malloc'ed while it grows
    int32_t live_count, live_room;
    struct run runs[TERMS_MAX];
};

static int32_t term_of(struct reader *reader, const struct dp_action *action)
{
    bool pair = action->kind == DP_ACTION_FB;
    struct shape_term term = {.kind = action->kind,
                              .slot = (uint8_t)reader->slot_of[action->stage]};
    if (pair) {
        term.b_kind = action->b_kind;
        term.b_slot = (uint8_t)reader->slot_of[action->b_stage];
    }
    int16_t *known =
        &reader->term_of[term.kind][pair && term.b_kind == DP_ACTION_I][term.slot][term.b_slot];
    if (*known == 0) {
        DP_CHECK(reader->terms_count < TERMS_MAX);
        reader->terms[reader->terms_count++] = term;
        *known = (int16_t)reader->terms_count;
    }
    return *known - 1;
}

static bool is_covered(const int32_t *less, const int32_t *more, int32_t size)
{
    for (int32_t i = 0; i < size; i++) {
        if (less[i] > more[i]) {
            return false;
        }
    }
    return true;
}

// Keeps what was alive, unless an action of the same kind found as much of everything.
static void keep_live(struct reader *reader, int32_t term, const int32_t *chunks)
{
    int32_t size = 2 * reader->rank->slots, kept = 0;
    for (int32_t i = 0; i < reader->live_count; i++) {
        const struct shape_live *live = &reader->live[i];
        if (live->term == term && is_covered(chunks, live->chunks, size)) {
            return;
        }
    }
    for (int32_t i = 0; i < reader->live_count; i++) {
        const struct shape_live *live = &reader->live[i];
        if (live->term != term || !is_covered(live->chunks, chunks, size)) {
            reader->live[kept++] = *live;
        }
    }
    reader->live_count = kept;
    if (reader->live_count == reader->live_room) {
        reader->live_room = 2 * reader->live_room + 8;
        reader->live = dp_realloc(reader->live, (size_t)reader->live_room, sizeof(*reader->live));
    }
    int32_t *copy = dp_arena_alloc(&reader->shape->arena, (size_t)size * sizeof(*copy));
    memcpy(copy, chunks, (size_t)size * sizeof(*copy));
    reader->live[reader->live_count++] = (struct shape_live){term, copy};
}

// What is alive often moves along a line from action to action: one chunk more of this, one less of
// that. Any costs find their most at one of its ends, so only those are kept.
static void note_live(struct reader *reader, int32_t term)
{
    struct run *run = &reader->runs[term];
    int32_t size = 2 * reader->rank->slots;
    bool goes_on = run->length > 1, stays = true;
    for (int32_t i = 0; i < size; i++) {
        int32_t step = reader->chunks[i] - run->last[i];
        goes_on = goes_on && step == run->step[i];
        stays = stays && step == 0;
    }
    if (run->length > 0 && stays) {
        return;
    }
    if (run->length > 0 && !goes_on) {
        keep_live(reader, term, run->last);
    }
    for (int32_t i = 0; i < size; i++) {
        run->step[i] = reader->chunks[i] - run->last[i];
        run->last[i] = reader->chunks[i];
    }
    run->length = run->length == 0 ? 1 : 2;
}

static void end_runs(struct reader *reader)
{
    for (int32_t term = 0; term < reader->terms_count; term++) {
        if (reader->runs[term].length > 0) {
            keep_live(reader, term, reader->runs[term].last);
        }
    }
}

static void update_live(struct reader *reader, const struct dp_action *action)
{
    struct dp_half halves[2];
    int count = dp_action_halves(action, halves);
    for (int i = 0; i < count; i++) {
        int32_t *kept = &reader->chunks[reader->slot_of[halves[i].stage]];
        int32_t *deferred = kept + reader->rank->slots;
        *kept += halves[i].kind == DP_ACTION_F;
        *kept -= halves[i].kind == DP_ACTION_B || halves[i].kind == DP_ACTION_I;
        *deferred += halves[i].kind == DP_ACTION_I;
        *deferred -= halves[i].kind == DP_ACTION_W;
    }
}

static const int32_t *keep_counts(struct reader *reader, const int32_t *counts)
{
    size_t bytes = (size_t)reader->terms_count * sizeof(*counts);
    int32_t *kept = dp_arena_alloc(&reader->shape->arena, bytes);
    memcpy(kept, counts, bytes);
    return kept;
}

static bool seen(const struct shape_end *ends, int32_t count, const struct shape_end *end)
{
    for (int32_t i = 0; i < count; i++) {
        if (ends[i].stage == end->stage && ends[i].direction == end->direction &&
            ends[i].is_forward == end->is_forward) {
            return true;
        }
    }
    return false;
}

static struct shape_end end_of(const struct reader *reader, const struct dp_half *half)
{
    return (struct shape_end){
        .stage = half->stage,
        .direction = dp_schedule_direction(reader->schedule, half->microbatch),
        .is_forward = half->kind == DP_ACTION_F,
    };
}

// With many chunks the first and the last one tell as much as all of them.
static bool is_telling(const struct reader *reader, int32_t stage)
{
    int32_t slot = reader->slot_of[stage];
    return reader->rank->slots <= 2 || slot == 0 || slot == reader->rank->slots - 1;
}

static void note_ends(struct reader *reader, size_t at, bool is_first, const int32_t *counts)
{
    const struct dp_action *action = &reader->actions[at];
    struct shape_rank *rank = reader->rank;
    struct shape_end *ends = is_first ? rank->firsts : rank->lasts;
    int32_t *count = is_first ? &rank->firsts_count : &rank->lasts_count;
    struct dp_half halves[2];
    int halves_count = dp_action_halves(action, halves);
    for (int i = 0; i < halves_count; i++) {
        struct shape_end end = end_of(reader, &halves[i]);
        bool counts_here = halves[i].kind != DP_ACTION_W && (is_first || !end.is_forward);
        if (counts_here && *count < SHAPE_ENDS_MAX && is_telling(reader, end.stage) &&
            !seen(ends, *count, &end)) {
            end.counts = keep_counts(reader, counts);
            end.position = (int64_t)at;
            ends[(*count)++] = end;
        }
    }
}

// The list forwards: terms, what is alive, first actions.
static void read_forwards(struct reader *reader)
{
    for (size_t i = 0; i < reader->count; i++) {
        term_of(reader, &reader->actions[i]);
    }
    int32_t counts[TERMS_MAX] = {0};
    for (size_t i = 0; i < reader->count; i++) {
        const struct dp_action *action = &reader->actions[i];
        int32_t term = term_of(reader, action);
        note_ends(reader, i, true, counts);
        note_live(reader, term);
        update_live(reader, action);
        counts[term]++;
    }
    end_runs(reader);
    struct shape_rank *rank = reader->rank;
    size_t terms = (size_t)reader->terms_count;
    rank->terms_count = reader->terms_count;
    rank->terms = dp_arena_alloc(&reader->shape->arena, terms * sizeof(*rank->terms));
    memcpy(rank->terms, reader->terms, terms * sizeof(*rank->terms));
    rank->counts = dp_arena_alloc(&reader->shape->arena, terms * sizeof(*rank->counts));
    memcpy(rank->counts, counts, terms * sizeof(*rank->counts));
}

static void read_backwards(struct reader *reader)
{
    int32_t counts[TERMS_MAX] = {0};
    for (size_t i = reader->count; i-- > 0;) {
        note_ends(reader, i, false, counts);
        counts[term_of(reader, &reader->actions[i])]++;
    }
}

// Chunks of a stage and direction in the order of the list: forwards started less backwards ended,
// where both come in the same order. A pair's forward does not wait for its own backward.
static void read_flight(struct reader *reader, int32_t stage, int32_t direction)
{
    struct shape_flight flight = {.stage = stage, .direction = direction};
    int64_t last[2] = {-1, -1};
    int32_t alive = 0;
    bool in_order = true;
    for (size_t i = 0; i < reader->count; i++) {
        struct dp_half halves[2];
        int count = dp_action_halves(&reader->actions[i], halves);
        for (int h = 0; h < count; h++) {
            const struct dp_half *half = &halves[h];
            if (half->stage != stage || half->kind == DP_ACTION_W ||
                dp_schedule_direction(reader->schedule, half->microbatch) != direction) {
                continue;
            }
            bool forward = half->kind == DP_ACTION_F;
            in_order = in_order && half->microbatch > last[forward];
            last[forward] = half->microbatch;
            alive += forward ? 1 : -1;
            flight.microbatches += forward;
            flight.flight = alive > flight.flight ? alive : flight.flight;
        }
    }
    if (in_order && flight.microbatches > 0) {
        reader->rank->flights[reader->rank->flights_count++] = flight;
    }
}

static void read_rank(struct reader *reader, int32_t rank)
{
    const struct dp_schedule *schedule = reader->schedule;
    struct shape_rank *result = &reader->shape->ranks[rank];
    *reader = (struct reader){.schedule = schedule,
                              .shape = reader->shape,
                              .rank = result,
                              .actions = schedule->actions + schedule->rank_begin[rank],
                              .count = schedule->rank_begin[rank + 1] - schedule->rank_begin[rank]};
    result->slots = dp_schedule_rank_stages(schedule, rank, result->stages);
    for (int32_t slot = 0; slot < result->slots; slot++) {
        reader->slot_of[result->stages[slot]] = (int16_t)slot;
    }
    read_forwards(reader);
    read_backwards(reader);
    for (int32_t slot = 0; slot < result->slots; slot++) {
        int32_t stage = result->stages[slot];
        for (int32_t d = 0; d < schedule->directions; d++) {
            bool here = schedule->placement[2 * stage + d] == rank;
            if (here && is_telling(reader, stage) && result->flights_count < DP_RANK_STAGES_MAX) {
                read_flight(reader, stage, d);
            }
        }
    }
    size_t bytes = (size_t)reader->live_count * sizeof(*result->live);
    result->live = dp_arena_alloc(&reader->shape->arena, bytes);
    memcpy(result->live, reader->live, bytes);
    result->live_count = reader->live_count;
    free(reader->live);
}

void dp_planner_shape_of(const struct dp_schedule *schedule, struct shape *ret_shape)
{
    struct shape *shape = ret_shape;
    *shape = (struct shape){.pipeline = schedule->pipeline,
                            .microbatches = schedule->microbatches,
                            .stages = schedule->stages,
                            .directions = schedule->directions};
    dp_arena_init(&shape->arena, 0);
    size_t placement_bytes = 2 * (size_t)schedule->stages * sizeof(*shape->placement);
    shape->placement = dp_arena_alloc(&shape->arena, placement_bytes);
    memcpy(shape->placement, schedule->placement, placement_bytes);
    shape->ranks =
        dp_arena_alloc(&shape->arena, (size_t)schedule->pipeline * sizeof(*shape->ranks));
    DP_AUTO_FREE struct reader *reader = dp_new(struct reader);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        reader->schedule = schedule;
        reader->shape = shape;
        read_rank(reader, rank);
        const struct shape_rank *result = &shape->ranks[rank];
        shape->terms_max =
            result->terms_count > shape->terms_max ? result->terms_count : shape->terms_max;
        for (int32_t t = 0; t < result->terms_count; t++) {
            shape->has_pairs |= result->terms[t].kind == DP_ACTION_FB;
            shape->has_splits |= result->terms[t].kind == DP_ACTION_W;
        }
    }
}

void dp_planner_shape_deinit(struct shape *shape)
{
    dp_arena_deinit(&shape->arena);
    *shape = (struct shape){0};
}
