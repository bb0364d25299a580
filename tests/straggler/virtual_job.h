// A training job that takes no time: what its ranks would report, step by step, with noise.
//
// The noise is wider than that of the published recordings (ByteDance-Seed/StragglerAnalysis:
// within a step 1 to 2 % of an action's time, from step to step 1 to 3 %, at most 1.2 times the
// median).
#pragma once

#include "dp_test.h"

#include "dp/rand.h"
#include "dp/straggler.h"

enum { VIRTUAL_RANKS_MAX = 64, VIRTUAL_STAGES_MAX = 16 };

typedef enum virtual_layout {
    VIRTUAL_REPLICAS, // rank = replica * stages + stage
    VIRTUAL_MIRROR,   // DualPipe: rank r holds stages r and last - r
    VIRTUAL_ALONE,    // one rank per stage
} virtual_layout;

typedef enum virtual_fault {
    VIRTUAL_HEALTHY,
    VIRTUAL_SLOW_RANK,
    VIRTUAL_SLOW_LINK,
    VIRTUAL_SLOW_HOST,
    VIRTUAL_TAKEN_CORES,
} virtual_fault;

struct virtual_job {
    virtual_layout layout;
    uint32_t stages, replicas; // ranks: stages x replicas
    uint32_t microbatches;
    double forward_s, backward_s;            // of one action
    double stage_factor[VIRTUAL_STAGES_MAX]; // of each stage; 0 = 1
    bool is_planned;                         // plans are known, with these factors
    double action_sigma, step_sigma;         // of logarithms
    double spike_chance, spike_factor;       // of an action; factor up to this
    double expert_share, skew;               // of the time; how far loads are apart
    double hop_share;                        // of a forward
    double hop_sigma;
    uint32_t evaluate_every; // steps; the step after is slower for everybody
    uint32_t per_node;       // ranks
    virtual_fault fault;
    double factor;
    uint32_t slow_rank;           // and of a slow link, the one before the next stage
    int64_t onset_step, end_step; // 0 = it lasts
};

// 8 ranks, noise as said.
void virtual_job_init(struct virtual_job *job, virtual_layout layout);
uint32_t virtual_job_ranks(const struct virtual_job *job);
// The other end of the slow link.
uint32_t virtual_job_slow_peer(const struct virtual_job *job);
// A detector for it; the caller frees.
struct dp_straggler *virtual_job_detector(const struct virtual_job *job);
// One step of all ranks, in some order, at most a step apart. Returns the step's seconds.
double virtual_job_step(const struct virtual_job *job, int64_t step, struct dp_rand *rand,
                        struct dp_straggler *detector);
// What a probe of all ranks would measure.
void virtual_job_probe(const struct virtual_job *job, uint64_t request, struct dp_rand *rand,
                       struct dp_straggler *detector);
