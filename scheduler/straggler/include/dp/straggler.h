// Finds the rank, link or host that slows a training job down, from what its ranks measure of every
// step, and says what it is.
//
// Scores are those of NVIDIA's resiliency extension: reference / own, of the medians of a window;
// 1 is as good as the reference, 0.67 takes half as long again. The relative score compares with
// the other ranks that do the same (the kind of action and the stages are equal: data-parallel
// replicas, the mirror of a bidirectional pipeline), the individual one with the rank's own best
// window. A rank's score weights its kinds by the time that they take. Where no other rank does the
// same, the relative score compares own / planned time with that of all ranks.
//
// Before anybody is blamed: waits are no part of the times (ranks report what they computed, and of
// a message what it took from the moment both ends were there); work of experts is normalised by
// the tokens that were routed to it, with the share of a kind's time that follows the tokens fitted
// within the ranks; what takes a step of everybody cancels, since every comparison is of one step;
// the first steps are exempt, and some after an action of our own.
//
// Suspected is what passes a test for a change and persists. The test is Page's CUSUM of the log
// likelihood ratio "slower by `enter`" against "as fast as the reference", which finds a shift in
// the fewest steps that any test with the same mean time between false alarms can (Moustakides
// 1986); it keeps one number per series, its last zero dates the onset, and increments are cut off,
// so that no few wild samples suffice. Bayesian change-point detection (Greyhound's) keeps a run
// length distribution per series and needs a prior of how often ranks become slow, which nobody
// has. Confirmed is what a probe of products and links, taken between two steps, agrees with: a
// device by what its products take on a core, since one that others use, too, is no slow one. What
// chance may have done has to be found twice.
//
// Pure: no clock, threads or I/O. Time is counted in steps.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/limits.h"
#include "dp/schedule.h"

struct dp_replay_result;

// Kinds of work: dp_action_kind, and the update.
#define DP_STRAGGLER_OPTIMIZER DP_ACTION_KIND_COUNT
#define DP_STRAGGLER_KINDS (DP_ACTION_KIND_COUNT + 1)

// What a rank did of one kind, for the same stages, within a step. Nanoseconds are those it
// computed (struct dp_action_span, own_ns).
struct dp_straggler_kind {
    uint8_t kind;            // dp_action_kind or DP_STRAGGLER_OPTIMIZER
    uint8_t b_kind;          // FB: DP_ACTION_B or DP_ACTION_I; otherwise 0
    uint16_t stage, b_stage; // FB: of its forward and its backward part; otherwise b_stage = stage
    uint32_t count;
    int64_t total_ns, median_ns;
    int64_t planned_ns; // of one, by the plan; 0 = not known
    uint64_t tokens;    // rows that came to the rank's experts in all of them; 0 = no experts
};

// Messages that a rank received from one peer within a step.
struct dp_straggler_link {
    uint32_t peer;
    uint32_t count;
    uint64_t bytes;
    int64_t transfer_ns; // sum: from when both ends were there until they had arrived
    int64_t waiting_ns;  // sum: the rank was there, the message was not sent yet
};

struct dp_straggler_sample {
    uint32_t rank;
    int64_t step;    // rising; steps may be left out
    int64_t step_ns; // the whole step
    // Between actions, the rank neither computed nor waited for anything it could name.
    int64_t launch_gap_ns;
    // Within actions, its thread wanted to compute and was on no core. 0 = none, or not known.
    int64_t off_core_ns;
    const struct dp_straggler_kind *kinds; // at most DP_STRAGGLER_KINDS_MAX
    size_t kinds_count;
    const struct dp_straggler_link *links; // at most DP_STRAGGLER_LINKS_MAX
    size_t links_count;
};

// What a rank measured while nothing else ran.
struct dp_straggler_probe_link {
    uint32_t peer;
    int64_t latency_ns;
    double bytes_per_s;
};
struct dp_straggler_probe {
    uint64_t request;
    uint32_t rank;
    int64_t gemm_ns;          // of one product; 0 = none was measured
    int64_t gemm_off_core_ns; // of it, its thread was on no core; 0 = none, or not known
    double gemm_flops;        // of it
    const struct dp_straggler_probe_link *links;
    size_t links_count;
};

struct dp_straggler_config {
    uint32_t ranks;         // of the job
    const uint32_t *nodes;  // [ranks]: equal numbers share a node; copied; NULL = one node for each
    double enter;           // own / reference from which a rank is suspected
    double gap;             // it has recovered below enter - gap
    uint32_t persist_steps; // that a change must have lasted
    double persist_s;       // and so long
    uint32_t warm_up_steps; // of the beginning, nobody is blamed for them
    uint32_t freeze_steps;  // after an action of our own
    uint32_t blind_steps;   // without a word of a rank, while others go on
    double noticeable;      // share of a step that must be lost
};
// 1.2, 0.1, 8 steps and 0.5 s, 5, 10, 12, 0.03.
void dp_straggler_config_init(struct dp_straggler_config *config);

typedef enum dp_straggler_state {
    DP_STRAGGLER_HEALTHY,   // or recovered
    DP_STRAGGLER_BLIND,     // no data: neither healthy nor slow
    DP_STRAGGLER_NOTED,     // nobody is at fault, but time is lost
    DP_STRAGGLER_SUSPECTED, // a change that persists
    DP_STRAGGLER_CONFIRMED, // and the probe agrees
} dp_straggler_state;
const char *dp_straggler_state_text(dp_straggler_state state); // "healthy", "no data", ...

typedef enum dp_straggler_cause {
    DP_STRAGGLER_UNKNOWN,
    DP_STRAGGLER_DEVICE, // the accelerator, or what computes
    DP_STRAGGLER_LINK,
    DP_STRAGGLER_HOST,         // launches late, or its cores are taken
    DP_STRAGGLER_UNEVEN_STAGE, // slow wherever it runs: the plan's fault
    DP_STRAGGLER_UNEVEN_DATA,  // long sequences, busy experts: now here, now there
    DP_STRAGGLER_OWN_DOING,    // began with an action of ours
} dp_straggler_cause;
const char *dp_straggler_cause_text(dp_straggler_cause cause); // "device", "uneven stage", ...

#define DP_STRAGGLER_NONE UINT32_MAX // no rank, peer or stage in particular

struct dp_straggler_verdict {
    dp_straggler_state state;
    dp_straggler_cause cause;
    bool is_besides; // a host that takes time away, while the rank's work takes what it did
    uint32_t rank;   // DP_STRAGGLER_NONE: the whole job
    uint32_t peer;   // link: its other end
    uint32_t stage;  // uneven stage
    // Own / reference of what is slow: time of a rank's work, of a message, of a stage's actions.
    double slowdown;
    double lost_s;                    // of a step, at the rank
    int64_t onset_step;               // the first one that was slow, by the test
    int64_t step;                     // at which this verdict was reached
    char text[DP_STRAGGLER_TEXT_MAX]; // the evidence, for people
};

// Scores of the newest window. NaN = not known: too few samples, or none.
struct dp_straggler_score {
    double relative, individual;
    double link; // reference / own of its slowest link, NaN without one
    double busy; // share of the step that it computed
    double gap;  // share of the step that its host lost between actions
    int64_t step;
    bool blind;
};
struct dp_straggler_kind_score {
    struct dp_straggler_kind kind; // of the newest step
    double relative, individual;
    uint32_t peers; // other ranks that do the same
};

struct dp_straggler;

struct dp_straggler *dp_straggler_new(const struct dp_straggler_config *config);
void dp_straggler_free(struct dp_straggler *straggler); // NULL is fine

// Takes a copy. A step is looked at when every rank has reported it, or some have gone on by a few.
// Samples that are older than what was looked at, or of ranks that there are not, are ignored.
void dp_straggler_take(struct dp_straggler *straggler, const struct dp_straggler_sample *sample);
// An action of our own (ranks changed places, a probe, a profile) begins with the step after
// `step`: what changes now is blamed on it. `why` for people.
void dp_straggler_freeze(struct dp_straggler *straggler, int64_t step, const char *why);
// Before the first step: the rank is known to be slow, by a verdict about the device or the host
// that it runs on now. It stands, and is no news, until the rank recovers.
void dp_straggler_know(struct dp_straggler *straggler, uint32_t rank,
                       const struct dp_straggler_verdict *verdict);
// A rank's figures; verdicts follow when all have answered that were not silent.
void dp_straggler_take_probe(struct dp_straggler *straggler,
                             const struct dp_straggler_probe *probe);
// Whether somebody is suspected whom a probe could clear; says so once, and again after a while.
// The answers must carry *ret_request.
bool dp_straggler_wants_probe(struct dp_straggler *straggler, uint64_t *ret_request);

// Verdicts that have changed, oldest first: one whose state became HEALTHY has recovered. False
// when there is none.
bool dp_straggler_next(struct dp_straggler *straggler, struct dp_straggler_verdict *ret_verdict);
// Those that stand, at most `max`; returns how many there are.
size_t dp_straggler_standing(const struct dp_straggler *straggler,
                             struct dp_straggler_verdict *ret_verdicts, size_t max);

void dp_straggler_score(const struct dp_straggler *straggler, uint32_t rank,
                        struct dp_straggler_score *ret_score);
// At most `max`; returns how many kinds the rank has.
size_t dp_straggler_kind_scores(const struct dp_straggler *straggler, uint32_t rank,
                                struct dp_straggler_kind_score *ret_scores, size_t max);
// The newest step that was looked at; 0 = none.
int64_t dp_straggler_step(const struct dp_straggler *straggler);

// What a replay of measured operations (dp/replay.h) says, in the same words. HEALTHY where the
// slowdown is under 3 %.
void dp_straggler_from_replay(const struct dp_replay_result *result,
                              struct dp_straggler_verdict *ret_verdict);
