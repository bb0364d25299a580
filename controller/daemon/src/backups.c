// The store writes a copy into the state directory, and this sends it in chunks, as fast as the
// caller takes them.
#include "backups.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "audit.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/log.h"

#define TOKEN_BIT (UINT64_C(1) << 61)

struct backup {
    uint64_t call, token; // call 0: its caller is gone
    char *path;
    int fd; // < 0: the copy is not whole yet
    uint64_t sent, bytes;
    uint32_t schema;
    bool finished; // the last chunk is on its way
    XXH3_state_t *hash;
    struct backup *next;
};

bool backups_is_token(uint64_t token)
{
    return (token >> 61) == 1;
}

static void free_backup(struct daemon *daemon, struct backup *backup)
{
    struct backup **link = &daemon->backups;
    while (*link != backup) {
        link = &(*link)->next;
    }
    *link = backup->next;
    unlink(backup->path);
    if (backup->fd >= 0) {
        close(backup->fd);
    }
    XXH3_freeState(backup->hash);
    free(backup->path);
    free(backup);
}

static void fail(struct daemon *daemon, struct backup *backup, const struct dp_error *err)
{
    dp_log_error("backup.failed", "reason=\"%s\"", err->message);
    call_fail_error(daemon, backup->call, err);
}

static bool send_last(struct daemon *daemon, const struct backup *backup)
{
    Dp__V1__BackupChunk chunk = DP__V1__BACKUP_CHUNK__INIT;
    chunk.bytes = backup->bytes;
    chunk.hash = XXH3_64bits_digest(backup->hash);
    chunk.schema = backup->schema;
    if (call_send(daemon, backup->call, &chunk.base) != DP_OK) {
        return false;
    }
    call_finish(daemon, backup->call);
    return true;
}

// On until the queue is full; then on_writable comes back here.
static void send_some(struct daemon *daemon, struct backup *backup)
{
    DP_AUTO_FREE uint8_t *bytes = dp_alloc(1, DP_BACKUP_CHUNK_BYTES);
    struct dp_error err = {0};
    while (backup->sent < backup->bytes) {
        ssize_t got = pread(backup->fd, bytes, DP_BACKUP_CHUNK_BYTES, (off_t)backup->sent);
        if (got <= 0) {
            dp_fail_errno(&err, got == 0 ? EIO : errno, "cannot read %s", backup->path);
            fail(daemon, backup, &err);
            return;
        }
        Dp__V1__BackupChunk chunk = DP__V1__BACKUP_CHUNK__INIT;
        chunk.data.data = bytes;
        chunk.data.len = (size_t)got;
        if (call_send(daemon, backup->call, &chunk.base) != DP_OK) {
            return;
        }
        XXH3_64bits_update(backup->hash, bytes, (size_t)got);
        backup->sent += (uint64_t)got;
    }
    if (!backup->finished) {
        backup->finished = send_last(daemon, backup);
    }
}

void backups_pump(struct daemon *daemon)
{
    struct backup *next;
    for (struct backup *backup = daemon->backups; backup != NULL; backup = next) {
        next = backup->next;
        if (backup->fd >= 0 && backup->call != 0) {
            send_some(daemon, backup);
        }
    }
}

void backups_on_stored(struct daemon *daemon, uint64_t token, const struct dp_error *err)
{
    struct backup *backup = daemon->backups;
    while (backup != NULL && backup->token != token) {
        backup = backup->next;
    }
    if (backup == NULL) {
        return;
    }
    backup->token = 0;
    if (backup->call == 0) {
        free_backup(daemon, backup);
        return;
    }
    struct dp_error own = *err;
    struct stat info;
    if (own.status == DP_OK) {
        backup->fd = open(backup->path, O_RDONLY | O_CLOEXEC);
        if (backup->fd < 0 || fstat(backup->fd, &info) != 0) {
            dp_fail_errno(&own, errno, "cannot read %s", backup->path);
        }
    }
    if (own.status != DP_OK) {
        fail(daemon, backup, &own);
        return;
    }
    backup->bytes = (uint64_t)info.st_size;
    dp_log_info("backup.made", "bytes=%llu", (unsigned long long)backup->bytes);
    send_some(daemon, backup);
}

static int count_backups(const struct daemon *daemon)
{
    int count = 0;
    for (const struct backup *backup = daemon->backups; backup != NULL; backup = backup->next) {
        count++;
    }
    return count;
}

static void on_message(void *context, uint64_t call, const void *bytes, size_t length)
{
    struct daemon *daemon = context;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    const Dp__V1__BackupRequest *request =
        service_unpack(daemon, call, &dp__v1__backup_request__descriptor, bytes, length, &arena);
    if (request == NULL) {
        return;
    }
    struct dp_error err = {0};
    struct dp_audit_record row;
    audit_fill(daemon, call, DP_METHOD_BACKUP, request->user, "", &row);
    if (count_backups(daemon) >= DP_BACKUPS_MAX) {
        dp_fail(&err, DP_BUSY, "%d backups are being taken: wait until one is done",
                DP_BACKUPS_MAX);
        audit_refuse(daemon, call, &row, &err);
        return;
    }
    struct backup *backup = dp_new(struct backup);
    *backup = (struct backup){.call = call,
                              .token = TOKEN_BIT | ++daemon->last_backup,
                              .fd = -1,
                              .schema = dp_store_schema(),
                              .hash = XXH3_createState(),
                              .next = daemon->backups};
    DP_CHECK(backup->hash != NULL && XXH3_64bits_reset(backup->hash) == XXH_OK);
    backup->path = dp_asprintf("%s/backup-%llu.tmp", daemon->state_dir,
                               (unsigned long long)daemon->last_backup);
    daemon->backups = backup;
    unlink(backup->path);
    dp_status status = dp_store_backup(daemon->store, backup->token, backup->path, &err);
    audit_keep(daemon, &row, &err);
    if (status != DP_OK) {
        backup->token = 0;
        call_fail_error(daemon, call, &err);
    }
}

static void on_writable(void *context, uint64_t call)
{
    (void)call;
    backups_pump(context);
}

static void on_closed(void *context, uint64_t call, bool cancelled)
{
    (void)cancelled;
    struct daemon *daemon = context;
    struct backup *backup = daemon->backups;
    while (backup != NULL && backup->call != call) {
        backup = backup->next;
    }
    if (backup == NULL) {
        return;
    }
    backup->call = 0;
    if (backup->token == 0) {
        free_backup(daemon, backup);
    }
}

// Copies that nobody takes any more: the controller was killed while it sent them.
void backups_start(struct daemon *daemon)
{
    DIR *listing = opendir(daemon->state_dir);
    if (listing == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(listing); entry != NULL; entry = readdir(listing)) {
        if (fnmatch("backup-*.tmp", entry->d_name, 0) == 0) {
            (void)unlinkat(dirfd(listing), entry->d_name, 0);
        }
    }
    closedir(listing);
}

void backups_stop(struct daemon *daemon)
{
    while (daemon->backups != NULL) {
        free_backup(daemon, daemon->backups);
    }
}

const struct dp_rpc_handler backup_handler = {
    .method = DP_METHOD_BACKUP,
    .on_message = on_message,
    .on_writable = on_writable,
    .on_closed = on_closed,
};
