// Hanayo: v/2 waves. The stages run over the ranks to and fro, so that rank r holds stages r,
// 2P-1-r, 2P+r, ... and no message is needed at the turns. (Liu et al., arXiv 2308.15762.)
//
// The paper orders M = P micro-batches; here a greedy run in slots, one for a forward and two for a
// backward, orders any number of them. What a rank does next, of what is ready, follows one of four
// rules, and the rule that needs the fewest slots is kept: which one that is depends on the sizes.
// At most 2P micro-batches are under way.
#include <stdlib.h>

#include "build.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "families.h"

enum { FORWARD, BACKWARD, WAYS, IDLE = WAYS };

static const int32_t way_slots[WAYS] = {1, 2};

struct rule {
    bool alternates;    // a backward after a forward where there is one; else forwards first
    bool upwards_first; // of the ready backwards the nearest to the end of its way back
};

// As good as each other when M is P; with more, alternating keeps fewer chunks, and forwards first
// wins with several waves.
static const struct rule rules[] = {{true, true}, {true, false}, {false, true}, {false, false}};

struct hanayo {
    int32_t ranks, chunks, stages, microbatches;
    struct rule rule;
    int32_t *ready, *started;   // [WAYS][stages]: micro-batches whose input is there; begun
    int64_t *free_at;           // [ranks]: slot in which the rank's action has ended
    int32_t *stage_at, *way_at; // [ranks]: what that action is, or the last was
    size_t *count;              // [ranks]: actions begun
    int32_t finished;           // micro-batches that are through
};

static int32_t stage_of(const struct hanayo *run, int32_t rank, int32_t chunk)
{
    return chunk * run->ranks + (chunk % 2 == 0 ? rank : run->ranks - 1 - rank);
}

static bool is_ready(const struct hanayo *run, int way, int32_t stage)
{
    int32_t started = run->started[way * run->stages + stage];
    if (way == FORWARD && stage == 0 && started - run->finished >= 2 * run->ranks) {
        return false;
    }
    return started < run->ready[way * run->stages + stage];
}

// The stage whose next micro-batch the rank may take, or -1.
static int32_t next_stage(const struct hanayo *run, int32_t rank, int way)
{
    bool from_first = way == BACKWARD && run->rule.upwards_first;
    for (int32_t i = 0; i < run->chunks; i++) {
        int32_t stage = stage_of(run, rank, from_first ? i : run->chunks - 1 - i);
        if (is_ready(run, way, stage)) {
            return stage;
        }
    }
    return -1;
}

static void start(struct hanayo *run, int32_t rank, int64_t now, struct dp_action *actions)
{
    int way = run->rule.alternates && run->way_at[rank] == FORWARD ? BACKWARD : FORWARD;
    int32_t stage = next_stage(run, rank, way);
    if (stage < 0) {
        way = 1 - way;
        stage = next_stage(run, rank, way);
    }
    if (stage < 0) {
        return;
    }
    int32_t microbatch = run->started[way * run->stages + stage]++;
    if (actions != NULL) {
        size_t per_rank = 2 * (size_t)run->chunks * (size_t)run->microbatches;
        actions[(size_t)rank * per_rank + run->count[rank]] =
            build_single(way == FORWARD ? DP_ACTION_F : DP_ACTION_B, stage, microbatch);
    }
    run->count[rank]++;
    run->stage_at[rank] = stage;
    run->way_at[rank] = way;
    run->free_at[rank] = now + way_slots[way];
}

// Hands over what the rank has made.
static void finish(struct hanayo *run, int32_t rank)
{
    int32_t stage = run->stage_at[rank];
    int32_t *forwards = run->ready;
    int32_t *backwards = run->ready + run->stages;
    if (run->way_at[rank] == BACKWARD) {
        if (stage > 0) {
            backwards[stage - 1]++;
        } else {
            run->finished++;
        }
    } else if (stage < run->stages - 1) {
        forwards[stage + 1]++;
    } else {
        backwards[stage]++;
    }
}

static void reset(struct hanayo *run, const struct rule *rule)
{
    run->rule = *rule;
    run->finished = 0;
    for (int32_t i = 0; i < WAYS * run->stages; i++) {
        run->ready[i] = i == 0 ? run->microbatches : 0;
        run->started[i] = 0;
    }
    for (int32_t rank = 0; rank < run->ranks; rank++) {
        run->free_at[rank] = 0;
        run->way_at[rank] = IDLE;
        run->count[rank] = 0;
    }
}

// The slots that all of it takes; writes the actions unless they are NULL. Something is ready
// whenever all ranks are free, since every micro-batch under way can go on.
static int64_t run_by(struct hanayo *run, const struct rule *rule, struct dp_action *actions)
{
    reset(run, rule);
    int64_t now = 0;
    for (; run->finished < run->microbatches; now++) {
        for (int32_t rank = 0; rank < run->ranks; rank++) {
            if (run->free_at[rank] == now && run->way_at[rank] != IDLE) {
                finish(run, rank);
            }
        }
        for (int32_t rank = 0; rank < run->ranks; rank++) {
            if (run->free_at[rank] <= now) {
                start(run, rank, now, actions);
            }
        }
    }
    return now;
}

static const struct rule *best_rule(struct hanayo *run)
{
    const struct rule *best = &rules[0];
    int64_t fewest = INT64_MAX;
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        int64_t slots = run_by(run, &rules[i], NULL);
        if (slots < fewest) {
            fewest = slots;
            best = &rules[i];
        }
    }
    return best;
}

dp_status dp_schedule_hanayo_check(const struct dp_schedule_params *params, struct dp_error *err)
{
    (void)params;
    (void)err;
    return DP_OK;
}

dp_status dp_schedule_hanayo_generate(const struct dp_schedule_params *params,
                                      struct dp_schedule *schedule, struct dp_error *err)
{
    (void)err;
    size_t ranks = (size_t)params->pipeline;
    int32_t chunks = params->virtual_stages > 0 ? params->virtual_stages : 2;
    size_t stages = ranks * (size_t)chunks;
    size_t per_rank = 2 * (size_t)chunks * (size_t)params->microbatches;
    DP_AUTO_FREE int32_t *ready = dp_new_array(int32_t, WAYS * stages);
    DP_AUTO_FREE int32_t *started = dp_new_array(int32_t, WAYS * stages);
    DP_AUTO_FREE int64_t *free_at = dp_new_array(int64_t, ranks);
    DP_AUTO_FREE int32_t *stage_at = dp_new_array(int32_t, ranks);
    DP_AUTO_FREE int32_t *way_at = dp_new_array(int32_t, ranks);
    DP_AUTO_FREE size_t *count = dp_new_array(size_t, ranks);
    struct hanayo run = {.ranks = params->pipeline,
                         .chunks = chunks,
                         .stages = (int32_t)stages,
                         .microbatches = params->microbatches,
                         .ready = ready,
                         .started = started,
                         .free_at = free_at,
                         .stage_at = stage_at,
                         .way_at = way_at,
                         .count = count};
    struct build build;
    dp_schedule_build_begin(&build, schedule, params, run.stages, 1, ranks * per_rank);
    run_by(&run, best_rule(&run), schedule->actions);
    for (int32_t rank = 0; rank < params->pipeline; rank++) {
        for (int32_t chunk = 0; chunk < chunks; chunk++) {
            dp_schedule_build_place(&build, stage_of(&run, rank, chunk), 0, rank);
        }
        build.count += per_rank;
        dp_schedule_build_end_rank(&build);
    }
    return DP_OK;
}
