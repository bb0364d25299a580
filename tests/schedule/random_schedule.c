#include "random_schedule.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"

enum { RANKS_MAX = 6, STAGES_MAX = 8, MICROBATCHES_MAX = 8 };
enum { DONE_F = 1, DONE_B = 2, OWES_W = 4 };

struct random {
    struct dp_rand *rand;
    struct dp_schedule *schedule;
    uint8_t done[STAGES_MAX][MICROBATCHES_MAX];
    struct dp_action *lists[RANKS_MAX];
    size_t counts[RANKS_MAX];
    uint32_t split; // of a hundred backwards
    uint32_t pairs; // of a hundred forwards that have a partner
};

struct choice {
    dp_action_kind kind;
    int32_t stage;
    uint32_t microbatch;
};

static uint32_t below(struct random *random, int32_t limit)
{
    return (uint32_t)dp_rand_below(random->rand, (uint64_t)limit);
}

static void shuffle(struct random *random, int32_t *items, int32_t count)
{
    for (int32_t i = count - 1; i > 0; i--) {
        uint32_t other = below(random, i + 1);
        int32_t item = items[i];
        items[i] = items[other];
        items[other] = item;
    }
}

// Every rank gets a stage; in a bidirectional schedule as many for either direction.
static void place(struct random *random)
{
    struct dp_schedule *schedule = random->schedule;
    int32_t ranks[STAGES_MAX];
    for (int32_t stage = 0; stage < schedule->stages; stage++) {
        bool first = stage < schedule->pipeline;
        ranks[stage] = first ? stage : (int32_t)below(random, schedule->pipeline);
    }
    for (int direction = 0; direction < 2; direction++) {
        if (direction < schedule->directions) {
            shuffle(random, ranks, schedule->stages);
        }
        for (int32_t stage = 0; stage < schedule->stages; stage++) {
            schedule->placement[2 * stage + direction] = ranks[stage];
        }
    }
}

static bool is_ready(const struct random *random, const struct choice *choice)
{
    uint8_t own = random->done[choice->stage][choice->microbatch];
    if (choice->kind == DP_ACTION_F) {
        return (own & DONE_F) == 0 &&
               (choice->stage == 0 ||
                (random->done[choice->stage - 1][choice->microbatch] & DONE_F) != 0);
    }
    if (choice->kind == DP_ACTION_W) {
        return (own & OWES_W) != 0;
    }
    return (own & DONE_F) != 0 && (own & DONE_B) == 0 &&
           (choice->stage == random->schedule->stages - 1 ||
            (random->done[choice->stage + 1][choice->microbatch] & DONE_B) != 0);
}

// One of all things that are ready, on `rank` or (-1) anywhere; false when there is none.
static bool choose(struct random *random, int32_t rank, bool backward, struct choice *ret_choice)
{
    static const dp_action_kind kinds[] = {DP_ACTION_F, DP_ACTION_B, DP_ACTION_W};
    const struct dp_schedule *schedule = random->schedule;
    int32_t seen = 0;
    for (int32_t stage = 0; stage < schedule->stages; stage++) {
        for (uint32_t m = 0; m < (uint32_t)schedule->microbatches; m++) {
            if (rank >= 0 && dp_schedule_rank_of(schedule, stage, m) != rank) {
                continue;
            }
            for (int i = backward ? 1 : 0; i < (backward ? 2 : 3); i++) {
                struct choice choice = {kinds[i], stage, m};
                if (is_ready(random, &choice) && below(random, ++seen) == 0) {
                    *ret_choice = choice;
                }
            }
        }
    }
    return seen > 0;
}

static dp_action_kind take(struct random *random, struct choice choice)
{
    uint8_t *done = &random->done[choice.stage][choice.microbatch];
    if (choice.kind == DP_ACTION_F) {
        *done |= DONE_F;
    } else if (choice.kind == DP_ACTION_W) {
        *done = (uint8_t)(*done & ~OWES_W);
    } else {
        *done |= DONE_B;
        if (below(random, 100) < random->split) {
            *done |= OWES_W;
            return DP_ACTION_I;
        }
    }
    return choice.kind;
}

// Adds what was chosen to its rank's list; to a forward sometimes a backward that is ready, too.
static void add(struct random *random, struct choice choice)
{
    int32_t rank = dp_schedule_rank_of(random->schedule, choice.stage, choice.microbatch);
    struct choice partner;
    struct dp_action action = {.stage = (uint16_t)choice.stage, .microbatch = choice.microbatch};
    bool pair = choice.kind == DP_ACTION_F && below(random, 100) < random->pairs &&
                choose(random, rank, true, &partner);
    action.kind = (uint8_t)take(random, choice);
    if (pair) {
        action.kind = DP_ACTION_FB;
        action.b_kind = (uint8_t)take(random, partner);
        action.b_stage = (uint16_t)partner.stage;
        action.b_microbatch = partner.microbatch;
    }
    random->lists[rank][random->counts[rank]++] = action;
}

struct dp_schedule make_random_schedule(struct dp_rand *rand)
{
    struct dp_schedule schedule = {.name = "random"};
    struct random random = {.rand = rand, .schedule = &schedule};
    schedule.pipeline = 1 + (int32_t)below(&random, RANKS_MAX);
    schedule.stages =
        schedule.pipeline + (int32_t)below(&random, STAGES_MAX - schedule.pipeline + 1);
    schedule.directions = 1 + (int32_t)below(&random, 2);
    schedule.microbatches =
        schedule.directions + (int32_t)below(&random, MICROBATCHES_MAX - schedule.directions + 1);
    random.split = below(&random, 3) * 50;
    random.pairs = below(&random, 3) * 50;
    size_t most = 3 * (size_t)schedule.stages * (size_t)schedule.microbatches;
    schedule.placement = dp_new_array(int32_t, 2 * (size_t)schedule.stages);
    schedule.actions = dp_new_array(struct dp_action, most);
    schedule.rank_begin = dp_new_array(size_t, (size_t)schedule.pipeline + 1);
    place(&random);
    for (int32_t rank = 0; rank < schedule.pipeline; rank++) {
        random.lists[rank] = dp_new_array(struct dp_action, most);
    }
    struct choice choice;
    while (choose(&random, -1, false, &choice)) {
        add(&random, choice);
    }
    size_t at = 0;
    for (int32_t rank = 0; rank < schedule.pipeline; rank++) {
        memcpy(&schedule.actions[at], random.lists[rank],
               random.counts[rank] * sizeof(struct dp_action));
        at += random.counts[rank];
        schedule.rank_begin[rank + 1] = at;
        free(random.lists[rank]);
    }
    return schedule;
}
