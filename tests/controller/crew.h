// Nodes around the core that do what they are told at once: ranks are ready, run, write checkpoints
// and end. What goes wrong is a test's to say.
#pragma once

#include "core_world.h"

#define CREW_NODES_MAX 64
#define CREW_WORK_MAX 1024

struct crew_work { // one assignment on one node
    struct dp_fence fence;
    char node[DP_NAME_MAX];
    uint32_t ranks[64];
    uint32_t count;
    dp_rank_phase phase;
    bool stopped; // it ended because it was told to
};

struct crew {
    struct world world;
    struct {
        char name[DP_NAME_MAX];
        uint64_t session;
    } nodes[CREW_NODES_MAX];
    size_t nodes_count;
    size_t taken; // of world.sent
    struct crew_work work[CREW_WORK_MAX];
    size_t work_count;
    uint64_t step;    // that checkpoints are of
    bool saves;       // a rank that is to stop with a checkpoint writes one
    bool stays;       // ranks that are told to stop do not end
    size_t saved;     // checkpoints written because of a stop
    uint64_t replies; // used so far
};

#define AUTO_CREW __attribute__((cleanup(crew_deinit))) struct crew

// config NULL = as it comes, without grace after a start.
void crew_init(struct crew *crew, const struct dp_core_config *config);
// The same as it comes, with `count` nodes of so many slots.
void crew_start(struct crew *crew, size_t count, uint32_t slots);
void crew_deinit(struct crew *crew);
// Node "n<i>" for i from 0, of so many slots each.
void crew_nodes(struct crew *crew, size_t count, uint32_t slots);
// Nothing is heard of the node from now on.
void crew_lose(struct crew *crew, size_t node);
// What a job of this crew is when a test says nothing: one rank, preemptible, two retries of a
// backoff of 10 s, a bound of 3 on attempts without progress, from the checkpoint.
struct dp_submit crew_job(int32_t ranks);
// Returns the job's number.
uint64_t crew_submit(struct crew *crew, const struct dp_submit *submit);
// The same of a job of which no more is said.
uint64_t crew_submit_ranks(struct crew *crew, int32_t ranks);
// The job's row, which there must be.
const struct dp_job_record *crew_row(const struct crew *crew, uint64_t job);
// Carries out orders until there are none.
void crew_settle(struct crew *crew);
// Time passes with heartbeats, so that nobody is late.
void crew_pass(struct crew *crew, int64_t ms);
// Forgets what is over, to have room for more.
void crew_tidy(struct crew *crew);
// Every rank of the job completes this step.
void crew_step(struct crew *crew, uint64_t job, uint64_t step, int64_t step_ns);
// Every rank of the job finishes.
void crew_finish(struct crew *crew, uint64_t job);
// A rank of the job is ended by a signal; the others miss it. Returns its node.
void crew_kill_rank(struct crew *crew, uint64_t job, int signal);
// A checkpoint of the job at this step.
void crew_checkpoint(struct crew *crew, uint64_t job, uint64_t step);
// What somebody decides about a node; DP_NODE_DRAIN with a deadline.
void crew_ask(struct crew *crew, const char *node, dp_node_action action, int64_t deadline_ms,
              bool force);
void crew_quota(struct crew *crew, const char *user, uint32_t ranks);
// Assignments of the job that run now; in how many places is *ret_nodes (may be NULL).
uint32_t crew_running(const struct crew *crew, uint64_t job);
