#include "progress.h"

#include "dp/action_halves.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"

enum { DONE_F = 1, DONE_B = 2 };

struct progress {
    const struct dp_schedule *schedule;
    uint8_t *done;        // [stages][microbatches], DONE_ bits
    size_t *at;           // [pipeline], next action of each rank
    struct dp_half *missing; // [pipeline], what a stopped rank waits for
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
    struct dp_half halves[2];
    int count = dp_action_halves(&progress->schedule->actions[progress->at[rank]], halves);
    for (int i = 0; i < count; i++) {
        const struct dp_half *half = &halves[i];
        int32_t source = dp_half_source(progress->schedule, half);
        uint8_t bit = done_bit(half->kind);
        if (source >= 0 && (*done_at(progress, source, half->microbatch) & bit) == 0) {
            progress->missing[rank] = (struct dp_half){half->kind, source, half->microbatch};
            return false;
        }
    }
    return true;
}

// Marks the half as done and wakes the rank that waits for it.
static void finish(struct progress *progress, const struct dp_half *half)
{
    if (half->kind == DP_ACTION_W) {
        return;
    }
    *done_at(progress, half->stage, half->microbatch) |= done_bit(half->kind);
    int32_t target = dp_half_target(progress->schedule, half);
    if (target < 0) {
        return;
    }
    int32_t rank = dp_schedule_rank_of(progress->schedule, target, half->microbatch);
    struct dp_half *missing = &progress->missing[rank];
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
        struct dp_half halves[2];
        int count = dp_action_halves(&schedule->actions[progress->at[rank]++], halves);
        for (int i = 0; i < count; i++) {
            finish(progress, &halves[i]);
        }
    }
}

static int32_t waits_for(const struct progress *progress, int32_t rank)
{
    const struct dp_half *missing = &progress->missing[rank];
    return dp_schedule_rank_of(progress->schedule, missing->stage, missing->microbatch);
}

static int32_t lowest_of_ring(const struct progress *progress, int32_t member, int32_t *ret_size)
{
    int32_t lowest = member;
    int32_t size = 1;
    for (int32_t rank = waits_for(progress, member); rank != member; size++) {
        lowest = rank < lowest ? rank : lowest;
        rank = waits_for(progress, rank);
    }
    *ret_size = size;
    return lowest;
}

// Describes the ring that `member` is in. Returns whether to look for more.
static bool note_ring(const struct progress *progress, int32_t member,
                      const struct dp_problem_sink *sink)
{
    enum { SHOWN_MAX = 32 };
    const struct dp_schedule *schedule = progress->schedule;
    int32_t size;
    int32_t first = lowest_of_ring(progress, member, &size);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_buf_puts(&text, "the schedule cannot finish: ");
    dp_words_at(&sink->words, schedule, first, progress->at[first], &text);
    int32_t rank = first;
    for (int32_t shown = 1; shown <= size; shown++) {
        dp_buf_puts(&text, shown == 1 ? " waits for " : ", which waits for ");
        dp_words_half(&sink->words, &progress->missing[rank], &text);
        rank = waits_for(progress, rank);
        if (shown == size) {
            dp_buf_printf(&text, " of rank %d", first);
        } else if (shown == SHOWN_MAX) {
            dp_buf_printf(&text, " of rank %d, and so on over %d ranks back to rank %d", rank, size,
                          first);
            break;
        } else {
            dp_buf_puts(&text, " of ");
            dp_words_at(&sink->words, schedule, rank, progress->at[rank], &text);
        }
    }
    const struct dp_problem problem = {
        .about = DP_PROBLEM_ACTION,
        .rank = first,
        .index = progress->at[first],
        .message = text.bytes,
        .help = "one of these ranks must run earlier what the one before it waits for"};
    return sink->note(sink->context, &problem);
}

// Every stopped rank waits for a stopped rank, so following them ends in a ring.
static bool note_rings(const struct progress *progress, const struct dp_problem_sink *sink)
{
    const struct dp_schedule *schedule = progress->schedule;
    // The rank + 1 from which a rank was come by first.
    DP_AUTO_FREE int32_t *seen_from = dp_new_array(int32_t, (size_t)schedule->pipeline);
    bool none = true;
    bool go_on = true;
    for (int32_t first = 0; first < schedule->pipeline && go_on; first++) {
        if (progress->at[first] == schedule->rank_begin[first + 1]) {
            continue;
        }
        none = false;
        int32_t rank = first;
        while (seen_from[rank] == 0) {
            seen_from[rank] = first + 1;
            rank = waits_for(progress, rank);
        }
        if (seen_from[rank] == first + 1) {
            go_on = note_ring(progress, rank, sink);
        }
    }
    return none;
}

bool dp_schedule_find_rings(const struct dp_schedule *schedule, const struct dp_problem_sink *sink)
{
    size_t ranks = (size_t)schedule->pipeline;
    DP_AUTO_FREE uint8_t *done =
        dp_new_array(uint8_t, (size_t)schedule->stages * (size_t)schedule->microbatches);
    DP_AUTO_FREE size_t *at = dp_memdup(schedule->rank_begin, ranks * sizeof(size_t));
    DP_AUTO_FREE struct dp_half *missing = dp_new_array(struct dp_half, ranks);
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
    return note_rings(&progress, sink);
}
