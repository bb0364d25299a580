// The queue, the writer thread and its groups.
#include "store_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/cond.h"

static void list_push(struct dp_transaction_list *list, struct dp_transaction *transaction)
{
    transaction->next = NULL;
    if (list->head == NULL) {
        list->tail = &list->head;
    }
    *list->tail = transaction;
    list->tail = &transaction->next;
    list->count++;
}

static struct dp_transaction *list_pop(struct dp_transaction_list *list)
{
    struct dp_transaction *first = list->head;
    if (first != NULL) {
        list->head = first->next;
        list->count--;
    }
    return first;
}

static void transaction_free(struct dp_transaction *transaction)
{
    for (size_t i = 0; i < transaction->count; i++) {
        struct dp_record *record = &transaction->records[i];
        dp_table_free(&dp_tables[record->kind], (void *)record->row);
    }
    free(transaction->records);
    free(transaction->error);
    free(transaction);
}

void dp_store_submit(struct dp_store *store, uint64_t token, const struct dp_record *records,
                     size_t count)
{
    struct dp_transaction *transaction = dp_new(struct dp_transaction);
    transaction->token = token;
    transaction->count = count;
    transaction->records = dp_new_array(struct dp_record, count);
    for (size_t i = 0; i < count; i++) {
        transaction->records[i].kind = records[i].kind;
        transaction->records[i].row = dp_table_copy(&dp_tables[records[i].kind], records[i].row);
    }
    pthread_mutex_lock(&store->mutex);
    list_push(&store->queued, transaction);
    pthread_cond_signal(&store->wake);
    pthread_mutex_unlock(&store->mutex);
}

size_t dp_store_queued(struct dp_store *store)
{
    pthread_mutex_lock(&store->mutex);
    size_t count = store->queued.count + store->in_commit;
    pthread_mutex_unlock(&store->mutex);
    return count;
}

const double dp_store_bucket_s[DP_STORE_BUCKETS - 1] = {0.001, 0.005, 0.02, 0.1, 0.5, 2};

void dp_store_figures(struct dp_store *store, struct dp_store_figures *ret_figures)
{
    size_t queued = dp_store_queued(store);
    pthread_mutex_lock(&store->mutex);
    *ret_figures = store->figures;
    pthread_mutex_unlock(&store->mutex);
    ret_figures->queued = queued;
}

// With the mutex held.
static void note_commit(struct dp_store *store, const struct dp_transaction *head, double seconds)
{
    struct dp_store_figures *figures = &store->figures;
    size_t bucket = 0;
    while (bucket < DP_STORE_BUCKETS - 1 && seconds > dp_store_bucket_s[bucket]) {
        bucket++;
    }
    figures->groups++;
    figures->bucket[bucket]++;
    figures->seconds += seconds;
    for (; head != NULL; head = head->next) {
        figures->transactions++;
        figures->failed += head->error != NULL;
    }
}

// Bits of the states that may become `state`.
static int64_t states_before(dp_job_state state)
{
    int64_t mask = 0;
    for (unsigned from = 0; from < DP_STATE_COUNT; from++) {
        mask |= (int64_t)dp_job_state_reaches((dp_job_state)from, state) << from;
    }
    return mask;
}

static int prune(struct dp_store *store, const struct dp_record *record)
{
    sqlite3_stmt *statement = store->prune_events;
    if (record->kind == DP_RECORD_TRACE) {
        const struct dp_trace_record *trace = record->row;
        statement = store->prune_traces;
        sqlite3_bind_int64(statement, 1, (int64_t)trace->job);
    } else if (sqlite3_last_insert_rowid(store->writer) % 1000 != 0) {
        return SQLITE_OK;
    }
    int code = sqlite3_step(statement);
    sqlite3_reset(statement);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

static dp_status write_record(struct dp_store *store, const struct dp_record *record,
                              struct dp_error *err)
{
    const struct dp_table *table = &dp_tables[record->kind];
    sqlite3_stmt *statement = store->upserts[record->kind];
    dp_table_bind(table, statement, record->row);
    const struct dp_job_record *job = record->row;
    if (record->kind == DP_RECORD_JOB) {
        sqlite3_bind_int64(statement, (int)table->columns_count + 1, states_before(job->state));
    }
    if (record->kind == DP_RECORD_EVENT || record->kind == DP_RECORD_AUDIT ||
        record->kind == DP_RECORD_VERDICT) {
        sqlite3_bind_null(statement, 1);
    }
    int code = sqlite3_step(statement);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    if (code != SQLITE_DONE) {
        return dp_store_fail(err, store->writer, code, table->name);
    }
    if (record->kind == DP_RECORD_JOB && sqlite3_changes(store->writer) == 0) {
        return dp_fail(err, DP_CONFLICT, "%s cannot become %s from the state on disk", job->id,
                       dp_job_state_text(job->state));
    }
    if (record->kind == DP_RECORD_TRACE || record->kind == DP_RECORD_EVENT) {
        code = prune(store, record);
    }
    return code == SQLITE_DONE || code == SQLITE_OK
               ? DP_OK
               : dp_store_fail(err, store->writer, code, table->name);
}

static dp_status write_transaction(struct dp_store *store, struct dp_transaction *transaction,
                                   struct dp_error *err)
{
    dp_status status = dp_store_execute(store->writer, "SAVEPOINT one", err);
    for (size_t i = 0; status == DP_OK && i < transaction->count; i++) {
        status = write_record(store, &transaction->records[i], err);
    }
    if (status == DP_OK) {
        return dp_store_execute(store->writer, "RELEASE one", err);
    }
    sqlite3_exec(store->writer, "ROLLBACK TO one; RELEASE one", NULL, NULL, NULL);
    return status;
}

static void set_error(struct dp_transaction *transaction, const struct dp_error *error)
{
    if (transaction->error == NULL) {
        transaction->error = dp_memdup(error, sizeof(*error));
    }
}

// Writes from `head` on (only that one when `alone`) and commits what could be written. Returns the
// first that could not, with *ret_error, or NULL. One that the tables refuse is settled with that.
static struct dp_transaction *commit_run(struct dp_store *store, struct dp_transaction *head,
                                         bool alone, struct dp_error *ret_error)
{
    struct dp_transaction *t = head;
    if (dp_store_execute(store->writer, "BEGIN IMMEDIATE", ret_error) != DP_OK) {
        return head;
    }
    while (t != NULL) {
        struct dp_error own = {0};
        dp_status status = write_transaction(store, t, &own);
        // A full disk can end everything that was begun.
        if (sqlite3_get_autocommit(store->writer) != 0) {
            *ret_error = own;
            status = DP_IO;
            break;
        }
        if (status != DP_OK) {
            *ret_error = own;
            if (status != DP_CONFLICT) {
                break;
            }
            set_error(t, &own);
        }
        t = alone ? NULL : t->next;
    }
    struct dp_error error = {0};
    if (dp_store_execute(store->writer, "COMMIT", &error) == DP_OK) {
        return t;
    }
    sqlite3_exec(store->writer, "ROLLBACK", NULL, NULL, NULL);
    if (t == NULL || ret_error->status == DP_OK || ret_error->status == DP_CONFLICT) {
        *ret_error = error;
    }
    // Nothing of it is on disk, so nothing is settled.
    for (struct dp_transaction *before = head; before != t; before = before->next) {
        free(before->error);
        before->error = NULL;
        if (alone) {
            break;
        }
    }
    return head;
}

// In order: one that fails is tried once more without the company of others that filled the disk,
// and what comes after it waits for that.
static void commit(struct dp_store *store, struct dp_transaction *head)
{
    bool alone = head->next == NULL;
    while (head != NULL) {
        struct dp_error error = {0};
        struct dp_transaction *failed = commit_run(store, head, alone, &error);
        struct dp_transaction *next = alone ? head->next : NULL;
        if (failed != NULL) {
            bool progress = failed != head;
            if (alone || commit_run(store, failed, true, &error) == failed) {
                set_error(failed, &error);
            }
            alone = alone || !progress;
            next = failed->next;
        }
        head = next;
    }
}

static bool is_added_only(dp_record_kind kind)
{
    return kind == DP_RECORD_STEP || kind == DP_RECORD_TRACE || kind == DP_RECORD_EVENT ||
           kind == DP_RECORD_VERDICT;
}

// What a failed transaction had of steps, traces and events goes into a new one.
static void keep_left(struct dp_store *store, struct dp_transaction *failed)
{
    if (failed->error == NULL || failed->error->status == DP_CONFLICT ||
        store->left.count >= DP_STORE_LEFT_MAX) {
        return;
    }
    struct dp_transaction *left = dp_new(struct dp_transaction);
    left->records = dp_new_array(struct dp_record, failed->count);
    size_t stays = 0;
    for (size_t i = 0; i < failed->count; i++) {
        bool moves = is_added_only(failed->records[i].kind);
        *(moves ? &left->records[left->count++] : &failed->records[stays++]) = failed->records[i];
    }
    failed->count = stays;
    if (left->count == 0) {
        transaction_free(left);
        return;
    }
    list_push(&store->left, left);
}

static void write_left(struct dp_store *store)
{
    struct dp_transaction_list some = {0};
    while (store->left.head != NULL && some.count < DP_STORE_GROUP_MAX) {
        list_push(&some, list_pop(&store->left));
    }
    if (some.head == NULL) {
        return;
    }
    struct dp_error error = {0};
    const struct dp_transaction *failed = commit_run(store, some.head, false, &error);
    while (some.head != failed) {
        transaction_free(list_pop(&some));
    }
    if (failed != NULL) {
        // Back to where they were: in front.
        *some.tail = store->left.head;
        store->left.tail = store->left.head == NULL ? some.tail : store->left.tail;
        store->left.head = some.head;
        store->left.count += some.count;
    }
}

static void wait_for_work(struct dp_store *store)
{
    if (store->left.head == NULL) {
        pthread_cond_wait(&store->wake, &store->mutex);
        return;
    }
    dp_cond_wait(&store->wake, &store->mutex,
                 dp_clock_monotonic_ns() + DP_STORE_LEFT_RETRY_S * DP_NS_PER_S);
    pthread_mutex_unlock(&store->mutex);
    write_left(store);
    pthread_mutex_lock(&store->mutex);
}

void dp_store_retain(struct dp_store *store, const struct dp_store_retention *retention)
{
    pthread_mutex_lock(&store->mutex);
    store->retention = *retention;
    store->retain_due = true;
    pthread_cond_signal(&store->wake);
    pthread_mutex_unlock(&store->mutex);
}

dp_status dp_store_backup(struct dp_store *store, uint64_t token, const char *path,
                          struct dp_error *err)
{
    pthread_mutex_lock(&store->mutex);
    bool free_now = store->copy == NULL;
    if (free_now) {
        store->copy = dp_store_copy_new(token, path);
        pthread_cond_signal(&store->wake);
    }
    pthread_mutex_unlock(&store->mutex);
    return free_now ? DP_OK
                    : dp_fail(err, DP_BUSY, "another backup is being made: wait until it is done");
}

// With the mutex held.
static void finish(struct dp_store *store, struct dp_transaction *transaction)
{
    list_push(&store->finished, transaction);
    uint64_t one = 1;
    DP_CHECK(write(store->event_fd, &one, sizeof(one)) == sizeof(one));
}

static void copy_some(struct dp_store *store)
{
    bool done = false;
    struct dp_error error = {0};
    pthread_mutex_unlock(&store->mutex);
    dp_status status = dp_store_copy_some(store->copy, store->writer, &done, &error);
    pthread_mutex_lock(&store->mutex);
    if (status == DP_OK && !done) {
        return;
    }
    struct dp_transaction *answer = dp_new(struct dp_transaction);
    answer->token = dp_store_copy_token(store->copy);
    if (status != DP_OK) {
        set_error(answer, &error);
    }
    dp_store_copy_free(store->copy);
    store->copy = NULL;
    finish(store, answer);
}

// What fails now is tried again when the owner asks for the next time.
static void retain_some(struct dp_store *store)
{
    struct dp_store_retention retention = store->retention;
    struct dp_error error = {0};
    uint64_t jobs = 0;
    bool more = false;
    pthread_mutex_unlock(&store->mutex);
    dp_status status = dp_store_retain_some(store->writer, &retention, &jobs, &more, &error);
    pthread_mutex_lock(&store->mutex);
    store->figures.forgotten += jobs;
    store->figures.retain_failed += status != DP_OK;
    store->retain_due = status == DP_OK && more;
}

// With the mutex held, which is let go of meanwhile: a small part of what has time. Whether there
// was any.
static bool keep_house(struct dp_store *store)
{
    bool any = store->copy != NULL || store->retain_due;
    if (store->copy != NULL) {
        copy_some(store);
    }
    if (store->retain_due) {
        retain_some(store);
    }
    return any;
}

static struct dp_transaction *take_group(struct dp_store *store)
{
    struct dp_transaction_list group = {0};
    bool kept = keep_house(store);
    while (store->queued.head == NULL && !store->stopping) {
        kept = kept && keep_house(store);
        if (!kept) {
            wait_for_work(store);
            kept = true;
        }
    }
    while (store->queued.head != NULL && group.count < DP_STORE_GROUP_MAX) {
        list_push(&group, list_pop(&store->queued));
    }
    store->in_commit = group.count;
    return group.head;
}

static void *write_loop(void *argument)
{
    struct dp_store *store = argument;
    pthread_mutex_lock(&store->mutex);
    struct dp_transaction *head;
    while ((head = take_group(store)) != NULL) {
        pthread_mutex_unlock(&store->mutex);
        int64_t begin_ns = dp_clock_monotonic_ns();
        commit(store, head);
        double seconds = (double)(dp_clock_monotonic_ns() - begin_ns) / 1e9;
        bool room = true;
        for (struct dp_transaction *t = head; t != NULL; t = t->next) {
            room = room && (t->error == NULL || t->error->status == DP_CONFLICT);
            keep_left(store, t);
        }
        if (room) {
            write_left(store);
        }
        pthread_mutex_lock(&store->mutex);
        note_commit(store, head, seconds);
        store->in_commit = 0;
        while (head != NULL) {
            struct dp_transaction *next = head->next;
            finish(store, head);
            head = next;
        }
    }
    pthread_mutex_unlock(&store->mutex);
    write_left(store);
    return NULL;
}

int dp_store_fd(const struct dp_store *store)
{
    return store->event_fd;
}

void dp_store_pump(struct dp_store *store, dp_store_done *done, void *context)
{
    uint64_t count;
    if (read(store->event_fd, &count, sizeof(count)) < 0) {
        DP_CHECK(errno == EAGAIN);
    }
    static const struct dp_error ok;
    struct dp_transaction *transaction;
    for (;;) {
        pthread_mutex_lock(&store->mutex);
        transaction = list_pop(&store->finished);
        pthread_mutex_unlock(&store->mutex);
        if (transaction == NULL) {
            return;
        }
        if (transaction->token != 0) {
            done(context, transaction->token,
                 transaction->error != NULL ? transaction->error : &ok);
        }
        transaction_free(transaction);
    }
}

static dp_status prepare(struct dp_store *store, const char *sql, sqlite3_stmt **ret_statement,
                         struct dp_error *err)
{
    int code =
        sqlite3_prepare_v3(store->writer, sql, -1, SQLITE_PREPARE_PERSISTENT, ret_statement, NULL);
    return code == SQLITE_OK ? DP_OK : dp_store_fail(err, store->writer, code, sql);
}

static dp_status prepare_all(struct dp_store *store, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf sql = {0};
    for (size_t i = 0; i < DP_RECORD_KIND_COUNT; i++) {
        dp_buf_clear(&sql);
        dp_table_upsert_sql(&dp_tables[i], &sql);
        dp_status status = prepare(store, sql.bytes, &store->upserts[i], err);
        if (status != DP_OK) {
            return status;
        }
    }
    dp_buf_clear(&sql);
    dp_buf_printf(&sql,
                  "DELETE FROM traces WHERE job = ?1 AND step < (SELECT min(step) FROM (SELECT "
                  "DISTINCT step FROM traces WHERE job = ?1 ORDER BY step DESC LIMIT %d))",
                  DP_TRACE_STEPS_MAX);
    dp_status status = prepare(store, sql.bytes, &store->prune_traces, err);
    if (status != DP_OK) {
        return status;
    }
    dp_buf_clear(&sql);
    dp_buf_printf(&sql, "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - %d",
                  DP_STORE_EVENTS_KEPT);
    return prepare(store, sql.bytes, &store->prune_events, err);
}

static dp_status open_writer(struct dp_store *store, const char *path, int64_t pages_max,
                             struct dp_error *err)
{
    dp_status status = dp_store_connect(path, SQLITE_OPEN_READWRITE, &store->writer, err);
    if (status == DP_OK) {
        status = dp_store_execute(store->writer,
                                  "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; "
                                  "PRAGMA journal_size_limit = 67108864",
                                  err);
    }
    if (status == DP_OK) {
        status = dp_store_migrate(store->writer, path, dp_migrations, dp_migrations_count, err);
    }
    if (status == DP_OK && pages_max > 0) {
        DP_AUTO_FREE char *limit =
            dp_asprintf("PRAGMA max_page_count = %lld", (long long)pages_max);
        status = dp_store_execute(store->writer, limit, err);
    }
    return status == DP_OK ? prepare_all(store, err) : status;
}

static dp_status open_reader(struct dp_store *store, const char *path, struct dp_error *err)
{
    dp_status status = dp_store_connect(path, SQLITE_OPEN_READWRITE, &store->reader, err);
    return status == DP_OK ? dp_store_execute(store->reader, "PRAGMA query_only = 1", err) : status;
}

// Signals are the owner's.
static dp_status start_thread(struct dp_store *store, struct dp_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&store->thread, NULL, write_loop, store);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code == 0 ? DP_OK : dp_fail_errno(err, code, "cannot start the store's writer thread");
}

static void release(struct dp_store *store)
{
    for (size_t i = 0; i < DP_RECORD_KIND_COUNT; i++) {
        sqlite3_finalize(store->upserts[i]);
    }
    sqlite3_finalize(store->prune_traces);
    sqlite3_finalize(store->prune_events);
    dp_store_copy_free(store->copy);
    sqlite3_close(store->reader);
    sqlite3_close(store->writer);
    if (store->event_fd >= 0) {
        close(store->event_fd);
    }
    if (store->lock_fd >= 0) {
        close(store->lock_fd);
    }
    pthread_mutex_destroy(&store->mutex);
    pthread_cond_destroy(&store->wake);
    free(store);
}

dp_status dp_store_open(const struct dp_store_options *options, struct dp_store **ret_store,
                        struct dp_error *err)
{
    dp_status status = dp_make_directories(options->directory, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", options->directory, DP_STORE_FILE);
    struct dp_store *store = dp_new(struct dp_store);
    store->lock_fd = -1;
    store->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&store->mutex, NULL);
    dp_cond_init(&store->wake);
    status = store->event_fd < 0 ? dp_fail_errno(err, errno, "eventfd")
                                 : dp_store_lock(options->directory, &store->lock_fd, err);
    if (status == DP_OK) {
        status = dp_store_prepare_file(path, err);
    }
    if (status == DP_OK) {
        status = open_writer(store, path, options->pages_max, err);
    }
    if (status == DP_OK) {
        status = open_reader(store, path, err);
    }
    if (status == DP_OK) {
        status = start_thread(store, err);
    }
    if (status != DP_OK) {
        release(store);
        return status;
    }
    *ret_store = store;
    return DP_OK;
}

void dp_store_close(struct dp_store *store)
{
    if (store == NULL) {
        return;
    }
    pthread_mutex_lock(&store->mutex);
    store->stopping = true;
    pthread_cond_signal(&store->wake);
    pthread_mutex_unlock(&store->mutex);
    pthread_join(store->thread, NULL);
    struct dp_transaction *transaction;
    while ((transaction = list_pop(&store->finished)) != NULL) {
        transaction_free(transaction);
    }
    while ((transaction = list_pop(&store->left)) != NULL) {
        transaction_free(transaction);
    }
    release(store);
}
