// A copy of the whole database while it is written: some pages between two commits, through the
// writer's own connection, which keeps the copy up to date by itself.
#include "store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

struct dp_store_copy {
    uint64_t token;
    char *path;
    sqlite3 *db;
    sqlite3_backup *backup;
};

struct dp_store_copy *dp_store_copy_new(uint64_t token, const char *path)
{
    struct dp_store_copy *copy = dp_new(struct dp_store_copy);
    copy->token = token;
    copy->path = dp_strdup(path);
    return copy;
}

uint64_t dp_store_copy_token(const struct dp_store_copy *copy)
{
    return copy->token;
}

void dp_store_copy_free(struct dp_store_copy *copy)
{
    if (copy == NULL) {
        return;
    }
    sqlite3_backup_finish(copy->backup);
    sqlite3_close(copy->db);
    free(copy->path);
    free(copy);
}

static dp_status begin(struct dp_store_copy *copy, sqlite3 *from, struct dp_error *err)
{
    dp_status status = dp_store_make_file(copy->path, err);
    if (status != DP_OK) {
        return status;
    }
    // A copy that is cut short is of no use, so nothing is written twice or waited for.
    int code =
        sqlite3_open_v2(copy->path, &copy->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code != SQLITE_OK) {
        return dp_store_fail(err, copy->db, code, copy->path);
    }
    status = dp_store_execute(copy->db, "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF", err);
    if (status != DP_OK) {
        return status;
    }
    copy->backup = sqlite3_backup_init(copy->db, "main", from, "main");
    return copy->backup != NULL
               ? DP_OK
               : dp_store_fail(err, copy->db, sqlite3_errcode(copy->db), copy->path);
}

// One file without a log beside it. Bringing it to disk would hold up the writer for as long as a
// large file takes: that is the caller's to do, if at all.
static dp_status finish(struct dp_store_copy *copy, struct dp_error *err)
{
    int code = sqlite3_backup_finish(dp_steal(copy->backup));
    if (code != SQLITE_OK) {
        return dp_store_fail(err, copy->db, code, copy->path);
    }
    dp_status status = dp_store_execute(copy->db, "PRAGMA journal_mode = DELETE", err);
    if (status != DP_OK) {
        return status;
    }
    sqlite3_close(dp_steal(copy->db));
    return DP_OK;
}

dp_status dp_store_copy_some(struct dp_store_copy *copy, sqlite3 *from, bool *ret_done,
                             struct dp_error *err)
{
    *ret_done = false;
    if (copy->backup == NULL) {
        dp_status status = begin(copy, from, err);
        if (status != DP_OK) {
            return status;
        }
    }
    int code = sqlite3_backup_step(copy->backup, DP_STORE_COPY_PAGES);
    if (code == SQLITE_OK || code == SQLITE_BUSY || code == SQLITE_LOCKED) {
        return DP_OK;
    }
    if (code != SQLITE_DONE) {
        return dp_store_fail(err, copy->db, code, copy->path);
    }
    *ret_done = true;
    return finish(copy, err);
}

dp_status dp_store_sync(const char *path, struct dp_error *err)
{
    DP_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0) {
        return dp_fail_errno(err, errno, "cannot bring %s to disk", path);
    }
    return DP_OK;
}
