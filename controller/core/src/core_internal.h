// Shared by the core's own files.
#pragma once

#include <stddef.h>

#include "dp/check.h"
#include "dp/core.h"
#include "dp/hash.h"

#define DP_CONTAINER(member_address, type, member)                                                 \
    ((type *)((const char *)(member_address)-offsetof(type, member)))

#define DP_CORE_FOREIGN_NUMBER_MAX (UINT64_C(1) << 52) // of jobs that are not this controller's
#define DP_CORE_FOREIGN_ATTEMPTS_MAX 1000              // of a job, beyond what its database knows
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
    uint32_t first, ranks; // its ranks stand together in the job's by_member
    struct core_node *at;  // NULL = the core does not know such a node
    uint32_t used;         // slots that are counted there
    dp_order_kind told;
    int64_t told_ns;
    bool reached; // the node may know of the assignment
    bool lost;    // the node was silent past its lease when it had ranks of the job
    bool blamed;  // its failure is a suspicion of the node, once
};

struct core_checkpoint {
    uint64_t request; // rising
    uint64_t reply;
    int64_t deadline_ns;
    struct core_checkpoint *next;
};

// When a job or a node has to be looked at without an event: one entry of the core's heap.
struct core_timer {
    int64_t due_ns;
    size_t at; // place in the heap + 1; 0 = not in it
    bool is_node;
};

// What the ranks said of steps that not all of them have completed.
struct core_window {
    struct dp_step_record *rows; // ring of DP_CORE_STEP_WINDOW, by step; NULL before the first
};

// One more assignment of a job, beside the one in force.
struct core_side {
    uint32_t attempt, epoch;
    struct dp_buf plan;
    struct dp_rank_record *ranks;
    size_t ranks_count;
    struct core_member *members;
    size_t members_count;
    bool serves; // ranks in force take their state from its ranks: they are not told to end yet
    bool stored; // that they are not in force is on disk: those that end give their slots back
    struct core_side *next;
};

// How far a change of ranks has come. The job is REASSIGNING in all of them but the first.
typedef enum core_phase {
    CORE_STEADY,
    CORE_PREPARING, // the new ranks start; the old ones train
    CORE_PAUSING,   // the old ranks are told to hold
    CORE_GATHERING, // ranks are lost: those that are left hold one after the other
    CORE_SETTLING,  // those that hold come to the same step, and what they reported comes in
    CORE_ASKING,    // ranks are lost: what is left is planned anew
    CORE_READYING,  // and its ranks start
    CORE_SWITCHING, // the new ranks are in force: they take what they need, and run
    CORE_FALLING,   // nothing of it may go on: the job ends, or begins anew
} core_phase;

// What is known of a failure while it is not clear yet that the job ends by it.
struct core_failure {
    dp_cause cause; // DP_CAUSE_NONE: a change that was wanted, nothing failed
    char reason[DP_NAME_MAX];
    char message[DP_TEXT_MAX];
};

#define CORE_VERDICTS_SHOWN 16 // of a job, the newest

struct core_place {
    char node[DP_NAME_MAX];
    uint32_t slot;
};

struct core_straggler {
    struct dp_straggler *detector; // of this assignment; NULL = no step yet
    uint32_t attempt, epoch;
    struct core_place *places; // [ranks], where those of this assignment run
    size_t places_count;
    double words;                   // events that may be told now
    int64_t words_ns;               // when that was known
    struct dp_verdict_record *news; // ring of CORE_VERDICTS_SHOWN; NULL = none yet
    uint64_t told;                  // ever
};

// One that another has followed before this was on disk.
struct core_decision {
    struct dp_decision_record row;
    uint64_t token; // of the newest transaction with it; 0 = none
    struct core_decision *next;
};

// An attempt that is over, until that is on disk.
struct core_past {
    struct dp_attempt_record row;
    uint64_t token; // of the newest transaction with it; 0 = none
    struct core_past *next;
};

#define CORE_RECENT_STEPS 32
#define CORE_NOW_STEPS 8 // what a step takes now

struct core_reassign {
    core_phase phase;
    struct core_side *next; // the new assignment; NULL when there is none, or it is in force
    uint64_t step;          // that the sources hold
    int64_t since_ns;       // of this phase
    int64_t paused_ns;      // since when no rank trains
    struct core_failure failure;
    struct dp_state_source *sources; // of the assignment in force
    size_t sources_count;
    uint64_t recovered_step; // that the last recovery went on from
    uint32_t recoveries;     // from there, one after the other
    // Questions and decisions.
    uint64_t request;        // of the question that is open, 0 = none
    int64_t answer_ns;       // when it is no longer waited for
    char cause[DP_TEXT_MAX]; // it is about this
    uint32_t asks;           // for a layout, since ranks were last lost
    uint32_t tries;          // of new ranks, since the old ones hold
    size_t lost_count;       // ranks that the recovery at hand counts as lost
    int64_t cool_ns;         // no straggler is answered before
    unsigned cool_doublings; // of that, for changes that were abandoned one after the other
    int64_t grow_ns;         // when more ranks are asked for; 0 = not
    int64_t grow_again_ns;   // not before, and each time twice as late
    unsigned grow_doublings;
    bool grows;                         // the question that is open does
    char away[DP_NAME_MAX];             // node that is to be left, "" = none
    dp_adapt_policy policy;             // of the question that is open
    struct dp_decision_record decision; // the newest; number 0 = none yet
    bool decision_changed;              // in this step: to be stored
    uint64_t decision_token;            // of the newest transaction with it
    struct core_decision *decisions;    // earlier ones that are not on disk as they ended
    uint64_t measured_from;             // the first step that counts for it
    uint64_t rebalance;                 // number of the order that is not answered; 0 = none
    int64_t rebalance_ns;               // when it is no longer waited for
    bool rebalances;                    // once the new ranks train
    uint64_t again_step; // from which what stands then is asked about once more; 0 = not
    int64_t recent_ns[CORE_RECENT_STEPS]; // times of the newest steps, by step
    uint64_t recent_first;                // step from which they are of this layout
};

struct core_job {
    struct dp_core *core;
    struct dp_job_record row; // number and request_id never change
    struct dp_rank_record *ranks;
    size_t ranks_count;
    struct core_member *members;
    size_t members_count;
    uint32_t *by_member; // numbers of the ranks, those of one member together
    uint32_t *by_name;   // of the members, by the names of their nodes
    bool planning;
    uint32_t attempt_seen;       // the newest one that a node has and the database knows nothing of
    char why[DP_TEXT_MAX];       // STOPPING: the message of its end, "" = the row's
    bool changed, ranks_changed; // in this step: to be stored
    bool show;                   // to be shown once it is stored
    bool recount;                // ranks may have given slots back
    bool gives_back;             // that it ends is on disk
    uint64_t dirty_token, stored_token;
    uint64_t ranks_token; // of the newest transaction with its ranks
    int64_t retry_ns;     // STORE failed: when to try again, 0 = it did not
    int64_t deadline_ns;  // of this state, 0 = none
    int64_t stop_ns;      // STOPPING: when to say so to the nodes
    int64_t save_ns;      // when running totals are stored next
    struct core_window window;
    struct core_checkpoint *checkpoints;
    struct core_reply *replies; // that wait for a transaction with the job
    // A rank that was found to lack something: looked at first, most often it still does.
    size_t lacks_phase, lacks_ok, lacks_step;
    // The text of the first rank that was ready: all must have the same.
    uint64_t corpus_hash;
    uint32_t corpus_rank;
    struct core_straggler straggler;
    struct core_reassign reassign;
    struct core_side *sides; // older assignments whose ranks end, or serve
    size_t sided;            // place in the core's list of jobs with sides + 1; 0 = not in it
    uint64_t base_step;      // of the assignment in force: its first step warms up
    // QUEUED
    struct core_job *ahead, *behind; // in the queue
    bool queued;
    bool fresh;                   // nothing was said to it yet
    bool offered_some, offer_all; // nodes for its plan: those close together, or all
    int64_t backoff_ns;           // not before; 0 = at once
    int64_t passed_ns;            // since when others start before it; 0 = none has
    bool made_way;                // others have for it, and may not be done with that
    char around[DP_NAME_MAX];     // a node that it does without when others have room, "" = none
    // STOPPING
    uint64_t way_for;     // number of the job that it makes way for; 0 = none
    bool stop_checkpoint; // its ranks write one more checkpoint
    bool stop_saved;      // and it has been heard of
    bool stop_wrote;      // it stands
    int64_t settle_ns;    // or is no longer waited for; 0 = not yet
    int64_t done_ns;      // RUNNING: since when all ranks have done their work; 0 = they have not
    int64_t assigned_ns;  // ASSIGNING: since when
    int64_t start_ns;     // from there until its ranks trained; 0 = not known
    int64_t write_ns;     // a checkpoint of its took, at most; 0 = not known
    int64_t words_ns;     // and since when their last reports are waited for
    bool words_heard;     // every node was heard of in the wait before
    bool loaded;          // an earlier controller may have given out more than this one knows of
    struct core_past *pasts;
    size_t touched; // place in the core's list + 1; 0 = not in it
    struct core_timer timer;
    struct core_job *before, *next;               // submitted earlier, later
    struct core_job *placed_before, *placed_next; // of those that have ranks
    UT_hash_handle by_number, by_request;
};

// An assignment that a node reports and that is not one of the core's jobs.
struct core_foreign {
    struct dp_fence fence;
    uint32_t live; // ranks that have not ended
    bool ours;     // of a job that is, or was, this controller's
    dp_order_kind told;
    int64_t told_ns;
};

// When a heartbeat was acknowledged: orders keep their order with what acknowledges.
#define CORE_ACKS_KEPT 32
struct core_ack {
    uint64_t sequence;
    int64_t sent_ns;
};

#define CORE_SUSPICIONS_MAX 3 // within suspect_ms: they quarantine the node

struct core_node {
    struct dp_core *core;
    struct dp_node_record row; // its name never changes
    size_t order;              // nodes that came before
    dp_node_state state;
    char reason[DP_TEXT_MAX];
    char calibration_error[DP_TEXT_MAX]; // "" = none
    bool held;                           // it is measured: it gets no new work
    bool fenced;                         // LOST for so long that its ranks have ended
    uint64_t session;
    uint32_t protocol; // of its agent: below 2, nothing can be prepared beside what runs
    int64_t seen_ns, connected_ns;
    int64_t hello_ns;                          // by its own clock, of the newest hello of this boot
    struct core_ack acks[CORE_ACKS_KEPT];      // of this session, by sequence
    int64_t arrived_ns;                        // orders of before have arrived
    bool heard;                                // since this controller started
    bool listed;                               // and has said what it runs
    uint32_t heartbeat_ms;                     // asked of it
    int64_t leave_ns;                          // when its jobs have to go; 0 = never
    int64_t suspected_ns[CORE_SUSPICIONS_MAX]; // the newest last
    uint32_t suspicions;                       // of them, within suspect_ms of the newest
    uint64_t admin_token; // of the transaction with what was decided; 0 = answered
    bool admin_unstored;
    struct core_foreign *foreign;
    size_t foreign_count;
    struct core_job **jobs; // that have ranks here
    size_t jobs_count, jobs_capacity;
    uint32_t used;  // slots of their ranks
    uint32_t sides; // assignments beside those in force that have ranks here
    struct core_timer timer;
    struct core_node *next;
    UT_hash_handle by_name, by_session;
};

// An answer that waits for a transaction with its job.
struct core_reply {
    uint64_t reply, token;
    dp_status status; // not DP_OK: an error with `text`
    uint64_t step;    // of a checkpoint that was made; its path is `text`
    char *text;       // NULL = the job itself
    struct core_reply *next;
};

// Which jobs a transaction has that is not answered yet.
struct core_transaction {
    uint64_t token;
    uint64_t *jobs; // numbers
    size_t count;
    UT_hash_handle hh;
};

// A row of the audit whose transaction is not answered, or has failed.
struct core_audit {
    struct dp_audit_record row;
    uint64_t token;          // of the newest transaction with it
    uint64_t job;            // that it brought in; 0 = none
    uint64_t reply, answers; // that waits for it, with the job that it is about
    bool unstored, failed;   // now; ever
    struct core_audit *next;
};

// What the index is once a transaction is on disk.
struct core_mark {
    uint64_t token, index;
};

struct core_quota {
    struct dp_quota_record row; // deleted: there is none, but on disk there may be
    uint32_t used;
    uint64_t token; // of the transaction that has it; 0 = answered
    bool unstored;
    UT_hash_handle by_user;
};

struct dp_core {
    struct dp_core_config config;
    struct core_job *queue, *queue_last; // QUEUED, the first to go first
    struct core_job *planned;            // of them; one at a time
    size_t fresh;                        // of them
    // What the newest pass over the queue came to.
    uint32_t last_told, last_free[2]; // by needs_profile
    bool last_closed;
    bool lacks_room; // somebody did, with lacks_priority at most
    int32_t lacks_priority;
    struct core_quota *quotas;
    struct core_reply *row_replies; // that wait for a transaction without jobs
    struct core_node *gone_nodes;   // forgotten; on disk they may still be
    uint64_t index, index_marked, index_told;
    bool index_behind;       // a transaction with a newer one has failed
    struct core_mark *marks; // of transactions that are not answered, the oldest first
    size_t marks_count, marks_capacity;
    int64_t started_ns;
    uint64_t rows_token;               // of the newest transaction with what was decided
    int64_t rows_retry_ns;             // it could not be stored: when to try again; 0 = it was
    struct core_job *jobs, *jobs_last; // oldest first
    struct core_job *placed;           // those that have ranks; many others may wait
    size_t jobs_count;
    struct core_job *jobs_by_number, *jobs_by_request;
    struct core_node *nodes, *nodes_last;
    size_t nodes_count;
    struct core_node *nodes_by_name, *nodes_by_session;
    bool homeless; // some job has had ranks on a node that was not known
    bool avoiding; // some job may stay off a node
    bool small;    // some job may have fewer ranks than it once had
    struct core_transaction *transactions;
    struct core_timer **timers; // a heap
    size_t timers_count, timers_capacity;
    uint64_t *ended; // numbers, rising
    size_t ended_count, ended_capacity;
    uint64_t next_number, next_token, next_request;
    struct core_job **sided; // jobs with more than one assignment
    size_t sided_count, sided_capacity;
    double trust;       // in predictions of what a change of ranks gains
    int64_t trust_ns;   // wall clock of what it rests on
    int64_t switch_ns;  // how long jobs stand still while ranks change, as measured; 0 = not known
    int64_t restart_ns; // and while they begin anew
    // Of the step at hand, and until the next one begins: jobs that something happened to.
    struct core_job **touched;
    size_t touched_count, touched_capacity;
    bool schedule; // whether jobs that wait may be judged in another way now
    struct dp_effects *effects;
    int64_t now_ns, wall_ns;
    struct dp_audit_record *audit; // of the event at hand, NULL = nobody asked for it
    uint64_t audit_reply, audit_number, audit_answers;
    struct core_audit *audits, **audits_last; // by token
    size_t audits_count, audits_failed;
    bool audits_unstored; // some are
};

#define FOR_EACH_JOB(core, job)                                                                    \
    for (struct core_job *job = (core)->jobs; job != NULL; job = job->next)
#define FOR_EACH_PLACED_JOB(core, job)                                                             \
    for (struct core_job *job = (core)->placed; job != NULL; job = job->placed_next)
#define FOR_EACH_NODE(core, node)                                                                  \
    for (struct core_node *node = (core)->nodes; node != NULL; node = node->next)
// None is removed meanwhile.
#define FOR_EACH_TOUCHED(core, job)                                                                \
    for (struct core_job **touched_ = (core)->touched, *job;                                       \
         touched_ < (core)->touched + (core)->touched_count; touched_++)                           \
        if ((job = *touched_) != NULL)

// index.c
// Of the maps: NULL = the core has none.
struct core_job *dp_core_job_number(const struct dp_core *core, uint64_t number);
struct core_job *dp_core_job_by_request(struct dp_core *core, const char *request_id);
// By whom it is asked for changes it: it is touched.
struct core_job *dp_core_job_by_id(struct dp_core *core, const char *id);
struct core_job *dp_core_job_add(struct dp_core *core, uint64_t number, const char *request_id);
// Out of every list and map.
void dp_core_job_unlink(struct core_job *job);
// At its end the step looks at the job: stores and shows what changed, sends orders, sets its
// timer. Whoever changes a job that did not come from dp_core_job_by_id calls this.
void dp_core_job_touch(struct core_job *job);
// Brings the list into the order of submission.
void dp_core_touched_sort(struct dp_core *core);
void dp_core_touched_clear(struct dp_core *core);
struct core_node *dp_core_node_find(const struct dp_core *core, const char *name);
struct core_node *dp_core_node_session(struct dp_core *core, uint64_t session);
// NULL when there are too many.
struct core_node *dp_core_node_add(struct dp_core *core, const char *name);
// 0 = not connected.
void dp_core_node_set_session(struct dp_core *core, struct core_node *node, uint64_t session);
void dp_core_node_touch_jobs(const struct core_node *node);
// Out of every list but that of those that are gone, which frees it once that is on disk.
void dp_core_node_remove(struct dp_core *core, struct core_node *node);
void dp_core_node_free(struct core_node *node);
// The queue is looked at again in this step.
void dp_core_reschedule(struct dp_core *core);
// due_ns 0 = none.
void dp_core_timer_set(struct dp_core *core, struct core_timer *timer, int64_t due_ns);
int64_t dp_core_timer_first(const struct dp_core *core);
// Those whose time has come: nodes first, then jobs, the oldest first. Valid for this step.
size_t dp_core_timers_late(struct dp_core *core, struct core_timer ***ret_late);

// members.c
// Groups the ranks' nodes into members.
void dp_core_job_set_members(struct core_job *job);
void dp_core_members_clear(struct core_job *job);
// A node that was not known when the members were set.
void dp_core_members_meet(struct core_job *job, struct core_node *node);
struct core_member *dp_core_job_member(struct core_job *job, const char *node);
// The member's i-th rank.
struct dp_rank_record *dp_core_member_rank(const struct core_job *job,
                                           const struct core_member *member, uint32_t i);
// Those that the job has of a node.
uint32_t dp_core_job_slots(const struct core_job *job, const char *node);
// Counts them again: the job ends or has ended, or ranks of it have since.
void dp_core_job_recount(struct core_job *job);
// Ranks of a job that ends give their slots back one by one: others need not wait for the last one,
// which may be where nobody can ask. But for the end to be on disk: a controller that starts would
// give the slots to the job again.
static inline bool dp_core_rank_has_slot(const struct core_job *job,
                                         const struct dp_rank_record *rank)
{
    return !job->gives_back || !dp_rank_record_over(rank);
}

// queue.c
void dp_core_submit(struct dp_core *core, const struct dp_submit *submit);
void dp_core_plan_done(struct dp_core *core, const struct dp_plan_done *done);
void dp_core_plan_failed(struct dp_core *core, const struct dp_plan_failed *failed);
// By priority, then submission.
bool dp_core_queue_before(const struct core_job *job, const struct core_job *other);
void dp_core_queue_add(struct dp_core *core, struct core_job *job);
void dp_core_queue_remove(struct dp_core *core, struct core_job *job);
// Its priority is another.
void dp_core_queue_move(struct dp_core *core, struct core_job *job);
// It is told anew what it waits for.
void dp_core_queue_freshen(struct dp_core *core, struct core_job *job);

// queue_ask.c
void dp_core_job_update(struct dp_core *core, const struct dp_job_update *update);

// queue_pass.c
#define CORE_DEPTH_MAX 256 // jobs that lack room behind which nobody is looked for who does not
// What there is for one kind of job: those that need calibrated nodes, or the others.
struct core_supply {
    uint32_t nodes, free, total;     // nodes that the job can use now
    uint32_t nodes_here, slots_here; // and those that are only late, or soon calibrated
    uint32_t nodes_known;
    const struct core_node *waits;  // being calibrated, and still waited for
    const struct core_node *failed; // could not be calibrated so far
    uint32_t waits_slots;
};
typedef enum core_verdict {
    CORE_CAN_PLAN,
    CORE_LACKS_ROOM,
    CORE_NEVER_FITS, // with the nodes that there are
} core_verdict;
// `job` NULL: for any that stays off no node.
void dp_core_supply_measure(const struct dp_core *core, bool needs_profile,
                            const struct core_job *job, struct core_supply *supply);
// With `free` slots of it.
core_verdict dp_core_supply_judge(const struct core_supply *supply, uint32_t free,
                                  const struct core_job *job, bool *ret_calibrates);
// Whether nobody may go before the first job that lacks room, which others passed since then.
bool dp_core_queue_closes(const struct dp_core *core, int64_t passed_ns, int64_t now_ns);
bool dp_core_node_open(bool needs_profile, const struct core_node *node);
void dp_core_schedule(struct dp_core *core);
// Whether those who have come in since need no pass: they are behind others that lack room, and
// nothing else has changed.
bool dp_core_schedule_fresh(struct dp_core *core);
bool dp_core_node_usable(const struct core_job *job, const struct core_node *node);
uint32_t dp_core_node_slots_free(const struct dp_core *core, const struct core_node *node);

// queue_nodes.c
// Sets taken[slot] for each slot that some rank has.
void dp_core_node_mark_slots(const struct dp_core *core, const struct core_node *node, bool *taken);
// The nodes that the job's plan may use, in the step's arena.
size_t dp_core_queue_choose(struct dp_core *core, struct core_job *job,
                            const struct core_node ***ret_nodes);

// quota.c
void dp_core_load_quota(struct dp_core *core, const struct dp_quota_record *row);
void dp_core_quota_ask(struct dp_core *core, const struct dp_quota_ask *ask);
void dp_core_quotas_free(struct dp_core *core);
// Counts what is in use; then the others below are right.
void dp_core_quotas_count(struct dp_core *core);
void dp_core_quota_take(struct dp_core *core, const struct core_job *job);
uint32_t dp_core_quota_left(struct dp_core *core, const struct core_job *job);
// As if the job's user had so many ranks more, until they are counted again.
void dp_core_quota_suppose(struct dp_core *core, const struct core_job *job, int64_t ranks);
// *ret_text says why not.
bool dp_core_quota_allows(struct dp_core *core, const struct core_job *job, char *ret_text,
                          size_t size);
void dp_core_quotas_stored(struct dp_core *core, const struct dp_stored *stored);
void dp_core_quotas_store(struct dp_core *core);

// preempt.c
// Has jobs of lower priority make way for this one, which finds `slots_free`. Whether slots come
// free for it by that.
bool dp_core_preempt(struct dp_core *core, struct core_job *wanting, uint32_t slots_free);
// Whether this one would make way for the other, if it had ranks.
bool dp_core_job_yields(const struct core_job *job, const struct core_job *wanting);
// Slots that others give up for this job and have not left yet.
uint32_t dp_core_preempt_coming(const struct dp_core *core, struct core_job *wanting);

// remains.c: ranks of earlier epochs and attempts
// Whether none is left where somebody can be asked (CANCELLED: anywhere), so that the job may end.
bool dp_core_job_alone(const struct core_job *job);
// "ranks of earlier epochs still end on n1, n2"; "" when there are none.
void dp_core_job_describe_remains(const struct core_job *job, char *ret_text, size_t size);
// Some of the job with this id ended, as its node says.
void dp_core_remains_changed(struct dp_core *core, const char *id);
// A node has said what it runs, or cannot be asked any more.
void dp_core_remains_look(struct dp_core *core);

// retry.c
// STOPPING: the job will begin again.
bool dp_core_job_goes_on(const struct core_job *job);
// STOPPING to QUEUED, with the next attempt.
void dp_core_job_begin_again(struct dp_core *core, struct core_job *job);
// It ends: adds to the message what kept it from beginning again.
void dp_core_job_explain_end(struct core_job *job);
// Keeps how the attempt went; the reason and message are the row's.
void dp_core_job_archive(struct dp_core *core, struct core_job *job);
// Into the step's transaction what is not on disk. And a transaction of the job is: at `stored`.
void dp_core_pasts_store(struct dp_core *core, struct core_job *job);
void dp_core_pasts_stored(struct core_job *job, uint64_t stored);
// Whether the attempt can take no step any more, whatever runs where nobody can be asked.
bool dp_core_attempt_dead(const struct core_job *job);
// Stops the attempt after a checkpoint, to begin again when there is room.
void dp_core_job_make_way(struct dp_core *core, struct core_job *job, const char *reason,
                          const char *why);
void dp_core_job_resume_wait(struct dp_core *core, struct core_job *job);

// node_admin.c
void dp_core_node_ask(struct dp_core *core, const struct dp_node_ask *ask);
// The state that somebody's decision gives the node; false = none.
bool dp_core_node_admin_state(const struct dp_core *core, const struct core_node *node,
                              dp_node_state *ret_state, char ret_reason[DP_TEXT_MAX]);
// "n7 draining (operator: fan)".
void dp_core_node_explain(const struct core_node *node, char *ret_text, size_t size);
// Its jobs go, when the time has come.
void dp_core_node_leave(struct dp_core *core, struct core_node *node);
void dp_core_node_load_admin(struct dp_core *core, struct core_node *node);
void dp_core_admins_stored(struct dp_core *core, const struct dp_stored *stored);
void dp_core_admins_store(struct dp_core *core);
// It was forgotten, and is there again: its row stays.
void dp_core_admin_returns(struct dp_core *core, struct core_node *node);
// Something speaks against the node: CORE_SUSPICIONS_MAX times within suspect_ms quarantine it, as
// far as the cluster can spare it.
void dp_core_node_suspect(struct dp_core *core, struct core_node *node, const char *why);
// When that was for the last time; 0 = never.
int64_t dp_core_node_suspected_ns(const struct core_node *node);
// It can do no work: the same at once.
void dp_core_node_unfit(struct dp_core *core, struct core_node *node, const char *why);

// effects.c
// The answer's text is `name`; given once the step's transaction is on disk.
void dp_core_reply_row(struct dp_core *core, uint64_t reply, const char *name);
void dp_core_release_rows(struct dp_core *core, const struct dp_stored *stored);
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
void dp_core_release_replies(struct core_job *job, const struct dp_stored *stored);
void dp_core_send(struct dp_core *core, const struct core_node *node, dp_order_kind order,
                  const struct dp_fence *fence, const char *text);

// jobs.c
// Ranks of a node that cannot run any more, whatever became of them.
void dp_core_job_end_ranks(struct core_job *job, const char *node);
// Whether every rank of the job (node NULL) or of one node is over.
bool dp_core_job_over(const struct core_job *job, const char *node);
void dp_core_job_remove(struct core_job *job);
struct dp_fence dp_core_job_fence(const struct core_job *job);
bool dp_core_job_clean(const struct core_job *job);
// Nothing of it is on disk: when that fails, it was never submitted.
bool dp_core_job_unheard(const struct core_job *job);
void dp_core_job_changed(struct core_job *job);
// Moves the job by the table; checks that the move is in it.
void dp_core_job_move(struct dp_core *core, struct core_job *job, dp_job_state state,
                      const char *reason, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
// Sends each node what it should be told and was not.
void dp_core_job_drive(struct dp_core *core, struct core_job *job);
// Ends it now when all ranks have done their work and only others were waited for. Whether it did.
bool dp_core_job_complete(struct dp_core *core, struct core_job *job);
// Looks at the ranks and moves on: all ready, all running, all ended.
void dp_core_job_advance(struct dp_core *core, struct core_job *job);
void dp_core_job_deadline(struct dp_core *core, struct core_job *job);
void dp_core_job_cancel(struct dp_core *core, const struct dp_ask *ask);
// There is no such job, or it has ended and was let go of.
void dp_core_refuse_absent(struct dp_core *core, uint64_t reply, const char *job);
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
// The node failed the job: something speaks against it, and the next attempt goes around it, if it
// can.
void dp_core_job_suspect(struct dp_core *core, struct core_job *job, const char *node,
                         const char *format, ...) __attribute__((format(printf, 4, 5)));
// The reason when a node fails the job: it could not start its ranks, or keep them; static.
const char *dp_core_node_failure(const struct core_job *job);
// "KILL" of SIGKILL; static.
const char *dp_core_signal_name(int signal_number);
void dp_core_blame_rank(struct dp_core *core, struct core_job *job,
                        const struct dp_rank_record *rank);
// Ends as `outcome` when all ranks have ended.
void dp_core_job_stop(struct dp_core *core, struct core_job *job, dp_job_state outcome);

// nodes.c
uint32_t dp_core_node_slots_used(const struct dp_core *core, const struct core_node *node);
// Whether ranks of an assignment are left there that the core gave out and no longer holds, as
// after a restart: nobody knows which slots they have. Not those of the job with the id `but`.
bool dp_core_node_has_leftover(const struct core_node *node, const char *but);
void dp_core_hello(struct dp_core *core, const struct dp_hello *hello);
void dp_core_inventory(struct dp_core *core, const struct dp_inventory_event *inventory);
void dp_core_session_closed(struct dp_core *core, uint64_t session);
void dp_core_hold(struct dp_core *core, const struct dp_hold *hold);
void dp_core_node_seen(struct dp_core *core, struct core_node *node);
// Its state follows from what is known of it.
void dp_core_node_refresh(struct dp_core *core, struct core_node *node);
// Those whose state hangs on the slots in use.
void dp_core_nodes_refresh(struct dp_core *core);
// Jobs with ranks there; what is done to one may take it off the node.
void dp_core_node_each_job(struct dp_core *core, struct core_node *node,
                           void (*act)(struct dp_core *core, struct core_job *job,
                                       const struct core_node *node));
uint32_t dp_core_node_heartbeat_ms(const struct dp_core *core);
// Its timer rang, or its times were moved.
void dp_core_node_deadline(struct dp_core *core, struct core_node *node);
// The earlier of two times, where 0 is none.
static inline void dp_core_sooner(int64_t *due_ns, int64_t at_ns)
{
    if (at_ns != 0 && (*due_ns == 0 || at_ns < *due_ns)) {
        *due_ns = at_ns;
    }
}
// When a node that is still being calibrated is no longer waited for.
int64_t dp_core_node_calibrated_ns(const struct dp_core *core, const struct core_node *node);
int64_t dp_core_node_late_ns(const struct dp_core *core, const struct core_node *node);
int64_t dp_core_node_lost_ns(const struct dp_core *core, const struct core_node *node);
// When its ranks have surely ended, if it stays silent.
int64_t dp_core_node_fence_ns(const struct dp_core *core, const struct core_node *node);
int64_t dp_core_node_lease_ms(const struct dp_core *core, const struct core_node *node);

// audit.c: around an event that somebody asked for
void dp_core_audit_begin(struct dp_core *core, const struct dp_core_event *event);
void dp_core_audit_refused(struct dp_core *core, uint64_t reply, dp_status status,
                           const char *text);
void dp_core_audit_end(struct dp_core *core, const struct dp_core_event *event);
void dp_core_audits_stored(struct dp_core *core, const struct dp_stored *stored);
// Those that could not be stored go with the step's transaction.
void dp_core_audits_store(struct dp_core *core);
void dp_core_audits_free(struct dp_core *core);
// Whether its row is not on disk yet, though a transaction with it was tried.
bool dp_core_audit_lacks(const struct dp_core *core, uint64_t reply);
// Whether a change that was asked for under this id is in a row that is not on disk yet.
bool dp_core_audit_has(const struct dp_core *core, const char *request_id, const char *object);
// The job is refused after all, since it could not be stored.
void dp_core_audits_refuse(struct dp_core *core, uint64_t job, const struct dp_error *error);

// levels.c
void dp_core_heartbeat(struct dp_core *core, const struct dp_levels *levels);
// What was told to the node before then has reached it, or never will.
int64_t dp_core_node_arrived_ns(const struct dp_core *core, const struct core_node *node);
void dp_core_level(struct dp_core *core, const struct dp_levels *levels);
// The levels that come with a hello: what they lack is lost.
void dp_core_hello_levels(struct dp_core *core, struct core_node *node,
                          const struct dp_levels *levels);

bool dp_core_is_listed(const struct dp_levels *levels, const struct dp_fence *fence);
// What the node was told in an earlier session shows in what it has.
dp_order_kind dp_core_told_before(const struct dp_assignment_level *level);
// Whether the node has ranks of the assignment: then its error is a passing one.
bool dp_core_has_live(const struct dp_assignment_level *level);

// reports.c
// Steps that some ranks are silent about are complete with what is known of them.
void dp_core_flush_steps(struct dp_core *core, struct core_job *job, uint64_t step);
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

#include "core_changes.h"
