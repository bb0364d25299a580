// Shared by the core's own files.
#pragma once

#include "dp/check.h"
#include "dp/core.h"

#define DP_CORE_FOREIGN_NUMBER_MAX (UINT64_C(1) << 52) // of jobs that are not this controller's
#define DP_CORE_STEP_WINDOW 1024 // steps that ranks may be apart before the slow one is ignored

// How well a failure explains the end of a job: a better one replaces the one before, an equal one
// does not, so the first of its kind stays.
typedef enum dp_cause {
    DP_CAUSE_NONE,
    DP_CAUSE_PEER_LOST, // a rank missed another one: a consequence of something
    DP_CAUSE_TIMEOUT,   // nothing was heard, and nothing is known
    DP_CAUSE_NODE_LOST,
    DP_CAUSE_RANK, // a rank's own error, exit status or signal
    DP_CAUSE_NODE, // its parent died, or the node could not start it
    DP_CAUSE_NOT_FINITE,
} dp_cause;

// A node that holds ranks of a job.
struct core_member {
    char node[DP_NAME_MAX];
    uint32_t ranks;
    dp_order_kind told;
    int64_t told_ns;
    bool reached; // the node may know of the assignment
    bool lost;    // the node was silent past its lease when it had ranks of the job
};

struct core_checkpoint {
    uint64_t request; // rising
    uint64_t reply;
    int64_t deadline_ns;
    struct core_checkpoint *next;
};

// What the ranks said of steps that not all of them have completed.
struct core_window {
    struct dp_step_record *rows; // ring of DP_CORE_STEP_WINDOW, by step; NULL before the first
};

struct core_job {
    struct dp_job_record row;
    struct dp_rank_record *ranks;
    size_t ranks_count;
    struct core_member *members;
    size_t members_count;
    bool planning;
    char why[DP_TEXT_MAX];       // STOPPING: the message of its end, "" = the row's
    bool changed, ranks_changed; // in this step: to be stored
    bool show;                   // to be shown once it is stored
    uint64_t dirty_token, stored_token;
    int64_t retry_ns;    // STORE failed: when to try again, 0 = it did not
    int64_t deadline_ns; // of this state, 0 = none
    int64_t stop_ns;     // STOPPING: when to say so to the nodes
    int64_t save_ns;     // when running totals are stored next
    struct core_window window;
    struct core_checkpoint *checkpoints;
    // The text of the first rank that was ready: all must have the same.
    uint64_t corpus_hash;
    uint32_t corpus_rank;
    struct core_job *next; // submitted later
};

// An assignment that a node reports and that is not one of the core's jobs.
struct core_foreign {
    struct dp_fence fence;
    uint32_t live; // ranks that have not ended
    dp_order_kind told;
};

struct core_node {
    struct dp_node_record row;
    dp_node_state state;
    char reason[DP_TEXT_MAX];
    char calibration_error[DP_TEXT_MAX]; // "" = none
    bool held;                           // it is measured: it gets no new work
    bool fenced;                         // LOST for so long that its ranks have ended
    uint64_t session;
    int64_t seen_ns, connected_ns;
    struct core_foreign *foreign;
    size_t foreign_count;
    struct core_node *next;
};

// An answer that waits for a transaction.
struct core_reply {
    uint64_t reply, token, job;
    dp_status status; // not DP_OK: an error with `text`
    uint64_t step;    // of a checkpoint that was made; its path is `text`
    char *text;       // NULL = the job itself
    struct core_reply *next;
};

struct dp_core {
    struct dp_core_config config;
    struct core_job *jobs; // oldest first
    struct core_node *nodes;
    struct core_reply *replies;
    uint64_t *ended; // numbers, rising
    size_t ended_count, ended_capacity;
    uint64_t next_number, next_token, next_request;
    // Of the step at hand.
    struct dp_effects *effects;
    int64_t now_ns, wall_ns;
};

#define FOR_EACH_JOB(core, job)                                                                    \
    for (struct core_job *job = (core)->jobs; job != NULL; job = job->next)
#define FOR_EACH_NODE(core, node)                                                                  \
    for (struct core_node *node = (core)->nodes; node != NULL; node = node->next)

// effects.c
struct dp_effect *dp_core_effect(struct dp_core *core, dp_effect_kind kind);
// Adds a row to the step's transaction; the row must live until the next step.
void dp_core_store(struct dp_core *core, dp_record_kind kind, const void *row);
// The token of the step's transaction, which then exists even when it is empty.
uint64_t dp_core_token(struct dp_core *core);
void *dp_core_keep(struct dp_core *core, const void *bytes, size_t length);
const char *dp_core_keep_text(struct dp_core *core, const char *text);
// A line in the log and in the table of events; job and node may be NULL.
void dp_core_note(struct dp_core *core, const struct core_job *job, const struct core_node *node,
                  bool warning, const char *kind, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
void dp_core_reply_error(struct dp_core *core, uint64_t reply, dp_status status, const char *format,
                         ...) __attribute__((format(printf, 4, 5)));
void dp_core_reply_job(struct dp_core *core, uint64_t reply, const struct core_job *job);
// The same once everything that is known of the job now is on disk.
void dp_core_reply_stored(struct dp_core *core, uint64_t reply, struct core_job *job);
// An error that speaks of the job's state, and the path of a checkpoint: after that, too.
void dp_core_refuse_stored(struct dp_core *core, uint64_t reply, struct core_job *job,
                           dp_status status, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void dp_core_reply_checkpoint(struct dp_core *core, uint64_t reply, struct core_job *job,
                              uint64_t step, const char *path);
void dp_core_release_replies(struct dp_core *core, const struct dp_stored *stored);
void dp_core_send(struct dp_core *core, const struct core_node *node, dp_order_kind order,
                  const struct dp_fence *fence, const char *text);

// jobs.c
// Ranks of a node that cannot run any more, whatever became of them.
void dp_core_job_end_ranks(struct core_job *job, const char *node);
// Whether every rank of the job (node NULL) or of one node is over.
bool dp_core_job_over(const struct core_job *job, const char *node);
struct core_job *dp_core_job_by_id(struct dp_core *core, const char *id);
struct core_job *dp_core_job_number(const struct dp_core *core, uint64_t number);
struct core_job *dp_core_job_add(struct dp_core *core);
void dp_core_job_remove(struct dp_core *core, struct core_job *job);
struct dp_fence dp_core_job_fence(const struct core_job *job);
bool dp_core_job_clean(const struct core_job *job);
void dp_core_job_changed(struct core_job *job);
// Moves the job by the table; checks that the move is in it.
void dp_core_job_move(struct dp_core *core, struct core_job *job, dp_job_state state,
                      const char *reason, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
// Groups the ranks' nodes into members.
void dp_core_job_set_members(struct core_job *job);
struct core_member *dp_core_job_member(struct core_job *job, const char *node);
// Sends each node what it should be told and was not.
void dp_core_job_drive(struct dp_core *core, struct core_job *job);
// Looks at the ranks and moves on: all ready, all running, all ended.
void dp_core_job_advance(struct dp_core *core, struct core_job *job);
void dp_core_job_deadline(struct dp_core *core, struct core_job *job);
void dp_core_job_cancel(struct dp_core *core, const struct dp_ask *ask);
void dp_core_job_checkpoint(struct dp_core *core, const struct dp_ask *ask);
void dp_core_job_checkpoint_done(struct dp_core *core, struct core_job *job, uint64_t request,
                                 uint64_t step, const char *path);
// Training goes on with the older ones.
void dp_core_job_checkpoint_failed(struct dp_core *core, struct core_job *job, uint64_t request,
                                   uint64_t step, const char *why);

// silence.c
// The node is LOST: what its ranks do is not known.
void dp_core_job_lose_node(struct dp_core *core, struct core_job *job,
                           const struct core_node *node);
// Its ranks have surely ended.
void dp_core_job_fence_node(struct dp_core *core, struct core_job *job,
                            const struct core_node *node);
// LOST: names the silent nodes and what they hold; "" when there are none.
void dp_core_job_describe_lost(struct dp_core *core, const struct core_job *job, char *ret_text,
                               size_t size);
// Goes on when the silent nodes are back with their ranks.
void dp_core_job_return(struct dp_core *core, struct core_job *job);
// STOPPING: appends to the message what is waited for.
void dp_core_job_explain_wait(struct core_job *job, const char *what);

// causes.c
// The job fails, or ends for a better reason than known so far.
void dp_core_job_blame(struct dp_core *core, struct core_job *job, dp_cause cause,
                       const char *reason, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
// "KILL" of SIGKILL; static.
const char *dp_core_signal_name(int signal_number);
void dp_core_blame_rank(struct dp_core *core, struct core_job *job,
                        const struct dp_rank_record *rank);
// Ends as `outcome` when all ranks have ended.
void dp_core_job_stop(struct dp_core *core, struct core_job *job, dp_job_state outcome);

// queue.c
void dp_core_submit(struct dp_core *core, const struct dp_submit *submit);
void dp_core_plan_done(struct dp_core *core, const struct dp_plan_done *done);
void dp_core_plan_failed(struct dp_core *core, const struct dp_plan_failed *failed);
void dp_core_schedule(struct dp_core *core);

// nodes.c
struct core_node *dp_core_node_find(const struct dp_core *core, const char *name);
struct core_node *dp_core_node_session(struct dp_core *core, uint64_t session);
uint32_t dp_core_node_slots_used(const struct dp_core *core, const struct core_node *node);
// Those that one job has of a node.
uint32_t dp_core_job_slots(const struct core_job *job, const char *node);
void dp_core_hello(struct dp_core *core, const struct dp_hello *hello);
void dp_core_inventory(struct dp_core *core, const struct dp_inventory_event *inventory);
void dp_core_session_closed(struct dp_core *core, uint64_t session);
void dp_core_hold(struct dp_core *core, const struct dp_hold *hold);
void dp_core_node_seen(struct dp_core *core, struct core_node *node);
void dp_core_nodes_deadline(struct dp_core *core);
// When a node that is still being calibrated is no longer waited for.
int64_t dp_core_node_calibrated_ns(const struct dp_core *core, const struct core_node *node);
int64_t dp_core_node_late_ns(const struct dp_core *core, const struct core_node *node);
int64_t dp_core_node_lost_ns(const struct dp_core *core, const struct core_node *node);
// When its ranks have surely ended, if it stays silent.
int64_t dp_core_node_fence_ns(const struct dp_core *core, const struct core_node *node);
int64_t dp_core_node_lease_ms(const struct dp_core *core, const struct core_node *node);

// levels.c
void dp_core_heartbeat(struct dp_core *core, const struct dp_levels *levels);
void dp_core_level(struct dp_core *core, const struct dp_levels *levels);
// The levels that come with a hello: what they lack is lost.
void dp_core_hello_levels(struct dp_core *core, struct core_node *node,
                          const struct dp_levels *levels);

// reports.c
void dp_core_report(struct dp_core *core, const struct dp_report *report);
void dp_core_rank_ready(struct dp_core *core, struct core_job *job, struct dp_rank_record *rank,
                        const struct dp_rank_ready *ready);
void dp_core_rank_finished(struct dp_core *core, struct core_job *job, struct dp_rank_record *rank,
                           const struct dp_rank_finished *finished);

// load.c
void dp_core_load_ended(struct dp_core *core, const struct dp_load_ended *ended);
void dp_core_load_node(struct dp_core *core, const struct dp_node_record *node);
void dp_core_load_job(struct dp_core *core, const struct dp_load_job *load);
bool dp_core_has_ended(const struct dp_core *core, uint64_t number);
void dp_core_add_ended(struct dp_core *core, uint64_t number);
// "job-17" to 17; 0 = not such an id.
uint64_t dp_core_number_of(const char *id);
