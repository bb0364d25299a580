// What fills a rank at its fullest moment, and what to say when that is too much.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/memory.h"
#include "dp/price.h"
#include "dp/schedule.h"
#include "dp/strategy.h"

// Beyond what is alive when an action starts: the most that it holds while it runs. slot and b_slot
// as in the action (b_slot of FB alone), chunks[slot].
double dp_planner_peak_running(const struct dp_chunk_bytes *chunks, int kind, int b_kind,
                               int32_t slot, int32_t b_slot);
// Adds to parts->runtime what the framework's allocator holds beyond what is allocated from it;
// call it once, when all other parts are known. Buffers of the exchange come from elsewhere.
void dp_planner_peak_fragments(const struct dp_profile *profile, struct dp_memory_parts *parts);

// The fullest moment of a rank that runs its list.
struct peak {
    double activations, deferred, transient; // as in struct dp_memory_parts
    size_t action;                           // index in schedule->actions
};
// chunks[slot] is of the rank's stages in the order of dp_schedule_rank_stages. Of equal moments
// the first. O(actions of the rank), some 100 M a second.
void dp_planner_peak_walk(const struct dp_schedule *schedule, int32_t rank,
                          const struct dp_chunk_bytes *chunks, struct peak *ret_peak);
// Chunks that are alive when the action with this index starts: between F and B or I, and waiting
// for W.
void dp_planner_peak_alive(const struct dp_schedule *schedule, int32_t rank, size_t action,
                           int32_t *ret_kept, int32_t *ret_deferred);

// One change of a strategy that takes less memory.
struct memory_change {
    char what[DP_NAME_MAX]; // "recompute = norm+up", "micro_batch_size = 1", "tensor = 2"
    struct dp_strategy strategy;
    double bytes; // of the fullest rank then; filled by the search, 0 = not known
};
enum { MEMORY_CHANGES_MAX = 16 };
// Fills single changes that are legal for the model's sizes, cheapest in time first. The world may
// grow. Returns how many.
size_t dp_planner_memory_changes(const struct dp_strategy *strategy,
                                 const struct dp_model_spec *model,
                                 struct memory_change ret_changes[MEMORY_CHANGES_MAX]);

// Why a strategy does not fit.
struct memory_refusal {
    const struct dp_strategy *strategy;
    int32_t position; // pipeline position of the rank
    int32_t rank;     // its global number
    struct dp_memory_parts parts;
    double limit; // bytes of the device
    double at_s;  // start of the action, from the start of the step; negative = not known
    struct dp_action action;
    int32_t kept, deferred; // chunks alive then
    // The first of them that fits is recommended; else the one that comes nearest is named.
    const struct memory_change *changes;
    size_t changes_count;
};
void dp_planner_memory_refusal_write(const struct memory_refusal *refusal, struct dp_buf *out);
