// Of core_internal.h: how ranks change while a job lives, and who slows it down.
#pragma once

#include "core_internal.h"

// reassign_sides.c: assignments beside the one in force
// A new epoch for the job, which begins with nobody told of it.
void dp_core_side_prepare(struct core_job *job, const struct dp_adapt_done *done);
// It replaces the assignment in force, whose ranks go to the sides.
void dp_core_side_put_in_force(struct core_job *job);
void dp_core_side_free(struct dp_core *core, struct core_side *side);
// A node that was not known when they were made.
void dp_core_sides_meet(const struct core_job *job, struct core_node *node);
void dp_core_sides_free(struct core_job *job); // all of a job's
// The new one or an older one that the fence names; NULL = none.
struct core_side *dp_core_side_find(const struct core_job *job, const struct dp_fence *fence);
struct dp_fence dp_core_side_fence(const struct core_job *job, const struct core_side *side);
struct core_member *dp_core_side_member(const struct core_side *side, const char *node);
bool dp_core_side_over(const struct core_side *side, const char *node); // node NULL: anywhere
// Its ranks on the node (NULL = all) cannot run any more. Whether there were any.
bool dp_core_side_end(struct core_side *side, const char *node);
// The new assignment is given up: its ranks are told to end.
void dp_core_side_give_up(struct core_job *job);
// What the assignment in force becomes when it is no longer that: its ranks may still run.
void dp_core_job_retire(struct core_job *job);
// Slots of the node that ranks beside those in force have alone; `taken` NULL or [slots]: set for
// every slot that they have.
uint32_t dp_core_sides_slots(const struct core_job *job, const char *node, bool *taken,
                             uint32_t slots);
// After ranks of them have ended.
void dp_core_sides_recount(struct core_job *job);
// All that is known of the job is on disk.
void dp_core_sides_stored(struct core_job *job);
void dp_core_sides_drive(struct dp_core *core, struct core_job *job);
// STOPPING: whether its end need not wait for them.
bool dp_core_sides_may_end(const struct core_job *job);
// Those that are still there are told to end once more.
void dp_core_sides_insist(struct core_job *job);
// Whether all is told and over that can be, so that the job may be forgotten.
bool dp_core_sides_done(const struct dp_core *core, const struct core_job *job);
// "RANK HOST:PORT\n" each, and back.
void dp_core_sources_write(const struct dp_state_source *sources, size_t count, struct dp_buf *out);
void dp_core_sources_read(const struct dp_buf *text, struct dp_state_source **ret_sources,
                          size_t *ret_count);

// reassign_levels.c: what nodes say of assignments beside the one in force
// False when the fence is none of the job's.
bool dp_core_side_level(struct dp_core *core, struct core_job *job, const struct core_node *node,
                        const struct dp_assignment_level *level);
void dp_core_sides_lose_node(struct dp_core *core, const struct core_node *node);
void dp_core_sides_fence_node(struct dp_core *core, const struct core_node *node);
// Those that the node should have and does not list.
void dp_core_sides_missing(struct dp_core *core, const struct core_node *node,
                           const struct dp_levels *levels, bool at_hello);
// What the node was told in an earlier session shows in what it has.
void dp_core_sides_hello(struct dp_core *core, const struct core_node *node,
                         const struct dp_levels *levels);

// reassign.c: ranks change while the job lives
// RUNNING, or its ranks train while others are prepared.
bool dp_core_job_trains(const struct core_job *job);
void dp_core_reassign_begin(struct dp_core *core, struct core_job *job,
                            const struct dp_adapt_done *done);
// The job trains on as it was; REASSIGNING becomes RUNNING.
void dp_core_reassign_abandon(struct dp_core *core, struct core_job *job, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Looks at all ranks and moves on.
void dp_core_reassign_advance(struct dp_core *core, struct core_job *job);
void dp_core_reassign_deadline(struct dp_core *core, struct core_job *job);
// The order that a node with ranks in force should have been given, while REASSIGNING.
dp_order_kind dp_core_reassign_order(const struct core_job *job, const struct core_member *member);
void dp_core_reassign_phase(struct dp_core *core, struct core_job *job, core_phase phase,
                            int64_t timeout_ns);
// It cannot go on: the job ends, or begins anew from its checkpoint.
void dp_core_reassign_fall(struct dp_core *core, struct core_job *job, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// A start: what the phase was is read off the row.
void dp_core_reassign_load(struct dp_core *core, struct core_job *job);
// The job is about to end or to begin anew: nothing of a change is left.
void dp_core_reassign_stop(struct core_job *job);

// Those that hold are known: they come to one step.
void dp_core_reassign_settle(struct dp_core *core, struct core_job *job);
// For ranks to hold.
int64_t dp_core_hold_timeout_ns(const struct dp_core *core, const struct core_job *job);

// recover.c: ranks are lost, and the others hold what is needed
// Whether the failure is answered by that, so that the job does not end by it (yet).
bool dp_core_recover_takes(struct dp_core *core, struct core_job *job, dp_cause cause,
                           const char *reason, const char *message);
// A rank says that it holds: the first word of a failure, or the last of a pause.
void dp_core_recover_held(struct dp_core *core, struct core_job *job,
                          const struct dp_rank_record *rank);
// Goes on when every rank holds or is lost; at the deadline those that do not hold are lost, too.
void dp_core_recover_gather(struct dp_core *core, struct core_job *job, bool at_deadline);
// Some do not come to the step: without them.
void dp_core_recover_unsettled(struct dp_core *core, struct core_job *job);
void dp_core_recover_ask(struct dp_core *core, struct core_job *job);
void dp_core_recover_done(struct dp_core *core, struct core_job *job,
                          const struct dp_adapt_done *done);
void dp_core_recover_failed(struct dp_core *core, struct core_job *job, const char *why);
// New ranks have failed, and the old ones hold, or are about to: others are tried.
void dp_core_recover_next_failed(struct dp_core *core, struct core_job *job, const char *why);
// Ranks that hold come to one step: whether all of `step` that can.
bool dp_core_recover_settled(const struct core_job *job, uint64_t step);
// Whether the rank's state of `step` can be had, now or after SETTLE.
bool dp_core_recover_serves(const struct core_job *job, const struct dp_rank_record *rank,
                            uint64_t step);

// Of the gradients that made `step`, as its ranks say; 0 = none does.
double dp_core_recover_norm(const struct core_job *job, uint64_t step);

// stragglers.c
void dp_core_straggler_deinit(struct core_job *job);
void dp_core_straggler_step(struct dp_core *core, struct core_job *job, uint32_t rank,
                            const struct dp_step_report *report);
void dp_core_straggler_probed(struct dp_core *core, struct core_job *job, uint32_t rank,
                              const struct dp_straggler_probe *figures);

// reassign_decide.c: what is done about stragglers, and what came of it
// Whether the job's ranks may have these slots.
bool dp_core_slots_fit(struct dp_core *core, const struct core_job *job,
                       const struct dp_slot *slots, size_t count);
void dp_core_straggler_found(struct core_job *job, const struct dp_straggler_verdict *verdict);
// Nothing came of an answer: what stands is asked about again, each time twice as late.
void dp_core_ask_later(struct dp_core *core, struct core_job *job);
// The job's ranks leave the node, training on; false when they cannot now.
bool dp_core_reassign_away(struct dp_core *core, struct core_job *job, const char *node);
// rebalance.c: experts are placed by their loads
// Carries the decision out; false when it cannot.
bool dp_core_rebalance_begin(struct dp_core *core, struct core_job *job,
                             const struct dp_adapt_done *done);
// The second part of a change whose ranks train now.
void dp_core_rebalance_follow(struct dp_core *core, struct core_job *job);
// What a rank said with a step.
void dp_core_rebalance_told(struct core_job *job, uint64_t step,
                            const struct dp_placement_report *report);
// The ranks change, or end: nothing is waited for any more.
void dp_core_rebalance_drop(struct core_job *job, const char *why);
void dp_core_rebalance_deadline(struct dp_core *core, struct core_job *job);

// grow.c: more ranks, where some were lost
// After the queue had its turn: who has fewer ranks than it once had, while there is room.
void dp_core_grow_look(struct dp_core *core);
void dp_core_grow_deadline(struct dp_core *core, struct core_job *job);
// That question has been answered, or could not be.
void dp_core_grow_asked(struct dp_core *core, struct core_job *job);
// Other ranks are in force.
void dp_core_grow_note(struct dp_core *core, struct core_job *job);
// Whether its user's quota leaves the job so many ranks.
bool dp_core_grow_allowed(struct dp_core *core, const struct core_job *job, size_t ranks);

// restart.c: from a checkpoint, without nodes that slow the job down
// Whether the job's ranks stay off the node.
bool dp_core_job_avoids(const struct core_job *job, const char *node);
// Carries the decision out; false when it cannot.
bool dp_core_restart_begin(struct dp_core *core, struct core_job *job,
                           const struct dp_adapt_done *done);
// Whether the newest decision is a restart whose attempt has not trained yet.
bool dp_core_restart_awaited(const struct core_job *job);
// What one costs: as measured, or what the job's own start and checkpoints took; 0 = not known.
int64_t dp_core_restart_cost_ns(const struct dp_core *core, const struct core_job *job);
// The attempt trains.
void dp_core_restart_runs(struct dp_core *core, struct core_job *job);
// The node may be well again: jobs need not stay off it any more.
void dp_core_avoid_lift(struct dp_core *core, const struct core_node *node, const char *why);

// reassign_decide.c
// Whether every agent of the job knows how.
bool dp_core_reassign_may(const struct core_job *job);
void dp_core_reassign_ask(struct dp_core *core, const struct dp_reassign *wish);
void dp_core_adapt_done(struct dp_core *core, const struct dp_adapt_done *done);
void dp_core_adapt_failed(struct dp_core *core, const struct dp_adapt_failed *failed);
void dp_core_ask(struct dp_core *core, struct core_job *job, const struct dp_adapt_ask *ask);
void dp_core_load_decision(struct dp_core *core, const struct dp_decision_record *decision);
void dp_core_decision_make(struct dp_core *core, struct core_job *job,
                           const struct dp_adapt_done *done, dp_decision_state state);
void dp_core_decision_set(struct core_job *job, dp_decision_state state, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// The job has ended: nothing more will be measured.
void dp_core_decision_end(struct core_job *job);
// Into the step's transaction what is not on disk. And a transaction of the job is.
void dp_core_decisions_store(struct dp_core *core, struct core_job *job);
void dp_core_decisions_stored(struct core_job *job);
// A step of the whole job is complete.
void dp_core_decision_step(struct dp_core *core, struct core_job *job, uint64_t step,
                           int64_t step_ns);
// Median of the newest steps of this layout, at most CORE_RECENT_STEPS; 0 = not known.
int64_t dp_core_recent_step_ns(const struct core_job *job, size_t steps);
int64_t dp_core_reassign_timer_ns(const struct core_job *job); // 0 = none
// Whether the job's ranks may change now: it runs, and nothing is asked or done about it yet.
bool dp_core_may_ask(const struct core_job *job);
// One answer is for all that stands; when somebody asks, suspicions count, too.
void dp_core_take_standing(struct dp_core *core, const struct core_job *job, bool suspected,
                           struct dp_adapt_ask *ask);
// Whether a new layout of the job may use the node.
bool dp_core_may_be_offered(const struct core_job *job, const struct core_node *node);
// The answer to ADAPT is no longer waited for.
void dp_core_ask_deadline(struct dp_core *core, struct core_job *job);
