// List scheduling: ranks run forward in time together, and each takes the most urgent action that
// can start. n actions on P ranks take O(n log P).
//
// Memory cannot lock the ranks up: a forward leaves room for one chunk of every later stage on its
// rank. So of all micro-batches that wait for room the one that is furthest gets it: what its rank
// holds of stages further on belongs to micro-batches that wait for nothing and go, and what it
// holds of earlier stages has left that room.
#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "rules.h"

// The times at which ranks want to decide; the earliest on top. A complete binary tree.
struct wakes {
    double *times; // [2 * leaves]: times[leaves + r] of rank r, inner nodes the least below
    int32_t leaves;
};

static void wakes_set(struct wakes *wakes, int32_t rank, double time)
{
    int32_t node = wakes->leaves + rank;
    wakes->times[node] = time;
    for (node /= 2; node > 0; node /= 2) {
        double left = wakes->times[2 * node], right = wakes->times[2 * node + 1];
        double least = left <= right ? left : right;
        if (wakes->times[node] >= least && wakes->times[node] <= least) {
            return;
        }
        wakes->times[node] = least;
    }
}

static int32_t wakes_first(const struct wakes *wakes)
{
    int32_t node = 1;
    while (node < wakes->leaves) {
        node = wakes->times[2 * node] <= wakes->times[2 * node + 1] ? 2 * node : 2 * node + 1;
    }
    return node - wakes->leaves;
}

struct builder {
    const struct field *field;
    const struct outlook *outlook;
    const struct rules *rules;
    struct clock *clock;
    struct order *order;
    struct wakes wakes;
    int32_t *weights; // [lanes]: W to come
    int32_t *weights_done;
    uint64_t *bytes;  // [pipeline]: alive
    bool *has_turned; // [pipeline]: a backward has run
};

// What a rank could do at one moment.
struct choice {
    double forward_key, backward_key, weight_key; // infinite when there is none
    int32_t forward, backward, weight;            // lanes
    // The most urgent forward or backward that is on its way, and the next one of any urgency.
    double coming_key, coming_at, next_at;
    double coming_forward_at, coming_backward_at;
    int32_t coming_forward, coming_backward;
    bool is_full; // a forward is there but finds no room
};

static void note_coming(struct choice *choice, double key, double at)
{
    if (key < choice->coming_key) {
        choice->coming_key = key;
        choice->coming_at = at;
    }
    choice->next_at = at < choice->next_at ? at : choice->next_at;
}

// Whether a forward that starts then would run into the rank's first backward.
static bool is_held_back(const struct builder *builder, int32_t at, double start)
{
    const struct field *field = builder->field;
    int32_t rank = field->lanes[at].rank;
    int32_t symbol = symbol_of(field, DP_ACTION_F, at - field->lane_begin[rank]);
    double end = start + step_of(field, rank, symbol)->seconds;
    return !builder->has_turned[rank] &&
           end > builder->outlook->first_up[rank] + builder->rules->hold;
}

static void look_at_forward(const struct builder *builder, int32_t at, double now,
                            struct choice *choice)
{
    const struct field *field = builder->field;
    const struct lane *lane = &field->lanes[at];
    const struct clock *clock = builder->clock;
    int32_t index = clock->forwards[at];
    if (index == lane->count || index - clock->backwards[at] >= builder->rules->depth[at]) {
        return;
    }
    double arrival = clock->forward_in[lane->base + (size_t)index];
    if (arrival < 0) {
        return;
    }
    uint64_t room = field->room[lane->rank], held = builder->bytes[lane->rank];
    uint64_t needed = lane->bytes + builder->outlook->reserve[at];
    if (needed > room || held > room - needed) {
        choice->is_full = true;
        return;
    }
    if (is_held_back(builder, at, now > arrival ? now : arrival)) {
        return;
    }
    double key = builder->rules->forward[at] + index * builder->outlook->period[at];
    if (arrival > now) {
        note_coming(choice, key, arrival);
        if (arrival < choice->coming_forward_at) {
            choice->coming_forward_at = arrival;
            choice->coming_forward = at;
        }
    } else if (key < choice->forward_key) {
        choice->forward_key = key;
        choice->forward = at;
    }
}

static void look_at_backward(const struct builder *builder, int32_t at, double now,
                             struct choice *choice)
{
    const struct lane *lane = &builder->field->lanes[at];
    const struct clock *clock = builder->clock;
    int32_t index = clock->backwards[at];
    if (index >= clock->forwards[at]) {
        return;
    }
    double arrival = clock->backward_in[lane->base + (size_t)index];
    if (arrival < 0) {
        return;
    }
    double key = builder->rules->backward[at] + index * builder->outlook->period[at];
    if (arrival > now) {
        note_coming(choice, key, arrival);
        if (arrival < choice->coming_backward_at) {
            choice->coming_backward_at = arrival;
            choice->coming_backward = at;
        }
    } else if (key < choice->backward_key) {
        choice->backward_key = key;
        choice->backward = at;
    }
}

static void look_at_weight(const struct builder *builder, int32_t at, struct choice *choice)
{
    if (builder->weights[at] == 0) {
        return;
    }
    double key = builder->rules->weight[at] +
                 builder->weights_done[at] * builder->outlook->period[at];
    if (choice->weight < 0 || key < choice->weight_key) {
        choice->weight_key = key;
        choice->weight = at;
    }
}

static struct choice look(const struct builder *builder, int32_t rank, double now)
{
    struct choice choice = {.forward_key = INFINITY,
                            .backward_key = INFINITY,
                            .weight_key = INFINITY,
                            .forward = -1,
                            .backward = -1,
                            .weight = -1,
                            .coming_key = INFINITY,
                            .coming_at = INFINITY,
                            .next_at = INFINITY,
                            .coming_forward_at = INFINITY,
                            .coming_backward_at = INFINITY,
                            .coming_forward = -1,
                            .coming_backward = -1};
    const struct field *field = builder->field;
    for (int32_t at = field->lane_begin[rank]; at < field->lane_begin[rank + 1]; at++) {
        look_at_forward(builder, at, now, &choice);
        look_at_backward(builder, at, now, &choice);
        look_at_weight(builder, at, &choice);
    }
    return choice;
}

static dp_action_kind backward_kind(const struct builder *builder, int32_t at)
{
    return builder->clock->backwards[at] < builder->rules->split_from[at] ? DP_ACTION_B
                                                                          : DP_ACTION_I;
}

// The symbol of the pair, and what it saves; 0 or less when it is no gain.
static double pair_gain(const struct builder *builder, int32_t rank, int32_t forward,
                        int32_t backward, int32_t *ret_symbol)
{
    const struct field *field = builder->field;
    int32_t begin = field->lane_begin[rank];
    double best = 0;
    int32_t f = forward - begin, b = backward - begin;
    double alone_f = step_of(field, rank, symbol_of(field, DP_ACTION_F, f))->seconds;
    for (int i = 0; i < 2; i++) {
        dp_action_kind kind = i == 0 ? backward_kind(builder, backward)
                              : backward_kind(builder, backward) == DP_ACTION_I ? DP_ACTION_B
                                                                                : DP_ACTION_I;
        int32_t symbol = symbol_of_pair(field, f, b, kind);
        double alone = alone_f + step_of(field, rank, symbol_of(field, kind, b))->seconds;
        double gain = alone - step_of(field, rank, symbol)->seconds;
        if (gain > best) {
            best = gain;
            *ret_symbol = symbol;
        }
    }
    return best;
}

// Hands on what one part of an action made, and wakes the rank that it is for.
static void hand_on(struct builder *builder, int32_t rank, int32_t at, int way, double end)
{
    struct clock *clock = builder->clock;
    const struct lane *lane = &builder->field->lanes[at];
    int32_t index = way == 0 ? clock->forwards[at]++ : clock->backwards[at]++;
    int32_t target = way == 0 ? lane->next : lane->before;
    if (target < 0) {
        return;
    }
    double arrival = *clock_send(clock, way == 0 ? lane->up : lane->down, target, way, index, end);
    int32_t peer = builder->field->lanes[target].rank;
    double wake = clock->end[peer] > arrival ? clock->end[peer] : arrival;
    if (peer != rank && wake < builder->wakes.times[builder->wakes.leaves + peer]) {
        wakes_set(&builder->wakes, peer, wake);
    }
}

// Starts the symbol's action.
static void start(struct builder *builder, int32_t rank, int32_t symbol, double now)
{
    const struct field *field = builder->field;
    const struct step *step = step_of(field, rank, symbol);
    double end = now + step->seconds;
    size_t at = field->list_begin[rank] + builder->order->length[rank]++;
    builder->order->symbols[at] = (uint16_t)symbol;
    builder->bytes[rank] += step->take;
    builder->bytes[rank] -= step->give;
    if (step->forward >= 0) {
        hand_on(builder, rank, step->forward, 0, end);
    }
    if (step->backward >= 0) {
        hand_on(builder, rank, step->backward, 1, end);
        builder->has_turned[rank] = true;
        builder->weights[step->backward] += step->b_kind == DP_ACTION_I;
    }
    if (step->weight >= 0) {
        builder->weights[step->weight]--;
        builder->weights_done[step->weight]++;
    }
    builder->clock->end[rank] = end;
    wakes_set(&builder->wakes, rank, end);
}

// The time until which the rank had better wait for the other part of a pair; 0 = not worth it.
static double wait_for_pair(const struct builder *builder, int32_t rank, double now,
                            const struct choice *choice)
{
    int32_t symbol = 0;
    bool has_forward = choice->forward >= 0, has_backward = choice->backward >= 0;
    int32_t forward = has_forward ? choice->forward : choice->coming_forward;
    int32_t backward = has_backward ? choice->backward : choice->coming_backward;
    if (has_forward == has_backward || forward < 0 || backward < 0) {
        return 0;
    }
    double at = has_forward ? choice->coming_backward_at : choice->coming_forward_at;
    double gain = pair_gain(builder, rank, forward, backward, &symbol);
    return at - now < gain * builder->rules->patience ? at : 0;
}

// Forward, backward or a pair of both; -1 = the rank waits until *ret_until.
static int32_t choose_pass(const struct builder *builder, int32_t rank, double now,
                           const struct choice *choice, double *ret_until)
{
    const struct field *field = builder->field;
    int32_t begin = field->lane_begin[rank], symbol = -1;
    if (builder->rules->pairs) {
        if (choice->forward >= 0 && choice->backward >= 0 &&
            pair_gain(builder, rank, choice->forward, choice->backward, &symbol) > 0) {
            return symbol;
        }
        *ret_until = wait_for_pair(builder, rank, now, choice);
        if (*ret_until > 0) {
            return -1;
        }
    }
    bool forward = choice->forward_key < choice->backward_key;
    dp_action_kind kind = forward ? DP_ACTION_F : backward_kind(builder, choice->backward);
    symbol = symbol_of(field, kind, (forward ? choice->forward : choice->backward) - begin);
    double key = forward ? choice->forward_key : choice->backward_key;
    double seconds = step_of(field, rank, symbol)->seconds;
    if (choice->coming_key < key &&
        choice->coming_at - now < builder->rules->patience * seconds) {
        *ret_until = choice->coming_at;
        return -1;
    }
    return symbol;
}

static void decide(struct builder *builder, int32_t rank, double now)
{
    const struct field *field = builder->field;
    struct choice choice = look(builder, rank, now);
    double until = choice.next_at;
    int32_t symbol = -1;
    bool has_pass = choice.forward >= 0 || choice.backward >= 0;
    bool weight_first = choice.weight >= 0 && choice.weight_key <= choice.forward_key &&
                        choice.weight_key <= choice.backward_key;
    if (has_pass && !weight_first) {
        symbol = choose_pass(builder, rank, now, &choice, &until);
    } else if (choice.weight >= 0) {
        symbol = symbol_of(field, DP_ACTION_W, choice.weight - field->lane_begin[rank]);
        double seconds = step_of(field, rank, symbol)->seconds;
        bool fits = has_pass || choice.next_at - now >= builder->rules->gap * seconds;
        symbol = fits || choice.is_full ? symbol : -1;
    }
    if (symbol >= 0) {
        start(builder, rank, symbol, now);
    } else {
        wakes_set(&builder->wakes, rank, until);
    }
}

static void reset(struct builder *builder)
{
    dp_auto_clock_reset(builder->clock);
    for (int32_t i = 0; i < 2 * builder->wakes.leaves; i++) {
        builder->wakes.times[i] = INFINITY;
    }
    for (int32_t rank = 0; rank < builder->field->pipeline; rank++) {
        builder->order->length[rank] = 0;
        wakes_set(&builder->wakes, rank, 0);
    }
}

bool dp_auto_list_build(struct order *order, const struct field *field,
                        const struct outlook *outlook, const struct rules *rules,
                        struct clock *clock)
{
    int32_t leaves = 1;
    while (leaves < field->pipeline) {
        leaves *= 2;
    }
    size_t lanes = (size_t)field->lane_begin[field->pipeline];
    DP_AUTO_FREE double *times = dp_new_array(double, 2 * (size_t)leaves);
    DP_AUTO_FREE int32_t *weights = dp_new_array(int32_t, 2 * lanes);
    DP_AUTO_FREE uint64_t *bytes = dp_new_array(uint64_t, (size_t)field->pipeline);
    DP_AUTO_FREE bool *has_turned = dp_new_array(bool, (size_t)field->pipeline);
    struct builder builder = {.field = field,
                              .outlook = outlook,
                              .rules = rules,
                              .clock = clock,
                              .order = order,
                              .wakes = {times, leaves},
                              .weights = weights,
                              .weights_done = weights + lanes,
                              .bytes = bytes,
                              .has_turned = has_turned};
    reset(&builder);
    for (;;) {
        int32_t rank = wakes_first(&builder.wakes);
        double now = builder.wakes.times[builder.wakes.leaves + rank];
        if (now >= INFINITY) {
            break;
        }
        decide(&builder, rank, now);
    }
    for (size_t i = 0; i < lanes; i++) {
        if (clock->backwards[i] < field->lanes[i].count || weights[i] > 0) {
            return false;
        }
    }
    return true;
}
