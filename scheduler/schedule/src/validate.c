#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/schedule.h"
#include "halves.h"
#include "progress.h"

// What has happened to a micro-batch at a stage; one bit per kind of half.
static uint8_t bit_of(dp_action_kind kind)
{
    return (uint8_t)(1u << kind);
}

enum {
    RAN_F = 1 << DP_ACTION_F,
    RAN_B = 1 << DP_ACTION_B,
    RAN_I = 1 << DP_ACTION_I,
    RAN_W = 1 << DP_ACTION_W
};

// For each kind of half: what must have run before it on its rank, what must not, and the reasons.
struct rule {
    uint8_t needs, excludes;
    const char *without, *twice;
};

static const struct rule rules[DP_ACTION_FB] = {
    [DP_ACTION_F] = {0, RAN_F, "", "runs a second time"},
    [DP_ACTION_B] = {RAN_F, RAN_B | RAN_I, "comes before its F",
                     "is a second backward of its chunk"},
    [DP_ACTION_I] = {RAN_F, RAN_B | RAN_I, "comes before its F",
                     "is a second backward of its chunk"},
    [DP_ACTION_W] = {RAN_I, RAN_B | RAN_W, "comes before its I",
                     "repeats weight gradients that were done"},
};

struct place {
    const struct dp_schedule *schedule;
    int32_t rank;
    size_t index; // into actions
};

static dp_status refuse(const struct place *place, const char *why, struct dp_error *err)
{
    const struct dp_schedule *schedule = place->schedule;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf action = {0};
    dp_action_format(&schedule->actions[place->index], &action);
    return dp_fail(err, DP_INVALID, "rank %d, position %zu, %s: %s", place->rank,
                   place->index - schedule->rank_begin[place->rank], action.bytes, why);
}

static dp_status check_half(const struct place *place, const struct half *half, uint8_t *ran,
                            struct dp_error *err)
{
    const struct dp_schedule *schedule = place->schedule;
    if (half->stage >= schedule->stages) {
        return refuse(place, "there is no such stage", err);
    }
    if (half->microbatch >= (uint32_t)schedule->microbatches) {
        return refuse(place, "there is no such micro-batch", err);
    }
    int32_t owner = dp_schedule_rank_of(schedule, half->stage, half->microbatch);
    if (owner != place->rank) {
        char why[64];
        snprintf(why, sizeof(why), "rank %d holds stage %d for this micro-batch", owner,
                 half->stage);
        return refuse(place, why, err);
    }
    uint8_t *bits = &ran[(size_t)half->stage * (size_t)schedule->microbatches + half->microbatch];
    const struct rule *rule = &rules[half->kind];
    char why[96];
    const char *chunk = dp_action_kind_text(half->kind);
    if ((*bits & rule->excludes) != 0) {
        snprintf(why, sizeof(why), "%s%u@%d %s", chunk, half->microbatch, half->stage, rule->twice);
        return refuse(place, why, err);
    }
    if ((*bits & rule->needs) != rule->needs) {
        snprintf(why, sizeof(why), "%s%u@%d %s", chunk, half->microbatch, half->stage,
                 rule->without);
        return refuse(place, why, err);
    }
    *bits |= bit_of(half->kind);
    return DP_OK;
}

static dp_status check_action(const struct place *place, uint8_t *ran, struct dp_error *err)
{
    const struct dp_action *action = &place->schedule->actions[place->index];
    if (action->kind >= DP_ACTION_KIND_COUNT) {
        return refuse(place, "unknown kind", err);
    }
    struct half halves[2];
    int count = halves_of(action, halves);
    if (count == 2 && halves[1].kind != DP_ACTION_B && halves[1].kind != DP_ACTION_I) {
        return refuse(place, "the backward part of a pair is B or I", err);
    }
    // Backward first: the forward of the same pair cannot serve it.
    dp_status status = DP_OK;
    for (int i = count - 1; i >= 0 && status == DP_OK; i--) {
        status = check_half(place, &halves[i], ran, err);
    }
    return status;
}

static dp_status check_complete(const struct dp_schedule *schedule, const uint8_t *ran,
                                struct dp_error *err)
{
    for (int32_t stage = 0; stage < schedule->stages; stage++) {
        for (uint32_t m = 0; m < (uint32_t)schedule->microbatches; m++) {
            uint8_t bits = ran[(size_t)stage * (size_t)schedule->microbatches + m];
            if (bits == (RAN_F | RAN_B) || bits == (RAN_F | RAN_I | RAN_W)) {
                continue;
            }
            const char *missing = (bits & RAN_F) == 0 ? "F" : (bits & RAN_I) != 0 ? "W" : "B or I";
            int32_t rank = dp_schedule_rank_of(schedule, stage, m);
            return dp_fail(err, DP_INVALID,
                           "rank %d, position %zu (its end): micro-batch %u has no %s at stage %d",
                           rank, schedule->rank_begin[rank + 1] - schedule->rank_begin[rank], m,
                           missing, stage);
        }
    }
    return DP_OK;
}

static dp_status check_sizes(const struct dp_schedule *schedule, struct dp_error *err)
{
    const struct {
        const char *name;
        int32_t value, max;
    } sizes[] = {{"pipeline", schedule->pipeline, DP_PIPELINE_MAX},
                 {"microbatches", schedule->microbatches, DP_MICROBATCHES_MAX},
                 {"stages", schedule->stages, DP_STAGES_MAX},
                 {"directions", schedule->directions, 2}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].max) {
            return dp_fail(err, DP_INVALID, "%s must be 1 to %d; it is %d", sizes[i].name,
                           sizes[i].max, sizes[i].value);
        }
    }
    return DP_OK;
}

// Every stage on a rank that exists; every rank with as many stages for either direction.
static dp_status check_placement(const struct dp_schedule *schedule, struct dp_error *err)
{
    int32_t held[2][DP_PIPELINE_MAX] = {{0}};
    for (int32_t stage = 0; stage < schedule->stages; stage++) {
        for (int direction = 0; direction < 2; direction++) {
            int32_t rank = schedule->placement[2 * stage + direction];
            if (rank < 0 || rank >= schedule->pipeline) {
                return dp_fail(err, DP_INVALID, "stage %d is placed on rank %d; ranks are 0 to %d",
                               stage, rank, schedule->pipeline - 1);
            }
            held[direction][rank]++;
        }
        if (schedule->directions == 1 &&
            schedule->placement[2 * stage] != schedule->placement[2 * stage + 1]) {
            return dp_fail(err, DP_INVALID,
                           "stage %d is placed on two ranks; that takes a bidirectional schedule",
                           stage);
        }
    }
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        int32_t count = held[0][rank] * schedule->directions;
        if (held[0][rank] != held[1][rank]) {
            return dp_fail(err, DP_INVALID,
                           "rank %d holds %d stages for direction 0 and %d for direction 1; the "
                           "numbers must be equal",
                           rank, held[0][rank], held[1][rank]);
        }
        if (count < 1 || count > DP_RANK_STAGES_MAX) {
            return dp_fail(err, DP_INVALID, "rank %d holds %d stages; it must be 1 to %d", rank,
                           count, DP_RANK_STAGES_MAX);
        }
    }
    return DP_OK;
}

// Enough actions to be complete, so that the tables below are no larger than the input.
static dp_status check_lists(const struct dp_schedule *schedule, struct dp_error *err)
{
    size_t count = dp_schedule_action_count(schedule);
    size_t least = (size_t)schedule->stages * (size_t)schedule->microbatches;
    if (count > DP_ACTIONS_MAX) {
        return dp_fail(err, DP_TOO_LARGE, "a schedule of %zu actions; the limit is %u", count,
                       DP_ACTIONS_MAX);
    }
    if (count < least) {
        return dp_fail(err, DP_INVALID,
                       "%zu actions cannot take %d micro-batches through %d stages", count,
                       schedule->microbatches, schedule->stages);
    }
    return DP_OK;
}

// Point-to-point messages follow the order of actions: a rank sends what an action made right after
// it, without waiting, and before an action receives from each peer up to what the action needs, in
// the order in which the peer sends. All of these were made before what the action needs, so the
// lowered form waits for nothing that the actions do not wait for, and the order of actions that
// dp_schedule_progress_check finds is an order of the lowered form too.
dp_status dp_schedule_validate(const struct dp_schedule *schedule, struct dp_error *err)
{
    dp_status (*const checks[])(const struct dp_schedule *,
                                struct dp_error *) = {check_sizes, check_placement, check_lists};
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        dp_status status = checks[i](schedule, err);
        if (status != DP_OK) {
            return status;
        }
    }
    DP_AUTO_FREE uint8_t *ran =
        dp_new_array(uint8_t, (size_t)schedule->stages * (size_t)schedule->microbatches);
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        struct place place = {.schedule = schedule, .rank = rank};
        for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            place.index = i;
            dp_status status = check_action(&place, ran, err);
            if (status != DP_OK) {
                return status;
            }
        }
    }
    dp_status status = check_complete(schedule, ran, err);
    return status == DP_OK ? dp_schedule_progress_check(schedule, err) : status;
}
