// Ranks of a trial that hold their state at its end, for another trial that goes on from it.
#pragma once

#include <pthread.h>

#include "dp/state.h"
#include "exec_harness.h"

struct held_rank {
    dp_status status; // of its training
    struct dp_error err;
    struct dp_trainer_held held;
    char address[DP_ADDRESS_MAX];
    bool is_settled;
    struct dp_error refusal; // of an order to settle
};

struct holders {
    struct trial trial;
    struct trial_result result;
    pthread_t thread;
    int32_t dead; // that nothing is heard of any more; -1 = none

    pthread_mutex_t lock; // of what follows
    pthread_cond_t changed;
    int32_t arrived, answered;
    struct held_rank ranks[TRIAL_RANKS_MAX];
    int64_t settle_step; // 0 = not ordered
    double settle_norm;
    bool is_over;
};

// Runs a trial by a thread of its own up to where all its ranks hold. Whatever became of them.
void holders_begin(struct holders *holders, const struct trial *trial, int32_t dead);
// As a controller does: the newest step that a living rank has; those that are behind settle there.
// Returns it.
int64_t holders_settle(struct holders *holders);
// The living ranks, as sources. The array has room for TRIAL_RANKS_MAX; returns how many.
int32_t holders_sources(const struct holders *holders, struct dp_state_address *ret_sources);
// Lets the ranks end.
void holders_end(struct holders *holders);

#define HOLD_TOKEN 4711u

// What a trial begins with: hooks of `begin`.
struct takers {
    const struct dp_state_address *sources;
    int32_t count;
    int64_t step;
    uint64_t token; // 0 = HOLD_TOKEN
};
// A trial that takes the state of these sources.
void takers_set(struct takers *takers, struct trial *trial);
