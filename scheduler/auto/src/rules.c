#include "rules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"

static double seconds_of(const struct field *field, int32_t at, dp_action_kind kind)
{
    const struct lane *lane = &field->lanes[at];
    return dp_sim_chunk_at(&field->costs, lane->rank, lane->slot)->seconds[kind];
}

static double backward_of(const struct field *field, int32_t at)
{
    return fmin(seconds_of(field, at, DP_ACTION_B), seconds_of(field, at, DP_ACTION_I));
}

static double work_of(const struct field *field, int32_t at)
{
    double split = seconds_of(field, at, DP_ACTION_I) + seconds_of(field, at, DP_ACTION_W);
    return seconds_of(field, at, DP_ACTION_F) + fmin(seconds_of(field, at, DP_ACTION_B), split);
}

static double hop(const struct field *field, int32_t link, int way)
{
    return field->links[link].latency + field->links[link].seconds[way];
}

// Follows the first micro-batch of a direction up and down again.
static void follow(struct outlook *outlook, const struct field *field, int32_t first)
{
    int32_t last = first;
    outlook->down[first] = 0;
    for (int32_t at = first; field->lanes[at].next >= 0; at = last) {
        last = field->lanes[at].next;
        outlook->down[last] = outlook->down[at] + seconds_of(field, at, DP_ACTION_F) +
                              hop(field, field->lanes[at].up, 0);
    }
    outlook->up[last] = outlook->down[last] + seconds_of(field, last, DP_ACTION_F);
    for (int32_t at = last; field->lanes[at].before >= 0; at = field->lanes[at].before) {
        outlook->up[field->lanes[at].before] =
            outlook->up[at] + backward_of(field, at) + hop(field, field->lanes[at].down, 1);
    }
    outlook->span = fmax(outlook->span, outlook->up[first] + backward_of(field, first));
}

static bool pairs_help(const struct field *field)
{
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        int32_t count = field_lane_count(field, rank);
        for (int32_t i = 0; i < 2 * count * count; i++) {
            int32_t f = i / count % count, b = i % count;
            dp_action_kind kind = i < count * count ? DP_ACTION_B : DP_ACTION_I;
            double alone = step_of(field, rank, symbol_of(field, DP_ACTION_F, f))->seconds +
                           step_of(field, rank, symbol_of(field, kind, b))->seconds;
            if (step_of(field, rank, symbol_of_pair(field, f, b, kind))->seconds < alone) {
                return true;
            }
        }
    }
    return false;
}

void dp_auto_outlook_init(struct outlook *ret_outlook, const struct field *field)
{
    size_t lanes = (size_t)field->lane_begin[field->pipeline];
    struct outlook outlook = {.period = dp_new_array(double, lanes),
                              .down = dp_new_array(double, lanes),
                              .up = dp_new_array(double, lanes),
                              .first_up = dp_new_array(double, (size_t)field->pipeline),
                              .reserve = dp_new_array(uint64_t, lanes)};
    double most = 0;
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        double work = 0;
        for (int32_t i = field->lane_begin[rank]; i < field->lane_begin[rank + 1]; i++) {
            work += work_of(field, i) * field->lanes[i].count;
            for (int32_t j = field->lane_begin[rank]; j < field->lane_begin[rank + 1]; j++) {
                bool later = field->lanes[j].stage > field->lanes[i].stage;
                outlook.reserve[i] += later ? field->lanes[j].bytes : 0;
            }
        }
        most = fmax(most, work);
    }
    for (int32_t i = 0; i < (int32_t)lanes; i++) {
        int32_t count = field->lanes[i].count;
        outlook.period[i] = count > 0 ? most / count : 0;
        if (field->lanes[i].before < 0) {
            follow(&outlook, field, i);
        }
    }
    for (int32_t rank = 0; rank < field->pipeline; rank++) {
        outlook.first_up[rank] = INFINITY;
        for (int32_t i = field->lane_begin[rank]; i < field->lane_begin[rank + 1]; i++) {
            outlook.first_up[rank] = fmin(outlook.first_up[rank], outlook.up[i]);
        }
    }
    outlook.span += most;
    outlook.has_pairs = pairs_help(field);
    *ret_outlook = outlook;
}

void dp_auto_outlook_deinit(struct outlook *outlook)
{
    free(outlook->period);
    free(outlook->down);
    free(outlook->up);
    free(outlook->first_up);
    free(outlook->reserve);
    *outlook = (struct outlook){0};
}

void dp_auto_rules_init(struct rules *ret_rules, const struct field *field)
{
    size_t lanes = (size_t)field->lane_begin[field->pipeline];
    *ret_rules = (struct rules){.forward = dp_new_array(double, lanes),
                                .backward = dp_new_array(double, lanes),
                                .weight = dp_new_array(double, lanes),
                                .depth = dp_new_array(int32_t, lanes),
                                .split_from = dp_new_array(int32_t, lanes)};
}

void dp_auto_rules_copy(struct rules *to, const struct rules *from, const struct field *field)
{
    size_t lanes = (size_t)field->lane_begin[field->pipeline];
    memcpy(to->forward, from->forward, lanes * sizeof(double));
    memcpy(to->backward, from->backward, lanes * sizeof(double));
    memcpy(to->weight, from->weight, lanes * sizeof(double));
    memcpy(to->depth, from->depth, lanes * sizeof(int32_t));
    memcpy(to->split_from, from->split_from, lanes * sizeof(int32_t));
    to->patience = from->patience;
    to->hold = from->hold;
    to->gap = from->gap;
    to->pairs = from->pairs;
}

void dp_auto_rules_deinit(struct rules *rules)
{
    free(rules->forward);
    free(rules->backward);
    free(rules->weight);
    free(rules->depth);
    free(rules->split_from);
    *rules = (struct rules){0};
}

// Chunks that are between F and backward when the lane never waits, `factor` times as many.
static int32_t depth_of(const struct field *field, const struct outlook *outlook, int32_t at,
                        double factor)
{
    double way = outlook->up[at] + backward_of(field, at) - outlook->down[at];
    double chunks = outlook->period[at] > 0 ? factor * way / outlook->period[at] : 1;
    int32_t count = field->lanes[at].count;
    return chunks < count ? (int32_t)fmax(1, ceil(chunks - 1e-9)) : count > 0 ? count : 1;
}

// Where B is cheaper than its halves, only the last backwards are worth splitting.
static int32_t split_of(const struct field *field, int32_t at, int32_t depth)
{
    double split = seconds_of(field, at, DP_ACTION_I) + seconds_of(field, at, DP_ACTION_W);
    int32_t whole = field->lanes[at].count - depth;
    return split <= seconds_of(field, at, DP_ACTION_B) || whole < 0 ? 0 : whole;
}

static void make_eager(struct rules *rules, const struct field *field,
                       const struct outlook *outlook, int number)
{
    static const double depths[] = {1, 1.34, 2, 3, 1.7, INFINITY};
    double depth = depths[number % 6];
    double downward = number / 6 % 2 == 0 ? -1 : 1; // furthest stage first, or oldest chunk first
    rules->gap = number / 12 % 2 == 0 ? 0 : 0.5;
    rules->patience = number / 24 % 2 == 0 ? 0 : 0.4;
    rules->hold = number / 48 % 2 == 0 ? INFINITY : 1e-9 * outlook->span;
    for (int32_t i = 0; i < field->lane_begin[field->pipeline]; i++) {
        rules->forward[i] = downward * outlook->down[i];
        rules->backward[i] = outlook->up[i] - 4 * outlook->span;
        rules->weight[i] = 4 * outlook->span;
        rules->depth[i] = depth_of(field, outlook, i, depth);
        rules->split_from[i] = split_of(field, i, depth_of(field, outlook, i, 1));
    }
}

// Chunk m passes the stages in a fixed rhythm, slower than it could by factors that differ on the
// way up and down: the building blocks of the controllable-memory schedules.
static void make_pattern(struct rules *rules, const struct field *field,
                         const struct outlook *outlook, int number)
{
    static const double stretches[] = {1, 1.5, 2, 3};
    double down = stretches[number % 4], up = stretches[number / 4 % 4];
    static const double lags[] = {0, 1, 1e3};
    double lag = lags[number / 16 % 3];
    rules->gap = 0;
    rules->patience = 0;
    rules->hold = number / 48 % 2 == 0 ? INFINITY : 1e-9 * outlook->span;
    for (int32_t i = 0; i < field->lane_begin[field->pipeline]; i++) {
        int32_t last = i;
        while (field->lanes[last].next >= 0) {
            last = field->lanes[last].next;
        }
        double turn = down * outlook->down[last] + outlook->up[last] - outlook->down[last];
        rules->forward[i] = down * outlook->down[i];
        rules->backward[i] = turn + up * (outlook->up[i] - outlook->up[last]);
        rules->weight[i] = rules->backward[i] + lag * outlook->period[i];
        rules->depth[i] = field->lanes[i].count + 1;
        rules->split_from[i] = split_of(field, i, depth_of(field, outlook, i, 1));
    }
}

void dp_auto_rules_preset(struct rules *rules, const struct field *field,
                          const struct outlook *outlook, int number)
{
    DP_CHECK(number >= 0 && number < AUTO_PRESETS);
    rules->pairs = outlook->has_pairs;
    if (number % 2 == 0) {
        make_eager(rules, field, outlook, number / 2);
    } else {
        make_pattern(rules, field, outlook, number / 2);
    }
}

// What a mutation changes of a lane.
enum {
    CHANGE_FORWARD,
    CHANGE_BACKWARD,
    CHANGE_WEIGHT,
    CHANGE_WEIGHT_ROLE, // weights as urgent as backwards, or last
    CHANGE_SPLIT,
    CHANGE_DEPTH,
    CHANGE_DEPTH_TOO,   // twice as often as the others
    CHANGES
};

static int32_t clamp(int32_t value, int32_t least, int32_t most)
{
    return value < least ? least : value > most ? most : value;
}

static void mutate_lane(struct rules *rules, const struct field *field,
                        const struct outlook *outlook, int32_t at, int what, double amount)
{
    double shift = amount * outlook->period[at];
    int32_t count = field->lanes[at].count;
    switch (what) {
    case CHANGE_FORWARD:
        rules->forward[at] += shift;
        break;
    case CHANGE_BACKWARD:
        rules->backward[at] += shift;
        break;
    case CHANGE_WEIGHT:
        rules->weight[at] += shift;
        break;
    case CHANGE_WEIGHT_ROLE:
        rules->weight[at] = amount < 0 ? rules->backward[at] - 4 * shift : 4 * outlook->span;
        break;
    case CHANGE_SPLIT:
        rules->split_from[at] =
            clamp(rules->split_from[at] + (int32_t)(amount * count), 0, count);
        break;
    default:
        // A depth beyond the count is no limit; it shrinks from there.
        rules->depth[at] = clamp(rules->depth[at], 1, count + 1);
        rules->depth[at] = clamp(rules->depth[at] + (amount < 0 ? -1 : 1), 1, count + 1);
        break;
    }
}

// Of all lanes, those from one on, or a single one.
static void mutate_lanes(struct rules *rules, const struct field *field,
                         const struct outlook *outlook, struct dice *dice)
{
    int32_t lanes = field->lane_begin[field->pipeline];
    int what = (int)dice_below(dice, CHANGES);
    double amount = 2 * dice_around(dice);
    int32_t from = (int32_t)dice_below(dice, (uint32_t)lanes), to = from + 1;
    uint32_t scope = dice_below(dice, 4);
    to = scope == 0 ? lanes : to;
    from = scope == 1 ? 0 : from;
    for (int32_t at = from; at < to; at++) {
        mutate_lane(rules, field, outlook, at, what, amount);
    }
}

void dp_auto_rules_mutate(struct rules *rules, const struct field *field,
                          const struct outlook *outlook, struct dice *dice)
{
    double amount = dice_around(dice);
    switch (dice_below(dice, 12)) {
    case 0:
        rules->patience = fabs(amount);
        break;
    case 1:
        rules->gap = fabs(amount);
        break;
    case 2:
        // Mostly small: a hold of a period is nearly none.
        rules->hold = amount < 0 ? INFINITY : amount * amount * outlook->period[0];
        break;
    case 3:
        rules->pairs = outlook->has_pairs && !rules->pairs;
        break;
    default:
        mutate_lanes(rules, field, outlook, dice);
        break;
    }
}
