#include "store_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

dp_status dp_store_check_all(sqlite3 *db, const char *path, struct dp_buf *report,
                             struct dp_error *err)
{
    sqlite3_stmt *check = NULL;
    int code = sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &check, NULL);
    size_t problems = 0;
    while (code == SQLITE_OK && (code = sqlite3_step(check)) == SQLITE_ROW) {
        const char *line = (const char *)sqlite3_column_text(check, 0);
        problems += strcmp(line, "ok") != 0;
        dp_buf_printf(report, "%s: %s\n", path, line);
        code = SQLITE_OK;
    }
    dp_status status = DP_OK;
    if (code != SQLITE_DONE) {
        status = dp_store_fail(err, db, code, path);
    } else if (problems > 0) {
        status = dp_fail(err, DP_INVALID, "%s: %zu problems found", path, problems);
    }
    sqlite3_finalize(check);
    return status;
}

dp_status dp_store_check(const char *directory, struct dp_buf *report, struct dp_error *err)
{
    DP_AUTO_FREE char *path = dp_asprintf("%s/%s", directory, DP_STORE_FILE);
    if (access(path, R_OK) != 0) {
        return dp_fail_errno(err, errno, "cannot read %s", path);
    }
    DP_AUTO_CLOSE int lock = -1;
    dp_status status = dp_store_lock(directory, &lock, err);
    sqlite3 *db = NULL;
    if (status == DP_OK) {
        status = dp_store_prepare_file(path, err);
    }
    if (status == DP_OK) {
        status = dp_store_connect(path, SQLITE_OPEN_READONLY, &db, err);
    }
    if (status == DP_OK) {
        status = dp_store_check_all(db, path, report, err);
    }
    sqlite3_close(db);
    return status;
}
