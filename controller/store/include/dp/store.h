// The controller's memory on disk: one SQLite database (WAL, synchronous FULL) in a state directory
// that one process at a time may use.
//
// Writing. The store owns one writer thread. dp_store_submit copies a transaction into its queue
// and returns; the writer commits what has gathered as one group, in order; completions wait until
// the owner, woken by the descriptor, calls the pump. A transaction that was reported stored
// survives kill -9 and loss of power. One that fails (disk full) changes nothing, is reported, and
// is never applied after a later one; what it had of steps, traces and events, which are only ever
// added to, is kept in memory (within bounds) and written when there is room again.
//
// Reading happens on the owner's thread through a second connection, in short transactions; it sees
// what was committed, not what waits in the queue.
//
// Threads: everything here is called from one thread, the owner's.
#pragma once

#include "dp/error.h"
#include "dp/record.h"

#define DP_STORE_FILE "controller.db"
#define DP_STORE_LOCK "lock"

struct dp_store;

struct dp_store_options {
    const char *directory; // made when missing
    int64_t pages_max;     // limit of the database's size in pages of 4 KiB; 0 = none
};

// Locks the directory, makes or checks the database, and brings an older schema up to date (a copy
// of the file, DIR/controller.db.backup-v<N>, is made before).
// DP_CONFLICT: another process has the directory (the message has its pid), or the database was
// written by a newer version. DP_INVALID: the file is damaged or not ours; it is left as it is.
dp_status dp_store_open(const struct dp_store_options *options, struct dp_store **ret_store,
                        struct dp_error *err);
// Commits what is queued, then closes. Completions not pumped are lost. Accepts NULL.
void dp_store_close(struct dp_store *store);

// Readable when the pump has something to do. Owned by the store.
int dp_store_fd(const struct dp_store *store);
// Queues one transaction; the rows are copied. token 0 = no completion wanted.
//
// A job's row is written only when the state on disk reaches the new one by the table of moves
// (else DP_CONFLICT). A step's row is merged: a known loss stays known, the longest time is kept.
// Of traces the newest DP_TRACE_STEPS_MAX steps of a job are kept. Events get their id here.
void dp_store_submit(struct dp_store *store, uint64_t token, const struct dp_record *records,
                     size_t count);
// Transactions queued and not yet committed.
size_t dp_store_queued(struct dp_store *store);
// err->status is DP_OK when the transaction is on disk.
typedef void dp_store_done(void *context, uint64_t token, const struct dp_error *err);
// Calls `done` for each finished transaction, in the order of their submission; never blocks.
void dp_store_pump(struct dp_store *store, dp_store_done *done, void *context);

// What the writer has done, for whoever watches this process.
enum { DP_STORE_BUCKETS = 7 };
extern const double dp_store_bucket_s[DP_STORE_BUCKETS - 1]; // the last one is without limit
struct dp_store_figures {
    uint64_t groups;                   // commits, of one or more transactions
    uint64_t transactions, failed;     // of them, and those that were not stored
    double seconds;                    // spent in commits
    uint64_t bucket[DP_STORE_BUCKETS]; // commits by their time
    uint64_t forgotten;                // jobs that are no longer kept
    uint64_t retain_failed;            // attempts to take them away
    size_t queued;                     // now
};
void dp_store_figures(struct dp_store *store, struct dp_store_figures *ret_figures);

// Of jobs that have ended, which ones are kept.
struct dp_store_retention {
    uint64_t jobs_max;      // the newest so many; 0 = any number
    int64_t before_ns;      // those that ended before this (wall clock) are not; 0 = none
    int64_t never_since_ns; // those that ended since this are kept whatever else is said
};
// Takes away the rows of jobs that are not kept, in small transactions between those of others, on
// the writer's thread; their numbers stay known as ended. Call it again from time to time: an
// attempt that fails (a full disk) is counted and made again then.
void dp_store_retain(struct dp_store *store, const struct dp_store_retention *retention);

// Writes a copy of the database to `path`, which must not exist, some pages between two commits;
// the pump tells `token` when it is whole, as of that moment, or why not; whoever keeps it brings
// it to disk. DP_BUSY while another one is being made.
dp_status dp_store_backup(struct dp_store *store, uint64_t token, const char *path,
                          struct dp_error *err);
// Puts the database in file `from` (a backup, or a copy made before an upgrade) into `directory`.
// What was there is kept: ret_kept gets its new path, "" when there was nothing. DP_CONFLICT: a
// process has the directory, or the file is of a newer version; DP_INVALID: it is damaged or not
// ours; DP_NOT_FOUND: there is no such file or directory. Nothing is changed then.
dp_status dp_store_restore(const char *directory, const char *from, char *ret_kept, size_t size,
                           struct dp_error *err);

// Reads. Arrays are the caller's: dp_*_record_deinit each where it exists, then free().

typedef enum dp_store_jobs {
    DP_STORE_JOBS_ALL,
    DP_STORE_JOBS_ACTIVE, // not ended
} dp_store_jobs;

// Newest first, at most `limit` (0 = all), of `user` ("" = anybody's). The newest step's values are
// filled in; job file and plan only with `blobs`.
dp_status dp_store_load_jobs(struct dp_store *store, dp_store_jobs which, const char *user,
                             bool blobs, uint32_t limit, struct dp_job_record **ret_jobs,
                             size_t *ret_count, struct dp_error *err);
// By id, by name (the newest of that name), or by a prefix of an id or name of at least four
// characters that fits one job alone; DP_NOT_FOUND, or DP_CONFLICT when several fit.
dp_status dp_store_find_job(struct dp_store *store, const char *key, struct dp_job_record *ret_job,
                            struct dp_error *err);
// The job submitted with this request id; *ret_number 0 = none.
dp_status dp_store_find_request(struct dp_store *store, const char *request_id,
                                uint64_t *ret_number, struct dp_error *err);
// What the change of this kind ("UpdateJob") was made to that this request id stands for; "" =
// none.
dp_status dp_store_find_change(struct dp_store *store, const char *verb, const char *request_id,
                               char ret_object[DP_NAME_MAX], struct dp_error *err);
// Numbers of the jobs that have ended, rising, and the highest number ever used.
dp_status dp_store_ended_jobs(struct dp_store *store, uint64_t **ret_numbers, size_t *ret_count,
                              uint64_t *ret_highest, struct dp_error *err);
// How many jobs are in each state.
dp_status dp_store_count_jobs(struct dp_store *store, uint64_t ret_counts[DP_STATE_COUNT],
                              struct dp_error *err);
// By rank, rising.
dp_status dp_store_load_ranks(struct dp_store *store, uint64_t job,
                              struct dp_rank_record **ret_ranks, size_t *ret_count,
                              struct dp_error *err);
// Steps after `after`, rising; with `stride` > 1 only every stride-th (and the last one); at most
// `limit`, 0 = all.
dp_status dp_store_load_steps(struct dp_store *store, uint64_t job, uint64_t after, uint64_t stride,
                              uint32_t limit, struct dp_step_record **ret_steps, size_t *ret_count,
                              struct dp_error *err);
// Of the newest steps, whole ones, as many as have at most bytes_max of spans together. By step,
// then rank.
dp_status dp_store_load_traces(struct dp_store *store, uint64_t job, size_t bytes_max,
                               struct dp_trace_record **ret_traces, size_t *ret_count,
                               struct dp_error *err);
dp_status dp_store_load_nodes(struct dp_store *store, struct dp_node_record **ret_nodes,
                              size_t *ret_count, struct dp_error *err);
// By name, rising; all of them, or the one of that name (NULL = all). Without `blobs` their text
// stays empty.
dp_status dp_store_load_clusters(struct dp_store *store, const char *name, bool blobs,
                                 struct dp_cluster_record **ret_clusters, size_t *ret_count,
                                 struct dp_error *err);
// Events with an id over `after`, rising; job "" = all; at most `limit`.
dp_status dp_store_load_events(struct dp_store *store, const char *job, uint64_t after,
                               uint32_t limit, struct dp_event_record **ret_events,
                               size_t *ret_count, struct dp_error *err);
// The same, but the newest `limit`.
dp_status dp_store_load_last_events(struct dp_store *store, const char *job, uint64_t after,
                                    uint32_t limit, struct dp_event_record **ret_events,
                                    size_t *ret_count, struct dp_error *err);

// Changes that people asked for, with an id over `after`, rising; "" = any object, anybody.
struct dp_store_audit_filter {
    const char *object, *user;
    int64_t since_ns; // wall clock
    uint64_t after;
    uint32_t limit; // 0 = all
};
dp_status dp_store_load_audit(struct dp_store *store, const struct dp_store_audit_filter *filter,
                              struct dp_audit_record **ret_entries, size_t *ret_count,
                              struct dp_error *err);
// Jobs that ended since then (wall clock), the newest end first, without job file and plan; user
// "" = anybody's.
dp_status dp_store_load_history(struct dp_store *store, const char *user, int64_t since_ns,
                                uint32_t limit, struct dp_job_record **ret_jobs, size_t *ret_count,
                                struct dp_error *err);

// What is known of a node, newest first; node "" = of all nodes, source "" = of both. At most
// `limit`, 0 = all.
dp_status dp_store_load_profiles(struct dp_store *store, const char *node, const char *source,
                                 uint32_t limit, struct dp_profile_record **ret_profiles,
                                 size_t *ret_count, struct dp_error *err);
// *ret_lesson's document stays empty when there is none.
dp_status dp_store_load_lesson(struct dp_store *store, uint64_t job,
                               struct dp_lesson_record *ret_lesson, struct dp_error *err);

// Those of a job by number, rising; the newest `limit`, 0 = all.
dp_status dp_store_load_decisions(struct dp_store *store, uint64_t job, uint32_t limit,
                                  struct dp_decision_record **ret_decisions, size_t *ret_count,
                                  struct dp_error *err);
// What a controller goes on from: the newest of each job that has not ended, and of all that were
// measured the newest.
dp_status dp_store_load_last_decisions(struct dp_store *store,
                                       struct dp_decision_record **ret_decisions, size_t *ret_count,
                                       struct dp_error *err);

// What was found about a job's ranks, the newest first; at most `limit`, 0 = all.
dp_status dp_store_load_verdicts(struct dp_store *store, uint64_t job, uint32_t limit,
                                 struct dp_verdict_record **ret_verdicts, size_t *ret_count,
                                 struct dp_error *err);

// Attempts of a job that are over, rising.
dp_status dp_store_load_attempts(struct dp_store *store, uint64_t job,
                                 struct dp_attempt_record **ret_attempts, size_t *ret_count,
                                 struct dp_error *err);
// By user, rising.
dp_status dp_store_load_quotas(struct dp_store *store, struct dp_quota_record **ret_quotas,
                               size_t *ret_count, struct dp_error *err);
// The highest id that an event ever had.
dp_status dp_store_last_event(struct dp_store *store, uint64_t *ret_id, struct dp_error *err);

// What a report says of all steps of a job.
struct dp_step_summary {
    uint64_t steps, rows; // the newest step, how many there are
    double first_loss, last_loss; // the last: mean of the newest ten
    uint64_t first_loss_step;     // the step that the first is of
    uint64_t averaged;            // steps that the last is the mean of
    bool loss_known;
    int64_t mean_step_ns; // of all steps but the first there is; 0 = not known
};
dp_status dp_store_summarise_steps(struct dp_store *store, uint64_t job,
                                   struct dp_step_summary *ret_summary, struct dp_error *err);

// The schema that this program writes.
uint32_t dp_store_schema(void);

// A whole integrity check of the database in `directory`, which no process may be using; appends
// what was found, one line each. DP_INVALID when there is a problem.
dp_status dp_store_check(const char *directory, struct dp_buf *report, struct dp_error *err);
