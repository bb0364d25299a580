// Hanayo: v/2 waves. The stages run over the ranks to and fro, so that rank r holds stages r,
// 2P-1-r, 2P+r, ... and no message is needed at the turns. (Liu et al., arXiv 2308.15762.)
//
// The paper orders M = P micro-batches; here a greedy run in slots, one for a forward and two for a
// backward, orders any number of them. A rank alternates between forwards and backwards, of which
// it takes what is nearest to the end of its way; with nothing of the one kind it takes the other.
// The alternation also bounds what a rank keeps: P + (P-1)/2 micro-batches with one wave, 3P/2 with
// more (measured).
#include "build.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "families.h"

enum { FORWARD, BACKWARD, WAYS, IDLE = WAYS };

static const int32_t way_slots[WAYS] = {1, 2};

// A chunk is known by the rank that holds it and its number there; the way of a micro-batch leads
// to the next rank, or at a turn to the next chunk of the same one.
struct hanayo {
    int32_t ranks, chunks, microbatches;
    int32_t *waiting, *begun;   // [WAYS][ranks][chunks]: micro-batches whose input is there; begun
    uint32_t *ready;            // [WAYS][ranks]: bit c = something waits for chunk c
    int64_t *free_at;           // [ranks]: slot in which the rank's action has ended
    int32_t *chunk_at, *way_at; // [ranks]: what that action is, or the last was
    size_t *count;              // [ranks]: actions begun
    int32_t finished;           // micro-batches that are through
};
_Static_assert(DP_RANK_STAGES_MAX <= 32, "a rank's chunks fit into its bits");

static int32_t stage_of(const struct hanayo *run, int32_t rank, int32_t chunk)
{
    return chunk * run->ranks + (chunk % 2 == 0 ? rank : run->ranks - 1 - rank);
}

static size_t index_of(const struct hanayo *run, int way, int32_t rank, int32_t chunk)
{
    return ((size_t)(way * run->ranks + rank)) * (size_t)run->chunks + (size_t)chunk;
}

static void add_waiting(struct hanayo *run, int way, int32_t rank, int32_t chunk)
{
    run->waiting[index_of(run, way, rank, chunk)]++;
    run->ready[way * run->ranks + rank] |= 1u << chunk;
}

// The chunk whose next micro-batch the rank takes, or -1.
static int32_t next_chunk(const struct hanayo *run, int32_t rank, int way)
{
    uint32_t ready = run->ready[way * run->ranks + rank];
    if (ready == 0) {
        return -1;
    }
    return way == FORWARD ? 31 - __builtin_clz(ready) : __builtin_ctz(ready);
}

static void start(struct hanayo *run, int32_t rank, int64_t now, struct dp_action *actions)
{
    int way = run->way_at[rank] == FORWARD ? BACKWARD : FORWARD;
    int32_t chunk = next_chunk(run, rank, way);
    if (chunk < 0) {
        way = 1 - way;
        chunk = next_chunk(run, rank, way);
    }
    if (chunk < 0) {
        return;
    }
    size_t index = index_of(run, way, rank, chunk);
    if (--run->waiting[index] == 0) {
        run->ready[way * run->ranks + rank] &= ~(1u << chunk);
    }
    int32_t microbatch = run->begun[index]++;
    size_t per_rank = 2 * (size_t)run->chunks * (size_t)run->microbatches;
    actions[(size_t)rank * per_rank + run->count[rank]++] = build_single(
        way == FORWARD ? DP_ACTION_F : DP_ACTION_B, stage_of(run, rank, chunk), microbatch);
    run->chunk_at[rank] = chunk;
    run->way_at[rank] = way;
    run->free_at[rank] = now + way_slots[way];
}

// Hands over what the rank has made.
static void finish(struct hanayo *run, int32_t rank)
{
    int way = run->way_at[rank];
    int32_t chunk = run->chunk_at[rank];
    int32_t step = way == FORWARD ? 1 : -1;
    int32_t next = chunk % 2 == 0 ? rank + step : rank - step;
    if (next >= 0 && next < run->ranks) {
        add_waiting(run, way, next, chunk);
    } else if (chunk + step < 0) {
        run->finished++;
    } else if (chunk + step == run->chunks) {
        add_waiting(run, BACKWARD, rank, chunk);
    } else {
        add_waiting(run, way, rank, chunk + step);
    }
}

// Needs a zeroed state. Something is ready whenever all ranks are free, since every micro-batch
// under way can go on.
static void run_all(struct hanayo *run, struct dp_action *actions)
{
    for (int32_t rank = 0; rank < run->ranks; rank++) {
        run->way_at[rank] = IDLE;
    }
    add_waiting(run, FORWARD, 0, 0);
    run->waiting[0] = run->microbatches;
    for (int64_t now = 0; run->finished < run->microbatches; now++) {
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
    size_t held = ranks * (size_t)chunks;
    size_t per_rank = 2 * (size_t)chunks * (size_t)params->microbatches;
    DP_AUTO_FREE int32_t *waiting = dp_new_array(int32_t, WAYS * held);
    DP_AUTO_FREE int32_t *begun = dp_new_array(int32_t, WAYS * held);
    DP_AUTO_FREE uint32_t *ready = dp_new_array(uint32_t, WAYS * ranks);
    DP_AUTO_FREE int64_t *free_at = dp_new_array(int64_t, ranks);
    DP_AUTO_FREE int32_t *chunk_at = dp_new_array(int32_t, ranks);
    DP_AUTO_FREE int32_t *way_at = dp_new_array(int32_t, ranks);
    DP_AUTO_FREE size_t *count = dp_new_array(size_t, ranks);
    struct hanayo run = {.ranks = params->pipeline,
                         .chunks = chunks,
                         .microbatches = params->microbatches,
                         .waiting = waiting,
                         .begun = begun,
                         .ready = ready,
                         .free_at = free_at,
                         .chunk_at = chunk_at,
                         .way_at = way_at,
                         .count = count};
    struct build build;
    dp_schedule_build_begin(&build, schedule, params, (int32_t)held, 1, ranks * per_rank);
    run_all(&run, schedule->actions);
    for (int32_t rank = 0; rank < params->pipeline; rank++) {
        for (int32_t chunk = 0; chunk < chunks; chunk++) {
            dp_schedule_build_place(&build, stage_of(&run, rank, chunk), 0, rank);
        }
        build.count += per_rank;
        dp_schedule_build_end_rank(&build);
    }
    return DP_OK;
}
