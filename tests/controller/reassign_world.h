// A job of four ranks on two full nodes and a free third one, whose ranks change: what its nodes
// say of two epochs, and what is answered to ADAPT.
#pragma once

#include "core_world.h"

#define AUTO_CHANGE __attribute__((cleanup(change_deinit))) struct change

struct change {
    struct world world;
    uint64_t a, b, c; // sessions; the job's ranks 0, 1 on a, 2, 3 on b
};

// The job runs and has completed `step` steps of 1 ms; slots 0 and 1 of each node.
void change_init(struct change *change, dp_recovery_policy recovery, uint64_t step);
// [straggler] policy is auto above.
void change_init_of(struct change *change, dp_recovery_policy recovery, dp_adapt_policy adapt,
                    uint64_t step);
void change_deinit(struct change *change);
// Each of its ranks reports this step, which took step_ns.
void change_step(struct change *change, uint64_t step, int64_t step_ns);
// The same of ranks that lie elsewhere, as places of change_answer.
void change_step_of(struct change *change, uint32_t epoch, const char *places, uint64_t step,
                    int64_t step_ns);
// Somebody asks for another layout.
void change_ask(struct change *change, uint64_t reply, const char *away, bool advise);
// Answers the newest ADAPT. places: a letter of a node for each rank, "aacc"; a node's slots count
// from 0. Predicted are 500 us a step.
void change_answer(struct change *change, const char *places);
void change_answer_of(struct change *change, const char *kind, const char *places);
void change_refuse(struct change *change, const char *why);
// What each node says of the ranks that the epoch has there.
void change_level(struct change *change, uint32_t epoch, const char *places, dp_rank_phase phase,
                  uint64_t step);
// One rank's word; its node is that of `place`.
void change_rank(struct change *change, uint32_t epoch, char place, struct dp_rank_level *level);
// The ranks named by a bit each hold `step` and serve it; why "" = they were told to.
void change_hold(struct change *change, uint32_t epoch, const char *places, unsigned ranks,
                 uint64_t step, const char *why);
void change_die(struct change *change, uint32_t epoch, char place, uint32_t rank, int signal);
// The ranks end by the signal that goes with an order to stop.
void change_stop(struct change *change, uint32_t epoch, const char *places);
// The first steps of a change: asked for, answered, the ranks of epoch 2 are in this phase.
void change_begin(struct change *change, const char *places, dp_rank_phase phase);
// Ranks get ready and train on from what others hold of this step.
void change_take_over(struct change *change, uint32_t epoch, const char *places, uint64_t step);
// Its whole way: asked for, prepared, held at `step`, taken over.
void change_to(struct change *change, const char *places, uint64_t step);
// Seconds pass in which the ranks of one epoch train at this step.
void change_pass(struct change *change, uint32_t epoch, const char *places, uint64_t step,
                 int seconds);
// Seconds pass in which these nodes are heard of, and nothing of the job is.
void change_hear(struct change *change, const char *nodes, int seconds);
// A node of two slots says hello with what it has; its session is the new one.
void change_hello(struct change *change, char node, const struct dp_assignment_level *levels,
                  size_t count);
// Of the job's second attempt, in its first epoch.
void change_second_level(struct change *change, const char *places, dp_rank_phase phase);
// An operator's decision about a node.
void change_decide(struct change *change, const char *node, dp_node_action action);
// A controller that starts anew: with what is stored now.
void change_restart(struct change *change);

uint64_t change_session(const struct change *change, char place);
// Orders of the kind for the epoch, to a node ("" = any).
size_t change_sent(const struct change *change, dp_order_kind order, uint32_t epoch,
                   const char *node);
const struct dp_job_record *change_job(const struct change *change);
void change_assert_state(const struct change *change, dp_job_state state);
// What the job says of itself has this part.
void change_assert_says(const struct change *change, const char *part);
// What agents are told of this epoch.
struct dp_assignment_view change_view(const struct change *change, uint32_t epoch);
uint32_t change_slots_used(const struct change *change, const char *node);
