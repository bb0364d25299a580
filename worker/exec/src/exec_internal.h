#pragma once

#include "dp/exec.h"
#include "dp/group_exchanger.h"
#include "moves.h"
#include "program.h"

// The executor's own kinds of message: dp_transport_tag's first part.
typedef enum message_kind {
    MESSAGE_FORWARD = 1, // an activation, for F of the tag's stage
    MESSAGE_BACKWARD,    // a gradient, for B or I of the tag's stage
    MESSAGE_EVALUATE,    // an activation of a held-out micro-batch
    MESSAGE_EXCHANGE,    // between expert-parallel peers
    MESSAGE_WORLD,       // a few numbers, of all ranks
    MESSAGE_PROBE,       // between neighbours who measure their link
} message_kind;

#define NO_PEER (-1)

// A stage of this rank and a micro-batch.
struct cell {
    struct dp_chunk *chunk; // NULL when not in flight, and always on a sim rank
    uint64_t bytes;         // that it is accounted with
    int32_t peer[4];        // by dp_p2p_kind: pipeline position, may be this rank's; or NO_PEER
    // How far the chunk has come: the component whose pass is next, by dp_pass.
    int32_t next[3];
    bool is_forward_closed;       // F has ended
    bool has_input, has_gradient; // PROGRAM_OPEN has run for F, for I
    int64_t open_bytes;           // what the chunk held before that
    bool has_met[2];              // F, I: its first exchange, or its end
    bool is_handed_on[2];         // what F, I has made
};

struct slot {
    int32_t index;          // of the stage, in the pipeline
    struct dp_stage *stage; // NULL on a sim rank
    struct dp_component *components;
    struct program_stage program;
    // The most that a chunk has come to hold: from PROGRAM_OPEN until it has begun its first
    // exchange, or to its end, F and I; at the end of F; and what I alone has added by its end. -1
    // = not known yet.
    int64_t early_bytes[2], full_bytes, input_bytes;
};

// One chunk's share of an action.
struct part {
    struct cell *cell; // NULL: the action has no such part
    int32_t slot, stage;
    uint32_t microbatch;
};

struct task {
    const struct dp_action *action;
    struct part forward, backward;
    int backward_passes; // PROGRAM_INPUT, PROGRAM_WEIGHT
};

// An action of the list, and what of it has run in this step: ops of later actions fill the waits
// of earlier ones.
struct run {
    struct task task;
    struct program *program; // NULL on a sim rank
    bool *done;              // [program->count]
    size_t first;            // all ops before it are done
    int64_t early_ns;        // spent on it before its turn
    int64_t taken_bytes;     // of device memory, by ops that ran before its turn
};

struct dp_exec {
    struct dp_exec_config config; // layer_begin is owned
    int32_t slot_count;
    struct slot slots[DP_RANK_STAGES_MAX];
    struct cell *cells;       // [slot_count][microbatches]
    struct program *programs; // of every kind of action, as they are met
    size_t program_count;     // [slots + 1][slots + 1][4]
    struct run *runs;         // [run_count], the list
    size_t run_count;
    bool *done; // [done_count], what runs[i].done point into
    size_t done_count;
    struct moves *moves;
    struct times *times;
    struct dp_workspace *workspace; // of all stages; NULL on a sim rank
    struct dp_group world;
    struct dp_group peers;                // expert-parallel
    struct dp_group_exchanger *exchanger; // when none was given; NULL without peers
    uint32_t group_id_end;
    int64_t wall_offset_ns;    // wall clock minus monotonic, fixed at the start
    int32_t *tokens, *targets; // of one micro-batch
    int64_t sample_origin;     // where step 0 would have started

    int64_t step;
    int64_t free_ns;              // sim: when the planned time of the last action ended
    struct dp_exec_levels levels; // of the whole run
    uint64_t early_bytes;         // that actions to come have taken during this one, modulo 2^64
    struct dp_exec_step result;   // of the step at hand
    int64_t last_end_ns;          // of what was recorded last
    struct dp_exec_failure failure;
    // Device memory in use: before the action whose turn it is, what others' ops have taken or
    // given back during it, after the last op, and the most in the whole run.
    int64_t base_bytes, others_bytes, used_bytes, most_bytes;
    size_t turn;    // the run whose turn it is
    size_t culprit; // the run at work
};

// Time lost before an action could start.
struct wait {
    int64_t idle_ns;    // nothing had been sent yet
    int64_t comm_ns;    // it was on its way
    int64_t arrival_ns; // sim: when the last message has arrived by plan
};

// times.c: where a step's time goes.
struct action_time {
    int64_t own_ns;    // to compute
    int64_t waited_ns; // for messages and peers, before and inside it
    int64_t gap_ns;    // sim: its host was late by plan
    int64_t off_core_ns, tokens, planned_ns;
};
struct times *dp_exec_times_new(void);
void dp_exec_times_free(struct times *times); // accepts NULL
void dp_exec_times_begin(struct times *times, int64_t now_ns);
void dp_exec_times_action(struct times *times, const struct dp_action *action,
                          const struct action_time *took);
void dp_exec_times_message(struct times *times, int32_t peer,
                           const struct dp_exec_link_time *message);
// `now_ns`: the last action has ended.
void dp_exec_times_end(struct times *times, bool is_sim, int64_t now_ns,
                       struct dp_exec_times *ret_times);

static inline int32_t exec_rank_of(const struct dp_exec *exec, int32_t position)
{
    return exec->config.replica * exec->config.schedule->pipeline + position;
}

// Micro-batch m of a replica is row (this + m) of the step's, and counts by its tokens alone: so
// the loss and its gradient are the mean over all tokens, however rows are shared out.
static inline int64_t exec_first_microbatch(const struct dp_exec *exec)
{
    const struct dp_exec_config *config = &exec->config;
    return config->step_microbatches > 0
               ? config->first_microbatch
               : (int64_t)config->replica * config->schedule->microbatches;
}

// Not finite, DP_JOB_FAILED; remembers it for dp_exec_failure.
dp_status dp_exec_fail_not_finite(struct dp_exec *exec, const char *what, struct dp_error *err);

// Sends what the part made: an activation (forward) or a gradient. A message is the wall clock at
// which it was sent, then the bytes. Does nothing without a peer.
dp_status dp_exec_message_send(struct dp_exec *exec, const struct part *part, bool forward,
                               int64_t sent_ns, const void *bytes, size_t length,
                               struct dp_error *err);
// Waits for what the part needs; adds to ret_wait.
dp_status dp_exec_message_receive(struct dp_exec *exec, const struct part *part, bool forward,
                                  void *bytes, size_t length, struct wait *ret_wait,
                                  struct dp_error *err);

// Whether it would not wait.
bool dp_exec_message_is_here(struct dp_exec *exec, const struct part *part, bool forward);

struct samples {
    bool holdout;
    int64_t first;
    int32_t count;
};
// The chunk's tokens and targets, where its stage has an embedding or a head.
dp_status dp_exec_fill_tokens(struct dp_exec *exec, const struct slot *slot, struct dp_chunk *chunk,
                              const struct samples *samples, struct dp_error *err);

// Sends on what the part's pass has made, once it has ended: the activation (forward), or the
// gradient of its input. Not finite: DP_JOB_FAILED. Nothing without a peer, or the second time.
dp_status dp_exec_hand_on(struct dp_exec *exec, const struct part *part, bool forward,
                          struct dp_error *err);

// The two ways to run an action. *ret_record gets its times. `at` is its number in exec->runs.
// Of the time that the calling thread computed, what it had no core for.
int64_t dp_exec_off_core_ns(const struct dp_device *device, int64_t wall_ns, int64_t cpu_ns);
dp_status dp_exec_compute_action(struct dp_exec *exec, size_t at, struct dp_exec_record *ret_record,
                                 struct dp_error *err);
// *ret_time: own, gap and planned time, all by plan.
dp_status dp_exec_sim_action(struct dp_exec *exec, const struct task *task,
                             struct dp_exec_record *ret_record, struct action_time *ret_time,
                             struct dp_error *err);

// A chunk is alive from the start of its F to the end of its B or I; what it keeps for W lives on.
void dp_exec_account_start(struct dp_exec *exec, const struct task *task);
// What the cell's chunk keeps from now on.
void dp_exec_account_bytes(struct dp_exec *exec, struct cell *cell, uint64_t bytes);
// What all chunks together have held at some moment.
void dp_exec_account_peak(struct dp_exec *exec, uint64_t bytes);
// What all chunks hold now, while the task runs.
uint64_t dp_exec_bytes_now(const struct dp_exec *exec, const struct task *task);
void dp_exec_account_end(struct dp_exec *exec, const struct task *task);

// Names the chunk's routings to its expert-parallel peers.
static inline void dp_exec_tag_chunk(struct dp_chunk *chunk, message_kind kind, int32_t stage,
                                     uint32_t microbatch)
{
    dp_chunk_set_tag(chunk, dp_transport_tag(kind, (uint32_t)stage, microbatch, 0, 0),
                     dp_transport_tag(0, 0, 0, 1, 0));
}

// fill.c: an op that may run while the action at `at` waits, of it when it has begun, or of an
// action behind it; false when there is none.
bool dp_exec_find_filler(struct dp_exec *exec, size_t at, bool has_begun, size_t *ret_run,
                         size_t *ret_op);

// perform.c: what follows is the memory of the action whose turn it is.
void dp_exec_begin_memory(struct dp_exec *exec);
// perform.c. One op of the run's program; `wait` gets what an OPEN waited.
dp_status dp_exec_perform(struct dp_exec *exec, struct run *run, size_t index, struct wait *wait,
                          struct dp_error *err);
// What the run at `at` takes in, and while that is not here ops of later actions; their time is
// *ret_filled_ns.
dp_status dp_exec_open_all(struct dp_exec *exec, size_t at, struct wait *wait,
                           int64_t *ret_filled_ns, struct dp_error *err);
// All ops of the run that are left, and while it waits others. *ret_filled_ns is the time for those
// of other actions.
dp_status dp_exec_perform_all(struct dp_exec *exec, size_t at, int64_t *ret_filled_ns,
                              struct dp_error *err);

// list.c: exec->runs and the programs of their actions, once the slots are there.
void dp_exec_list_make(struct dp_exec *exec);
void dp_exec_list_free(struct dp_exec *exec);
// Nothing has run.
void dp_exec_list_reset(struct dp_exec *exec);
