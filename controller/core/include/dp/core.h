// The controller's decisions, without any means of acting: events in, effects out.
//
// No socket, clock, thread, file or randomness is used here. Time arrives with every event; what
// must happen leaves as data, and the shell does it. So the same code runs in the daemon and in a
// simulation with a virtual clock, lost messages and crashes at any point.
//
// Persist, then tell. What a step changed is one transaction (`effects.store_token`); replies to
// people and orders to nodes that rest on it appear only in the step that takes its STORED event.
// Orders follow from levels: the core keeps, for each job and node, what the node was last told and
// sends what differs from what is wanted, so a lost order or a new session repeats it.
#pragma once

#include "dp/arena.h"
#include "dp/error.h"
#include "dp/record.h"

struct dp_core;
struct dp_straggler;
struct dp_straggler_probe;
struct dp_straggler_sample;
struct dp_straggler_verdict;

// Who may start while an earlier job that fits into the cluster lacks room.
typedef enum dp_queue_policy {
    DP_QUEUE_BEST_EFFORT, // those that find room, for pass_ms; then room is kept for it
    DP_QUEUE_STRICT,      // nobody
} dp_queue_policy;

struct dp_core_config {
    uint32_t heartbeat_ms;       // asked of agents
    uint32_t late_ms;            // silence after which a node is LATE
    uint32_t lease_margin_ms;    // a node is LOST this long after its own lease ended
    uint32_t lease_default_ms;   // of a node whose lease is not known
    uint32_t fence_default_ms;   // of a node that does not say when its ranks are surely gone
    uint32_t calibrate_ms;       // a node that is being calibrated is waited for so long
    uint32_t prepare_timeout_ms; // for all ranks to be READY, then RUNNING
    uint32_t collect_ms;         // wait for the cause when only its consequences are known
    uint32_t settle_ms;          // wait for the last steps when the ranks have finished
    uint32_t stop_grace_ms;      // between the polite end of a rank and the forced one
    uint32_t stop_timeout_ms;    // after which ranks that do not end are told again, and named
    uint32_t checkpoint_timeout_ms;
    uint32_t pause_timeout_ms;  // for all ranks to hold, beside the time of some steps
    uint32_t answer_timeout_ms; // for the answer to ADAPT
    uint32_t cool_down_ms;      // after an answer to a straggler, until the next one of the job
    uint32_t grow_ms;           // there has to be room for so long before a job grows again
    uint32_t measured_steps;    // that an answer is measured over
    uint32_t recoveries_max;    // from the same step, then from the checkpoint
    uint32_t store_retry_ms;    // between attempts to store what could not be stored
    uint32_t save_ms;           // between savings of the ranks' running totals
    uint32_t active_jobs_max;   // that have not ended
    dp_queue_policy queue;
    uint32_t pass_ms;
    uint32_t backoff_max_ms;   // between two attempts of a job, unless its own first wait is longer
    uint32_t preempt_ms;       // to write a checkpoint for a job that makes way
    uint32_t heartbeats_per_s; // of all nodes together: they are asked less often when many
    uint32_t start_grace_ms;   // after a start: nodes that have not come back yet get it besides
    uint32_t suspect_ms;       // three suspicions of a node within it quarantine it
};

void dp_core_config_init(struct dp_core_config *config);

// Events.

typedef enum dp_core_event_kind {
    // Before anything else, at a start: what the store has.
    DP_EVENT_LOAD_ENDED, // numbers of ended jobs
    DP_EVENT_LOAD_NODE,
    DP_EVENT_LOAD_QUOTA,
    DP_EVENT_LOAD_JOB,      // one that has not ended, with its ranks
    DP_EVENT_LOAD_DECISION, // the newest of a job that was loaded, and the newest that was measured
    // People.
    DP_EVENT_SUBMIT,
    DP_EVENT_CANCEL,
    DP_EVENT_UPDATE, // of what a job waits for, and before whom it goes
    DP_EVENT_CHECKPOINT,
    DP_EVENT_REASSIGN, // another layout for a job that runs
    DP_EVENT_HOLD,     // a node gets no new work for a while
    DP_EVENT_NODE_ASK,
    DP_EVENT_QUOTA_ASK,
    // Agents; `session` names the stream and is never used again.
    DP_EVENT_HELLO,
    DP_EVENT_HEARTBEAT, // levels of all assignments
    DP_EVENT_LEVEL,     // level of one
    DP_EVENT_INVENTORY,
    DP_EVENT_REPORT,
    DP_EVENT_SESSION_CLOSED,
    // The shell's answers.
    DP_EVENT_PLAN_DONE,
    DP_EVENT_PLAN_FAILED,
    DP_EVENT_ADAPT_DONE,
    DP_EVENT_ADAPT_FAILED,
    DP_EVENT_STORED,
    DP_EVENT_TICK, // the timer
    DP_EVENT_KIND_COUNT
} dp_core_event_kind;

// What a request id is answered with that stands for another job file: the id, the job.
#define DP_CORE_REQUEST_TAKEN                                                                      \
    "request id \"%s\" was used for %s with another job file: give this one an id of its own"

struct dp_submit {
    uint64_t reply;         // names the answer; 0 = none wanted
    const char *request_id; // "" = none
    const char *name;
    const char *device;
    uint64_t token; // random
    const void *job_toml;
    size_t job_toml_length;
    int32_t ranks_wanted; // at least; at least 1
    bool ranks_fixed, needs_profile;
    dp_recovery_policy recovery;
    dp_adapt_policy adapt;
    double straggler_enter; // 0 = the default
    const char *user;       // NULL or "" = nobody in particular
    int32_t priority;
    bool preemptible;
    uint32_t retry_max, retry_backoff_s, no_progress_max; // as in the row
    uint64_t check_index; // refused unless the core's index is this one; 0 = whatever it is
    uint64_t steps_total, tokens_per_step;
};

struct dp_ask { // CANCEL and CHECKPOINT
    uint64_t reply;
    char job[DP_ID_MAX];
    const char *reason; // CANCEL: "" = none
};

// Changes what is given. Held jobs are not started; only those that wait, or will begin again, can
// be. A priority counts from now on, of a job that runs when others want its room.
struct dp_job_update {
    uint64_t reply;
    char job[DP_ID_MAX];
    const char *request_id;  // the same id is carried out once; "" = none
    const char *by, *reason; // "" = not said
    bool holds, releases;
    bool sets_priority;
    int32_t priority;
};

// Answered with the job once the question is asked; what becomes of it is a decision of the job.
struct dp_reassign {
    uint64_t reply;
    char job[DP_ID_MAX];
    const char *away;   // node to leave, "" = none
    const char *answer; // the kind that is wanted ("restart"); NULL or "" = the best
    bool advise;        // what would be best is told, and not done
};

typedef enum dp_node_action {
    DP_NODE_DRAIN,
    DP_NODE_UNDRAIN, // whatever was decided about it, it is not any more
    DP_NODE_SET_DOWN,
    DP_NODE_QUARANTINE,
    DP_NODE_FORGET, // a node that is gone for good
} dp_node_action;

struct dp_node_ask { // the answer names the node in its text
    uint64_t reply;
    const char *node, *reason, *by; // "" = not said
    const char *word;               // the action, for people: "drained"
    dp_node_action action;
    int64_t deadline_ms; // DRAIN: its jobs have to be gone by then; 0 = they may end
    bool force;          // DRAIN: at once
};

struct dp_quota_ask { // the answer names the user in its text
    uint64_t reply;
    const char *user, *by;
    uint32_t ranks; // at once
    bool none;      // no bound
};

struct dp_hold {
    const char *node;
    bool on;
};

struct dp_rank_ready {
    char address[DP_ADDRESS_MAX];
    uint64_t corpus_bytes, corpus_hash, parameters, resumed_step;
    uint64_t corpus_tokens; // of a tokenizer; 0 = bytes
    double unigram_entropy;
};

struct dp_rank_finished {
    bool ok, not_finite, peer_lost;
    bool node_fault;    // its machine is at fault, not the job
    bool holdout_known; // the newest evaluation that it reported, again
    uint64_t step;
    double holdout_loss;
    char error[DP_TEXT_MAX];
    char action[DP_NAME_MAX];
};

struct dp_rank_level {
    uint32_t rank;
    bool stopped;    // it ended after it had been told to
    bool unkillable; // it was killed and does not end
    dp_rank_phase phase;
    uint64_t step;
    int64_t pid;
    int32_t exit_status, signal;
    bool ready_known, finished_known, held_known;
    struct dp_rank_ready ready;
    struct dp_rank_held held;
    struct dp_rank_finished finished;
};

struct dp_assignment_level {
    struct dp_fence fence;
    const struct dp_rank_level *ranks;
    size_t ranks_count;
    bool keeper_lost;
    int32_t keeper_signal;
    bool stopping;     // its ranks were told to end
    const char *error; // "" = none; why the node could not do its part
};

struct dp_levels { // HEARTBEAT, LEVEL (count = 1)
    uint64_t session;
    const struct dp_assignment_level *assignments;
    size_t count;
    uint64_t sequence; // of a heartbeat: acknowledged
    uint64_t acked;    // the newest acknowledgement that the node had; 0 = not told
};

struct dp_hello {
    struct dp_levels levels;
    int64_t sent_ns; // by the node's monotonic clock; 0 = not told
    const struct dp_node_record *node;
    uint32_t protocol;             // that the agent speaks (dp/method.h)
    const char *calibration_error; // NULL or "" = none
    char *const *notes;            // what the agent found amiss when it started
    size_t notes_count;
};

struct dp_inventory_event {
    uint64_t session;
    const struct dp_node_record *node; // slots to profile are taken
    const char *calibration_error;     // NULL or "" = none
};

typedef enum dp_report_kind {
    DP_REPORT_READY,
    DP_REPORT_USAGE,
    DP_REPORT_STEP,
    DP_REPORT_EVAL,
    DP_REPORT_CHECKPOINT,
    DP_REPORT_FINISHED,
    DP_REPORT_PROBE,
} dp_report_kind;

// Experts of a job may have moved to other ranks after a step.
struct dp_placement_report {
    bool looked, applied; // neither: nothing is told
    uint32_t layers, moved_layers;
    uint64_t moved, bytes;
    double skew_before, skew_after;
};

struct dp_step_report {
    struct dp_step_record row; // job is filled in by the core
    int64_t busy_ns, bubble_ns, exchange_ns, grad_sync_ns, optimizer_ns;
    struct dp_rank_comm comm[DP_RANK_COMM_COUNT];
    uint32_t peak_chunks;
    uint64_t peak_bytes;
    struct dp_rank_memory_parts memory; // zeros = not known
    struct dp_rank_load load;
    struct dp_placement_report rebalance;
    // By kinds of action and peers; rank, step and its time are filled in by the core. NULL = not
    // told.
    const struct dp_straggler_sample *times;
    const void *trace; // packed measured actions, NULL = none
    size_t trace_length;
};

struct dp_report {
    uint64_t session;
    struct dp_fence fence;
    uint32_t rank;
    dp_report_kind kind;
    union {
        struct dp_rank_ready ready;
        struct dp_usage usage;
        struct dp_step_report step;
        struct {
            uint64_t step;
            double loss;
        } eval;
        struct {
            uint64_t step, request;
            const char *path;
            const char *error; // "" when it stands
        } checkpoint;
        struct dp_rank_finished finished;
        const struct dp_straggler_probe *probe; // its rank is filled in by the core
    };
};

struct dp_slot {
    const char *node;
    uint32_t slot;
};

struct dp_plan_done {
    uint64_t job;     // number
    const void *plan; // packed dp.v1.Plan
    size_t plan_length;
    const struct dp_slot *ranks; // where each rank goes
    size_t ranks_count;
};

struct dp_plan_failed {
    uint64_t job;
    struct dp_error error;
};

// What answers the question of an ADAPT effect.
struct dp_adapt_done {
    uint64_t job, request;                         // as in the effect
    const char *kind;                              // "move-layers"; "ignore" changes nothing
    const char *action;                            // in words
    int64_t predicted_step_ns, predicted_pause_ns; // 0 = not known
    uint64_t again_steps; // it may pay later: ask again after so many, 0 = not
    const char *without;  // begin anew without these nodes, "a,b"; NULL = not
    bool rebalances;      // experts are placed by their loads, after what else is changed
    const void *document; // dp.decision/1
    size_t document_length;
    const void *plan; // packed dp.v1.Plan; NULL = nothing is to be changed
    size_t plan_length;
    const struct dp_slot *ranks; // where each rank goes
    size_t ranks_count;
};

struct dp_adapt_failed {
    uint64_t job, request;
    struct dp_error error; // recovery: why what is left is not enough
};

struct dp_stored {
    uint64_t token;
    struct dp_error error; // status DP_OK = on disk
};

struct dp_load_job {
    const struct dp_job_record *job;
    const struct dp_rank_record *ranks;
    size_t ranks_count;
};

struct dp_load_ended {
    const uint64_t *numbers; // rising
    size_t count;
    uint64_t highest;    // job number ever used
    uint64_t last_event; // id of the newest event there ever was
};

struct dp_core_event {
    dp_core_event_kind kind;
    int64_t now_ns;  // monotonic clock of this process
    int64_t wall_ns; // for people
    // Since the event before, the owner itself stood still for so long: a silence that it could not
    // have heard is nobody's fault.
    int64_t stalled_ns;
    // NULL, or who asked for this and what it is about: a row of the audit, in the same transaction
    // as what changes. Time, outcome and what the object was and became are filled in here.
    const struct dp_audit_record *audit;
    uint64_t audit_reply; // names the answer whose error is the outcome
    union {
        struct dp_load_ended ended;
        const struct dp_node_record *load_node;
        const struct dp_decision_record *load_decision;
        struct dp_load_job load_job;
        struct dp_submit submit;
        struct dp_ask ask;
        struct dp_job_update update;
        struct dp_reassign reassign;
        struct dp_hold hold;
        const struct dp_quota_record *load_quota;
        struct dp_node_ask node_ask;
        struct dp_quota_ask quota_ask;
        struct dp_hello hello;
        struct dp_levels levels;
        struct dp_inventory_event inventory;
        struct dp_report report;
        uint64_t session; // SESSION_CLOSED
        struct dp_plan_done plan_done;
        struct dp_plan_failed plan_failed;
        struct dp_adapt_done adapt_done;
        struct dp_adapt_failed adapt_failed;
        struct dp_stored stored;
    };
};

// Effects.

typedef enum dp_order_kind {
    DP_ORDER_NONE,
    DP_ORDER_WELCOME,
    DP_ORDER_REFUSE,  // end the session with `status` and `text`
    DP_ORDER_ACK,     // of a heartbeat
    DP_ORDER_PREPARE, // `job` is in the core with all that belongs into it
    DP_ORDER_START,
    DP_ORDER_STOP, // text = reason
    DP_ORDER_RELEASE,
    DP_ORDER_CHECKPOINT,
    DP_ORDER_PROBE,     // `request`
    DP_ORDER_REBALANCE, // `request`: experts are placed by their loads now
    DP_ORDER_PAUSE,
    DP_ORDER_SETTLE, // `request` = the step, `grad_norm`
} dp_order_kind;

const char *dp_order_kind_text(dp_order_kind kind);

typedef enum dp_effect_kind {
    DP_EFFECT_SEND,  // `order` to `session`
    DP_EFFECT_REPLY, // `reply`: status DP_OK with `job`, else with `text`
    DP_EFFECT_PLAN,  // plan `job` on `nodes`; answer with PLAN_DONE or PLAN_FAILED
    DP_EFFECT_ADAPT, // what `adapt` asks; answer with ADAPT_DONE or ADAPT_FAILED
    DP_EFFECT_JOB,   // `job` changed: show it
    DP_EFFECT_STEP,  // `step` of `job` is complete: show it
    DP_EFFECT_LOG,   // `text`, with `event` as its name
} dp_effect_kind;

struct dp_free_slots {
    const struct dp_node_record *node; // borrowed from the core
    uint32_t slots_free;
    const uint32_t *slots; // their numbers, rising
};

// Another layout is wanted for a job, within the slots of `nodes`: those that are free and its own.
// Either because ranks are lost: the others hold `step` and serve what they have. Or a rank, link
// or stage is slow, or a node is to be left, or there is room again for a job that has lost ranks:
// the best answer, which may be none.
struct dp_adapt_ask {
    uint64_t request; // names the question
    bool recovers;
    const uint32_t *lost; // rising: ranks whose state cannot be had
    size_t lost_count;
    uint64_t step;
    bool grows; // it has fewer ranks than it once had: more are weighed
    const struct dp_straggler_verdict *verdicts; // that stand
    size_t verdicts_count;
    const char *away;   // node to leave, "" = none
    const char *answer; // as in dp_reassign
    const char *cause;  // in words
    int64_t step_ns;    // measured, as are the next: 0 = not known
    int64_t switch_ns;  // how long a job stood still while its ranks changed
    int64_t restart_ns; // and while it began anew from a checkpoint that it wrote, or would
    uint64_t steps_left;
    double trust; // in predictions, 0 to 1
};

// Pointers are valid until the core's next step.
struct dp_effect {
    dp_effect_kind kind;
    dp_order_kind order;
    uint64_t session, reply, job;
    const char *node;
    struct dp_fence fence;
    uint32_t grace_ms;     // STOP
    bool checkpoint;       // STOP: after one more checkpoint
    uint32_t heartbeat_ms; // WELCOME, ACK: asked of the node from now on
    uint64_t request;      // CHECKPOINT order, ACK: its number; reply to a checkpoint: its step
    dp_status status;
    bool warning; // LOG
    const char *event;
    const char *text; // reply to a checkpoint that was made: its path
    double grad_norm; // SETTLE
    struct dp_step_record step;
    const struct dp_free_slots *nodes;
    size_t nodes_count;
    const struct dp_adapt_ask *adapt;
};

// What one step wants done: first the transaction, then the items in order. Zero-initialised is
// empty; a step clears it.
struct dp_effects {
    struct dp_arena arena;
    uint64_t store_token; // 0 = nothing to store; else answer with STORED
    struct dp_record *records;
    size_t records_count, records_capacity;
    struct dp_effect *items;
    size_t count, capacity;
    int64_t timer_ns; // TICK is wanted when the monotonic clock reads this; 0 = no timer
};
void dp_effects_deinit(struct dp_effects *effects);

struct dp_core *dp_core_new(const struct dp_core_config *config);
void dp_core_free(struct dp_core *core);
void dp_core_step(struct dp_core *core, const struct dp_core_event *event,
                  struct dp_effects *effects);

// What the core knows, to show it. Borrowed until the next step.

// A job that has not ended, or ended a moment ago, or whose ranks may still hold slots of a silent
// node; NULL = look into the store.
const struct dp_job_record *dp_core_job(const struct dp_core *core, uint64_t number,
                                        const struct dp_rank_record **ret_ranks, size_t *ret_count);

// Where ranks of an older epoch serve what they hold.
struct dp_state_source {
    uint32_t rank; // in that epoch
    char address[DP_ADDRESS_MAX];
};
// What the orders of one assignment say. A job has more than one while its ranks change.
struct dp_assignment_view {
    const struct dp_job_record *job;
    const struct dp_buf *plan;
    const struct dp_rank_record *ranks;
    size_t ranks_count;
    uint64_t token; // by which its ranks know each other
    bool beside;    // ranks of an older epoch stay: these take their state from them
    const struct dp_state_source *sources;
    size_t sources_count;
    uint64_t state_step, state_token;
};
// False when the core has no such assignment.
bool dp_core_assignment(const struct dp_core *core, const struct dp_fence *fence,
                        struct dp_assignment_view *ret_view);
// Whether all of that is on disk: what is not yet may be taken back by a crash, so nobody is told.
bool dp_core_job_stored(const struct dp_core *core, uint64_t number);
// Jobs in the core, oldest first.
size_t dp_core_jobs_count(const struct dp_core *core);
void dp_core_job_rows(const struct dp_core *core, const struct dp_job_record **ret_rows);
// The job with this id that the core holds, else 0.
uint64_t dp_core_job_find(const struct dp_core *core, const char *id);

// The newest verdicts about the job's ranks, newest first, at most `max`; borrowed until the next
// step.
size_t dp_core_verdicts(const struct dp_core *core, uint64_t number,
                        const struct dp_verdict_record **ret_verdicts, size_t max);
// What scores its ranks; NULL = it has no steps yet. Borrowed until the next step.
const struct dp_straggler *dp_core_straggler(const struct dp_core *core, uint64_t number);

typedef enum dp_node_state {
    DP_NODE_REGISTERING, // connected, not calibrated yet
    DP_NODE_READY,
    DP_NODE_LATE, // not heard of: no new work
    // Silent past its lease: its jobs are LOST, its used slots stay used until its ranks have
    // surely ended (its fence) or it returns.
    DP_NODE_LOST,
    // Somebody said so. What is LOST is that before all else.
    DP_NODE_DRAINING, // no new work; it still has ranks
    DP_NODE_DRAINED,
    DP_NODE_DOWN,
    DP_NODE_QUARANTINED,
    DP_NODE_STATE_COUNT
} dp_node_state;
const char *dp_node_state_text(dp_node_state state);

struct dp_node_view {
    const struct dp_node_record *node;
    dp_node_state state;
    const char *reason; // "" = none
    uint32_t slots_used;
    uint64_t session; // 0 = not connected
};
size_t dp_core_nodes_count(const struct dp_core *core);
void dp_core_node_at(const struct dp_core *core, size_t index, struct dp_node_view *ret_view);
// All at once, which is one pass: room for dp_core_nodes_count.
void dp_core_node_views(const struct dp_core *core, struct dp_node_view *ret_views);
// And their rows alone, which does not count slots.
void dp_core_node_rows(const struct dp_core *core, const struct dp_node_record **ret_rows);
// Rises with everything that plans and the queue rest on: nodes, what is decided about them, states
// of jobs. As far as it is on disk; not used again after a restart.
uint64_t dp_core_index(const struct dp_core *core);
// Where a job stands in the queue. Held ones are passed by everybody: they have no position, and
// are not ahead of anybody.
struct dp_queue_place {
    uint64_t job;
    uint32_t position; // 1 = goes first; 0 = held
    uint32_t jobs_ahead;
    uint64_t ranks_ahead; // that those want
    // Nanoseconds until it starts: the queue is played forward by its own rules while those that
    // run take their steps as fast as now. -1 = not known: it hangs on a job whose end is not
    // known, which is taken not to end.
    int64_t start_in_ns;
};
// Jobs that wait, in the order in which they go; *ret_places has room for dp_core_queue_length.
size_t dp_core_queue_length(const struct dp_core *core);
size_t dp_core_queue_places(struct dp_core *core, int64_t now_ns,
                            struct dp_queue_place *ret_places);
// Quotas by user, with the ranks in use; at most `max`.
size_t dp_core_quotas(struct dp_core *core, const struct dp_quota_record **ret_rows,
                      uint32_t *ret_used, size_t max);
// Of the node with this name; 0 = not connected, or not known.
uint64_t dp_core_node_session_of(const struct dp_core *core, const char *node);
dp_node_state dp_core_node_state_of(const struct dp_core *core, const char *node);
// Ids of the jobs that have slots of this node; room for dp_core_node_jobs_max.
size_t dp_core_node_jobs_max(const struct dp_core *core, const char *node);
size_t dp_core_node_jobs(const struct dp_core *core, const char *node, const char **ret_ids);
// What becomes of one of them, for people, right after somebody drained the node or set it down.
void dp_core_node_job_fate(const struct dp_core *core, const char *node, const char *job,
                           char *ret_text, size_t size);
