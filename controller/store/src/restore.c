// Putting a copy in the place of the database, which no controller may be using.
#include "store_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"

// The copy is whole, ours, and no newer than this program.
static dp_status examine(const char *path, struct dp_error *err)
{
    if (access(path, R_OK) != 0) {
        return dp_fail_errno(err, errno, "cannot read %s", path);
    }
    dp_status status = dp_store_prepare_file(path, err);
    if (status == DP_INVALID) {
        // What it advises is about a database in its place.
        return dp_fail(err, DP_INVALID,
                       "%s is damaged, cut or no database of dp-controller: take another backup; "
                       "nothing was changed",
                       path);
    }
    if (status != DP_OK) {
        return status;
    }
    sqlite3 *db = NULL;
    DP_CLEANUP(dp_buf_deinit) struct dp_buf report = {0};
    status = dp_store_connect(path, SQLITE_OPEN_READONLY, &db, err);
    int64_t version = 0;
    if (status == DP_OK) {
        status = dp_store_integer(db, "PRAGMA user_version", &version, err);
    }
    if (status == DP_OK && version < 1) {
        status = dp_fail(err, DP_INVALID, "%s has schema %lld, which none has: nothing was changed",
                         path, (long long)version);
    }
    if (status == DP_OK && version > (int64_t)dp_migrations_count) {
        status = dp_fail(err, DP_CONFLICT,
                         "%s has schema %lld and this version knows up to %zu: restore it with the "
                         "version that made it",
                         path, (long long)version, dp_migrations_count);
    }
    if (status == DP_OK) {
        status = dp_store_check_all(db, path, &report, err);
    }
    sqlite3_close(db);
    return status;
}

static dp_status prepare(sqlite3 *db, const char *sql, struct dp_error *err)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
    sqlite3_finalize(statement);
    return code == SQLITE_OK ? DP_OK : dp_store_fail(err, db, code, "looking for its tables");
}

// Everything that a start will do to it, and that it will ask of it.
static dp_status try_schema(sqlite3 *db, struct dp_error *err)
{
    int64_t version = 0;
    dp_status status = dp_store_integer(db, "PRAGMA user_version", &version, err);
    for (size_t i = (size_t)version; status == DP_OK && i < dp_migrations_count; i++) {
        status = dp_store_execute(db, dp_migrations[i].sql, err);
    }
    for (size_t i = 0; status == DP_OK && i < DP_RECORD_KIND_COUNT; i++) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf upsert = {0}, select = {0};
        dp_table_upsert_sql(&dp_tables[i], &upsert);
        dp_table_select_sql(&dp_tables[i], true, &select);
        status = prepare(db, upsert.bytes, err);
        status = status == DP_OK ? prepare(db, select.bytes, err) : status;
    }
    return status;
}

// A controller will start with it. It stays of the schema that it has: an older version may be the
// one to start.
static dp_status prove(const char *path, struct dp_error *err)
{
    sqlite3 *db = NULL;
    struct dp_error why = {0};
    dp_status status = dp_store_connect(path, SQLITE_OPEN_READWRITE, &db, err);
    if (status == DP_OK) {
        status = dp_store_execute(db, "BEGIN IMMEDIATE", err);
    }
    if (status == DP_OK && try_schema(db, &why) != DP_OK) {
        status = dp_fail(err, DP_INVALID,
                         "its tables are not those of its schema (%s): take another backup; "
                         "nothing was changed",
                         why.message);
    }
    sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    sqlite3_close(db);
    return status;
}

// Until this is done the file alone is not the database. What is too damaged keeps its log.
static dp_status take_log_in(const char *path, struct dp_error *err)
{
    if (dp_store_prepare_file(path, NULL) != DP_OK) {
        return DP_OK;
    }
    sqlite3 *db = NULL;
    int64_t version = 0;
    dp_status status = dp_store_connect(path, SQLITE_OPEN_READWRITE, &db, err);
    if (status == DP_OK) {
        // A connection that has read nothing does not know of the log.
        status = dp_store_integer(db, "PRAGMA user_version", &version, err);
    }
    if (status == DP_OK) {
        int code = sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
        status = code == SQLITE_OK ? DP_OK : dp_store_fail(err, db, code, path);
    }
    sqlite3_close(db);
    return status;
}

// A log that is left is of what was there, and would be read into what comes.
static dp_status put_log_away(const char *path, const char *kept, struct dp_error *err)
{
    static const char *const ends[] = {"-wal", "-shm"};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        DP_AUTO_FREE char *from = dp_asprintf("%s%s", path, ends[i]);
        DP_AUTO_FREE char *to = dp_asprintf("%s%s", kept, ends[i]);
        if (rename(from, to) != 0 && errno != ENOENT) {
            return dp_fail_errno(err, errno, "cannot keep %s", from);
        }
    }
    return DP_OK;
}

// What is there stays under another name.
static dp_status keep_old(const char *path, char *ret_kept, size_t size, struct dp_error *err)
{
    DP_AUTO_FREE char *log = dp_asprintf("%s-wal", path);
    const bool has_file = access(path, F_OK) == 0, has_log = access(log, F_OK) == 0;
    ret_kept[0] = '\0';
    if (!has_file && !has_log) {
        return DP_OK;
    }
    char stamp[32];
    dp_clock_format_utc(stamp, dp_clock_realtime_ns());
    DP_AUTO_FREE char *kept = dp_asprintf("%s.before-restore-%s", path, stamp);
    dp_status status = has_file ? take_log_in(path, err) : DP_OK;
    // By a second name: the first one is never missing.
    if (status == DP_OK && has_file && link(path, kept) != 0) {
        status = dp_fail_errno(err, errno, "cannot keep %s as %s", path, kept);
    }
    if (status == DP_OK) {
        status = put_log_away(path, kept, err);
    }
    snprintf(ret_kept, size, "%s%s", kept, has_file ? "" : "-wal");
    return status;
}

static dp_status copy_into(const char *from, const char *to, struct dp_error *err)
{
    unlink(to);
    sqlite3 *db = NULL;
    dp_status status = dp_store_connect(from, SQLITE_OPEN_READONLY, &db, err);
    struct dp_store_copy *copy = dp_store_copy_new(0, to);
    bool done = false;
    while (status == DP_OK && !done) {
        status = dp_store_copy_some(copy, db, &done, err);
    }
    dp_store_copy_free(copy);
    sqlite3_close(db);
    if (status == DP_OK) {
        status = prove(to, err);
    }
    if (status == DP_OK) {
        status = dp_store_sync(to, err);
    }
    if (status != DP_OK) {
        unlink(to);
    }
    return status;
}

dp_status dp_store_restore(const char *directory, const char *from, char *ret_kept, size_t size,
                           struct dp_error *err)
{
    dp_status status = examine(from, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "restoring %s", from);
    }
    // A mistyped name must not pass for a place where a controller will look.
    if (access(directory, X_OK) != 0) {
        return dp_fail_errno(err, errno,
                             "cannot restore into %s, a controller's state directory (make it "
                             "before, if it is to be a new one)",
                             directory);
    }
    DP_AUTO_CLOSE int lock = -1;
    status = dp_store_lock(directory, &lock, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    DP_AUTO_FREE char *fresh = dp_asprintf("%s.restored", path);
    status = copy_into(from, fresh, err);
    if (status != DP_OK) {
        return dp_fail_in(err, "restoring %s", from);
    }
    status = keep_old(path, ret_kept, size, err);
    if (status == DP_OK && rename(fresh, path) != 0) {
        status = dp_fail_errno(err, errno, "cannot rename %s", fresh);
    }
    return status == DP_OK ? dp_store_sync(directory, err) : status;
}
