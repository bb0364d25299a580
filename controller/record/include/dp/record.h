// What the controller keeps of jobs, ranks, steps and nodes, as plain rows: the core decides with
// them, the store writes them, the daemon shows them. Pure; any thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dp/buf.h"
#include "dp/limits.h"

#define DP_TEXT_MAX 1024 // a sentence for people in a row, with the terminator

// The numbers of dp.v1.JobState.
typedef enum dp_job_state {
    DP_STATE_UNKNOWN,
    DP_STATE_SUBMITTED, // known, not yet stored
    DP_STATE_QUEUED,    // waits for ranks; the reason says which
    DP_STATE_PLANNED,   // has a plan, and slots on nodes
    DP_STATE_ASSIGNING, // ranks are started and prepared
    DP_STATE_RUNNING,
    DP_STATE_REASSIGNING,
    DP_STATE_STOPPING, // ends as `outcome` when every rank has ended
    DP_STATE_COMPLETED,
    DP_STATE_FAILED,
    DP_STATE_CANCELLED,
    DP_STATE_LOST, // a node of it is silent: its ranks there may run, or not
    DP_STATE_COUNT
} dp_job_state;

// "RUNNING"; static.
const char *dp_job_state_text(dp_job_state state);
// COMPLETED, FAILED and CANCELLED never change.
bool dp_job_state_ended(dp_job_state state);
// One move of the table.
bool dp_job_state_may_move(dp_job_state from, dp_job_state to);
// One or more moves, or none at all: what a row on disk may be overwritten with. Ended states
// reach nothing but themselves.
bool dp_job_state_reaches(dp_job_state from, dp_job_state to);

// The numbers of dp.v1.RankPhase. A rank only goes forward, but for UNKNOWN: that is also what
// becomes of one whose node is silent.
typedef enum dp_rank_phase {
    DP_RANK_UNKNOWN,
    DP_RANK_STARTING,
    DP_RANK_READY,
    DP_RANK_RUNNING,
    DP_RANK_FINISHED, // ended by itself, with a last word
    DP_RANK_DIED,
    DP_RANK_PHASE_COUNT
} dp_rank_phase;

static inline bool dp_rank_phase_ended(dp_rank_phase phase)
{
    return phase == DP_RANK_FINISHED || phase == DP_RANK_DIED;
}

// Everything ordered and reported carries one; an older one is refused.
struct dp_fence {
    char job[DP_ID_MAX];
    uint32_t attempt, epoch;
};

// What is done about ranks that are lost, [recovery] policy.
typedef enum dp_recovery_policy {
    DP_JOB_RECOVERY_OFF,        // the job fails
    DP_JOB_RECOVERY_CHECKPOINT, // it begins anew from its last checkpoint
    DP_JOB_RECOVERY_AUTO,       // it goes on with what the other ranks hold, else as above
} dp_recovery_policy;

#define DP_AVOID_MAX 512 // bytes of a list of nodes, with the terminator

// What is done about ranks that are slow, [straggler] policy.
typedef enum dp_adapt_policy {
    DP_JOB_ADAPT_OFF,
    DP_JOB_ADAPT_ADVISE, // the best answer is shown
    DP_JOB_ADAPT_AUTO,   // and carried out
} dp_adapt_policy;

struct dp_job_record {
    uint64_t number; // "job-<number>"; never used again
    uint64_t token;  // random: tells this job from one of a lost state directory
    char id[DP_ID_MAX];
    char name[DP_NAME_MAX];
    char request_id[DP_NAME_MAX]; // "" = none
    dp_job_state state;
    dp_job_state outcome;     // STOPPING: where it will end
    char reason[DP_NAME_MAX]; // machine word, "" = none
    char message[DP_TEXT_MAX];
    int32_t cause_weight;    // how good the failure in reason and message explains the end
    uint32_t attempt, epoch; // in force
    uint32_t epoch_used;     // highest that was ever given out within the attempt
    uint32_t ranks_count;    // of the epoch in force: what is stored of others goes
    uint32_t ranks_full;     // the most that it ever had, but for nodes that people took from it
    dp_recovery_policy recovery;
    dp_adapt_policy adapt;
    double straggler_enter; // own / reference from which a rank is suspected; 0 = the default
    char user[DP_NAME_MAX]; // "" = nobody in particular
    int32_t priority;       // higher goes first
    bool preemptible;       // makes way for a higher priority
    // [retry]: faults of its own that it survives, seconds before the first new attempt, attempts
    // in a row without a newer checkpoint (0 = any number).
    uint32_t retry_max, retry_backoff_s, no_progress_max;
    uint32_t faults;      // of its own, so far
    uint32_t stalled;     // attempts in a row that failed without a newer checkpoint
    uint32_t preemptions; // times it made way
    int64_t retry_at_ns;  // QUEUED: not before this wall clock; 0 = at once
    int64_t queued_ns;    // wall clock, of this attempt
    int64_t held_ns;      // wall clock since when somebody keeps it from starting; 0 = nobody
    char held_by[DP_NAME_MAX], held_reason[DP_TEXT_MAX / 2]; // "" = not said
    // Nodes "a,b" that its ranks stay off, since they slowed it down, and what was found there.
    char avoid[DP_AVOID_MAX], avoid_why[DP_AVOID_MAX];
    // REASSIGNING, once the epoch in force is the new one: its ranks take their state from ranks of
    // `source_epoch`, which hold `source_step`. 0 = they do not.
    uint32_t source_epoch;
    uint64_t source_step;
    struct dp_buf sources; // "RANK HOST:PORT\n" each
    struct dp_buf job_toml;
    struct dp_buf plan;   // packed dp.v1.Plan, empty until PLANNED
    int32_t ranks_wanted; // at least these
    bool ranks_fixed;     // and not more
    bool needs_profile;   // the planner needs calibrated nodes
    char device[DP_NAME_MAX];
    int64_t submitted_ns, started_ns, ended_ns, first_step_ns; // wall clock, 0 = not yet
    uint64_t step, steps_total;
    uint64_t tokens_per_step;
    int64_t step_ns; // of the newest step
    double loss;
    bool loss_known;
    char checkpoint[DP_PATH_MAX]; // newest
    uint64_t checkpoint_step;     // of it
    uint64_t resumed_step;        // of the checkpoint that it went on from
    double unigram_entropy;       // of the corpus, nats per byte or token
    uint64_t corpus_bytes;
    uint64_t corpus_tokens; // of a tokenizer; 0 = read as bytes
    double holdout_loss;
    bool holdout_known;
};

// What a rank did in some period; bytes and chunks are peaks.
struct dp_usage {
    uint64_t step;
    int64_t period_ns, forward_ns, backward_ns, weight_ns, pair_ns, optimizer_ns, comm_exposed_ns,
        idle_ns, step_ns, cpu_ns, evaluation_ns;
    uint32_t live_chunks, peak_chunks;
    uint64_t live_bytes, peak_bytes;
    double tokens_per_s;
};

// How uneven the experts of a rank's layers were in a step.
struct dp_rank_load {
    double skew; // fullest expert of a layer over the mean, the worst layer; 0 = no experts
    uint32_t layer, expert;
    double rank; // tokens that came to its experts over the mean of its EP group
};

// What a rank and its peers send each other within a step: rows of experts, forward and backward,
// and what stages hand on.
typedef enum dp_rank_comm_kind {
    DP_RANK_COMM_DISPATCH_F,
    DP_RANK_COMM_COMBINE_F,
    DP_RANK_COMM_COMBINE_B,
    DP_RANK_COMM_DISPATCH_B,
    DP_RANK_COMM_HOP_F,
    DP_RANK_COMM_HOP_B,
    DP_RANK_COMM_COUNT,
} dp_rank_comm_kind;
// As in dp.v1.StepComm: "dispatch(F)", ...
const char *dp_rank_comm_kind_text(dp_rank_comm_kind kind);

// Under way in all, and the part for which the rank had nothing else to do.
// Bytes of a rank's device at its fullest moment.
struct dp_rank_memory_parts {
    uint64_t weights, gradients, optimizer, activations, exchange;
};

struct dp_rank_comm {
    int64_t total_ns, exposed_ns;
};

// What a rank holds that trains no further (dp.v1.RankHeld).
struct dp_rank_held {
    uint64_t step;
    bool norm_known, gradients_whole;
    double grad_norm;
    char address[DP_ADDRESS_MAX]; // where its state is served; "" = it has nothing whole
    char why[DP_TEXT_MAX];        // "" = it was told to
};

struct dp_rank_record {
    uint64_t job; // number
    uint32_t rank;
    char node[DP_NAME_MAX];
    uint32_t slot;
    dp_rank_phase phase;
    uint64_t step; // completed
    int64_t pid;
    int32_t exit_status, signal;
    char address[DP_ADDRESS_MAX]; // data port, once READY
    uint64_t parameters;
    bool finished, ok, not_finite, peer_lost; // its last word
    bool node_fault;                          // said with it; not stored
    bool stopped;                             // it ended after it had been told to
    bool gone;           // surely not running, whatever became of it; not stored
    uint64_t final_step; // in its last word; not stored
    bool unkillable;     // it was killed and does not end; a level, not stored
    bool is_held;        // and what it holds; levels, not stored
    struct dp_rank_held held;
    char action[DP_NAME_MAX];
    char error[DP_TEXT_MAX];
    int64_t updated_ns;    // wall clock of the newest usage
    struct dp_usage usage; // newest sample
    struct dp_usage total; // whole run
    // Sums over the same steps: all but the first that the rank did.
    uint64_t steps_measured;
    int64_t measured_ns; // of whole steps
    int64_t busy_ns, bubble_ns, exchange_ns, grad_sync_ns, optimizer_ns;
    struct dp_rank_comm comm[DP_RANK_COMM_COUNT];
    uint32_t peak_chunks;
    uint64_t peak_bytes;
    struct dp_rank_memory_parts memory;
    struct dp_rank_load load; // of the newest step
};

// What people are shown: "running", "finished", "failed" (by an error of its own), "stopped" (by
// order), "killed" (by a signal), "died" (without a word), "unknown"; static.
const char *dp_rank_record_text(const struct dp_rank_record *rank);
// It has ended, or nothing of it can be left.
static inline bool dp_rank_record_over(const struct dp_rank_record *rank)
{
    return rank->gone || dp_rank_phase_ended(rank->phase);
}

struct dp_step_record {
    uint64_t job, step;
    uint32_t attempt; // that took it last; 0 = of a database before they were counted
    double loss;
    bool loss_known;
    int64_t step_ns; // of the slowest rank
    uint64_t tokens;
    double lr, grad_norm;
    int64_t time_ns; // wall clock at its end
};

// Measured actions of one rank in one step: packed dp.v1.StepDone.
struct dp_trace_record {
    uint64_t job, step;
    uint32_t rank;
    struct dp_buf spans;
};

// What somebody decided about a node.
typedef enum dp_node_admin {
    DP_ADMIN_NONE,
    DP_ADMIN_DRAIN,      // no new work; its jobs end, or go elsewhere
    DP_ADMIN_DOWN,       // nothing may run there
    DP_ADMIN_QUARANTINE, // no new work: it is suspected
    DP_ADMIN_COUNT
} dp_node_admin;

struct dp_node_record {
    char name[DP_NAME_MAX];
    char boot_id[DP_NAME_MAX], instance[DP_NAME_MAX], version[DP_NAME_MAX];
    char address[DP_ADDRESS_MAX];
    uint32_t slots, cores;
    uint64_t memory_bytes;
    char accelerator[DP_NAME_MAX];
    char data_host[DP_ADDRESS_MAX];
    struct dp_buf profile;  // dp.profile/1, empty until calibrated
    struct dp_buf hardware; // packed dp.v1.Hardware, empty when the agent does not say
    uint32_t lease_ms;      // silent for longer, it is LOST
    uint32_t fence_ms;      // silent for longer, its ranks have ended
    int64_t last_seen_ns;   // wall clock
    // What somebody decided about it; it stays whatever the node says.
    dp_node_admin admin;
    char admin_reason[DP_TEXT_MAX];
    char admin_by[DP_NAME_MAX];
    int64_t admin_since_ns;    // wall clock
    int64_t drain_deadline_ns; // wall clock: its jobs have to be gone by then; 0 = they may end
    // "outer/inner" of what it hangs on: switch, scale-up domain; "" = not known.
    char place[DP_NAME_MAX];
    bool deleted; // takes the stored row away
};

// An attempt of a job that is over.
struct dp_attempt_record {
    uint64_t job; // number
    uint32_t attempt;
    int64_t started_ns, ended_ns;   // wall clock; 0 = it did not run
    uint64_t first_step, last_step; // it went on after the one and completed the other
    uint64_t checkpoint_step;       // of the newest checkpoint at its end
    char reason[DP_NAME_MAX];       // why it ended
    char message[DP_TEXT_MAX];
};

// How many ranks a user may have at once. A row with `deleted` takes the stored one away.
struct dp_quota_record {
    char user[DP_NAME_MAX];
    uint32_t ranks;
    int64_t updated_ns; // wall clock
    bool deleted;
};

struct dp_event_record {
    uint64_t id; // given by the store
    int64_t time_ns;
    char job[DP_ID_MAX], node[DP_NAME_MAX], kind[DP_NAME_MAX];
    char message[DP_TEXT_MAX];
};

// A cluster that was described by a file. A row with `deleted` takes the stored one away.
struct dp_cluster_record {
    char name[DP_NAME_MAX];
    uint64_t version;   // from 1, counts changes
    struct dp_buf toml; // canonical form
    char accelerator[DP_NAME_MAX];
    uint32_t hosts, accelerators; // in all
    int64_t updated_ns;           // wall clock
    bool deleted;
};

// What is known of a node's figures since some time: measured, or corrected by a run.
struct dp_profile_record {
    char node[DP_NAME_MAX];
    int64_t time_ns;          // wall clock
    char source[DP_NAME_MAX]; // DP_PROFILE_CALIBRATION or DP_PROFILE_RUN
    char job[DP_ID_MAX];      // of a run
    struct dp_buf document;   // dp.profile/1, or dp.correction/1 of a run
};
#define DP_PROFILE_CALIBRATION "calibration"
#define DP_PROFILE_RUN "run"

// What a job was planned with and, once it has ended, what it taught: dp.lesson/1.
struct dp_lesson_record {
    uint64_t job;
    struct dp_buf document;
};

typedef enum dp_decision_state {
    DP_DECISION_ADVISED,   // shown, and left to people
    DP_DECISION_PREPARING, // its ranks start beside those that train
    DP_DECISION_SWITCHING, // the job stands still while its ranks change
    DP_DECISION_RUNNING,   // carried out; steps are measured
    DP_DECISION_MEASURED,
    DP_DECISION_ABANDONED, // the job trained on as it was
    DP_DECISION_FELL_BACK, // the job began anew from its last checkpoint
    DP_DECISION_STATE_COUNT
} dp_decision_state;
const char *dp_decision_state_text(dp_decision_state state); // "ADVISED"; static

// What the detector of stragglers found (dp/straggler.h). Rows are only ever added: the newest of a
// rank, link or stage holds.
struct dp_verdict_record {
    uint64_t id; // given by the store
    uint64_t job;
    int64_t time_ns;
    uint32_t attempt, epoch;
    char state[DP_NAME_MAX], cause[DP_NAME_MAX];
    uint32_t rank, peer, stage; // UINT32_MAX = none
    char node[DP_NAME_MAX];     // of the rank
    double slowdown, lost_s;
    int64_t onset_step, step;
    char text[DP_TEXT_MAX];
};

// What was found about a job's ranks, what answers it, what was expected and what came of it.
struct dp_decision_record {
    uint64_t job, number; // counts within the job, from 1
    int64_t time_ns;      // wall clock
    dp_decision_state state;
    uint64_t step;            // of the job when it was made
    uint32_t attempt, epoch;  // that it led to; epoch 0 = none
    char kind[DP_NAME_MAX];   // the answer: "move-layers"
    char cause[DP_TEXT_MAX];  // what was found
    char action[DP_TEXT_MAX]; // what is done about it
    char outcome[DP_TEXT_MAX];
    int64_t before_step_ns; // measured; 0 = not known, as for all that follow
    int64_t predicted_step_ns, predicted_pause_ns;
    int64_t measured_step_ns, measured_pause_ns;
    double trust_before, trust_after; // in predictions; 1 = fully
    struct dp_buf document;           // dp.decision/1: all answers that were weighed
};

// A change that somebody asked for. Rows are only ever added.
struct dp_audit_record {
    uint64_t id; // given by the store
    int64_t time_ns;
    char user[DP_NAME_MAX];     // who they say they are
    char peer[DP_ADDRESS_MAX];  // where the call came from
    char door[DP_NAME_MAX];     // "grpc" or "http"
    char verb[DP_NAME_MAX];     // "CancelJob"
    char object[DP_NAME_MAX];   // what it is about: a job's id, a node's name
    char request_id[DP_NAME_MAX];
    char before[DP_NAME_MAX], after[DP_NAME_MAX]; // what the object was and became, "" = not there
    char outcome[DP_NAME_MAX];                    // "ok", or a status
    char message[DP_TEXT_MAX];                    // why it was refused
};

typedef enum dp_record_kind {
    DP_RECORD_JOB,
    DP_RECORD_RANK,
    DP_RECORD_STEP,
    DP_RECORD_TRACE,
    DP_RECORD_NODE,
    DP_RECORD_EVENT,
    DP_RECORD_CLUSTER,
    DP_RECORD_PROFILE,
    DP_RECORD_LESSON,
    DP_RECORD_DECISION,
    DP_RECORD_ATTEMPT,
    DP_RECORD_QUOTA,
    DP_RECORD_AUDIT,
    DP_RECORD_VERDICT,
    DP_RECORD_KIND_COUNT
} dp_record_kind;

// One row of a transaction; `row` is borrowed, its type follows from `kind`.
struct dp_record {
    dp_record_kind kind;
    const void *row;
};

void dp_job_record_deinit(struct dp_job_record *job);
void dp_node_record_deinit(struct dp_node_record *node);
void dp_cluster_record_deinit(struct dp_cluster_record *cluster);
void dp_trace_record_deinit(struct dp_trace_record *trace);
void dp_profile_record_deinit(struct dp_profile_record *profile);
void dp_lesson_record_deinit(struct dp_lesson_record *lesson);
void dp_decision_record_deinit(struct dp_decision_record *decision);
// Deep copy.
void dp_node_record_copy(struct dp_node_record *ret_copy, const struct dp_node_record *node);

// Times and counts add up, peaks are kept.
void dp_usage_add(struct dp_usage *total, const struct dp_usage *sample);
