// Making, checking and opening the database file.
#include "store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

dp_status dp_store_fail(struct dp_error *err, sqlite3 *db, int code, const char *what)
{
    dp_status status = DP_IO;
    const char *help = "";
    switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        status = DP_INVALID;
        break;
    case SQLITE_CONSTRAINT:
        status = DP_CONFLICT;
        break;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        status = DP_UNAVAILABLE;
        break;
    case SQLITE_FULL:
        help = ": make room on the disk of the state directory";
        break;
    default:
        break;
    }
    // What a step of a copy says is not the database's error.
    bool is_its_own = db != NULL && sqlite3_errcode(db) != SQLITE_OK;
    const char *text = is_its_own ? sqlite3_errmsg(db) : sqlite3_errstr(code);
    return dp_fail(err, status, "%s: %s%s", what, text, help);
}

dp_status dp_store_execute(sqlite3 *db, const char *sql, struct dp_error *err)
{
    int code = sqlite3_exec(db, sql, NULL, NULL, NULL);
    if (code != SQLITE_OK) {
        DP_AUTO_FREE char *start = dp_strndup(sql, strcspn(sql, "("));
        return dp_store_fail(err, db, code, start);
    }
    return DP_OK;
}

dp_status dp_store_integer(sqlite3 *db, const char *sql, int64_t *ret_value, struct dp_error *err)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
    if (code == SQLITE_OK) {
        code = sqlite3_step(statement);
    }
    dp_status status = DP_OK;
    if (code == SQLITE_ROW) {
        *ret_value = sqlite3_column_int64(statement, 0);
    } else {
        status = dp_store_fail(err, db, code, sql);
    }
    sqlite3_finalize(statement);
    return status;
}

dp_status dp_store_connect(const char *path, int flags, sqlite3 **ret_db, struct dp_error *err)
{
    sqlite3 *db = NULL;
    int code = sqlite3_open_v2(path, &db, flags | SQLITE_OPEN_NOMUTEX, NULL);
    if (code != SQLITE_OK) {
        dp_status status = dp_store_fail(err, db, code, path);
        sqlite3_close(db);
        return status;
    }
    sqlite3_extended_result_codes(db, 1);
    sqlite3_busy_timeout(db, DP_STORE_BUSY_MS);
    *ret_db = db;
    return DP_OK;
}

// SQLite gives its log the mode of the file, and would let everybody read both.
dp_status dp_store_make_file(const char *path, struct dp_error *err)
{
    DP_AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return fd >= 0 ? DP_OK : dp_fail_errno(err, errno, "cannot make %s", path);
}

static dp_status write_header(sqlite3 *db, const char *path, struct dp_error *err)
{
    DP_AUTO_FREE char *mark = dp_asprintf("PRAGMA application_id = %d", DP_STORE_APPLICATION_ID);
    dp_status status = dp_store_execute(db, "PRAGMA journal_mode = WAL", err);
    if (status == DP_OK) {
        status = dp_store_execute(db, mark, err);
    }
    if (status == DP_OK) {
        status = dp_store_migrate(db, path, dp_migrations, dp_migrations_count, err);
    }
    return status;
}

// The new database gets its name only when it is whole, so an empty or short file under that name
// is always damage and never a start that was interrupted.
static dp_status create(const char *path, struct dp_error *err)
{
    DP_AUTO_FREE char *fresh = dp_asprintf("%s.new", path);
    DP_AUTO_FREE char *fresh_wal = dp_asprintf("%s-wal", fresh);
    unlink(fresh);
    unlink(fresh_wal);
    sqlite3 *db = NULL;
    dp_status status = dp_store_make_file(fresh, err);
    if (status == DP_OK) {
        status = dp_store_connect(fresh, SQLITE_OPEN_READWRITE, &db, err);
    }
    if (status != DP_OK) {
        return status;
    }
    status = write_header(db, path, err);
    sqlite3_close(db);
    if (status != DP_OK) {
        return dp_fail_in(err, "making %s", path);
    }
    if (rename(fresh, path) != 0) {
        return dp_fail_errno(err, errno, "cannot rename %s", fresh);
    }
    return DP_OK;
}

static dp_status refuse_damage(const char *path, const char *found, struct dp_error *err)
{
    return dp_fail(err, DP_INVALID,
                   "%s is damaged (%s); nothing was changed. Put a good copy in its place "
                   "(%s.backup-v* are copies made before upgrades), or move it away with its -wal "
                   "file to start without any jobs",
                   path, found, path);
}

// SQLite reads a last page that is cut as if zeros followed. Only its log can make up for that.
static bool ends_inside_a_page(sqlite3 *db, const char *path)
{
    DP_AUTO_FREE char *wal = dp_asprintf("%s-wal", path);
    struct stat file, log;
    int64_t page_size = 0;
    return stat(path, &file) == 0 && (stat(wal, &log) != 0 || log.st_size == 0) &&
           dp_store_integer(db, "PRAGMA page_size", &page_size, NULL) == DP_OK && page_size > 0 &&
           file.st_size % page_size != 0;
}

static dp_status examine(sqlite3 *db, const char *path, struct dp_error *err)
{
    struct dp_error found = {0};
    int64_t application = 0, pages = 0;
    dp_status status = dp_store_integer(db, "PRAGMA application_id", &application, &found);
    if (status == DP_OK && application != DP_STORE_APPLICATION_ID) {
        return dp_fail(err, DP_INVALID,
                       "%s is not a database of dp-controller; nothing was changed. Move it away, "
                       "or give another --state-dir",
                       path);
    }
    if (status == DP_OK) {
        status = dp_store_integer(db, "SELECT count(*) FROM sqlite_schema", &pages, &found);
    }
    if (status == DP_OK && ends_inside_a_page(db, path)) {
        status = dp_fail(&found, DP_INVALID, "its last page is cut");
    }
    sqlite3_stmt *check = NULL;
    if (status == DP_OK &&
        (sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &check, NULL) != SQLITE_OK ||
         sqlite3_step(check) != SQLITE_ROW)) {
        status = dp_store_fail(&found, db, sqlite3_errcode(db), "check");
    }
    if (status == DP_OK && strcmp((const char *)sqlite3_column_text(check, 0), "ok") != 0) {
        status = dp_fail(&found, DP_INVALID, "%s", (const char *)sqlite3_column_text(check, 0));
    }
    sqlite3_finalize(check);
    if (status == DP_INVALID) {
        return refuse_damage(path, found.message, err);
    }
    if (status != DP_OK) {
        return dp_fail(err, status, "cannot read %s: %s", path, found.message);
    }
    return DP_OK;
}

dp_status dp_store_prepare_file(const char *path, struct dp_error *err)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        DP_AUTO_FREE char *wal = dp_asprintf("%s-wal", path);
        if (stat(wal, &info) == 0) {
            return dp_fail(err, DP_INVALID,
                           "%s is missing but its %s is there: put the database back beside it, "
                           "or move that file away to start without any jobs",
                           path, wal);
        }
        return create(path, err);
    }
    if (info.st_size == 0) {
        return refuse_damage(path, "it is empty", err);
    }
    // A read-only connection never writes the database file, not even to move the log into it.
    sqlite3 *db = NULL;
    dp_status status = dp_store_connect(path, SQLITE_OPEN_READONLY, &db, err);
    if (status != DP_OK) {
        return status;
    }
    status = examine(db, path, err);
    sqlite3_close(db);
    return status;
}
