// A world around the core: a clock that is set by hand, a store that stores when it is told to, and
// nodes that say what a test makes them say.
#pragma once

#include "dp/core.h"

#define WORLD_SENT_MAX 512
#define WORLD_REPLIES_MAX 64
#define WORLD_NOTES_MAX 64
#define WORLD_OFFERS_MAX 1024

struct world_order {
    dp_order_kind order;
    char node[DP_NAME_MAX];
    struct dp_fence fence;
    dp_status status;
    uint64_t session, request;
    double grad_norm;
    bool checkpoint;
    uint32_t grace_ms, heartbeat_ms;
};

// What an ADAPT effect asked.
struct world_asked {
    uint64_t job, request, step, steps_left;
    bool recovers, grows;
    uint32_t lost[16];
    size_t lost_count;
    char cause[DP_TEXT_MAX], away[DP_NAME_MAX];
    int64_t step_ns, restart_ns;
    double trust;
    char nodes[16][DP_NAME_MAX]; // offered
    uint32_t slots[16];          // how many of each
    size_t nodes_count;
};

struct world_slot {
    char node[DP_NAME_MAX];
    uint32_t slot;
};

struct world_note {
    char event[DP_NAME_MAX], text[DP_TEXT_MAX];
};

struct world_reply {
    uint64_t reply, job, request;
    dp_status status;
    char text[DP_TEXT_MAX];
};

struct world {
    struct dp_core *core;
    struct dp_core_config config;
    struct dp_effects effects;
    int64_t now_ns;
    bool hold_store;      // transactions wait for world_store
    bool hold_plan;       // PLAN is not answered
    uint64_t tokens[256]; // waiting, oldest first
    size_t tokens_count;
    struct world_order sent[WORLD_SENT_MAX];
    size_t sent_count;
    struct world_reply replies[WORLD_REPLIES_MAX];
    size_t replies_count;
    struct world_note notes[WORLD_NOTES_MAX]; // the newest events, a ring
    size_t notes_count;                       // ever
    struct dp_step_record steps[64];          // as shown
    size_t steps_count;
    size_t traces;                              // stored
    size_t audit_rows;                          // of all transactions
    struct dp_audit_record audit;               // the newest of them
    size_t node_deletions, quota_rows;          // of all transactions
    uint64_t planned_job;                       // of the PLAN effect not answered yet, 0 = none
    struct world_slot offers[WORLD_OFFERS_MAX]; // in it, node by node
    size_t offers_count;
    uint64_t sessions;           // used so far
    dp_recovery_policy recovery; // of jobs that are submitted
    dp_adapt_policy adapt;
    struct world_asked asked; // newest; request 0 = none yet
    size_t asks;
    struct dp_decision_record decision; // newest that was stored; its document is not kept
    char requeued[DP_TEXT_MAX];         // what the newest event of a job that is QUEUED said
};

#define AUTO_WORLD __attribute__((cleanup(world_deinit))) struct world

void world_init(struct world *world);
// A new core with what `config` says now.
void world_configure(struct world *world);
void world_deinit(struct world *world);
// Gives an event at the present time, takes its effects, and answers those not held.
void world_step(struct world *world, struct dp_core_event *event);
// Time passes and the timer rings.
void world_pass(struct world *world, int64_t ms);
// Answers the oldest transaction.
void world_store(struct world *world, dp_status status);
// Answers every transaction that waits, and those that follow.
void world_store_all(struct world *world);
void world_plan(struct world *world); // answers PLAN: ranks in order over the free slots

// `ranks_wanted` ranks, cpu; the reply has the number given.
void world_submit(struct world *world, uint64_t reply, int32_t ranks, const char *request_id);
void world_cancel(struct world *world, uint64_t reply, const char *job);
// A calibrated node says hello with these assignments; returns its session.
uint64_t world_hello(struct world *world, const char *name, uint32_t slots,
                     const struct dp_assignment_level *levels, size_t count);
void world_close(struct world *world, uint64_t session);
void world_heartbeat(struct world *world, uint64_t session,
                     const struct dp_assignment_level *levels, size_t count);
// All of the node's ranks `first` to `last` of job-1 are in this phase (READY has an address,
// FINISHED is ok).
void world_level(struct world *world, uint64_t session, uint32_t first, uint32_t last,
                 dp_rank_phase phase);
void world_send_level(struct world *world, uint64_t session, struct dp_assignment_level *level);
void world_report(struct world *world, uint64_t session, uint32_t rank, struct dp_report *report);
void world_report_step(struct world *world, uint64_t session, uint32_t rank, uint64_t step,
                       double loss);
struct dp_fence world_fence(const char *job);
struct dp_rank_level world_rank_level(uint32_t rank, dp_rank_phase phase);
// What a node says that has the ranks `first` and the next one of job-1, both in this phase.
struct dp_assignment_level world_pair(struct dp_rank_level ranks[2], uint32_t first,
                                      dp_rank_phase phase);

// Of the newest WORLD_NOTES_MAX events, those of this name whose text has this part.
size_t world_noted(const struct world *world, const char *event, const char *part);
// Orders of this kind sent to a node ("" = any) so far.
size_t world_sent(const struct world *world, dp_order_kind order, const char *node);
const struct world_reply *world_reply(const struct world *world, uint64_t reply); // or NULL
const struct dp_job_record *world_job(const struct world *world, uint64_t number);
dp_node_state world_node_state(const struct world *world, const char *name);
// Two nodes of two slots, one job of four ranks on them; returns with the job in `state`.
void world_bring(struct world *world, dp_job_state state, uint64_t ret_sessions[2]);
// The same in a world that this begins.
void world_start(struct world *world, dp_job_state state, uint64_t ret_sessions[2]);
