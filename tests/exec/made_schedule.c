#include "made_schedule.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/rand.h"

enum { DONE_F = 1, DONE_I = 2, DONE_W = 4 };

struct maker {
    const struct made *made;
    struct dp_schedule *schedule;
    struct dp_rand rand;
    uint8_t *done;             // [stages][microbatches]
    struct dp_action **lists;  // [pipeline]
    size_t *counts, capacity;  // [pipeline]; of each list
    int32_t *live;             // [pipeline]
    struct dp_action *choices; // what may run now on a rank
    size_t choice_count;
};

static uint8_t *done_at(const struct maker *maker, int32_t stage, int32_t microbatch)
{
    return &maker->done[stage * maker->schedule->microbatches + microbatch];
}

static bool chance(struct maker *maker, int32_t percent)
{
    return (int32_t)dp_rand_below(&maker->rand, 100) < percent;
}

static void place(struct maker *maker)
{
    struct dp_schedule *schedule = maker->schedule;
    int32_t ranks = schedule->pipeline;
    for (int32_t s = 0; s < schedule->stages; s++) {
        int32_t lap = s / ranks, at = s % ranks;
        bool turned = maker->made->placement == MADE_WAVES && lap % 2 == 1;
        int32_t rank = turned ? ranks - 1 - at : at;
        bool both = maker->made->placement == MADE_BOTH;
        schedule->placement[2 * s] = rank;
        schedule->placement[2 * s + 1] = both ? ranks - 1 - rank : rank;
    }
    for (int32_t s = schedule->stages - 1; maker->made->placement == MADE_ANYWHERE && s > 0; s--) {
        int32_t other = (int32_t)dp_rand_below(&maker->rand, (uint64_t)s + 1);
        int32_t rank = schedule->placement[2 * s];
        schedule->placement[2 * s] = schedule->placement[2 * s + 1] =
            schedule->placement[2 * other];
        schedule->placement[2 * other] = schedule->placement[2 * other + 1] = rank;
    }
}

static void offer(struct maker *maker, dp_action_kind kind, int32_t stage, int32_t microbatch)
{
    maker->choices[maker->choice_count++] = (struct dp_action){
        .kind = (uint8_t)kind, .stage = (uint16_t)stage, .microbatch = (uint32_t)microbatch};
}

static void offer_chunk(struct maker *maker, int32_t stage, int32_t microbatch, bool forwards)
{
    uint8_t done = *done_at(maker, stage, microbatch);
    bool is_last = stage == maker->schedule->stages - 1;
    if ((done & DONE_F) == 0) {
        if (forwards && (stage == 0 || (*done_at(maker, stage - 1, microbatch) & DONE_F) != 0)) {
            offer(maker, DP_ACTION_F, stage, microbatch);
        }
    } else if ((done & DONE_I) == 0) {
        if (is_last || (*done_at(maker, stage + 1, microbatch) & DONE_I) != 0) {
            bool splits = chance(maker, maker->made->splits);
            offer(maker, splits ? DP_ACTION_I : DP_ACTION_B, stage, microbatch);
        }
    } else if ((done & DONE_W) == 0) {
        offer(maker, DP_ACTION_W, stage, microbatch);
    }
}

static void offer_all(struct maker *maker, int32_t rank, bool forwards)
{
    const struct dp_schedule *schedule = maker->schedule;
    maker->choice_count = 0;
    for (int32_t s = 0; s < schedule->stages; s++) {
        for (int32_t m = 0; m < schedule->microbatches; m++) {
            if (dp_schedule_rank_of(schedule, s, (uint32_t)m) == rank) {
                offer_chunk(maker, s, m, forwards);
            }
        }
    }
}

static void carry_out(struct maker *maker, int32_t rank, dp_action_kind kind, int32_t stage,
                      uint32_t microbatch)
{
    static const uint8_t bits[] = {[DP_ACTION_F] = DONE_F,
                                   [DP_ACTION_B] = DONE_I | DONE_W,
                                   [DP_ACTION_I] = DONE_I,
                                   [DP_ACTION_W] = DONE_W};
    *done_at(maker, stage, (int32_t)microbatch) |= bits[kind];
    maker->live[rank] += kind == DP_ACTION_F ? 1 : kind == DP_ACTION_W ? 0 : -1;
}

// A backward among the choices that may share the forward's action; NULL when there is none.
static const struct dp_action *partner_of(const struct maker *maker,
                                          const struct dp_action *forward)
{
    for (size_t i = 0; forward->kind == DP_ACTION_F && i < maker->choice_count; i++) {
        const struct dp_action *choice = &maker->choices[i];
        if (choice->kind == DP_ACTION_B || choice->kind == DP_ACTION_I) {
            return choice;
        }
    }
    return NULL;
}

static void append(struct maker *maker, int32_t rank)
{
    struct dp_action action =
        maker->choices[dp_rand_below(&maker->rand, (uint64_t)maker->choice_count)];
    carry_out(maker, rank, (dp_action_kind)action.kind, action.stage, action.microbatch);
    const struct dp_action *partner = partner_of(maker, &action);
    if (partner != NULL && chance(maker, maker->made->pairs)) {
        action.kind = DP_ACTION_FB;
        action.b_kind = partner->kind;
        action.b_stage = partner->stage;
        action.b_microbatch = partner->microbatch;
        carry_out(maker, rank, (dp_action_kind)partner->kind, partner->stage, partner->microbatch);
    }
    DP_CHECK(maker->counts[rank] < maker->capacity);
    maker->lists[rank][maker->counts[rank]++] = action;
}

// One action of some rank, a forward over the limit only as the last resort. False at the end.
static bool take_turn(struct maker *maker)
{
    int32_t ranks = maker->schedule->pipeline;
    int32_t first = (int32_t)dp_rand_below(&maker->rand, (uint64_t)ranks);
    for (int32_t i = 0; i < 2 * ranks; i++) {
        int32_t rank = (first + i) % ranks;
        bool forwards = i >= ranks || maker->live[rank] < maker->made->live;
        offer_all(maker, rank, forwards);
        if (maker->choice_count > 0) {
            append(maker, rank);
            return true;
        }
    }
    return false;
}

static void gather(struct maker *maker)
{
    struct dp_schedule *schedule = maker->schedule;
    size_t total = 0;
    schedule->rank_begin = dp_new_array(size_t, (size_t)schedule->pipeline + 1);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        total += maker->counts[rank];
        schedule->rank_begin[rank + 1] = total;
    }
    schedule->actions = dp_new_array(struct dp_action, total);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        for (size_t i = 0; i < maker->counts[rank]; i++) {
            schedule->actions[schedule->rank_begin[rank] + i] = maker->lists[rank][i];
        }
        free(maker->lists[rank]);
    }
}

void made_schedule(const struct made *made, struct dp_schedule *ret_schedule)
{
    bool both = made->placement == MADE_BOTH;
    struct dp_schedule schedule = {.name = "made",
                                   .pipeline = made->pipeline,
                                   .microbatches = made->microbatches,
                                   .stages = made->pipeline * made->chunks,
                                   .directions = both ? 2 : 1};
    size_t chunks = (size_t)schedule.stages * (size_t)schedule.microbatches;
    size_t ranks = (size_t)schedule.pipeline;
    schedule.placement = dp_new_array(int32_t, 2 * (size_t)schedule.stages);
    DP_AUTO_FREE uint8_t *done = dp_new_array(uint8_t, chunks);
    DP_AUTO_FREE struct dp_action **lists = dp_new_array(struct dp_action *, ranks);
    DP_AUTO_FREE size_t *counts = dp_new_array(size_t, ranks);
    DP_AUTO_FREE int32_t *live = dp_new_array(int32_t, ranks);
    DP_AUTO_FREE struct dp_action *choices = dp_new_array(struct dp_action, chunks);
    struct maker maker = {.made = made,
                          .schedule = &schedule,
                          .done = done,
                          .lists = lists,
                          .counts = counts,
                          .capacity = 3 * chunks,
                          .live = live,
                          .choices = choices};
    dp_rand_init(&maker.rand, made->seed);
    for (size_t i = 0; i < ranks; i++) {
        lists[i] = dp_new_array(struct dp_action, maker.capacity);
    }
    place(&maker);
    while (take_turn(&maker)) {
    }
    gather(&maker);
    *ret_schedule = schedule;
}
