// Shared by the store's own files.
#pragma once

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>

#include "dp/store.h"

#define DP_STORE_APPLICATION_ID 0x64706f72 // "dpor"
#define DP_STORE_BUSY_MS 5000
#define DP_STORE_GROUP_MAX 256 // transactions committed together
#define DP_STORE_EVENTS_KEPT 100000
#define DP_STORE_LEFT_MAX 20000 // transactions kept in memory while the disk is full
#define DP_STORE_LEFT_RETRY_S 1
#define DP_STORE_SQL_MAX 8192
#define DP_STORE_RETAIN_ROWS 1000 // taken away in one transaction
#define DP_STORE_COPY_PAGES 256   // copied between two commits

// How one member of a row travels to one column.
typedef enum dp_column_type {
    DP_COLUMN_BOOL,
    DP_COLUMN_I32,
    DP_COLUMN_U32,
    DP_COLUMN_I64, // and u64, bit for bit
    DP_COLUMN_F64,
    DP_COLUMN_TEXT, // char array
    DP_COLUMN_BLOB, // struct dp_buf
} dp_column_type;

struct dp_column {
    const char *name;
    dp_column_type type;
    size_t offset, size;
};

struct dp_table {
    const char *name;
    const char *keys;        // of the conflict clause; NULL = plain insert
    const char *on_conflict; // what follows DO UPDATE SET; NULL = every column
    const char *condition;   // of the update; its one parameter comes after the columns; or NULL
    size_t row_size;
    const struct dp_column *columns;
    size_t columns_count;
};

// By dp_record_kind.
extern const struct dp_table dp_tables[DP_RECORD_KIND_COUNT];

// "INSERT ... ON CONFLICT ..." of a table.
void dp_table_upsert_sql(const struct dp_table *table, struct dp_buf *out);
// "SELECT <columns> FROM <name> "; a clause may follow. Without `blobs` these come empty and are
// not read.
void dp_table_select_sql(const struct dp_table *table, bool blobs, struct dp_buf *out);
// Binds every column from parameter 1 on. The row must outlive the step.
void dp_table_bind(const struct dp_table *table, sqlite3_stmt *statement, const void *row);
// Fills a zeroed row from the statement's columns.
void dp_table_read(const struct dp_table *table, sqlite3_stmt *statement, void *row);
// Deep copy, and its release.
void *dp_table_copy(const struct dp_table *table, const void *row);
void dp_table_free(const struct dp_table *table, void *row);

// "<what>: <sqlite's own message>" with the status that fits the code.
dp_status dp_store_fail(struct dp_error *err, sqlite3 *db, int code, const char *what);
dp_status dp_store_execute(sqlite3 *db, const char *sql, struct dp_error *err);
dp_status dp_store_integer(sqlite3 *db, const char *sql, int64_t *ret_value, struct dp_error *err);

struct dp_migration {
    const char *sql;
};
// Migration i brings user_version from i to i + 1.
extern const struct dp_migration dp_migrations[];
extern const size_t dp_migrations_count;
// Applies what is missing, each in one transaction with its user_version. A database that has data
// is copied first to `<path>.backup-v<version>`. DP_CONFLICT when it is newer than the table.
dp_status dp_store_migrate(sqlite3 *db, const char *path, const struct dp_migration *migrations,
                           size_t count, struct dp_error *err);

// *ret_fd holds the lock until it is closed.
dp_status dp_store_lock(const char *directory, int *ret_fd, struct dp_error *err);

// A connection with the pragmas that every connection has.
// Makes the file, unless it is there, for its owner alone: rows hold what ranks know each other by.
dp_status dp_store_make_file(const char *path, struct dp_error *err);
dp_status dp_store_connect(const char *path, int flags, sqlite3 **ret_db, struct dp_error *err);
// Makes the file if it is missing, and proves without changing it that it is ours and whole.
dp_status dp_store_prepare_file(const char *path, struct dp_error *err);

// Every problem is a line of the report; DP_INVALID when there is one.
dp_status dp_store_check_all(sqlite3 *db, const char *path, struct dp_buf *report,
                             struct dp_error *err);
// The file, or directory, is on disk.
dp_status dp_store_sync(const char *path, struct dp_error *err);

// backup.c: a copy under way.
struct dp_store_copy;
struct dp_store_copy *dp_store_copy_new(uint64_t token, const char *path);
void dp_store_copy_free(struct dp_store_copy *copy); // accepts NULL
uint64_t dp_store_copy_token(const struct dp_store_copy *copy);
// Some pages more, through the connection that writes the original.
dp_status dp_store_copy_some(struct dp_store_copy *copy, sqlite3 *from, bool *ret_done,
                             struct dp_error *err);

// retain.c: one transaction. *ret_more: there is more to take away.
dp_status dp_store_retain_some(sqlite3 *db, const struct dp_store_retention *retention,
                               uint64_t *ret_jobs, bool *ret_more, struct dp_error *err);

struct dp_transaction {
    uint64_t token;
    struct dp_record *records;
    size_t count;
    struct dp_error *error; // NULL = stored
    struct dp_transaction *next;
};

struct dp_transaction_list {
    struct dp_transaction *head, **tail;
    size_t count;
};

struct dp_store {
    int lock_fd, event_fd;
    sqlite3 *writer, *reader;
    sqlite3_stmt *upserts[DP_RECORD_KIND_COUNT];
    sqlite3_stmt *prune_traces, *prune_events;
    pthread_t thread;
    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t wake;
    bool stopping;
    struct dp_transaction_list queued, finished;
    // What could not be written and is only added to: tried again until it can. The writer's own.
    struct dp_transaction_list left;
    size_t in_commit;
    bool retain_due;
    struct dp_store_retention retention;
    struct dp_store_copy *copy; // the writer's own once it is there
    struct dp_store_figures figures; // queued apart
};
