#include "progress.h"

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "halves.h"

enum { DONE_F = 1, DONE_B = 2 };

struct progress {
    const struct dp_schedule *schedule;
    uint8_t *done;        // [stages][microbatches], DONE_ bits
    size_t *at;           // [pipeline], next action of each rank
    struct half *missing; // [pipeline], what a stopped rank waits for
    int32_t *ready;       // stack of ranks that may go on
    int32_t ready_count;
};

static uint8_t *done_at(const struct progress *progress, int32_t stage, uint32_t microbatch)
{
    return &progress->done[(size_t)stage * (size_t)progress->schedule->microbatches + microbatch];
}

static uint8_t done_bit(dp_action_kind kind)
{
    return kind == DP_ACTION_F ? DONE_F : DONE_B;
}

// Whether the rank's next action has its inputs; if not, notes the first one that is missing.
static bool has_inputs(struct progress *progress, int32_t rank)
{
    struct half halves[2];
    int count = halves_of(&progress->schedule->actions[progress->at[rank]], halves);
    for (int i = 0; i < count; i++) {
        int32_t source = half_source(progress->schedule, &halves[i]);
        uint8_t bit = done_bit(halves[i].kind);
        if (source >= 0 && (*done_at(progress, source, halves[i].microbatch) & bit) == 0) {
            progress->missing[rank] = (struct half){halves[i].kind, source, halves[i].microbatch};
            return false;
        }
    }
    return true;
}

// Marks the half as done and wakes the rank that waits for it.
static void finish(struct progress *progress, const struct half *half)
{
    if (half->kind == DP_ACTION_W) {
        return;
    }
    *done_at(progress, half->stage, half->microbatch) |= done_bit(half->kind);
    int32_t target = half_target(progress->schedule, half);
    if (target < 0) {
        return;
    }
    int32_t rank = dp_schedule_rank_of(progress->schedule, target, half->microbatch);
    struct half *missing = &progress->missing[rank];
    if (missing->stage == half->stage && missing->microbatch == half->microbatch &&
        done_bit(missing->kind) == done_bit(half->kind)) {
        missing->stage = -1;
        progress->ready[progress->ready_count++] = rank;
    }
}

static void run_rank(struct progress *progress, int32_t rank)
{
    const struct dp_schedule *schedule = progress->schedule;
    while (progress->at[rank] < schedule->rank_begin[rank + 1] && has_inputs(progress, rank)) {
        struct half halves[2];
        int count = halves_of(&schedule->actions[progress->at[rank]++], halves);
        for (int i = 0; i < count; i++) {
            finish(progress, &halves[i]);
        }
    }
}

// "rank 2 at 5 (B1@2)"
static void describe(const struct progress *progress, int32_t rank, struct dp_buf *out)
{
    const struct dp_schedule *schedule = progress->schedule;
    dp_buf_printf(out, "rank %d at %zu (", rank, progress->at[rank] - schedule->rank_begin[rank]);
    dp_action_format(&schedule->actions[progress->at[rank]], out);
    dp_buf_puts(out, ")");
}

static int32_t waits_for(const struct progress *progress, int32_t rank)
{
    const struct half *missing = &progress->missing[rank];
    return dp_schedule_rank_of(progress->schedule, missing->stage, missing->microbatch);
}

// Every stopped rank waits for a stopped rank, so following them ends in a ring.
static dp_status describe_ring(const struct progress *progress, int32_t stopped,
                               struct dp_error *err)
{
    int32_t rank = stopped;
    for (int32_t i = 0; i < progress->schedule->pipeline; i++) {
        rank = waits_for(progress, rank);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    int32_t first = rank;
    describe(progress, rank, &text);
    for (int shown = 0; shown < 6; shown++) {
        const struct half *missing = &progress->missing[rank];
        dp_buf_printf(&text, " waits for %s%u@%d of ", dp_action_kind_text(missing->kind),
                      missing->microbatch, missing->stage);
        rank = waits_for(progress, rank);
        if (rank == first) {
            dp_buf_printf(&text, "rank %d", rank);
            break;
        }
        describe(progress, rank, &text);
        dp_buf_puts(&text, shown == 5 ? " and so on" : ", which");
    }
    return dp_fail(err, DP_INVALID, "the schedule cannot finish: %s", text.bytes);
}

dp_status dp_schedule_progress_check(const struct dp_schedule *schedule, struct dp_error *err)
{
    size_t ranks = (size_t)schedule->pipeline;
    DP_AUTO_FREE uint8_t *done =
        dp_new_array(uint8_t, (size_t)schedule->stages * (size_t)schedule->microbatches);
    DP_AUTO_FREE size_t *at = dp_memdup(schedule->rank_begin, ranks * sizeof(size_t));
    DP_AUTO_FREE struct half *missing = dp_new_array(struct half, ranks);
    DP_AUTO_FREE int32_t *ready = dp_new_array(int32_t, ranks);
    struct progress progress = {
        .schedule = schedule, .done = done, .at = at, .missing = missing, .ready = ready};
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        missing[rank].stage = -1;
        ready[progress.ready_count++] = schedule->pipeline - 1 - rank;
    }
    while (progress.ready_count > 0) {
        run_rank(&progress, ready[--progress.ready_count]);
    }
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        if (at[rank] < schedule->rank_begin[rank + 1]) {
            return describe_ring(&progress, rank, err);
        }
    }
    return DP_OK;
}
