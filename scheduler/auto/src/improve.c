// Local search: moves of one action within its rank's list, most of them on the critical path,
// where alone something can be gained. What is no worse is kept, so that the order drifts over
// plateaus.
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "search.h"

static uint16_t *list_of(struct order *order, const struct field *field, int32_t rank)
{
    return order->symbols + field->list_begin[rank];
}

static void shift(uint16_t *list, uint32_t from, uint32_t to)
{
    uint16_t symbol = list[from];
    if (from < to) {
        memmove(list + from, list + from + 1, (to - from) * sizeof(*list));
    } else {
        memmove(list + to + 1, list + to, (from - to) * sizeof(*list));
    }
    list[to] = symbol;
}

static void insert(struct order *order, const struct field *field, int32_t rank, uint32_t at,
                   int32_t symbol)
{
    uint16_t *list = list_of(order, field, rank);
    memmove(list + at + 1, list + at, (order->length[rank] - at) * sizeof(*list));
    list[at] = (uint16_t)symbol;
    order->length[rank]++;
}

static void cut(struct order *order, const struct field *field, int32_t rank, uint32_t at)
{
    uint16_t *list = list_of(order, field, rank);
    order->length[rank]--;
    memmove(list + at, list + at + 1, (order->length[rank] - at) * sizeof(*list));
}

// The first action of the run without a gap that the spot stands in.
static uint32_t run_begin(const struct entry *entry, struct spot spot)
{
    const struct dp_sim_span *spans = entry->clock.spans + entry->field.list_begin[spot.rank];
    uint32_t at = spot.at;
    while (at > 0 && spans[at].start <= spans[at - 1].end) {
        at--;
    }
    return at;
}

// A spot on the critical path; now and then any.
static struct spot choose_spot(const struct entry *entry, struct dice *dice)
{
    if (dice_below(dice, 8) > 0) {
        return entry->trace.path[dice_below(dice, (uint32_t)entry->trace.count)];
    }
    int32_t rank = (int32_t)dice_below(dice, (uint32_t)entry->field.pipeline);
    uint32_t length = entry->walk.length[rank];
    return (struct spot){rank, length > 0 ? dice_below(dice, length) : 0};
}

// Shifts the action to and fro; near places are tried more often than far ones.
static bool try_shift(struct entry *entry, struct spot spot, struct dice *dice)
{
    uint16_t *list = list_of(&entry->trial, &entry->field, spot.rank);
    uint32_t length = entry->trial.length[spot.rank];
    uint32_t reach = dice_below(dice, 4) > 0 ? 8 : length, to;
    if (dice_below(dice, 2) == 0) {
        uint32_t begin = dice_below(dice, 2) == 0 ? run_begin(entry, spot) : 0;
        uint32_t most = spot.at - begin < reach ? spot.at - begin : reach;
        if (most == 0) {
            return false;
        }
        to = spot.at - 1 - dice_below(dice, most);
    } else {
        uint32_t most = length - 1 - spot.at < reach ? length - 1 - spot.at : reach;
        if (most == 0) {
            return false;
        }
        to = spot.at + 1 + dice_below(dice, most);
    }
    uint16_t symbol = list[spot.at];
    shift(list, spot.at, to);
    // Passing nothing but its like changes nothing.
    uint32_t from = spot.at < to ? spot.at : to + 1, end = spot.at < to ? to : spot.at + 1;
    for (uint32_t i = from; i < end; i++) {
        if (list[i] != symbol) {
            return true;
        }
    }
    return false;
}

// The next action behind `at` that has the given part, at most so many places on; 0 = none.
static uint32_t find_behind(const struct entry *entry, struct spot spot, bool forward)
{
    const struct field *field = &entry->field;
    const uint16_t *list = entry->trial.symbols + field->list_begin[spot.rank];
    enum { REACH = 12 };
    for (uint32_t at = spot.at + 1; at < entry->trial.length[spot.rank] && at <= spot.at + REACH;
         at++) {
        const struct step *step = step_of(field, spot.rank, list[at]);
        bool alone = step->kind == DP_ACTION_F
                         ? forward
                         : !forward && (step->kind == DP_ACTION_B || step->kind == DP_ACTION_I);
        if (alone) {
            return at;
        }
    }
    return 0;
}

// A forward and a backward become one pair, where the first of them stood.
static bool try_pair(struct entry *entry, struct spot spot, struct dice *dice)
{
    const struct field *field = &entry->field;
    uint16_t *list = list_of(&entry->trial, field, spot.rank);
    const struct step *step = step_of(field, spot.rank, list[spot.at]);
    uint32_t other = find_behind(entry, spot, step->kind != DP_ACTION_F);
    if (other == 0) {
        return false;
    }
    const struct step *mate = step_of(field, spot.rank, list[other]);
    const struct step *f = step->kind == DP_ACTION_F ? step : mate;
    const struct step *b = step->kind == DP_ACTION_F ? mate : step;
    int32_t begin = field->lane_begin[spot.rank];
    uint32_t place = dice_below(dice, 2) == 0 ? spot.at : other;
    list[place] = (uint16_t)symbol_of_pair(field, f->forward - begin, b->backward - begin,
                                           (dp_action_kind)b->b_kind);
    cut(&entry->trial, field, spot.rank, place == spot.at ? other : spot.at);
    return true;
}

// A pair becomes a forward and a backward.
static bool try_part(struct entry *entry, struct spot spot, struct dice *dice)
{
    const struct field *field = &entry->field;
    uint16_t *list = list_of(&entry->trial, field, spot.rank);
    const struct step *step = step_of(field, spot.rank, list[spot.at]);
    int32_t begin = field->lane_begin[spot.rank];
    int32_t f = symbol_of(field, DP_ACTION_F, step->forward - begin);
    int32_t b = symbol_of(field, (dp_action_kind)step->b_kind, step->backward - begin);
    bool forward_first = dice_below(dice, 2) == 0;
    list[spot.at] = (uint16_t)(forward_first ? f : b);
    insert(&entry->trial, field, spot.rank, spot.at + 1, forward_first ? b : f);
    return true;
}

// The symbol with its B as I, or its I as B.
static int32_t other_backward(const struct field *field, int32_t rank, const struct step *step)
{
    int32_t begin = field->lane_begin[rank];
    dp_action_kind kind = step->b_kind == DP_ACTION_I ? DP_ACTION_B : DP_ACTION_I;
    return step->kind == DP_ACTION_FB
               ? symbol_of_pair(field, step->forward - begin, step->backward - begin, kind)
               : symbol_of(field, kind, step->backward - begin);
}

// A B becomes an I, and its W comes later; or an I takes the next W of its lane into a B.
static bool try_split(struct entry *entry, struct spot spot, struct dice *dice)
{
    const struct field *field = &entry->field;
    uint16_t *list = list_of(&entry->trial, field, spot.rank);
    const struct step *step = step_of(field, spot.rank, list[spot.at]);
    int32_t weight =
        symbol_of(field, DP_ACTION_W, step->backward - field->lane_begin[spot.rank]);
    uint32_t length = entry->trial.length[spot.rank];
    list[spot.at] = (uint16_t)other_backward(field, spot.rank, step);
    if (step->b_kind == DP_ACTION_B) {
        uint32_t reach = length - spot.at;
        reach = reach > 8 && dice_below(dice, 4) > 0 ? 8 : reach;
        insert(&entry->trial, field, spot.rank, spot.at + 1 + dice_below(dice, reach), weight);
        return true;
    }
    for (uint32_t at = spot.at + 1; at < length; at++) {
        if (list[at] == weight) {
            cut(&entry->trial, field, spot.rank, at);
            return true;
        }
    }
    return false;
}

static bool try_something(struct entry *entry, struct spot spot, struct dice *dice)
{
    const struct field *field = &entry->field;
    const struct step *step =
        step_of(field, spot.rank, entry->trial.symbols[field->list_begin[spot.rank] + spot.at]);
    uint32_t kind = dice_below(dice, 16);
    if (kind < 3 && entry->outlook.has_pairs && step->kind != DP_ACTION_W) {
        return step->kind == DP_ACTION_FB ? try_part(entry, spot, dice)
                                          : try_pair(entry, spot, dice);
    }
    if (kind == 3 && step->backward >= 0) {
        return try_split(entry, spot, dice);
    }
    return try_shift(entry, spot, dice);
}

static void copy_rank(struct order *to, const struct order *from, const struct field *field,
                      int32_t rank)
{
    size_t begin = field->list_begin[rank];
    memcpy(to->symbols + begin, from->symbols + begin, from->length[rank] * sizeof(uint16_t));
    to->length[rank] = from->length[rank];
}

void dp_auto_walk_begin(struct entry *entry, const struct walk *walk)
{
    dp_auto_order_copy(&entry->walk, &entry->order, &entry->field);
    dp_auto_order_copy(&entry->trial, &entry->order, &entry->field);
    entry->walk_score = dp_auto_clock_run(&entry->clock, &entry->walk, walk->longest_span, true);
    dp_auto_trace_run(&entry->trace, &entry->walk, &entry->clock, walk->longest_span);
}

void dp_auto_walk_end(struct entry *entry)
{
    if (!score_is_less(entry->score, entry->walk_score)) {
        dp_auto_order_copy(&entry->order, &entry->walk, &entry->field);
        entry->score = entry->walk_score;
    }
}

// The trial, which differs on one rank, becomes where the walk is.
static void accept(struct entry *entry, const struct walk *walk, int32_t rank, struct score score,
                   int64_t move)
{
    copy_rank(&entry->walk, &entry->trial, &entry->field, rank);
    entry->walk_score = score;
    struct clock clock = entry->clock;
    entry->clock = entry->trial_clock;
    entry->trial_clock = clock;
    dp_auto_trace_run(&entry->trace, &entry->walk, &entry->clock, walk->longest_span);
    if (score.value < entry->score.value) {
        entry->found_at = move;
        entry->score = score;
        dp_auto_order_copy(&entry->order, &entry->walk, &entry->field);
    }
}

void dp_auto_walk_step(struct entry *entry, const struct walk *walk, int32_t number,
                       struct dice *dice)
{
    struct spot spot = {0, 0};
    bool changed = false;
    for (int tries = 0; tries < 16 && !changed; tries++) {
        spot = choose_spot(entry, dice);
        if (entry->walk.length[spot.rank] == 0) {
            continue;
        }
        changed = try_something(entry, spot, dice) &&
                  dp_auto_order_fits(&entry->trial, &entry->field, spot.rank);
        if (!changed) {
            copy_rank(&entry->trial, &entry->walk, &entry->field, spot.rank);
        }
    }
    if (!changed) {
        return;
    }
    struct score score =
        dp_auto_clock_run(&entry->trial_clock, &entry->trial, walk->longest_span, true);
    double slack = walk->slack * (walk->count - number) / walk->count;
    bool is_kept = score.value <= entry->score.value + slack &&
                   (slack > 0 || !score_is_less(entry->walk_score, score));
    if (is_kept) {
        accept(entry, walk, spot.rank, score, walk->first + number);
    } else {
        copy_rank(&entry->trial, &entry->walk, &entry->field, spot.rank);
    }
}
