// dpctl backup and restore: the controller's database as a file, and back.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "connect.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/store.h"

#define POLL_MS 200

enum { KEY_STATE = 1 };

static error_t handle_backup(int key, char *arg, struct argp_state *state)
{
    const char **file = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "file", arg, file);
        return 0;
    case ARGP_KEY_END:
        if (*file == NULL) {
            argp_error(state, "say which file to write");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void backup_cleanup(struct dp_client_backup **backup)
{
    dp_client_backup_close(*backup);
}

static void hash_cleanup(XXH3_state_t **hash)
{
    XXH3_freeState(*hash);
}

struct taken {
    uint64_t bytes, hash;
    uint32_t schema;
};

static dp_status write_all(int fd, const uint8_t *bytes, size_t length, const char *path,
                           struct dp_error *err)
{
    while (length > 0) {
        ssize_t done = write(fd, bytes, length);
        if (done < 0 && errno != EINTR) {
            return dp_fail_errno(err, errno, "cannot write %s", path);
        }
        bytes += done > 0 ? done : 0;
        length -= done > 0 ? (size_t)done : 0;
    }
    return DP_OK;
}

// What came is what was sent, whole.
static dp_status check_whole(const Dp__V1__BackupChunk *last, const struct taken *taken,
                             struct dp_error *err)
{
    if (last->bytes != taken->bytes || last->hash != taken->hash) {
        return dp_fail(err, DP_IO,
                       "the backup is not what the controller sent (%" PRIu64 " bytes with hash "
                       "%016" PRIx64 ", %" PRIu64 " with %016" PRIx64 "): make it again",
                       taken->bytes, taken->hash, last->bytes, last->hash);
    }
    return DP_OK;
}

static dp_status fail_stopped(const char *path, struct dp_error *err)
{
    return dp_fail(err, DP_INTERRUPTED, "stopped: %s was not written", path);
}

static dp_status receive(struct dp_client *client, int fd, const char *path, struct taken *taken,
                         struct dp_error *err)
{
    DP_CLEANUP(backup_cleanup) struct dp_client_backup *backup = NULL;
    DP_CLEANUP(hash_cleanup) XXH3_state_t *hash = XXH3_createState();
    XXH3_64bits_reset(hash);
    dp_status status = dp_client_backup(client, &backup, err);
    bool whole = false, end = false;
    while (status == DP_OK && !end && !interrupted()) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__BackupChunk *chunk = NULL;
        status = dp_client_backup_next(backup, POLL_MS, &arena, &chunk, &end, err);
        if (status != DP_OK || chunk == NULL) {
            continue;
        }
        status = write_all(fd, chunk->data.data, chunk->data.len, path, err);
        XXH3_64bits_update(hash, chunk->data.data, chunk->data.len);
        taken->bytes += chunk->data.len;
        taken->hash = XXH3_64bits_digest(hash);
        if (status == DP_OK && chunk->schema != 0) {
            taken->schema = chunk->schema;
            status = check_whole(chunk, taken, err);
            whole = true;
        }
    }
    if (status == DP_OK && !whole) {
        return end ? dp_fail(err, DP_IO, "the backup ended before it was whole: make it again")
                   : fail_stopped(path, err);
    }
    return status;
}

// Under its name only when it is whole and on disk. Its own name until then: two that write the
// same file do not write into one another.
static dp_status write_regular(struct dp_client *client, const char *path, struct taken *taken,
                               struct dp_error *err)
{
    DP_AUTO_FREE char *part = dp_asprintf("%s.part-XXXXXX", path);
    interrupted(); // from here on Ctrl-C is ours: it leaves no part behind
    DP_AUTO_CLOSE int fd = mkostemp(part, O_CLOEXEC);
    if (fd < 0) {
        return dp_fail_errno(err, errno, "cannot write %s", path);
    }
    dp_status status = receive(client, fd, path, taken, err);
    if (status == DP_OK && fsync(fd) != 0) {
        status = dp_fail_errno(err, errno, "cannot write %s", path);
    }
    if (status == DP_OK && interrupted()) {
        status = fail_stopped(path, err);
    }
    if (status == DP_OK && rename(part, path) != 0) {
        status = dp_fail_errno(err, errno, "cannot write %s", path);
    }
    if (status != DP_OK) {
        unlink(part);
    }
    return status;
}

// A pipe or a device stays what it is, and a link leads to the file that is replaced.
static dp_status write_backup(struct dp_client *client, const char *path, struct taken *taken,
                              struct dp_error *err)
{
    struct stat info;
    if (stat(path, &info) != 0) {
        return lstat(path, &info) == 0
                   ? dp_fail(err, DP_INVALID, "cannot write %s: it is a link to nothing", path)
                   : write_regular(client, path, taken, err);
    }
    if (S_ISDIR(info.st_mode)) {
        return dp_fail(err, DP_INVALID, "cannot write %s: it is a directory", path);
    }
    if (!S_ISREG(info.st_mode)) {
        DP_AUTO_CLOSE int fd = open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC);
        return fd < 0 ? dp_fail_errno(err, errno, "cannot write %s", path)
                      : receive(client, fd, path, taken, err);
    }
    DP_AUTO_FREE char *target = realpath(path, NULL);
    return target == NULL ? dp_fail_errno(err, errno, "cannot resolve %s", path)
                          : write_regular(client, target, taken, err);
}

dp_status dpctl_cmd_backup(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "FILE",
        .doc =
            "Writes the controller's database to FILE while the controller goes on: all of it as "
            "of one moment. FILE gets its name when it is whole and its hash is that of what was "
            "sent; a pipe or a device is written as it comes.\v"
            "  dpctl backup dp-$(date +%F).db\n",
        .exits = "0 written, 3 FILE is a directory, 4 its directory is not there, 8 no controller, "
                 "or other backups are being made",
        .handle = handle_backup,
    };
    const char *file = NULL;
    dpctl_parse(ctl, &syntax, &file, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    struct taken taken = {0};
    dp_status status = connect_controller(ctl, &client, err);
    if (status == DP_OK) {
        status = write_backup(client, file, &taken, err);
    }
    if (status != DP_OK) {
        return status;
    }
    char size[32], hash[24];
    snprintf(hash, sizeof(hash), "0x%016" PRIx64, taken.hash);
    if (ctl->json) {
        dpctl_print_json(ctl,
                         json_pack("{s:s, s:I, s:s, s:I}", "file", file, "bytes",
                                   (json_int_t)taken.bytes, "hash", hash, "database_schema",
                                   (json_int_t)taken.schema),
                         "dp.backup/1");
    } else {
        printf("%s: %s, XXH3 %s, schema %u\n", file, dpctl_bytes(size, (double)taken.bytes), hash,
               taken.schema);
    }
    return DP_OK;
}

struct restore {
    const char *file, *state;
};

static const struct argp_option restore_options[] = {
    {"state", KEY_STATE, "DIR", 0, "the controller's state directory (required)", 0},
    {0},
};

static error_t handle_restore(int key, char *arg, struct argp_state *state)
{
    struct restore *restore = state->input;
    switch (key) {
    case KEY_STATE:
        restore->state = arg;
        return 0;
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "file", arg, &restore->file);
        return 0;
    case ARGP_KEY_END:
        if (restore->file == NULL || restore->state == NULL) {
            argp_error(state, "say which FILE, and --state DIR");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

dp_status dpctl_cmd_restore(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "FILE",
        .doc = "Puts a backup, or the copy that an upgrade left, in the place of the database in a "
               "controller's state directory. No controller may be using it. The file is checked "
               "whole before, and what was there is kept beside it. Jobs that were submitted after "
               "the backup are not known any more; what runs of them is left alone.\v"
               "  dpctl restore dp-2026-11-30.db --state /var/lib/dp\n",
        .exits = "0 restored, 3 the file is damaged or not a controller's, 4 no such file or "
                 "directory, 6 a controller uses the directory, or the file is of a newer version",
        .offline = true,
        .options = restore_options,
        .handle = handle_restore,
    };
    struct restore restore = {0};
    dpctl_parse(ctl, &syntax, &restore, argc, argv);
    char kept[DP_PATH_MAX];
    dp_status status = dp_store_restore(restore.state, restore.file, kept, sizeof(kept), err);
    if (status != DP_OK) {
        return status;
    }
    if (ctl->json) {
        dpctl_print_json(ctl,
                         json_pack("{s:s, s:s, s:s}", "file", restore.file, "state", restore.state,
                                   "kept", kept),
                         "dp.restore/1");
    } else {
        printf("%s is in place in %s\n", restore.file, restore.state);
        printf("%s%s\n", kept[0] == '\0' ? "there was no database before" : "the one before is ",
               kept);
    }
    return DP_OK;
}
